#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client that writes what it likes into all memory it shares with the agent: it gets error slots or loses its
session, and the others notice nothing."""
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hostile import *  # noqa: E402,F403

MiB = 1 << 20
PAGE = 4096
agent = Agent("task.deadline_ms=20000")
victim = Client(agent.socket, "victim")
# a page that others may write, between memory that they may read, and memory that is not published at all
mem = victim.alloc(MiB)
fill(mem, MiB, 0x5a)
victim.publish("victim")
victim.buffer(mem, 64 * PAGE, A_READ)
open_at = victim.buffer(mem + 64 * PAGE, PAGE, RW)
victim.buffer(mem + 65 * PAGE, 64 * PAGE, A_READ)
others = Bystanders(agent, 2)
sessions = 4  # victim, bystanders, who asks
await_(lambda: agent.status()["sessions"] == sessions, "the first sessions")
fds = agent.fds()
rss = int(open(f"/proc/{agent.process.pid}/statm").read().split()[1]) * PAGE


def untouched(what):
    equal(peek(mem, 64 * PAGE), b"\x5a" * (64 * PAGE), what + ": before the open page")
    equal(peek(mem + 65 * PAGE, MiB - 65 * PAGE), b"\x5a" * (MiB - 65 * PAGE), what + ": behind it")


def evil(**more):
    return Evil(agent, segment="victim", **more)


def counters(*names):
    c = agent.status()["counters"]
    return [int(c[n]) for n in names]


def thrown_out(what, scribble, submits=True):
    """scribble(a session) must cost it the session, and be counted."""
    before = counters("broken_queues", "sessions_thrown_out")
    e = evil()
    scribble(e)
    e.ring()
    check(e.thrown_out(), what)
    e.close()
    others.progress(what)
    untouched(what)
    equal(counters("broken_queues", "sessions_thrown_out"), [n + 1 for n in before], what + ", counted")


def alive_after(what, scribble):
    """scribble(a session) only hurts itself: what it submits properly then completes."""
    e = evil()
    scribble(e)
    e.submit(e.desc(slot=9, remote=open_at, length=64))
    equal(e.result(9), (COMPLETED, OK), what)
    e.close()
    others.progress(what)
    untouched(what)


# ---- the ring ----

thrown_out("a ring that claims to be fuller than it is", lambda e: e.word(e.prod_tail, e.depth))
thrown_out("a tail of 2^31", lambda e: e.word(e.prod_tail, 1 << 31))
thrown_out("a tail behind the head", lambda e: e.word(e.prod_tail, NONE))


def go_back(e):
    e.submit(*[e.desc(slot=k, remote=open_at) for k in range(8)])
    e.result(7)
    e.word(e.prod_tail, 4)


thrown_out("a tail that goes back", go_back)
thrown_out("a slot beyond the queue", lambda e: e.submit(e.desc(slot=e.slots)))
thrown_out("a slot far beyond it", lambda e: e.submit(e.desc(slot=NONE)))
thrown_out("a batch beyond the queue", lambda e: e.submit(e.desc(batch=e.batches)))


def slot_in_use(e):
    """A list whose last piece waits in the agent's budget, and its slot once more."""
    e.arguments(0, count=2 * 63, block=PAGE)
    stride = dict(shape=STRIDE, slot=3, remote=open_at, args=0, length=0)
    e.arguments(0, count=1 << 40, block=1, local_stride=0, remote_stride=0)
    e.submit(e.desc(**stride), e.desc(**stride))


thrown_out("a slot that is in use", slot_in_use)

random.seed(11)
consumer = 256  # the agent's words of the ring: it keeps its own
alive_after("garbage in the consumer's words",
            lambda e: e.q.__setitem__(slice(e.ring_at + consumer, e.ring_at + consumer + 64), random.randbytes(64)))
alive_after("garbage in the ring's name, size, mask and capacity",
            lambda e: e.q.__setitem__(slice(e.ring_at, e.ring_at + 128), random.randbytes(128)))
