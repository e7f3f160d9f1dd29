#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clients pass along with control messages: descriptors of every kind, too many of them, and such that take
their time to be closed. The agent keeps none, and waits for none."""
import ctypes
import fcntl
import mmap
import os
import select
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hostile import *  # noqa: E402,F403

MiB = 1 << 20
LINGER_S = 10 * PATIENCE  # longer than any wait here
agent = Agent()
others = Bystanders(agent, 1)
good = Client(agent.socket, "good")
sessions = 3
await_(lambda: agent.status()["sessions"] == sessions, "the first sessions")
fds = agent.fds()


def all_well(what):
    good.free(good.alloc(4096))  # the control thread answers
    others.progress(what)


def settled(what):
    await_(lambda: agent.status()["sessions"] == sessions, what + ": sessions to go")
    await_(lambda: agent.fds() == fds, f"{what}: descriptors of the agent to be as before: {fds}")


def register(r, *passed, size=4096):
    r.send(6, struct.pack("<Q", size), fds=passed)
    return r.recv()


def register_once(fd):
    """In a session of its own: the answer's status."""
    r = Raw(agent.socket)
    r.hello()
    m = register(r, fd)
    r.s.close()
    return m[1]


# every kind of file but the right one
folder = agent.dir
memfd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.ftruncate(memfd, MiB)
fcntl.fcntl(memfd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
os.ftruncate(unsealed, MiB)
unsealable = os.memfd_create("unsealable")
os.ftruncate(unsealable, MiB)
ends = list(os.pipe())
a, b = socket.socketpair()
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
tcp.bind(("127.0.0.1", 0))
tcp.listen()
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))  # io_uring_setup
wrong = [unsealed, unsealable, *ends, a.fileno(), tcp.fileno(), libc.eventfd(0, 0), libc.epoll_create1(0),
         libc.timerfd_create(1, 0), libc.inotify_init1(0), libc.pidfd_open(os.getpid(), 0), os.open(folder, os.O_RDONLY),
         os.open(agent.log, os.O_RDWR), os.open(agent.socket, os.O_PATH), os.open("/dev/zero", os.O_RDWR),
         os.open("/dev/null", os.O_WRONLY), os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/maps", os.O_RDONLY),
         os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY), os.open(f"/proc/self/fd/{memfd}", os.O_PATH)] + \
    ([ring] if ring >= 0 else [])
r = Raw(agent.socket)
m = r.hello()
wrong += m[3]  # its own session region and doorbell
wrong.append(r.s.fileno())  # the connection itself
for fd in wrong:
    try:
        m = register(r, fd)
    except OSError:  # of io_uring, which newer kernels let nobody pass
        equal(fd, ring, "what cannot be passed")
        continue
    check(m is not None, "thrown out for", os.readlink(f"/proc/self/fd/{fd}"))
    wanted = (OK, BAD_SHM) if fd == wrong[-3] else (BAD_SHM,)  # the session region is a sealed memfd as good as any
    check(m[1] in wanted, os.readlink(f"/proc/self/fd/{fd}"), m)
equal(register(r, memfd, size=2 * MiB)[1], BAD_SHM, "a memfd smaller than announced")
equal(register(r, memfd, memfd)[1], INVALID_ARGUMENT, "two memfds")
equal(register(r)[1], INVALID_ARGUMENT, "no memfd")
equal(register(r, memfd, size=MiB)[1], OK, "a good one, after all that")
check(agent.counter("descriptors_unwanted") >= len(wrong) - 2, "what was not taken is counted")
all_well("wrong descriptors")
r.s.close()
settled("wrong descriptors")
for fd in [unsealed, unsealable, *ends] + wrong[6:-1]:
    os.close(fd)

# too many, and where none belong: one message may carry 253
for n in (1, 2, 3, 17, 253):
    for type_, body in ((3, b"\0" * 8), (6, struct.pack("<Q", 4096)), (1, b"\0" * 272)):
        if type_ == 6 and n < 3:
            continue
        r = Raw(agent.socket)
        r.hello()
        r.send(type_, body, fds=[memfd] * n)
        check(r.closed(), n, "descriptors with a message of type", type_)
        r.s.close()
# a flood: connection after connection, full of them and of others' ends of connections
for k in range(40):
    r = Raw(agent.socket)
    r.s.setblocking(False)
    try:
        for _ in range(20):
            r.send(6, struct.pack("<Q", 4096), fds=[memfd, a.fileno(), r.s.fileno()] * 80)
    except OSError:
        pass
    r.s.close()
