#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that misuse the control socket: floods of requests, silence, many connections, and what they pass along
with it. The agent answers the others meanwhile."""
import os
import random
import select
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hostile import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("session.max=12", "session.max_allocs=1000", "task.deadline_ms=1000")
others = Bystanders(agent, 2)
good = Client(agent.socket, "good", queue=dict(args_size=2 * MiB))
sessions = 4  # good, bystanders, who asks
await_(lambda: agent.status()["sessions"] == sessions, "the first sessions")
fds = agent.fds()


def all_well(what):
    """The control thread answers, and work goes on."""
    good.free(good.alloc(4096))
    others.progress(what)


def settled():
    await_(lambda: agent.status()["sessions"] == sessions, "sessions to go: " + str(agent.status()["sessions"]))
    await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")


# a thousand requests at once, of every kind that there is: each gets its answer, in order
def request(rng, k):
    return rng.choice([(2, struct.pack("<IIIIQ", 2, 4, 1, 0, 64)), (3, struct.pack("<II", rng.randrange(4), 0)),
                       (4, struct.pack("<QQ32s", rng.randrange(1, 9999), rng.choice([0, 64, 4096, 3]), b"")),
                       (5, struct.pack("<IIQ", rng.randrange(1 << 32), 0, 0)), (6, struct.pack("<Q", 4096)),
                       (7, struct.pack("<II", rng.randrange(1 << 32), 0)), (8, struct.pack("<II256s", k & 3, 0, b"x%d" % k)),
                       (9, b""), (10, struct.pack("<IIQQ", rng.randrange(1 << 32), 3, 0, 64)),
                       (11, struct.pack("<IIQQ", rng.randrange(1 << 32), 3, 0, 64)),
                       (12, struct.pack("<IIQQ", rng.randrange(1 << 32), 3, 0, 64)),
                       (13, struct.pack("<256s", b"bystander-0")), (14, struct.pack("<II", rng.randrange(1 << 32), 0)),
                       (15, struct.pack("<II", rng.randrange(1 << 32), 0)),
                       (16, struct.pack("<IIQQ", rng.randrange(1 << 32), 1, 0, 64)), (17, struct.pack("<II", k, 0)),
                       (18, struct.pack("<II", rng.randrange(8), 0)),
                       (19, struct.pack("<256sII", b"127.0.0.1:1", 100, 0))])


rng = random.Random(3)
r = Raw(agent.socket)
r.hello()
wanted = [request(rng, k) for k in range(1000)]


def send_all():
    for k, (type_, body) in enumerate(wanted):
        r.send(type_, body, id_=k)


sender = threading.Thread(target=send_all)
sender.start()
for k, (type_, _) in enumerate(wanted):
    data, passed, _, _ = socket.recv_fds(r.s, 16384, 4)
    check(data, "the agent has hung up at request", k, type_)
    for fd in passed:
        os.close(fd)
    magic, version, got, length, id_, status, zero = struct.unpack("<IHHIIII", data[:24])
    equal((magic, got, length, id_, zero), (Raw.MAGIC, type_, len(data), k, 0), "the answer")
    check(status < 64, "status", status)
sender.join()
all_well("a thousand requests")
r.s.close()

# who does not read its answers is cut off, and said so; nobody waits for it
before = agent.counter("sessions_thrown_out")
r = Raw(agent.socket)
r.hello()
r.s.setblocking(False)
sent = 0
try:
    while True:
        try:
            r.send(18, struct.pack("<II", 1, 0))
            sent += 1
            check(sent < 1000000, "the agent takes requests without end")
        except BlockingIOError:  # the agent is behind
            all_well("a client that does not read its answers")
except (BrokenPipeError, ConnectionResetError):
    pass
equal(agent.counter("sessions_thrown_out"), before + 1, "thrown out: does not take its replies")
r.s.close()
all_well("a client that did not read its answers")

# allocations cost the agent memory of its own: bounded by number as well
r = Raw(agent.socket)
r.hello()
extents = []
for k in range(1001):
    r.send(4, struct.pack("<QQ32s", 64, 0, b""))
    m = r.recv()
    for fd in m[3]:
        os.close(fd)
    if m[1] != OK:
        break
    extents.append(struct.unpack_from("<IIQ", m[2]))
equal((k, m[1]), (1000, LIMIT), "allocations of one session")
check(b"[session] max_allocs is 1000" in m[2], m[2])
equal([s["allocations"] for s in agent.ask("ls", "sessions")["sessions"] if s["name"] == "raw"], [1000], "as shown")
extent, _, offset = extents[500]
r.send(5, struct.pack("<IIQ", extent, 0, offset))
equal(r.recv()[1], OK, "free")
r.send(4, struct.pack("<QQ32s", 64, 0, b""))
equal(r.recv()[1], OK, "one more, after one was freed")
r.s.close()
settled()

# connections that never greet: they take no place of a session, and give way to who greets
mute = [Raw(agent.socket) for _ in range(100)]
late = Client(agent.socket, "late")
late.free(late.alloc(4096))
all_well("a hundred connections that never greet")
check(sum(bool(select.select([r.s], [], [], 0)[0]) for r in mute) >= 20, "the oldest of them have been cut")
late.close()
more = [Client(agent.socket, f"c{i}") for i in range(12 - sessions + 1)]  # who asks is not there all the time
check("[session] max is 12" in refused(LIMIT, Client, agent.socket), "the limit is named")
for c in more:
    c.close()
for r in mute:
    r.s.close()
check(agent.counter("sessions_refused") >= 20, "connections refused are counted")
settled()

# half-closed, in both directions, with requests under way
for how in (socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR):
    r = Raw(agent.socket)
    r.hello()
    for _ in range(20):
        r.send(4, struct.pack("<QQ32s", 1 << 20, 0, b""))
    r.s.shutdown(how)
    all_well(f"half closed: {how}")
    r.s.close()
settled()

# a receiver that stands still with all it has: who sends to it gets its tasks back by their deadlines, and the
# sender's other tasks pass by
def hold_everything(pipe):
    e = Evil(agent)
    e.ask(8, struct.pack("<II256s", 0, 0, b"stopped"))
    e.word(e.bell_at + 256, 1)  # caller_active
    pipe.send("ready")
    pipe.recv()


stopped = Child(hold_everything)
stopped.pipe.recv()
stopped.freeze()
segment = good.open("stopped")
b = good.batch(200)
ends = {}
for k in range(200):
    good.notify(b, segment, b"n" * 200, b"m" * 4000)
t0 = good.alloc(8192)
good.publish("good")
at = good.buffer(t0, 4096)
own = good.open("good")
for _ in range(50):
    equal(good.write(t0 + 4096, own, at, 4096).state, COMPLETED, "a task behind those for the stopped receiver")
good.wait(b)
for k in range(200):
    t = good.task(b, k)
    ends[t.state, t.error] = ends.get((t.state, t.error), 0) + 1
good.batch_free(b)
equal(set(ends), {(COMPLETED, OK), (S_TIMEOUT, INBOX_FULL)}, f"notifications to a stopped receiver: {ends}")
check(agent.counter("inbox_full") > 0, "full inboxes are counted")
good.close_segment(segment)
good.free(t0)
all_well("a stopped receiver")
stopped.kill()
settled()

others.finish()
good.close()
agent.finish()
