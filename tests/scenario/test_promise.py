#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The promise: what was taken away is not written any more; what ended is quiet."""
import fcntl
import mmap
import os
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("engine.slice=16K")
SIZE = 32 * MiB


def target(pipe):
    """Owns the target; does what it is told and says what it sees."""
    c = Client(agent.socket, "target")
    p = c.alloc(SIZE)
    c.publish("target")
    pipe.send(c.buffer(p, SIZE))
    pattern = 0
    while True:
        what = pipe.recv()[0]
        if what == "end":
            break
        if what == "publish":
            pipe.send(c.buffer(p, SIZE))
        elif what == "revoke":
            c.revoke(p, SIZE)
        elif what == "unbuffer":
            c.unbuffer(p, SIZE)
        elif what == "free":
            c.free(p)
            p = c.alloc(SIZE)
        elif what == "withdraw":
            c.withdraw()
            c.publish("target")
        if what not in ("publish", "check"):
            # it is ours again, at once: put a pattern there
            pattern += 1
            fill(p, SIZE, pattern)
            pipe.send("done")
        if what == "check":
            equal(peek(p, SIZE), bytes([pattern]) * SIZE, "a byte changed after it was taken away")
            pipe.send("same")
    c.close()


child = Child(target)
address = child.pipe.recv()[0]
c = Client(agent.socket, "writer", queue=dict(depth=64))
a = c.alloc(SIZE)
fill(a, SIZE, 255)


def ask(what):
    child.pipe.send(what)
    return child.pipe.recv()[0]


TASKS = 60  # some 100 ms of copying, so that what takes the target away finds it under way
caught = 0
for how in ("revoke", "unbuffer", "withdraw", "free") * 3:
    segment = c.open("target")
    b = c.batch(TASKS + 1)
    for i in range(TASKS):
        c.submit(b, c.request(WRITE, a, segment, address, SIZE))
    await_(lambda: c.task(b, 0).state != WAITING, "the first write to start")
    equal(ask(how), "done", how)
    c.submit(b, c.request(WRITE, a, segment, address, SIZE))
    c.wait(b)
    ended = [c.task(b, i) for i in range(TASKS + 1)]
    c.batch_free(b)
    check(ended[TASKS].state == INVALID, how, "a task after it ended", ended[TASKS].state)
    for t in ended:
        check((t.state, t.error) in ((COMPLETED, OK), (FAILED, REVOKED), (INVALID, BAD_RANGE),
                                     (INVALID, REVOKED)), how, t.state, t.error)
        check(t.remote_quiesced, "nothing can land any more")
    caught += any(t.state == FAILED for t in ended)
    equal(ask("check"), "same", how)
    # the session is none the worse for it
    c.close_segment(segment)
    address = ask("publish")

check(caught > 0, "in no round was a task caught under way")

# cancel: once the slot says so, source and target are the caller's again
segment = c.open("target")
for i in range(20):
    b = c.batch(3)
    for j in range(3):
        c.submit(b, c.request(WRITE, a, segment, address, SIZE))
    c.cancel(b, 1)
    c.cancel(b, 0)
    c.wait(b)
    states = [c.task(b, j).state for j in range(3)]
    check(states[0] in (S_CANCELED, COMPLETED) and states[1] in (S_CANCELED, COMPLETED), states)
    equal(states[2], COMPLETED, "the task that was not canceled")
    c.batch_free(b)
check(agent.counter("canceled") > 0, "some were canceled in time")