all_well("a flood of descriptors")
settled("a flood of descriptors")

# hundreds of registrations in one session, to the limit of its table, and gone with it
r = Raw(agent.socket)
r.hello()
for k in range(4097):
    m = register(r, memfd)
    if m[1] != OK:
        break
equal((k, m[1]), (4096, LIMIT), "registrations of one session")
check(agent.fds() >= fds + 4096, "each is held")
all_well("4096 registrations")
r.s.close()
settled("4096 registrations")


# ---- files that take their time to be closed ----

def lingering():
    """A TCP connection whose last close waits for a peer that does not read: (descriptor, the peer's end)."""
    out = socket.create_connection(tcp.getsockname())
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    peer, _ = tcp.accept()
    out.setblocking(False)
    try:
        while True:
            out.send(b"x" * 65536)
    except BlockingIOError:
        pass
    out.setblocking(True)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    return out, peer


def closes_slowly(what, deliver):
    """deliver(session, descriptor) leaves the agent with the last reference."""
    out, peer = lingering()
    r = Raw(agent.socket)
    r.hello()
    agent.freeze()  # else its close may come first, and be none of the last reference
    deliver(r, out.fileno())
    os.close(out.detach())
    agent.thaw()
    all_well(what)
    r.s.close()
    all_well(what + ", and gone")
    return peer


def one(r, fd):
    r.send(6, struct.pack("<Q", 4096), fds=[fd])


def many(r, fd):
    r.send(3, b"\0" * 8, fds=[memfd] * 250 + [fd])


def unread(r, fd):
    """Behind enough other requests that the agent has hung up before it comes to this one."""
    r.s.setblocking(False)
    r.send(255, b"")
    try:
        r.send(6, struct.pack("<Q", 4096), fds=[fd])
    except OSError:
        pass


peers = []
for what, deliver in (("a lingering socket", one), ("a lingering socket among too many", many),
                      ("a lingering socket that was never read", unread)):
    peers.append(closes_slowly(what, deliver))
late = Client(agent.socket, "late")  # connections are taken meanwhile
late.close()
for p in peers:
    p.close()
settled("lingering sockets")

# so many of them that the user gets no more taken: those that come then are not waited for either
AT_A_TIME = 14  # of a session, which is worth one turn of the agent
slow = [lingering() for _ in range(6 * AT_A_TIME)]
sessions_of = [Raw(agent.socket) for _ in range(6)]
for r in sessions_of:
    r.hello()
