# shellcheck shell=bash
# Three nodes of one version that form a cluster: a real quorum whose members
# can be killed. There is one trio at a time for each name, and every `trio up`
# after a `trio down` starts from an empty one.

readonly TRIO="trio1 trio2 trio3"

# The nodes find each other at their first start, without rabbitmqctl.
trio_cluster_configuration() {
    local node number=0
    echo "cluster_formation.peer_discovery_backend = classic_config"
    for node in $TRIO; do
        number=$((number + 1))
        echo "cluster_formation.classic_config.nodes.$number = $(rabbit_erlang_name "$node")"
    done
    echo "cluster_partition_handling = pause_minority"
}

trio_version() {
    [ -s "$STATE/trio.version" ] || return 1
    cat "$STATE/trio.version"
}

trio_running_nodes() {
    curl -fsS -m 5 "$(rabbit_http_uri trio1)/api/nodes?columns=name,running" | grep -o '"running":true' | wc -l
}

trio_is_whole() {
    local node
    for node in $TRIO; do
        rabbit_is_ready "$node" || return 1
    done
    [ "$(trio_running_nodes)" = 3 ]
}

trio_up() {
    local version=$1 node
    broker_check_version "$version"
    if trio_version >/dev/null && [ "$(trio_version)" != "$version" ]; then
        die "a trio of $(trio_version) exists; first: hack/dev trio down"
    fi
    broker_cache "$version"
    echo "$version" >"$STATE/trio.version"
    step "trio of RabbitMQ ${version:0:1}.${version:1} is ready" trio_start
}

trio_start() {
    local node
    for node in $TRIO; do
        if ! daemon_runs "$node"; then
            rabbit_configure "$node"
            rabbit_start_epmd "$node"
            rabbit_launch "$node"
        fi
    done
    for node in $TRIO; do
        daemon_ready "$node" 180 rabbit_is_ready "$node"
    done
    wait_until 60 "the meeting of the three nodes" trio_is_whole
}

trio_down() {
    trio_version >/dev/null || return 0
    local node home
    home=$(rabbit_home trio1)
    # All at once, and no grace: the data is thrown away.
    for node in $TRIO; do
        if daemon_runs "$node"; then
            daemon_kill "$node"
        fi
    done
    daemon_stop epmd-trio
    for node in $TRIO; do
        rm -rf --one-file-system "${home:?}/$node"
    done
    rm -f "$STATE/trio.version"
}

trio_node() {
    [[ ${1:-} =~ ^[123]$ ]] || die "the nodes of the trio are 1, 2 and 3"
    trio_version >/dev/null || die "there is no trio: hack/dev trio up VERSION"
    echo "trio$1"
}

cmd_trio() {
    local action=${1:-} node
    [ $# -eq 0 ] || shift
    case $action in
        up)
            [ $# -eq 1 ] || die "usage: hack/dev trio up VERSION"
            machine_require
            lock_name
            settings_claim_slot
            trio_up "$1"
            ;;
        down)
            lock_name
            step "trio is gone" trio_down
            ;;
        kill)
            node=$(trio_node "$@")
            step "$node killed" daemon_kill "$node" || die "$node does not run"
            ;;
        start)
            node=$(trio_node "$@")
            step "$node is ready" rabbit_start "$node"
            ;;
        ctl)
            node=$(trio_node "$@")
            shift
            rabbit_ctl "$node" "$@"
            ;;
        *) die "usage: hack/dev trio up VERSION|down|kill N|start N|ctl N ARGS..." ;;
    esac
}
