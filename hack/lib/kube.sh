# shellcheck shell=bash
# The Kubernetes binary (hack/kube) and the control plane that it runs as.

# Everything that the binary is made of.
kube_key() {
    {
        cat "$HACK/kube/go.mod" "$HACK/kube/go.sum" "$HACK/kube/main.go" "$HACK/kube/pause/main.go"
        echo "$KUBE_VERSION"
    } | sha256sum | cut -c 1-12
}

# The directory with the binary, and one name for it for each part.
kube_bin() {
    echo "$CACHE/kube-$KUBE_VERSION-$(kube_key)"
}

kube_cache() {
    [ -d "$(kube_bin)" ] || with_cache_lock kube kube_cache_fill
}

kube_cache_fill() {
    local bin part=$CACHE/kube.part name
    bin=$(kube_bin)
    [ ! -d "$bin" ] || return 0
    machine_require_go
    rm -rf "$part"
    mkdir -p "$part"
    long_step "building Kubernetes $KUBE_VERSION (some 4 minutes on 2 cores)" "$LOGS/kube-build.log" kube_build "$part/kube"
    (cd "$HACK/kube" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$part/pause" ./pause)
    for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
        ln -s kube "$part/$name"
    done
    mv "$part" "$bin"
}

# Go keeps what it has compiled, so an interrupted build goes on where it was.
kube_build() {
    local flags="-s -w" package=k8s.io/component-base/version
    flags+=" -X $package.gitVersion=v$KUBE_VERSION -X $package.gitMajor=1 -X $package.gitMinor=$KUBE_MINOR"
    cd "$HACK/kube" || return
    exec nice -n 5 go build -trimpath -tags providerless -ldflags "$flags" -o "$1" .
}

kubectl_admin() {
    "$(kube_bin)/kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"
}

# Tests count requests: those for our own resources, for secrets and events; and they compare the
# rights of service accounts with all that these ask for.
kube_audit_policy() {
    cat >"$STATE/kube/audit.yaml" <<'YAML'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    resources:
      - group: redrive.dev
      - group: ""
        resources: [secrets, events]
      - group: events.k8s.io
        resources: [events]
  # Those of the controllers of Kubernetes.
  - level: None
    userGroups: ["system:serviceaccounts:kube-system"]
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
  - level: None
YAML
}

kube_start_etcd() {
    daemon_runs etcd || daemon_start etcd "$(kube_bin)/etcd" \
        --data-dir "$STATE/kube/etcd" \
        --unsafe-no-fsync \
        --log-level warn \
        --listen-client-urls "http://127.0.0.1:$ETCD_PORT" \
        --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" \
        --listen-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" \
        --initial-advertise-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" \
        --initial-cluster "default=http://127.0.0.1:$ETCD_PEER_PORT"
    daemon_ready etcd 30 port_open 127.0.0.1 "$ETCD_PORT"
}

kube_start_apiserver() {
    local pki
    pki=$(pki)
    kube_audit_policy
    daemon_runs kube-apiserver || daemon_start kube-apiserver "$(kube_bin)/kube-apiserver" \
        --etcd-servers "http://127.0.0.1:$ETCD_PORT" \
        --bind-address "$API_ADDRESS" \
        --advertise-address "$API_ADDRESS" \
        --secure-port 443 \
        --service-cluster-ip-range "$SERVICE_RANGE" \
        --endpoint-reconciler-type none \
        --cert-dir "$pki" \
        --tls-cert-file "$pki/apiserver.crt" \
        --tls-private-key-file "$pki/apiserver.key" \
        --client-ca-file "$pki/ca.crt" \
        --service-account-issuer https://kubernetes.default.svc.cluster.local \
        --service-account-key-file "$pki/service-accounts.key" \
        --service-account-signing-key-file "$pki/service-accounts.key" \
        --authorization-mode Node,RBAC \
        --enable-admission-plugins NodeRestriction \
        --kubelet-certificate-authority "$pki/ca.crt" \
        --kubelet-client-certificate "$pki/apiserver-kubelet.crt" \
        --kubelet-client-key "$pki/apiserver-kubelet.key" \
        --kubelet-preferred-address-types InternalIP \
        --audit-policy-file "$STATE/kube/audit.yaml" \
        --audit-log-path "$LOGS/audit.log" \
        --audit-log-maxsize 200 \
        --profiling=false
    daemon_ready kube-apiserver 90 kube_is_ready
}

# curl rather than kubectl: a tenth of the time.
kube_is_ready() {
    curl -fsS -m 5 -o /dev/null --cacert "$(pki)/ca.crt" --cert "$(pki)/admin.crt" --key "$(pki)/admin.key" \
        "https://$API_ADDRESS/readyz" 2>/dev/null
}

kube_start_controllers() {
    local pki
    pki=$(pki)
    daemon_runs kube-controller-manager || daemon_start kube-controller-manager "$(kube_bin)/kube-controller-manager" \
        --kubeconfig "$STATE/kube/controllers.kubeconfig" \
        --authentication-kubeconfig "$STATE/kube/controllers.kubeconfig" \
        --authorization-kubeconfig "$STATE/kube/controllers.kubeconfig" \
        --bind-address 127.0.0.1 \
        --secure-port "$CONTROLLERS_PORT" \
        --cert-dir "$pki" \
        --leader-elect=false \
        --use-service-account-credentials \
        --service-account-private-key-file "$pki/service-accounts.key" \
        --root-ca-file "$pki/ca.crt" \
        --cluster-signing-cert-file "$pki/ca.crt" \
        --cluster-signing-key-file "$pki/ca.key" \
        --profiling=false
}

kube_start_scheduler() {
    daemon_runs kube-scheduler || daemon_start kube-scheduler "$(kube_bin)/kube-scheduler" \
        --kubeconfig "$STATE/kube/scheduler.kubeconfig" \
        --authentication-kubeconfig "$STATE/kube/scheduler.kubeconfig" \
        --authorization-kubeconfig "$STATE/kube/scheduler.kubeconfig" \
        --bind-address 127.0.0.1 \
        --secure-port "$SCHEDULER_PORT" \
        --cert-dir "$(pki)" \
        --leader-elect=false \
        --profiling=false
}

# Pods can be made once the controllers have made the service account.
kube_has_service_account() {
    curl -fsS -m 5 -o /dev/null --cacert "$(pki)/ca.crt" --cert "$(pki)/admin.crt" --key "$(pki)/admin.key" \
        "https://$API_ADDRESS/api/v1/namespaces/default/serviceaccounts/default" 2>/dev/null
}

kube_up() {
    machine_packages_kube
    kube_cache
    definitions_cache
    mkdir -p "$STATE/kube"
    pki_all
    step "etcd is ready at 127.0.0.1:$ETCD_PORT" kube_start_etcd
    step "Kubernetes $KUBE_VERSION is ready at $API_ADDRESS:443" kube_start_apiserver
    step "controllers and scheduler are ready" kube_start_rest
}

kube_start_rest() {
    kube_start_controllers
    kube_start_scheduler
    daemon_ready kube-controller-manager 60 kube_has_service_account
    daemon_ready kube-scheduler 60 port_open 127.0.0.1 "$SCHEDULER_PORT"
}

kube_down() {
    daemon_stop kube-scheduler
    daemon_stop kube-controller-manager
    # It waits for open watches before it lets go of its port.
    daemon_stop kube-apiserver 15
    daemon_stop etcd
}

cmd_api() {
    ! external_kube || die "the API server is not ours: REDRIVE_KUBECONFIG is set"
    kube_require_authority
    case ${1:-} in
        kill)
            lock_name
            step "API server killed" daemon_kill kube-apiserver || die "the API server does not run"
            ;;
        start)
            lock_name
            step "API server is ready" kube_start_apiserver
            ;;
        *) die "usage: hack/dev api kill|start" ;;
    esac
}

kube_require_authority() {
    if [ -z "$SLOT" ] || [ ! -s "$KUBECONFIG_ADMIN" ]; then
        die "'$NAME' has no Kubernetes yet: hack/dev up kube"
    fi
}

cmd_kubectl() {
    local kubectl
    kubectl=$(kube_bin)/kubectl
    [ -x "$kubectl" ] || kubectl=$(command -v kubectl) || die "no kubectl yet: hack/dev up kube"
    if external_kube; then
        exec "$kubectl" --kubeconfig "$REDRIVE_KUBECONFIG" "$@"
    fi
    kube_require_authority
    exec "$kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"
}
