#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transfers with GPU memory at either end, between two processes and inside one: every direction and shape (field report B80)."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
SIZE = 4 * MiB
CUDA, LOCAL = PATHS.index("cuda"), PATHS.index("local")
agent = Agent()


def pattern(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


class Side:
    """Memory of one kind in one client, which is written and read the way that kind is."""

    def __init__(self, c, device, gpu, size=SIZE):
        self.device = device if gpu else None
        self.at = c.alloc(size, location=b"cuda:0" if gpu else None)

    def put(self, data, offset=0):
        if self.device:
            self.device.put(self.at + offset, data)
        else:
            C.memmove(self.at + offset, data, len(data))

    def get(self, size=SIZE, offset=0):
        return self.device.get(self.at + offset, size) if self.device else peek(self.at + offset, size)


def owner(pipe):
    device, c = cuda.Device(), Client(agent.socket, "owner")
    c.publish("owner")
    sides = [Side(c, device, gpu) for gpu in (False, True)]
    pipe.send(*[c.buffer(s.at, SIZE) for s in sides])
    while True:
        what, side, *more = pipe.recv()
        if what == "put":
            sides[side].put(pattern(*more))
        elif what == "check":
            equal(sides[side].get(), pattern(*more), f"the owner's {'GPU' if side else 'host'} memory")
        else:
            break
        pipe.send("done")
    c.close()
    device.release()


def do(pipe, *words):
    pipe.send(*words)
    pipe.recv()


def shapes(c, op, local, segment, remote, **more):
    """The same bytes as one piece, as a list from back to front, in strides."""
    request = c.request(op, local, segment, remote, SIZE, flags=SYNCED, **more)
    yield "one", dict()
    yield "list", dict(pieces=[(i, i, min(70000, SIZE - i)) for i in reversed(range(0, SIZE, 70000))])
    yield "stride", dict(stride=(SIZE // 4096, 4096, 4096, 4096))


def user(pipe):
    device, c = cuda.Device(), Client(agent.socket, "user")
    addresses = pipe.recv()
    s = c.open("owner")
    seed = 0
    equal([b.location.decode()[:5] for b in c.describe(s) if b.address == addresses[1]], ["cuda:"], "where the buffer lies")
    check(device.uuid().replace("-", "")[3:].startswith([b.location.decode()[5:] for b in c.describe(s)
                                                         if b.address == addresses[1]][0]), "its UUID")
    for gpu in (False, True):
        mine = Side(c, device, gpu)
        for remote in (0, 1):
            for op in (READ, WRITE):
                request = c.request(op, mine.at, s, addresses[remote], SIZE, flags=SYNCED)
                for shape, more in shapes(c, op, mine.at, s, addresses[remote]):
                    seed += 1
                    what = f"{shape} {op} gpu={gpu} remote={remote}"
                    if op == READ:
                        do(pipe, "put", remote, seed)
                        mine.put(bytes(SIZE))
                    else:
                        mine.put(pattern(seed))
                        do(pipe, "put", remote, 0)
                    t = c.run(request, **more)
                    equal((t.state, t.error, t.bytes), (COMPLETED, OK, SIZE), what)
                    equal(t.path, CUDA if gpu or remote else LOCAL, what)
                    if op == READ:
                        equal(mine.get(), pattern(seed), what)
                    else:
                        do(pipe, "check", remote, seed)
        c.free(mine.at)

    # what was not put in order is refused, and nothing has moved
    mine = Side(c, device, True)
    mine.put(pattern(1000))
    do(pipe, "put", 1, 1001)
    refused(GPU_ORDER, c.write, mine.at, s, addresses[1], SIZE)
    refused(GPU_ORDER, c.read, mine.at, s, addresses[1], SIZE)
    do(pipe, "check", 1, 1001)
    equal(mine.get(), pattern(1000), "nor here")

    # in one process: two allocations, and one onto itself
    c.publish("user")
    other = Side(c, device, True)
    host = Side(c, device, False)
    own = c.open("user")
    there = c.buffer(other.at, SIZE)
    equal(c.write(mine.at, own, there, SIZE, flags=SYNCED).state, COMPLETED, "D2D in one process")
    equal(other.get(), pattern(1000), "D2D in one process")
    equal(c.read(host.at, own, there, SIZE).state, COMPLETED, "D2H in one process")
    equal(host.get(), pattern(1000), "D2H in one process")
    host.put(pattern(1002))
    equal(c.write(host.at, own, there, SIZE).state, COMPLETED, "H2D in one process")
    equal(other.get(), pattern(1002), "H2D in one process")
    equal(c.write(other.at, own, there + SIZE // 2, SIZE // 2, flags=SYNCED).state, COMPLETED, "inside one buffer")
    equal(other.get(SIZE // 2, SIZE // 2), pattern(1002)[:SIZE // 2], "inside one buffer")
    if not cuda.REAL:
        equal(cuda.control.count(os.getpid(), "opens"), 0, "IPC handles that the client opened")
        equal(cuda.control.count(os.getpid(), "copies"), cuda.control.calls(os.getpid(), "cuMemcpyHtoD_v2") +
              cuda.control.calls(os.getpid(), "cuMemcpyDtoH_v2"), "the client copied nothing but what the test did")

    # wrong ranges and rights are refused as of host memory, and the bytes beside are what they were
    for bad, error in ((SIZE - 64, BAD_RANGE), (SIZE, BAD_RANGE), (1 << 60, BAD_RANGE)):
        t = c.write(mine.at, own, there + bad, 128, flags=SYNCED)
        check(t.state in (INVALID, FAILED) and t.error in (error, ACCESS, NOT_FOUND), "beyond the buffer", bad, t.state, t.error)
    c.unbuffer(other.at, SIZE)
    there = c.buffer(other.at, SIZE, A_READ)
    t = c.write(mine.at, own, there, 64, flags=SYNCED)
    equal((t.state in (INVALID, FAILED), t.error), (True, ACCESS), "a buffer that is not for writing")
    c.unbuffer(other.at, SIZE)
    # no mapping of GPU memory is read-only, so the right to read it is not enough
    refused(NOT_SUPPORTED, c.buffer, other.at, SIZE, A_READ | A_MAP_READ)
    there = c.buffer(other.at, SIZE, A_READ)
    refused(ACCESS, c.map, own, there, SIZE)
    c.unbuffer(other.at, SIZE)
    there = c.buffer(other.at, SIZE, A_READ | A_MAP_READ | A_MAP_WRITE)
    mapped = c.map(own, there, SIZE)
    equal(device.get(mapped, SIZE), other.get(), "mapped")
    c.unmap(mapped)
    c.unbuffer(other.at, SIZE)
    for side in (mine, other, host):
        c.free(side.at)
    pipe.send("end", 0)
    c.close()
    device.release()


a, b = Child(owner), Child(user)
b.pipe.send(*a.pipe.recv())
while True:
    words = b.pipe.recv()
    a.pipe.send(*words)
    if words[0] == "end":
        break
    b.pipe.send(*a.pipe.recv())
for child in (a, b):
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, "what a client left with the driver")
await_(agent.empty, "the agent to have nothing left")
if not cuda.REAL:
    await_(lambda: cuda.control.bytes_used() == 0, "device memory to be free")
    equal(cuda.control.count(agent.pid(), "contexts", 0), 1, "the agent's contexts on device 0")
    equal(cuda.control.count(agent.pid(), "contexts", 1), 0, "the agent's contexts on device 1")
agent.finish()
