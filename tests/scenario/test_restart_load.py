#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The agent is killed again and again under a load of all kinds of tasks: each of them ends COMPLETED
or FAILED with AGENT_RESTARTED, each byte is what the completed ones made it, and nothing is left."""
import hashlib
import os
import random
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

KiB = 1 << 10
KILLS = int(os.environ.get("KILLS", 4 if SAN else 8))
SEED = int(os.environ.get("SEED", 1))
AREA = 512 * KiB  # of the owner's memory, for one thread of one worker
GAP = 4096        # between two of them, which nobody may touch
STEP = AREA + GAP
WORKERS = 3
THREADS = 2
AREAS = WORKERS * THREADS
SIZE = AREAS * STEP + GAP
BULK = 2 << 20   # behind them, for tasks of which some are always in hand

cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])  # two engines, where that goes
agent = Supervised("session.max=64", "agent.barrier_ms=10000", "engine.cores=" + cores)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def owner_main(pipe):
    """Publishes and then makes no call at all until the end."""
    c = Client(agent.socket, "owner")
    p = c.alloc(SIZE + BULK)
    fill(p, SIZE + BULK, 0xEE)
    c.publish("target")
    pipe.send(c.buffer(p, SIZE, RW | A_MAP_WRITE), c.buffer(p + SIZE, BULK))
    pipe.recv()
    pipe.send(c.info().restarts)
    equal(peek(p + SIZE, BULK), bytes(range(256)) * (BULK // 256), "what the bulk writer wrote, again and again")
    for i in range(AREAS + 1):
        equal(peek(p + i * STEP, GAP), bytes([0xEE]) * GAP, f"the gap before area {i}")
    for i in range(AREAS):
        pipe.recv()
        pipe.send(digest(peek(p + i * STEP + GAP, AREA)))
    pipe.recv()
    c.close()


def receiver_main(pipe):
    """Sits in notify_recv() all the time; tells which notes came."""
    c = Client(agent.socket, "receiver")
    c.publish("inbox")
    pipe.send("ready")
    came = {}
    while True:
        name, message = c.recv(3 * PATIENCE)
        if name == b"end":
            break
        worker, number = struct.unpack("<II", message)
        equal(name, b"note %d" % worker, "a notification's name")
        came.setdefault(worker, []).append(number)
    for worker in range(AREAS):
        pipe.send(sorted(came.get(worker, [])))
        pipe.recv()
    c.close()


class Thread:
    """One queue with its area of the owner's memory, and what should be there."""

    def __init__(self, c, index, target, inbox, address):
        self.c, self.index = c, index
        self.target, self.inbox = target, inbox
        self.base = address + index * STEP + GAP
        self.rng = random.Random(SEED * 1000 + index)
        self.model = bytearray(b"\xEE" * AREA)
        self.notes = 0
        self.arrived = []  # notes whose task completed
        self.lost = self.steps = 0
        self.queue = C.c_void_p()
        qo = QueueOptions(size=C.sizeof(QueueOptions), depth=64)
        self.c.do("queue_open", c.c, C.byref(qo), C.byref(self.queue))
        self.memory = c.alloc(2 * AREA)
        self.private = C.create_string_buffer(AREA)
        c.register(C.addressof(self.private), AREA)
        self.failure = None

    # a view of the client with this thread's queue
    def client(self):
        mine = object.__new__(Client)
        mine.c, mine.q = self.c.c, self.queue
        return mine

    def all_of(self, make):
        """Submits what make() builds in one batch until all of it has completed."""
        c = self.client()
        while True:
            b = c.batch(8)
            n = make(c, b)
            c.wait(b, 3 * PATIENCE)
            ends = [(t.state, t.error) for t in (c.task(b, i) for i in range(n))]
            c.batch_free(b)
            for end in ends:
                check(end in ((COMPLETED, OK), (FAILED, AGENT_RESTARTED)), "a task ended as", end)
            bad = sum(state == FAILED for state, _ in ends)
            self.lost += bad
            if bad == 0:
                return
            check(c.info().restarts > 0, "lost without a restart")

    def content(self, n):
        return self.rng.randbytes(n)

    def range(self, most):
        n = self.rng.randint(1, most)
        return self.rng.randint(0, AREA - n), n

    def one(self, op):
        # some of more than one slice, which the agent has in its hands for longer
        at, n = self.range(500 * KiB if self.rng.random() < 0.2 else 16 * KiB)
        local = C.addressof(self.private) if self.rng.random() < 0.3 else self.memory
        if op == WRITE:
            data = self.content(n)
            C.memmove(local + at, data, n)
        else:
            fill(local + at, n, 0x11)

        def make(c, b):
            c.submit(b, c.request(op, local + at, self.target, self.base + at, n))
            return 1
        self.all_of(make)
        if op == WRITE:
            self.model[at:at + n] = data
        else:
            equal(peek(local + at, n), bytes(self.model[at:at + n]), "what a READ brought")

    def write_list(self):
        piece, pieces, at = 128, [], 0
        while at + piece <= AREA and len(pieces) < 100:
            pieces.append((len(pieces) * 160, at, piece))
            at += piece * self.rng.randint(1, 4)
        data = [self.content(piece) for _ in pieces]
        for (local, _, _), d in zip(pieces, data):
            C.memmove(self.memory + local, d, piece)

        def make(c, b):
            c.submit_list(b, c.request(WRITE, self.memory, self.target, self.base, 0), pieces)
            return 1
        self.all_of(make)
        for (_, remote, _), d in zip(pieces, data):
            self.model[remote:remote + piece] = d

    def stride(self):
        count, block = self.rng.randint(2, 64), 256
        data = [self.content(block) for _ in range(count)]
        for i, d in enumerate(data):
            C.memmove(self.memory + i * block, d, block)

        def make(c, b):
            c.submit_stride(b, c.request(WRITE, self.memory, self.target, self.base, 0), count, block, block, 512)
            return 1
        self.all_of(make)
        for i, d in enumerate(data):
            self.model[i * 512:i * 512 + block] = d

    def fence(self):
        """Four tasks onto one place, each fenced: the last one stands."""
        at, n = self.range(8 * KiB)
        data = [self.content(n) for _ in range(4)]
        for i, d in enumerate(data):
            C.memmove(self.memory + i * 8 * KiB, d, n)

        def make(c, b):
            c.submit(b, *[c.request(WRITE, self.memory + i * 8 * KiB, self.target, self.base + at, n,
                                    flags=FENCE) for i in range(4)])
            return 4
        self.all_of(make)
        self.model[at:at + n] = data[3]

    def notify(self):
        note_number = [0]

        def make(c, b):
            self.notes += 1
            note_number[0] = self.notes
            c.notify(b, self.inbox, b"note %d" % self.index, struct.pack("<II", self.index, self.notes))
            return 1
        self.all_of(make)
        self.arrived.append(note_number[0])

    def step(self):
        kind = self.rng.random()
        if kind < 0.35:
            self.one(WRITE)
        elif kind < 0.65:
            self.one(READ)
        elif kind < 0.75:
            self.write_list()
        elif kind < 0.85:
            self.stride()
        elif kind < 0.95:
            self.fence()
        else:
            self.notify()
        self.steps += 1

    def run(self, stop):
        try:
            while not stop.is_set():
                self.step()
        except BaseException as e:
            traceback.print_exc()
            self.failure = e


