#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for streams, and streams that wait for requests (field report B79); gates of host memory, deadlines,
cancellations."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
SIZE = 256 << 10
ROUNDS = 200 if SAN else 1000
agent = Agent()


def word(address):
    return C.c_uint32.from_address(address)


class World:
    def __init__(self, name):
        self.device, self.c = cuda.Device(), Client(agent.socket, name)
        self.stream = self.device.stream()
        self.gpu = self.c.alloc(SIZE, location=b"cuda:0")
        self.host = self.c.alloc(SIZE)
        self.c.publish(name)
        self.s = self.c.open(name)
        self.gpu_address, self.host_address = self.c.buffer(self.gpu, SIZE), self.c.buffer(self.host, SIZE)
        # something that takes the stream's time before what matters
        self.busy = self.device.alloc(16 * MiB)

    def work(self, byte):
        """A kernel that writes this pattern, after a while."""
        if cuda.REAL:
            for i in range(20):
                self.device.fill(self.busy, 16 * MiB, i, self.stream)
        self.device.fill(self.gpu, SIZE, byte, self.stream)

    def request(self, op, order, **more):
        return self.c.request(op, self.gpu, self.s, self.host_address, SIZE, order=order, **more)

    def end(self, *more):
        self.device.sync(self.stream)
        self.device.destroy(self.stream)
        self.device.free(self.busy)
        self.c.close()
        self.device.release()


def stores(pipe):
    """The bytes that are stored are those that the stream writes, and nobody waits for it but the request."""
    w = World("stores")
    gate = w.c.gate()
    for i in range(ROUNDS):
        byte = i % 251 + 1
        w.work(byte)
        value = w.c.record(gate, w.stream)
        equal(value, i + 1, "a gate's values")
        b = w.c.batch()
        w.c.submit(b, w.request(WRITE, after(gate.word, value)))
        w.c.wait(b)
        equal(w.c.task(b).state, COMPLETED, f"round {i}")
        w.c.batch_free(b)
        equal(peek(w.host, SIZE), bytes([byte]) * SIZE, f"round {i}: what the stream wrote")
    w.c.gate_destroy(gate)
    w.end()


