#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""The peer port under attack: nonsense, slowness, masses of connections, tokens that are made up or used twice,
requests for what is nobody's business. Each is counted and refused, memory stays bounded, the others go on."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rawpeer import *  # noqa: E402,F403

net = Net("a", "b", "x")
ha, hb, hx = net
a, b = ha.agent(), hb.agent()
to = (hb.address(), PORT)
good = Owner(b, "good", 4 * MiB)
beside = Traffic(a, good, size=256 * KiB)
beside.progress()
rng = random.Random(11)
MEMORY = (256 if SAN else 24) * MiB
rss = b.rss()


def fine(what):
    """The agent lives, the good peer goes on, memory is what it was."""
    check(b.alive(), what, "killed the agent:", b.text())
    beside.progress(1)
    check(b.rss() < rss + MEMORY, what, "grew the agent by", (b.rss() - rss) >> 20, "MiB")


class Rise:
    """Counters that must have risen at the end of the block."""

    def __init__(self, *names, by=1):
        self.names, self.by = names, by

    def __enter__(self):
        self.before = {n: b.counted(n) for n in self.names}

    def __exit__(self, kind, *_):
        if kind is None:
            for n in self.names:
                await_(lambda: b.counted(n) >= self.before[n] + self.by,
                       lambda: f"{n} to rise by {self.by} from {self.before[n]}; it is {b.counted(n)}")


# ---- before anybody is known

with Rise("peer_malformed", by=20):
    for i in range(30):
        s = Stream(hx, to)
        data = rng.randbytes(rng.choice([8, 64, 1000, 100000]))
        try:
            s.send(data)
        except OSError:
            pass
        check(s.closed(), "nonsense is answered with more than the end")
        s.close()
fine("nonsense")
for what, bytes_, counter in (
        ("another magic", greeting(magic=GREETING + 1), "peer_malformed"),
        ("a later version", greeting(low=99, high=100), "peer_version_refused"),
        ("no version", greeting(low=0, high=0), "peer_malformed"),
        ("another method", greeting(method=PSK), "peer_auth_failures"),
        ("an unknown method", greeting(method=77), "peer_auth_failures"),
        ("the acceptor's role", greeting(role=2), "peer_malformed"),
        ("no incarnation", greeting(incarnation=0), "peer_malformed")):
    with Rise(counter):
        s = Stream(hx, to)
        s.send(bytes_)
        check(s.closed(), what)
        s.close()
fine("bad greetings")

# slow ones, who cost a descriptor for five seconds and no longer, and masses of them
with Rise("peer_greeting_timeouts", by=3):
    slow = [Stream(hx, to) for _ in range(6)]
    slow[1].send(b"\x01")
    slow[2].send(greeting()[:63])
    slow[3].send(greeting())
    slow[4].send(struct.pack("<QHH", DATA_MAGIC, 1, 0))
    began = time.monotonic()
    crowd = []
    for i in range(400 if SAN else 1500):
        try:
            crowd.append(hx.connect(to, 1))
        except OSError:
            break
    fine("a crowd")
    dripping = slow[5]

    def drip():
        """A greeting, a byte at a time: it must be cut before it is complete."""
        for byte in greeting():
            dripping.send(bytes([byte]))
            if dripping.closed(0.2):
                return True
        return False
    check(drip(), "a greeting that drips in was never cut")
    check(time.monotonic() - began < 5 + PATIENCE, "cut after", time.monotonic() - began, "s")
    for s in slow:
        check(s.closed(), "a slow one")
        s.close()
for s in crowd:
    s.close()
fine("masses of connections")
check(await_(lambda: len(os.listdir(f"/proc/{b.process.pid}/fd")) < 200, "descriptors to come back"), "descriptors")
works = RawWire(hx, to)  # and the port answers as before
works.close()

# ---- authenticated, and broken

for what, frame in (("a frame's magic", dict(magic=1)), ("a frame's version", dict(version=2)),
                    ("a frame's number", dict(sequence=9)), ("a frame's length", dict(length=(1 << 20) + 1)),
                    ("a frame of 4 GiB", dict(length=(1 << 32) - 1)), ("a frame's flags", dict(flags=0x8000)),
                    ("no type", dict(type_=0)), ("a status in a request", dict(status=5))):
    with Rise("peer_malformed"):
        w = RawWire(hx, to)
        w.frame(**{"type_": PING, "body": b"", **frame})
        check(w.closed(), what)
        w.close()
