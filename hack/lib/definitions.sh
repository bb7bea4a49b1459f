# shellcheck shell=bash
# Definitions of other operators that tests install, each from its project's Go module. The
# operators themselves are not run.

# Module, path in it, and what the file has to be.
readonly DEFINITIONS='
github.com/rabbitmq/cluster-operator/v2@v2.22.4 config/crd/bases/rabbitmq.com_rabbitmqclusters.yaml 3d12de2e4281eb91c49d9860b733b6aa741fe0f608c6a2c4160226fe4993d0de
github.com/prometheus-operator/prometheus-operator@v0.92.1 example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml d596a7ed0618fc29c36bb76ecd2ff11affa3595c683d413765097e43a339eb31
github.com/prometheus-operator/prometheus-operator@v0.92.1 example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml 74fc686378f010fd8cde5e056af89d6ed84db166ac0aacc63d4b21e6c7605493
github.com/kedacore/keda/v2@v2.18.1 config/crd/bases/keda.sh_scaledobjects.yaml 44e8d3444bb884ed5c8dc4f1b118944a54fe9c81534048793c20b9394ae1de2c
'

# The directory that holds them, by their own names.
definitions() {
    local key
    key=$(sha256sum <<<"$DEFINITIONS")
    echo "$CACHE/definitions-${key:0:12}"
}

definitions_cache() {
    [ -d "$(definitions)" ] || with_cache_lock definitions definitions_fill
}

definitions_fill() {
    local module path sum directory fresh
    [ ! -d "$(definitions)" ] || return 0
    machine_require_go
    fresh=$(definitions).$$
    mkdir -p "$fresh"
    while read -r module path sum; do
        [ -n "$module" ] || continue
        # Outside every work tree, so that no other go.mod has a say.
        directory=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
        install -m 644 "$directory/$path" "$fresh/"
        echo "$sum  $fresh/${path##*/}" | sha256sum --check --quiet ||
            die "$path in $module is not the one that is expected"
    done <<<"$DEFINITIONS"
    mv -T "$fresh" "$(definitions)"
}