alive_after("garbage in the producer's other words",
            lambda e: (e.word(e.ring_at + 128, 0xdeadbeef), e.word(e.ring_at + 136, 0xdeadbeef)))
alive_after("garbage in the header", lambda e: e.q.__setitem__(slice(0, 512), random.randbytes(512)))
alive_after("garbage in slots and batch lines of others",
            lambda e: e.q.__setitem__(slice(e.batches_at, e.args_at), random.randbytes(e.args_at - e.batches_at)))
alive_after("zeros over all words of the session's region",
            lambda e: e.region.__setitem__(slice(0, 1024), bytes(1024)))
# ---- doorbell, sleepers ----
for value in (0, 1, 17, 257, 1 << 31, NONE):
    alive_after(f"waiters = {value}", lambda e: e.word(e.bell_at + 128, value))
alive_after("caller_active stuck at 1, counters of copies at their largest",
            lambda e: (e.word(e.bell_at + 256, 1), e.q.__setitem__(slice(e.bell_at + 264, e.bell_at + 296), b"\xff" * 32)))


def fill_doorbell(e):
    os.set_blocking(e.doorbell, False)
    os.write(e.doorbell, struct.pack("<Q", 0xfffffffffffffffe))


def drain_doorbell(e):
    fill_doorbell(e)
    equal(os.read(e.doorbell, 8), struct.pack("<Q", 0xfffffffffffffffe), "what was in the doorbell")


# full, its edge has woken the engine; who cannot ring any more says no more than "look at me" by the next edge
e = evil()
fill_doorbell(e)
e.submit(e.desc(slot=1, remote=open_at))
others.progress("a full doorbell")
os.read(e.doorbell, 8)
e.ring()
equal(e.result(1), (COMPLETED, OK), "after a full doorbell was read")
e.close()
alive_after("a doorbell read by the client", drain_doorbell)


def blocking_doorbell(e):
    os.set_blocking(e.doorbell, True)
    os.write(e.doorbell, struct.pack("<Q", 5))


alive_after("a blocking doorbell", blocking_doorbell)
e = evil()
os.close(e.doorbell)
e.open_fds.remove(e.doorbell)
others.progress("a doorbell that was closed")
e.close()

# ---- generations, slots and batches that are not theirs ----

e = evil()
e.submit(e.desc(slot=1, remote=open_at, batch=2, batch_generation=7, generation=70),
         e.desc(slot=2, remote=open_at, batch=2, batch_generation=8, generation=71),  # another life of that batch
         e.desc(slot=3, remote=open_at, batch=2, batch_generation=0, generation=0),
         e.desc(op=OP_CANCEL, slot=NONE, generation=1), e.desc(op=OP_CANCEL, slot=1, generation=NONE),
         e.desc(op=OP_CANCEL, slot=2, generation=71, batch=NONE))  # it has ended, or waits for its share
equal(await_(lambda: e.ended(1, 70), "slot 1"), (COMPLETED, OK), "slot 1")
check(await_(lambda: e.ended(2, 71), "slot 2") in ((COMPLETED, OK), (S_CANCELED, CANCELED)), "slot 2")
await_(lambda: e.slot(3)[2] == COMPLETED, "a task of generation 0")
before = counters("invalid")[0]
bad = [dict(op=op) for op in (0, 5, 255)] + [dict(shape=3), dict(shape=255), dict(flags=64), dict(flags=255),
                                              dict(priority=3), dict(priority=255), dict(length=0)]
for k, fields in enumerate(bad):
    e.submit(e.desc(slot=10 + k, **{"remote": open_at, **fields}))
    equal(e.result(10 + k), (INVALID, INVALID_ARGUMENT), fields)
