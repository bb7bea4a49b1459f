# shellcheck shell=bash
# The commands that are about all parts at once.

cmd_up() {
    local what=${1:-all} start parts part ours=()
    case $what in
        kube) parts=(kubernetes) ;;
        node) parts=(node) ;;
        brokers) parts=(broker_43 broker_40) ;;
        all) parts=(node broker_43 broker_40) ;;
        *) die "usage: hack/dev up [kube|node|brokers|all]" ;;
    esac
    start=$(now_ms)
    for part in "${parts[@]}"; do
        if part_is_external "$part"; then
            say "$(part_says "$part")"
            part_needs "$part"
        else
            ours+=("$part")
        fi
    done
    if [ ${#ours[@]} -eq 0 ]; then
        say "nothing is left to start"
        return 0
    fi
    machine_require
    lock_name
    settings_claim_slot
    mkdir -p "$LOGS" "$STATE/run" "$CACHE"
    # Packages first: apt-get cannot run twice at the same time.
    machine_packages curl=curl jq=jq ip=iproute2
    up_together "${ours[@]}"
    say "'$NAME' is up ($(since "$start")); for the tests: eval \"\$($HACK/dev env)\""
}

# What tests need beside a part that is not ours.
part_needs() {
    case $1 in
        broker_*) ;;
        *)
            mkdir -p "$CACHE"
            definitions_cache
            ;;
    esac
}

# What the environment names instead of a part of ours.
part_says() {
    case $1 in
        broker_*) echo "broker ${1#broker_}: using $(uri_without_password "REDRIVE_BROKER_${1#broker_}_URI")" ;;
        *) echo "Kubernetes: using $REDRIVE_KUBECONFIG" ;;
    esac
}

# Each of these is a pipeline that runs beside the others, as they share nothing.
up_kubernetes() { kube_up; }
up_node() {
    kube_up
    node_up
}
up_broker_43() { broker_up 43; }
up_broker_40() { broker_up 40; }

up_together() {
    local pipeline pids=() pid failed=0
    packages_together "$@"
    # Process groups of their own, to end them with all that they have started
    # (but not the daemons, which are in sessions of their own).
    set -m
    for pipeline in "$@"; do
        (
            SAY_PREFIX="[${pipeline/_/ }] "
            "up_$pipeline"
        ) &
        pids+=("$!")
    done
    set +m
    # shellcheck disable=SC2064
    trap "kill -TERM -- ${pids[*]/#/-} 2>/dev/null || true; say interrupted; exit 130" INT TERM
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
    trap - INT TERM
    [ "$failed" = 0 ] || die "not everything is up; run it again to go on from here"
}

packages_together() {
    local pipeline
    for pipeline in "$@"; do
        case $pipeline in
            kubernetes | node) machine_packages_kube ;;&
            node) machine_packages_node ;;
            broker_*) machine_packages_brokers ;;
        esac
    done
}

cmd_down() {
    lock_name
    if [ -z "$SLOT" ]; then
        say "'$NAME' was never started"
        return 0
    fi
    local start version pids=()
    start=$(now_ms)
    # What hack/demo may have left running would be out of reach after a `clean`.
    daemon_stop demo-operator
    (
        step "node stopped" node_down
        step "Kubernetes stopped" kube_down
    ) &
    pids+=("$!")
    for version in $BROKER_VERSIONS; do
        step "broker $version stopped" broker_down "$version" &
        pids+=("$!")
    done
    trio_down &
    pids+=("$!")
    local pid failed=0
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
    unmount_below "$STATE"
    [ "$failed" = 0 ] || die "not everything has stopped: hack/dev status"
    say "'$NAME' is down ($(since "$start"))"
}

