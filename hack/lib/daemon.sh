# shellcheck shell=bash
# Processes in the background, known by pid files.
#
# A pid file holds the pid, the start time of the process (in ticks since boot)
# and the boot that it belongs to. All three must match before a process is
# taken for ours: a pid alone may long belong to somebody else.

pid_file() {
    echo "$STATE/run/$1.pid"
}

# Field 22 of /proc/PID/stat; the second field may hold spaces and parentheses,
# so count from the last ')'.
start_time() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- $stat
    [ "$1" != Z ] || return 1
    echo "${20}"
}

# daemon_pid NAME prints the pid if the process that we started still runs.
daemon_pid() {
    local pid ticks boot file
    file=$(pid_file "$1")
    [ -s "$file" ] || return 1
    read -r pid ticks boot <"$file" || return 1
    [ "$boot" = "$(</proc/sys/kernel/random/boot_id)" ] || return 1
    [ "$(start_time "$pid")" = "$ticks" ] || return 1
    echo "$pid"
}

daemon_runs() {
    daemon_pid "$1" >/dev/null
}

# daemon_start NAME COMMAND...: in a session of its own, without any of our file
# descriptors (a held lock, or the pipe of a $(...) that would never end).
daemon_start() {
    local name=$1 file
    shift
    file=$(pid_file "$name")
    mkdir -p "$STATE/run" "$LOGS"
    rm -f "$file"
    setsid "$HACK/lib/daemonize" "$file" "$LOGS/$name.log" "$@" &
    # The process writes its own pid file, before it becomes the command: there
    # is no moment in which it runs and this script alone knows its pid.
    wait_until 5 "the start of $name" test -s "$file"
}

# daemon_stop NAME [SECONDS] sends TERM, waits, and ends with KILL.
daemon_stop() {
    local name=$1 seconds=${2:-20} pid
    if pid=$(daemon_pid "$name"); then
        kill -TERM "$pid" 2>/dev/null || true
        if ! wait_until "$seconds" "the end of $name" daemon_is_gone "$name"; then
            say "killing $name"
            kill -KILL "$pid" 2>/dev/null || true
            wait_until 10 "the end of $name after KILL" daemon_is_gone "$name" || return 1
        fi
    fi
    rm -f "$(pid_file "$name")"
}

daemon_kill() {
    local pid
    pid=$(daemon_pid "$1") || return 1
    kill -KILL "$pid"
    wait_until 10 "the end of $1" daemon_is_gone "$1"
    rm -f "$(pid_file "$1")"
}

daemon_is_gone() {
    ! daemon_runs "$1"
}

# daemon_ready NAME SECONDS CHECK... waits for a check, and gives up at once
# when the process has ended.
daemon_ready() {
    local name=$1 seconds=$2 start
    shift 2
    start=$(now_ms)
    until "$@" >/dev/null 2>&1; do
        if daemon_is_gone "$name"; then
            tail -n 15 "$LOGS/$name.log" >&2
            die "$name has ended; its log is $LOGS/$name.log"
        fi
        if [ $(($(now_ms) - start)) -gt $((seconds * 1000)) ]; then
            tail -n 15 "$LOGS/$name.log" >&2
            die "$name is not ready after $seconds s; its log is $LOGS/$name.log"
        fi
        sleep 0.1
    done
}
