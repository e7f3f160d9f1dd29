#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects on one host: put, get, exist, remove and their like; keys of every kind; each bad input has its own
answer, for its own key alone; nothing is left behind."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

KiB, MiB = 1 << 10, 1 << 20
agent = Agent("pool.size=256M", "store.size=64M", "store.extent_size=8M", "store.high=100", "store.low=99")
c = Client(agent.socket, "one", queue={"args_size": 16 * MiB})
d = Client(agent.socket, "two", queue={"args_size": 16 * MiB})
rng = random.Random(7)


def statuses(results):
    return [r.status for r in results]


def noise(n):
    return rng.randbytes(n)


# what was put is there, for everybody, with the right bytes; sizes around what a copy may do at once
for size in [0, 1, 63, 64, 65, 4095, 4096, 4097, 65536, MiB - 1, MiB, 5 * MiB + 3]:
    key, data = b"size/%d" % size, noise(size)
    r, = c.put((key, data))
    equal((r.status, r.size, r.copies), (OK, size, 1), ("put", size))
    equal(d.exist(key), [OK], ("exist", size))
    equal(d.get(key, room=max(size, 1)), [(OK, data)], ("get", size))
    if size != 0:
        # with a byte less it does not fit, and says what it takes
        at = d.room(size)
        fill(at, size, 0xee)
        r, = d.objects(GET, [key], spans=[[(at, size - 1)] if size > 1 else []])
        equal((r.status, r.size), (TOO_SMALL, size), ("get into too little", size))
        equal(peek(at, size), b"\xee" * size, "nothing is written of what does not fit")

# the version grows with each life of a key; the checksum is Castagnoli's
r, = c.put((b"123", b"123456789"))
equal(r.crc, 0xe3069283, "CRC32C")
equal(c.remove(b"123"), [OK])
equal(c.exist(b"123"), [NOT_FOUND])
again, = c.put((b"123", b"123456789"))
check(again.version > r.version, "the version of a later life", r.version, again.version)

# keys: any bytes, 1 to 4096 of them
keys = [b"\0", b"\0\0", b"/", b"a/b//c", b"..", b"a\0b", b"a\0c", b"\xff" * 4096, b"\xff" * 4095, bytes(range(256)),
        "schlüssel".encode(), b" ", b"\n"]
for r in c.put(*[(k, b"value of " + k) for k in keys]):
    equal(r.status, OK, "keys of all kinds")
equal(d.get(*keys, room=8 * KiB), [(OK, b"value of " + k) for k in keys], "their values")
equal(d.exist(b"\0\0\0", b"a", b"a\0", b"a\0d", b"\xff" * 4094), [NOT_FOUND] * 5, "keys close by")
for bad in [b"", b"k" * 4097, b"k" * (64 * KiB)]:
    text = refused(BAD_KEY, c.put, (b"fine", b"1"), (bad, b"2"))
    check(str(len(bad)) in text and "4096" in text and "key 1" in text, text)
    equal(c.exist(b"fine"), [NOT_FOUND], "what was refused put nothing")
    refused(BAD_KEY, c.exist, bad)
    refused(BAD_KEY, c.remove, b"fine", bad)
    refused(BAD_KEY, c.create, (bad, 4))
    refused(BAD_KEY, c.hold, bad)
equal(c.remove(*keys), [OK] * len(keys), "removed")
equal(d.exist(*keys), [NOT_FOUND] * len(keys), "and gone")
equal(c.remove(*keys), [NOT_FOUND] * len(keys), "twice")

# a key that is there: OK and nothing written, EXISTS with NEW, replaced with UPSERT
c.put((b"k", b"old"))
r, = d.put((b"k", b"new"))
equal((r.status, c.get(b"k")), (OK, [(OK, b"old")]), "put over an existing key")
r, = d.put((b"k", b"new"), flags=NEW)
equal((r.status, c.get(b"k")), (EXISTS, [(OK, b"old")]), "with NEW")
r, = d.put((b"k", b"newer, and longer"), flags=UPSERT)
equal((r.status, c.get(b"k")), (OK, [(OK, b"newer, and longer")]), "with UPSERT")
r, = d.put((b"fresh", b"x"), flags=UPSERT)
equal((r.status, c.get(b"fresh")), (OK, [(OK, b"x")]), "UPSERT of what is not there")
refused(INVALID_ARGUMENT, c.put, (b"k", b""), flags=UPSERT | NEW)

