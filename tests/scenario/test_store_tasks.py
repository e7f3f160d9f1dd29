#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests about objects are tasks like others: among transfers in a batch, fenced, canceled, late, in the way when a queue is
closed, memory is freed, a client or the agent dies. Whatever happens, an object is there whole or not at all."""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

KiB, MiB = 1 << 10, 1 << 20
SETTINGS = ("pool.size=256M", "store.size=256M", "store.extent_size=16M", "store.lease_ms=50", "agent.barrier_ms=3000")
agent = Supervised(*SETTINGS)
c = Client(agent.socket, "tasks", queue={"args_size": 4 * MiB, "depth": 256, "slots": 1024})


def store():
    return agent.ask("store", "top", "--once")


def settled():
    s = store()
    return s["writing"] == 0 and s["leaving"] == 0 and s["pinned"] == 0


# transfers and objects in one batch, one after the other
c.publish("own")
memory = c.alloc(16 * MiB)
address = c.buffer(memory, 16 * MiB)
segment = c.open("own")
for n in range(50):
    fill(memory, 3 * MiB, n)
    fill(memory + 4 * MiB, 100000, 0xff)
    b = c.batch(4)
    c.submit(b, c.request(WRITE, memory, segment, address + MiB, 100000))
    c.submit_objects(b, c.object_request(PUT, [b"mix%d" % n, b"mix"], spans=[[(memory + MiB, 100000)]] * 2, fence=True,
                                         flags=UPSERT))
    c.submit_objects(b, c.object_request(GET, [b"mix%d" % n], spans=[[(memory + 2 * MiB, 100000)]], fence=True))
    c.submit(b, c.request(WRITE, memory + 2 * MiB, segment, address + 4 * MiB, 100000, flags=FENCE))
    c.wait(b)
    equal([(c.task(b, i).state, c.task(b, i).bytes) for i in range(4)],
          [(COMPLETED, 100000), (COMPLETED, 200000), (COMPLETED, 100000), (COMPLETED, 100000)], "a mixed batch")
    equal([r.status for r in c.object_results(b, 2, index=1)], [OK, OK])
    equal(c.object_results(b, 1, index=2)[0].size, 100000)
    refused(INVALID_ARGUMENT, c.object_results, b, 1, index=0)
    c.batch_free(b)
    equal(peek(memory + 4 * MiB, 100000), bytes([n]) * 100000, "what went through an object")

# many under way, polled in any order; too many are refused and lose nothing
batches, n, refusals = [], 0, 0
while n < 600:
    b = c.batch()
    keys = [b"pipe%d/%d" % (n, i) for i in range(8)]
    try:
        c.submit_objects(b, c.object_request(PUT, keys, spans=[[(memory, 4096)]] * 8, cookie=n))
    except McshmError as e:
        check(e.status in (RING_FULL, NO_SLOTS, ARGS_FULL, NO_BATCHES), e)
        refusals += 1
        c.batch_free(b)
        old, keys, number = batches.pop(refusals * 7919 % len(batches))
        c.wait(old)
        equal(c.task(old).cookie, number)
        equal({r.status for r in c.object_results(old, 8)}, {OK})
        c.batch_free(old)
        continue
    batches.append((b, keys, n))
    n += 1
    if len(batches) == 48:
        for old, keys, _ in batches[::2]:
            c.wait(old)
            equal(set(c.exist(*keys)), {OK}, "what was put")
            c.batch_free(old)
        batches = batches[1::2]
for old, keys, _ in batches:
    c.wait(old)
    c.batch_free(old)
equal(c.prefix(*[b"pipe%d/%d" % (i, k) for i in range(600) for k in range(8)]), 4800, "all of them")
c.removed("all", FORCE)

# canceled and late: whole or not at all
ends = {}
for n in range(120):
    fill(memory, 12 * MiB, n)
    b = c.batch()
    late = n % 3 == 0
    keys = [b"c%d/%d" % (n, i) for i in range(4)]
    c.submit_objects(b, c.object_request(PUT, keys, spans=[[(memory + i * 3 * MiB, 3 * MiB)] for i in range(4)],
                                         deadline_us=200 + 40 * n if late else 0))
    if not late:
        time.sleep(0.0001 * (n % 7))
        c.cancel(b)
    c.wait(b)
    t = c.task(b)
    check(t.state in (COMPLETED, S_CANCELED, S_TIMEOUT), "the end of", n, t.state, t.error)
    ends[t.state] = ends.get(t.state, 0) + 1
    if t.state == COMPLETED:
        equal([r.status for r in c.object_results(b, 4)], [OK] * 4)
    c.batch_free(b)
    got = c.exist(*keys)
    check(t.state != COMPLETED or got == [OK] * 4, "a completed one", got)
    for k, status in zip(keys, got):
        if status == OK:
            r, = c.objects(GET, [k], spans=[[(memory + 13 * MiB, 3 * MiB)]])
            equal((r.status, peek(memory + 13 * MiB, 3 * MiB)), (OK, bytes([n]) * (3 * MiB)), "whole")
    c.removed("all", FORCE)
check(len(ends) > 1, "some were canceled or late", ends)
await_(settled, lambda: f"nothing to be left of them: {store()}")

# its memory is freed, its queue closed in the middle of it
for how in ("free", "close"):
    for n in range(10):
        d = Client(agent.socket, how)
        m = d.alloc(16 * MiB)
        fill(m, 16 * MiB, 7)
        b = d.batch()
        d.submit_objects(b, d.object_request(PUT, [b"%s%d/%d" % (how.encode(), n, i) for i in range(4)],
                                             spans=[[(m + i * 4 * MiB, 4 * MiB)] for i in range(4)]))
        if how == "free":
            d.free(m)
            d.wait(b)
            check(d.task(b).state in (COMPLETED, FAILED, INVALID), d.task(b).state, d.task(b).error)
        d.close()
        for i in range(4):
            r, = c.objects(GET, [b"%s%d/%d" % (how.encode(), n, i)], spans=[[(memory, 4 * MiB)]])
            check(r.status in (OK, NOT_FOUND), "after its writer has gone", r.status)
            check(r.status != OK or peek(memory, 4 * MiB) == b"\7" * (4 * MiB), "a torn object")
    c.removed("all", FORCE)
await_(settled, lambda: f"nothing to be left of them: {store()}")


# a client is killed while it puts
def endless(pipe):
    d = Client(agent.socket, "endless")
    m = d.alloc(4 * MiB)
    pipe.send("ready")
    n = 0
    while True:
        fill(m, 4 * MiB, n % 251 + 1)
        d.objects(PUT, [b"e%d" % (n % 20)], spans=[[(m, 4 * MiB)]], flags=UPSERT)
        n += 1


for n in range(5):
    child = Child(endless)
    equal(child.pipe.recv(), ["ready"])
    time.sleep(0.05 + 0.01 * n)
    child.kill()
    for k in range(20):
        r, = c.objects(GET, [b"e%d" % k], spans=[[(memory, 4 * MiB)]])
        data = peek(memory, 4 * MiB) if r.status == OK else b""
        check(r.status in (OK, NOT_FOUND) and data == data[:1] * len(data), "after a kill", r.status)
await_(settled, lambda: f"nothing to be left of the dead: {store()}")
c.removed("all", FORCE)

# the agent is killed: what had ended is there, what is held can be read on, the rest says so
c.put(*[(b"kept%d" % i, bytes([i]) * 50000) for i in range(30)])
held = c.hold(*[b"kept%d" % i for i in range(30)])
made, = c.create((b"half", MiB))
fill(made.address, MiB, 3)
for life in range(3):
    batches = []
    for i in range(20):
        b = c.batch()
        c.submit_objects(b, c.object_request(PUT, [b"life%d/%d" % (life, i)], spans=[[(memory, 2 * MiB)]]))
        batches.append(b)
    before = agent.kill_agent()
    for b in batches:
        c.wait(b, 60)
        t = c.task(b)
        check(t.state == COMPLETED or (t.state, t.error) == (FAILED, AGENT_RESTARTED), t.state, t.error)
    agent.await_next(before)
    ended = [c.task(b).state == COMPLETED for b in batches]
    for i, (b, whole) in enumerate(zip(batches, ended)):
        if whole and c.object_results(b, 1)[0].status == OK:
            equal(c.exist(b"life%d/%d" % (life, i)), [OK], "an acknowledged put outlives the agent")
        c.batch_free(b)
    for i, r in enumerate(held):
        equal(peek(r.address, 50000), bytes([i]) * 50000, "what is held can be read on")
    equal([data for _, data in c.get(*[b"kept%d" % i for i in range(30)], room=50000)],
          [bytes([i]) * 50000 for i in range(30)], "and got")
    s, = c.seal(made.hold)
    equal(s.status, NOT_OWNER, "what was being filled is no more")
    fill(made.address, MiB, 4)  # its memory is nobody else's yet
    c.release(*[r.hold for r in held], made.hold)  # of an earlier life: passed by
    now = c.hold(b"kept0", b"kept1")
    equal([peek(r.address, 50000) for r in now], [b"\0" * 50000, b"\1" * 50000], "held in the new life")
    c.release(*[r.hold for r in now])
    agent.calm()
c.close()
other = Client(agent.socket, "after")
other.removed("all", FORCE)
await_(lambda: settled() and store()["used"] == 0, lambda: f"the store to be empty: {store()}")
other.close()
agent.finish()
