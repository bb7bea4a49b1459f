# shellcheck shell=bash
# Definitions of other projects that tests install: that of RabbitmqCluster, from the Go module of
# the cluster operator, which itself is not run.

readonly CLUSTER_OPERATOR=github.com/rabbitmq/cluster-operator/v2@v2.22.4
readonly CLUSTER_DEFINITION_SHA256=3d12de2e4281eb91c49d9860b733b6aa741fe0f608c6a2c4160226fe4993d0de

cluster_definition() {
    echo "$CACHE/rabbitmqclusters-${CLUSTER_DEFINITION_SHA256:0:12}.yaml"
}

cluster_definition_cache() {
    [ -s "$(cluster_definition)" ] || with_cache_lock definitions cluster_definition_fill
}

cluster_definition_fill() {
    local directory part=$CACHE/rabbitmqclusters.part
    [ ! -s "$(cluster_definition)" ] || return 0
    machine_require_go
    # Outside every work tree, so that no other go.mod has a say.
    directory=$(cd / && go mod download -json "$CLUSTER_OPERATOR" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
    install -m 644 "$directory/config/crd/bases/rabbitmq.com_rabbitmqclusters.yaml" "$part"
    echo "$CLUSTER_DEFINITION_SHA256  $part" | sha256sum --check --quiet ||
        die "the definition of RabbitmqCluster in $CLUSTER_OPERATOR is not the one that is expected"
    mv "$part" "$(cluster_definition)"
}
