#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents that die under their supervisors in mid-transfer between hosts: writers keep their handles, owners
their memory and names, and no late byte of a dead agent lands over a newer one."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

SIZE = 4 * MiB
KILLS = 2 if SAN else 3
GONE = {PEER_UNREACHABLE, STALE, REVOKED, RAIL, AGENT_RESTARTED}


class SupervisedHost(Supervised, HostAgent):
    pass


net = Net("a", "b")
settings = ["peer.ping_ms=200", "peer.dead_ms=1500", "peer.connect_ms=500", "agent.barrier_ms=5000"]
a, b = (SupervisedHost(h, *settings) for h in net)
owner = Owner(b, "kv", 2 * SIZE)
fill(owner.p + SIZE, SIZE, 0x3C)

# the writer's agent: the handle stays good, what it had in hand is lost, everything else completes
traffic = Traffic(a, owner, lanes=4, size=SIZE // 4, tolerant=True)
traffic.progress()
for i in range(KILLS):
    a.await_next(a.again() if i == 1 else a.kill_agent())
    traffic.progress(3, 2 * PATIENCE)
traffic.finish()
check(set(traffic.failures) <= {(FAILED, AGENT_RESTARTED)}, "how tasks ended beside COMPLETED:", traffic.failures)
equal(owner.c.info().restarts, 0, "restarts as the owner saw them")

# and many of them at once, of which some are in its hands unless the machine is too slow to kill it in time
writer = Client(a.socket, "writer")
source = writer.alloc(SIZE)
segment = writer.open(owner.names)
put(source, Chunk(random.Random(99), SIZE).bytes)
lost = 0
for i in range(10):
    batch = writer.batch(16)
    for k in range(16):
        writer.submit(batch, writer.request(WRITE, source, segment, owner.at, SIZE))
    await_(lambda: writer.task(batch, 0).state != WAITING, "the first task to start")
    a.kill_agent()
    writer.wait(batch, 2 * PATIENCE)
    for t in (writer.task(batch, k) for k in range(16)):
        check((t.state, t.error) in ((COMPLETED, OK), (FAILED, AGENT_RESTARTED)), "a task ended", t.state, t.error)
        lost += t.state == FAILED
    writer.batch_free(batch)
    equal(writer.write(source, segment, owner.at, SIZE).state, COMPLETED, "by the old handle")
    if lost:
        break
check(lost > 0, "no task was in the agent's hands at any of the kills: this shows nothing")
check(owner.peek(0, SIZE) == peek(source, SIZE), "the owner's bytes")

# the owner's agent: tasks under way end, its memory is what it was, its name is found again by itself
for i in range(KILLS):
    batch = writer.batch(16)
    for k in range(16):
        writer.submit(batch, writer.request(READ, source, segment, owner.at + SIZE, SIZE))
    await_(lambda: writer.task(batch, 0).state != WAITING, "the first task to start")
    old = b.kill_agent()
    writer.wait(batch, 2 * PATIENCE)
    for t in (writer.task(batch, k) for k in range(16)):
        check(t.state == COMPLETED or t.error in GONE, "with its peer killed", t.state, t.error)
    writer.batch_free(batch)
    b.await_next(old)
    await_(lambda: owner.c.info().restarts == i + 1, "the owner to be back")
    writer.close_segment(segment)

    def reopened():
        try:
            return writer.open(owner.names)
        except McshmError as e:
            check(e.status in (PEER_UNREACHABLE, TIMEOUT, NOT_FOUND), e)
    segment = await_(reopened, "the segment to be found again")
    data = Chunk(random.Random(i), SIZE).bytes
    put(source, data)
    await_(lambda: writer.write(source, segment, owner.at, SIZE).state == COMPLETED, "a WRITE to the next life")
    check(owner.peek(0, SIZE) == data, "its bytes")
    check(owner.peek(SIZE) == bytes([0x3C]) * SIZE, "memory that nobody wrote to")

# both at the same time
olds = [x.kill_agent() for x in (a, b)]
for x, old in zip((a, b), olds):
    x.await_next(old)
await_(lambda: writer.info().restarts >= 1 and owner.c.info().restarts == KILLS + 1, "both clients to be back")


def anew():
    """By the old handle, where its agent found the old segment; else by a new one."""
    global segment
    t = writer.read(source, segment, owner.at, SIZE)
    if t.state == COMPLETED:
        return True
    check(t.error in GONE | {INVALID_HANDLE}, "after both were killed", t.state, t.error)
    try:
        writer.close_segment(segment)
        segment = writer.open(owner.names)
    except McshmError as e:
        check(e.status in (PEER_UNREACHABLE, TIMEOUT, NOT_FOUND, INVALID_HANDLE), e)
    return False


fill(source, SIZE, 0)
await_(anew, "a READ between the two next lives", 2 * PATIENCE)
check(peek(source, SIZE) == owner.peek(0, SIZE), "what it brought")
writer.close()
owner.close()
print(f"lost in the hands of the writer's agent: {sum(traffic.failures.values())} of "
      f"{traffic.rounds * 2 * traffic.lanes} tasks, then {lost}")
finish(a, b)
