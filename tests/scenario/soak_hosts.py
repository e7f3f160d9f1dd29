#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three hosts and everything that can happen to them, at random, for a while: soak_hosts.py [MINUTES].

Workers write, read back, cancel, run into deadlines; meanwhile rails are cut, agents frozen and killed, workers
killed, memory revoked. Every task must end in its time, every byte that a completed task wrote must be there and
stay there, what was revoked must not change. The seed is printed (SEED=... repeats the choices, not the timing).
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

MINUTES = float(sys.argv[1]) if len(sys.argv) > 1 else 10
RAILS, SLOTS, SLOT = 2, 6, 512 * KiB
AREA = SLOTS * SLOT     # of an owner, one a worker
GUARD = 64 * KiB        # behind each area, never published
DEADLINE = 8            # seconds
CAUSES = (CANCELED, TIMEOUT, REVOKED, BAD_RANGE, STALE, PEER_UNREACHABLE, RAIL, NOT_FOUND, LOCAL_RESOURCE)
AGAIN = (NOT_FOUND, PEER_UNREACHABLE, STALE, TIMEOUT, LOCAL_RESOURCE, AUTH)
seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
print(f"seed {seed}, {MINUTES:g} minutes", flush=True)
rng = random.Random(seed)
net = Net("a", "b", "c", rails=RAILS)
psk = psk_file(os.environ.get("TMPDIR", "/tmp"), f"psk{os.getpid()}")
atexit.register(os.unlink, psk)
agents = [h.agent("peer.auth=psk", "peer.psk_file=" + psk, "peer.allow_insecure=no", "peer.ping_ms=300",
                  "peer.dead_ms=2000", f"task.deadline_ms={DEADLINE * 1000}") for h in net]
PAIRS = [(i, j) for i in range(3) for j in range(3) if i != j]


class Target:
    """A host's owner with an area for each worker that writes there."""

    def __init__(self, index):
        self.index = index
        self.begin()

    def begin(self):
        agent = agents[self.index]
        self.c = Client(agent.socket, "owner")
        self.workers = [k for k, pair in enumerate(PAIRS) if pair[1] == self.index]
        size = len(self.workers) * (AREA + GUARD)
        self.p = self.c.alloc(size)
        fill(self.p, size, 0xEE)
        self.c.publish("owner")
        self.at = {k: self.c.buffer(self.area(k), AREA) for k in self.workers}

    def area(self, k):
        return self.p + self.workers.index(k) * (AREA + GUARD)

    def check_guards(self):
        for k in self.workers:
            equal(peek(self.area(k) + AREA, GUARD), b"\xee" * GUARD, "bytes behind an area")

    def revoke(self, k):
        """Taken away, looked at for a moment, given back."""
        try:
            self.c.revoke(self.area(k), AREA)
        except McshmError as e:
            # the same agent may just be frozen or dead; nothing was promised then
            equal(e.status, AGENT_DOWN, e)
            return
        fill(self.area(k), AREA, 0x55)
        pause(0.3)
        got = peek(self.area(k), AREA)
        check(got == b"\x55" * AREA, "a revoked area has changed:", collections.Counter(got))
        self.at[k] = self.c.buffer(self.area(k), AREA)


def pause(seconds):
    end = time.monotonic() + seconds
    await_(lambda: time.monotonic() > end, "time", seconds + 1)