def worker_main(pipe, index, address, caller_max):
    c = Client(agent.socket, f"worker {index}", caller_max=caller_max)
    target, inbox = c.open("target"), c.open("inbox")
    threads = [Thread(c, index * THREADS + i, target, inbox, address) for i in range(THREADS)]
    stop = threading.Event()
    running = [threading.Thread(target=t.run, args=(stop,)) for t in threads]
    for t in running:
        t.start()
    pipe.send("ready")
    while pipe.recv()[0] == "more":  # each thread a little further, or the reason why not
        marks = [t.steps for t in threads]
        await_(lambda: all(t.steps > m + 3 or t.failure for t, m in zip(threads, marks)),
               lambda: f"worker {index} to get on: {[t.steps for t in threads]}", 3 * PATIENCE)
        check(not any(t.failure for t in threads), "a thread failed")
        if index == 0:  # a control call now and then, which may meet a dead agent
            c.free(c.alloc(4096))
        pipe.send([t.steps for t in threads])
    stop.set()
    for t in running:
        t.join()
    check(not any(t.failure for t in threads), "a thread failed")
    for t in threads:  # and once more all of it
        fill(t.memory, AREA, 0)
        equal(t.client().read(t.memory, target, t.base, AREA).state, COMPLETED, "the last READ")
        equal(peek(t.memory, AREA), bytes(t.model), "the whole area in the end")
        pipe.send(c.info().restarts, t.lost, t.steps, t.arrived, t.notes, digest(t.model))
        pipe.recv()
    for t in threads:
        c.unregister(C.addressof(t.private))
        equal(lib.mcshm_queue_close(t.queue), OK, "closing a queue")
    c.close()


