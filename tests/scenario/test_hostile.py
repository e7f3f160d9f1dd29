#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that break the protocol lose their session; the agent and the others go on."""
import mmap
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent()
good = Client(agent.socket, "good")
a = good.alloc(MiB)
good.publish("good")
at = good.buffer(a, MiB)
s = good.open("good")


def all_well():
    equal(good.write(a, s, at + MiB // 2, 4096).state, COMPLETED, "the good client")


all_well()
await_(lambda: agent.status()["sessions"] == 2, "one session")
fds = agent.fds()

# messages: truncated at each byte, wrong magic, version, length, order, too large, random
hello = struct.pack("<IHHIIII", Raw.MAGIC, 2, 1, 24 + 272, 1, 0, 0) + struct.pack("<IIQ256s", 2, 0, 0, b"x")
for n in range(len(hello)):
    r = Raw(agent.socket)
    r.raw(hello[:n] or b"\0")
    check(r.closed(), "a message cut at", n)
for kw in (dict(magic=1), dict(length=0), dict(length=23), dict(length=1 << 31), dict(status=3)):
    r = Raw(agent.socket)
    r.send(1, hello[24:], **kw)
    check(r.closed(), kw)
for type_ in (0, 2, 4, 12, 18, 19, 255, 65535):  # before HELLO, or unknown
    r = Raw(agent.socket)
    r.send(type_, b"\0" * 16)
    check(r.closed(), "type", type_)
r = Raw(agent.socket)
r.send(1, hello[24:], version=1)
m = r.recv()
equal(m[1], VERSION, "status for another protocol version")
check(b"protocol" in m[2] and r.closed(), m)
r = Raw(agent.socket)
m = r.hello(abi=99)
equal(m[1], VERSION, "status for another ABI version")
check(b"99" in m[2] and r.closed(), m)
r = Raw(agent.socket)
try:
    r.raw(b"\0" * 100000)
except OSError:
    pass
check(r.closed(), "an oversized message")
random.seed(5)
for i in range(300):
    r = Raw(agent.socket)
    if i % 2:
        r.hello()
    try:
        for k in range(3):
            body = random.randbytes(random.choice([0, 8, 16, 24, 40, 264, 272, 2000]))
            r.send(random.randrange(0, 22), body, id_=random.randrange(1 << 32))
            r.s.settimeout(0.2)
            m = r.recv()
            if m is None:
                break
            for fd in m[3]:
                os.close(fd)
    except OSError:
        pass
    r.s.close()
all_well()

# descriptors where none belong, and too many of them
for n in (1, 2, 3, 100, 250):
    r = Raw(agent.socket)
    r.hello()
    r.send(3, b"\0" * 8, fds=[0] * n)
    check(r.closed(), n, "descriptors")
# connections that say nothing or hang up half way
idle = [Raw(agent.socket) for _ in range(40)]
for r in idle[:20]:
    r.s.shutdown(1)
    check(r.closed(), "half closed")
for r in idle[20:]:
    r.s.close()
# one that never reads its replies
r = Raw(agent.socket)
r.hello()
r.s.setblocking(False)
try:
    for i in range(100000):
        r.send(18, struct.pack("<II", 0, 0))
except (BlockingIOError, BrokenPipeError, ConnectionResetError):
    pass
all_well()
r.s.close()
await_(lambda: agent.status()["sessions"] == 2, "all of them to go")
await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")
check(agent.counter("protocol_errors") > 300, "protocol errors", agent.counter("protocol_errors"))
check(agent.counter("version_errors") >= 2, "version errors")

# garbage in every word of the queue's memory
random.seed(6)
for i in range(60):
    r = Raw(agent.socket)
    m = r.hello()
    doorbell = m[3][1]
    r.send(2, struct.pack("<IIIIQ", 64, 128, 16, 0, 65536))
    m = r.recv()
    equal(m[1], OK, "queue open")
    size = struct.unpack("<IIQ", m[2])[2]
    q = mmap.mmap(m[3][0], size)
    if i % 3 == 0:
        q[0:size] = random.randbytes(size)
    elif i % 3 == 1:
        q[1024:1024 + 384] = random.randbytes(384)  # the ring's header
    else:  # good indices, descriptors of garbage
        for k in range(63):
            q[1408 + k * 64:1408 + k * 64 + 64] = random.randbytes(64)
        if i % 2:  # some of them nearly right
            for k in range(63):
                q[1408 + k * 64:1408 + k * 64 + 24] = struct.pack(
                    "<BBBBIIIII", random.randrange(6), random.randrange(4), random.randrange(16),
                    random.randrange(4), k, k + 1, 0, 1, 0)
        q[1024 + 0x84:1024 + 0x88] = struct.pack("<I", 63)  # prod.tail
    os.write(doorbell, struct.pack("<Q", 0xfffffffffffffffe if i % 5 == 0 else 1))
    r.s.settimeout(1)
    all_well()
    r.s.close()
    q.close()
    os.close(m[3][0])
    os.close(doorbell)
await_(lambda: agent.status()["sessions"] == 2, "all of them to go")
await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")
check(agent.counter("broken_queues") > 10, "queues given up are counted")

# holes punched into shared memory: zero pages for the agent, at worst the session's end
r = Raw(agent.socket)
m = r.hello()
for fd in m[3][:1]:
    lib.fallocate(fd, 3, C.c_long(0), C.c_long(4096))  # KEEP_SIZE | PUNCH_HOLE
all_well()
r.s.close()

all_well()
good.close()
agent.finish()
