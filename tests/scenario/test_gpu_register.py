#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU memory that other libraries allocate: by exported handles and by CUDA IPC, freed and allocated anew, by many threads, freed
too early (field report B75)."""
import os
import random
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
MiB = 1 << 20
agent = Agent()


def gpus():
    return agent.ask("ls", "gpus")


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


def client(f):
    """f(device, client) in a process of its own, which leaves nothing behind anywhere."""
    def run(pipe):
        device, c = cuda.Device(), Client(agent.socket, f.__name__)
        f(device, c)
        c.close()
        device.release()
    child = Child(run)
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, f"{f.__name__}: what the client left with the driver")
        await_(lambda: cuda.control.bytes_used() == 0, f"{f.__name__}: device memory to be free")
    await_(agent.empty, f"{f.__name__}: the agent to have nothing left")
    await_(lambda: gpus()["imports_open"] == 0 and gpus()["devices"][0]["imports"] == 0, f"{f.__name__}: imports to go")


def through(c, device, at, size, seed, what, target=None):
    """The range is source and target of transfers: with host memory at the other end, every byte."""
    host = c.alloc(size)
    c.publish("through")
    s, address = c.open("through"), c.buffer(at, size)
    hosts = c.buffer(host, size)
    device.put(at, pattern(seed, size))
    equal(c.read(host, s, address, size).state, COMPLETED, what + ": read of the published range")
    equal(peek(host, size), pattern(seed, size), what + ": read")
    C.memmove(host, pattern(seed + 1, size), size)
    pieces = [(i, i, min(100000, size - i)) for i in reversed(range(0, size, 100000))]
    t = c.run(c.request(READ, at, s, hosts, size, flags=SYNCED), pieces=pieces)
    equal((t.state, PATHS[t.path]), (COMPLETED, "cuda"), what + ": a list into the range")
    equal(device.get(at, size), pattern(seed + 1, size), what + ": a list")
    c.unbuffer(at, size)
    address = c.buffer(at, size, RW | A_MAP_READ | A_MAP_WRITE)
    refused(NOT_SUPPORTED, c.map, s, address, 4096)  # it is not the agent's to give
    c.withdraw()
    c.close_segment(s)
    c.free(host)


def plain(device, c):
    at = device.alloc(3 * MiB)
    around = pattern(1, 3 * MiB)
    device.put(at, around)
    c.register_gpu(at + 4100, 2 * MiB)
    through(c, device, at + 4100, 2 * MiB, 10, "inside an allocation")
    equal(device.get(at, 4100), around[:4100], "before the range")
    equal(device.get(at + 4100 + 2 * MiB, MiB - 4100), around[4100 + 2 * MiB:], "behind the range")
    c.register_gpu(at + 4100, 2 * MiB)  # counts
    c.unregister(at + 4100)
    through(c, device, at + 4100, 2 * MiB, 20, "still registered")
    refused(OVERLAP, c.register_gpu, at, 5000)
    c.unregister(at + 4100)
    refused(NOT_REGISTERED, c.buffer, at + 4100, 4096)
    refused(NOT_REGISTERED, c.unregister, at + 4100)
    device.free(at)


def across(device, c):
    segments = device.segments(2 * MiB, 4 * MiB, 6 * MiB)
    start, size = segments.at + MiB + 8, 6 * MiB
    c.register_gpu(start, size)
    through(c, device, start, size, 30, "across three allocations")
    c.unregister(start)
    c.register_gpu(segments.at, 12 * MiB)
    through(c, device, segments.at, 12 * MiB, 40, "all of them")
    c.unregister(segments.at)
    start = segments.at + 9 * MiB - 4096
    c.register_gpu(start, MiB)
    through(c, device, start, MiB, 50, "in the midst of one")
    c.unregister(start)
    segments.free()


def refusals(device, c):
    host = c.alloc(4096)
    refused(OVERLAP, c.register_gpu, host, 4096)
    text = C.create_string_buffer(4096)
    refused(NOT_REGISTERED, c.register_gpu, C.addressof(text), 4096)
    closed = device.segments(2 * MiB, exportable=False)
    check("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR" in refused(NOT_SUPPORTED, c.register_gpu, closed.at, 4096), "the reason")
    closed.free()
    at = device.alloc(2 * MiB)
    refused(INVALID_ARGUMENT, c.register, at, 4096)  # as if it were the host's
    device.free(at)
    c.free(host)


def again_and_again(device, c):
    """B75: a new allocation at the old address is opened anew, and none stays open."""
    c.publish("again")
    s, host = c.open("again"), c.alloc(8192)
    seen, twice = set(), 0
    for i in range(100):
        at = device.alloc(2 * MiB)
        twice += at in seen
        seen.add(at)
        device.put(at, pattern(i, 8192))
        c.register_gpu(at, 8192)
        address = c.buffer(at, 8192)
        equal(c.read(host, s, address, 8192).state, COMPLETED, f"round {i}")
        equal(peek(host, 8192), pattern(i, 8192), f"round {i}: the bytes of the present allocation")
        if i % 2:
            c.unbuffer(at, 8192)
        c.unregister(at)
        device.free(at)
        if i % 25 == 0:
            equal(gpus()["imports_open"], 0, f"open imports in round {i}")
    check(twice > 0, "addresses came again")
    c.free(host)


def threads(device, c):
    """B75: eight threads register four ranges of one allocation, and take them back, while copies of it run."""
    at = device.alloc(4 * MiB)
    c.register_gpu(at, MiB)
    device.put(at, pattern(7, MiB))
    c.publish("threads")
    s, address, host = c.open("threads"), c.buffer(at, MiB), c.alloc(MiB)
    troubles, going = [], [8]

    def work(n):
        try:
            for _ in range(25):
                c.register_gpu(at + MiB + (n % 4) * 65536, 65536)
                c.unregister(at + MiB + (n % 4) * 65536)
        except BaseException as e:
            troubles.append(e)
        going[0] -= 1

    all_of_them = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in all_of_them:
        t.start()
    copies = 0
    while going[0] > 0 or copies == 0:
        fill(host, MiB, 0)
        equal(c.read(host, s, address, MiB).state, COMPLETED, "a copy meanwhile")
        equal(peek(host, MiB), pattern(7, MiB), "its bytes")
        copies += 1
    for t in all_of_them:
        t.join()
    equal(troubles, [], "of the threads")
    equal(gpus()["imports_open"], 1, "one open for the allocation")
    c.unregister(at)
    equal(gpus()["imports_open"], 0, "closed with the last use")
    device.free(at)


def freed_too_early(device, c):
    """Who frees memory that is registered has broken the rule. The agent and the others live, and everything can be given back."""
    host = c.alloc(MiB)
    c.publish("early")
    s, hosts = c.open("early"), c.buffer(host, MiB)
    for kind in ("segments", "plain") if not cuda.REAL else ("segments",):
        memory = device.segments(2 * MiB) if kind == "segments" else None
        at = memory.at if memory else device.alloc(2 * MiB)
        c.register_gpu(at, MiB)
        memory.free() if memory else device.free(at)
        t = c.run(c.request(WRITE, at, s, hosts, MiB, flags=SYNCED))
        check(t.state in (COMPLETED, FAILED), kind, "a task on it ends", t.state)
        c.unregister(at)
    agent.status()  # it lives
    c.free(host)


def left_registered(device, c):
    """What is not given back goes with the session."""
    c.keep = [device.alloc(2 * MiB), device.segments(2 * MiB, 2 * MiB)]
    c.register_gpu(c.keep[0], MiB)
    c.register_gpu(c.keep[1].at, 3 * MiB)
    c.close()
    device.free(c.keep[0])
    c.keep[1].free()


for f in (plain, across, refusals, again_and_again, threads, freed_too_early, left_registered):
    client(f)
if not cuda.REAL:
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
agent.finish()
