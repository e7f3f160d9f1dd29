# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scenario scripts:   . "$(dirname "$0")/lib.sh"
#
# Gives them $B (the build folder), $DIR (a folder that is removed at the end, with the agent in
# it) and $SOCKET, and the functions below. A script ends with 0 (passed), 77 (skip) or another
# code (failed); fail and skip say why. Any command that fails ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

B=$(realpath -m "${B:-build}")
SAN=${SAN:-}
DIR=$(mktemp -d "${TMPDIR:-/tmp}/XXXXXX")
SOCKET=$DIR/agent.sock
AGENT_PID=
# Everything is slower under a sanitizer.
PATIENCE=$([ -n "$SAN" ] && echo 60 || echo 20)

cleanup() {
    local code=$?
    trap - EXIT
    [ -z "$AGENT_PID" ] || kill_agent
    if [ $code -ne 0 ] && [ $code -ne 77 ] && [ -f "$DIR/agent.log" ]; then
        echo "the agent's log:"
        tail -n 40 "$DIR/agent.log"
    fi
    rm -rf "$DIR"
    exit $code
}
trap cleanup EXIT
trap 'exit 130' INT TERM
trap 'echo "line $LINENO of $0: $BASH_COMMAND"' ERR

fail() {
    trap - ERR
    echo "failed: $*"
    exit 1
}

skip() {
    echo "$*"
    exit 77
}

requires_root() {
    [ "$(id -u)" -eq 0 ] || skip "needs root"
}

requires_command() {
    command -v "$1" >/dev/null || skip "needs $1"
}

# At least $1 (16) free hugepages of 2 MiB.
requires_hugepages() {
    local free=0 file=/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages
    [ ! -r $file ] || read -r free <$file
    [ "$free" -ge "${1:-16}" ] || skip "needs ${1:-16} free hugepages of 2M; there are $free"
}

# Repeats a command until it succeeds; fails after $PATIENCE seconds.
await() {
    local end=$((SECONDS + PATIENCE))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waited $PATIENCE s in vain for: $*"
        read -rt 0.05 <><(:) || true
    done
}

equal() { # got, wanted, what
    [ "$1" = "$2" ] || fail "$3: got '$1', wanted '$2'"
}

# The command must fail with exit code $1; its stderr lands in $DIR/stderr.
expect_exit() {
    local wanted=$1 code=0
    shift
    "$@" >"$DIR/stdout" 2>"$DIR/stderr" || code=$?
    equal "$code" "$wanted" "exit code of $* ($(head -c 300 "$DIR/stderr"))"
}

write_config() {
    cat >"$DIR/agent.ini" <<END
[agent]
socket = $SOCKET
[pool]
size = 256M
pages = prefer
extent_size = 8M
[admin]
listen = 127.0.0.1:0
END
}

# Starts the agent and returns when it says that it is ready. Arguments go to mcshmd, such as
# --set engine.idle=busy.
start_agent() {
    local byte=''

    [ -z "$AGENT_PID" ] || fail "an agent runs already"
    write_config
    rm -f "$DIR/ready"
    mkfifo "$DIR/ready"
    "$B/bin/mcshmd" --config "$DIR/agent.ini" --ready-fd 9 "$@" \
        9>"$DIR/ready" >>"$DIR/agent.log" 2>&1 </dev/null &
    AGENT_PID=$!
    # An agent that dies closes the pipe, and read ends at once.
    read -rn 1 -t "$PATIENCE" byte <"$DIR/ready" || true
    if [ "$byte" != R ]; then
        kill_agent
        fail "the agent did not start"
    fi
}

# A clean stop; it must end with 0.
stop_agent() {
    local pid=$AGENT_PID code=0
    kill -TERM "$pid"
    await has_ended "$pid"
    AGENT_PID=
    wait "$pid" || code=$?
    equal "$code" 0 "exit code of the agent"
}

kill_agent() {
    local pid=$AGENT_PID
    AGENT_PID=
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# True when a process is gone or waits to be reaped.
has_ended() {
    local state
    [ -r "/proc/$1/status" ] || return 0
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status")
    [ "$state" = Z ] || [ -z "$state" ]
}

mcshm() {
    "$B/bin/mcshm" --socket "$SOCKET" "$@"
}

# json EXPRESSION: of the document d on stdin, as a Python expression.
json() {
    python3 -c 'import json, sys
d = json.load(sys.stdin)
v = eval(sys.argv[1])
print(json.dumps(v) if isinstance(v, (dict, list, bool, type(None))) else v)' "$1"
}

agent_admin() {
    mcshm --json status | json 'd["admin"]["listen"]'
}

# The value of one line of /metrics, named with its labels if it has any.
agent_metric() {
    local value
    value=$(curl -sSf --max-time 10 "http://$(agent_admin)/metrics" |
        awk -v name="$1" '$1 == name { print $2 }')
    [ -n "$value" ] || fail "/metrics has no $1"
    echo "$value"
}
