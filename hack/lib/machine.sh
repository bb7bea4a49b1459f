# shellcheck shell=bash
# What this needs from the machine: root on Debian, and a few packages.

machine_require() {
    local missing=()
    [ "$(uname -s)" = Linux ] || missing+=("Linux")
    [ "$(id -u)" = 0 ] || missing+=("root (namespaces, mounts, port 443 on a loopback address)")
    [ -e /etc/debian_version ] && command -v apt-get >/dev/null || missing+=("Debian with apt-get")
    if [ ${#missing[@]} -eq 0 ]; then
        return 0
    fi
    {
        echo "error: hack/dev runs brokers and a node of its own, and misses here:"
        printf '  - %s\n' "${missing[@]}"
        cat <<'TEXT'

With Docker and kind, demo and tests run against containers:

  docker run -d --name redrive-43 -p 5673:5672 -p 15673:15672 \
      -e RABBITMQ_DEFAULT_USER=redrive -e RABBITMQ_DEFAULT_PASS=redrive rabbitmq:4.3-management
  docker run -d --name redrive-40 -p 5674:5672 -p 15674:15672 \
      -e RABBITMQ_DEFAULT_USER=redrive -e RABBITMQ_DEFAULT_PASS=redrive rabbitmq:4.0-management
  for b in redrive-43 redrive-40; do
      docker exec $b rabbitmq-plugins enable rabbitmq_event_exchange \
          rabbitmq_shovel rabbitmq_shovel_management rabbitmq_random_exchange
  done
  kind create cluster --name redrive
  kind get kubeconfig --name redrive > redrive.kubeconfig

  export REDRIVE_KUBECONFIG=$PWD/redrive.kubeconfig KUBECONFIG=$PWD/redrive.kubeconfig
  export REDRIVE_BROKER_43_URI=http://redrive:redrive@127.0.0.1:15673
  export REDRIVE_BROKER_43_AMQP_URI=amqp://redrive:redrive@127.0.0.1:5673
  export REDRIVE_BROKER_40_URI=http://redrive:redrive@127.0.0.1:15674
  export REDRIVE_BROKER_40_AMQP_URI=amqp://redrive:redrive@127.0.0.1:5674

Then the same command again, in the same shell. (make test leaves out what kills nodes of a
cluster of three there: only nodes of hack/dev can be killed.)
TEXT
    } >&2
    exit 1
}

# machine_packages COMMAND=PACKAGE... installs the packages whose command is
# not there (what is no command is never there, so callers look before). Some
# commands live in sbin, which is not on every PATH.
machine_packages() {
    local pair packages=()
    PATH=$PATH:/usr/sbin:/sbin
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    long_step "installing ${packages[*]}" "$LOGS/packages.log" machine_install "${packages[@]}"
}

machine_install() {
    export DEBIAN_FRONTEND=noninteractive
    # In case an earlier run was interrupted in the middle.
    dpkg --configure -a
    # The first attempt fails where the package lists are missing or old.
    apt-get install -y --no-install-recommends "$@" ||
        { apt-get update && apt-get install -y --no-install-recommends "$@"; }
}

machine_packages_kube() {
    machine_packages openssl=openssl curl=curl
}

machine_packages_node() {
    machine_packages containerd=containerd runc=runc umoci=umoci jq=jq
}

machine_packages_brokers() {
    machine_packages debootstrap=debootstrap curl=curl
}

machine_require_go() {
    if ! command -v go >/dev/null && [ -x /usr/local/go/bin/go ]; then
        PATH=$PATH:/usr/local/go/bin
    fi
    command -v go >/dev/null ||
        die "Go is missing: Kubernetes is built from source with Go 1.26 (an older one from 1.21 on fetches that by itself)"
}

# The mirror this machine installs its own packages from.
machine_mirror() {
    local codename mirror
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v codename="$codename" '$3 == "main" && ($2 == codename || codename == "") { print $1; exit }')
    [ -n "$mirror" ] || die "the apt sources of this machine name no mirror for $codename main"
    echo "$mirror"
}
