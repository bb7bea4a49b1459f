# shellcheck shell=bash
# Images without a daemon and without a registry: one binary on nothing, with the
# libraries that it is linked to, if any.

readonly DEV_IMAGE=localhost/redrive:dev

# image_make NAME:TAG BINARY [UMOCI-CONFIG...] imports an image whose entry point is
# the binary, under the file name it has.
image_make() {
    local name=$1 binary=$2 work program directory
    shift 2
    program=/$(basename "$binary")
    work=$(mktemp -d "$STATE/image.XXXXXX")
    umoci init --layout "$work/layout"
    umoci new --image "$work/layout:${name##*:}"
    umoci insert --image "$work/layout:${name##*:}" --rootless "$binary" "$program"
    # With their directories: those that an image only implies are closed to all but root.
    image_libraries "$binary" | while read -r library; do
        mkdir -p "$work/root$(dirname "$library")"
        # Under the name by which it is looked for, whatever that links to.
        cp -L "$library" "$work/root$library"
    done
    for directory in "$work"/root/*; do
        [ ! -d "$directory" ] ||
            umoci insert --image "$work/layout:${name##*:}" --rootless "$directory" "/$(basename "$directory")"
    done
    umoci config --image "$work/layout:${name##*:}" --config.entrypoint "$program" "$@"
    tar -C "$work/layout" -cf "$work/image.tar" .
    ctr_node images import --base-name "${name%%:*}" "$work/image.tar" >&2
    rm -rf "$work"
}

# image_libraries BINARY lists the libraries and the loader of a dynamic program, by their
# paths; none for a static one.
image_libraries() {
    local lines
    # Fails for a static program, and says so.
    lines=$(ldd "$1" 2>/dev/null) || return 0
    sed -nE 's,^.*[[:space:]](/[^ ]+) \(0x.*$,\1,p' <<<"$lines"
}

image_exists() {
    [ -n "$(ctr_node images ls -q "name==$1")" ]
}

image_pause() {
    image_exists "$PAUSE_IMAGE" || image_make "$PAUSE_IMAGE" "$(kube_bin)/pause" --config.user 65535:65535
}

# image_import LAYOUT puts the images of an OCI layout on the node, under their tags.
image_import() {
    local work
    work=$(mktemp -d "$STATE/image.XXXXXX")
    tar -C "$1" -cf "$work/image.tar" .
    ctr_node images import --base-name localhost/redrive "$work/image.tar"
    rm -rf "$work"
}

cmd_image() {
    [ $# -eq 1 ] || die "usage: hack/dev image BINARY|LAYOUT"
    local work
    [ -x "$1" ] || die "$1 is neither an executable file nor the directory of an OCI layout"
    ! external_kube || die "the cluster is not ours (REDRIVE_KUBECONFIG is set): load the image with its own means"
    if [ -z "$SLOT" ] || ! daemon_runs containerd; then
        die "the node of '$NAME' does not run: hack/dev up node"
    fi
    if [ -d "$1" ]; then
        image_import "$1"
        return
    fi
    # The program is called redrive in there, whatever the file is called here.
    work=$(mktemp -d "$STATE/image.XXXXXX")
    # Without debug information: of a debug build that is most of it.
    install -s -m 0755 "$1" "$work/redrive"
    image_make "$DEV_IMAGE" "$work/redrive" --config.user 65532:65532
    rm -rf "$work"
    echo "$DEV_IMAGE"
}
