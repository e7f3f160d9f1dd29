#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A block outlives the process that put it: one puts it and ends, another reads it where it lies, also after
# the agent was killed.
#
#   scripts/demo-object.sh [PROGRAMS]   build/bin by default
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${1:-build/bin}
size=8388608

dir=$(mktemp -d)
socket=$dir/agent.sock
supervisor=
end() {
    [ -z "$supervisor" ] || { kill "$supervisor" && wait "$supervisor"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

mcshm() {
    "$programs/mcshm" --socket "$socket" "$@"
}

echo "An agent under a supervisor, with an object store of 128M:"
mkfifo "$dir/ready"
"$programs/mcshmd" --supervise --ready-fd 3 --set "agent.socket=$socket" --set admin.listen=127.0.0.1:0 \
    --set pool.size=128M --set store.size=128M --set store.extent_size=32M 3>"$dir/ready" 2>"$dir/log" &
supervisor=$!
read -r -n 1 -t 60 ready <"$dir/ready" && [ "$ready" = R ] || { cat "$dir/log" && exit 1; }
echo "  mcshmd --supervise, pid $supervisor"

head -c $size /dev/urandom >"$dir/block"
mcshm put demo/block "$dir/block" >"$dir/put" &
writer=$!
status=0
wait $writer || status=$?
echo "Process 1 put a block and ended: pid $writer, exit status $status, $([ -d /proc/$writer ] && echo alive || echo gone)"
sed 's/^/  /' "$dir/put"
[ $status -eq 0 ]

# $1: which process this is
read_in_place() {
    mcshm get demo/block "$dir/read" --in-place >"$dir/get" &
    reader=$!
    wait $reader || { cat "$dir/log" && exit 1; }
    echo "Process $1 read it in place, pid $reader:"
    sed 's/^/  /' "$dir/get"
    cmp "$dir/block" "$dir/read"
}
read_in_place 2

agent=$(cat "/proc/$supervisor/task/$supervisor/children")
kill -9 "${agent% *}"
echo "kill -9 $agent: the agent; its supervisor starts another, which finds the block again"
for _ in {1..300}; do
    next=$(cat "/proc/$supervisor/task/$supervisor/children")
    [ -n "$next" ] && [ "$next" != "$agent" ] && mcshm exist demo/block >/dev/null 2>&1 && break
    sleep 0.1
done
read_in_place 3
echo "All three saw the same $size bytes."
