#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 200
"""Agents that are killed, stopped and restarted in mid-transfer over RDMA: tasks end, memory and handles stay with the clients of
a restarted agent, and the next tasks go over RDMA again."""
from rdma import *  # noqa: F403

SIZE = MiB
GONE = (PEER_UNREACHABLE, STALE, REVOKED, RAIL, TIMEOUT, AGENT_RESTARTED)


class SupervisedAgent(Supervised, RdmaAgent):
    pass


a, b = sides(2)
settings = ["peer.ping_ms=500", "peer.dead_ms=4000", "agent.barrier_ms=5000"]


def burst(c, source, segment, at, tasks=16, **more):
    batch = c.batch(tasks)
    for i in range(tasks):
        c.submit(batch, c.request(WRITE if i % 2 else READ, source, segment, at, SIZE, **more))
    await_(lambda: c.task(batch, 0).state != WAITING, "the first task to start")
    return batch


def ends(c, batch, tasks, what):
    """All tasks end, COMPLETED or with one of the causes; returns those causes."""
    c.wait(batch, 3 * PATIENCE)
    seen = collections.Counter()
    for i in range(tasks):
        t = c.task(batch, i)
        check(t.state == COMPLETED or t.state in (FAILED, INVALID, S_TIMEOUT) and t.error in GONE, what, t.state, t.error)
        seen[t.error] += t.state != COMPLETED
    c.batch_free(batch)
    return +seen


# the owner's agent is killed for good, another one takes its place
x, y = a.agent(*settings), b.agent(*settings)
c = Client(x.socket, "writer")
source = c.alloc(SIZE)
for i in range(2):
    owner = Owner(y, "owner", SIZE)
    meet(x, owner)
    segment = c.open(owner.names)
    x.await_rails(y, 0, 1)
    batch = burst(c, source, segment, owner.at, 64)
    y.kill()
    check(sum(ends(c, batch, 64, "with its peer killed").values()) > 0, "nobody was caught under way")
    owner.close()
    t = c.write(source, segment, owner.at, 64)
    check(t.state in (FAILED, INVALID) and t.error in GONE, "a task to a dead peer", t.state, t.error)
    c.close_segment(segment)
    y.start()

    def back():
        try:
            c.close_segment(c.open(owner.names))
        except McshmError as e:
            check(e.status in (PEER_UNREACHABLE, TIMEOUT, NOT_FOUND), e)
            return e.status == NOT_FOUND
    await_(back, "the peer to be back", 2 * PATIENCE)

# the owner's agent stands still: its device goes on, so what is under way may complete; nothing waits for ever
owner = Owner(y, "owner", SIZE)
segment = c.open(owner.names)
equal(c.write(source, segment, owner.at, SIZE).state, COMPLETED, "to the peer that is back")
batch = burst(c, source, segment, owner.at, deadline_us=3000000)
y.freeze()
ends(c, batch, 16, "with its peer stopped")
stopped = [c.write(source, segment, owner.at, 64, deadline_us=2000000) for _ in range(3)]
for t in stopped:
    check(t.state == COMPLETED or t.error in GONE, "a task to a stopped peer", t.state, t.error)
y.thaw()


def moves():
    t = c.write(source, segment, owner.at, SIZE)
    if t.error in (STALE, REVOKED):  # it was given up meanwhile
        raise AssertionError(f"a handle of a peer that was stopped: {t.error}")
    return t.state == COMPLETED and PATHS[t.path] == "rdma"


await_(moves, "RDMA to the peer that goes on", 2 * PATIENCE)

# the writer's agent is killed in mid-transfer: the owner's forgets its queue pairs
batch = burst(c, source, segment, owner.at)
x.kill()
refused(AGENT_DOWN, c.wait, batch)
c.close()
x.start()
c = Client(x.socket, "writer")
source = c.alloc(SIZE)
meet(x, owner)
segment = c.open(owner.names)
x.await_rails(y, 0, 1)
c.close()
owner.close()
finish(x, y)

# under supervisors, clients keep all they have
x, y = (SupervisedAgent(side, *settings) for side in (a, b))
owner = Owner(y, "owner", 4 * SIZE)
traffic = Traffic(x, owner, lanes=4, size=SIZE, tolerant=True, paths=ANY)
traffic.progress()
for agent, how in ((x, "kill"), (x, "again"), (y, "kill")):
    before = agent.kill_agent() if how == "kill" else agent.again()
    agent.await_next(before)
    if agent is y:  # the handle of the writer names the life before
        break
    rdma = traffic.took["rdma"]
    await_(lambda: traffic.error or traffic.took["rdma"] > rdma + 4, f"RDMA after {how}", 3 * PATIENCE)
    traffic.progress(2, 2 * PATIENCE)
traffic.stopping = True
traffic.join(4 * PATIENCE)
check(not traffic.is_alive(), "traffic that does not end")
check({e for _, e in traffic.failures} <= set(GONE), "how tasks ended beside COMPLETED:", traffic.failures)
traffic.c.close()
await_(lambda: owner.c.info().restarts == 1, "the owner to be back")


def reopened():
    try:
        meet(x, owner)
        return True
    except McshmError as e:
        check(e.status in (PEER_UNREACHABLE, TIMEOUT, NOT_FOUND), e)


await_(reopened, "the owner's segment to be found again", 2 * PATIENCE)
traffic = Traffic(x, owner, lanes=4, size=SIZE, paths=RDMA)
traffic.progress()
traffic.finish()
owner.close()
finish(x, y)
