# shellcheck shell=bash
# The node: containerd and a kubelet, which run pods for real.
#
# Both live in a mount namespace of their own (see in-node) and below a cgroup
# of their own, so that the nodes of several names do not disturb each other.

readonly PAUSE_IMAGE=localhost/pause:dev

node_state() {
    echo "$STATE/node"
}

# A socket's path may have 107 bytes; containerd appends ".ttrpc" to it.
containerd_socket() {
    local socket
    socket=$(node_state)/containerd.sock
    [ ${#socket} -lt 100 ] || die "$socket is too long for a socket: choose a shorter REDRIVE_DEV_STATE"
    echo "$socket"
}

ctr_node() {
    ctr --address "$(containerd_socket)" --namespace k8s.io "$@"
}

# overlayfs does not stack on overlayfs, which is what a container's files are.
containerd_snapshotter() {
    if [ "$(stat -f -c %T "$STATE")" = overlayfs ]; then
        echo native
    else
        echo overlayfs
    fi
}

containerd_configure() {
    local state=$1
    mkdir -p "$state/net.d"
    cat >"$state/containerd.toml" <<TOML
version = 2
root = "$state/containerd"
state = "$state/containerd-run"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "$(containerd_socket)"

[plugins."io.containerd.internal.v1.opt"]
  path = "$state/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  # Lowering OOM scores is not allowed everywhere.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$(containerd_snapshotter)"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$HACK/lib/cni"
    conf_dir = "$state/net.d"
TOML
    # A node is ready only with a pod network. The kubelet probes pods at the address given here.
    cat >"$state/net.d/10-redrive.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "redrive", "plugins": [{"type": "shared", "address": "$(node_address)/32"}]}
JSON
}

kubelet_configure() {
    local state=$1
    cat >"$state/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: $KUBELET_PORT
healthzBindAddress: 127.0.0.1
healthzPort: $KUBELET_HEALTH_PORT
containerRuntimeEndpoint: unix://$(containerd_socket)
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $(pki)/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $(pki)/node-serving.crt
tlsPrivateKeyFile: $(pki)/node-serving.key
registerNode: true
# The machine as it is: either version of cgroups, swap, no systemd.
cgroupDriver: cgroupfs
cgroupRoot: $(node_cgroup)
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
clusterDNS: []
# The disk belongs to the developer: nothing is evicted or collected because it
# is rather full.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  memory.available: 50Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
  imagefs.inodesFree: 1%
# Tests wait for pods to go.
syncFrequency: 10s
shutdownGracePeriod: 0s
YAML
}

node_cgroup() {
    echo "/redrive-$NAME"
}

# The directories of the node's cgroup: one for cgroup v2, one for each
# controller with v1.
node_cgroup_dirs() {
    local type dir
    while read -r _ dir type _; do
        case $type in
            cgroup | cgroup2) echo "$dir$(node_cgroup)" ;;
        esac
    done </proc/mounts
}

# The kubelet makes everything below this cgroup, but not the cgroup itself.
node_make_cgroup() {
    local dir top controllers
    while read -r dir; do
        mkdir -p "$dir"
        top=$(dirname "$dir")
        # v1: a new cpuset is empty, and nothing can run in it.
        if [ -e "$dir/cpuset.cpus" ] && [ -e "$top/cgroup.clone_children" ]; then
            cat "$top/cpuset.cpus" >"$dir/cpuset.cpus"
            cat "$top/cpuset.mems" >"$dir/cpuset.mems"
        fi
        # v2: controllers are handed down level by level.
        if [ -s "$top/cgroup.controllers" ]; then
            controllers=$(sed -E 's/(^| )/ +/g' "$top/cgroup.controllers")
            echo "$controllers" >"$top/cgroup.subtree_control" ||
                say "note: cgroup controllers cannot be handed down from $top; pods may not start"
        fi
    done < <(node_cgroup_dirs)
}

# Everything that runs in pods: kill until nothing is left, as a process may
# fork while it is looked for.
node_kill_pods() {
    local dir try pids
    for try in 1 2 3 4 5 6 7 8 9 10; do
        pids=$(node_cgroup_dirs | while read -r dir; do
            find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null || true
        done | sort -u)
        [ -n "$pids" ] || return 0
        [ "$try" = 1 ] || sleep 0.2
        # shellcheck disable=SC2086
        kill -KILL $pids 2>/dev/null || true
    done
}

node_remove_cgroup() {
    local dir
    while read -r dir; do
        [ ! -d "$dir" ] || find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done < <(node_cgroup_dirs)
}

# The shims stay when containerd goes. They name its socket in their arguments.
node_shims() {
    local socket dir words
    socket=$(containerd_socket)
    for dir in /proc/[0-9]*; do
        [ "$(cat "$dir/comm" 2>/dev/null)" = containerd-shim ] || continue
        words=$(tr '\0' ' ' <"$dir/cmdline" 2>/dev/null) || continue
        [[ $words != *" -address $socket "* ]] || echo "${dir#/proc/}"
    done
}

containerd_start() {
    local state=$1
    containerd_configure "$state"
    daemon_start containerd unshare --mount --propagation slave "$HACK/lib/in-node" "$state" \
        containerd --config "$state/containerd.toml"
    daemon_ready containerd 30 ctr_node version
}

kubelet_start() {
    local state=$1 address
    address=$(node_address)
    pki_node_serving "$address"
    kubelet_configure "$state"
    node_make_cgroup
    daemon_start kubelet nsenter --mount --target "$(daemon_pid containerd)" \
        "$(kube_bin)/kubelet" \
        --kubeconfig "$STATE/kube/node.kubeconfig" \
        --config "$state/kubelet.yaml" \
        --cert-dir "$(pki)" \
        --hostname-override "$NODE_NAME"
}

# The address that the kubelet will find out and register. It refuses loopback
# addresses, so a machine needs some other one.
node_address() {
    local address
    address=$(ip -4 route get 192.0.2.254 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p')
    [ -n "$address" ] || address=$(hostname -I | tr ' ' '\n' | grep -m 1 -E '^[0-9.]+$') ||
        die "the machine has no address beside loopback, which a kubelet needs"
    echo "$address"
}

node_is_ready() {
    curl -fsS -m 5 --cacert "$(pki)/ca.crt" --cert "$(pki)/admin.crt" --key "$(pki)/admin.key" \
        "https://$API_ADDRESS/api/v1/nodes/$NODE_NAME" 2>/dev/null |
        jq -e '.status.conditions[]? | select(.type == "Ready" and .status == "True")' >/dev/null
}

node_start() {
    local state
    state=$(node_state)
    mkdir -p "$state"
    if ! daemon_runs containerd; then
        # The kubelet is in the namespace of the containerd that has gone.
        node_stop
        containerd_start "$state"
    fi
    image_pause
    daemon_runs kubelet || kubelet_start "$state"
    daemon_ready kubelet 60 node_is_ready
}

node_up() {
    machine_packages_node
    step "node $NODE_NAME is ready" node_start
}

node_stop() {
    daemon_stop kubelet
    node_kill_pods
    daemon_stop containerd
    local pid
    for pid in $(node_shims); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    node_remove_cgroup
    # What a restart of the machine would empty.
    rm -rf --one-file-system "$(node_state)/containerd-run" "$(node_state)/run-containerd" "$(node_state)/run-netns"
}

node_down() {
    [ ! -d "$(node_state)" ] || node_stop
}
