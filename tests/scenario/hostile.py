# SPDX-License-Identifier: Apache-2.0
"""A kit for hostile clients: one that has its shared memory in its hands, and bystanders that work.

    others = Bystanders(agent, 2)     # processes that write, read back and compare all the time
    evil = Evil(agent)                # a session by hand: queue, extent and segment as bytes to scribble on
    evil.submit(evil.desc(op=WRITE, ...))
    others.progress("what just happened")   # each of them has gone on since
    others.finish()                   # all of their tasks COMPLETED, all bytes as they should be
"""
import mmap
import os
import random
import struct
import time

from mcshm import *  # noqa: F403

LINE = 64
WORDS = 512  # of a session region: inbox_head, grants_version; + 128: inbox_tail, inbox_waiting
DESC = "<BBBBIIIIIQIIQQII"
ARGS = "<QQQQQIIIIQ"
NONE = 0xffffffff
OP_READ, OP_WRITE, OP_NOTIFY, OP_CANCEL = 1, 2, 3, 4
ONE, LIST, STRIDE = range(3)


def _clock():
    """A function that reads the processor's counter, as mcs_ticks() does."""
    code = {"x86_64": "0f31 48c1e220 4809d0 c3", "aarch64": "40e03bd5 c0035fd6"}[os.uname().machine]
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    f = C.CFUNCTYPE(C.c_uint64)(C.addressof(C.c_char.from_buffer(page)))
    f.page = page
    return f


ticks = _clock()


class Evil:
    """A session without libmcshm. q: its queue region, words at `at`; region: its session region; mem: its memory."""

    def __init__(self, agent, depth=64, slots=256, batches=16, args=65536, memory=1 << 20, segment=None):
        self.raw = Raw(agent.socket)
        m = self.raw.hello()
        equal(m[1], OK, "hello")
        self.region_fd, self.doorbell = m[3]
        self.region = mmap.mmap(self.region_fd, struct.unpack_from("<QQQQ", m[2])[3])
        self.tick_shift, = struct.unpack_from("<I", self.region, 48)
        status, body, fds = self.ask(2, struct.pack("<IIIIQ", depth, slots, batches, 0, args))
        equal(status, OK, "queue open")
        self.q_fd = fds[0]
        self.q = mmap.mmap(self.q_fd, struct.unpack("<IIQ", body)[2])
        (self.depth, _, self.slots, _, self.batches, _, self.args_size, self.bell_at, self.ring_at, self.batches_at,
         self.slots_at, self.args_at, self.size) = struct.unpack_from("<IIIIIIQQQQQQQ", self.q, 40)
        self.elements_at = self.ring_at + 384
        self.head = self.generation = 0
        self.extent = self.target = 0
        self.open_fds = [self.region_fd, self.doorbell, self.q_fd]
        if memory:
            self.extent, self.mem_fd, self.offset, self.mem_size = self.alloc(memory)
            self.mem = mmap.mmap(self.mem_fd, self.mem_size)
        if segment:
            self.target = self.open(segment)

    def ask(self, type_, body=b"", fds=()):
        self.raw.send(type_, body, fds)
        m = self.raw.recv()
        check(m is not None, "the agent has ended this session")
        return m[1], m[2], m[3]

    def alloc(self, size):
        status, body, fds = self.ask(4, struct.pack("<QQ32s", size, 0, b""))
        equal(status, OK, "alloc")
        extent, _, offset, extent_size = struct.unpack_from("<IIQQ", body)
        self.open_fds += fds
        return extent, fds[0], offset, extent_size

    def open(self, name):
        status, body, _ = self.ask(13, struct.pack("<256s", name.encode()))
        equal(status, OK, "open of " + name)
        return struct.unpack_from("<I", body)[0]

    def word(self, at, value=None, size="I"):
        if value is not None:
            data = struct.pack("<" + size, value)
            self.q[at:at + len(data)] = data  # one store: pack_into() would write zeros first
        return struct.unpack_from("<" + size, self.q, at)[0]

    @property
    def prod_tail(self):
        return self.ring_at + 132

    def desc(self, op=OP_WRITE, shape=ONE, flags=0, priority=1, slot=0, generation=None, batch=0, batch_generation=1,
             extent=None, local=0, segment=None, remote=0, length=64, args=NONE, deadline=0, submitted=None):
        if generation is None:
            self.generation += 1
            generation = self.generation
        if submitted is None:
            submitted = ticks() >> self.tick_shift & NONE
        return struct.pack(DESC, op, shape, flags, priority, slot, generation, batch, batch_generation,
                           self.extent if extent is None else extent, local, self.target if segment is None else segment,
                           submitted, remote, length, args, deadline)

    def arguments(self, at=0, total=None, count=0, block=0, local_stride=0, remote_stride=0, pieces=64, notify=0,
                  name=0, message=0, rest=b""):
        """An argument block at unit `at` of the area, and what follows its head."""
        head = struct.pack(ARGS, 64 + len(rest) if total is None else total, count, block, local_stride, remote_stride,
                           pieces, notify, name, message, 0)
        where = self.args_at + at * LINE
        self.q[where:where + 64 + len(rest)] = head + rest

    def ring(self):
        """The doorbell, without waiting: its owner may have filled it."""
        os.set_blocking(self.doorbell, False)
        try:
            os.write(self.doorbell, struct.pack("<Q", 1))
        except BlockingIOError:
            pass

    def submit(self, *descs):
        for d in descs:
            at = self.elements_at + (self.head & (self.depth - 1)) * 64
            self.q[at:at + 64] = d
            self.head = self.head + 1 & NONE
        self.word(self.prod_tail, self.head)
        self.ring()

    def slot(self, index):
        """(generation, error, state) as the slot says."""
        word, = struct.unpack_from("<Q", self.q, self.slots_at + 32 * index)
        return word >> 32, word >> 16 & 0xffff, word & 0x7f

    def ended(self, index, generation):
        g, error, state = self.slot(index)
        return (state, error) if g == generation and state > PENDING else None

    def result(self, index):
        """(state, error) of the newest task, which uses this slot."""
        return await_(lambda: self.ended(index, self.generation),
                      lambda: f"slot {index}, generation {self.generation}: {self.slot(index)}")

    def thrown_out(self):
        return self.raw.closed()

    def close(self):
        self.raw.s.close()
        for fd in self.open_fds:
            os.close(fd)
        self.open_fds = []
        self.q.close()
        self.region.close()
        if self.extent:
            self.mem.close()


