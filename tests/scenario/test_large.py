#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""One task of more than 4 GiB, between sparse memfds of the client's own."""
import fcntl
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

GiB = 1 << 30
SIZE = 4 * GiB + 4096

with open("/proc/meminfo") as f:
    free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) * 1024
if free < 11 * GiB:
    skip(f"needs 11 GiB of free memory; there are {free / GiB:.1f}")
if SAN:
    skip("8 GiB of first touches take too long under a sanitizer")

agent = Agent("pool.size=9G", "task.deadline_ms=100000")
c = Client(agent.socket, "large")
memory = []
for name in ("source", "target"):
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    memory.append(c.register_memfd(fd, SIZE))
    os.close(fd)
source, target = memory
c.publish("large")
at = c.buffer(target, SIZE)
s = c.open("large")
fill(source, 4096, 4)
fill(source + 4 * GiB, 4096, 3)
b = c.batch()
c.submit(b, c.request(WRITE, source, s, at, SIZE))
c.wait(b, 100)
t = c.task(b)
equal((t.state, t.bytes), (COMPLETED, SIZE), "4 GiB + 4 KiB")
equal((peek(target, 1), peek(target + 4096, 1), peek(target + SIZE - 1, 1)), (b"\4", b"\0", b"\3"))
c.batch_free(b)
for p in memory:
    c.unregister(p)
c.close()
agent.finish()
