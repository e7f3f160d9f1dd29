#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A client in namespaces of its own (user, pid, net, ipc, mount) needs nothing but the folder with the
# agent's socket: memory comes by descriptor, death is noticed without its pid.
. "$(dirname "$0")/lib.sh"

requires_root
requires_command unshare
unshare --user --map-root-user --pid --fork --net --ipc --mount true 2>/dev/null ||
    skip "this kernel or sandbox does not allow user namespaces"
start_agent
cat >"$DIR/client.py" <<'END'
import os, signal, sys
sys.path.insert(0, os.environ["SCENARIO"])
from mcshm import *
c = Client(os.environ["SOCKET"], "contained")
a = c.alloc(1 << 20)
c.publish("contained")
at = c.buffer(a, 1 << 19)
s = c.open("contained")
for i in range(1000):
    fill(a + (1 << 19), 4096, i % 256)
    equal(c.write(a + (1 << 19), s, at, 4096).state, COMPLETED)
    equal(peek(a, 4096), bytes([i % 256]) * 4096)
print("moved", flush=True)
signal.pause()
END
PYTHONDONTWRITEBYTECODE=1 SCENARIO=$PWD/tests/scenario SOCKET=$SOCKET unshare --user --map-root-user --pid --fork \
    --kill-child --net --ipc --mount python3 "$DIR/client.py" >"$DIR/out" 2>&1 &
client=$!
await grep -q moved "$DIR/out"
equal "$(mcshm --json ls sessions | json 'sum(s["name"] == "contained" for s in d["sessions"])')" 1 "sessions"
kill -KILL $client
wait $client 2>/dev/null || true
gone() {
    [ "$(mcshm --json status | json 'd["pool"]["extents"]')" = 0 ]
}
await gone
