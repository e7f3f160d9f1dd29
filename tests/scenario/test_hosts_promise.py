#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""The promise across hosts: what was taken away is not written any more, whatever becomes of the agent that
was writing; what ended is quiet at its own end; a peer that stands still holds nobody else up."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

SIZE = 16 * MiB
ENDED = (INVALID, S_CANCELED, COMPLETED, S_TIMEOUT, FAILED)
net = Net("a", "b", "c")
psk = psk_file(os.environ.get("TMPDIR", "/tmp"), f"psk{os.getpid()}")
atexit.register(os.unlink, psk)
a, b, c = (h.agent("peer.auth=psk", "peer.psk_file=" + psk, "peer.allow_insecure=no",
                   "pool.size=512M") for h in net)
writer = Client(a.socket, "writer")
source = writer.alloc(SIZE)


def slow(on=True):
    """Host a sends no faster than tasks can be caught under way."""
    a.host.throttle(0, "400mbit" if on else None)


class Rounds:
    """An owner whose memory is taken away in one of several ways, and who writes there."""

    def __init__(self, name, written=True):
        self.name = name
        if written:  # by a client of its own, so that all of them get their share of the rail
            self.writer = Client(a.socket, "writer of " + name)
            self.source = self.writer.alloc(SIZE)
        self.c = Client(b.socket, name)
        self.p = self.c.alloc(SIZE)
        self.pattern = 0
        self.publish()

    def publish(self):
        fill(self.p, SIZE, 0)
        self.c.publish(self.name)
        self.at = self.c.buffer(self.p, SIZE)

    def begin(self, tasks):
        """Writes that are under way when this returns."""
        fill(self.source, SIZE, 255)
        self.segment = self.writer.open(b.names(self.name))
        self.batch = self.writer.batch(tasks)
        for i in range(tasks):
            self.writer.submit(self.batch, self.writer.request(WRITE, self.source, self.segment, self.at, SIZE))
        self.tasks = tasks
        await_(lambda: 255 in peek(self.p, 4096), "the first bytes to land")

    def take(self, how):
        """Returns when the memory is the owner's again; puts a pattern there at once."""
        self.pattern = self.pattern % 200 + 1
        if how == "revoke":
            self.c.revoke(self.p, SIZE)
        elif how == "unbuffer":
            self.c.unbuffer(self.p, SIZE)
        elif how == "withdraw":
            self.c.withdraw()
        elif how == "free":
            self.c.free(self.p)
            self.p = self.c.alloc(SIZE)
        fill(self.p, SIZE, self.pattern)

    def same(self, what):
        got = peek(self.p, SIZE)
        check(got == bytes([self.pattern]) * SIZE, what, "a byte changed after it was taken away:",
              collections.Counter(got))

    def end(self, what, causes=(REVOKED, BAD_RANGE)):
        """All tasks end, with these causes; returns how many were caught."""
        self.writer.wait(self.batch, 2 * PATIENCE)
        caught = 0
        for i in range(self.tasks):
            t = self.writer.task(self.batch, i)
            check(t.state == COMPLETED or t.state in (FAILED, INVALID) and t.error in causes,
                  what, "a task ended", t.state, "error", t.error)
            caught += t.state != COMPLETED
        self.writer.batch_free(self.batch)
        self.writer.close_segment(self.segment)
        return caught

    def renew(self, how):
        if how != "withdraw":
            self.c.withdraw()
        self.publish()

    def close(self):
        self.c.close()
        self.writer.close()


# taken away in mid-stream, the writer's agent being well
slow()
owner = Rounds("owner")
for how in ("revoke", "unbuffer", "withdraw", "free"):
    owner.begin(8)
    owner.take(how)
    check(owner.end(how, (REVOKED, BAD_RANGE, STALE)) > 0, how, "caught no task under way")
    owner.same(how)
    owner.renew(how)
equal(writer.write(source, writer.open(b.names("owner")), owner.at, 4096).state, COMPLETED, "a write after it all")

# the writer's agent stands still for ten seconds in mid-write; the owners need nobody's help meanwhile
owners = {how: Rounds(how) for how in ("revoke", "withdraw", "free")}


def victim(pipe):
    v = Rounds("victim", written=False)
    pipe.send(v.at)
    pipe.recv()


