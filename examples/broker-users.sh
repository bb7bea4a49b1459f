#!/bin/sh
# Makes a broker user with no more rights than Redrive needs: for the operator, for replays alone,
# or for the audit stream. Run again it sets password, tags and rights anew. See docs/permissions.md.
set -eu

usage() {
    cat <<'TEXT'
broker-users.sh [OPTIONS] operator|replay|audit USER

  operator   declares and watches the pipelines of a vhost: for the Secret in spec.broker.secretRef
  replay     reads dead letters and publishes them again: for replayPolicy.secretRef
  audit      writes the stream redrive.audit: for the operator's --audit-secret

  --vhost VHOST      the vhost (default /)
  --prefix PREFIX    only names that begin so; can be given several times (default: every name).
                     End it with a separator: "orders" also covers "orders-of-others"
  --exchange NAME    one more exchange: that messages come from, or that replays publish to;
                     can be given several times
  --application      the operator may declare pipelines of mode Application, which takes the right to
                     publish to every queue of the vhost
  --replays          replays run as the operator's user, for pipelines without replayPolicy.secretRef;
                     takes the same right
  --monitoring       the operator may see whose a consumer on a retry queue is
  --operator-policies
                     the operator may read operator policies, to warn of them: takes the tag
                     administrator, which is all rights
  --print            print the commands and run none

The password is read from REDRIVE_PASSWORD. RABBITMQCTL is the command to run (default rabbitmqctl),
such as "kubectl -n messaging exec -i rmq-server-0 -- rabbitmqctl".
TEXT
}

fail() {
    echo "broker-users.sh: $1" >&2
    exit 1
}

# A name as a part of a regular expression.
escaped() {
    printf '%s' "$1" | sed 's/[][\\.^$*+?(){}|-]/\\&/g'
}

# All names given so far, and one more.
either() {
    if [ -n "$1" ]; then printf '%s|%s' "$1" "$2"; else printf '%s' "$2"; fi
}

vhost=/ prefixes='' exchanges='' default='' lock='' monitoring='' administrator='' print=''
while [ $# -gt 0 ]; do
    case $1 in
        --vhost | --prefix | --exchange) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    esac
    case $1 in
        --vhost) vhost=$2 && shift 2 ;;
        --prefix) prefixes=$(either "$prefixes" "$(escaped "$2")") && shift 2 ;;
        --exchange) exchanges=$(either "$exchanges" "$(escaped "$2")\$") && shift 2 ;;
        --application) default='|amq\.default$' && shift ;;
        --replays) default='|amq\.default$' lock='|redrive\.lock\.' && shift ;;
        --monitoring) monitoring=,monitoring && shift ;;
        --operator-policies) administrator=,administrator && shift ;;
        --print) print=yes && shift ;;
        -h | --help) usage && exit 0 ;;
        -*) fail "$1 is no option: see --help" ;;
        *) break ;;
    esac
done
[ $# -eq 2 ] || fail 'say for what, and the name of the user: see --help'
kind=$1 user=$2

names=${prefixes:-.*}
more=${exchanges:+|$exchanges}
case $kind in
    operator)
        tags=policymaker$monitoring$administrator
        # redrive.owner holds the markers. Queues of mode Application dead-letter to the default
        # exchange, and the broker asks whoever declares them for the right to write to it.
        configure="^(redrive\\.owner\$$lock|$names)"
        write="^(redrive\\.owner\$$default|$names)"
        read="^(redrive\\.owner\$|$names$more)"
        ;;
    replay)
        # Policies are read for the plan, and who may read them may write them.
        tags=policymaker
        # The lock is an exclusive queue, by which one replay at a time has a queue.
        configure='^redrive\.lock\.'
        write="^(amq\\.default\$|$names$more)"
        read="^($names)"
        ;;
    audit)
        tags=
        configure='^redrive\.audit$'
        write='^(redrive\.audit$|amq\.default$)'
        read='^redrive\.audit$'
        ;;
    *) fail "$kind is none of operator, replay, audit" ;;
esac

# Quotes for whoever reads the commands, or pastes them.
quoted() {
    printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

run() {
    if [ -n "$print" ]; then
        line=${RABBITMQCTL:-rabbitmqctl}
        for word in "$@"; do line="$line $(quoted "$word")"; done
        printf '%s\n' "$line"
    else
        # The command may be several words.
        # shellcheck disable=SC2086
        ${RABBITMQCTL:-rabbitmqctl} "$@"
    fi
}

# The password goes in by standard input, so that no list of processes shows it.
if [ -n "$print" ]; then
    run add_user "$user" '<password>'
else
    [ -n "${REDRIVE_PASSWORD:-}" ] || fail 'REDRIVE_PASSWORD is not set: put the password there'
    if run list_users --quiet --no-table-headers | cut -f 1 | grep -qxF -e "$user"; then
        printf '%s\n' "$REDRIVE_PASSWORD" | run change_password "$user"
    else
        printf '%s\n' "$REDRIVE_PASSWORD" | run add_user "$user"
    fi
fi
# The tags are words of their own; none takes all away.
# shellcheck disable=SC2046
run set_user_tags "$user" $(printf '%s' "$tags" | tr ',' ' ')
run set_permissions -p "$vhost" "$user" "$configure" "$write" "$read"