class Worker:
    def __init__(self, k, life):
        self.k, self.life, self.rounds = k, life, 0
        self.rng = random.Random(f"{seed} {k} {life}")
        self.history = collections.deque(maxlen=24)

    def data(self, size):
        """Random bytes that tell, every 64 of them, who wrote them and when."""
        self.rounds += 1
        chunk = bytearray(Chunk(self.rng, size).bytes)
        for i, byte in enumerate(struct.pack("<4sBHI", b"soak", self.k, self.life, self.rounds)):
            n = len(chunk[i::64])
            chunk[i::64] = bytes([byte]) * n
        return bytes(chunk)

    def differs(self, slot, got, wanted):
        """Says where bytes are others than were written, and whose they are. The owner's own after a revocation
        are no error."""
        self.known.pop(slot)
        runs = []
        for at in range(0, len(wanted), 64):
            if got[at:at + 64] == wanted[at:at + 64]:
                continue
            if got[at:at + 4] == b"soak" and len(got) - at >= 11:
                whose = "worker %d, life %d, round %d" % struct.unpack("<BHI", got[at + 4:at + 11])
            else:
                whose = got[at:at + 4].hex()
            if runs and runs[-1][1] == at and runs[-1][2] == whose:
                runs[-1][1] = at + 64
            else:
                runs.append([at, at + 64, whose])
        if {whose for _, _, whose in runs} != {"55555555"}:
            print(*self.history, sep="\n")
            raise AssertionError(f"{time.monotonic():.3f}: worker {self.k}, life {self.life}, round {self.rounds}: "
                                 f"slot {slot}, bytes of round {struct.unpack('<I', wanted[7:11])[0]} are others: "
                                 f"{runs[:8]}")

    def run(self, pipe):
        i, j = PAIRS[self.k]
        self.pipe = pipe
        try:
            self.c = Client(agents[i].socket, f"worker {self.k}")
            self.out, self.back = self.c.alloc(2 * SLOT), self.c.alloc(SLOT)
            self.name, self.at = agents[j].names("owner"), targets[j].at[self.k]
            self.segment, self.known = None, {}
            pipe.send("at work")
            pipe.s.setblocking(False)
            while True:
                self.round()
        except McshmError as e:
            if e.status != AGENT_DOWN:
                raise
            pipe.s.setblocking(True)
            with contextlib.suppress(OSError):  # the test itself may be over
                pipe.send("agent down")

    def reopen(self):
        self.known = {}
        if self.segment is not None:
            self.c.close_segment(self.segment)
            self.segment = None
        while self.segment is None:
            try:
                self.segment = self.c.open(self.name)
            except McshmError as e:
                if e.status not in AGAIN:
                    raise
                pause(0.05)

    def wait(self, b, n, request):
        """The tasks of a batch; all end in their time."""
        began = time.monotonic()
        self.c.wait(b, DEADLINE + 2 * PATIENCE)
        # a frozen agent of this host's answers when it is thawed
        check(time.monotonic() - began < DEADLINE + PATIENCE, "tasks took", time.monotonic() - began, "s")
        tasks = [self.c.task(b, i) for i in range(n)]
        self.c.batch_free(b)
        for t in tasks:
            self.history.append(
                f"{time.monotonic():.3f}: round {self.rounds}, {('', 'READ', 'WRITE')[request.opcode]} at "
                f"{request.remote_address - self.at:#x} of {request.length}: state {t.state}, error {t.error}, "
                f"{'' if t.remote_quiesced else 'not '}quiesced, {t.queue_ns / 1e6:.1f} + {t.move_ns / 1e6:.1f} ms")
            check(t.state == COMPLETED or t.state in (INVALID, S_CANCELED, S_TIMEOUT, FAILED) and t.error in CAUSES,
                  "a task ended", t.state, t.error)
        return tasks

    def one(self, request, **more):
        b = self.c.batch()
        if "pieces" in more:
            self.c.submit_list(b, request, more["pieces"])
        else:
            self.c.submit(b, request)
        return self.wait(b, 1, request)[0]

    def verify(self, slot):
        data = self.known.get(slot)
        if data is None:
            return
        fill(self.back, SLOT, 0)
        t = self.one(self.c.request(READ, self.back, self.segment, self.at + slot * SLOT, len(data)))
        if t.state == COMPLETED:
            if peek(self.back, len(data)) != data:
                self.differs(slot, peek(self.back, len(data)), data)
        self.met(t)

    def met(self, t):
        if t.error in (STALE, REVOKED, NOT_FOUND, BAD_RANGE):
            self.reopen()

    def round(self):
        if self.segment is None:
            self.reopen()
        r = self.rng
        slot = r.randrange(SLOTS)
        at = self.at + slot * SLOT
        size = r.choice([11, 64, 4096, 65536, SLOT, r.randrange(11, SLOT)])
        data = self.data(size)
        kind = r.randrange(8)
        if kind == 0:
            self.verify(r.randrange(SLOTS))
            return
        self.known.pop(slot, None)
        put(self.out, data)
        if kind == 1:  # canceled, and the source is other things at once
            b = self.c.batch(2)
            q = self.c.request(WRITE, self.out, self.segment, at, size, priority=r.randrange(3))
            self.c.submit(b, q, q)
            for i in range(2):
                self.c.cancel(b, i)
            self.wait(b, 2, q)
            fill(self.out, size, 0xAB)
            put(self.out + SLOT, data)
            t = self.one(self.c.request(WRITE, self.out + SLOT, self.segment, at, size))
        elif kind == 2:  # a deadline that may be too short
            self.one(self.c.request(WRITE, self.out, self.segment, at, size, deadline_us=r.randrange(1, 20000)))
            fill(self.out, size, 0xAC)
            put(self.out + SLOT, data)
            t = self.one(self.c.request(WRITE, self.out + SLOT, self.segment, at, size))
        elif kind == 3 and size > 64:
            step = max(size // 30, 1)
            pieces = [(o, o, min(step, size - o)) for o in range(0, size, step)]
            r.shuffle(pieces)
            t = self.one(self.c.request(WRITE, self.out, self.segment, at, 0), pieces=pieces)
        else:
            t = self.one(self.c.request(WRITE, self.out, self.segment, at, size, priority=r.randrange(3)))
        if t.state == COMPLETED:
            equal(t.bytes, size, "bytes of a completed task")
            self.known[slot] = data
            self.verify(slot)
            with contextlib.suppress(OSError):  # nobody may be listening just now
                self.pipe.s.send(b"1")
        else:
            self.met(t)


targets = [Target(i) for i in range(3)]
lives = [0] * len(PAIRS)


def employ(k):
    lives[k] += 1
    child = Child(Worker(k, lives[k]).run)
    child.k = k
    return child


workers = [employ(k) for k in range(len(PAIRS))]
progress = [0] * len(PAIRS)


def attend(seconds, strict=False):
    """Listens to the workers for a while; those whose agent died get a successor."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for k, w in enumerate(workers):
            w.pipe.s.setblocking(False)
            try:
                word = w.pipe.s.recv(64)
            except BlockingIOError:
                continue
            if word == b"1":
                progress[k] += 1
            elif word == b'["at work"]':
                pass
            elif word == b'["agent down"]' and not strict:
                w.join()
                workers[k] = employ(k)
            else:
                print(*events, sep="\n")
                raise AssertionError(f"worker {k} ended: {word} {os.waitpid(w.pid, os.WNOHANG)}")
        threading.Event().wait(0.01)


def restart(i):
    agents[i].kill()
    targets[i].c.close()
    agents[i].start()
    targets[i].begin()
    # those who work there know the old addresses; the others' agent is gone
    for k, (frm, to) in enumerate(PAIRS):
        if i in (frm, to):
            workers[k].kill()
            workers[k] = employ(k)


def heal():
    for h in net:
        h.heal()
        for r in range(RAILS):
            h.up(r)
            h.throttle(r, None)


happened, events = collections.Counter(), collections.deque(maxlen=30)
end = time.monotonic() + MINUTES * 60
while time.monotonic() < end:
    what = rng.choice(os.environ["EVENTS"].split(",") if "EVENTS" in os.environ else [
        "down", "down", "drop", "drop", "one way", "reset", "lose", "throttle", "freeze", "kill agent",
                       "kill worker", "revoke", "revoke", "quiet"])
    h, r, long = rng.choice(net.hosts), rng.randrange(RAILS), rng.uniform(0.2, 3)
    i = h.number - 1
    happened[what] += 1
    events.append(f"{time.monotonic():.3f}: {what}, host {h.name}, rail {r}, {long:.1f} s")
    if what == "down":
        h.down(r)
        attend(long)
    elif what == "drop":
        for g in net if rng.random() < 0.5 else [h]:
            g.drop(r)
        attend(long)
    elif what == "one way":
        h.filter(f"-s {rng.choice(net.hosts).address(r)} -j DROP", tools=["iptables"])
        attend(long)
    elif what == "reset":
        h.reset(r)
        attend(long)
    elif what == "lose":
        h.lose(0.02)
        attend(long)
    elif what == "throttle":
        h.throttle(r, "50mbit")
        attend(long)
    elif what == "freeze":
        agents[i].freeze()
        attend(long)
        agents[i].thaw()
    elif what == "kill agent":
        restart(i)
        attend(0.5)
    elif what == "kill worker":
        k = rng.randrange(len(workers))
        workers[k].kill()
        workers[k] = employ(k)
    elif what == "revoke":
        k = rng.randrange(len(PAIRS))
        targets[PAIRS[k][1]].revoke(k)
    if rng.random() < 0.7:
        heal()
        events.append(f"{time.monotonic():.3f}: healed")
    attend(rng.uniform(0, 1))
    for t in targets:
        t.check_guards()
    for a in agents:
        check(a.alive(), "an agent died:", a.text())
heal()
before = list(progress)
stop = time.monotonic() + 4 * PATIENCE
while min(n - m for n, m in zip(progress, before)) < 5:
    check(time.monotonic() < stop, "no progress after all is well again:", progress, before,
          [a.rails() for a in agents])
    attend(0.2)
for w in workers:
    w.kill()
for t in targets:
    t.check_guards()
    t.c.close()
print(dict(happened), "rounds of each worker:", progress)
finish(*agents)
print("passed")
