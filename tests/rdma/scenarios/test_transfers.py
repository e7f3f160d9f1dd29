#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 150
"""All sizes, offsets and shapes over two and over four devices, both directions; every byte at both ends is looked at."""
from rdma import *  # noqa: F403

GUARD = 64  # bytes before and after each piece that must not change
SIZES = [1, 2, 7, 8, 63, 64, 65, 219, 220, 221, 4095, 4096, 4097, 65535, 65536, 65537, MiB - 1, MiB, MiB + 1, 3 * MiB + 5]
SPACE = 80 * MiB
rng = random.Random(5)


def there_and_back(c, segment, owner, size, here, there):
    """WRITE from offset `here` of the client's memory to offset `there` of the owner's, and READ it back elsewhere."""
    data = Chunk(rng, size).bytes
    put(c.out + here, data)
    fill(owner.p + there - GUARD, size + 2 * GUARD, 0xa5)
    s = c.write(c.out + here, segment, owner.at + there, size)
    equal((s.state, s.error, PATHS[s.path], s.bytes, s.remote_quiesced), (COMPLETED, OK, "rdma", size, True),
          f"WRITE of {size}")
    check(owner.peek(there, size) == data, "WRITE of", size, "at", here, there, "brought other bytes")
    check(owner.peek(there - GUARD, GUARD) == owner.peek(there + size, GUARD) == b"\xa5" * GUARD,
          "WRITE of", size, "at", here, there, "changed bytes around it")
    fill(c.back + here - GUARD, size + 2 * GUARD, 0x5a)
    s = c.read(c.back + here, segment, owner.at + there, size)
    equal((s.state, s.error, PATHS[s.path], s.bytes), (COMPLETED, OK, "rdma", size), f"READ of {size}")
    check(peek(c.back + here, size) == data, "READ of", size, "at", here, there, "brought other bytes")
    check(peek(c.back + here - GUARD, GUARD) == peek(c.back + here + size, GUARD) == b"\x5a" * GUARD,
          "READ of", size, "at", here, there, "changed bytes around it")


def client(agent, size):
    c = Client(agent.socket, "mover")
    c.out, c.back = c.alloc(size), c.alloc(size)
    return c


def lists(c, segment, owner):
    """Blocks of a list and a stride: each lands at its place, nothing between them changes."""
    size, count = 3000, 200
    data = Chunk(rng, MiB).bytes
    put(c.out, data)
    fill(owner.p, 2 * MiB, 0)
    pieces = [(5000 * i + i % 9, 9973 * i + i % 5, size + i % 3) for i in range(count)]
    r = c.request(WRITE, c.out, segment, owner.at, 0)
    r.length = sum(p[2] for p in pieces)
    s = c.run(r, pieces=pieces)
    equal((s.state, s.error, PATHS[s.path]), (COMPLETED, OK, "rdma"), "a WRITE of a list")
    wanted = bytearray(2 * MiB)
    for l, r, n in pieces:
        wanted[r:r + n] = data[l:l + n]
    equal(owner.peek(0, 2 * MiB), bytes(wanted), "the target of a list")
    fill(c.back, MiB, 0)
    r = c.request(READ, c.back, segment, owner.at, 0)
    r.length = sum(p[2] for p in pieces)
    s = c.run(r, pieces=pieces)
    equal((s.state, s.error, PATHS[s.path]), (COMPLETED, OK, "rdma"), "a READ of a list")
    wanted = bytearray(MiB)
    for l, r, n in pieces:
        wanted[l:l + n] = data[l:l + n]
    equal(peek(c.back, MiB), bytes(wanted), "what a READ of a list brought")
    r = c.request(WRITE, c.out, segment, owner.at, 256 * 512)
    fill(owner.p, MiB, 0)
    s = c.run(r, stride=(256, 512, 1024, 2048))
    equal((s.state, s.error, PATHS[s.path]), (COMPLETED, OK, "rdma"), "a WRITE of strides")
    wanted = bytearray(MiB)
    for i in range(256):
        wanted[2048 * i:2048 * i + 512] = data[1024 * i:1024 * i + 512]
    equal(owner.peek(0, MiB), bytes(wanted), "the target of strides")


def rights(x, y):
    """What is published for one is refused to the other, and a range beyond the buffer to all; nothing moves (B62)."""
    for access, op, bad in ((A_READ, READ, WRITE), (A_WRITE, WRITE, READ)):
        owner = Owner(y, f"rights{access}", MiB, access=access)
        c = client(x, MiB)
        segment = c.open(owner.names)
        fill(owner.p, MiB, 7)
        fill(c.out, MiB, 9)
        s = c.run(c.request(bad, c.out, segment, owner.at, 4096))
        equal((s.state == COMPLETED, s.error), (False, ACCESS), "without the right")
        equal(owner.peek(0, 4096) + peek(c.out, 4096), b"\7" * 4096 + b"\11" * 4096, "bytes without the right")
        s = c.run(c.request(op, c.out, segment, owner.at, 4096))
        equal((s.state, PATHS[s.path]), (COMPLETED, "rdma"), "with the right")
        for at, size in ((owner.at + MiB - 10, 11), (owner.at - 1, 2), (owner.at + MiB, 1)):
            s = c.run(c.request(op, c.out, segment, at, size))
            check(s.state != COMPLETED and s.error in (BAD_RANGE, NOT_REGISTERED), "beyond the buffer:", s.state, s.error)
        c.close()
        owner.close()


for rails in 2, 4:
    a, b = sides(rails)
    x, y = a.agent("pool.size=512M"), b.agent("pool.size=512M")
    for one, other in ((x, y), (y, x)):
        owner = Owner(other, "owner", SPACE)
        meet(one, owner)
        c = client(one, SPACE)
        segment = c.open(owner.names)
        one.await_rails(other, *range(rails))
        if one is y and rails == 4:  # the other way has been through all sizes
            sizes = [8, 4096, MiB]
        else:
            sizes = SIZES
        for size in sizes:
            there_and_back(c, segment, owner, size, GUARD, GUARD)
            there_and_back(c, segment, owner, size, GUARD + rng.randrange(1, 4096), GUARD + rng.randrange(1, 4096))
        if one is x:
            there_and_back(c, segment, owner, 64 * MiB, 4096, 8192)
            there_and_back(c, segment, owner, 17 * MiB + 3, 4097, 8191)
        lists(c, segment, owner)
        for rail in range(rails):
            check(one.carried(other, rail) > 0, "nothing went over rail", rail, one.rails(other))
        c.close()
        owner.close()
    if rails == 2:
        rights(x, y)
    finish(x, y)

# requests larger than a device's longest message (8 MiB there) are cut
a, b = sides(1)
x, y = (side.agent("pool.size=512M", "rdma.slice=32M", "rdma.window=64M") for side in (a, b))
owner = Owner(y, "owner", SPACE)
meet(x, owner)
c = client(x, SPACE)
segment = c.open(owner.names)
for size in 8 * MiB - 1, 8 * MiB, 8 * MiB + 1, 33 * MiB:
    there_and_back(c, segment, owner, size, GUARD + 1, GUARD + 2)
c.close()
owner.close()
finish(x, y)
