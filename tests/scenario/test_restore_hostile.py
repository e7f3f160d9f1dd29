#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that come back with what is not theirs, or damaged, or twice: refused, and nobody else notices."""
import fcntl
import mmap
import struct

from mcshm import *

(HELLO, QUEUE_OPEN, ALLOC, PUBLISH, SEGMENT_OPEN, SEGMENT_CLOSE, RESTORE, EXTENT_BACK, ALLOCS_BACK, QUEUE_BACK,
 OPEN_BACK, RESUME) = 1, 2, 4, 8, 13, 14, 20, 21, 22, 23, 24, 25
MIB = 1 << 20


def sealed(size):
    fd = os.memfd_create("mine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, 1033, 2 | 4 | 1)  # F_ADD_SEALS: SHRINK, GROW, SEAL
    return fd


class Session:
    """A client by hand, with two extents of its own, a queue and an open segment."""

    def __init__(self, path, name=b"hand"):
        self.path = path
        self.raw = Raw(path)
        _, status, body, fds = self.raw.hello()
        equal(status, OK, "HELLO")
        self.agent, self.incarnation, self.features, self.region_size = struct.unpack("<QQQQ", body[:32])
        self.region, self.doorbell = fds
        check(self.features & 2, "an agent that somebody keeps the ledger for says so")
        self.extents = []
        for _ in range(2):
            body, fds = self.ask(ALLOC, struct.pack("<QQ32s", MIB * 3, 0, b""))
            handle, _, offset, size, address, _ = struct.unpack("<IIQQQQ", body)
            self.extents.append((handle, fds[0], size, offset, address))
        body, fds = self.ask(QUEUE_OPEN, struct.pack("<IIIIQ", 64, 128, 32, 0, 16384))
        self.queue, _, self.queue_size = struct.unpack("<IIQ", body)
        self.queue_fd = fds[0]
        self.ask(PUBLISH, struct.pack("<II256s", 1, 0, name))

    def ask(self, type_, body=b"", fds=(), wanted=OK):
        self.raw.send(type_, body, fds)
        got = self.raw.recv()
        check(got is not None, "the agent has hung up at a message of type", type_)
        equal(got[1], wanted, f"status of a message of type {type_}: {got[2][:200]}")
        return got[2], got[3]

    def restore(self, wanted=OK, incarnation=None, fds=None, abi=2, raw=None):
        """By a connection of its own; keeps it when it was let in."""
        raw = raw or Raw(self.path)
        raw.send(RESTORE, struct.pack("<IIQQQ", abi, 0, 0, self.agent, incarnation or self.incarnation),
                 [self.region] if fds is None else fds)
        got = raw.recv()
        check(got is not None, "hung up at RESTORE")
        equal(got[1], wanted, f"status of RESTORE: {got[2][:200]}")
        if wanted == OK:
            self.raw = raw
            equal(struct.unpack("<QQ", got[2][:16])[1], self.incarnation, "the session is the same")
            check(len(got[3]) == 1, "a doorbell comes along")

    def extent_back(self, i, wanted=OK, fd=None, size=None, handle=None):
        h, own, n, _, address = self.extents[i]
        body, _ = self.ask(EXTENT_BACK, struct.pack("<IIQ", handle or h, 0, size or n),
                           [own if fd is None else fd] if fd != -1 else [], wanted)
        if wanted == OK:
            equal(struct.unpack("<QQ", body)[0], address, "the extent's address")

    def allocs_back(self, i, ranges, wanted=OK, count=None):
        body = struct.pack("<II", self.extents[i][0], len(ranges) if count is None else count)
        body += b"".join(struct.pack("<QQ", *r) for r in ranges)
        self.ask(ALLOCS_BACK, body.ljust(8 + 128 * 16, b"\0"), (), wanted)

    def queue_back(self, wanted=OK, fd=None, depth=64, id_=None):
        self.ask(QUEUE_BACK, struct.pack("<IIIIIIQ", id_ or self.queue, depth, 128, 32, 0, 0, 16384),
                 [self.queue_fd if fd is None else fd], wanted)

    def open_back(self, handle, name, incarnation=1, wanted=OK):
        self.ask(OPEN_BACK, struct.pack("<IIQ256s", handle, 0, incarnation, name), (), wanted)


agent = Supervised("agent.socket_mode=0666", "agent.barrier_ms=100")


def honest(pipe):
    c = Client(agent.socket, "honest")
    p = c.alloc(MIB)
    fill(p, MIB, 42)
    c.publish("honest")
    c.buffer(p, MIB)
    pipe.send("published")
    while pipe.recv()[0] == "look":
        s = c.open("honest")
        status = c.read(p + 4096, s, c.describe(s)[0].address, 4096)
        pipe.send(status.state, peek(p, MIB) == bytes([42]) * MIB)
        c.close_segment(s)
    c.close()


def sitting(pipe):
    """Has a session and does nothing about it."""
    t = Session(agent.socket, b"sitting")
    pipe.send(t.incarnation)
    pipe.recv()


other = Child(honest)
other.pipe.recv()


def others_fine():
    other.pipe.send("look")
    equal(other.pipe.recv(), [COMPLETED, True], "the other client's transfer and memory")


def next_agent():
    agent.await_next(agent.kill_agent())


# ---- what names the session ----
s = Session(agent.socket)
sitter = Child(sitting)
others = sitter.pipe.recv()[0]
region = mmap.mmap(s.region, s.region_size)
queue = mmap.mmap(s.queue_fd, s.queue_size)
next_agent()
s.restore(NOT_FOUND, incarnation=12345)
s.restore(PERMISSION, incarnation=others)  # of a process that lives
s.restore(BAD_SHM, fds=[])
s.restore(BAD_SHM, fds=[sealed(s.region_size)])
s.restore(BAD_SHM, fds=[s.queue_fd])
s.restore(BAD_SHM, fds=[os.open("/dev/zero", os.O_RDWR)])
s.restore(BAD_SHM, fds=[os.open("/proc/self/fd/%d" % s.region, os.O_RDONLY)])
s.restore(VERSION, abi=1)
magic = region[:8]
region[:8] = b"nonsense"
s.restore(BAD_SHM)
region[:8] = magic
inbox = region[512:520]
region[512:520] = struct.pack("<Q", 7)  # inbox_head, in the midst of a unit
s.restore(BAD_SHM)
region[512:520] = inbox


def impostor(pipe):
    """Another process, though it has the descriptors."""
    s.restore(PERMISSION)


Child(impostor).join()
others_fine()
sitter.kill()
s.restore()
s.restore(NOT_FOUND)  # it is back already

# ---- what it hands back ----
s.extent_back(0, NOT_FOUND, handle=0x87654321)
s.extent_back(0, BAD_SHM, fd=-1)
s.extent_back(0, BAD_SHM, fd=s.extents[1][1])  # swapped
s.extent_back(1, BAD_SHM, fd=s.extents[0][1])
s.extent_back(0, BAD_SHM, fd=sealed(s.extents[0][2]))
s.extent_back(0, BAD_SHM, fd=s.queue_fd)
s.extent_back(0, BAD_SHM, size=4096)
s.allocs_back(0, [(0, 64)], INVALID_HANDLE)  # not there yet
s.extent_back(0)
s.extent_back(0, NOT_FOUND)  # twice
s.allocs_back(0, [(0, 4096), (8192, 64)])
s.allocs_back(0, [(8192, 64)], BAD_RANGE)
s.allocs_back(0, [(12288, 64), (12288 + 64, s.extents[0][2])], BAD_RANGE)
s.allocs_back(0, [(12288, 64)])  # of the refused ones none was taken
s.allocs_back(0, [(1 << 63, 1 << 63)], BAD_RANGE)
s.allocs_back(0, [], INVALID_ARGUMENT)
s.allocs_back(0, [], INVALID_ARGUMENT, count=0xffffffff)
s.queue_back(BAD_SHM, fd=s.region)
s.queue_back(BAD_SHM, fd=sealed(s.queue_size))
s.queue_back(BAD_SHM, depth=128)
s.queue_back(NOT_FOUND, id_=77)
header = queue[:512]
queue[:512] = os.urandom(512)
s.queue_back(BAD_SHM)
queue[:512] = header
ring = queue[1024:1024 + 384]
queue[1024:1024 + 384] = b"\xff" * 384  # every word of the ring's header: it claims more than it holds
s.queue_back(BAD_SHM)
queue[1024:1024 + 384] = ring
life = queue[896:1024]
queue[896:900] = struct.pack("<I", 5)  # more taken than was ever put
s.queue_back(BAD_SHM)
queue[896:1024] = life
s.queue_back()
s.queue_back(NOT_FOUND)
s.open_back(5, b"honest", wanted=INVALID_HANDLE)
s.open_back(0x80001007, b"nobody", wanted=NOT_FOUND)
s.open_back(0x80001007, b"honest", wanted=INVALID_HANDLE)  # that index is taken, by a handle to nothing
s.open_back(0x80002008, b"honest", wanted=STALE)  # of another incarnation
used = agent.status()["pool"]["used"]
check(used >= 2 * s.extents[0][2], "memory that is out counts:", used)
others_fine()
s.ask(RESUME)
equal(agent.status()["pool"]["used"], used - s.extents[1][2], "what was not handed back is given up")
# of an extent whose allocations were not all taken back nothing is given: the client may have it
body, fds = s.ask(ALLOC, struct.pack("<QQ32s", 64, 0, b""))
equal((struct.unpack("<II", body[:8])[1], len(fds)), (1, 1), "an allocation beside those that were refused")
s.ask(SEGMENT_CLOSE, struct.pack("<II", 0x80001007, 0))
s.ask(SEGMENT_CLOSE, struct.pack("<II", 0x80002008, 0))
s.ask(PUBLISH, struct.pack("<II256s", 1, 0, b"hand"))  # asked again: the answer could have been lost
s.ask(PUBLISH, struct.pack("<II256s", 0, 0, b"hand"), wanted=EXISTS)
counters = agent.status()["counters"]
check(int(counters["restores_refused"]) > 25 and int(counters["sessions_restored"]) == 2, counters)
equal(int(counters["sessions_lost"]), 1, "sessions that died in limbo")
others_fine()

# ---- out of place: each of them ends its session ----
s.raw.send(RESUME)
equal(s.raw.recv()[1], PROTOCOL, "RESUME without a RESTORE")
check(s.raw.closed(), "and that was the end")
equal(region[528:532], b"\1\0\0\0", "the client is told that it need not come back")
for type_, body in ((ALLOC, struct.pack("<QQ32s", 64, 0, b"")), (RESTORE, bytes(32)),
                    (HELLO, struct.pack("<IIQ256s", 2, 0, 0, b"")), (EXTENT_BACK, bytes(8))):
    s = Session(agent.socket, b"out of place")
    next_agent()
    s.restore()
    s.extent_back(0)
    s.raw.send(type_, body)
    equal(s.raw.recv()[1], PROTOCOL, f"message of type {type_} while coming back")
    check(s.raw.closed(), "and the end")
    await_(lambda: agent.status()["sessions"] == 2, "the session to go")
others_fine()

# ---- who was another user when he connected ----


def other_user(pipe):
    t = Session(agent.socket, b"turncoat")
    pipe.send("connected")
    pipe.recv()
    os.chdir(agent.dir)  # the folders above it may be closed to others
    t.path = "s"
    os.setresuid(65534, 65534, 65534)
    t.restore(PERMISSION)
    pipe.send("refused")
    pipe.recv()


if os.geteuid() == 0:
    os.chmod(agent.dir, 0o755)
    turncoat = Child(other_user)
    turncoat.pipe.recv()
    next_agent()
    turncoat.pipe.send("now")
    equal(turncoat.pipe.recv(), ["refused"], "RESTORE by another user")
    equal(agent.status()["recovery"]["away"], 1, "sessions that are still away")
    turncoat.kill()
    await_(lambda: agent.status()["recovery"]["away"] == 0, "the death of a process to be seen in limbo")

# ---- holes: memory that is taken away under the agent's hands ----
s = Session(agent.socket, b"holes")
fallocate = C.CDLL(None, use_errno=True).fallocate
fallocate.argtypes = [C.c_int, C.c_int, C.c_long, C.c_long]
for fd, size in ((s.region, s.region_size), (s.queue_fd, s.queue_size), (s.extents[0][1], s.extents[0][2])):
    equal(fallocate(fd, 3, 0, size), 0, "a hole")
next_agent()
s.restore(BAD_SHM)  # zeroes
others_fine()

other.pipe.send("end")
other.join()
s.raw.s.close()
for thing in (region, queue):
    thing.close()
agent.kill_agent()  # the last one: what this process still has in limbo cannot come back
await_(lambda: agent.status()["recovery"]["away"] <= 1, "another agent")
equal(agent.stop(), 0, "exit status: " + agent.text())
check("ERROR" not in agent.text() and "panic" not in agent.text(), agent.text())