dying = Child(victim)
at = dying.pipe.recv()[0]
for o in owners.values():
    o.begin(4)
lost = writer.batch(2)
for i in range(2):
    writer.submit(lost, writer.request(WRITE, source, writer.open(b.names("victim")), at, SIZE))
a.freeze()
frozen = time.monotonic()
for how, o in owners.items():
    o.take(how)
check(time.monotonic() - frozen < PATIENCE, "taking memory back took", time.monotonic() - frozen, "s")
dying.kill()
# its pages go to others
heirs = [Owner(b, f"heir {i}", SIZE) for i in range(3)]
for h in heirs:
    fill(h.p, SIZE, 0x77)
await_(lambda: time.monotonic() - frozen > 10, "ten seconds", 60)
for how, o in owners.items():
    o.same(how)
a.thaw()
for how, o in owners.items():
    check(o.end(how, (REVOKED, BAD_RANGE, STALE)) > 0, how, "caught no task under way")
    o.same(how)
writer.wait(lost, 2 * PATIENCE)
for i in range(2):
    t = writer.task(lost, i)
    check(t.state in (FAILED, INVALID) and t.error in (REVOKED, BAD_RANGE, STALE, NOT_FOUND),
          "a task whose owner died", t.state, t.error)
writer.batch_free(lost)
slow(False)
# and after more traffic on the same rails
for i, h in enumerate(heirs):
    equal(h.peek(), b"\x77" * SIZE, "memory that was a dead owner's")
t = Traffic(a, heirs[0])
t.progress()
t.finish()
for how, o in owners.items():
    o.same(how)
for h in heirs[1:]:
    equal(h.peek(), b"\x77" * SIZE, "memory that was a dead owner's")
for o in [*owners.values(), *heirs]:
    o.close()

# cancel and deadline under way: the local end is the caller's at once, the connections live on
slow()
owner.renew("revoke")
segment = writer.open(b.names("owner"))
for how in ("cancel", "deadline"):
    for op in (WRITE, READ):
        caught = 0
        fill(owner.p, SIZE, 0x10)
        for i in range(3):
            fill(source, SIZE, 0x20)
            batch = writer.batch(4)
            r = writer.request(op, source, segment, owner.at, SIZE,
                               deadline_us=0 if how == "cancel" else 60000)
            if op == READ:
                b.host.throttle(0, "400mbit")
            writer.submit(batch, r, r, r, r)
            if how == "cancel":
                await_(lambda: writer.task(batch, 0).state != WAITING, "the first task to start")
                for k in range(4):
                    writer.cancel(batch, k)
            writer.wait(batch)
            fill(source, SIZE, 0x30)  # it is ours again
            ended = [writer.task(batch, k) for k in range(4)]
            for t in ended:
                check((t.state, t.error) in ((COMPLETED, OK), (S_CANCELED, CANCELED), (S_TIMEOUT, TIMEOUT)),
                      how, "ended", t.state, t.error)
                # what a slow rail still had in its buffers may be unconfirmed: it lands before what is sent later
                check(t.remote_quiesced or t.state != COMPLETED, "a completed task is quiet")
            caught += sum(t.state != COMPLETED for t in ended)
            writer.batch_free(batch)
            # traffic behind it on the same connections
            b.host.throttle(0, None)
            small = writer.alloc(4096)
            equal(writer.read(small, segment, owner.at, 4096).state, COMPLETED, "a read after " + how)
            check(peek(small, 1) in (b"\x10", b"\x20"), "its bytes")
            writer.free(small)
            equal(peek(source, SIZE), b"\x30" * SIZE, f"the local end after {how} of {op}")
            # the target of a canceled write holds old bytes, new ones or filler, but nothing from afterwards
            check(0x30 not in peek(owner.p, SIZE), "bytes at the owner that the source got after the end")
        check(caught > 0, how, "caught no task of kind", op)
check({r["state"] for r in a.rails(b)} == {"up"}, a.rails(b))
equal(b.counted("tcp_protocol_errors"), 0, "protocol errors at the target")
slow(False)

