#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transfers between hosts: sizes, shapes, both directions, notifications, rights and ranges, tenants; over
two rails and several engines with checksums, and once more with etcd and without them."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403
from etcd import Etcd  # noqa: E402

SIZE = 80 * MiB
rng = random.Random(7)


def whole(t, size, what):
    equal((t.state, t.error, t.bytes, PATHS[t.path], t.remote_quiesced),
          (COMPLETED, OK, size, "tcp", True), what)


def sizes(c, s, owner, a):
    """WRITE and READ back; both ends are compared, and what lies beside is untouched."""
    for size in [1, 63, 64, 65, 4095, 4096, 65536, MiB - 1, MiB, MiB + 1, 8 * MiB + 3, 64 * MiB]:
        offset = rng.randrange(64, SIZE - size - 64)
        data = Chunk(rng, size).bytes
        fill(owner.p, SIZE, 0xEE)
        put(a + offset, data)
        whole(c.write(a + offset, s, owner.at + offset, size), size, f"a write of {size} bytes")
        check(owner.peek(offset, size) == data, "bytes written,", size)
        equal(owner.peek(offset - 64, 64), b"\xee" * 64, "bytes before them")
        equal(owner.peek(offset + size, 64), b"\xee" * 64, "bytes behind them")
        fill(a, SIZE, 0xDD)
        whole(c.read(a + offset, s, owner.at + offset, size), size, f"a read of {size} bytes")
        check(peek(a + offset, size) == data, "bytes read,", size)
        equal(peek(a + offset - 64, 64), b"\xdd" * 64, "bytes before them")
        equal(peek(a + offset + size, 64), b"\xdd" * 64, "bytes behind them")


def shapes(c, s, owner, a):
    n = 4 * MiB
    back = a + n
    pieces = [(i * 3000, (499 - i) * 7000, 1 + (i * 37) % 3000) for i in range(500)]
    put(a, Chunk(rng, n).bytes)
    fill(owner.p, n, 0)
    total = sum(p[2] for p in pieces)
    whole(c.run(c.request(WRITE, a, s, owner.at, 0), pieces=pieces), total, "a list")
    for local, remote, length in pieces:
        equal(owner.peek(remote, length), peek(a + local, length), "a piece of a list")
        equal(owner.peek(remote + length, 64), b"\0" * 64, "bytes between pieces")
    pieces = [(remote, remote, length) for _, remote, length in pieces]
    rng.shuffle(pieces)
    fill(back, n, 0)
    whole(c.run(c.request(READ, back, s, owner.at, 0), pieces=pieces), total, "a list back")
    equal(peek(back, n), owner.peek(0, n), "what a list has read")
    fill(owner.p, n, 0)
    whole(c.run(c.request(WRITE, a, s, owner.at, 0), stride=(300, 4000, 4000, 7000)), 300 * 4000, "a stride")
    for i in range(300):
        equal(owner.peek(i * 7000, 4000), peek(a + i * 4000, 4000), "a block of a stride")
        equal(owner.peek(i * 7000 + 4000, 3000), b"\0" * 3000, "bytes between blocks")
    whole(c.run(c.request(READ, back, s, owner.at, 0), stride=(300, 4000, 4000, 7000)), 300 * 4000, "a stride")
    equal(peek(back, 300 * 4000), peek(a, 300 * 4000), "what a stride has read")
    # pieces that join become one run of bytes, and one bad piece among many moves nothing
    whole(c.run(c.request(WRITE, a, s, owner.at, 0), pieces=[(i * 4096, i * 4096, 4096) for i in range(512)]),
          512 * 4096, "pieces that join")
    check(owner.peek(0, 512 * 4096) == peek(a, 512 * 4096), "pieces that join")
    before = owner.peek(0, n)
    fill(a, n, 0x99)
    t = c.run(c.request(WRITE, a, s, owner.at, 0), pieces=[(0, 0, 4096), (0, SIZE - 1, 4096)])
    equal((t.state, t.error, t.bytes), (INVALID, BAD_RANGE, 0), "a list with a piece beyond the end")
    equal(owner.peek(0, n), before, "bytes after it")


def batches(c, s, owner, a):
    """Thousands of small tasks in several batches at once, in all classes."""
    n, count = 4096, 512
    order = list(range(4 * count))
    rng.shuffle(order)
    data = Chunk(rng, n * len(order)).bytes
    put(a, data)
    fill(owner.p, n * len(order), 0)
    for op in (WRITE, READ):
        if op == READ:
            fill(a, n * len(order), 0)
        open_ = []
        for k in range(4):
            b = c.batch(count)
            for i in order[k * count:(k + 1) * count]:
                while True:
                    try:
                        c.submit(b, c.request(op, a + i * n, s, owner.at + i * n, n, cookie=i,
                                              priority=rng.randrange(3)))
                        break
                    except McshmError as e:
                        check(e.status in (RING_FULL, NO_SLOTS), e)
            open_.append(b)
        for k, b in enumerate(open_):
            c.wait(b)
            for j in range(count):
                t = c.task(b, j)
                whole(t, n, "a task of many")
                equal(t.cookie, order[k * count + j], "its cookie")
            c.batch_free(b)
        check(owner.peek(0, len(data)) == data and peek(a, len(data)) == data, "bytes of many tasks")


