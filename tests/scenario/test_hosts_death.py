#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""What dies with whom across hosts: agents, owners and writers that are killed in mid-transfer."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

SIZE = 8 * MiB
GONE = (PEER_UNREACHABLE, STALE, REVOKED, RAIL)
net = Net("a", "b", "c")
ha, hb, hc = net
psk = psk_file(os.environ.get("TMPDIR", "/tmp"), f"psk{os.getpid()}")
atexit.register(os.unlink, psk)
settings = ["peer.auth=psk", "peer.psk_file=" + psk, "peer.allow_insecure=no", "peer.ping_ms=200",
            "peer.dead_ms=1500", "peer.connect_ms=500"]
a, b, c = (h.agent(*settings) for h in net)
writer = Client(a.socket, "writer")
source = writer.alloc(SIZE)
fill(source, SIZE, 1)


def burst(segment, at, tasks=16, **more):
    batch = writer.batch(tasks)
    for i in range(tasks):
        writer.submit(batch, writer.request(WRITE if i % 2 else READ, source, segment, at, SIZE, **more))
    await_(lambda: writer.task(batch, 0).state != WAITING, "the first task to start")
    return batch


def ends(batch, tasks, what, causes=GONE):
    """All tasks end, some with one of these causes."""
    writer.wait(batch, 2 * PATIENCE)
    seen = collections.Counter()
    for i in range(tasks):
        t = writer.task(batch, i)
        if t.state != COMPLETED:
            check(t.state in (FAILED, INVALID, S_TIMEOUT) and t.error in causes, what, t.state, t.error)
            seen[t.error] += 1
    writer.batch_free(batch)
    return seen


def reopened(client):
    """A handle of the owner's segment, once its agent can be reached."""
    try:
        return client.open(owner.names)
    except McshmError as e:
        check(e.status in (PEER_UNREACHABLE, TIMEOUT), e)
        return None


# the owner's agent is killed in mid-transfer, and is back under the same name
owner = Owner(b, "owner", SIZE)
segment = writer.open(owner.names)
bystander = Owner(c, "bystander", SIZE)
beside = Traffic(a, bystander, lanes=2)
for i in range(3):
    batch = burst(segment, owner.at)
    b.kill()
    check(sum(ends(batch, 16, "with its peer killed").values()) > 0, "nobody was caught under way")
    refused(AGENT_DOWN, owner.c.alloc, 64)
    owner.close()
    for at in (owner.at, owner.at + 64 * MiB):  # the second one nobody has ever heard of
        t = writer.write(source, segment, at, 64)
        check(t.state in (FAILED, INVALID) and t.error in GONE, "a task to a dead peer", t.state, t.error)
    try:
        writer.open(owner.names)
        raise AssertionError("a segment of a dead agent was opened")
    except McshmError as e:
        check(e.status in (PEER_UNREACHABLE, NOT_FOUND, TIMEOUT), "opening a segment of a dead agent:", e)
        check(b.address in e.text, "the sentence names the peer:", e)
    b.start()
    owner = Owner(b, "owner", SIZE)
    at = owner.at

    def stale():
        t = writer.write(source, segment, at, 64)
        check(t.state in (FAILED, INVALID), "a handle of an earlier life reaches the next one", t.state)
        return t.error == STALE
    await_(stale, "the old handle to be known as stale")
    equal(owner.peek(), b"\0" * SIZE, "the next life's bytes")
    writer.close_segment(segment)
    segment = await_(lambda: writer.open(owner.names), "the segment to be opened again")
    equal(writer.write(source, segment, owner.at, SIZE).state, COMPLETED, "after opening again")
    equal(owner.peek(), peek(source, SIZE), "its bytes")
beside.progress()
beside.finish()
equal(sum(beside.failures.values()), 0, "failed tasks of a bystander")


# the owner itself is killed, its agent lives
def victim(pipe):
    v = Owner(b, "victim", SIZE)
    pipe.send(v.at)
    pipe.recv()