# the same key twice in one request
r = c.put((b"twice", b"first"), (b"other", b"1"), (b"twice", b"second"))
equal((statuses(r), c.get(b"twice")), ([OK] * 3, [(OK, b"first")]), "duplicates: the first wins")
r = c.put((b"thrice", b"first"), (b"thrice", b"second"), flags=NEW)
equal((statuses(r), c.get(b"thrice")), ([OK, EXISTS], [(OK, b"first")]), "duplicates with NEW")
equal(c.get(b"twice", b"other", b"twice"), [(OK, b"first"), (OK, b"1"), (OK, b"first")], "all are served")
equal(c.exist(b"twice", b"twice", b"no", b"twice"), [OK, OK, NOT_FOUND, OK])
equal(c.remove(b"twice", b"twice"), [OK, NOT_FOUND], "removed once")

# several pieces, ranges
data = noise(100000)
at = c.room(2 * MiB)
C.memmove(at, data, len(data))
cuts = [0, 1, 7, 4096, 5000, 70000, 100000]
spans = [(at + a, b - a) for a, b in zip(cuts, cuts[1:])]
r, e = c.objects(PUT, [b"gather", b"empty"], spans=[spans, []])
equal((r.status, r.size, e.status, e.size), (OK, 100000, OK, 0), "gathered")
equal(d.get(b"gather", b"empty", room=100000), [(OK, data), (OK, b"")], "what was gathered")
at = d.room(2 * MiB)
ranges = [(0, 10), (99990, 10), (50000, 1), (4095, 2), (0, 100000), (7, 1)] + [(i * 97, 31) for i in range(1000)]
spans, to = [], at
for offset, n in ranges:
    spans.append((to, n, offset))
    to += n
r, = d.objects(GET, [b"gather"], spans=[spans], flags=RANGES)
equal((r.status, r.size), (OK, 100000), "ranges")
for (offset, n), (where, _, _) in zip(ranges, spans):
    equal(peek(where, n), data[offset:offset + n], ("range", offset, n))
for offset, n in [(100000, 1), (99999, 2), ((1 << 64) - 1, 2), (1 << 63, 1), (0, 100001)]:
    r, other = d.objects(GET, [b"gather", b"k"], spans=[[(at, n, offset)], [(at + 200000, 3, 0)]], flags=RANGES)
    check(r.status in (BAD_RANGE, TOO_SMALL), "a range beyond the object", offset, n, r.status)
    equal(other.status, OK, "the key beside it")
# scattered over pieces
to = [(at, 3), (at + 10, 99990), (at + 200000, 50)]
r, = d.objects(GET, [b"gather"], spans=[to])
equal(peek(at, 3) + peek(at + 10, 99990) + peek(at + 200000, 7), data, "scattered")

# private memory is staged
private = C.create_string_buffer(noise(300000), 300000)
d.register(C.addressof(private), 300000)
where = C.addressof(private)
r, = d.objects(PUT, [b"private"], spans=[[(where + 5, 100000), (where + 150001, 99999)]])
equal((r.status, PATHS[r.path]), (OK, "staged"), "a put from private memory")
want = private.raw[5:100005] + private.raw[150001:250000]
equal(c.get(b"private", room=200000), [(OK, want)], "what came of it")
before = private.raw
r, = d.objects(GET, [b"private"], spans=[[(where + 50000, 200000)]])
equal((r.status, private.raw), (OK, before[:50000] + want[:199999] + before[249999:]), "and back")
d.unregister(where)
refused(NOT_REGISTERED, d.objects, GET, [b"private"], spans=[[(where, 200000)]])

# prefixes: how many from the first on
chain = [b"chain/%d" % i for i in range(20)]
c.put(*[(k, b"x") for k in chain if k not in (b"chain/12", b"chain/15")], flags=CHAIN)
equal(d.prefix(*chain), 12, "prefix")
equal(d.prefix(*chain[13:], flags=CHAIN, position=13), 2, "a part of it")
equal(d.prefix(b"no", *chain), 0, "no prefix")
equal(d.prefix(*chain[:12]), 12, "all of it")

# 65,536 keys in one request
many = [b"many/%05d" % i for i in range(65536)]
for part in range(0, 65536, 4096):
    equal(set(statuses(c.put(*[(k, k[-3:]) for k in many[part:part + 4096]]))), {OK}, "many puts")