def loads(pipe):
    """Nothing is overwritten before the stream has read it, and what follows the load in the stream sees it."""
    w = World("loads")
    ready, done = w.c.gate(), w.c.gate()
    saved, seen = w.device.alloc(SIZE), w.device.alloc(SIZE)
    w.device.fill(w.gpu, SIZE, 255)
    old = bytes([255]) * SIZE
    pieces = (Piece * 4)()
    for i in range(ROUNDS // 4):
        fill(w.host, SIZE, i % 251)
        w.device.copy(saved, w.gpu, SIZE, w.stream)  # the stream still reads it
        value = w.c.record(ready, w.stream)
        for k in range(4):
            pieces[k] = Piece(k * SIZE // 4, k * SIZE // 4, SIZE // 4)
        b = w.c.batch()
        r = w.request(READ, after(ready.word, value, done.word, i + 1))
        if i % 2:
            w.c.do("submit_list", w.c.q, b, C.byref(r), pieces, 4)
            C.memset(pieces, 0xff, C.sizeof(pieces))  # the caller's again
        else:
            w.c.submit(b, r)
        w.c.follow(done, w.stream, i + 1)
        w.device.copy(seen, w.gpu, SIZE, w.stream)
        w.device.sync(w.stream)
        equal(w.device.get(saved, SIZE), old, f"round {i}: what the stream read before")
        old = bytes([i % 251]) * SIZE
        equal(w.device.get(seen, SIZE), old, f"round {i}: what it read after")
        w.c.wait(b)
        equal(w.c.task(b).state, COMPLETED, f"round {i}")
        w.c.batch_free(b)
    w.device.free(saved)
    w.device.free(seen)
    w.end()  # the gates go with the connection


def ends(pipe):
    """However a task ends, it ends in time, and its gate is signalled."""
    w = World("ends")
    wait, signal = w.c.gate(), w.c.gate()
    c, b = w.c, w.c.batch(8)

    def ended(index, state, value, what):
        await_(lambda: c.task(b, index).state >= INVALID, what)
        equal(c.task(b, index).state, state, what)
        await_(lambda: word(signal.word).value == value, what + ": its signal")

    c.submit(b, w.request(WRITE, after(wait.word, 1, signal.word, 1), deadline_us=100000))
    ended(0, S_TIMEOUT, 1, "a stream that never comes")
    c.submit(b, w.request(WRITE, after(wait.word, 1, signal.word, 2)))
    c.cancel(b, 1)
    ended(1, S_CANCELED, 2, "canceled while it waits")
    c.submit(b, c.request(WRITE, w.gpu, w.s, w.host_address + SIZE, 64, flags=SYNCED, order=after(None, 0, signal.word, 3)))
    await_(lambda: c.task(b, 2).state in (INVALID, FAILED), "a bad range")
    await_(lambda: word(signal.word).value == 3, "a refused task's signal")
    word(wait.word).value = 2**32 - 1  # older than 1, as CU_STREAM_WAIT_VALUE_GEQ compares
    c.submit(b, w.request(WRITE, after(wait.word, 1, signal.word, 4), deadline_us=50000))
    ended(3, S_TIMEOUT, 4, "a value from before")
    word(wait.word).value = 7
    c.submit(b, w.request(WRITE, after(wait.word, 1, signal.word, 5)))
    ended(4, COMPLETED, 5, "a value that has passed by")
    # what waits does not hold up what does not, unless it is told to
    word(wait.word).value = 0
    c.submit(b, w.request(WRITE, after(wait.word, 1)), w.request(WRITE, None, flags=SYNCED),
             w.request(WRITE, None, flags=SYNCED | FENCE))
    await_(lambda: c.task(b, 6).state == COMPLETED, "a task beside the one that waits")
    check(c.task(b, 5).state < INVALID and c.task(b, 7).state < INVALID, "the one that waits, and the one behind it")
    word(wait.word).value = 1
    c.wait(b)
    equal([c.task(b, i).state for i in (5, 7)], [COMPLETED] * 2, "then both")
    c.batch_free(b)
    w.end()


def hosts(pipe):
    """Gates are words of host memory: requests without a GPU wait for them, too, and one may signal what another waits for."""
    c = Client(agent.socket, "hosts", caller_max=1 << 20)
    memory, words = c.alloc(MiB), c.alloc(4 * MiB)  # an extent of its own
    c.publish("hosts")
    s, address = c.open("hosts"), c.buffer(memory, MiB)
    source = c.alloc(64)
    word(words).value = word(words + 64).value = 0
    b = c.batch(3)
    fill(source, 64, 1)
    c.submit(b, c.request(WRITE, source, s, address, 64, order=after(words, 5)))
    fill(source, 64, 2)
    word(words).value = 5
    c.wait(b)
    equal(peek(memory, 64), b"\2" * 64, "bytes as they were when the gate came")
    # a chain: the second waits for what the first signals
    c.submit(b, c.request(WRITE, source, s, address + 4096, 64, order=after(words + 64, 1)),
             c.request(WRITE, source, s, address + 8192, 64, order=after(None, 0, words + 64, 1)))
    c.wait(b)
    equal([c.task(b, i).state for i in range(3)], [COMPLETED] * 3, "a chain")
    c.batch_free(b)
    # the memory of a gate that is waited for is given back
    b = c.batch(1)
    c.submit(b, c.request(WRITE, source, s, address, 64, order=after(words, 100)))
    c.free(words)
    c.wait(b)
    check(c.task(b).state in (INVALID, FAILED, S_CANCELED), "a task whose gate is gone", c.task(b).state)
    c.batch_free(b)
    c.close()


if not cuda.REAL:
    cuda.control.delay(300)
for f in (stores, loads, ends, hosts):
    child = Child(f)
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, f"{f.__name__}: what the client left with the driver")
agent.finish()
