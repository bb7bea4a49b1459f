# shellcheck shell=bash
# RabbitMQ brokers: each version in a Debian system of the suite that has it.
#
# The system is installed once into the cache and then only read. What a broker
# writes lies in the state directory and appears in the system as
# /var/lib/rabbitmq. The trio (trio.sh) runs further nodes in the same way.

readonly BROKER_PLUGINS="rabbitmq_management, rabbitmq_prometheus, rabbitmq_event_exchange, rabbitmq_shovel, rabbitmq_shovel_management, rabbitmq_random_exchange"

# Suites that have the version, the best one first. Testing moves on to the next
# version some day; unstable does so earlier.
broker_suites() {
    case $1 in
        40) echo "trixie" ;;
        43) echo "forky sid" ;;
        *) die "there is no broker $1, only: $BROKER_VERSIONS" ;;
    esac
}

broker_check_version() {
    broker_suites "$1" >/dev/null
}

# Each change of how the system is made makes a new one.
broker_system_key() {
    {
        broker_suites "$1"
        cat "$HACK/lib/build-broker-system"
    } | sha256sum | cut -c 1-12
}

broker_system() {
    echo "$CACHE/broker-$1-$(broker_system_key "$1")"
}

broker_cache() {
    [ -d "$(broker_system "$1")" ] || with_cache_lock "broker-$1" broker_cache_fill "$1"
}

broker_cache_fill() {
    local version=$1 system suite
    system=$(broker_system "$version")
    [ ! -d "$system" ] || return 0
    machine_packages_brokers
    # Leftovers of an interrupted attempt. Its mounts ended with its processes.
    rm -rf --one-file-system "$CACHE/broker-$version.part"
    for suite in $(broker_suites "$version"); do
        if (long_step "installing RabbitMQ ${version:0:1}.${version:1} from $suite" "$LOGS/broker-$version-system.log" \
            "$HACK/lib/build-broker-system" "$suite" "$CACHE/broker-$version.part" "$(machine_mirror)"); then
            mv "$CACHE/broker-$version.part" "$system"
            return 0
        fi
        rm -rf --one-file-system "$CACHE/broker-$version.part"
    done
    die "RabbitMQ $version could not be installed"
}

# The nodes. A node is called by its version (43, 40) or trio1 to trio3.

rabbit_daemon() {
    case $1 in
        trio*) echo "$1" ;;
        *) echo "broker-$1" ;;
    esac
}

# The version that a node runs.
rabbit_version() {
    case $1 in
        trio*) cat "$STATE/trio.version" ;;
        *) echo "$1" ;;
    esac
}

# What belongs to one version of this name: the cookie and the nodes' data.
rabbit_home() {
    echo "$STATE/brokers/$(rabbit_version "$1")"
}

# The name is unique on the machine, although each name has an epmd of its own.
rabbit_erlang_name() {
    case $1 in
        trio*) echo "$1-$NAME@localhost" ;;
        *) echo "rabbit$1-$NAME@localhost" ;;
    esac
}

# rabbit_command NODE COMMAND... prints, for mapfile, the words of a command that
# becomes COMMAND in the node's system and environment. By exec all the way, so
# that the pid that we start is the one of the Erlang machine itself.
rabbit_command() {
    local node=$1 dir=/var/lib/rabbitmq/$1 version
    shift
    version=$(rabbit_version "$node")
    printf '%s\n' unshare --mount "$HACK/lib/in-chroot" ro "$(broker_system "$version")" "$(rabbit_home "$node")" \
        rabbitmq:rabbitmq env -i \
        PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 \
        HOME=/var/lib/rabbitmq \
        RABBITMQ_NODENAME="$(rabbit_erlang_name "$node")" \
        RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$dir/enabled_plugins" \
        RABBITMQ_MNESIA_BASE="$dir/data" \
        RABBITMQ_LOG_BASE="$dir/log" \
        RABBITMQ_PID_FILE="$dir/pid" \
        RABBITMQ_DIST_PORT="$(broker_port "$node" dist)" \
        ERL_EPMD_PORT="$(rabbit_epmd_port "$node")" \
        ERL_EPMD_ADDRESS=127.0.0.1 \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}" \
        RUNNING_UNDER_SYSTEMD=true \
        "$@"
}

# All nodes of a trio meet at the epmd of the first one.
rabbit_epmd_port() {
    case $1 in
        trio*) broker_port trio1 epmd ;;
        *) broker_port "$1" epmd ;;
    esac
}

rabbit_epmd() {
    case $1 in
        trio*) echo epmd-trio ;;
        *) echo "epmd-$1" ;;
    esac
}

# The numeric user and group that own a broker's files.
rabbit_owner() {
    local system
    system=$(broker_system "$(rabbit_version "$1")")
    awk -F: '$1 == "rabbitmq" { print $3 ":" $4 }' "$system/etc/passwd"
}