w = RawWire(hx, to)
w.tell(777, b"unknown")
w.tell(OPEN, b"\xff" * 100)
w.tell(CLOSE, message(f1=99999999, f2=1, f3=4000000000))
w.tell(CHANGED, message(f1=5, f2=6, f3=7, f4=1))
w.frame(PING, flags=1, id_=12345)  # an answer to nothing
status, m = w.ask(DESCRIBE, message(f1=4095, f2=1))
check(status in (STALE, INVALID_ARGUMENT, NOT_FOUND), "the description of nothing", status)
status, m = w.ask(OPEN, message(f1="n" * 100000))
check(status in (NOT_FOUND, PROTOCOL, INVALID_ARGUMENT), "a name of 100 kB", status)
status, m = w.ask(OPEN, message(f1="good\n\x1b[31m", f2=0))
check(status != OK, "a name with control characters")
status, m = w.ask(RAILS, message(f1=1, f2=1000000))
check(status != OK, "a million tokens")
equal(w.ask(PING)[0], OK, "and it still answers")
secret = Owner(b, "secret", 4096)  # of tenant 0, not public
equal(w.open("secret", tenant=4242)[0], ACCESS, "another tenant's segment")
equal(w.open("nobody")[0], NOT_FOUND, "a segment that is not there")
status, m = w.ask(OPEN, message(f1="good", f3=5))
equal(status, STALE, "another incarnation of a segment")
many = [Client(b.socket, f"many {i}") for i in range(3)]
for i, m in enumerate(many):
    m.publish(f"many {i}")
for i in range(3000):  # the same ones again and again: one export each
    w.tell(OPEN, message(f1=f"many {i % 3}"))
equal(w.ask(PING)[0], OK, "after thousands of requests")
fine("requests without sense")
# one that asks and never reads the answers
deaf = RawWire(hx, to)
deaf.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
deaf.s.settimeout(1)
try:
    for i in range(200000):
        deaf.id += 1
        deaf.frame(OPEN, message(f1="n" * 200), id_=deaf.id, deadline=60000)
except OSError:
    pass
fine("one that never reads")
deaf.close()
half = RawWire(hx, to)
half.frame(OPEN, b"x" * 100, length=1 << 20)  # the rest never comes: looked at in the end
half_since = time.monotonic()

# ---- data connections

target = Owner(b, "target", MiB)
q = target.c.alloc(MiB)
fill(q, MiB, 0x5a)
readable = target.c.buffer(q, 4096, A_READ)
hidden = target.c.alloc(MiB)
fill(hidden, MiB, 0x5b)
status, export, incarnation = w.open("target")
equal(status, OK, "opening as an agent")
where = dict(export=export, incarnation=incarnation)


def data(**more):
    d = RawData(hx, to, w.tokens()[0], **more)
    equal(d.opened(), OK, "a data connection")
    return d


with Rise("data_refused", by=4):
    for what, token, more in (("a token that was made up", bytes(32), {}),
                              ("another version", w.tokens()[0], dict(version=9)),
                              ("another size", w.tokens()[0], dict(size=65)),
                              ("no connection id", w.tokens()[0], dict(conn=1 << 64))):
        more = {k: v for k, v in more.items()}
        if more.get("conn"):  # packed as zero
            d = Stream(hx, to)
            d.send(struct.pack("<QHHIQQ32s", DATA_MAGIC, 1, 0, 64, 0, 1, token))
        else:
            d = RawData(hx, to, token, **more)
        answer = d.take(32)
        check(answer is None or struct.unpack("<QHHI", answer[:16])[2] != OK, what, "was accepted")
        check(d.closed(), what)
        d.close()
with Rise("data_refused"):
    token = w.tokens()[0]
    once, twice = RawData(hx, to, token), None
    equal(once.opened(), OK, "a token's first use")
    twice = RawData(hx, to, token)
    check(twice.opened() not in (OK,), "a token was good twice")
    check(twice.closed(), "a token's second use")
    once.close()

d = data()
equal(d.request(D_WRITE, b"\x11" * 4096, address=target.at, **where)[:2], (D_DONE, OK), "a write")
equal(target.peek(0, 4096), b"\x11" * 4096, "its bytes")
equal(d.request(D_READ, address=target.at, length=4096, **where), (D_DATA, OK, b"\x11" * 4096), "a read")
equal(d.request(D_PING)[0], D_PONG, "a ping")
equal(d.request(D_KILL, address=12345)[0], D_KILLED, "killing what is not there")
bad = [("at 0", dict(address=0, **where)), ("at the library's code", dict(address=C.cast(libc.printf, C.c_void_p).value,
                                                                          **where)),
       ("over the end", dict(address=target.at + MiB - 1, **where)),
       ("that wraps", dict(address=(1 << 64) - 8, **where)),
       ("of memory that is not published", dict(address=hidden, **where)),
       ("of a stale incarnation", dict(address=target.at, export=export, incarnation=incarnation - 1)),
       ("of no incarnation", dict(address=target.at, export=export, incarnation=0)),
       ("of an export that is not there", dict(address=target.at, export=export + 1, incarnation=incarnation)),
       ("of an export out of range", dict(address=target.at, export=4096, incarnation=incarnation)),
       ("of an export far out of range", dict(address=target.at, export=(1 << 32) - 1, incarnation=incarnation))]
