#!/bin/sh
# What the systemd unit does around the daemon, for a container: signals reach the daemon, and however it ends, the queue
# goes back to Slurm's own order (the unit's ExecStopPost=). Every other command is rltuned's own.
set -u

# A command of rltuned, or an option, or nothing; one cycle is meant to stay.
[ "${1:-}" = run ] || exec rltuned "$@"
for argument; do
    case $argument in --once | --help | -h) exec rltuned "$@" ;; esac
done

rltuned "$@" &
daemon=$!
trap 'kill -TERM "$daemon" 2>/dev/null' TERM INT
trap 'kill -HUP "$daemon" 2>/dev/null' HUP

# A trapped signal ends `wait` early; only when the daemon has been collected is its status final.
while :; do
    wait "$daemon"
    status=$?
    kill -0 "$daemon" 2>/dev/null || break
done
trap '' TERM INT HUP
# Another rltuned holds the lock: the queue is that one's, and its restore would be refused.
[ "$status" = 9 ] || rltuned restore || echo "rltuned-entrypoint: restore ended with $?; run it again" >&2
exit "$status"