for fields, error in ((dict(extent=0), INVALID_HANDLE), (dict(extent=NONE), INVALID_HANDLE),
                      (dict(extent=e.extent ^ 0x1000), INVALID_HANDLE), (dict(segment=e.target ^ 0x1000), INVALID_HANDLE),
                      (dict(segment=NONE), INVALID_HANDLE), (dict(local=MiB << 4), BAD_RANGE),
                      (dict(local=(1 << 64) - 32), BAD_RANGE), (dict(length=(1 << 64) - 1), BAD_RANGE),
                      (dict(remote=open_at - 64), ACCESS), (dict(remote=open_at + PAGE), ACCESS),
                      (dict(remote=open_at + PAGE - 1), BAD_RANGE), (dict(remote=(1 << 64) - 64, length=128), BAD_RANGE)):
    e.submit(e.desc(slot=40, **{"remote": open_at, **fields}))
    equal(e.result(40), (INVALID, error), fields)
equal(counters("invalid")[0] - before, len(bad) + 12, "bad descriptors, counted")
untouched("bad descriptors")
# argument blocks that lie about themselves
good_pieces = struct.pack("<QQQ", 0, 0, 64) * 4
for fields, error in ((dict(total=NONE), BAD_RANGE), (dict(total=63), BAD_RANGE), (dict(total=(1 << 64) - 1), BAD_RANGE),
                      (dict(count=0), INVALID_ARGUMENT), (dict(count=5), BAD_RANGE), (dict(count=1 << 60), BAD_RANGE),
                      (dict(count=(1 << 64) // 24 + 1), BAD_RANGE), (dict(pieces=NONE), BAD_RANGE),
                      (dict(pieces=200), BAD_RANGE)):
    e.arguments(0, **{"count": 4, "rest": good_pieces, **fields})
    e.submit(e.desc(shape=LIST, slot=41, remote=open_at, args=0, length=0))
    equal(e.result(41), (INVALID, error), fields)
for fields, error in ((dict(name=257), INVALID_ARGUMENT), (dict(message=4097), INVALID_ARGUMENT),
                      (dict(name=NONE, message=NONE), INVALID_ARGUMENT), (dict(notify=NONE, name=1), BAD_RANGE),
                      (dict(notify=64, name=200, message=100), BAD_RANGE)):
    e.arguments(0, **{"count": 4, "rest": good_pieces, **fields})
    e.submit(e.desc(op=OP_NOTIFY, slot=42, args=0, length=0))
    equal(e.result(42), (INVALID, error), fields)
for args in (NONE, NONE - 1, e.args_size // LINE, 1 << 31):
    e.submit(e.desc(shape=LIST, slot=43, remote=open_at, args=args, length=0))
    equal(e.result(43), (INVALID, BAD_RANGE), ("args at", args))
# pieces without end: they are worked off by turns, and end by their deadline
e.arguments(0, count=1 << 62, block=1)
e.submit(e.desc(shape=STRIDE, slot=44, remote=open_at, args=0, length=0, deadline=200000))
others.progress("a stride of 2^62 blocks")
equal(e.result(44), (S_TIMEOUT, TIMEOUT), "a stride of 2^62 blocks")
e.close()

# ---- lists that change while they are read ----

e = evil(memory=MiB)
pieces = 40
rest = b"".join(struct.pack("<QQQ", k * 64, k * 64, 64) for k in range(pieces)) + b"n" * 16 + b"m" * 32
notify = 64 + 24 * pieces
e.arguments(0, count=pieces, notify=notify, name=16, message=32, rest=rest)
piece = e.args_at + 64
flipper = Flipper(e.q_fd, e.size, {
    piece + 24 * 7 + 16: [struct.pack("<Q", v) for v in (64, 1 << 40, 64, 0, 64, (1 << 64) - 1)],  # a length
    piece + 24 * 9 + 8: [struct.pack("<Q", v) for v in (0, PAGE, 64, (1 << 64) - 64, 128, 60 * PAGE)],  # a remote offset
    piece + 24 * 11: [struct.pack("<Q", v) for v in (0, MiB, 64, (1 << 64) - MiB)],  # a local offset
    e.args_at: [struct.pack("<Q", v) for v in (64 + len(rest), 1 << 50, 64)],  # total
    e.args_at + 8: [struct.pack("<Q", v) for v in (pieces, 1 << 60, 1)],  # count
    e.args_at + 44: [struct.pack("<III", *v) for v in ((notify, 16, 32), (64, 256, 4096), (NONE, 1, 1))],
    e.elements_at: [b"\2\1", b"\2\1", b"\1\1", b"\2\2"]})  # a descriptor's operation and shape
seen = set()
before, rounds = counters("invalid", "completed"), 0


def flipped_enough():
    """Tasks one after the other until both ends have been seen."""
    global rounds
    for _ in range(20):
        e.submit(e.desc(shape=LIST, flags=NOTIFY, slot=50, remote=open_at, args=0, length=0))
        seen.add(e.result(50))
        rounds += 1
    while True:  # or the inbox fills up
        try:
            victim.recv(0)
        except McshmError:
            return rounds >= 200 and {COMPLETED, INVALID} <= {s for s, _ in seen}


await_(flipped_enough, lambda: f"tasks with changing lists to end both ways: {seen}")
flipper.stop()
others.progress("lists that change while they are read")
untouched("lists that change while they are read")
check(seen <= {(COMPLETED, OK), (INVALID, BAD_RANGE), (INVALID, INVALID_ARGUMENT), (INVALID, ACCESS),
               (FAILED, REVOKED), (FAILED, ACCESS), (FAILED, INVALID_ARGUMENT)}, seen)
e.close()

# ---- the inbox ----

for what, tail in (("a tail beyond the head", 1 << 20), ("a crooked tail", 8), ("a tail of 2^63", 1 << 63)):
    before = counters("sessions_thrown_out")[0]
    e = evil(memory=PAGE)
    e.ask(8, struct.pack("<II256s", 0, 0, b"evil"))
    struct.pack_into("<QI", e.region, WORDS + 128, tail, NONE)
    segment = victim.open("evil")
    b = victim.batch()
    victim.notify(b, segment, b"n", b"m")
    victim.wait(b)
    t = victim.task(b)
    equal((t.state, t.error), (FAILED, REVOKED), "a notification into a broken inbox: " + what)
    victim.batch_free(b)
    victim.close_segment(segment)
    check(e.thrown_out(), what)
    e.close()
    equal(counters("sessions_thrown_out")[0], before + 1, what)
    others.progress(what)

# ---- at random: every word, while work is under way ----

for seed in range(3 if SAN else 8):
    e = evil()
    rng = random.Random(seed)
    places = {}
    for _ in range(60):
        at = rng.choice([rng.randrange(0, e.elements_at), rng.randrange(e.elements_at, e.batches_at),
                         rng.randrange(e.batches_at, e.args_at), rng.randrange(e.args_at, e.args_at + 1024)]) & ~3
        places[at] = [rng.choice([bytes(4), b"\xff" * 4, struct.pack("<I", rng.randrange(64)), rng.randbytes(4)])
                      for _ in range(5)]
    if seed % 2:  # this one spares the tail, and goes on for longer
        places.pop(e.prod_tail, None)
    flipper = Flipper(e.q_fd, e.size, places)
    for k in range(200):
        e.arguments(k % 8, count=4, rest=good_pieces)
        e.submit(*[e.desc(op=rng.randrange(1, 5), shape=rng.randrange(3), flags=rng.randrange(8), slot=(4 * k + n) % 256,
                          batch=rng.randrange(16), remote=open_at, args=rng.randrange(8), length=rng.randrange(1, PAGE),
                          deadline=100000) for n in range(4)])
    others.progress(f"words at random, seed {seed}", 32)
    flipper.stop()
    e.close()
    untouched(f"words at random, seed {seed}")

await_(lambda: agent.status()["sessions"] == sessions, "all of them to go")
await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")
after = int(open(f"/proc/{agent.process.pid}/statm").read().split()[1]) * PAGE
check(SAN or after < rss + 8 * MiB, "memory of the agent:", rss, "before,", after, "after")
others.finish()
victim.close()
agent.finish()