with Rise("rejected_remote_ops", by=2 * len(bad) + 1):
    for what, more in bad:
        type_, status, payload = d.request(D_READ, length=16, **more)
        check(status in (BAD_RANGE, ACCESS, STALE, INVALID_HANDLE, REVOKED) and payload == b"", "a read", what, status)
        type_, status, payload = d.request(D_WRITE, b"\xff" * 16, **more)
        check(status in (BAD_RANGE, ACCESS, STALE, INVALID_HANDLE, REVOKED), "a write", what, status)
    equal(d.request(D_WRITE, b"\xff" * 16, address=readable, **where)[1], ACCESS, "a write to read-only memory")
equal((peek(q, MiB), peek(hidden, MiB)), (b"\x5a" * MiB, b"\x5b" * MiB), "bytes that are nobody's business")
equal(target.peek(4096), b"\0" * (MiB - 4096), "bytes beside")
equal(d.request(D_READ, address=target.at, length=4096, **where), (D_DATA, OK, b"\x11" * 4096), "the same connection")

# a write that says itself that it is no good; one whose checksum is wrong
d.send(d.header(D_WRITE, address=target.at, length=4096, **where) + bytes(4096) + d.trailer(status=CANCELED))
check(d.answer()[1] != OK, "a write whose end says that it was given up")
d.send(d.header(D_WRITE, address=target.at, length=4096, flags=1, **where) + bytes(4096) + d.trailer(crc=1))
equal(d.answer()[1], CHECKSUM, "a write with a wrong checksum")
good_crc = crc32c(b"\x12" * 4096)
d.send(d.header(D_WRITE, address=target.at, length=4096, flags=1, **where) + b"\x12" * 4096 + d.trailer(crc=good_crc))
equal(d.answer()[1], OK, "a write with the right one")
d.close()

# frames that end their connection, and only theirs
for what, make in (
        ("a length of 2^63", lambda d: d.header(D_WRITE, target.at, 1 << 63, **where)),
        ("a length of 2^32", lambda d: d.header(D_WRITE, target.at, 1 << 32, **where)),
        ("one byte too many", lambda d: d.header(D_WRITE, target.at, (16 << 20) + 1, **where)),
        ("a read of 2^63", lambda d: d.header(D_READ, target.at, 1 << 63, **where)),
        ("another magic", lambda d: d.header(D_READ, target.at, 16, magic=1, **where)),
        ("an unknown type", lambda d: d.header(55, target.at, 16, **where)),
        ("an answer to nothing", lambda d: d.header(D_DONE, **where)),
        ("data for nothing", lambda d: d.header(D_DATA, length=64, **where) + bytes(80)),
        ("a wrong check", lambda d: d.header(D_READ, target.at, 16, check_=0, **where)),
        ("a name longer than all", lambda d: d.header(D_NOTIFY, 0, 8, name_length=9, **where)),
        ("a notification too long", lambda d: d.header(D_NOTIFY, 0, 1 << 20, name_length=1, **where)),
        ("a trailer of nothing", lambda d: d.header(D_WRITE, target.at, 16, **where) + bytes(32)),
        ("an id that was used", lambda d: d.header(D_READ, target.at, 16, id_=5, **where) +
         d.header(D_READ, target.at, 16, id_=5, **where))):
    with Rise("tcp_protocol_errors"):
        e = data()
        e.send(make(e))
        check(e.closed(), what)
        e.close()
fine("broken frames")

# one that asks for much and reads nothing
e = data()
e.s.settimeout(1)
try:
    for i in range(20000):
        e.send(e.header(D_READ, target.at, MiB, **where))
except OSError:
    pass
fine("one that reads none of its answers")
e.close()
# one that announces and never sends, dies in the middle, again and again
for i in range(50):
    e = data()
    e.send(e.header(D_WRITE, target.at, MiB, **where) + bytes(rng.randrange(1, 5000)))
    e.close()
fine("writes that stop in the middle")
# killing connections is for their own side only: a made-up id takes nobody's
mine = data()
other = RawWire(hx, to)
equal(other.open("target")[0], OK, "another agent")
f = RawData(hx, to, other.tokens(route=99)[0])
equal(f.opened(), OK, "its data connection")
equal(f.request(D_KILL, address=mine.conn)[0], D_KILLED, "killing another agent's connection")
equal(mine.request(D_PING)[0], D_PONG, "which lives")
mate = data()
equal(mate.request(D_KILL, address=mine.conn)[0], D_KILLED, "killing one of one's own")
check(mine.closed(), "which is dead")
for s in (mine, other, f, mate):
    s.close()

check(half.closed(15 + PATIENCE), "a frame whose rest never came")
check(time.monotonic() - half_since < 15 + PATIENCE, "cut after", time.monotonic() - half_since, "s")
half.close()
w.close()
beside.progress()
beside.finish()
equal(sum(beside.failures.values()), 0, "failed tasks of the good peer")
fine_lines = len(b.text().splitlines())
check(fine_lines < 300, "the log is too talkative:", fine_lines, "lines")
for owner in (good, secret, target):
    owner.close()
for m in many:
    m.close()
finish(a, b)
