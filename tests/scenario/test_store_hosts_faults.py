#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects of other hosts while things go wrong: leases that run out during a slow read, eviction at the holder under
remote readers, a writer that goes on after the seal, a holder that is killed, stopped or cut off. Whatever is read has the
right bytes; the rest is refused in time, and nothing else is held up."""
import os
import random
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

rng = random.Random(12)
QUEUE = {"args_size": 16 * MiB}


def own(*more):
    return ["store.size=64M", "store.extent_size=8M", f"store.master=10.77.0.1:{PORT}", "store.rebuild_ms=200",
            "peer.ping_ms=200", "peer.dead_ms=1000", *more]


def joined(*agents):
    for agent in agents:
        await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")


def value(key, size):
    return random.Random(key).randbytes(size)


net = Net("a", "b", "m")
a, b, m = net
# the directory is led by a host of its own, so that holders can go without it
LEAD = f"store.master={m.at()}"


def trio(*more):
    lead = m.agent(*own(LEAD, *more))
    agents = a.agent(*own(LEAD, *more)), b.agent(*own(LEAD, *more))
    joined(lead, *agents)
    return lead, *agents


# -- a lease runs out during a slow read: taken anew, and the bytes are right; the holder evicts meanwhile

lead, one, two = trio("store.lease_ms=50")
c, d = Client(one.socket, "c", queue=QUEUE), Client(two.socket, "d", queue=QUEUE)
big = value(b"slow", 2 * MiB)
equal([r.status for r in c.put((b"slow", big))], [OK])
a.throttle(0, "40mbit")
begun = time.monotonic()
equal(d.get(b"slow", room=2 * MiB), [(OK, big)], "a read that takes many leases' time")
check(time.monotonic() - begun > 0.2, "it was slow", time.monotonic() - begun)
a.throttle(0, None)

# -- a writer that goes on writing after the seal: the reader finds out

r, other = c.create((b"alive", 100000), (b"keeps the mapping", 100))
equal((r.status, other.status), (OK, OK), "create")
at = r.address
fill(at, 100000, 1)
equal([x.status for x in c.seal(r.hold)], [OK])
equal(d.get(b"alive", room=100000), [(OK, b"\1" * 100000)])
fill(at + 500, 1, 2)
equal(d.get(b"alive", room=100000), [(CHECKSUM, None)], "changed after the seal")
await_(lambda: c.objects(EXIST, [b"alive"], flags=LOCAL)[0].status == NOT_FOUND, "its holder to look at it and drop it")
check(one.metric("mcshm_store_damaged_total") >= 1, "and to count it")
await_(lambda: d.get(b"alive", room=100000)[0][0] == NOT_FOUND, "others to hear of it")

# the same with a second copy: whoever has read the damaged one is given the other one
l = Client(lead.socket, "l", queue=QUEUE)
made = c.create(*[(b"pair/%d" % i, 50000) for i in range(16)], replicas=2)
for r in made:
    equal(r.status, OK, "create")
    fill(r.address, 50000, 3)
equal([(r.status, r.copies) for r in c.seal(*[r.hold for r in made])], [(OK, 2)] * 16, "sealed here and copied")
for r in made:
    fill(r.address + 500, 1, 4)


def retries():
    return two.metric("mcshm_store_leg_retries_total") + lead.metric("mcshm_store_leg_retries_total")


reads, before = 0, retries()
for i in range(16):
    k = b"pair/%d" % i
    for reader in (d, l):
        if reader.objects(EXIST, [k], flags=LOCAL)[0].status == NOT_FOUND:
            equal(reader.get(k, room=50000), [(OK, b"\3" * 50000)], "the other copy")
            reads += 1
equal(reads, 16, "of each a reader without a copy of its own")
check(retries() > before, "some have met the damaged one")
c.release(other.hold)

# the holder is filled several times over while another host reads: right bytes, or NOT_FOUND
stop, wrong, good = threading.Event(), [], [0]


def read():
    reader = Client(two.socket, "reader", queue=QUEUE)
    r = random.Random(5)
    while not stop.is_set():
        k = b"fill/%d" % r.randrange(400)
        (status, data), = reader.get(k, room=MiB)
        if status == OK:
            good[0] += 1
            if data != value(k, MiB):
                wrong.append(k)
        elif status != NOT_FOUND:
            wrong.append((k, status))
    reader.close()


t = threading.Thread(target=read)
t.start()
for i in range(400):
    k = b"fill/%d" % i
    r, = c.put((k, value(k, MiB)))
    equal(r.status, OK, ("put under pressure", i))
stop.set()
t.join()
equal(wrong, [], "what was read under eviction")
check(good[0] > 5, "some were read", good)
check(one.metric("mcshm_store_evictions_total") > 100, "evicted")

# -- a holder is killed during a slow read; others' objects are read on

keep = value(b"keep", 50000)
equal([r.status for r in d.put((b"keep", keep))], [OK])
lost = value(b"lost", 2 * MiB)
equal([r.status for r in c.put((b"lost", lost))], [OK])
a.throttle(0, "8mbit")
killer = threading.Timer(0.3, one.kill)
killer.start()
begun = time.monotonic()
(status, data), = d.get(b"lost", room=2 * MiB)
check(status in (PEER_UNREACHABLE, NOT_FOUND), "a read whose holder was killed:", status)
check(time.monotonic() - begun < 20, "it is told in time", time.monotonic() - begun)
killer.join()
a.throttle(0, None)
equal(l.get(b"keep", room=50000), [(OK, keep)], "another holder's")
equal(d.get(b"keep", room=50000), [(OK, keep)], "and its own")

for x in (lead, one, two):
    x.stop() if x is not one else None
print("ok")