# Our own mounts end with their namespaces. This is for what somebody mounted
# by hand, before anything is removed.
unmount_below() {
    local mount
    while read -r mount; do
        say "unmounting $mount"
        umount "$mount" || umount --lazy "$mount"
    done < <(awk -v below="$1/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

cmd_clean() {
    cmd_down
    # Never through a mount that is still there.
    rm -rf --one-file-system "$STATE"
    say "state of '$NAME' removed; the cache stays in $CACHE"
}

# status_line PART VERSION ADDRESS DAEMON CHECK...
status_line() {
    local part=$1 version=$2 address=$3 daemon=$4 pid=- state=stopped
    shift 4
    if pid=$(daemon_pid "$daemon"); then
        state=running
        "$@" >/dev/null 2>&1 || state="not ready"
    else
        pid=-
    fi
    [ "$state" = running ] || STATUS_ALL_RUN=0
    printf '%-24s %-10s %-8s %-22s %-8s %s\n' "$part" "$state" "$version" "$address" "$pid" "$LOGS/$daemon.log"
}

status_external() {
    printf '%-24s %-10s %-8s %s\n' "$1" external - "$2"
}

cmd_status() {
    local version node
    STATUS_ALL_RUN=1
    if [ -z "$SLOT" ] && ! all_is_external node broker_43 broker_40; then
        say "'$NAME' was never started: hack/dev up"
        exit 1
    fi
    printf '%-24s %-10s %-8s %-22s %-8s %s\n' PART STATE VERSION ADDRESS PID LOG
    if external_kube; then
        status_external kubernetes "$REDRIVE_KUBECONFIG"
    else
        status_line etcd "" "127.0.0.1:$ETCD_PORT" etcd port_open 127.0.0.1 "$ETCD_PORT"
        status_line kube-apiserver "$KUBE_VERSION" "$API_ADDRESS:443" kube-apiserver kube_is_ready
        status_line kube-controller-manager "$KUBE_VERSION" "127.0.0.1:$CONTROLLERS_PORT" kube-controller-manager \
            port_open 127.0.0.1 "$CONTROLLERS_PORT"
        status_line kube-scheduler "$KUBE_VERSION" "127.0.0.1:$SCHEDULER_PORT" kube-scheduler \
            port_open 127.0.0.1 "$SCHEDULER_PORT"
        status_line containerd "" - containerd test -S "$(containerd_socket)"
        status_line kubelet "$KUBE_VERSION" "$NODE_NAME:$KUBELET_PORT" kubelet node_is_ready
    fi
    for version in $BROKER_VERSIONS; do
        if external_broker "$version"; then
            status_external "broker $version" "$(uri_without_password "REDRIVE_BROKER_${version}_URI")"
        else
            status_line "broker $version" "${version:0:1}.${version:1}" "127.0.0.1:$(broker_port "$version" amqp)" \
                "broker-$version" rabbit_is_ready "$version"
        fi
    done
    if [ -n "$SLOT" ] && version=$(trio_version); then
        for node in $TRIO; do
            status_line "$node" "${version:0:1}.${version:1}" "127.0.0.1:$(broker_port "$node" amqp)" \
                "$node" rabbit_is_ready "$node"
        done
    fi
    [ "$STATUS_ALL_RUN" = 1 ]
}

# Exports what runs; tests find out by a missing variable what does not.
cmd_env() {
    local version ours=() any=0 paths=""
    export_line REDRIVE_DEV "$HACK/dev"
    export_line REDRIVE_DEV_NAME "$NAME"
    export_line REDRIVE_DEV_STATE "$STATE_ROOT"
    export_line REDRIVE_DEV_CACHE "$CACHE"
    if external_kube; then
        export_line KUBECONFIG "$REDRIVE_KUBECONFIG"
        any=1
    elif [ -n "$SLOT" ] && daemon_runs kube-apiserver; then
        export_line KUBECONFIG "$KUBECONFIG_ADMIN"
        export_line REDRIVE_AUDIT_LOG "$LOGS/audit.log"
        any=1
    fi
    for version in $BROKER_VERSIONS; do
        if external_broker "$version"; then
            env_external_broker "$version"
            any=1
        elif [ -n "$SLOT" ] && daemon_runs "broker-$version"; then
            export_line "REDRIVE_BROKER_${version}_URI" "$(rabbit_http_uri "$version")"
            export_line "REDRIVE_BROKER_${version}_AMQP_URI" "$(rabbit_amqp_uri "$version")"
            ours+=("$(rabbit_http_uri "$version")")
            any=1
        fi
    done
    export_line REDRIVE_DEV_OURS "${ours[*]:-}"
    if [ -n "$SLOT" ] && trio_version >/dev/null; then
        env_trio
    fi
    if [ -d "$(definitions)" ]; then
        export_line REDRIVE_DEFINITIONS "$(definitions)"
    fi
    if [ -x "$(kube_bin)/kubectl" ]; then
        paths=$(kube_bin)
        echo "case :\$PATH: in *:$paths:*) ;; *) export PATH=$paths:\$PATH ;; esac"
    fi
    if [ "$any" = 0 ]; then
        say "nothing of '$NAME' runs: hack/dev up"
        return 1
    fi
}

export_line() {
    printf 'export %s=%q\n' "$1" "$2"
}

env_external_broker() {
    local http=REDRIVE_BROKER_$1_URI amqp=REDRIVE_BROKER_$1_AMQP_URI
    export_line "$http" "${!http}"
    export_line "$amqp" "${!amqp}"
}

env_trio() {
    local node http=() amqp=()
    for node in $TRIO; do
        http+=("$(rabbit_http_uri "$node")")
        amqp+=("$(rabbit_amqp_uri "$node")")
    done
    local IFS=,
    export_line REDRIVE_TRIO_URIS "${http[*]}"
    export_line REDRIVE_TRIO_AMQP_URIS "${amqp[*]}"
}

cmd_logs() {
    local part=${1:-} log
    if [ -z "$part" ] || [ ! -e "$LOGS/$part.log" ]; then
        say "logs of '$NAME':"
        for log in "$LOGS"/*.log; do
            [ ! -e "$log" ] || basename "$log" .log >&2
        done
        [ -z "$part" ] || exit 1
        return 0
    fi
    # Follow only for a human.
    if [ -t 1 ]; then
        exec tail -n 100 -F "$LOGS/$part.log"
    fi
    exec cat "$LOGS/$part.log"
}