rabbit_configure() {
    local node=$1 home dir
    home=$(rabbit_home "$node")
    dir=$home/$node
    mkdir -p "$dir/data" "$dir/log"
    if [ ! -s "$home/.erlang.cookie" ]; then
        head -c 15 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$home/.erlang.cookie"
        chmod 400 "$home/.erlang.cookie"
    fi
    echo "[$BROKER_PLUGINS]." >"$dir/enabled_plugins"
    cat >"$dir/rabbitmq.conf" <<CONF
listeners.tcp.local = 127.0.0.1:$(broker_port "$node" amqp)
management.tcp.ip = 127.0.0.1
management.tcp.port = $(broker_port "$node" http)
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = $(broker_port "$node" metrics)

default_user = $BROKER_USER
default_pass = $BROKER_PASSWORD
default_user_tags.administrator = true

# Brokers of several names share the machine with the tests.
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 50MB

log.file = false
log.console = true
log.console.level = info
CONF
    if [[ $node = trio* ]]; then
        trio_cluster_configuration >>"$dir/rabbitmq.conf"
    fi
    # The data stays with its owner; only what was just written needs one.
    chown "$(rabbit_owner "$node")" "$home" "$home/.erlang.cookie" "$dir" "$dir"/*
}

# Erlang would start an epmd by itself, but one that nobody stops.
rabbit_start_epmd() {
    local node=$1 epmd command
    epmd=$(rabbit_epmd "$node")
    daemon_runs "$epmd" && return 0
    mapfile -t command < <(rabbit_command "$node" epmd)
    daemon_start "$epmd" "${command[@]}"
    daemon_ready "$epmd" 10 port_open 127.0.0.1 "$(rabbit_epmd_port "$node")"
}

port_open() {
    (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null
}

rabbit_launch() {
    local node=$1 command
    mapfile -t command < <(rabbit_command "$node" /usr/lib/rabbitmq/bin/rabbitmq-server)
    daemon_start "$(rabbit_daemon "$node")" "${command[@]}"
}

rabbit_http_uri() {
    echo "http://$BROKER_USER:$BROKER_PASSWORD@127.0.0.1:$(broker_port "$1" http)"
}

rabbit_amqp_uri() {
    echo "amqp://$BROKER_USER:$BROKER_PASSWORD@127.0.0.1:$(broker_port "$1" amqp)"
}

# Ready: the management API answers its user, and AMQP connections are taken.
rabbit_is_ready() {
    curl -fsS -m 5 -o /dev/null "$(rabbit_http_uri "$1")/api/whoami" 2>/dev/null &&
        port_open 127.0.0.1 "$(broker_port "$1" amqp)"
}

rabbit_start() {
    local node=$1
    if ! daemon_runs "$(rabbit_daemon "$node")"; then
        rabbit_configure "$node"
        rabbit_start_epmd "$node"
        rabbit_launch "$node"
    fi
    daemon_ready "$(rabbit_daemon "$node")" 120 rabbit_is_ready "$node"
}

rabbit_ctl() {
    local node=$1 command
    shift
    mapfile -t command < <(rabbit_command "$node" /usr/lib/rabbitmq/bin/rabbitmqctl)
    "${command[@]}" "$@"
}

broker_up() {
    local version=$1
    broker_cache "$version"
    step "RabbitMQ ${version:0:1}.${version:1} is ready at 127.0.0.1:$(broker_port "$version" amqp)" rabbit_start "$version"
}

uri_without_password() {
    sed -E 's#//[^@/]*@#//#' <<<"${!1}"
}

broker_down() {
    daemon_stop "broker-$1" 30
    daemon_stop "epmd-$1"
}

cmd_broker() {
    [ $# -ge 2 ] || die "usage: hack/dev broker start|stop|kill|ctl VERSION [ARGS...]"
    local action=$1 version=$2
    shift 2
    broker_check_version "$version"
    ! external_broker "$version" || die "broker $version is not ours: REDRIVE_BROKER_${version}_URI is set"
    [ -n "$SLOT" ] || die "'$NAME' was never started: hack/dev up"
    case $action in
        start)
            lock_name
            broker_up "$version"
            ;;
        stop)
            lock_name
            step "broker $version stopped" daemon_stop "broker-$version" 30
            ;;
        kill)
            lock_name
            step "broker $version killed" daemon_kill "broker-$version" || die "broker $version does not run"
            ;;
        ctl)
            # Another checkout may have started it from another system.
            broker_cache "$version"
            rabbit_ctl "$version" "$@"
            ;;
        *) die "usage: hack/dev broker start|stop|kill|ctl VERSION [ARGS...]" ;;
    esac
}
