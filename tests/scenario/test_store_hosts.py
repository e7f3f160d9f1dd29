#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects of other hosts: put on one, read on the other; a repeated read asks nobody; what is removed or replaced is
not read any more by who had read it; in place, in batches, with replicas."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

rng = random.Random(11)
MEMORY, DISK, REMOTE = 1, 2, 3  # tiers
OWN = ["store.size=64M", "store.extent_size=8M", f"store.master=10.77.0.1:{PORT}"]


def noise(n):
    return rng.randbytes(n)


def joined(*agents):
    for agent in agents:
        await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")


a, b = Net("a", "b")

# an agent that leads for itself alone waits for nobody
lone = a.agent("store.size=64M", "store.extent_size=8M", "store.rebuild_ms=600000")
c = Client(lone.socket, "alone")
equal([r.status for r in c.put((b"alone", b"1"))], [OK], "put at once")
equal(c.get(b"alone", b"nowhere"), [(OK, b"1"), (NOT_FOUND, None)])
c.close()
lone.stop()

one, two = a.agent(*OWN), b.agent(*OWN)
joined(one, two)
c, d = Client(one.socket, "c", queue={"args_size": 16 * MiB}), Client(two.socket, "d", queue={"args_size": 16 * MiB})

# put on one host, read on the other
for size in [0, 1, 64, 4096, 65537, MiB, 5 * MiB + 3]:
    key, data = b"size/%d" % size, noise(size)
    equal([r.status for r in c.put((key, data))], [OK], ("put", size))
    equal(d.exist(key), [OK], ("exist", size))
    equal(d.get(key, room=max(size, 1)), [(OK, data)], ("get", size))
    equal(d.get(key, room=max(size, 1)), [(OK, data)], ("get again", size))
equal(d.get(b"nowhere"), [(NOT_FOUND, None)])
equal(d.exist(b"nowhere"), [NOT_FOUND])


def asked(agent):
    """How often an agent has asked masters and holders, and had it from its cache of places."""
    return agent.metric("mcshm_store_leases_taken_total"), agent.metric("mcshm_store_place_hits_total")


# a place that is known asks nobody
data = noise(MiB)
c.put((b"known", data))
equal(d.get(b"known", room=MiB), [(OK, data)])
leases, hits = asked(two)
for _ in range(50):
    equal(d.get(b"known", room=MiB), [(OK, data)])
equal(asked(two), (leases, hits + 50), "a repeated read")
results = d.objects(GET, [b"known"], spans=[[(d.room(MiB), MiB)]])
equal(results[0].tier, REMOTE, "it is read where it is")

# batches: many keys, of both hosts, in one request; some are nowhere
pairs = [(b"batch/%d" % i, noise(rng.choice([1, 100, 4096, 20000]))) for i in range(600)]
for r in c.put(*pairs[::2]) + d.put(*pairs[1::2]):
    equal(r.status, OK, "put of a batch")
for client in (c, d):
    equal(client.exist(*[k for k, _ in pairs]), [OK] * len(pairs))
    equal(client.get(*[k for k, _ in pairs], b"nowhere", room=20000), [(OK, v) for _, v in pairs] + [(NOT_FOUND, None)])
    equal(client.get(*[k for k, _ in pairs], room=20000), [(OK, v) for _, v in pairs], "again")
equal(d.prefix(*[k for k, _ in pairs[:100]], b"nowhere", *[k for k, _ in pairs[:100]]), 100)

# put over what another host has: nothing is written; the first to put has it
equal([r.status for r in d.put((b"known", b"other"))], [OK])
equal(c.get(b"known", room=MiB), [(OK, data)])
equal([r.status for r in d.put((b"known", b"other"), flags=NEW)], [EXISTS])

# removed by the one, it is gone for the other, who had just read it; put anew elsewhere, it is read anew
for i in range(20):
    first, second = b"first %d" % i, b"second %d" % i * 100
    c.put((b"life", first))
    equal(d.get(b"life"), [(OK, first)])
    equal((c if i % 2 else d).remove(b"life", flags=FORCE), [OK], ("remove", i))
    equal(d.get(b"life") + c.get(b"life"), [(NOT_FOUND, None)] * 2, ("removed", i))
    equal(d.exist(b"life") + c.exist(b"life"), [NOT_FOUND] * 2)
    d.put((b"life", second))
    equal(c.get(b"life") + d.get(b"life"), [(OK, second)] * 2, ("put anew", i))
    equal(c.remove(b"life", flags=FORCE), [OK])

# replaced on either host, it is read anew by both at once
for i in range(30):
    data = b"%d" % i * (i + 1)
    writer, reader = (c, d) if i % 3 else (d, c)
    equal([r.status for r in writer.put((b"upsert", data), flags=UPSERT)], [OK])
    equal(reader.get(b"upsert") + writer.get(b"upsert"), [(OK, data)] * 2, ("replaced", i))
check(one.metric("mcshm_store_recalls_total") + two.metric("mcshm_store_recalls_total") > 0, "leases were recalled")

# in place: it is brought here first
data = noise(300000)
c.put((b"in place", data))
held, = d.hold(b"in place")
equal((held.status, held.size), (OK, len(data)), "held")
d.release(held.hold)
check(two.metric("mcshm_store_pulls_total") >= 1, "it was pulled")
equal(d.get(b"in place", room=300000), [(OK, data)])
equal(d.objects(GET, [b"in place"], spans=[[(d.room(300000), 300000)]])[0].tier, MEMORY, "it is here from now on")
equal(c.remove(b"in place", flags=FORCE), [OK])
equal(d.get(b"in place", room=300000), [(NOT_FOUND, None)], "both are removed")

# two replicas
data = noise(200000)
r, = c.put((b"twice", data), replicas=2)
equal((r.status, r.copies), (OK, 2), "two replicas")
equal(d.objects(GET, [b"twice"], spans=[[(d.room(200000), 200000)]])[0].tier, MEMORY)
for client in (c, d):
    equal(client.get(b"twice", room=200000), [(OK, data)])

# ranges
equal([r.status for r in c.put((b"ranges", bytes(range(256)) * 100))], [OK])
at = d.room(100)
r, = d.objects(GET, [b"ranges"], spans=[[(at, 10, 5), (at + 10, 7, 25593), (at + 17, 1, 0)]], flags=RANGES)
equal(r.status, OK, "ranges")
equal(C.string_at(at, 18), (bytes(range(256)) * 100)[5:15] + (bytes(range(256)) * 100)[25593:25600] + b"\0")

print("ok")