caught = 0
# the local side goes away under way: what had begun fails, what comes later is refused
for i in range(5):
    fd = os.memfd_create("local", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    mine = c.register_memfd(fd, SIZE)
    b = c.batch(TASKS + 1)
    for j in range(TASKS):
        c.submit(b, c.request(READ, mine, segment, address, SIZE))
    c.unregister(mine)
    refused(NOT_REGISTERED, c.submit, b, c.request(READ, mine, segment, address, SIZE))
    before = os.pread(fd, SIZE, 0)
    c.wait(b)
    for j in range(TASKS):
        t = c.task(b, j)
        check((t.state, t.error) in ((COMPLETED, OK), (FAILED, REVOKED), (INVALID, INVALID_HANDLE)),
              "a task whose local memory was unregistered", t.state, t.error)
        caught += t.state == INVALID
    equal(os.pread(fd, SIZE, 0), before, "memory after it was unregistered")
    c.batch_free(b)
    os.close(fd)

check(caught > 0, "in no round was a task caught before its turn")

# deadline: a task that cannot make it ends TIMEOUT, with its bytes told
t = c.write(a, segment, address, SIZE, deadline_us=1)
equal((t.state, t.error), (S_TIMEOUT, TIMEOUT), "a task with a microsecond")

# FENCE: starts after all earlier tasks have ended, whatever their class
for i in range(10):
    b = c.batch(2)
    fill(a, 64, i)
    c.submit(b, c.request(WRITE, a, segment, address, SIZE, priority=BACKGROUND),
             c.request(READ, a + MiB, segment, address, 64, priority=HIGH, flags=FENCE))
    c.wait(b)
    equal(peek(a + MiB, 64), bytes([i]) * 64, "a fenced read behind a write")
    c.batch_free(b)

# a peer that was granted MAP_WRITE and copies in its own threads all the time: revocation waits for
# each copy to end, once, and no longer
owner = Client(agent.socket, "granting")
granted = owner.alloc(MiB)
owner.publish("granted")


def mapper(pipe):
    clients = [Client(agent.socket, f"mapper {i}", caller_max=MiB) for i in range(4)]
    segments = [m.open("granted") for m in clients]
    at = clients[0].describe(segments[0])[0].address
    stop = []

    def copy(m, segment):
        source = m.alloc(MiB)
        fill(source, MiB, 238)
        while not stop:
            m.write(source, segment, at, MiB)
    threads = [threading.Thread(target=copy, args=a) for a in zip(clients, segments)]
    for t in threads:
        t.start()
    await_(lambda: sum(m.stats().caller_tasks for m in clients) > 20, "copies in callers' threads")
    pipe.send("copying")
    pipe.recv()
    stop.append(True)
    for t in threads:
        t.join()
    for m in clients:
        m.close()


for i in range(5):
    owner.buffer(granted, MiB, RW | A_MAP_READ | A_MAP_WRITE)
    mappers = Child(mapper)
    mappers.pipe.recv()
    owner.revoke(granted, MiB)  # TIMEOUT would be raised
    fill(granted, MiB, 17)
    mappers.pipe.send("stop")
    mappers.join()
    equal(peek(granted, MiB), b"\x11" * MiB, "a byte changed after the revocation")
equal(agent.counter("revoke_timeouts"), 0, "revocations that timed out")

# one that says it copies and never ends: the owner is told, the liar's session ends
at = owner.buffer(granted, MiB, RW | A_MAP_WRITE)
liar = Raw(agent.socket)
liar.hello()
liar.send(2, struct.pack("<IIIIQ", 64, 64, 4, 0, 16384))
reply = liar.recv()
words = mmap.mmap(reply[3][0], struct.unpack("<IIQ", reply[2])[2])
liar.send(13, struct.pack("<256s", b"granted"))
handle = struct.unpack("<I", liar.recv()[2][:4])[0]
liar.send(16, struct.pack("<IIQQ", handle, 1, at, 4096))
equal(liar.recv()[1], OK, "a writable mapping")
words[768:772] = struct.pack("<I", 1)  # mcs_doorbell.caller_active
refused(TIMEOUT, owner.revoke, granted, MiB)
equal(agent.counter("revoke_timeouts"), 1, "revocations that timed out")
check(liar.closed(), "the liar's session")
os.close(reply[3][0])
owner.close()

# the owner dies in mid-transfer: failed, said, and nothing else
b = c.batch(60)
for i in range(60):
    c.submit(b, c.request(WRITE, a, segment, address, SIZE))
child.kill()
c.wait(b)
for i in range(60):
    t = c.task(b, i)
    check((t.state, t.error) in ((COMPLETED, OK), (FAILED, REVOKED), (INVALID, REVOKED)),
          "a task whose target died", t.state, t.error)
c.batch_free(b)
equal(c.write(a, segment, address, 64).error, REVOKED, "a task on a dead segment")
c.close()
agent.finish()
