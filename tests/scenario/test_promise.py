#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The promise: what was taken away is not written any more; what ended is quiet."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("engine.slice=16K")
SIZE = 32 * MiB


def target(pipe):
    """Owns the target; does what it is told and says what it sees."""
    c = Client(agent.socket, "target")
    p = c.alloc(SIZE)
    c.publish("target")
    pipe.send(c.buffer(p, SIZE))
    pattern = 0
    while True:
        what = pipe.recv()[0]
        if what == "end":
            break
        if what == "publish":
            pipe.send(c.buffer(p, SIZE))
        elif what == "revoke":
            c.revoke(p, SIZE)
        elif what == "unbuffer":
            c.unbuffer(p, SIZE)
        elif what == "free":
            c.free(p)
            p = c.alloc(SIZE)
        elif what == "withdraw":
            c.withdraw()
            c.publish("target")
        if what not in ("publish", "check"):
            # it is ours again, at once: put a pattern there
            pattern += 1
            fill(p, SIZE, pattern)
            pipe.send("done")
        if what == "check":
            equal(peek(p, SIZE), bytes([pattern]) * SIZE, "a byte changed after it was taken away")
            pipe.send("same")
    c.close()


child = Child(target)
address = child.pipe.recv()[0]
c = Client(agent.socket, "writer", queue=dict(depth=64))
a = c.alloc(SIZE)
fill(a, SIZE, 255)


def ask(what):
    child.pipe.send(what)
    return child.pipe.recv()[0]


for how in ("revoke", "unbuffer", "withdraw", "free") * 3:
    segment = c.open("target")
    b = c.batch(8)
    for i in range(8):
        c.submit(b, c.request(WRITE, a, segment, address, SIZE))
    await_(lambda: c.task(b, 0).state != WAITING, "the first write to start")
    equal(ask(how), "done", how)
    c.wait(b)
    ended = [c.task(b, i) for i in range(8)]
    c.batch_free(b)
    check(ended[7].state in (FAILED, INVALID), how, "the last task ended", ended[7].state)
    for t in ended:
        if t.state == FAILED:
            equal(t.error, REVOKED, how)
        elif t.state == INVALID:
            check(t.error in (BAD_RANGE, REVOKED), how, t.error)
        check(t.remote_quiesced, "nothing can land any more")
    equal(ask("check"), "same", how)
    # the session is none the worse for it
    c.close_segment(segment)
    address = ask("publish")

# cancel: once the slot says so, source and target are the caller's again
segment = c.open("target")
for i in range(20):
    b = c.batch(3)
    for j in range(3):
        c.submit(b, c.request(WRITE, a, segment, address, SIZE))
    c.cancel(b, 1)
    c.cancel(b, 0)
    c.wait(b)
    states = [c.task(b, j).state for j in range(3)]
    check(states[0] in (S_CANCELED, COMPLETED) and states[1] in (S_CANCELED, COMPLETED), states)
    equal(states[2], COMPLETED, "the task that was not canceled")
    c.batch_free(b)
check(agent.counter("canceled") > 0, "some were canceled in time")

# deadline: a task that cannot make it ends TIMEOUT, with its bytes told
t = c.write(a, segment, address, SIZE, deadline_us=1)
equal((t.state, t.error), (S_TIMEOUT, TIMEOUT), "a task with a microsecond")

# FENCE: starts after all earlier tasks have ended, whatever their class
for i in range(10):
    b = c.batch(2)
    fill(a, 64, i)
    c.submit(b, c.request(WRITE, a, segment, address, SIZE, priority=BACKGROUND),
             c.request(READ, a + MiB, segment, address, 64, priority=HIGH, flags=FENCE))
    c.wait(b)
    equal(peek(a + MiB, 64), bytes([i]) * 64, "a fenced read behind a write")
    c.batch_free(b)

# the owner dies in mid-transfer: failed, said, and nothing else
b = c.batch(60)
for i in range(60):
    c.submit(b, c.request(WRITE, a, segment, address, SIZE))
child.kill()
c.wait(b)
equal(c.task(b, 59).error, REVOKED, "a task whose target died")
c.batch_free(b)
equal(c.write(a, segment, address, 64).error, REVOKED, "a task on a dead segment")
c.close()
agent.finish()