# a peer that stands still: its tasks end by their deadline, those to others notice nothing
healthy = Owner(c, "healthy", 4 * MiB)
other = writer.open(healthy.names)
put(source, Chunk(random.Random(3), MiB).bytes)
equal(writer.write(source, other, healthy.at, 4096).state, COMPLETED, "a first write")
b.freeze()
began = time.monotonic()
dead = writer.batch(8)
fill(source + 8 * MiB, MiB, 0x51)
for i in range(8):
    writer.submit(dead, writer.request(WRITE, source + 8 * MiB, segment, owner.at, MiB, deadline_us=2000000))
for i in range(100):
    equal(writer.write(source, other, healthy.at + i * 4096, 4096).state, COMPLETED, "beside a dead peer")
if time.monotonic() - began < 2:
    check(all(writer.task(dead, i).state not in ENDED for i in range(8)), "tasks to a dead peer ended early")
check(healthy.peek(99 * 4096, 4096) == peek(source, 4096), "bytes beside a dead peer")
writer.wait(dead)
took = time.monotonic() - began
check(2.0 <= took < 2.6 + PATIENCE / 4, "tasks with two seconds took", took)
for i in range(8):
    t = writer.task(dead, i)
    check(t.state == S_TIMEOUT and t.error in (TIMEOUT, PEER_UNREACHABLE, RAIL), "a task to a dead peer",
          t.state, t.error)
    check(t.move_ns + t.queue_ns < (2.6 + PATIENCE / 4) * 1e9, "its time", t.queue_ns, t.move_ns)
writer.batch_free(dead)
# those bytes are late: what is written after them stays
fill(source + 8 * MiB, MiB, 0x66)  # the local end was quiet
b.thaw()
fill(source, MiB, 0x52)


def written():
    """Tasks may be refused until the peer is known to live."""
    t = writer.write(source, segment, owner.at, MiB)
    check(t.state == COMPLETED or t.error in (PEER_UNREACHABLE, RAIL, STALE), t.state, t.error)
    return t.state == COMPLETED


await_(written, "writes to the peer that is back")
for i in range(50):
    equal(writer.read(source, segment, owner.at, MiB).state, COMPLETED, "a read of what was written")
    check(peek(source, MiB) == b"\x52" * MiB, "late bytes of a task that has ended landed on newer ones")
check(peek(owner.p, MiB) == b"\x52" * MiB, "late bytes of a task that has ended landed on newer ones")

writer.close()
owner.close()
healthy.close()
finish(a, b, c)

# a task ends while its bytes are lost on the only rail; another rail comes at that moment and is written over; then
# the first one's kernel sends again what was lost
ha, hb = Net("a", "b", rails=2)
a, b = (h.agent("peer.connect_ms=100", "peer.down_ms=15000") for h in (ha, hb))
owner = Owner(b, "owner", MiB)
writer = Client(a.socket, "writer")
source = writer.alloc(MiB)
ha.down(1)
check(a.pings(b), "mcshm ping")


def connections():
    """Local ports of a's connections to b."""
    return {port for port, to in ha.sockets(1) if to == PORT}


control = connections()
segment = writer.open(owner.names)
for i in range(6):
    fill(source, MiB, 0x40)
    equal(writer.write(source, segment, owner.at, MiB).state, COMPLETED, "a first write")
    for port in connections() - control:
        hb.filter(f"-p tcp --sport {port} -j DROP", tools=["iptables"])
    fill(source, 4096, 0x41)
    t = writer.write(source, segment, owner.at, 4096, deadline_us=20000)
    check(t.state == S_TIMEOUT and not t.remote_quiesced, "a write that nobody can have confirmed", t.state)
    ha.up(1)
    fill(source, 8192, 0x42)
    t = writer.write(source, segment, owner.at, 8192)
    equal((t.state, t.error), (COMPLETED, OK), "a write over the other rail")
    hb.heal()
    began = time.monotonic()
    while time.monotonic() - began < 1:
        equal(owner.peek(0, 8192), b"\x42" * 8192, "bytes of a task that had ended, on newer ones")
    ha.down(1)
    await_(lambda: a.rail_states(b, 1) == {"down"}, "the other rail to go")
    await_(lambda: a.rail_states(b, 0) <= {"up", "probation"}, "the first one to be there")
writer.close()
owner.close()
finish(a, b)
