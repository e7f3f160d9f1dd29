#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of bad input gets a clear error, loses nothing, leaks nothing."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("pool.size=64M", "task.deadline_ms=20000")
owner = Client(agent.socket, "owner")
c = Client(agent.socket, "client")
own = owner.alloc(MiB)
owner.publish("target")
address = owner.buffer(own, MiB)
segment = c.open("target")
a = c.alloc(MiB)
fill(a, MiB, 7)
fill(own, MiB, 1)


def ends(task, state, error, what):
    equal((task.state, task.error, task.bytes), (state, error, 0), what)


# ranges near 2^64, beyond and across; nothing moves
for local, remote, length in [(a, address + MiB, 1), (a, address + MiB - 1, 2), (a, address - 1, 2),
                              (a, 0, 8), (a, (1 << 64) - 8, 16), (a, (1 << 64) - 1, 1),
                              (a, address + (1 << 63), 64)]:
    ends(c.write(local, segment, remote, length), INVALID, BAD_RANGE, ("range", remote, length))
b = c.batch()
for local, length, status in [(a, (1 << 64) - 1, BAD_RANGE), (a + MiB - 1, 1 << 40, BAD_RANGE),
                              (a, 0, INVALID_ARGUMENT), (8, 8, NOT_REGISTERED),
                              ((1 << 64) - 8, 16, NOT_REGISTERED), (None, 8, INVALID_ARGUMENT)]:
    refused(status, c.submit, b, c.request(WRITE, local, segment, address, length))
refused(INVALID_ARGUMENT, c.submit, b, c.request(9, a, segment, address, 8))
refused(INVALID_ARGUMENT, c.submit, b, c.request(WRITE, a, segment, address, 8, flags=0x100))
refused(INVALID_ARGUMENT, c.submit, b, c.request(WRITE, a, segment, address, 8, priority=3))
c.batch_free(b)
equal(peek(own, MiB), b"\1" * MiB, "the target after refused writes")

# lists that end outside: told before any byte moves
pieces = [(i * 4096, i * 4096, 4096) for i in range(64)]
for bad in [(0, MiB - 10, 11), (0, (1 << 64) - 4096, 64), (0, 1 << 62, 64)]:
    t = c.run(c.request(WRITE, a, segment, address, 0), pieces=pieces + [bad])
    ends(t, INVALID, BAD_RANGE, ("list", bad))
ends(c.run(c.request(WRITE, a, segment, address, 0), stride=(257, 4096, 0, 4096)), INVALID, BAD_RANGE,
     "stride beyond the buffer")
b = c.batch()
for bad, status in [((0, 0, 0), INVALID_ARGUMENT), ((4 * MiB, 0, 64), BAD_RANGE),
                    ((0, 0, (1 << 64) - 1), BAD_RANGE)]:
    refused(status, c.submit_list, b, c.request(WRITE, a, segment, address, 0), [pieces[0], bad])
refused(INVALID_ARGUMENT, c.submit_stride, b, c.request(WRITE, a, segment, address, 0), 0, 1, 1, 1)
refused(INVALID_ARGUMENT, c.submit_stride, b, c.request(WRITE, a, segment, address, 0), 1, 0, 1, 1)
c.batch_free(b)
equal(peek(own, MiB), b"\1" * MiB, "the target after refused lists")

# rights, handles of another session, closed segments
readonly = owner.alloc(4096)
ro = owner.buffer(readonly, 4096, A_READ)
ends(c.write(a, segment, ro, 64), INVALID, ACCESS, "write to a read-only buffer")
equal(c.read(a, segment, ro, 64).state, COMPLETED, "read of a read-only buffer")
foreign = owner.open("target")
ends(c.write(a, foreign, address, 64), INVALID, INVALID_HANDLE, "a handle of another session")
closed = c.open("target")
c.close_segment(closed)
ends(c.write(a, closed, address, 64), INVALID, INVALID_HANDLE, "a closed segment")
refused(INVALID_HANDLE, c.close_segment, closed)
refused(INVALID_HANDLE, c.describe, closed)
refused(NOT_FOUND, c.open, "nobody")
refused(INVALID_ARGUMENT, c.open, "")
refused(INVALID_ARGUMENT, c.open, "x" * 256)
refused(ACCESS, c.map, segment, address, 4096)  # no MAP_READ on it
refused(BAD_RANGE, c.map, segment, address + MiB - 1, 2)

# overlapping source and target
owner_segment = owner.open("target")
ends(owner.write(own, owner_segment, address + 10, 4096), INVALID, OVERLAP, "overlap")
equal(owner.write(own, owner_segment, address + 4096, 4096).state, COMPLETED, "neighbours")

