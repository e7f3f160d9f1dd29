#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents that are killed and restarted while clients keep GPU memory: the bytes are still there, by the same addresses, published,
registered, mapped by others, and what was in flight ends."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
SIZE = 4 * MiB
ROUNDS = 3
agent = Supervised()


def pattern(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


def restarted(c, n):
    await_(lambda: c.info().restarts >= n, "the connection to come back")


def keeper(pipe):
    device, c = cuda.Device(), Client(agent.socket, "keeper", reconnect_ms=60000)
    small, big = c.alloc(SIZE, location=b"cuda:0"), c.alloc(40 * MiB, location=b"cuda:0")
    segments, plain = device.segments(2 * MiB, 4 * MiB, 2 * MiB), device.alloc(SIZE)
    c.register_gpu(segments.at + 4096, SIZE)
    c.register_gpu(plain + 256, SIZE - 4096)
    ranges = [(small, SIZE), (big + 36 * MiB, SIZE), (segments.at + 4096, SIZE), (plain + 256, SIZE - 4096)]
    c.publish("keeper")
    addresses = [c.buffer(at, size, RW | (A_MAP_READ | A_MAP_WRITE if at in (small, big + 36 * MiB) else 0)) for at, size in ranges]
    host = c.alloc(SIZE)
    own = c.open("keeper")
    gate = c.gate()
    stream = device.stream()
    for i, (at, size) in enumerate(ranges):
        device.put(at, pattern(i, size))
    pipe.send(addresses)
    lives = 0
    while pipe.recv()[0] == "again":
        lives += 1
        restarted(c, lives)
        for i, (at, size) in enumerate(ranges):
            what = f"range {i} after {lives} restarts"
            equal(device.get(at, size), pattern(i, size), what + ": where it was")
            fill(host, size, 0)
            equal(c.read(host, own, addresses[i], size).state, COMPLETED, what)
            equal(peek(host, size), pattern(i, size), what + ": by its published address")
            C.memmove(host, pattern(10 + i, size), size)
            t = c.write(host, own, addresses[i], size)
            equal((t.state, PATHS[t.path]), (COMPLETED, "cuda"), what + ": written")
            equal(device.get(at, size), pattern(10 + i, size), what + ": what was written")
            device.put(at, pattern(i, size))
        value = c.record(gate, stream)
        t = c.read(small, own, addresses[1], SIZE, order=after(gate.word, value))
        equal(t.state, COMPLETED, "behind a gate")
        equal(device.get(small, SIZE), pattern(1), "behind a gate")
        device.put(small, pattern(0))
        # what is new, and what goes, under the later agent
        more = c.alloc(SIZE, location=b"cuda:0")
        device.put(more, pattern(99))
        equal(c.write(more, own, addresses[0], SIZE, flags=SYNCED).state, COMPLETED, "new memory")
        equal(device.get(small, SIZE), pattern(99), "new memory")
        device.put(small, pattern(0))
        c.free(more)
        c.unregister(plain + 256)
        c.register_gpu(plain + 256, SIZE - 4096)
        addresses[3] = c.buffer(plain + 256, SIZE - 4096)
        pipe.send("well")
    c.free(big)
    c.unregister(segments.at + 4096)
    c.gate_destroy(gate)
    device.destroy(stream)
    c.close()
    segments.free()
    device.free(plain)
    device.release()


def reader(pipe):
    """Maps the keeper's memory, and reads it in place over all lives of the agent."""
    device, c = cuda.Device(), Client(agent.socket, "reader", reconnect_ms=60000)
    addresses = pipe.recv()[0]
    s = c.open("keeper")
    there = c.map(s, addresses[1], SIZE)
    lives = 0
    while pipe.recv()[0] == "again":
        lives += 1
        restarted(c, lives)
        equal(device.get(there, SIZE), pattern(1), "read in place")
        c.unmap(there)
        there = c.map(s, addresses[1], SIZE)
        equal(device.get(there, SIZE), pattern(1), "mapped anew")
        pipe.send("well")
    c.unmap(there)
    c.close()
    device.release()


def loader(pipe):
    """Has copies in flight, and a stream that waits for one, whenever the agent dies."""
    device, c = cuda.Device(), Client(agent.socket, "loader", reconnect_ms=60000, queue=dict(depth=64))
    addresses = pipe.recv()[0]
    at, s, stream, gate = c.alloc(SIZE, location=b"cuda:0"), c.open("keeper"), device.stream(), c.gate()
    lives = 0
    while True:
        b = c.batch(21)
        for i in range(20):
            c.submit(b, c.request(READ, at, s, addresses[2], SIZE, flags=SYNCED, priority=BACKGROUND))
        c.submit(b, c.request(READ, at, s, addresses[2], SIZE, flags=SYNCED | FENCE, order=after(None, 0, gate.word, lives + 1)))
        c.follow(gate, stream, lives + 1)
        await_(lambda: c.task(b).state != WAITING, "the first copy")
        pipe.send("busy")
        if pipe.recv()[0] != "again":
            c.wait(b)
            break
        lives += 1
        c.wait(b)
        for i in range(21):
            t = c.task(b, i)
            check((t.state, t.error) in ((COMPLETED, OK), (FAILED, AGENT_RESTARTED)), "task", i, t.state, t.error)
        if t.error == AGENT_RESTARTED:  # nobody else will
            C.c_uint32.from_address(gate.word).value = lives
        device.sync(stream)
        c.batch_free(b)
        equal(c.read(at, s, addresses[2], SIZE, flags=SYNCED).state, COMPLETED, "once more")
        equal(device.get(at, SIZE), pattern(2), "its bytes")
    device.sync(stream)
    device.destroy(stream)
    c.close()
    device.release()


k, r, load = Child(keeper), Child(reader), Child(loader)
addresses = k.pipe.recv()[0]
r.pipe.send(addresses)
load.pipe.send(addresses)
load.pipe.recv()
if not cuda.REAL:
    cuda.control.delay(500)
for i in range(ROUNDS):
    before = agent.again() if i == 1 else agent.kill_agent()
    agent.await_next(before)
    if not cuda.REAL:
        await_(lambda: cuda.control.left(before) == {} or not os.path.exists(f"/proc/{before}"), "the former agent's end")
    load.pipe.send("again")
    for child in (r, k):  # one after the other: the keeper writes what the reader reads
        child.pipe.send("again")
        child.pipe.recv()
    load.pipe.recv()
for child in (load, r, k):
    child.pipe.send("end")
for child in (load, r, k):
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, "what a client left with the driver")
await_(agent.empty, "the agent to have nothing left")
if not cuda.REAL:
    await_(lambda: cuda.control.bytes_used() == 0, "device memory to be free")
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
agent.finish()
