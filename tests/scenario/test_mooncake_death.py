#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stock Mooncake processes and agents that die, stand still or take memory away half-way."""
import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from mooncake_stock import *  # noqa: E402,F403


def revoked_half_way():
    size = 64 * MiB
    a = fresh("pool.size=160M")
    c, p, at = public(a, size)
    for op in ("write", "read"):
        stock = Stock()
        there = stock.register(size)
        stock.fill(there, size, 1)
        before = crc_of(p, size)
        stock.call("forever", op, name_of(a), there, at, size)
        if op == "write":
            await_(lambda: crc_of(p, size) != before, "writes to arrive")
        start = time.monotonic()
        c.revoke(p, size)
        check(time.monotonic() - start < PATIENCE, "revoke() waits for a stranger")
        fill(p, size, 0x5a)
        mine = crc_of(p, size)
        stock.wait()
        equal(crc_of(p, size), mine, "memory after its revocation")
        equal(stock.read(name_of(a), there, at, 8), -1, "what was revoked")
        at = c.buffer(p, size)
        stock.close()
    c.close()
    a.finish()


def stock_dies():
    size = 32 * MiB
    a = fresh("pool.size=160M", "peer.down_ms=500")
    c, p, at = public(a, size)
    local = c.alloc(size)
    stock = Stock()
    there = stock.register(size)
    segment = c.open("mooncake:" + stock.name)
    completed(c.write(local, segment, there, size), size, "before")
    # it stands still: what has a deadline ends by it, the rest goes on when it does
    stock.freeze()
    start = time.monotonic()
    s = c.write(local, segment, there, size, deadline_us=400000)
    check(0.3 < time.monotonic() - start < PATIENCE, "deadline of 0.4 s took", time.monotonic() - start)
    equal((s.state, s.error, s.remote_quiesced), (S_TIMEOUT, TIMEOUT, False), "a frozen process")
    b = c.batch(4)
    c.submit(b, *[c.request(op, local + k * MiB, segment, there + k * MiB, MiB) for k, op in
                  enumerate((WRITE, READ, WRITE, READ))])
    time.sleep(0.6)  # longer than a path that is dead would be waited for
    stock.thaw()
    c.wait(b)
    for k in range(4):
        completed(c.task(b, k), MiB, f"task {k} across a standstill")
    c.batch_free(b)
    # killed with work under way
    stock.freeze()
    b = c.batch(2)
    # the read is one slice: the write takes all connections that are left
    c.submit(b, c.request(READ, local, segment, there, 64 * KiB), c.request(WRITE, local, segment, there, size))
    await_(lambda: c.task(b, 0).state == PENDING and c.task(b, 1).state == PENDING, "work to be under way")
    stock.kill()
    c.wait(b)
    r, w = c.task(b, 0), c.task(b, 1)
    check(w.state == FAILED and w.error in (RAIL, PEER_UNREACHABLE) and not w.remote_quiesced,
          "write to a killed process:", w.state, w.error, w.remote_quiesced)
    check(r.state == FAILED and r.error in (RAIL, PEER_UNREACHABLE) and r.remote_quiesced,
          "read from a killed process:", r.state, r.error, r.remote_quiesced)
    c.batch_free(b)
    s = c.write(local, segment, there, 4096)
    equal((s.state, s.error), (FAILED, PEER_UNREACHABLE), "after it died")
    c.close_segment(segment)
    # killed while it writes here and reads from here
    for op in ("write", "read"):
        stock = Stock()
        there = stock.register(size)
        stock.fill(there, size, 3)
        before = crc_of(p, size)
        stock.call("forever", op, name_of(a), there, at, size)
        if op == "write":
            await_(lambda: crc_of(p, size) != before, "writes to arrive")
        stock.kill()
        c.revoke(p, size)
        fill(p, size, 7)
        at = c.buffer(p, size)
    c.close()
    a.finish()


def agent_dies():
    size = 32 * MiB
    a = fresh("pool.size=64M")
    c, p, at = public(a, size)
    stock = Stock()
    there = stock.register(size)
    stock.fill(there, size, 1)
    stock.call("forever", "write", name_of(a), there, at, size)
    await_(lambda: crc_of(p, size) == 0 or crc_of(p, MiB) != 0, "writes to arrive")
    a.kill()
    stock.wait()  # it comes back with an error
    c.close()
    stock.close()


def strangers():
    """Noise on both ports does not disturb those who behave."""
    a = fresh("pool.size=64M")
    c, p, at = public(a, MiB)
    stock = Stock()
    there = stock.register(MiB)
    host, port = name_of(a).split(":")
    idle = []
    for target in (int(port), data_port_of(a)):
        for k in range(200):
            s = socket.create_connection((host, target))
            if k % 4 == 1:
                s.sendall(os.urandom(k))
            elif k % 4 == 2:
                s.sendall(b"\0")
            elif k % 4 == 3:
                s.sendall(b"\xff" * 30)
            idle.append(s)
        equal(stock.write(name_of(a), there, at, MiB), 0, "write beside noise")
        equal(stock.probe(name_of(a)), 0, "probe beside noise")
    for s in idle:
        s.close()
    c.close()
    stock.close()
    a.finish()


def connections_go_with_the_last_handle():
    a = fresh("pool.size=64M", "mooncake.connections=3")
    c, _, _ = public(a, MiB)
    stock = Stock()
    there = stock.register(MiB)
    local = c.alloc(4096)
    before = a.fds()
    segments = [c.open("mooncake:" + stock.name) for _ in range(5)]
    for s in segments:
        completed(c.write(local, s, there, 4096), 4096, "a shared peer")
    await_(lambda: a.fds() == before + 3, lambda: f"three connections: {a.fds() - before}")
    for s in segments:
        c.close_segment(s)
    await_(lambda: a.fds() == before, lambda: f"no connection: {a.fds() - before}")
    # a client that dies leaves none either
    def client(pipe):
        d = Client(a.socket, "mortal")
        d.open("mooncake:" + stock.name)
        pipe.send("open")
        pipe.recv()
    child = Child(client)
    child.pipe.recv()
    await_(lambda: a.fds() > before, "a connection")
    child.kill()
    await_(lambda: a.fds() == before, lambda: f"no connection: {a.fds() - before}")
    c.close()
    stock.close()
    a.finish()


run(revoked_half_way, stock_dies, agent_dies, strangers,
    connections_go_with_the_last_handle)
