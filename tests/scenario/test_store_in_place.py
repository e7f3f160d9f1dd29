#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects filled and read where they lie: by other processes, after their writer's death, while they are removed and
replaced; and writers and readers that die, or do what they may not."""
import errno
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("pool.size=128M", "store.size=64M", "store.extent_size=8M", "store.holds=2000", "store.lease_ms=100")
c = Client(agent.socket, "reader", queue={"args_size": 4 * MiB})


def one(results):
    check(len(results) == 1, len(results))
    return results[0]


def used():
    return agent.ask("store", "top", "--once")["used"]


# created, filled and sealed by a process that has ended when it is read
def write(pipe):
    w = Client(agent.socket, "writer")
    r = one(w.create((b"in place", 3 * MiB)))
    equal(r.status, OK, "create")
    check(r.address and r.hold, "where to fill it")
    equal(w.exist(b"in place"), [NOT_FOUND], "not before the seal")
    fill(r.address, 3 * MiB, 0x5a)
    s = one(w.seal(r.hold))
    equal((s.status, s.size), (OK, 3 * MiB), "seal")
    equal(one(w.seal(r.hold)).status, NOT_OWNER, "sealed twice")
    pipe.send("sealed")
    os._exit(3)  # without a word to the agent


child = Child(write)
equal(child.pipe.recv(), ["sealed"])
equal(os.waitpid(child.pid, 0)[1], 3 << 8, "the writer's end")
r = one(c.hold(b"in place", flags=VERIFY))
equal((r.status, r.size), (OK, 3 * MiB), "hold")
equal(peek(r.address, r.size), b"\x5a" * (3 * MiB), "read in place after the writer's end")
first, again = r, one(c.hold(b"in place"))
equal(again.address, first.address, "the same bytes, once more")


# mapped read-only, for good: neither the kernel writes there for the reader, nor can he change that
libc = C.CDLL(None, use_errno=True)
libc.read.argtypes = [C.c_int, C.c_void_p, C.c_size_t]
libc.mprotect.argtypes = [C.c_void_p, C.c_size_t, C.c_int]
with open("/dev/zero", "rb") as zero:
    equal((libc.read(zero.fileno(), first.address, 1), C.get_errno()), (-1, errno.EFAULT), "a write to what is held")
equal((libc.mprotect(first.address & ~4095, 4096, 3), C.get_errno()), (-1, errno.EACCES), "made writable")
equal(peek(first.address, 16), b"\x5a" * 16, "and nothing has changed")

# what is read is neither removed nor replaced under the reader
equal(c.remove(b"in place"), [IN_USE], "held")
equal(c.remove(b"in place", flags=FORCE), [OK], "by force")
equal(c.exist(b"in place"), [NOT_FOUND])
c.put(*[(b"other%d" % i, bytes([i]) * MiB) for i in range(40)])
equal(peek(first.address, 3 * MiB), b"\x5a" * (3 * MiB), "what was removed can be read on")
c.release(first.hold, again.hold)
c.put((b"switch", b"1" * 5000))
r = one(c.hold(b"switch"))
c.put((b"switch", b"2" * 9000), flags=UPSERT)
equal((peek(r.address, 5000), c.get(b"switch")), (b"1" * 5000, [(OK, b"2" * 9000)]), "a reader keeps the old")
new = one(c.hold(b"switch"))
equal(peek(new.address, 9000), b"2" * 9000, "a new one has the new")
c.release(r.hold, new.hold, r.hold, 0, 12345)  # twice, none, and one that never was
c.removed("all", FORCE)

# not held: what is not there, and an empty object, which is nowhere
equal([x.status for x in c.hold(b"nobody", b"switch")], [NOT_FOUND] * 2)
c.put((b"empty", b""))
r = one(c.hold(b"empty"))
equal((r.status, r.size, r.address), (OK, 0, None), "an empty one")
c.release(r.hold)
r = one(c.create((b"empty too", 0)))
equal((r.status, r.address), (OK, None), "created empty")
equal((one(c.seal(r.hold)).status, c.get(b"empty too")), (OK, [(OK, b"")]))

# creations: one writer a key; given up, the key is free
a = one(c.create((b"made", 100)))
b = Client(agent.socket, "second")
r = one(b.create((b"made", 100)))
equal(r.status, IN_USE, "another writes it")
equal(one(b.put((b"made", b"x"))).status, IN_USE, "nor can it be put meanwhile")
equal(one(b.seal(a.hold)).status, NOT_OWNER, "a stranger's seal")
c.release(a.hold)
await_(lambda: one(b.create((b"made", 100), flags=NEW)).status == OK, "the key to be free again")
equal(one(c.seal(a.hold)).status, NOT_OWNER, "the seal of what was given up")
b.close()
equal(c.exist(b"made"), [NOT_FOUND], "what was not sealed is gone with its session")
r = one(c.create((b"empty", 100)))
equal((r.status, r.hold), (EXISTS, 0), "created over an existing key: nothing to fill")
r = one(c.create((b"empty", 3), flags=UPSERT))
C.memmove(r.address, b"abc", 3)
equal(c.get(b"empty"), [(OK, b"")], "until the seal the old one is there")
equal((one(c.seal(r.hold)).status, c.get(b"empty")), (OK, [(OK, b"abc")]), "replaced by the seal")
c.removed("all", FORCE)
await_(lambda: used() == 0, "all space to be free")


# a writer killed between create and seal: space back, key free
def half(pipe):
    w = Client(agent.socket, "half", queue={"args_size": MiB})
    rs = w.create(*[(b"half%d" % i, MiB) for i in range(30)])
    equal({r.status for r in rs}, {OK})
    for r in rs:
        fill(r.address, MiB, 1)
    pipe.send("filled")
    time.sleep(1000)


child = Child(half)
equal(child.pipe.recv(), ["filled"])
check(used() >= 30 * MiB, "space of what is being written", used())
equal(one(c.create((b"half7", 10))).status, IN_USE)
child.kill()
await_(lambda: used() == 0, "the space of a dead writer")
r = one(c.put((b"half7", b"mine")))
equal((r.status, c.get(b"half7")), (OK, [(OK, b"mine")]), "and its keys")


# a writer that goes on writing after the seal: found out by the checksum
def persist(pipe):
    w = Client(agent.socket, "persistent")
    r = one(w.create((b"sealed", 100000)))
    fill(r.address, 100000, 7)
    equal(one(w.seal(r.hold)).status, OK)
    pipe.send("sealed")
    equal(pipe.recv(), ["go on"])
    fill(r.address + 54321, 1, 8)
    pipe.send("written")
    pipe.recv()
    w.close()


child = Child(persist)
equal(child.pipe.recv(), ["sealed"])
at = c.room(100000)
r = one(c.objects(GET, [b"sealed"], spans=[[(at, 100000)]], flags=VERIFY))
equal((r.status, peek(at, 100000)), (OK, b"\7" * 100000), "as it was sealed")
child.pipe.send("go on")
equal(child.pipe.recv(), ["written"])
r, other = c.objects(GET, [b"sealed", b"half7"], spans=[[(at, 100000)], [(at, 4)]], flags=VERIFY)
equal((r.status, other.status), (CHECKSUM, OK), "the checksum of that key alone")
equal(c.exist(b"sealed"), [NOT_FOUND], "what is damaged is not offered any more")
child.pipe.send("end")
child.join()


# readers killed with a thousand holds
def hold(pipe):
    w = Client(agent.socket, "holder", queue={"args_size": 4 * MiB})
    rs = w.hold(*[b"h%d" % (i % 50) for i in range(1000)])
    equal({r.status for r in rs}, {OK})
    pipe.send(sum(peek(r.address, 1)[0] for r in rs))
    time.sleep(1000)


c.removed("all", FORCE)
c.put(*[(b"h%d" % i, bytes([i]) * 10000) for i in range(50)])
children = [Child(hold) for _ in range(3)]
for child in children:
    equal(child.pipe.recv(), [20 * sum(range(50))], "what they read")
equal(set(c.remove(*[b"h%d" % i for i in range(50)])), {IN_USE}, "held by three readers")
for child in children[:2]:
    child.kill()
equal(set(c.remove(*[b"h%d" % i for i in range(50)])), {IN_USE}, "held by one")
children[2].kill()
left = [b"h%d" % i for i in range(50)]


def remove_left():
    global left
    left = [k for k, status in zip(left, c.remove(*left)) if status == IN_USE]
    return not left


await_(remove_left, "the holds of dead readers")
await_(lambda: used() == 0, "their space")

# more holds than a session may have
c.put((b"one", b"1"))
statuses, holds = [], []
for _ in range(3):
    rs = c.hold(*[b"one"] * 1000)
    statuses += [r.status for r in rs]
    holds += [r.hold for r in rs if r.status == OK]
equal((statuses.count(OK), statuses.count(LIMIT)), (2000, 1000), "[store] holds")
equal(len(set(holds)), 2000, "each hold is one of its own")
for i in range(0, 2000, 100):
    c.release(*holds[i:i + 100])
await_(lambda: one(c.hold(b"one")).status == OK, "room for another hold")

# extents that the store gives up are unmapped, and mapped anew under other ids
c.removed("all", FORCE)


def mappings():
    return sum("mcshm" in line for line in open("/proc/self/maps"))


most = 0
for n in range(6):
    for kind in (c.put, c.create):
        keys = [b"%d/%d" % (n, i) for i in range(60)]
        if kind == c.put:
            kind(*[(k, bytes([n + 1]) * MiB) for k in keys])
        else:
            rs = kind(*[(k, MiB) for k in keys[:40]])
            equal({r.status for r in rs}, {OK}, "created")
            c.seal(*[r.hold for r in rs])
        rs = [r for r in c.hold(*keys) if r.status == OK]
        check(len(rs) >= 40, "held", len(rs))
        if kind == c.put:
            check(all(peek(r.address, 1) == bytes([n + 1]) for r in rs), "the right extents")
        for i in range(0, len(rs), 20):
            c.release(*[r.hold for r in rs[i:i + 20]])
        c.removed("all", FORCE)
        most = max(most, mappings())
await_(lambda: c.exist(b"nobody") and mappings() <= 30, lambda: f"mappings to go: {mappings()} of {most}")

# mappings end with the connection
maps = open("/proc/self/maps").read().count("mcshm")
c.close()
check(open("/proc/self/maps").read().count("mcshm") < maps, "what was held is unmapped")
agent.finish()