for i in range(3):
    child = Child(victim)
    at = child.pipe.recv()[0]
    old = writer.open(b.names("victim"))
    batch = burst(old, at)
    child.kill()
    ends(batch, 16, "with its owner killed", GONE + (BAD_RANGE, NOT_FOUND))
    refused(NOT_FOUND, writer.open, b.names("victim"))
    child = Child(victim)
    again = child.pipe.recv()[0]
    t = writer.write(source, old, again, 64)
    check(t.state in (FAILED, INVALID) and t.error in (REVOKED, STALE), "an old handle", t.state, t.error)
    writer.close_segment(old)
    equal(writer.write(source, writer.open(b.names("victim")), again, SIZE).state, COMPLETED, "opened anew")
    child.kill()


# the client that is writing is killed: nothing of it is left at either end
def busy(pipe):
    d = Client(a.socket, "busy", queue=dict(depth=64))
    p = d.alloc(SIZE)
    s = d.open(owner.names)
    batch = d.batch(60)
    for i in range(60):
        d.submit(batch, d.request(WRITE, p, s, owner.at, SIZE))
    pipe.send("busy")
    pipe.recv()


for i in range(3):
    child = Child(busy)
    child.pipe.recv()
    child.kill()
    await_(lambda: a.status()["sessions"] == 2, "the killed client's session to go")
    owner.c.revoke(owner.p, SIZE)  # what was on its way may land until then
    fill(owner.p, SIZE, 9)
    owner.at = owner.c.buffer(owner.p, SIZE)
    for k in range(5):
        equal(writer.read(source, segment, owner.at, SIZE).state, COMPLETED, "the others go on")
        equal(owner.peek(), b"\x09" * SIZE, "bytes after the writer's death")

# an agent is killed while the one it writes to stands still, and starts again: what the kernels still hold of its
# earlier life does not land on what the next one writes
before = Client(c.socket, "before")
p = before.alloc(SIZE)
fill(p, SIZE, 1)
fill(owner.p, SIZE, 0)
s = before.open(owner.names)
batch = before.batch(32)
for i in range(32):
    before.submit(batch, before.request(WRITE, p, s, owner.at, SIZE))
await_(lambda: owner.peek(0, 1) == b"\1", "the first bytes to land")
b.freeze()
c.kill()
before.close()
c.start()
after = Client(c.socket, "after")
p = after.alloc(SIZE)
fill(p, SIZE, 2)
thaw = threading.Timer(0.2, b.thaw)
thaw.start()
s = await_(lambda: reopened(after), "the next life to reach it")
thaw.join()
t = after.run(after.request(WRITE, p, s, owner.at, 0), pieces=[(k * 65536, k * 65536, 4096) for k in range(128)])
equal((t.state, t.error), (COMPLETED, OK), "the next life's write")
for i in range(50):
    for k in range(128):
        equal(owner.peek(k * 65536, 4096), b"\2" * 4096, "bytes of an earlier life on newer ones")
    equal(after.read(p, s, owner.at, MiB).state, COMPLETED, "a read")
after.close()

# a whole agent is killed while it writes: the owner's memory is quiet at once, and the peer is forgotten
twin = Client(c.socket, "twin")
p = twin.alloc(SIZE)
fill(p, SIZE, 3)
batch = twin.batch(8)
s = twin.open(owner.names)
for i in range(8):
    twin.submit(batch, twin.request(WRITE, p, s, owner.at, SIZE))
await_(lambda: owner.peek(0, 1) == b"\3", "the first bytes to land")
c.kill()
owner.c.revoke(owner.p, SIZE)
fill(owner.p, SIZE, 4)
await_(lambda: not b.sees(c), "the peer to be seen as dead")
equal(owner.peek(), b"\4" * SIZE, "bytes after the revocation")
twin.close()
bystander.close()
writer.close()
owner.close()
c.start()
finish(a, b, c)
