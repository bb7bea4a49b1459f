# shellcheck shell=bash
# Certificates and kubeconfigs. One authority signs all of them; it also serves
# `hack/dev user`, as a client certificate is all that a user of Kubernetes is.

readonly CERTIFICATE_DAYS=3650

pki() {
    echo "$STATE/kube/pki"
}

pki_key() {
    [ -s "$1" ] || (umask 077 && openssl ecparam -name prime256v1 -genkey -noout -out "$1.new" && mv "$1.new" "$1")
}

pki_authority() {
    local dir
    dir=$(pki)
    mkdir -p "$dir"
    pki_key "$dir/ca.key"
    [ -s "$dir/ca.crt" ] || {
        openssl req -x509 -new -sha256 -key "$dir/ca.key" -days "$CERTIFICATE_DAYS" \
            -subj "/CN=redrive-$NAME" -out "$dir/ca.crt.new" \
            -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
        mv "$dir/ca.crt.new" "$dir/ca.crt"
    }
}

# pki_certificate FILE SUBJECT USAGE [SANS]: FILE.key and FILE.crt below pki.
pki_certificate() {
    local file subject=$2 usage=$3 sans=${4:-} dir
    dir=$(pki)
    file=$dir/$1
    [ ! -s "$file.crt" ] || return 0
    pki_key "$file.key"
    # A serial of its own for each, without the serial file that concurrent
    # calls would fight over.
    openssl req -new -sha256 -key "$file.key" -subj "$subject" |
        openssl x509 -req -sha256 -days "$CERTIFICATE_DAYS" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" \
            -set_serial "0x$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' | sed 's/^./1/')" \
            -out "$file.crt.new" -extfile <(
                echo "keyUsage=critical,digitalSignature"
                echo "extendedKeyUsage=$usage"
                [ -z "$sans" ] || echo "subjectAltName=$sans"
            ) 2>/dev/null
    mv "$file.crt.new" "$file.crt"
}

# pki_kubeconfig FILE CERTIFICATE: a kubeconfig that carries all it needs.
pki_kubeconfig() {
    local file=$1 dir certificate
    dir=$(pki)
    certificate=$dir/$2
    [ ! -s "$file" ] || return 0
    (
        umask 077
        cat >"$file.new" <<YAML
apiVersion: v1
kind: Config
current-context: redrive
clusters:
  - name: redrive
    cluster:
      server: https://$API_ADDRESS:443
      certificate-authority-data: $(base64 -w 0 <"$dir/ca.crt")
users:
  - name: redrive
    user:
      client-certificate-data: $(base64 -w 0 <"$certificate.crt")
      client-key-data: $(base64 -w 0 <"$certificate.key")
contexts:
  - name: redrive
    context:
      cluster: redrive
      user: redrive
      namespace: default
YAML
        mv "$file.new" "$file"
    )
}

pki_all() {
    local kube=$STATE/kube
    pki_authority
    pki_key "$(pki)/service-accounts.key"
    pki_certificate apiserver /CN=kube-apiserver serverAuth \
        "IP:127.0.0.1,IP:$API_ADDRESS,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    pki_certificate apiserver-kubelet /O=system:masters/CN=apiserver-kubelet clientAuth
    pki_certificate admin /O=system:masters/CN=admin clientAuth
    pki_certificate controllers /CN=system:kube-controller-manager clientAuth
    pki_certificate scheduler /CN=system:kube-scheduler clientAuth
    pki_certificate node "/O=system:nodes/CN=system:node:$NODE_NAME" clientAuth
    pki_kubeconfig "$KUBECONFIG_ADMIN" admin
    pki_kubeconfig "$kube/controllers.kubeconfig" controllers
    pki_kubeconfig "$kube/scheduler.kubeconfig" scheduler
    pki_kubeconfig "$kube/node.kubeconfig" node
}

# The address of the node is known only when it starts, and may change.
pki_node_serving() {
    local address=$1 stamp
    stamp=$(pki)/node-serving.address
    if [ "$(cat "$stamp" 2>/dev/null)" != "$address" ]; then
        rm -f "$(pki)/node-serving.crt"
    fi
    pki_certificate node-serving "/CN=$NODE_NAME" serverAuth "IP:$address,IP:127.0.0.1,DNS:$NODE_NAME,DNS:localhost"
    echo "$address" >"$stamp"
}

cmd_user() {
    [ $# -ge 1 ] || die "usage: hack/dev user NAME [GROUP...]"
    ! external_kube || die "users of a cluster that is not ours (REDRIVE_KUBECONFIG is set) cannot be made"
    kube_require_authority
    local user=$1 subject="" group key word
    for word in "$@"; do
        [[ $word =~ ^[A-Za-z0-9:._@-]+$ ]] || die "a user or group name may not be '$word'"
    done
    shift
    for group in "$@"; do
        subject+="/O=$group"
    done
    key=user-$(printf '%s\n' "$user" "$@" | sha256sum | cut -c 1-12)
    mkdir -p "$STATE/kube/users"
    pki_certificate "$key" "$subject/CN=$user" clientAuth
    pki_kubeconfig "$STATE/kube/users/$key.kubeconfig" "$key"
    echo "$STATE/kube/users/$key.kubeconfig"
}
