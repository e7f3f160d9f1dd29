#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 120
"""A notification comes after its data, whichever rails and queue pairs carried them: whoever gets it hashes the target
at once (B72), many batches at a time, large and small tasks mixed."""
import hashlib

from rdma import *  # noqa: F403

BATCHES, AT_ONCE = 120, 4
SMALL, LARGE = 16 * KiB, 300 * KiB
SHAPE = [LARGE] * 4 + [SMALL] * 4
SET = sum(SHAPE)

a, b = sides(2)
x, y = a.agent("rdma.queue_pairs=3", "rdma.slice=64K"), b.agent()
owner = Owner(y, "owner", AT_ONCE * SET)
c = Client(x.socket, "writer")
out = c.alloc(AT_ONCE * SET)
meet(x, owner)
segment = c.open(owner.names)
x.await_rails(y, 0, 1)
rng = random.Random(72)
waiting = {}


def begin(place):
    data = Chunk(rng, SET).bytes
    put(out + place * SET, data)
    batch, at = c.batch(len(SHAPE) + 1), place * SET
    for size in SHAPE:
        c.submit(batch, c.request(WRITE, out + at, segment, owner.at + at, size))
        at += size
    # after all of the batch: the notification's own task waits for those before it
    c.notify(batch, segment, b"%d" % place, hashlib.md5(data).digest(), flags=FENCE)
    waiting[place] = batch


def arrive():
    name, digest = owner.c.recv()
    place = int(name)
    equal(hashlib.md5(owner.peek(place * SET, SET)).digest(), digest, "the target when its notification came")
    batch = waiting.pop(place)
    c.wait(batch)
    for k in range(len(SHAPE) + 1):
        t = c.task(batch, k)
        equal((t.state, PATHS[t.path] if k < len(SHAPE) else "rdma"), (COMPLETED, "rdma"), "a task")
    c.batch_free(batch)
    return place


for place in range(AT_ONCE):
    begin(place)
for _ in range(BATCHES - AT_ONCE):
    begin(arrive())
while waiting:
    arrive()

# with the data in one task
for i in range(60):
    size = rng.choice([1, 200, 4096, 65537, MiB])
    put(out, Chunk(rng, size).bytes)
    batch = c.batch(1)
    n = note(b"data", b"%d" % i)
    c.submit(batch, c.request(WRITE, out, segment, owner.at, size, flags=NOTIFY, notify=C.pointer(n)))
    equal(owner.c.recv(), (b"data", b"%d" % i), "a notification")
    check(owner.peek(0, size) == peek(out, size), "the target of", size, "bytes when its notification came")
    c.wait(batch)
    equal((c.task(batch).state, PATHS[c.task(batch).path]), (COMPLETED, "rdma"), "a WRITE with a notification")
    c.batch_free(batch)
batch = c.batch(1)
c.notify(batch, segment, b"alone", b"x" * 4096)
equal(owner.c.recv(), (b"alone", b"x" * 4096), "a notification alone")
c.wait(batch)
c.batch_free(batch)
refused(TIMEOUT, owner.c.recv, 0)
c.close()
owner.close()
finish(x, y)