equal(set(d.exist(*many)), {OK}, "65,536 in one request")
equal(d.prefix(*many), 65536, "the same as a prefix")
results = d.objects(GET, many, spans=[[(d.room(4 * MiB) + 3 * i, 3)] for i in range(65536)])
equal(set(statuses(results)), {OK}, "and got")
equal(peek(d.room(1), 3 * 65536), b"".join(k[-3:] for k in many), "their bytes")
text = refused(INVALID_ARGUMENT, d.exist, *many, b"one more")
check("65537" in text and "65536" in text, text)
small = Client(agent.socket, "small", queue={"args_size": 4096})
text = refused(INVALID_ARGUMENT, small.exist, *many)
check("args_size" in text and "4096" in text, text)
small.close()
equal(d.removed("prefix", b"many/0", 6, 0), 10000, "removed by prefix")
equal(d.removed("regex", b"^many/(1|2)[0-9]*$", 0), 20000, "removed by expression")
equal(d.exist(b"many/29999", b"many/30000"), [NOT_FOUND, OK])
refused(INVALID_ARGUMENT, d.removed, "regex", b"many/(", 0)
refused(INVALID_ARGUMENT, d.removed, "prefix", b"", 0, 0)
equal(set(statuses(d.objects(REMOVE, many[30000:]))), {OK}, "35,536 removed by key")

# larger than the store
huge = c.alloc(70 * MiB)
r, other = c.objects(PUT, [b"huge", b"beside"], spans=[[(huge, 70 * MiB)], [(huge, 10)]])
check(r.status in (BAD_RANGE, NO_SPACE), "larger than the store", r.status)
equal((other.status, c.exist(b"huge")), (OK, [NOT_FOUND]), "the key beside it")
c.free(huge)
r, = c.create((b"huge", 1 << 62))
check(r.status in (BAD_RANGE, NO_SPACE), "created, larger than everything", r.status)

# bad arguments
refused(INVALID_ARGUMENT, c.objects, PUT, [])
refused(INVALID_ARGUMENT, c.objects, 99, [b"k"])
refused(INVALID_ARGUMENT, c.objects, PUT, [b"k"], spans=[[(c.room(1), 0)]])
refused(NOT_REGISTERED, c.objects, PUT, [b"k"], spans=[[(8, 8)]])
refused(BAD_RANGE, c.objects, PUT, [b"k"], spans=[[(c.room(1), 1 << 40)]])
refused(INVALID_ARGUMENT, c.objects, PUT, [b"k"], spans=[[]], replicas=9)
refused(INVALID_ARGUMENT, c.objects, PUT, [b"k"], spans=[[]], soft_pin_ms=24 * 3600 * 1000 + 1)
refused(INVALID_ARGUMENT, c.objects, PUT, [b"k"], spans=[[]], groups=[b"g" * 257])
refused(INVALID_ARGUMENT, c.objects, PUT, [b"k"], spans=[[]], flags=RANGES)
refused(INVALID_ARGUMENT, c.objects, GET, [b"k"], spans=[[]], flags=1 << 9)

# what is known of them
c.put((b"known\xff", b"x" * 1000))
names = [o["key"] for o in c.list(b"chain/")["objects"]]
equal(sorted(names), sorted(k.decode() for k in chain if k not in (b"chain/12", b"chain/15")), "list")
pages = [o["key"] for skip in range(0, 20, 5) for o in c.list(b"chain/", skip=skip, limit=5)["objects"]]
equal(sorted(pages), sorted(names), "list in pages")
equal([o["key_hex"] for o in c.list(b"known")["objects"]], [b"known\xff".hex()], "a key that is no text")
equal(c.stat(b"known\xff")["size"], 1000, "stat")
refused(NOT_FOUND, c.stat, b"nobody")
refused(INVALID_ARGUMENT, c.list, b"", 0, 0, 0)

c.removed("all", 0)
equal(c.list()["objects"], [], "all are removed")
equal(c.exist(b"k", b"gather"), [NOT_FOUND] * 2)
c.close()
d.close()
agent.finish()

# an agent without objects says so
agent = Agent("pool.size=64M", "store.size=0")
c = Client(agent.socket)
for call in [lambda: c.put((b"k", b"v")), lambda: c.exist(b"k"), lambda: c.list(), lambda: c.stat(b"k")]:
    text = refused(NOT_SUPPORTED, call)
    check("[store] size" in text, text)
c.close()
agent.finish()
