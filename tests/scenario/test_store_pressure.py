#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store that is full all the time: puts evict what they need and no more, what is pinned, leased or read stays, readers
in place see the bytes that they were given, and when nothing may go a put is told so at once."""
import os
import time
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
SECONDS = 4
SETTINGS = ("pool.size=256M", "store.size=64M", "store.extent_size=8M", "store.high=90", "store.low=85",
            "store.lease_ms=1000")


def store():
    return agent.ask("store", "top", "--once")


def pattern(number, size):
    return random.Random(number).randbytes(4096) * (size // 4096)


def writer(number):
    """Puts objects of 1 to 3 MiB as fast as it can; each must find room."""
    def run(pipe):
        c = Client(agent.socket, f"w{number}")
        rng = random.Random(number)
        at = c.alloc(3 * MiB)
        pipe.send("ready")
        pipe.recv()
        end, n, put, failed, slowest = time.monotonic() + SECONDS, 0, 0, 0, 0.0
        while time.monotonic() < end:
            size = rng.randrange(1, 4) * MiB
            C.memmove(at, pattern(number * 1000000 + n, size), size)
            start = time.monotonic()
            r, = c.objects(PUT, [b"w%d/%d" % (number, n)], spans=[[(at, size)]], flags=NEW)
            slowest = max(slowest, time.monotonic() - start)
            check(r.status in (OK, NO_SPACE), "a put ends", r.status)
            failed += r.status == NO_SPACE
            put += size if r.status == OK else 0
            n += 1
        pipe.send(n, put, failed, slowest)
        c.close()
    return run


def reader(number):
    """Holds, copies and looks for what the writers put; each byte must be right."""
    def run(pipe):
        c = Client(agent.socket, f"r{number}", queue={"args_size": MiB})
        rng = random.Random(number)
        pipe.send("ready")
        pipe.recv()
        end, held, hits = time.monotonic() + SECONDS, [], 0
        newest = [0] * 4
        while time.monotonic() < end:
            w = rng.randrange(4)
            # how far that writer is: a prefix of its keys would not do, the first ones are evicted
            while c.exist(b"w%d/%d" % (w, newest[w] + 1))[0] == OK:
                newest[w] += 1
            n = max(newest[w] - rng.randrange(6), 0)
            r, = c.hold(b"w%d/%d" % (w, n))
            if r.status != OK:
                check(r.status in (NOT_FOUND, BUSY), "a hold ends", r.status)
                newest[w] += 1 if r.status == NOT_FOUND and n == newest[w] else 0
                continue
            hits += 1
            held.append((r, pattern(w * 1000000 + n, r.size)))
            if len(held) > 3:
                for old, want in held:  # also those that have been evicted meanwhile
                    check(peek(old.address, old.size) == want, "reused under a reader")
                old, _ = held.pop(rng.randrange(len(held)))
                c.release(old.hold)
        for old, want in held:
            check(peek(old.address, old.size) == want, "reused under a reader")
        pipe.send(hits)
        c.close()
    return run


# nothing pinned, and with half of the store pinned hard: no put fails
for pinned in (0, 28):
    agent = Agent(*SETTINGS)
    c = Client(agent.socket, "pinner")
    at = c.alloc(MiB)
    fill(at, MiB, 0x77)
    for i in range(pinned):
        r, = c.objects(PUT, [b"pin%d" % i], spans=[[(at, MiB)]], flags=HARD_PIN)
        equal(r.status, OK, "a pinned one")
    writers, readers = [Child(writer(i)) for i in range(4)], [Child(reader(i)) for i in range(2)]
    for x in writers + readers:
        equal(x.pipe.recv(), ["ready"])
    before = store()
    for x in writers + readers:
        x.pipe.send("go")
    results = [x.pipe.recv() for x in writers]
    hits = [x.pipe.recv()[0] for x in readers]
    for x in writers + readers:
        x.join()
    check(all(failed == 0 for _, _, failed, _ in results), "puts that found no room", results)
    written = sum(put for _, put, _, _ in results)
    check(written > 128 * MiB, "more than the store holds was written", written)
    check(sum(hits) > 0, "the readers found something")
    after = store()
    evicted = after["evicted_bytes"] - before["evicted_bytes"]
    check(evicted <= 2 * written + 16 * MiB, "evicted", evicted, "to write", written)
    equal(set(c.exist(*[b"pin%d" % i for i in range(pinned)]) if pinned else [OK]), {OK}, "what is pinned")
    c.close()
    agent.finish()

# everything pinned, leased or read: told at once
agent = Agent(*SETTINGS)
c = Client(agent.socket, "full", queue={"args_size": MiB})
at = c.alloc(MiB)
fill(at, MiB, 1)


def put(key, **more):
    return c.objects(PUT, [key], spans=[[(at, MiB)]], **more)[0].status


def full(what):
    start = time.monotonic()
    equal(put(b"one more"), NO_SPACE, what)
    check(time.monotonic() - start < 5, what, "took", time.monotonic() - start)
    equal(c.exist(b"one more"), [NOT_FOUND])


n = 0
while put(b"hard%d" % n, flags=HARD_PIN) == OK:
    n += 1
check(n >= 48, "room for", n)
full("all pinned hard")
equal(set(c.exist(*[b"hard%d" % i for i in range(n)])), {OK}, "all of them are there")
equal(c.remove(b"hard0"), [IN_USE], "pinned hard")
equal(c.remove(b"hard0", flags=FORCE), [OK], "by force")
equal(put(b"one more"), OK, "then there is room")
c.removed("all", FORCE)

n = 0
while put(b"held%d" % n, flags=NEW) == OK and n < 40:
    n += 1
holds = [r.hold for r in c.hold(*[b"held%d" % i for i in range(n)])]
while put(b"hard%d" % n, flags=HARD_PIN) == OK:
    n += 1
full("all held or pinned")
c.release(*holds)
await_(lambda: put(b"one more") == OK, "room for one more")
c.removed("all", FORCE)

# leased for a while; then they go. A slow machine needs longer to fill the store than a short lease lasts
for lease_ms in (3000, 15000, 75000):
    n, began, tries = 0, time.monotonic(), 0
    while n < 100 and tries < 300 and put(b"leased%d" % n) == OK:
        tries += 1
        # else it was evicted in the background before the lease came
        n += c.exist(b"leased%d" % n, flags=LEASED, lease_ms=lease_ms) == [OK]
    there = set(c.exist(*[b"leased%d" % i for i in range(n)]))
    if time.monotonic() - began < lease_ms / 1000:
        break
    c.removed("all", FORCE)
check(n < 100, "leased ones make no room")
equal(there, {OK}, "what is leased stays")
await_(lambda: put(b"one more") == OK, "leases to run out")
c.removed("all", FORCE)
await_(lambda: agent.ask("store", "top", "--once")["used"] == 0, "the last lease to run out")

# soft pins go last
for i in range(20):
    equal(put(b"soft%d" % i, soft_pin_ms=60000), OK)
for i in range(100):
    equal(put(b"plain%d" % i), OK, "plain ones make room for plain ones")
equal(set(c.exist(*[b"soft%d" % i for i in range(20)])), {OK}, "soft pins outlast others")
for i in range(100):
    equal(put(b"softer%d" % i, soft_pin_ms=60000), OK, "soft pins are evicted when there is nothing else")
check(NOT_FOUND in c.exist(*[b"soft%d" % i for i in range(20)]), "some of them are gone")
c.removed("all", FORCE)

# groups: all or none
for i in range(10):
    for k in range(4):
        equal(put(b"group%d/%d" % (i, k), groups=[b"group%d" % i]), OK)
for i in range(40):
    equal(put(b"filler%d" % i), OK)
    for g in range(10):
        there = c.exist(*[b"group%d/%d" % (g, k) for k in range(4)])
        equal(len(set(there)), 1, f"group {g} is torn after filler {i}")
check(c.exist(b"group0/0") == [NOT_FOUND], "groups are evicted, too")
c.removed("all", FORCE)

# what a lookup promised may have gone when it is fetched: each key has its own answer, the longest valid prefix is used
keys = [b"chain%d" % i for i in range(12)]
for k in keys:
    equal(put(k, flags=CHAIN), OK)
equal(c.prefix(*keys), 12)
equal(c.remove(keys[8]), [OK])
room = c.alloc(12 * MiB)
results = c.objects(GET, keys, spans=[[(room + i * MiB, MiB)] for i in range(12)])
equal([r.status for r in results], [OK] * 8 + [NOT_FOUND] + [OK] * 3, "fetched after one went")
equal(peek(room, 8 * MiB), b"\1" * (8 * MiB))
for n in range(150):
    put(b"press%d" % n)
    statuses = [r.status for r in c.objects(GET, keys, spans=[[(room + i * MiB, MiB)] for i in range(12)])]
    check(set(statuses) <= {OK, NOT_FOUND}, statuses)
c.close()
agent.finish()