class Bystanders:
    """Clients in processes of their own, each with its segment; what they write they read back and compare."""

    def __init__(self, agent, n, size=65536):
        shared = mmap.mmap(-1, 4096)
        self.counts = [memoryview(shared)[i * 64:i * 64 + 8].cast("Q") for i in range(n)]
        self.size = size
        self.children = [Child(lambda pipe, i=i: self.work(pipe, agent, i)) for i in range(n)]
        for c in self.children:
            equal(c.pipe.recv(), ["ready"], "a bystander")
        self.last = self.now()

    def work(self, pipe, agent, i):
        c = Client(agent.socket, f"bystander-{i}", queue=dict(depth=64))
        rng = random.Random(i)
        n = 4
        mem, out = c.alloc(n * self.size), c.alloc(2 * n * self.size)
        c.publish(f"bystander-{i}")
        c.buffer(mem, n * self.size, RW)
        segment = c.open(f"bystander-{i}")
        at = c.describe(segment)[0].address
        pipe.s.setblocking(False)
        pipe.send("ready")
        while True:
            try:
                pipe.s.recv(64)
                break
            except BlockingIOError:
                pass
            data = rng.randbytes(n * self.size)
            C.memmove(out, data, len(data))
            back = out + n * self.size
            fill(back, n * self.size, 0)
            for op, local in ((WRITE, out), (READ, back)):
                b = c.batch(n)
                c.submit(b, *[c.request(op, local + k * self.size, segment, at + k * self.size, self.size)
                              for k in range(n)])
                c.wait(b)
                for k in range(n):
                    equal(c.task(b, k).state, COMPLETED, f"task {k} of a bystander")
                c.batch_free(b)
                self.counts[i][0] += n
            equal(peek(mem, n * self.size), data, "a bystander's memory")
            equal(peek(back, n * self.size), data, "what a bystander has read back")
        c.close()

    def now(self):
        return [c[0] for c in self.counts]

    def progress(self, what, tasks=8):
        """Each of them ends some more tasks, from now on."""
        for c in self.children:  # a dead one would be waited for in vain
            check(os.waitpid(c.pid, os.WNOHANG)[0] == 0, "a bystander has failed:", what)
        start = self.now()
        await_(lambda: all(now - then >= tasks for now, then in zip(self.now(), start)),
               f"the bystanders to go on: {what}")

    def rate(self, seconds):
        """Tasks of all of them in so many seconds."""
        start, began = sum(self.now()), time.monotonic()
        time.sleep(seconds)  # the time is what is measured
        return (sum(self.now()) - start) / (time.monotonic() - began)

    def finish(self):
        self.progress("at the end")
        for c in self.children:
            c.pipe.send("stop")
        for c in self.children:
            c.join()


class Flipper:
    """A process that writes the values of `places` ({offset: [bytes, ...]}) into a shared region in turn, for ever."""

    def __init__(self, fd, size, places):
        def flip(pipe):
            die_with_the_test()
            m = mmap.mmap(fd, size)
            steps = [(at, at + len(v), v) for k in range(max(map(len, places.values())))
                     for at, values in places.items() for v in (values[k % len(values)],)]
            pipe.send("flips")
            while True:
                for a, b, v in steps:
                    m[a:b] = v
        self.child = Child(flip)
        self.child.pipe.recv()

    def stop(self):
        self.child.kill()