agent.freeze()
for k, (out, _) in enumerate(slow):
    one(sessions_of[k // AT_A_TIME], out.fileno())
    os.close(out.detach())
agent.thaw()
all_well("a user whose sockets linger")
answers = []
for r in sessions_of:
    for _ in range(AT_A_TIME):
        answers.append(r.recv()[1])
        if answers[-1] != BAD_SHM:
            break
check(answers.count(BAD_SHM) >= 64 and set(answers) <= {BAD_SHM, LIMIT}, "some are looked at, more are refused:", answers)
all_well("a user whose sockets linger, and who passes more")
for r in sessions_of:
    r.s.close()
for _, p in slow:
    p.close()
settled("many lingering sockets")

# files of a FUSE server that does not answer: it is asked at each close of each descriptor
INIT = struct.pack("<IIIIHHI", 7, 31, 0, 0, 16, 16, 65536) + b"\0" * 36
FLUSH = 25
MOUNT = os.path.join(folder, "fuse")
shared = mmap.mmap(-1, 4096)
asked, answer = (memoryview(shared)[k * 64:k * 64 + 8].cast("Q") for k in range(2))


def fuse_server(fd, tester):
    """Serves two files. FLUSH is counted in asked and answered once answer is 1; the tester's own at once, or it could
    not end. What "mute" is like is known for no time, and told to the tester alone. Dies with the tester, which ends all waiting."""
    attr, mute = (struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0) for node in (2, 3))
    root = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o040777, 2, 0, 0, 0, 4096, 0)
    held = []

    def reply(unique, body=b"", error=0):
        os.write(fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
    while True:
        while held and answer[0]:
            reply(held.pop())
        if not select.select([fd], [], [], 0.01)[0]:
            continue
        try:
            data = os.read(fd, 1 << 20)
        except OSError:  # unmounted
            return
        _, op, unique, node, _, _, pid, _ = struct.unpack_from("<IIQQIIII", data)
        if op == 26:
            reply(unique, INIT)
        elif op == 1 and data[40:] == b"mute\0":  # LOOKUP
            reply(unique, struct.pack("<QQQQII", 3, 0, 3600, 0, 0, 0) + mute)
        elif op == 1:
            reply(unique, struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + attr)
        elif op == 3 and node == 3:  # GETATTR
            if pid == tester:
                reply(unique, struct.pack("<QII", 0, 0, 0) + mute)
        elif op == 3:
            reply(unique, struct.pack("<QII", 3600, 0, 0) + (root if node == 1 else attr))
        elif op in (14, 27):  # OPEN
            reply(unique, struct.pack("<QII", 1, 0, 0))
        elif op == FLUSH and pid != tester:
            asked[0] += 1
            held.append(unique)
        elif op in (18, 29, FLUSH):  # RELEASE
            reply(unique)
        elif op not in (2, 42, 36):  # FORGET, INTERRUPT have no answer
            reply(unique, error=-38)


def mount_fuse():
    """A mount that nobody else sees, and that goes with this process: (its server, a descriptor of its file)."""
    if os.getuid() != 0 or not os.path.exists("/dev/fuse") or libc.unshare(0x20000) != 0:  # CLONE_NEWNS
        return None, -1
    libc.mount(b"none", b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
    os.mkdir(MOUNT)
    tester, fd = os.getpid(), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"test", MOUNT.encode(), b"fuse", 0, options) != 0:
        os.close(fd)
        return None, -1
    child = Child(lambda pipe: (die_with_the_test(), fuse_server(fd, tester)))
    os.close(fd)
    return child, os.open(os.path.join(MOUNT, "file"), os.O_RDWR)


server, f = mount_fuse()
if server is None:
    print("no FUSE here: files that are slow to close are sockets only")
else:
    r = Raw(agent.socket)
    r.hello()
    for k in range(10):
        equal(register(r, f)[1], BAD_SHM, "a file of a FUSE server")
    await_(lambda: asked[0] == 10, "the agent to close them")
    all_well("files that their server does not let go of")
    # a user who has so many pending gets no more taken
    for k in range(4):
        s = Raw(agent.socket)
        s.hello()
        s.send(3, b"\0" * 8, fds=[f] * 10)
        check(s.closed(), "descriptors with a message that takes none")
        s.s.close()
    for _ in range(14):
        equal(register(r, f)[1], BAD_SHM, "fewer than 64 hang")
    m = register(r, f)
    equal(m[1], LIMIT, "a descriptor of a user whose others hang")
    check(b"still wait to be closed" in m[2], m)
    check(r.closed(), "the session of a descriptor that is not taken")
    r.s.close()
    equal(register_once(memfd), LIMIT, "any other of that user's")
    all_well("a user whose descriptors hang")
    check(agent.fds() < fds + 128, "descriptors that hang are bounded:", agent.fds(), "of", fds)
    answer[0] = 1
    await_(lambda: register_once(memfd) == OK, "descriptors to be taken again")
    settled("files of a FUSE server")
    # nor is it asked what its file is like, which takes as long as it pleases
    f2 = os.open(os.path.join(MOUNT, "mute"), os.O_RDWR)
    for type_, body in ((6, struct.pack("<Q", 4096)),
                        (32, struct.pack("<16sQQQQQQII64s", b"", MiB, 0, 4096, 0, 4096, 0, 0, 0, b""))):  # REGISTER, GPU_IMPORT
        r = Raw(agent.socket)
        r.hello()
        r.send(type_, body, fds=[f2])
        equal(r.recv()[1], BAD_SHM, f"a file whose server says nothing, request {type_}")
        r.s.close()
        all_well("a file whose server says nothing")
    settled("files whose server says nothing")
    os.close(f2)
    os.close(f)
    libc.umount2(MOUNT.encode(), 2)
    server.kill()

others.finish()
good.close()
agent.finish()

# an agent that ends while something does not close
second = Agent(dir=folder)
out, peer = lingering()
r = Raw(second.socket)
r.hello()
second.freeze()
one(r, out.fileno())
os.close(out.detach())
second.thaw()
equal(r.recv()[1], BAD_SHM, "a socket")
equal(second.stop(), 0, "exit status: " + second.text())
check("do not close" in second.text(), "it says what it leaves behind:", second.text())
