#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed with GPU memory: mapped, registered, waited for, and with copies in flight. Nothing of them stays, nobody
else notices."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
SIZE = 8 * MiB
KILLS = 6 if SAN else 12
agent = Agent()


def owner(pipe):
    """Has GPU memory that others write to, and asks now and then whether all is well."""
    device, c = cuda.Device(), Client(agent.socket, "owner")
    at, host = c.alloc(SIZE, location=b"cuda:0"), c.alloc(MiB)
    c.publish("owner")
    address = c.buffer(at, SIZE, RW | A_MAP_READ | A_MAP_WRITE)
    s, n = c.open("owner"), 0
    pipe.send(address)
    while pipe.recv()[0] == "look":
        n += 1
        fill(host, MiB, n)
        equal(c.write(host, s, address + SIZE - MiB, MiB).state, COMPLETED, "the owner's own transfers")
        equal(device.get(at + SIZE - MiB, MiB), bytes([n]) * MiB, "their bytes")
        pipe.send("well")
    c.close()
    device.release()


def victim(kind):
    def run(pipe):
        device, c = cuda.Device(), Client(agent.socket, "victim", queue=dict(depth=128))
        at = c.alloc(SIZE, location=b"cuda:0")
        s = c.open("owner")
        c.publish("victim")
        c.buffer(at, SIZE)
        address = pipe.recv()[0]
        if kind == "mapped":
            there = c.map(s, address, MiB)
            device.fill(there, 4096, 1)
        elif kind == "registered":
            c.keep = device.segments(2 * MiB, 2 * MiB), device.alloc(2 * MiB)
            c.register_gpu(c.keep[0].at + 4096, 3 * MiB)
            c.register_gpu(c.keep[1], MiB)
            c.buffer(c.keep[1], MiB)
        elif kind == "waiting":
            gate = c.gate()
            b = c.batch(4)
            for i in range(4):
                c.submit(b, c.request(WRITE, at, s, address, MiB, order=after(gate.word, i + 1)))
            c.follow(gate, device.stream(), 100)
        elif kind == "copying":
            b = c.batch(100)
            for i in range(50):
                c.submit(b, c.request(WRITE, at, s, address, SIZE // 2, flags=SYNCED, priority=BACKGROUND))
                c.submit(b, c.request(READ, at, s, address, SIZE // 2, flags=SYNCED, priority=BACKGROUND))
            await_(lambda: c.task(b, 0).state != WAITING, "the first copy to begin")
        pipe.send("ready")
        if kind == "allocating":
            pipe.recv()
            c.alloc(64 * MiB, location=b"cuda:0")
        pipe.recv()
    return run


def state():
    g, s = agent.ask("ls", "gpus"), agent.status()
    d = g["devices"][0]
    return (s["sessions"], s["segments"], d["extents"], d["imports"], d["ours"], g["imports_open"])


o = Child(owner)
address = o.pipe.recv()[0]
before = state()
equal(before[0], 2, "the owner and who asks")
used = 0 if cuda.REAL else cuda.control.bytes_used()
left = fds = None

for i in range(KILLS):
    kind = ("idle", "mapped", "registered", "waiting", "copying", "allocating")[i % 6]
    if kind == "allocating" and cuda.REAL:
        continue
    if not cuda.REAL:
        cuda.control.delay(1000 if kind == "copying" else 0, pid=agent.pid())
    child = Child(victim(kind))
    child.pipe.send(address)
    child.pipe.recv()
    if kind == "allocating":
        cuda.control.arm("cuMemMap", cuda.HANG, pid=child.pid)
        child.pipe.send("go on")
        await_(lambda: cuda.control.waiting() == 1, "the victim to be inside the driver")
    elif kind == "copying":
        time.sleep(random.random() * 0.05)  # anywhere in them
    child.kill()
    await_(lambda: state() == before, lambda: f"what a victim ({kind}) had to go: {state()}, before {before}")
    o.pipe.send("look")
    o.pipe.recv()
    if not cuda.REAL:
        cuda.control.disarm()
        await_(lambda: cuda.control.bytes_used() == used, f"device memory of a victim ({kind})")
        if i >= 5:  # the agent has made its streams, and what it keeps for its use
            left = left or cuda.control.left(agent.pid())
            equal(cuda.control.left(agent.pid()), left, f"what the agent has of the driver's after {kind}")
    if i >= 5:
        fds = fds or agent.fds()
await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")

# one that stands still keeps what it has, and nobody waits for it
child = Child(victim("copying"))
child.pipe.send(address)
child.pipe.recv()
child.freeze()
o.pipe.send("look")
o.pipe.recv()
child.kill()
await_(lambda: state() == before, "the stopped one's things to go")

o.pipe.send("end")
o.join()
await_(lambda: state()[2:] == (0, 0, 0, 0), "all device memory to be given back")
if not cuda.REAL:
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
agent.finish()