def order(c, s, owner, a):
    """NOTIFY comes after its data, FENCE after all that was before it."""
    for i in range(20):
        size = rng.choice([1, 4096, 3 * MiB + 1])
        byte = 1 + i % 200
        fill(a, size, byte)
        b = c.batch(2)
        n = note(b"data", b"%d" % i)
        c.submit(b, c.request(WRITE, a, s, owner.at, size, flags=NOTIFY, notify=C.pointer(n)))
        equal(owner.c.recv(), (b"data", b"%d" % i), "a notification")
        equal(owner.peek(0, size), bytes([byte]) * size, "bytes when their notification came")
        c.notify(b, s, b"alone", b"x" * 4096)
        equal(owner.c.recv(), (b"alone", b"x" * 4096), "a notification alone")
        c.wait(b)
        equal([c.task(b, k).state for k in (0, 1)], [COMPLETED] * 2)
        c.batch_free(b)
    refused(TIMEOUT, owner.c.recv, 0)
    for i in range(10):
        b = c.batch(2)
        fill(a, 8 * MiB, i)
        c.submit(b, c.request(WRITE, a, s, owner.at, 8 * MiB, priority=BACKGROUND),
                 c.request(READ, a + 8 * MiB, s, owner.at + 8 * MiB - 64, 64, priority=HIGH, flags=FENCE))
        c.wait(b)
        equal(peek(a + 8 * MiB, 64), bytes([i]) * 64, "a fenced read behind a write")
        c.batch_free(b)


def rights(c, s, owner, a):
    """What was not published is not reached, and the rails do not suffer from such requests."""
    q = owner.c.alloc(MiB)
    fill(q, MiB, 0x33)
    readable = owner.c.buffer(q, 256 * KiB, A_READ)  # after the segment was opened
    writable = owner.c.buffer(q + 512 * KiB, 256 * KiB, A_WRITE)
    whole(c.read(a, s, readable, 4096), 4096, "a buffer that came later")
    equal(peek(a, 4096), b"\x33" * 4096, "its bytes")
    fill(a, MiB, 0x44)
    for what, t, error in (
            ("write to a read-only buffer", c.write(a, s, readable, 64), ACCESS),
            ("read of a write-only buffer", c.read(a, s, writable, 64), ACCESS),
            ("write at 0", c.write(a, s, 0, 64), BAD_RANGE),
            ("read at 0", c.read(a, s, 0, 64), BAD_RANGE),
            ("write over the end", c.write(a, s, owner.at + SIZE - 1, 2), BAD_RANGE),
            ("write across two buffers", c.write(a, s, readable, 768 * KiB), BAD_RANGE),
            ("write that wraps", c.write(a, s, (1 << 64) - 8, 16), BAD_RANGE),
            ("read of what is not published", c.read(a, s, readable + 300 * KiB, 64), BAD_RANGE)):
        equal((t.state, t.error, t.bytes), (INVALID, error, 0), what)
    equal(peek(q, MiB), b"\x33" * MiB, "the owner's bytes")
    equal(peek(a, MiB), b"\x44" * MiB, "the asker's bytes")
    whole(c.write(a, s, writable, 64), 64, "write to a write-only buffer")
    equal(peek(q + 512 * KiB, 64), b"\x44" * 64, "its bytes")
    # taken back while nobody looks
    owner.c.unbuffer(q, 256 * KiB)
    t = c.read(a, s, readable, 64)
    check(t.state in (INVALID, FAILED) and t.error in (BAD_RANGE, REVOKED) and t.bytes == 0,
          "read of a withdrawn buffer", t.state, t.error)
    equal(sum(r["failed"] for r in c.agent.rails()), 0, "slices that rails are blamed for")
    check({r["state"] for r in c.agent.rails()} == {"up"}, c.agent.rails())
    owner.c.free(q)


def private(c, s, owner, a):
    """Memory that is not the pool's is staged."""
    mine = C.create_string_buffer(100000)
    c.register(C.addressof(mine), 100000)
    data = Chunk(rng, 100000).bytes
    put(C.addressof(mine), data)
    equal(c.write(C.addressof(mine), s, owner.at, 100000).state, COMPLETED, "a write from private memory")
    check(owner.peek(0, 100000) == data, "bytes from private memory")
    fill(C.addressof(mine), 100000, 0)
    equal(c.read(C.addressof(mine), s, owner.at, 100000).state, COMPLETED, "a read into private memory")
    check(mine.raw == data, "bytes in private memory")
    c.unregister(C.addressof(mine))


