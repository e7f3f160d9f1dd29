#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects between the GPUs of two hosts: put from one, got into the other, whole, scattered and in ranges; the bytes come to the reader's
store first, with their checksum, and from there to its GPU."""
import random

import cuda
from hosts import *  # noqa: F403

cuda.requires_gpu()
CUDA, TCP, REMOTE, MEMORY = PATHS.index("cuda"), PATHS.index("tcp"), 3, 1
SIZE = 8 * MiB
OWN = ["store.size=64M", "store.extent_size=16M", f"store.master=10.77.0.1:{PORT}"]


def put_one(pipe, socket):
    device, c = cuda.Device(), Client(socket, "writer")
    at = c.alloc(SIZE, location=b"cuda:0")
    pipe.send("ready")
    for n, size in enumerate((1, 4096, 300001, 5 * MiB + 3)):
        device.put(at + n, random.Random(size).randbytes(size))
        r, = c.objects(PUT, [b"size/%d" % size], spans=[[(at + n, size)]], gpu_synced=True)
        equal((r.status, r.path, r.copies), (OK, CUDA, 1), f"put of {size}")
    pipe.send("put")
    pipe.recv()
    c.close()
    device.release()


def main():
    a, b = Net("a", "b")
    one, two = a.agent(*OWN), b.agent(*OWN)
    for agent in (one, two):
        await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")
    writer = Child(lambda pipe: put_one(pipe, one.socket))
    equal(writer.pipe.recv(), ["ready"])
    equal(writer.pipe.recv(), ["put"])

    device, c = cuda.Device(), Client(two.socket, "reader")
    at, host = c.alloc(SIZE, location=b"cuda:0"), c.alloc(SIZE)
    for size in (1, 4096, 300001, 5 * MiB + 3):
        key, data = b"size/%d" % size, random.Random(size).randbytes(size)
        for tier in (REMOTE, MEMORY):  # once it has been brought here it is here
            device.fill(at, SIZE, 0)
            half = size // 2 + 1
            r, = c.objects(GET, [key], spans=[[(at + 7, half), (at + SIZE // 2, half)]], gpu_synced=True)
            equal((r.status, r.size, r.path, r.tier), (OK, size, CUDA, tier), f"got {size}")
            equal(device.get(at + 7, half) + device.get(at + SIZE // 2, size - half), data, f"bytes of {size}")
    # some keys to host memory, which are read as ever, and some to the GPU's, with one that is nowhere among them
    d = Client(one.socket, "puts")
    keys = [b"mixed/%d" % i for i in range(40)]
    data = [random.Random(1000 + i).randbytes(3000 + i) for i in range(40)]
    equal({r.status for r in d.put(*zip(keys, data))}, {OK})
    where = [[(host + i * 4096, 4096)] if i % 3 else [(at + i * 4096, 2000), (host + i * 4096, 96), (at + i * 4096 + 2000, 2000)]
             for i in range(40)]
    r = c.objects(GET, keys[:20] + [b"nowhere"] + keys[20:], spans=where[:20] + [[(at, 1)]] + where[20:], gpu_synced=True,
                  flags=VERIFY)
    equal(r.pop(20).status, NOT_FOUND)
    for i in range(40):
        equal((r[i].status, r[i].path, r[i].tier), (OK, TCP if i % 3 else CUDA, REMOTE), f"key {i}")
        got = peek(host + i * 4096, len(data[i])) if i % 3 else \
            device.get(at + i * 4096, 2000) + peek(host + i * 4096, 96) + device.get(at + i * 4096 + 2000, len(data[i]) - 2096)
        equal(got, data[i], f"bytes of key {i}")
    # ranges of what is elsewhere
    wide = random.Random(5).randbytes(MiB)
    equal([r.status for r in d.put((b"wide", wide))], [OK])
    r, = c.objects(GET, [b"wide"], flags=RANGES, gpu_synced=True, spans=[[(at, 1000, 777), (host, 10, MiB - 10)]])
    equal((r.status, device.get(at, 1000), peek(host, 10)), (OK, wide[777:1777], wide[-10:]), "ranges")
    # two holders: one replica is put from the GPU, the other is pulled by the other host
    device.put(at, wide)
    r, = c.objects(PUT, [b"twice"], spans=[[(at, MiB)]], gpu_synced=True, replicas=2)
    equal((r.status, r.copies), (OK, 2), "a put with two replicas")
    equal(d.get(b"twice", room=MiB, flags=LOCAL | VERIFY), [(OK, wide)], "the other one")
    # what has no room here is refused, and nothing waits
    small = b.agent("store.size=4M", "store.extent_size=4M", f"store.master=10.77.0.1:{PORT}", port=9421)
    await_(lambda: small.metric("mcshm_store_directory_joined") == 1, "a small store to join")
    e = Client(small.socket, "small")
    into = e.alloc(SIZE, location=b"cuda:0")
    r, = e.objects(GET, [b"size/%d" % (5 * MiB + 3)], spans=[[(into, SIZE)]], gpu_synced=True)
    equal(r.status, NO_SPACE, "larger than the reader's store")
    e.close()
    writer.pipe.send("end")
    writer.join()
    d.close()
    c.close()
    device.release()
    for agent in (one, two, small):
        equal(cuda.control.misuse(agent.pid()) if cuda.control else "", "", "misuse of the driver by an agent")


main()
