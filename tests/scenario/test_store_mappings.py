#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client keeps what it was given of the store's memory, and says that it does not; or its session is over, or was one of the
agent before. When the store gives that memory back it is free all the same, and what the client has is empty."""
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
MAP, UNMAP = 28, 29
agent = Supervised("pool.size=64M", "store.size=16M", "store.extent_size=8M", "admin.mode=off")
c = Client(agent.socket, "me")


def keep():
    """Descriptors of all extents; the agent believes that they are closed."""
    fds = []
    raw = Raw(agent.socket)
    raw.send(1, struct.pack("<IIQ256s", 2, 0, 4, b"raw"))
    raw.recv()
    for extent in range(1, 64):
        raw.send(MAP, struct.pack("<II", extent, 0))
        got = raw.recv()[3]
        fds += got
        if got:
            raw.send(UNMAP, struct.pack("<II", extent, 0))
            raw.recv()
    return raw, fds


def pages(fds):
    return sum(os.fstat(fd).st_blocks for fd in fds)


def take_place(key):
    """In an extent of the other kind, for which all others have to go."""
    r = c.create((key, 16 * MiB))[0]
    equal(r.status, OK, "all space for a creation")
    c.release(r.hold)


c.put(*[(b"first%d" % i, bytes([i]) * MiB) for i in range(14)])
raw, fds = keep()
check(len(fds) == 2 and pages(fds) * 512 >= 14 * MiB, "two extents", len(fds), pages(fds))
take_place(b"open")
await_(lambda: pages(fds) == 0, "memory that was said to be mapped no more")
raw.s.close()

c.put(*[(b"second%d" % i, bytes([i]) * MiB) for i in range(14)])
raw, fds = keep()
check(pages(fds) * 512 >= 14 * MiB, "extents", len(fds), pages(fds))
raw.s.close()
agent.kill_agent()
await_(lambda: c.exist(b"second1") == [OK], "the next agent to have the objects")
c.removed("all", FORCE)
take_place(b"open too")
await_(lambda: pages(fds) == 0, "memory that was mapped in the life before")
c.close()
agent.finish()