def bulk_main(pipe):
    """Keeps large copies in flight, so that there is always one in the agent's hands."""
    c = Client(agent.socket, "bulk")
    a = c.alloc(BULK)
    C.memmove(a, bytes(range(256)) * (BULK // 256), BULK)
    target = c.open("target")
    pipe.send("ready")
    lost = rounds = 0
    while True:
        b = c.batch(32)
        c.submit(b, *[c.request(WRITE, a, target, bulk, BULK, priority=BACKGROUND) for _ in range(32)])
        if rounds % 2 == 0:
            c.wait(b, 3 * PATIENCE)
        else:  # by polls alone
            await_(lambda: lib.mcshm_batch_poll(c.q, b, None) == OK, "the batch to end", 3 * PATIENCE)
        ends = [(t.state, t.error) for t in (c.task(b, i) for i in range(32))]
        check(set(ends) <= {(COMPLETED, OK), (FAILED, AGENT_RESTARTED)}, "how bulk tasks ended:", set(ends))
        c.batch_free(b)
        lost += sum(state == FAILED for state, _ in ends)
        rounds += 1
        pipe.s.setblocking(False)
        try:
            ask = pipe.recv()[0]
        except BlockingIOError:
            ask = None
        pipe.s.settimeout(3 * PATIENCE)
        if ask == "stop":
            break
        if ask == "lost?":
            pipe.send(lost)
    while c.write(a, target, bulk, BULK).state != COMPLETED:
        pass
    pipe.send(lost, rounds)
    c.close()


owner = Child(owner_main)
address, bulk = owner.pipe.recv()
receiver = Child(receiver_main)
receiver.pipe.recv()
workers = [Child(lambda pipe, i=i: worker_main(pipe, i, address, 16 * KiB if i == 2 else 0)) for i in range(WORKERS)]
for w in workers:
    w.pipe.recv()
heavy = Child(bulk_main)
heavy.pipe.recv()


def all_get_on():
    for w in workers:
        w.pipe.send("more")
    return [w.pipe.recv() for w in workers]


def state():
    s = agent.status()
    return s["sessions"], s["segments"], s["pool"]["extents"], s["pool"]["used"]


all_get_on()
before = state()
fds = None
kill = lost_so_far = 0
# the machine decides whether the agent has something in its hands at a kill: until one found it so
while kill < KILLS or lost_so_far == 0:
    check(kill < 10 * KILLS, "no task was in the agent's hands at any of the kills: this shows nothing")
    old = agent.again() if kill % 4 == 3 else agent.kill_agent()
    if kill % 4 == 1:  # once more while it is just coming back
        old = await_(lambda: agent.pid() not in (0, old) and agent.pid(), "the next agent")
        agent.kill_agent()
    agent.await_next(old)
    all_get_on()
    await_(lambda: state() == before, lambda: f"the agent to have what it had, {before}: {state()}")
    if fds is None:
        fds = agent.fds()
    heavy.pipe.send("lost?")
    lost_so_far = heavy.pipe.recv()[0]
    kill += 1
await_(lambda: agent.fds() == fds, lambda: f"as many descriptors as after the first restart, {fds}: {agent.fds()}")

heavy.pipe.send("stop")
heavy_lost, heavy_rounds = heavy.pipe.recv()
heavy.join()
for w in workers:
    w.pipe.send("stop")
models, arrived, sent, lost, steps = [], [], [], 0, 0
for w in workers:
    for t in range(THREADS):
        restarts, l, n, a, s, model = w.pipe.recv()
        check(restarts >= KILLS, "a worker saw", restarts, "restarts")
        lost, steps = lost + l, steps + n
        arrived.append(a)
        sent.append(s)
        models.append(model)
        w.pipe.send("next")
for w in workers:
    w.join()
last = Client(agent.socket, "last")
b = last.batch()
last.notify(b, last.open("inbox"), b"end", b"")
last.wait(b)
equal(last.task(b).state, COMPLETED, "the last notification")
for i in range(AREAS):
    came = receiver.pipe.recv()[0]
    check(set(arrived[i]) <= set(came), f"thread {i}: notes that completed and never came:", set(arrived[i]) - set(came))
    check(set(came) <= set(range(1, sent[i] + 1)), f"thread {i}: notes that nobody sent")
    equal(len(came), len(set(came)), f"thread {i}: each note once")
    receiver.pipe.send("next")
receiver.join()
owner.pipe.send("check")
check(owner.pipe.recv()[0] >= KILLS, "the owner came back each time without a call of its own")
for i in range(AREAS):
    owner.pipe.send("next")
    check(owner.pipe.recv()[0] == models[i], f"the owner finds other bytes in area {i} than its writer")
owner.pipe.send("end")
owner.join()
last.close()
print(f"{kill} restarts and {(kill + 2) // 4} in between, {steps} steps, {lost} tasks lost; {heavy_rounds} batches, {heavy_lost} lost")
agent.finish()
