#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 200
"""Who goes over what: RDMA while a rail of it works; TCP, counted, when none does, but never for a strict client, nor for anybody
with `fallback = no`; TCP, not counted, where the peer has no RDMA at all."""
from rdma import *  # noqa: F403

SIZE = 256 * KiB
WAIT_MS = 60000  # longer than any outage here
COUNTERS = ("fallback_slices", "fallback_bytes")
TOLD = "carries what no faster rail can now"
rng = random.Random(7)
a, b = sides(2)


def states(x, y):
    return {s for rail in (0, 1) for s in x.rail_states(y, rail) | y.rail_states(x, rail)}


def cut(x, y):
    """All RDMA rails, until both agents know."""
    for rail in 0, 1:
        a.down(rail)
    await_(lambda: not states(x, y) & {"up", "probation"}, lambda: f"rails to be down: {x.rails()} {y.rails()}")


def ready(x, y):
    """RDMA rails work both ways; those that nothing goes over stay on probation."""
    def there():
        try:
            return states(x, y) <= {"up", "probation"}
        except AssertionError:  # not made yet
            return False
    await_(there, lambda: f"rails to be back: {x.rails()} {y.rails()}", 3 * PATIENCE)


def mend(x, y):
    for rail in 0, 1:
        a.up(rail)
    ready(x, y)


class Mover:
    """A client with an open segment."""

    def __init__(self, agent, owner, strict):
        self.kind = "strict" if strict else "lenient"
        self.c = Client(agent.socket, self.kind, strict=strict)
        self.p = self.c.alloc(SIZE)
        self.owner, self.segment = owner, self.c.open(owner.names)

    def submit(self, *ops, **more):
        batch = self.c.batch(len(ops))
        for op in ops:
            self.c.submit(batch, self.c.request(op, self.p, self.segment, self.owner.at, SIZE, **more))
        return batch, len(ops)

    def ends(self, submitted):
        """{(state, error, path, bytes)} of the tasks of a batch."""
        batch, tasks = submitted
        self.c.wait(batch, 2 * PATIENCE)
        seen = [self.c.task(batch, i) for i in range(tasks)]
        self.c.batch_free(batch)
        return {(t.state, t.error, PATHS[t.path], t.bytes) for t in seen}

    def waits(self, submitted):
        batch, tasks = submitted
        equal({self.c.task(batch, i).state for i in range(tasks)}, {WAITING}, f"tasks of a {self.kind} client")

    def moves(self, path):
        """A WRITE and then a READ go that way, and bring their bytes."""
        data = Chunk(rng, SIZE).bytes
        put(self.p, data)
        for op in WRITE, READ:
            equal(self.ends(self.submit(op)), {(COMPLETED, OK, path, SIZE)}, f"operation {op} of a {self.kind} client")
            check(self.owner.peek(0, SIZE) == data, "other bytes at the owner")
            check(peek(self.p, SIZE) == data, "other bytes here")
            fill(self.p, SIZE, 0)

    def fails(self, state, error, **more):
        equal(self.ends(self.submit(WRITE, READ, **more)), {(state, error, "none", 0)}, f"tasks of a {self.kind} client")

    def close(self):
        self.c.close()


def fallen(agent):
    """Slices and bytes so far, in /metrics as in `mcshm status`."""
    counted = [agent.counted(n) for n in COUNTERS]
    metrics = [agent.metric(f"mcshm_{n}_total") for n in COUNTERS]  # asked a moment later
    check(all(m >= n for m, n in zip(metrics, counted)) and any(metrics) == all(metrics), "/metrics and status:", metrics, counted)
    return metrics


# Both fall back, x's strict tasks end after down_ms, y's wait.
x, y = a.agent(), b.agent(f"peer.down_ms={WAIT_MS}")
theirs, mine = Owner(y, "theirs", 8 * SIZE), Owner(x, "mine", SIZE)
for agent, owner in ((x, theirs), (y, mine)):
    meet(agent, owner)
ready(x, y)
strict = [Mover(agent, owner, True) for agent, owner in ((x, theirs), (y, mine))]
lenient = [Mover(agent, owner, False) for agent, owner in ((x, theirs), (y, mine))]
for m in strict + lenient:
    m.moves("rdma")