def economy(c, s, owner, a):
    """What is read travels once, in one direction; small things wait for nobody."""
    size = 64 * MiB
    before = c.agent.host.bytes()
    whole(c.read(a, s, owner.at, size), size, "a read")
    received, sent = (now - then for now, then in zip(c.agent.host.bytes(), before))
    # a header of 66 bytes for each 1,448 of data where the kernel finds nothing to put together
    check(size <= received <= 1.06 * size + 100000, f"a read of {size} bytes took {received} bytes")
    check(sent < 0.06 * size + 100000, f"a read of {size} bytes sent {sent} bytes")
    for n in 64, 4096:
        took = []
        for _ in range(200):
            began = time.monotonic()
            whole(c.write(a, s, owner.at, n), n, "a small write")
            took.append(time.monotonic() - began)
        # Nagle's algorithm and delayed acknowledgements would make it 40 ms each
        check(sorted(took)[100] < 0.02, f"the median of {n} bytes is {sorted(took)[100] * 1e3:.1f} ms")
    for agent in (c.agent, owner.agent):
        check(agent.nodelay() == {1}, "TCP_NODELAY of its sockets:", agent.nodelay())


def names(c, owner):
    refused(NOT_FOUND, c.open, c.agent.names("nobody") if c.agent.is_p2p() else "nobody")
    refused(NOT_FOUND, c.open, f"{owner.agent.address}/nobody")
    s = c.open(f"{owner.agent.address}/{owner.name}")  # explicit names are good with any back end
    buffers = c.describe(s)
    check((owner.at, SIZE, RW) in [(b.address, b.size, b.access) for b in buffers], "the description",
          [(b.address, b.size) for b in buffers])
    check(refused_map(c, s, owner.at) in (NOT_SUPPORTED, ACCESS), "memory of another host, mapped")
    c.close_segment(s)
    a = c.alloc(64)
    t = None
    try:
        t = c.write(a, s, owner.at, 64)
    except McshmError as e:
        equal(e.status, INVALID_HANDLE, "a closed handle")
    check(t is None or (t.state, t.error) == (INVALID, INVALID_HANDLE), "a task on a closed handle")
    c.free(a)


def refused_map(c, s, at):
    try:
        c.map(s, at, 4096)
    except McshmError as e:
        return e.status
    return OK


def tenants(frm, to):
    """A segment that is not public is its own tenant's, on other hosts too."""
    closed, public = Owner(to, "closed", 4096), Owner(to, "public", 4096, flags=1)

    def stranger(pipe):
        os.chdir(frm.dir)  # folders on the way are the test's alone
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        c = Client("s", "stranger")
        refused(ACCESS, c.open, closed.names)
        a = c.alloc(4096)
        fill(a, 4096, 5)
        whole(c.write(a, c.open(public.names), public.at, 4096), 4096, "a public segment")
        c.close()
    os.chmod(frm.dir, 0o755)
    Child(stranger).join()
    equal(public.peek(), b"\5" * 4096, "bytes from another tenant")
    equal(closed.peek(), b"\0" * 4096, "bytes of a closed segment")
    closed.close()
    public.close()


def all_of_it(frm, to):
    owner = Owner(to, "owner of " + frm.host.name, SIZE)
    c = Client(frm.socket, "client")
    c.agent = frm
    a = c.alloc(SIZE)
    s = c.open(owner.names)
    for what in (sizes, shapes, batches, order, rights, private, economy):
        what(c, s, owner, a)
    names(c, owner)
    tenants(frm, to)
    c.close()
    owner.close()


settings = ["pool.size=512M", "agent.socket_mode=0666"]
cores = sorted(os.sched_getaffinity(0))
net = Net("a", "b", rails=2)
a, b = (h.agent(*settings, "engine.cores=" + ",".join(map(str, cores[:2]))) for h in net)
all_of_it(a, b)
all_of_it(b, a)
check(a.pings(b) and b.pings(a), "mcshm ping")

# both rails carry, and every engine has its own way
owner = Owner(b, "wide", 16 * MiB)
clients = [Traffic(a, owner, lanes=8, size=MiB, offset=i * 8 * MiB, seed=i) for i in range(2)]
for t in clients:
    t.progress(6)
for t in clients:
    t.finish()
for rail in 0, 1:
    check(sum(r["bytes"] for r in a.rail(b, rail)) > 0, "rail", rail, "carries nothing", a.rails())
    check(a.host.traffic(rail)[1] > MiB, "the interface of rail", rail, "has sent", a.host.traffic(rail))
equal({r["engine"] for r in a.rails(b)}, set(range(len(cores[:2]))), "engines with a way")
# a name that leads back to this very agent is a local segment
own = Client(b.socket, "own")
p = own.alloc(4096)
t = own.write(p, own.open(owner.names), owner.at, 4096)
equal((t.state, PATHS[t.path]), (COMPLETED, "local"), "this agent's own segment by its full name")
own.close()
owner.close()
for agent in a, b:
    for name in "tcp_checksum_errors", "tcp_protocol_errors", "slices_moved_over":
        equal(agent.counted(name), 0, f"{name} of host {agent.host.name}; rails: {agent.rails()}")
finish(a, b)

# etcd, no checksums, one rail
net = Net("a", "b", "e")
a, b, e = net
etcd = Etcd(places=[(e.ns, e.address())])
settings += ["meta.backend=etcd", "meta.endpoints=" + etcd.endpoints, "tcp.checksum=off"]
a, b = a.agent(*settings), b.agent(*settings)
all_of_it(a, b)
all_of_it(b, a)
finish(a, b)
etcd.stop()
