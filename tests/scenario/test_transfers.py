#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transfers between processes: sizes, shapes, paths, notifications, reading in place."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent()
SIZE = 4 * MiB


def target(pipe):
    c = Client(agent.socket, "target")
    p = c.alloc(SIZE)
    granted = c.alloc(SIZE)
    c.publish("target")
    pipe.send(c.buffer(p, SIZE), c.buffer(granted, SIZE, A_READ | A_WRITE | A_MAP_READ | A_MAP_WRITE))
    while True:
        name, message = c.recv()
        if name == b"end":
            break
        offset, size, byte = (int(w) for w in message.split())
        base = p if name == b"p" else granted
        equal(peek(base + offset, size), bytes([byte]) * size, "bytes before their notification")
        pipe.send("seen")
        fill(base + offset, size, 255 - byte)
        pipe.send("filled")
    c.close()


child = Child(target)
plain, granted = child.pipe.recv()
c = Client(agent.socket, "agent's copies")
caller = Client(agent.socket, "caller's copies", caller_max=1 * MiB)
random.seed(1)

for client in (c, caller):
    a = client.alloc(SIZE)
    s = client.open("target")
    for i, size in enumerate([1, 63, 64, 65, 4095, 4096, 65536, 262144, 262145, 1 * MiB, SIZE] +
                             [random.randrange(1, SIZE) for _ in range(10)]):
        for name, base in ((b"p", plain), (b"g", granted)):
            byte = (i * 7 + 1) % 250
            offset = random.randrange(0, SIZE - size + 1)
            fill(a + offset, size, byte)
            b = client.batch(2)
            n = note(name, b"%d %d %d" % (offset, size, byte))
            client.submit(b, client.request(WRITE, a + offset, s, base + offset, size, flags=NOTIFY,
                                            notify=C.pointer(n)))
            equal(child.pipe.recv(), ["seen"])
            equal(child.pipe.recv(), ["filled"])
            client.submit(b, client.request(READ, a + offset, s, base + offset, size))
            client.wait(b)
            equal(peek(a + offset, size), bytes([255 - byte]) * size, "bytes read back")
            equal([client.task(b, k).state for k in (0, 1)], [COMPLETED] * 2)
            path = PATHS[client.task(b, 1).path]
            equal(path, "caller" if client is caller and base == granted and size <= MiB else "local",
                  f"path of {size} bytes")
            equal(client.task(b, 1).bytes, size)
            client.batch_free(b)
    # lists and strides, scattered; what lies between is not touched
    for base in (plain, granted):
        pieces = [(i * 3000, (499 - i) * 7000, 1 + (i * 37) % 3000) for i in range(500)]
        for i in range(SIZE // 65536):
            fill(a + i * 65536, 65536, i)
        t = client.run(client.request(WRITE, a, s, base, 0), pieces=pieces)
        equal((t.state, t.bytes), (COMPLETED, sum(p[2] for p in pieces)))
        back = client.alloc(SIZE)
        equal(client.read(back, s, base, SIZE).state, COMPLETED)
        for local, remote, n in pieces:
            equal(peek(back + remote, n), peek(a + local, n), "a piece of a list")
        t = client.run(client.request(READ, back, s, base, 0), stride=(300, 4000, 4000, 7000))
        equal((t.state, t.bytes), (COMPLETED, 300 * 4000))
        client.free(back)

check(caller.stats().caller_tasks > 10, "tasks in the caller's thread")
check(agent.counter("caller_tasks") >= caller.stats().caller_tasks, "and the agent counts them")

# read in place: no bytes move, read-only, outlives the owner, ends with the session
s = c.open("target")
check(any(b.access & A_MAP_READ for b in c.describe(s)), "the grant is described")
m = c.map(s, granted, SIZE)
before = agent.counter("bytes")
byte = 77
a = c.alloc(4096)
fill(a, 4096, byte)
equal(c.write(a, s, granted, 4096).state, COMPLETED)
equal(peek(m, 4096), bytes([byte]) * 4096, "read in place")
equal(agent.counter("bytes") - before, 4096, "bytes moved")
with open("/proc/self/maps") as maps:
    line = [l for l in maps if int(l.split("-")[0], 16) <= m < int(l.split("-")[1].split()[0], 16)]
check(line and line[0].split()[1].startswith("r--s"), "the mapping is read-only:", line)
b = c.batch()
c.notify(b, s, b"end", b"")
c.wait(b)
c.batch_free(b)
child.join()
await_(lambda: agent.status()["segments"] == 0, "the owner to go")
equal(peek(m, 4096), bytes([byte]) * 4096, "read in place after the owner's death")
equal(c.write(a, s, granted, 64).error, REVOKED, "but no transfer reaches it")
c.unmap(m)
refused(INVALID_HANDLE, c.unmap, m)
caller.close()

c.close()
agent.finish()
