# shellcheck shell=bash
# Names, directories, addresses and ports.
#
# Every name owns a slot, a number that its ports and its loopback address are
# computed from. The slot is chosen once, at the first `up`, and written down in
# the state directory; it stays until `clean`.

readonly KUBE_MINOR=36
readonly KUBE_VERSION=1.36.1
readonly BROKER_VERSIONS="43 40"
readonly BROKER_USER=redrive
readonly BROKER_PASSWORD=redrive

readonly FIRST_PORT=17000
readonly PORTS_PER_SLOT=100
readonly LAST_SLOT=99

settings_load() {
    NAME=${REDRIVE_DEV_NAME:-default}
    [[ $NAME =~ ^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$ ]] ||
        die "REDRIVE_DEV_NAME=$NAME: use up to 20 lowercase letters, digits and dashes"
    STATE_ROOT=${REDRIVE_DEV_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/redrive-dev}
    CACHE=${REDRIVE_DEV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/redrive-dev}
    STATE=$STATE_ROOT/$NAME
    LOGS=$STATE/logs
    SLOT=
    if [ -s "$STATE/slot" ]; then
        SLOT=$(<"$STATE/slot")
        settings_addresses
    fi
}

# port OFFSET and the names below are the only places that know the layout.
port() {
    echo $((FIRST_PORT + SLOT * PORTS_PER_SLOT + $1))
}

settings_addresses() {
    ETCD_PORT=$(port 0)
    ETCD_PEER_PORT=$(port 1)
    CONTROLLERS_PORT=$(port 2)
    SCHEDULER_PORT=$(port 3)
    KUBELET_PORT=$(port 4)
    KUBELET_HEALTH_PORT=$(port 5)
    # The first address of the service range is the one that pods find the API
    # server at. The API server listens there itself, so pods on the host
    # network reach it by loopback and no kube-proxy is needed.
    SERVICE_RANGE=127.96.$SLOT.0/24
    API_ADDRESS=127.96.$SLOT.1
    NODE_NAME=redrive-$NAME
    KUBECONFIG_ADMIN=$STATE/kube/admin.kubeconfig
}

# Offsets of a broker node: AMQP, management, Prometheus, distribution, epmd.
broker_port() {
    local node=$1 what=$2 base
    case $node in
        43) base=10 ;;
        40) base=20 ;;
        trio1) base=30 ;;
        trio2) base=40 ;;
        trio3) base=50 ;;
        *) die "no broker node is called $node" ;;
    esac
    case $what in
        amqp) port $base ;;
        http) port $((base + 1)) ;;
        metrics) port $((base + 2)) ;;
        dist) port $((base + 3)) ;;
        epmd) port $((base + 4)) ;;
        *) die "a broker has no $what port" ;;
    esac
}

# settings_claim_slot makes sure that this name has a slot. The default name
# gets slot 0 where it is free, so that its ports are the same on every machine.
settings_claim_slot() {
    [ -z "$SLOT" ] || return 0
    mkdir -p "$STATE" "$LOGS"
    exec {slot_lock}>"$STATE_ROOT/.slots.lock"
    flock "$slot_lock"
    local first=0 try
    if [ "$NAME" != default ]; then
        first=$((1 + $(printf %s "$NAME" | cksum | cut -d ' ' -f 1) % LAST_SLOT))
    fi
    for try in $(seq 0 "$LAST_SLOT"); do
        SLOT=$(((first + try) % (LAST_SLOT + 1)))
        if slot_is_free; then
            echo "$SLOT" >"$STATE/slot.new"
            mv "$STATE/slot.new" "$STATE/slot"
            break
        fi
        SLOT=
    done
    exec {slot_lock}>&-
    [ -n "$SLOT" ] || die "no free range of ports; run 'hack/dev clean' for names that are no longer needed"
    settings_addresses
}

# Free: no other name of this state directory has it, and nobody (perhaps a
# cluster with another state directory) listens on its ports.
slot_is_free() {
    local file
    for file in "$STATE_ROOT"/*/slot; do
        if [ -e "$file" ] && [ "$(<"$file")" = "$SLOT" ]; then
            return 1
        fi
    done
    local low=$((FIRST_PORT + SLOT * PORTS_PER_SLOT))
    listening_addresses | awk -v low="$low" -v high=$((low + PORTS_PER_SLOT)) -v api="127.96.$SLOT.1:443" '
        { port = $1; sub(/.*:/, "", port) }
        $1 == api || (port >= low && port < high) { taken = 1 }
        END { exit taken }'
}

# Listening TCP sockets as ADDRESS:PORT, from the kernel's own tables: ss and
# netstat are not everywhere.
listening_addresses() {
    local hex_address hex_port address state
    {
        cat /proc/net/tcp
        cat /proc/net/tcp6 2>/dev/null || true
    } | while read -r _ address _ state _; do
        [ "$state" = 0A ] || continue
        hex_address=${address%:*}
        hex_address=${hex_address: -8} # the IPv4 part of a mapped address
        hex_port=${address##*:}
        printf '%d.%d.%d.%d:%d\n' "0x${hex_address:6:2}" "0x${hex_address:4:2}" \
            "0x${hex_address:2:2}" "0x${hex_address:0:2}" "0x$hex_port"
    done
}

# What the caller brought along. `hack/dev env` exports the addresses of our own
# brokers under the same variables and lists them in REDRIVE_DEV_OURS, so that
# they are not mistaken for the caller's in a shell that has evaluated it.
external_kube() {
    [ -n "${REDRIVE_KUBECONFIG:-}" ]
}

external_broker() {
    local uri=REDRIVE_BROKER_$1_URI
    [ -n "${!uri:-}" ] && [[ " ${REDRIVE_DEV_OURS:-} " != *" ${!uri} "* ]]
}

# part_is_external kubernetes|node|broker_VERSION
part_is_external() {
    case $1 in
        broker_*) external_broker "${1#broker_}" ;;
        *) external_kube ;;
    esac
}

all_is_external() {
    local part
    for part in "$@"; do
        part_is_external "$part" || return 1
    done
}

# Half a name would fail much later, and say less.
external_require() {
    local version uri amqp
    for version in $BROKER_VERSIONS; do
        uri=REDRIVE_BROKER_${version}_URI
        amqp=REDRIVE_BROKER_${version}_AMQP_URI
        if external_broker "$version" && [ -z "${!amqp:-}" ]; then
            die "$uri names a broker, but $amqp is missing: amqp://USER:PASS@HOST:PORT"
        fi
    done
    if external_kube && [ ! -r "$REDRIVE_KUBECONFIG" ]; then
        die "REDRIVE_KUBECONFIG=$REDRIVE_KUBECONFIG can't be read"
    fi
}

# lock_name serialises everything that starts or stops parts of one name. The
# lock lies beside the state, as `clean` removes the state.
lock_name() {
    mkdir -p "$STATE_ROOT"
    exec {name_lock}>"$STATE_ROOT/.$NAME.lock"
    if ! flock -n "$name_lock"; then
        say "waiting for another hack/dev that works on '$NAME'"
        flock "$name_lock"
    fi
}

# with_cache_lock KEY COMMAND...: one process at a time fills a cache entry. The
# children inherit the lock, so even when this script is killed the next one
# waits until a debootstrap that is left over has ended.
with_cache_lock() {
    local key=$1 lock
    shift
    mkdir -p "$CACHE"
    exec {lock}>"$CACHE/.$key.lock"
    if ! flock -n "$lock"; then
        say "waiting for another hack/dev that fills the cache ($key)"
        flock "$lock"
    fi
    "$@"
    exec {lock}>&-
}
