# shellcheck shell=bash
# What the user reads: steps with their durations, a sign of life in long ones,
# and errors. Everything goes to stderr, so that commands whose output is data
# (env, user, python) can be read by $(...).

# Set by the pipelines that run at the same time, to tell their lines apart.
SAY_PREFIX=${SAY_PREFIX:-}

say() {
    printf '%s%s\n' "$SAY_PREFIX" "$*" >&2
}

die() {
    printf '%serror: %s\n' "$SAY_PREFIX" "$*" >&2
    exit 1
}

# Milliseconds, from bash's own clock: no process per call.
now_ms() {
    local now=${EPOCHREALTIME/[.,]/}
    printf '%s' "${now:0:-3}"
}

since() {
    local ms=$(($(now_ms) - $1))
    printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# step LABEL COMMAND... runs a command of this shell and says how long it took.
step() {
    local label=$1 start
    shift
    start=$(now_ms)
    "$@"
    say "$label ($(since "$start"))"
}

# long_step LABEL LOG COMMAND... is for commands that take minutes: their
# output goes to LOG, and a line each 15 seconds shows that they are alive.
# It ends the script when the command fails, with the end of the log.
long_step() {
    local label=$1 log=$2 start pid status=0 beats=0
    shift 2
    start=$(now_ms)
    mkdir -p "$(dirname "$log")"
    say "$label: started, log in $log"
    # In a process group of its own, so that an interrupted script can end all
    # of it and leaves no build behind that nobody watches.
    set -m
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    set +m
    # shellcheck disable=SC2064
    trap "kill -TERM -- -$pid 2>/dev/null || true; exit 130" INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        beats=$((beats + 1))
        if [ $((beats % 75)) -eq 0 ]; then
            say "$label: $(since "$start") so far, $(tail -n 1 "$log" | cut -c 1-100)"
        fi
    done
    wait "$pid" || status=$?
    trap - INT TERM
    if [ "$status" -ne 0 ]; then
        tail -n 25 "$log" >&2
        die "$label failed with status $status; the log is $log"
    fi
    say "$label ($(since "$start"))"
}

# wait_until SECONDS WHAT COMMAND... polls a cheap check.
wait_until() {
    local seconds=$1 what=$2 start
    shift 2
    start=$(now_ms)
    until "$@" >/dev/null 2>&1; do
        if [ $(($(now_ms) - start)) -gt $((seconds * 1000)) ]; then
            say "error: $what did not happen within $seconds s"
            return 1
        fi
        sleep 0.1
    done
}
