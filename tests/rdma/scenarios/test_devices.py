#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 300
"""Devices that are not there, may not be opened, have no port, GID or MTU of use; that change, go and come back while
tasks are under way."""
from rdma import *  # noqa: F403

NOBODY = 65534
SIZE = MiB


def moves(x, y, path, what):
    """One WRITE and READ of a client of x."""
    owner = Owner(y, "owner", SIZE)
    meet(x, owner, path)
    c = Client(x.socket, "mover")
    p = c.alloc(2 * SIZE)
    put(p, Chunk(random.Random(3), SIZE).bytes)
    segment = c.open(owner.names)
    for t in (c.write(p, segment, owner.at, SIZE), c.read(p + SIZE, segment, owner.at, SIZE)):
        equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, path), what)
    check(owner.peek() == peek(p, SIZE) == peek(p + SIZE, SIZE), what, "other bytes")
    c.close()
    owner.close()


def says(text, *words):
    for word in words:
        check(word in text, "no", repr(word), "in", text)


def refuses(side, *settings, words, before=None):
    """The agent must not start; what it says has these words."""
    agent = RdmaAgent(side, *settings, start=False)
    if before:
        agent.before = before
    try:
        agent.start()
    except AssertionError as e:
        says(str(e), *words)
        return
    agent.stop()
    raise AssertionError(f"it runs with {settings}")


def as_nobody(agent):
    os.chown(agent.dir, NOBODY, NOBODY)
    agent.prefix = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--pdeathsig", "KILL"]


a, b = sides(2)
y = b.agent()

# none of that name
refuses(a, "rdma.devices=nosuch0", words=["nosuch0", "require"])
x = a.agent("rdma.enable=auto", "rdma.devices=nosuch0")
says(x.text(), "nosuch0")
moves(x, y, "tcp", "without a device")
finish(x)
x = a.agent("rdma.enable=off")
moves(x, y, "tcp", "with RDMA off")
finish(x)

# a list, of which some is denied
x = a.agent("rdma.devices=rxea*", "rdma.deny=rxea1 rxea2/1 rxea3")
moves(x, y, "rdma", "over one device of a list")
equal({r["local"].split("/")[0] for r in x.rails(y) if r["transport"] == "rdma"}, {"rxea0"}, "devices in use")
finish(x)

# a GID that is not there
refuses(a, "rdma.gid_index=200", words=["200", "rxea0"])
x = a.agent("rdma.enable=auto", "rdma.gid_index=200")
moves(x, y, "tcp", "with a wrong GID index")
says(x.text(), "200")
finish(x)
x = a.agent("rdma.gid_index=1")
moves(x, y, "rdma", "with the right GID index")
finish(x)

# no port is up, or one of two
for rail in 0, 1:
    a.down(rail)
refuses(a, words=["rxea0", "require"])
a.up(1)
await_(lambda: a.carries(1) and a.has_gid(1), "rxea1 to carry")
x = a.agent()
moves(x, y, "rdma", "over the port that is up")
a.up(0)
owner = Owner(y, "later", 4 * SIZE)
meet(x, owner)
traffic = Traffic(x, owner, lanes=4, size=SIZE, paths=RDMA)
x.await_rails(y, 0, 1)
await_(lambda: traffic.error or x.carried(y, 0) > 0, "bytes over the port that came up")
traffic.finish()
owner.close()
finish(x)

# what the two may set differently
x = a.agent("rdma.queue_pairs=1", "rdma.mtu=1024", "rdma.depth=64", "rdma.reads=1", "rdma.inline=0", "rdma.slice=256K")
finish(y)
y = b.agent("rdma.queue_pairs=4", "rdma.reads=8", "rdma.cq_depth=256")
moves(x, y, "rdma", "with other settings than the peer's")
moves(y, x, "rdma", "with other settings than the peer's, the other way")
finish(x, y)

# a device may not be opened
y = b.agent()
nodes = [f"/dev/infiniband/uverbs{n}" for n in range(64) if os.path.exists(f"/dev/infiniband/uverbs{n}")]
modes = {n: os.stat(n).st_mode & 0o777 for n in nodes}
for n in nodes:
    os.chmod(n, 0o600)
x = RdmaAgent(a, "rdma.enable=auto", start=False)
as_nobody(x)
x.start()
moves(x, y, "tcp", "without the right to open a device")
says(x.text(), "/dev/infiniband/uverbs", "permission")
finish(x)
x = RdmaAgent(a, start=False)
as_nobody(x)
try:
    x.start()
    raise AssertionError("it runs without the right to open a device")
