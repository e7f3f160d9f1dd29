#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 150
"""Queue pairs being set up while tasks wait for them: nothing is posted before the other end receives (B69), each step may fail or
end with the other agent, and nothing is left of what was tried."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scenario"))
from failpoints import *  # noqa: E402,F403
from rdma import *  # noqa: E402,F403

SIZE = 64 * KiB
TASKS = 50
GONE = (PEER_UNREACHABLE, STALE, RAIL, TIMEOUT)
points = Points("agent")
a, b = sides(2)


def pairs(agent):
    return sum(n["pairs"] for n in agent.ask("ls", "nics")["nics"])


def fresh():
    """Two agents that have nothing of each other yet, and what is to be written."""
    x = a.agent("rdma.fallback=no", "peer.ping_ms=500", "peer.dead_ms=2000", prefix=points.prefix())
    y = b.agent(prefix=points.prefix())
    owner = Owner(y, "owner", TASKS * SIZE)
    c = Client(x.socket, "early")
    c.p = c.alloc(TASKS * SIZE)
    put(c.p, Chunk(random.Random(TASKS), TASKS * SIZE).bytes)
    return x, y, owner, c


def queue_all(c, owner):
    """Opens, and submits without waiting for any rail."""
    segment = c.open(owner.names)
    batch = c.batch(TASKS)
    c.submit(batch, *[c.request(WRITE, c.p + i * SIZE, segment, owner.at + i * SIZE, SIZE) for i in range(TASKS)])
    return batch


def all_complete(c, owner, batch, what):
    c.wait(batch, 3 * PATIENCE)
    for i in range(TASKS):
        t = c.task(batch, i)
        equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, "rdma"), f"task {i}, {what}")
    c.batch_free(batch)
    check(owner.peek() == peek(c.p, TASKS * SIZE), "the bytes,", what)


def end(x, y, owner, c):
    c.close()
    owner.close()
    finish(x, y)


# the other end is slow, before it receives and before it says so
x, y, owner, c = fresh()
for point in ("pair_made", "pair_ready"):
    points.arm(point, DELAY, 200, times=8)
all_complete(c, owner, queue_all(c, owner), "with a slow other end")
check(points.acted("pair_made") > 0 and points.acted("pair_ready") > 0, "nothing was slow: this shows nothing")
points.disarm()
x.await_rails(y, 0, 1)
equal((x.counted("rdma_retry_exceeded"), x.counted("rdma_flushed")), (0, 0), "requests that came too early")
await_(lambda: (pairs(x), pairs(y)) == (4, 4), lambda: f"two queue pairs a rail: {pairs(x)} and {pairs(y)}")
points.reached("agent", "rdma")
end(x, y, owner, c)

# any step may fail: it is done again, and both ends have as many queue pairs as without
for point in points.names("agent", "rdma", fails=True):
    if not point.startswith("pair_"):
        continue
    x, y, owner, c = fresh()
    acted = points.acted(point)
    points.arm(point, FAIL, errno.EIO, times=3)
    all_complete(c, owner, queue_all(c, owner), f"after {point} has failed")
    equal(points.acted(point), acted + 3, f"{point} has failed")
    points.disarm()
    x.await_rails(y, 0, 1)
    await_(lambda: (pairs(x), pairs(y)) == (4, 4), lambda: f"after {point}: {pairs(x)} and {pairs(y)} queue pairs")
    end(x, y, owner, c)

# the other agent ends in the middle of it
for point in ("pair_made", "pair_ready"):
    x, y, owner, c = fresh()
    points.arm(point, KILL)
    batch = queue_all(c, owner)
    c.wait(batch, 3 * PATIENCE)
    for i in range(TASKS):
        t = c.task(batch, i)
        check(t.state in (FAILED, S_TIMEOUT, INVALID) and t.error in GONE, f"task {i}, killed at {point}:", t.state, t.error)
    points.disarm()
    await_(lambda: pairs(x) == 0, lambda: f"queue pairs with an agent that is gone: {pairs(x)}")
    y.kill()
    owner.close()
    c.close()
    finish(x)
