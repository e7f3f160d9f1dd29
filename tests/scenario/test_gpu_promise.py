#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The promise, for GPU memory: when a task has ended its local end is quiet, when memory was revoked, unregistered or freed nobody writes
there any more, however many copies were under way."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
SIZE = 4 * MiB
TASKS = 60
ROUNDS = 4 if SAN else 10
agent = Agent()


def writer(pipe):
    """Sends copies into what it is told, as many as it can, and says how they ended."""
    device, c = cuda.Device(), Client(agent.socket, "writer", queue=dict(depth=256))
    at = c.alloc(SIZE, location=b"cuda:0")
    device.fill(at, SIZE, 0xee)
    s = None
    while True:
        words = pipe.recv()
        if words[0] == "end":
            break
        s = s or c.open("owner")
        b = c.batch(TASKS)
        for i in range(TASKS):
            c.submit(b, c.request(WRITE, at, s, words[0], SIZE, flags=SYNCED))
        await_(lambda: c.task(b).state != WAITING, "the first copy to begin")
        pipe.send("busy")
        c.wait(b)
        pipe.send([(c.task(b, i).state, c.task(b, i).error) for i in range(TASKS)])
        c.batch_free(b)
    c.close()
    device.release()


class Owner:
    def __init__(self):
        self.device, self.c = cuda.Device(), Client(agent.socket, "owner", queue=dict(depth=256))
        self.c.publish("owner")
        self.own = self.c.open("owner")
        self.scratch = self.c.alloc(SIZE, location=b"cuda:0")
        self.scratch_address = self.c.buffer(self.scratch, SIZE)
        self.host = self.c.alloc(SIZE)

    def others(self):
        """Copies through the same device, to their end: what was under way before them has come by now, too."""
        for _ in range(3):
            equal(self.c.write(self.host, self.own, self.scratch_address, SIZE).state, COMPLETED, "other copies")

    def quiet(self, at, what, size=SIZE):
        """Nobody writes there any more."""
        self.device.fill(at, size, 0x11)
        self.others()
        equal(self.device.get(at, size), b"\x11" * size, what)


def owner(pipe):
    o = Owner()
    c, device = o.c, o.device

    def attack(address):
        """The writer is at it when this returns."""
        pipe.send(address)
        pipe.recv()

    def ends(what):
        """How many of its tasks were not let through."""
        hit = 0
        for state, error in pipe.recv()[0]:
            check(state == COMPLETED or (state in (INVALID, FAILED) and error in (REVOKED, ACCESS, BAD_RANGE, NOT_FOUND,
                                                                                 INVALID_HANDLE)), what, state, error)
            hit += state != COMPLETED
        return hit

    def revoked(i):
        at = c.alloc(SIZE, location=b"cuda:0")
        attack(c.buffer(at, SIZE))
        half = SIZE // 2 if i % 2 else SIZE
        c.revoke(at + SIZE - half, half)
        o.quiet(at + SIZE - half, "revoked", half)
        hit = ends("revoked")
        c.free(at)
        return hit

    def withdrawn(i):
        at = c.alloc(SIZE, location=b"cuda:0")
        attack(c.buffer(at, SIZE))
        c.unbuffer(at, SIZE)
        o.quiet(at, "withdrawn")
        hit = ends("withdrawn")
        c.free(at)
        return hit

    def unregistered(i):
        """The framework's again."""
        memory = device.segments(2 * MiB, 2 * MiB, 2 * MiB)
        c.register_gpu(memory.at + 4096, SIZE)
        attack(c.buffer(memory.at + 4096, SIZE))
        c.unregister(memory.at + 4096)
        o.quiet(memory.at + 4096, "unregistered")
        hit = ends("unregistered")
        memory.free()
        return hit

    def freed(i):
        at = c.alloc(40 * MiB, location=b"cuda:0")  # an extent of its own
        attack(c.buffer(at, SIZE))
        c.free(at)
        return ends("freed")

    for what in (revoked, withdrawn, unregistered, freed):
        hit = sum([what(i) for i in range(ROUNDS)])
        while hit == 0 and not cuda.REAL:  # all copies were faster than we: the device is too fast
            cuda.control.delay(cuda.control.at.delay_us * 2, pid=agent.pid())
            hit = what(0)

    # one's own: canceled, and too late
    at = c.alloc(SIZE, location=b"cuda:0")
    for i in range(ROUNDS):
        b = c.batch(TASKS)
        late = i % 2 * 20000
        for k in range(TASKS):
            c.submit(b, c.request(READ, at, o.own, o.scratch_address, SIZE, flags=SYNCED, deadline_us=late))
        await_(lambda: c.task(b).state != WAITING, "the first copy to begin")
        for k in range(TASKS if not late else 0):
            c.cancel(b, k)
        c.wait(b)
        ends = [c.task(b, k).state for k in range(TASKS)]
        check(set(ends) <= {COMPLETED, S_CANCELED, S_TIMEOUT}, "ends", ends)
        o.quiet(at, "canceled" if not late else "too late")
        c.batch_free(b)
    pipe.send("end")
    c.close()
    device.release()


if not cuda.REAL:
    cuda.control.delay(4000, pid=agent.pid())
a, b = Child(owner), Child(writer)
while True:
    words = a.pipe.recv()
    b.pipe.send(*words)
    if words == ["end"]:
        break
    b.pipe.recv()
    a.pipe.send("busy")
    a.pipe.send(*b.pipe.recv())
for child in (a, b):
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, "what a client left with the driver")
if not cuda.REAL:
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
agent.finish()