# one name, two clients; names and buffers that cannot be
check("target" in refused(EXISTS, c.publish, "target"))
refused(EXISTS, owner.publish, "another")
refused(INVALID_ARGUMENT, c.publish, "with\nnewline")
for bad in (b"\xff", b"a\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
    refused(INVALID_ARGUMENT, c.do, "segment_publish", c.c, bad, 0)
refused(OVERLAP, owner.buffer, own + 64, 64)
refused(INVALID_ARGUMENT, owner.buffer, own, 0)
refused(BAD_RANGE, owner.buffer, own, 64 * MiB)
refused(NOT_REGISTERED, owner.buffer, 4096, 64)
refused(NOT_FOUND, owner.unbuffer, own, 64)
refused(NOT_REGISTERED, owner.unregister, own + 8)
refused(NOT_REGISTERED, owner.free, own + 64)

# more tasks than the batch, slots, batches, ring, arguments
s = Client(agent.socket, "small", queue=dict(depth=8, slots=16, batches=4, args_size=4096))
sa, sg = s.alloc(MiB), s.open("target")
one = s.request(WRITE, sa, sg, address, 64)
b = s.batch(2)
s.submit(b, one, one)
refused(TOO_MANY_TASKS, s.submit, b, one)
s.wait(b)
s.batch_free(b)
refused(INVALID_HANDLE, s.task, b)
refused(INVALID_HANDLE, s.batch_free, b)
refused(INVALID_HANDLE, s.submit, b, one)
refused(INVALID_ARGUMENT, s.batch, 0)
refused(INVALID_ARGUMENT, s.batch, 17)
held = [s.batch() for _ in range(4)]
refused(NO_BATCHES, s.batch)
for b in held:
    s.batch_free(b)
b = s.batch(16)
for i in range(16):
    while True:
        try:
            s.submit(b, one)
            break
        except McshmError as e:
            equal(e.status, RING_FULL, "while the ring is small")
b2 = s.batch()
refused(NO_SLOTS, s.submit, b2, one)
s.wait(b)
s.batch_free(b)
refused(INVALID_ARGUMENT, s.submit_list, b2, s.request(WRITE, sa, sg, address, 0), [(0, 0, 64)] * 200)
s.submit(b2, one)  # and goes on
s.wait(b2)
s.batch_free(b2)
# ring full: the agent is stopped, so nothing is taken
agent.freeze()
b = s.batch(16)
n = 0
try:
    while n < 16:
        s.submit(b, one)
        n += 1
except McshmError as e:
    equal(e.status, RING_FULL, "a full ring")
equal(n, 7, "tasks in a ring of depth 8")
agent.thaw()
s.wait(b)
for i in range(n):
    equal(s.task(b, i).state, COMPLETED, "a task that was in the full ring")
s.batch_free(b)
# argument area full, likewise
agent.freeze()
b = s.batch(2)
s.submit_list(b, s.request(WRITE, sa, sg, address, 0), [(0, 0, 64)] * 100)
refused(ARGS_FULL, s.submit_list, b, s.request(WRITE, sa, sg, address, 0), [(0, 0, 64)] * 100)
agent.thaw()
s.wait(b)
s.submit_list(b, s.request(WRITE, sa, sg, address, 0), [(0, 0, 64)] * 100)
s.wait(b)
equal(s.task(b, 1).state, COMPLETED, "a list after the area was full")
s.batch_free(b)
check(s.stats().ring_full >= 3, "the refusals were counted")
s.close()

# pool exhausted: says what there is; and what was freed can be had again
check("67108864" in refused(NO_MEMORY, c.alloc, 65 * MiB), "the limit is named")
text = refused(NO_MEMORY, c.alloc, 63 * MiB)
check("pool" in text and "free some or raise" in text, text)
big = c.alloc(40 * MiB)
refused(NO_MEMORY, c.alloc, 40 * MiB)
c.free(big)
c.free(c.alloc(40 * MiB))
refused(INVALID_ARGUMENT, c.alloc, 0)
refused(INVALID_ARGUMENT, c.alloc, 64, 3)
refused(INVALID_ARGUMENT, c.alloc, 64, 1 << 31)
for place in (b"cpu:", b"cpu:x", b"cpu:1000", b"cpu:99999999999999999999"):
    check(place.decode() in refused(NOT_SUPPORTED, c.alloc, 64, 0, place), "the place is named")
if os.path.isdir("/sys/devices/system/node/node0"):
    placed = c.alloc(4096, 0, b"cpu:0")
    check(0 in [e["node"] for e in agent.ask("ls", "extents")["extents"]], "an extent of node 0")
    c.free(placed)
refused(INVALID_ARGUMENT, Client, agent.socket, "x", 0, False, dict(depth=3))
refused(INVALID_ARGUMENT, Client, agent.socket, "x", 0, False, dict(depth=1 << 17))

# shared memory of the caller's: sealed, large enough, and a memfd at all
fd = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
os.ftruncate(fd, MiB)
check("sealed" in refused(BAD_SHM, c.register_memfd, fd, MiB))
import fcntl  # noqa: E402
fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
refused(BAD_SHM, c.register_memfd, fd, 2 * MiB)
ro_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
refused(BAD_SHM, c.register_memfd, ro_fd, MiB)
with open(agent.log) as f:
    refused(BAD_SHM, c.register_memfd, f.fileno(), 16)
refused(INVALID_ARGUMENT, c.register_memfd, fd, 0)
m = c.register_memfd(fd, MiB)
fill(m, MiB, 9)
equal(c.write(m, segment, address, MiB).state, COMPLETED, "from a memfd")
equal(peek(own, 16), b"\x09" * 16, "bytes from a memfd")
refused(NOT_SUPPORTED, c.buffer, m, MiB, A_MAP_READ)  # it could be opened for writing again
c.unregister(m)
refused(NOT_REGISTERED, c.unregister, m)
os.close(fd)
os.close(ro_fd)

# private memory: staged, said, refused with strict
import ctypes  # noqa: E402
private = ctypes.create_string_buffer(b"p" * 8192, 8192)
p = ctypes.addressof(private)
refused(NOT_REGISTERED, c.write, p, segment, address, 64)
c.register(p, 8192)
c.register(p, 8192)
refused(OVERLAP, c.register, p + 64, 8192)
refused(INVALID_ARGUMENT, c.register, p, 0)
t = c.write(p, segment, address, 8192)
equal((t.state, PATHS[t.path]), (COMPLETED, "staged"), "a staged write")
equal(peek(own, 8192), b"p" * 8192, "bytes staged out")
fill(own, 8192, ord("r"))
t = c.read(p, segment, address, 8192)
equal((t.state, PATHS[t.path], private.raw[:8192]), (COMPLETED, "staged", b"r" * 8192), "a staged read")
refused(NOT_SUPPORTED, c.buffer, p, 64)
c.unregister(p)
equal(c.write(p, segment, address, 64).state, COMPLETED, "registered twice, unregistered once")
c.unregister(p)
refused(NOT_REGISTERED, c.unregister, p)
equal(c.stats().staged_tasks, 3, "staged tasks")
strict = Client(agent.socket, "strict", strict=True)
refused(STRICT, strict.register, p, 8192)
strict.close()

# notifications: limits, and a segment without a reader is not the sender's problem until full
b = c.batch(3)
refused(INVALID_ARGUMENT, c.notify, b, segment, b"n" * 257, b"")
refused(INVALID_ARGUMENT, c.notify, b, segment, b"n", b"m" * 4097)
c.notify(b, segment, b"n" * 256, b"m" * 4096)
c.notify(b, segment, b"", b"")
c.wait(b)
c.batch_free(b)
equal(owner.recv(), (b"n" * 256, b"m" * 4096), "the longest notification")
equal(owner.recv(), (b"", b""), "the shortest one")
refused(TIMEOUT, owner.recv, 0)

# configuration
for setting, words in [("pool.size=abc", ["[pool] size", "'abc'", "2M to 64T"]),
                       ("pool.nonsense=1", ["[pool] nonsense", "unknown key"]),
                       ("queue.depth=99999999", ["[queue] depth", "2 to 65536"]),
                       ("engine.cores=4095", ["[engine] cores", "4095"]),
                       ("pool.pages=require", ["pages = require", "free hugepages", "reserve", "short"]),
                       ("admin.listen=nowhere", ["[admin] listen", "ADDRESS:PORT"])]:
    more = ["--set", "admin.mode=required"] if "listen" in setting else []
    if "require" in setting:
        more = ["--set", "pool.size=60T"]
    run = subprocess.run(agent.command("--set", setting, *more)[:1] +
                         ["--set", f"agent.socket={agent.dir}/other", "--set", setting, *more],
                         capture_output=True, text=True, timeout=PATIENCE)
    equal(run.returncode, 1, setting)
    equal(len(run.stderr.strip().splitlines()), 1, "lines of " + run.stderr)
    for w in words:
        check(w in run.stderr, setting, run.stderr)
run = subprocess.run(agent.command("--check-config"), capture_output=True, text=True)
equal((run.returncode, run.stdout, run.stderr), (0, "", ""), "--check-config of a good one")

# no hugepages: said once, and shown
if agent.status()["pool"]["fallbacks"] > 0:
    equal(agent.text().count("no free hugepages"), 1, "warnings about hugepages")
    equal(agent.status()["pool"]["page_size"], 4096, "page size in use")
equal(c.info().page_size, agent.status()["pool"]["page_size"], "page size that the client is told")

# no agent, no permission
text = refused(AGENT_DOWN, Client, "/nonexistent/socket")
check("/nonexistent/socket" in text, text)
refused(INVALID_ARGUMENT, Client, "/" + "x" * 200)
if os.getuid() == 0:
    # in a folder that everybody may enter, so that it is the socket's mode that refuses
    guarded = Agent(dir=tempfile.mkdtemp(dir="/tmp", prefix="mcshm-"))
    os.chmod(guarded.dir, 0o755)

    def nobody(pipe):
        os.setgid(65534)
        os.setuid(65534)
        text = refused(PERMISSION, Client, guarded.socket)
        check(guarded.socket in text, text)
    Child(nobody).join()
    os.chmod(guarded.socket, 0o666)

    def admitted(pipe):
        os.setgid(65534)
        os.setuid(65534)
        c = Client(guarded.socket, "nobody")
        c.alloc(4096)
        equal(guarded.ask("ls", "sessions")["sessions"][0]["uid"], 65534, "the session's user")
        c.close()
    Child(admitted).join()
    guarded.finish()
    shutil.rmtree(guarded.dir)

c.close()
owner.close()
agent.finish()
