#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 200
"""Queues that are full, queue pairs that cannot be had, storms of cancels, memory that is taken back under transfers."""
from rdma import *  # noqa: F403

SIZE = MiB
CGROUP = "/sys/fs/cgroup"
a, b = sides(2)


def opened(agent, owner, size):
    c = Client(agent.socket, "mover", queue={"slots": 4096, "depth": 1024})
    c.p = c.alloc(size)
    return c, c.open(owner.names)


# completion queues of sixteen, shared by all pairs of a device (B65)
x, y = (side.agent("rdma.cq_depth=16", "rdma.queue_pairs=4", "rdma.depth=16") for side in (a, b))
owner = Owner(y, "owner", 4 * SIZE)
meet(x, owner)
c, segment = opened(x, owner, 4 * SIZE)
put(c.p, Chunk(random.Random(1), 4 * SIZE).bytes)
for size in 64, 4096:
    for op in WRITE, READ:
        batch = c.batch(512)
        c.submit(batch, *[c.request(op, c.p + i * 8192, segment, owner.at + i * 8192, size) for i in range(512)])
        c.wait(batch, 3 * PATIENCE)
        for i in range(512):
            t = c.task(batch, i)
            equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, "rdma"), f"task {i} of {size} bytes")
        c.batch_free(batch)
for i in range(512):
    check(owner.peek(i * 8192, 4096) == peek(c.p + i * 8192, 4096), "the bytes of task", i)
x.await_rails(y, 0, 1)
equal({s for n in (0, 1) for s in x.rail_states(y, n)}, {"up"}, "rails")

# cancel storms: tasks end one way or the other, nothing else is touched, and rails come back
beside = Owner(y, "beside", 2 * SIZE)
# a storm may stop all queue pairs at once; TCP carries until there are new ones, and that is counted
bystander = Traffic(x, beside, lanes=2, size=SIZE // 2, paths=("rdma", "tcp"))
bystander.progress()
rng = random.Random(4)
ended = collections.Counter()
for storm in range(12):
    fill(owner.p, 4 * SIZE, 0x11)
    fill(c.p, 4 * SIZE, 0x22)
    batch = c.batch(16)
    for i in range(16):
        c.submit(batch, c.request(WRITE if storm % 3 else READ, c.p + i % 4 * SIZE, segment, owner.at + i % 4 * SIZE, SIZE))
    if storm % 2:
        await_(lambda: c.task(batch, 0).state != WAITING, "the first task to start")
    for i in rng.sample(range(16), 12):
        c.cancel(batch, i)
    c.wait(batch, 3 * PATIENCE)
    for i in range(16):
        t = c.task(batch, i)
        check((t.state, t.error) in ((COMPLETED, OK), (S_CANCELED, CANCELED)), "a task ended", t.state, t.error)
        ended[t.state] += 1
    c.batch_free(batch)
    # all have ended: nothing writes here any more
    if storm % 3 == 0:
        fill(c.p, 4 * SIZE, 0x33)
        equal(c.write(c.p, segment, owner.at, 64).state, COMPLETED, "a write after a storm")
        check(peek(c.p, 4 * SIZE) == b"\x33" * (4 * SIZE), "a READ that had ended wrote")
check(ended[S_CANCELED] > 0, "nothing was canceled: this shows nothing")
print("storms:", dict(ended))
bystander.progress(2, 2 * PATIENCE)
bystander.finish()
equal(sum(bystander.failures.values()), 0, "failed tasks of a bystander")
check(bystander.took["rdma"] > 0, "a bystander without RDMA:", dict(bystander.took))
check(bystander.took["tcp"] == 0 or x.counter("fallback_slices") > 0, "TCP in place of RDMA, and not counted")
x.await_rails(y, 0, 1)
equal(c.write(c.p, segment, owner.at, SIZE).state, COMPLETED, "after the storms")
c.close()
beside.close()

# memory taken back under transfers: no byte of it changes after the call has returned (deregistered, not only asked for)
caught = 0
for how in ("revoke", "unbuffer", "revoke", "free"):
    c, segment = opened(x, owner, SIZE)
    fill(c.p, SIZE, 0x44)
    batch = c.batch(64)
    for i in range(64):
        c.submit(batch, c.request(WRITE, c.p, segment, owner.at + i % 4 * SIZE, SIZE))
    await_(lambda: c.task(batch, 0).state != WAITING, "the first task to start")
    if how == "revoke":
        owner.c.revoke(owner.p, 4 * SIZE)
    elif how == "unbuffer":
        owner.c.unbuffer(owner.p, 4 * SIZE)
    else:
        owner.c.free(owner.p)
        owner.p = owner.c.alloc(4 * SIZE)
    fill(owner.p, 4 * SIZE, 0x55)
    c.wait(batch, 3 * PATIENCE)
    for i in range(64):
        t = c.task(batch, i)
        check(t.state == COMPLETED or t.state in (FAILED, INVALID) and t.error in (REVOKED, BAD_RANGE, STALE, ACCESS), how,
              "a task ended", t.state, t.error)
        caught += t.state != COMPLETED
    c.batch_free(batch)
    equal(collections.Counter(owner.peek()), collections.Counter({0x55: 4 * SIZE}), f"bytes after {how}")
    c.close()
    owner.at = owner.c.buffer(owner.p, 4 * SIZE)
check(caught > 0, "no task was under way: this shows nothing")
c, segment = opened(x, owner, SIZE)
t = c.write(c.p, segment, owner.at, SIZE)
equal((t.state, PATHS[t.path]), (COMPLETED, "rdma"), "after it was published again")
c.close()
owner.close()
finish(x, y)

# the device gives no more queue pairs: the rail works with those that it has
if not os.path.exists(f"{CGROUP}/cgroup.controllers"):
    run(f"mount -t cgroup2 none {CGROUP}")
if "rdma" not in open(f"{CGROUP}/cgroup.controllers").read():
    print("left out: this kernel cannot limit RDMA objects")
    sys.exit()
with open(f"{CGROUP}/cgroup.subtree_control", "w") as f:
    f.write("+rdma")
group = f"{CGROUP}/limits"
os.makedirs(group, exist_ok=True)


def join():
    with open(f"{group}/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))
    die_with_the_test()


def current(device):
    for line in open(f"{group}/rdma.current"):
        if line.startswith(device + " "):
            return int(line.split("hca_object=")[1].split()[0])
    return 0


def most(device, objects):
    with open(f"{group}/rdma.max", "w") as f:
        f.write(f"{device} hca_object={objects}")


x = RdmaAgent(a, "rdma.queue_pairs=16", rails=1, start=False)
x.before = join
x.start()
y = b.agent(rails=1)
owner = Owner(y, "owner", 4 * SIZE)
c, segment = Client(x.socket, "mover"), None
c.p = c.alloc(SIZE)
most("rxea0", current("rxea0") + 8)  # what pairs share, and a few of them
meet(x, owner)
segment = c.open(owner.names)
for i in range(8):
    t = c.write(c.p, segment, owner.at, SIZE)
    equal((t.state, PATHS[t.path]), (COMPLETED, "rdma"), "with few queue pairs")
conns = [r["conns"] for r in x.rail(y, 0)]
check(all(0 < n < 16 for n in conns), "queue pairs", conns)
check("queue pair" in x.text(), "the log says nothing of queue pairs:", x.text())
most("rxea0", "max")
c.close()
owner.close()
finish(x, y)
