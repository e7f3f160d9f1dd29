#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 150
"""Published memory as devices see it: in chunks, in many buffers, cut in two, gone. Everything goes over RDMA, or not at all."""
from rdma import *  # noqa: F403

MANY = 1000
STEP, SMALL = 8 * KiB, 4 * KiB
rng = random.Random(11)

a, b = sides(2)
x = a.agent("rdma.fallback=no")
y = b.agent("rdma.fallback=no", "rdma.chunk=1M")


def moved(c, segment, owner, at, offset, size, what):
    """WRITE and READ of a part of a buffer that begins at `at`, which is owner.p + offset there."""
    data = Chunk(rng, size).bytes
    put(c.out, data)
    t = c.write(c.out, segment, at, size)
    equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, "rdma"), f"WRITE to {what}")
    check(peek(owner.p + offset, size) == data, "WRITE to", what, "brought other bytes")
    fill(c.back, size, 0)
    t = c.read(c.back, segment, at, size)
    equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, "rdma"), f"READ of {what}")
    check(peek(c.back, size) == data, "READ of", what, "brought other bytes")


def not_moved(c, segment, owner, at, offset, size, what):
    before = owner.peek(offset, min(size, owner.size - offset))
    fill(c.out, size, 0xee)
    t = c.write(c.out, segment, at, size)
    check(t.state in (INVALID, FAILED) and t.error in (BAD_RANGE, REVOKED), "WRITE to", what, "ended", t.state, t.error)
    check(owner.peek(offset, len(before)) == before, "WRITE to", what, "changed bytes")
    t = c.read(c.back, segment, at, size)
    check(t.state in (INVALID, FAILED) and t.error in (BAD_RANGE, REVOKED), "READ of", what, "ended", t.state, t.error)


# nine keys of a megabyte each: pieces within one, across borders, of all of them, and of more than one request takes (8 MiB)
owner = Owner(y, "chunks", 9 * MiB)
c = Client(x.socket, "mover")
c.out, c.back = c.alloc(9 * MiB), c.alloc(9 * MiB)
segment = c.open(owner.names)
x.await_rails(y, 0, 1)
for offset, size in ((0, 9 * MiB), (MiB - 1, 2), (3 * MiB - 5, 2 * MiB + 11), (9 * MiB - 1, 1), (5 * MiB, MiB)):
    moved(c, segment, owner, owner.at + offset, offset, size, f"{size} bytes at {offset}")
not_moved(c, segment, owner, owner.at + 9 * MiB - 1, 9 * MiB - 1, 2, "a byte behind the end")

# a part is taken away: what lies beside it has keys of its own, and peers find them
owner.c.revoke(owner.p + 4 * MiB + 4096, 4096)
moved(c, segment, owner, owner.at, 0, 4 * MiB + 4096, "the head of a cut buffer")
moved(c, segment, owner, owner.at + 4 * MiB + 8192, 4 * MiB + 8192, 9 * MiB - 4 * MiB - 8192, "its tail")
not_moved(c, segment, owner, owner.at + 4 * MiB + 4096, 4 * MiB + 4096, 4096, "what was cut out")
not_moved(c, segment, owner, owner.at + 4 * MiB, 4 * MiB, 8192, "the border of what was cut out")
for k in range(8):  # again and again, and transfers to the rest meanwhile
    owner.c.revoke(owner.p + k * 64 * KiB, 4096)
    moved(c, segment, owner, owner.at + k * 64 * KiB + 4096, k * 64 * KiB + 4096, 60 * KiB, f"piece {k}")
c.close_segment(segment)
owner.close()

# many small buffers, each with keys on both devices
owner = Owner(y, "many", MANY * STEP)
owner.c.unbuffer(owner.p, owner.size)
segment = c.open(owner.names)
began = time.monotonic()
at = [owner.c.buffer(owner.p + i * STEP, SMALL) for i in range(MANY)]
took = time.monotonic() - began
print(f"{MANY} buffers published in {took:.2f} s, {took / MANY * 1e6:.0f} us each, two devices")
for i in rng.sample(range(MANY), 40) + [0, MANY - 1]:
    moved(c, segment, owner, at[i], i * STEP, SMALL, f"buffer {i}")
not_moved(c, segment, owner, at[7] + SMALL, 7 * STEP + SMALL, 100, "the gap behind a buffer")
for i in range(0, MANY, 2):
    owner.c.unbuffer(owner.p + i * STEP, SMALL)
for i in rng.sample(range(1, MANY, 2), 10):
    moved(c, segment, owner, at[i], i * STEP, SMALL, f"buffer {i}, which is still there")
for i in rng.sample(range(0, MANY, 2), 5):
    not_moved(c, segment, owner, at[i], i * STEP, SMALL, f"buffer {i}, which is gone")
equal(y.metric("mcshm_rdma_unregistered_bytes"), 0, "bytes without registration")
equal(y.metric("mcshm_rdma_registrations_failed_total"), 0, "failed registrations")

# whoever leaves takes its registrations along
owner.close()
c.close()
for agent in (x, y):
    await_(lambda: agent.metric("mcshm_rdma_registrations_pending") == 0 and agent.metric("mcshm_pool_used_bytes") == 0,
           "memory to be let go of")
    equal({n["memory"] for n in agent.ask("ls", "nics")["nics"]}, {0}, "bytes registered on devices")
finish(x, y)
