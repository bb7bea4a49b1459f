# shellcheck shell=bash
# A venv with the clients that the tests use.

python_key() {
    {
        cat "$HACK/python/requirements.txt"
        python3 --version
    } | sha256sum | cut -c 1-12
}

# The scripts of a venv name its path, so it is built in its place and counts
# only once the mark is there.
python_cache_fill() {
    local venv=$1
    [ ! -e "$venv/complete" ] || return 0
    rm -rf "$venv"
    long_step "making the python venv" "$LOGS/python.log" python_build "$venv"
    touch "$venv/complete"
}

python_build() {
    local venv=$1
    python3 -m venv "$venv" || return
    "$venv/bin/pip" install --quiet --progress-bar off -r "$HACK/python/requirements.txt" || return
    "$venv/bin/python" -c 'import pika, proton, rabbitkit'
}

# The AMQP 1.0 client is compiled here; without the headers of OpenSSL it would
# come out without TLS.
python_packages() {
    local include missing=()
    include=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(venv=python3-venv)
    [ -e "$include/Python.h" ] || missing+=(headers=python3-dev)
    [ -e /usr/include/openssl/ssl.h ] || missing+=(headers=libssl-dev)
    machine_packages gcc=gcc pkg-config=pkg-config "${missing[@]}"
}

cmd_python() {
    local venv
    command -v python3 >/dev/null || die "python3 is missing"
    venv=$CACHE/python-$(python_key)
    if [ ! -e "$venv/complete" ]; then
        mkdir -p "$LOGS"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            python_packages
        fi
        with_cache_lock python python_cache_fill "$venv"
    fi
    echo "$venv/bin/python"
}
