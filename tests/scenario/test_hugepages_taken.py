#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# alone: takes every free hugepage of the machine for a moment
"""A client takes away the hugepages of memory that it registered while none are free: the SIGBUS costs the offender its
session, and nobody else anything."""
import fcntl
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/"


def free():
    with open(POOL + "free_hugepages") as f:
        return int(f.read())


def reserve(pages):
    with open(POOL + "nr_hugepages", "w") as f:
        f.write(str(pages))


if not os.access(POOL + "nr_hugepages", os.W_OK):
    skip("this user may not reserve hugepages")
with open(POOL + "nr_hugepages") as f:
    reserved = int(f.read())
hold = []
agent = Agent()
try:
    reserve(reserved + 2)
    if free() < 2:
        skip("no two hugepages could be had")
    good = Client(agent.socket, "good")
    a = good.alloc(MiB)
    good.publish("good")
    at = good.buffer(a, MiB)
    s = good.open("good")
    equal(good.write(a, s, at + MiB // 2, 4096).state, COMPLETED, "the good client, before")

    offender = Client(agent.socket, "offender")
    fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(fd, 2 * MiB)
    fcntl.fcntl(fd, 1033, 2)
    h = offender.register_memfd(fd, 2 * MiB)
    fill(h, 2 * MiB, 1)
    equal(offender.write(h, offender.open("good"), at, 4096).state, COMPLETED, "the offender, before")
    lib.fallocate(fd, 3, C.c_long(0), C.c_long(2 * MiB))  # KEEP_SIZE | PUNCH_HOLE
    while free() > 0:  # whatever is free now must not be there for the agent
        h2 = os.memfd_create("hold", os.MFD_HUGETLB)
        hold.append(h2)
        os.ftruncate(h2, 2 * MiB)
        if lib.fallocate(h2, 0, C.c_long(0), C.c_long(2 * MiB)) != 0:
            break
    t = offender.write(h, offender.open("good"), at, 4096)
    equal((t.state, t.error), (FAILED, MEMORY_FAULT), "a copy from memory taken away")
    await_(lambda: agent.status()["sessions"] == 2, "the offender to be thrown out")
    equal(good.write(a, s, at + MiB // 2, 4096).state, COMPLETED, "the good client, after")
    check(agent.counter("memory_faults") == 1, "counted")
    refused(AGENT_DOWN, offender.alloc, 64)
    offender.close()
    good.close()
    os.close(fd)
finally:
    for h2 in hold:
        os.close(h2)
    reserve(reserved)
agent.finish()
