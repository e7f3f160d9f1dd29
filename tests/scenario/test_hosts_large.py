#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""One task of more than 4 GiB to another host, between sparse memfds of the clients' own."""
import fcntl
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

SIZE = 4 * GiB + 4096

with open("/proc/meminfo") as f:
    free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) * 1024
if free < 11 * GiB:
    skip(f"needs 11 GiB of free memory; there are {free / GiB:.1f}")
if SAN:
    skip("8 GiB of first touches take too long under a sanitizer")

a, b = Net("a", "b")
a, b = (h.agent("pool.size=5G", "task.deadline_ms=100000") for h in (a, b))


def memory(c):
    fd = os.memfd_create("large", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    p = c.register_memfd(fd, SIZE)
    os.close(fd)
    return p


owner = Client(b.socket, "owner")
target = memory(owner)
owner.publish("large")
at = owner.buffer(target, SIZE)
c = Client(a.socket, "large")
source = memory(c)
places = [0, MiB, 2 * GiB - 1, 4 * GiB - 100, 4 * GiB, SIZE - 100]
for i, place in enumerate(places):
    fill(source + place, 100, i + 1)
batch = c.batch()
c.submit(batch, c.request(WRITE, source, c.open(b.names("large")), at, SIZE))
c.wait(batch, 100)
t = c.task(batch)
equal((t.state, t.bytes), (COMPLETED, SIZE), "4 GiB + 4 KiB")
for i, place in enumerate(places):
    equal(peek(target + place, 100), bytes([i + 1]) * 100, f"bytes at {place}")
equal(peek(target + 3 * GiB, 4096), b"\0" * 4096, "bytes between")
c.batch_free(batch)
c.unregister(source)
owner.unregister(target)
c.close()
owner.close()
finish(a, b)
