#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A holder that the leader cannot reach, and everybody else can: objects that it has are replaced and removed without it. Nobody is
given what is over by it, neither while the leader cannot be reached nor when it can again."""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

QUEUE = {"args_size": 4 * MiB}
net = Net("a", "b", "m")
a, b, m = net
SETTINGS = ["store.size=64M", "store.extent_size=8M", f"store.master={m.at()}", "store.rebuild_ms=1500",
            "store.beat_ms=100", "store.away_ms=1500", "store.gone_ms=60000", "store.lease_ms=500",
            "peer.ping_ms=100", "peer.dead_ms=500", "peer.connect_ms=200"]
KEYS = [b"key/%d" % i for i in range(32)]


def joined(*agents):
    for agent in agents:
        await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")


lead, holder, reader = m.agent(*SETTINGS), a.agent(*SETTINGS), b.agent(*SETTINGS)
joined(lead, holder, reader)
c, d = Client(holder.socket, "c", queue=QUEUE), Client(reader.socket, "d", queue=QUEUE)
e = Client(lead.socket, "e", queue=QUEUE)
for r in c.put(*[(k, b"old" + k) for k in KEYS]):
    equal(r.status, OK, "put")
equal(d.get(*KEYS, room=100), [(OK, b"old" + k) for k in KEYS], "the reader has found them there")

# -- the holder and the leader do not hear each other; some keys are replaced, some removed
a.filter(f"-s {m.address()} -j DROP", tools=["iptables"])
replaced, removed = KEYS[::2], KEYS[1::2]
for k in replaced:
    await_(lambda: [r.status for r in e.put((k, b"new" + k), flags=UPSERT)] == [OK], "an upsert without the holder", 60)
for k in removed:
    await_(lambda: e.remove(k, flags=FORCE)[0] in (OK, NOT_FOUND), "a removal without the holder", 60)
new = [(OK, b"new" + k) for k in replaced]
await_(lambda: d.get(*replaced, room=100) == new, "leases to run out: who has one may read on")
equal(d.get(*replaced, room=100), new, "what has taken their place")
equal(d.get(*removed, room=100), [(NOT_FOUND, None)] * len(removed), "what is gone")
check(holder.metric("mcshm_store_leases_refused_total") > 0, "the holder was asked, and gave none")
equal(c.get(KEYS[0], room=100), [(OK, b"old" + KEYS[0])], "its own clients have what is there")

# -- all of that once more, and it is asked all the time while it comes back
for k in replaced:
    for x in e.put((k, b"newer" + k), flags=UPSERT):
        equal(x.status, OK)
over, wrong = False, []


def look():
    watcher = Client(reader.socket, "watcher", queue=QUEUE)
    while not over:
        for k, (status, data) in zip(replaced, watcher.get(*replaced, room=100)):
            if status == OK and data != b"newer" + k:
                wrong.append((k, data))
    watcher.close()


t = threading.Thread(target=look)
t.start()
a.heal()
await_(lambda: c.get(KEYS[0], room=100) == [(OK, b"newer" + KEYS[0])], "the holder to drop what it had")
await_(lambda: c.get(KEYS[1], room=100) == [(NOT_FOUND, None)], "and what was removed")
over = True
t.join()
equal(wrong, [], "earlier lives were read")

# -- and it gives leases again
for r in c.put(*[(b"later" + k, k) for k in KEYS]):
    equal(r.status, OK)
equal(d.get(*[b"later" + k for k in KEYS], room=100), [(OK, k) for k in KEYS])
print("ok")
