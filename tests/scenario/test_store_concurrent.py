#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several processes put the same keys at once: one of them wins, the others are told so, and readers see nothing or
one whole value, never a mixture."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
ROUNDS = {0: 40, 1: 40, 4096: 60, 8 * MiB: 8}
agent = Agent("pool.size=512M", "store.size=256M", "store.extent_size=16M", "store.lease_ms=20")


def value(size, number):
    return bytes([number + 1]) * size


def writer(number):
    def run(pipe):
        c = Client(agent.socket, f"writer{number}")
        at = c.alloc(8 * MiB)
        fill(at, 8 * MiB, number + 1)
        pipe.send("ready")
        while True:
            words = pipe.recv()
            if words == ["end"]:
                break
            key, size, flags = words
            r, = c.objects(PUT, [key], spans=[[(at, size)] if size else []], flags=flags)
            pipe.send(r.status, r.version)
        c.close()
    return run


def reader(pipe):
    """Looks for a key all the time until it is told the next one; whether it found a value."""
    c = Client(agent.socket, "looker")
    at = c.alloc(8 * MiB)
    key, size, highest = None, 0, 8
    pipe.send("ready")
    pipe.s.setblocking(False)
    while True:
        try:
            words = json.loads(pipe.s.recv(65536))
            if words == ["end"]:
                break
            pipe.s.setblocking(True)
            pipe.send("at it")
            pipe.s.setblocking(False)
            key, size, highest = words
        except BlockingIOError:
            pass
        if key is None:
            continue
        seen = c.exist(key)[0]
        r, = c.objects(GET, [key], spans=[[(at, size)] if size else []])
        check(r.status in (OK, NOT_FOUND), "a reader is told", r.status)
        check(seen != OK or r.status == OK, "it exists, and cannot be got", r.status)
        if r.status == OK:
            equal(r.size, size, "size of what is read")
            data = peek(at, size)
            check(size == 0 or (1 <= data[0] <= highest and data == data[:1] * size), "a mixture", data[:20], data[-20:])
            key = None
    c.close()


for writers in (2, 8):
    children = [Child(writer(i)) for i in range(writers)]
    readers = [Child(reader) for _ in range(2)]
    for x in children + readers:
        equal(x.pipe.recv(), ["ready"])
    for size, rounds in ROUNDS.items():
        for n in range(rounds if writers == 2 else rounds // 2):
            key = f"k{writers}/{size}/{n}"
            for x in readers:
                x.pipe.send(key, size, writers)
                equal(x.pipe.recv(), ["at it"])
            for x in children:
                x.pipe.send(key, size, NEW)
            got = [x.pipe.recv() for x in children]
            winners = [i for i, (status, _) in enumerate(got) if status == OK]
            equal(len(winners), 1, f"winners of {key}: {got}")
            check(all(status == EXISTS for i, (status, _) in enumerate(got) if i not in winners), "they waited", got)
    # upserts: the last version is what stays, and it is one of those
    for n in range(30):
        key = f"u{writers}/{n}"
        for x in children:
            x.pipe.send(key, 70000, UPSERT)
        got = [x.pipe.recv() for x in children]
        done = {version: i for i, (status, version) in enumerate(got) if status == OK}
        check(all(status == OK for status, _ in got), "upserts", got)
        c = Client(agent.socket, "judge") if n == 0 else c
        status, data = c.get(key, room=70000)[0]
        equal((status, data), (OK, value(70000, done[max(done)])), "the last upsert stays")
    c.close()
    for x in children + readers:
        x.pipe.send("end")
        x.join()
agent.finish()
