#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writers on two hosts put the same keys at the same time, in many windows and in opposite orders: one writes, the other one
waits, and hears that it is there; upserts come one after the other; nobody waits for ever for what a client fills in place."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

QUEUE = {"args_size": 16 * MiB}
KEYS, SIZE = 700, 2000
net = Net("a", "b")
a, b = net
SETTINGS = ["store.size=64M", "store.extent_size=8M", f"store.master={a.at()}", "store.rebuild_ms=300"]
agents = [host.agent(*SETTINGS) for host in (a, b)]
for agent in agents:
    await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")


def value(key, number):
    return bytes([number + 1]) * (SIZE - len(key)) + key


def writer(number):
    def run(pipe):
        c = Client(agents[number].socket, f"writer{number}", queue=QUEUE)
        pipe.send("ready")
        while True:
            words = pipe.recv()
            if words == ["end"]:
                break
            round, flags, copies = words
            keys = [b"%d/%d" % (round, i) for i in range(KEYS)]
            if number == 1:
                keys.reverse()
            # each key twice in one request
            got = c.put(*[(key, value(key, number)) for key in keys + keys[:50]], flags=flags, replicas=copies)
            pipe.send(sorted({r.status for r in got}), [r.version for r in (got[:KEYS][::-1] if number else got[:KEYS])])
        c.close()
    return run


children = [Child(writer(i)) for i in range(2)]
readers = [Client(agent.socket, "reader", queue=QUEUE) for agent in agents]
for x in children:
    equal(x.pipe.recv(), ["ready"])
for n in range(6):
    flags, copies = (UPSERT if n >= 4 else 0), (2 if n % 2 else 1)
    for x in children:
        x.pipe.send(n, flags, copies)
    (one, first), (two, second) = [x.pipe.recv() for x in children]
    equal((one, two), ([OK], [OK]), f"round {n}: everybody is told that it is there")
    keys = [b"%d/%d" % (n, i) for i in range(KEYS)]
    if not flags:
        equal(first, second, "of one life each")
    for c in readers:
        got = c.get(*keys, room=SIZE)
        for i, (key, (status, data)) in enumerate(zip(keys, got)):
            equal(status, OK, key)
            check(data in (value(key, 0), value(key, 1)), "a mixture", key)
            if flags and first[i] != second[i] and i >= 50 and i < KEYS - 50:
                equal(data, value(key, 0 if first[i] > second[i] else 1), f"the last upsert of {key} stays")
for x in children:
    x.pipe.send("end")
    x.join()

# a client fills it in place: its own host says so at once, others after a while
c, d = readers
half, = c.create((b"half", 1000))
equal(half.status, OK)
begun = time.monotonic()
equal([r.status for r in c.put((b"half", b"x"))], [IN_USE])
here = time.monotonic() - begun
equal([r.status for r in d.put((b"half", b"x"))], [IN_USE])
check(here < 0.9, "the creator's host knows at once, after", here)
c.release(half.hold)
equal([r.status for r in d.put((b"half", b"x"))], [OK], "given up")
equal(c.get(b"half"), [(OK, b"x")])
for c in readers:
    c.close()
for agent in agents:
    agent.finish()