except AssertionError as e:
    says(str(e), "/dev/infiniband/uverbs")
for n in nodes:
    os.chmod(n, 0o666)

# locked memory is limited (B61)
limit = ["prlimit", "--memlock=65536:65536"]
x = RdmaAgent(a, "rdma.enable=auto", start=False)
as_nobody(x)
x.prefix = limit + x.prefix
x.start()
moves(x, y, "tcp", "with 64 KiB of locked memory")
says(x.text(), "65536", "MEMLOCK")
check(int(x.metric("mcshm_rdma_registrations_failed_total")) > 0, "registrations that failed")
finish(x)
x = RdmaAgent(a, start=False)
as_nobody(x)
x.prefix = limit + x.prefix
x.start()
c = Client(x.socket, "mover")
try:
    c.alloc(SIZE)
    raise AssertionError("memory that cannot be registered was given out")
except McshmError as e:
    check(e.status in (NO_MEMORY, LIMIT), e)
    says(e.text, "65536", "MEMLOCK")
c.close()
finish(x)
for n in nodes:
    os.chmod(n, modes[n])

# a device comes after the start, others go and come back under traffic; then all of them
a.remove_device(1)
x = a.agent("rdma.devices=rxea[01]")  # a pattern keeps no place for it
owner = Owner(y, "owner", 4 * SIZE)
meet(x, owner)
traffic = Traffic(x, owner, lanes=4, size=SIZE, paths=RDMA)
traffic.progress()
a.add_device(1)
x.await_rails(y, 0, 1)
for side, rail in ((a, 0), (b, 1)):
    side.remove_device(rail)
    await_(lambda: traffic.error or not any(r["state"] == "up" and f"rxe{side.name}{rail}/" in r["local"] + r["remote"]
                                            for r in x.rails(y)), lambda: f"the device to be missed: {x.rails(y)}")
    traffic.progress(3)
    side.add_device(rail)
    x.await_rails(y, 0, 1)
    carried = x.carried(y, rail)
    await_(lambda: traffic.error or x.carried(y, rail) > carried, "bytes over a device that came back", 2 * PATIENCE)
traffic.finish()
traffic = Traffic(x, owner, lanes=4, size=SIZE, paths=ANY)
for rail in 0, 1:
    a.remove_device(rail)
await_(lambda: traffic.error or traffic.took["tcp"] > 8, "TCP without any device")
for rail in 0, 1:
    a.add_device(rail)
x.await_rails(y, 0, 1)
rdma = traffic.took["rdma"]
await_(lambda: traffic.error or traffic.took["rdma"] > rdma + 8, "RDMA after all devices were gone", 2 * PATIENCE)
traffic.finish()

# another address: the port's GID is another, rails are paired anew
traffic = Traffic(x, owner, lanes=4, size=SIZE, paths=RDMA)
traffic.progress()
a.readdress(0, "10.9.0.11")
await_(lambda: traffic.error or any("10.9.0.11" in r["local"] and r["state"] == "up" for r in x.rails(y)),
       lambda: f"a rail with the new address: {x.rails(y)}", 2 * PATIENCE)
x.await_rails(y, 0, 1)
carried = x.carried(y, 0)
await_(lambda: traffic.error or x.carried(y, 0) > carried, "bytes with the new address")
traffic.progress(2)
a.readdress(0, a.address(0))
await_(lambda: traffic.error or all("10.9.0.11" not in r["local"] or r["state"] != "up" for r in x.rails(y)),
       "the old address to be left", 2 * PATIENCE)
x.await_rails(y, 0, 1)
traffic.progress(2)

# an MTU that the peer's port cannot: paired with the smaller one
b.mtu(0, 1500)
carried = x.carried(y, 1)
traffic.progress(3, 2 * PATIENCE)


def both_carry():
    before = [x.carried(y, rail) for rail in (0, 1)]
    traffic.progress(2, 2 * PATIENCE)
    return all(x.carried(y, rail) > n for rail, n in enumerate(before))


await_(both_carry, lambda: f"both rails to carry with different MTUs: {x.rails(y)}", 3 * PATIENCE)
traffic.finish()
equal(sum(traffic.failures.values()), 0, "failed tasks")
owner.close()
finish(x, y)
y, x = b.agent(), a.agent()
moves(x, y, "rdma", "from the start with another MTU than the peer's")
moves(y, x, "rdma", "from the start with another MTU than the peer's, the other way")
finish(x, y)
b.mtu(0, MTU)