before = fallen(x), fallen(y)
traffic = Traffic(x, theirs, lanes=2, size=SIZE, offset=SIZE, paths=ANY)
strictly = Traffic(x, theirs, lanes=2, size=SIZE, offset=4 * SIZE, paths=RDMA, strict=True, tolerant=True)
traffic.progress()
strictly.progress()
for outage in 1, 2:
    told = x.text().count(TOLD)
    cut(x, y)
    tcp = traffic.took["tcp"]
    await_(lambda: traffic.error or traffic.took["tcp"] > tcp + 2, "traffic over TCP")
    failed = sum(strictly.failures.values())
    await_(lambda: strictly.error or sum(strictly.failures.values()) > failed, "strict traffic to end")
    waiting = strict[1].submit(READ, READ, READ, READ)
    for m in lenient:
        m.moves("tcp")
    strict[0].fails(FAILED, STRICT)
    for m in strict:
        m.fails(S_TIMEOUT, STRICT, deadline_us=300000)
    strict[1].waits(waiting)
    for agent, n in zip((x, y), before):
        now = fallen(agent)
        check(now[0] > n[0] and now[1] >= n[1] + 2 * SIZE, "not counted:", n, now)
    mend(x, y)
    equal(strict[1].ends(waiting), {(COMPLETED, OK, "rdma", SIZE)}, "strict tasks with RDMA back")
    check(told < x.text().count(TOLD) <= told + 3, "not told, or too often:", x.text())
    for m in strict + lenient:
        m.moves("rdma")
    for t in traffic, strictly:
        t.progress(2)
    before = fallen(x), fallen(y)
    for t in traffic, strictly:
        t.progress(2)
    equal((fallen(x), fallen(y)), before, "what is counted with RDMA back")
traffic.finish()
strictly.finish()
equal((sum(traffic.failures.values()), set(traffic.took)), (0, {"rdma", "tcp"}), "lenient traffic")
equal((set(strictly.failures), set(strictly.took)), ({(FAILED, STRICT)}, {"rdma"}), "strict traffic")
for m in strict + lenient:
    m.close()
theirs.close()
mine.close()
finish(x, y)

# `fallback = no` of one agent holds for its own tasks, strict or not
x, y = a.agent("rdma.fallback=no"), b.agent()
theirs, mine = Owner(y, "theirs", SIZE), Owner(x, "mine", SIZE)
for agent, owner in ((x, theirs), (y, mine)):
    meet(agent, owner)
ready(x, y)
movers = [Mover(x, theirs, False), Mover(x, theirs, True), Mover(y, mine, False)]
cut(x, y)
for m in movers[:2]:
    m.fails(FAILED, PEER_UNREACHABLE)
    m.fails(S_TIMEOUT, PEER_UNREACHABLE, deadline_us=300000)
movers[2].moves("tcp")
equal(fallen(x), [0, 0], "what falls back without leave")
mend(x, y)
for m in movers:
    m.moves("rdma")
    m.close()
theirs.close()
mine.close()
finish(x, y)

# a peer that names no devices, as agents without RDMA do: TCP is the best there is, for strict ones and without fallback, too
x, y = a.agent("rdma.fallback=no"), b.agent("rdma.enable=off")
for round_ in range(2):
    theirs, mine = Owner(y, "theirs", 8 * SIZE), Owner(x, "mine", SIZE)
    path = "rdma" if round_ else "tcp"
    for agent, owner in ((x, theirs), (y, mine)):
        meet(agent, owner, path)
    if round_:
        ready(x, y)
    movers = [Mover(agent, owner, s) for agent, owner in ((x, theirs), (y, mine)) for s in (True, False)]
    for m in movers:
        m.moves(path)
    before = [(len(agent.text().splitlines()), fallen(agent)) for agent in (x, y)]
    traffic = Traffic(x, theirs, lanes=2, size=SIZE, paths=(path,), strict=True)
    traffic.progress(20)
    traffic.finish()
    for agent, (lines, n) in zip((x, y), before):
        said = agent.text().splitlines()[lines:]
        check(len(said) < 10, "too much said:", *said)
        equal(fallen(agent), n, "what falls back with " + path)
    if not round_:
        equal([fallen(agent) for agent in (x, y)], [[0, 0]] * 2, "what falls back with a peer without RDMA")
        equal({r["transport"] for r in x.rails(y) + y.rails(x)}, {"tcp"}, "rails with a peer without RDMA")
    for m in movers:
        m.close()
    theirs.close()
    mine.close()
    finish(y)
    if not round_:  # it gets RDMA
        y = b.agent()
finish(x)

# unlike ends under load, both ways: fewer and shorter queues, smaller packets, fewer READs at a time
x = a.agent("rdma.queue_pairs=1", "rdma.depth=16", "rdma.mtu=1024", "rdma.reads=1")
y = b.agent("rdma.queue_pairs=4", "rdma.depth=512", "rdma.reads=16", "rdma.cq_depth=64")
both = []
for agent, other in ((x, y), (y, x)):
    owner = Owner(other, "owner", 8 * SIZE)
    meet(agent, owner)
    both.append((owner, Traffic(agent, owner, lanes=8, size=SIZE, paths=RDMA, strict=True, seed=len(both))))
for owner, traffic in both:
    traffic.progress(4)
for agent, other in ((x, y), (y, x)):
    for rail in 0, 1:
        await_(lambda: agent.carried(other, rail) > 0, lambda: f"bytes over rail {rail}: {agent.rails(other)}")
for owner, traffic in both:
    traffic.finish()
    owner.close()
finish(x, y)
