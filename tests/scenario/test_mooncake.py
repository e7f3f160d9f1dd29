#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Side by side with stock Mooncake processes over P2PHANDSHAKE: both directions, every size, lists, what must be
refused, notifications."""
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from mooncake_stock import *  # noqa: E402,F403


def every_size():
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) * 1024
    sizes = [1, 5, 4095, 4096, 64 * KiB, 64 * KiB + 1, MiB, 16 * MiB + 3]
    sizes += [256 * MiB] if SAN or free < 6 * GiB else [GiB]
    room = sizes[-1] + 4 * KiB
    a = fresh(f"pool.size={2 * room // MiB + 16}M")
    c, theirs, at = public(a, room)
    local = c.alloc(room)
    stock = Stock()
    there = stock.register(room)
    segment = c.open("mooncake:" + stock.name)
    equal([(b.address, b.size) for b in c.describe(segment)], [(there, room)], "what it describes")
    equal(stock.first_address(name_of(a)), at, "what this agent describes")
    for i, size in enumerate(sizes):
        offset = i * 13 % 64
        stock.fill(there + offset, size, 2 * i)
        equal(stock.write(name_of(a), there + offset, at + 7, size), 0, f"stock writes {size}")
        equal(crc_of(theirs + 7, size), stock.crc(there + offset, size), f"stock wrote {size}")
        fill_pattern(local, size, 2 * i + 1)
        completed(c.write(local, segment, there + offset, size), size, f"write of {size}")
        equal(stock.crc(there + offset, size), crc_of(local, size), f"wrote {size}")
        equal(stock.read(name_of(a), there + offset, at + 7, size), 0, f"stock reads {size}")
        equal(stock.crc(there + offset, size), crc_of(theirs + 7, size), f"stock read {size}")
        completed(c.read(local, segment, there + offset, size), size, f"read of {size}")
        equal(crc_of(local, size), stock.crc(there + offset, size), f"read {size}")
    # what went to stock processes is shown like everything else
    rails = [r for r in a.ask("ls", "rails")["rails"] if r["transport"] == "mooncake"]
    equal({r["peer"] for r in rails}, {stock.name}, "peers of Mooncake's rails")
    check(sum(r["bytes"] for r in rails) >= 2 * sum(sizes), "bytes over Mooncake's rails", rails)
    check(a.counter("mooncake_handshakes") > 0 and a.counter("mooncake_data_accepted") > 0, a.status()["counters"])
    equal(a.counter("mooncake_opens"), 1, "segments of stock processes that were opened")
    c.close_segment(segment)
    stock.close()
    c.close()
    a.finish()


def lists_and_many_at_once():
    a = fresh("engine.cores=0,1", "pool.size=64M")
    c, theirs, at = public(a, 8 * MiB)
    local = c.alloc(8 * MiB)
    variants = [{}, {"MC_TCP_ENABLE_CONNECTION_POOL": "1"}, {"MC_TCP_PROTO": "1"}, {"MC_TCP_SLICE_SIZE": "1000"}]
    for i, env in enumerate(variants):
        stock = Stock(**env)
        there = stock.register(8 * MiB)
        segment = c.open("mooncake:" + stock.name)
        stock.fill(there, 4 * MiB, i)
        fill_pattern(local, 4 * MiB, 100 + i)
        # eight of their threads, while this side's queue is full
        stock.call("many", name_of(a), there, at, 512 * KiB, 8, 8)
        for _ in range(4):
            b = c.batch(64)
            c.submit(b, *[c.request(WRITE, local + k * 64 * KiB, segment, there + 4 * MiB + k * 64 * KiB, 64 * KiB)
                          for k in range(64)])
            c.wait(b)
            for k in range(64):
                completed(c.task(b, k), 64 * KiB, f"task {k} of a batch")
            c.batch_free(b)
        equal(stock.wait(), 0, f"failures of stock's threads with {env}")
        if "MC_TCP_PROTO" not in env:  # version 1 reads before its writes have arrived
            equal(crc_of(theirs, 4 * MiB), stock.crc(there, 4 * MiB), f"stock's threads with {env}")
        equal(stock.crc(there + 4 * MiB, 4 * MiB), crc_of(local, 4 * MiB), "batches")
        pieces = [(k * 8 * KiB, 4 * MiB + (1023 - k) * 4 * KiB % (4 * MiB), 4 * KiB) for k in range(512)]
        completed(c.run(c.request(READ, local, segment, there, 0), pieces=pieces), 512 * 4 * KiB, "list")
        for k in (0, 1, 511):
            equal(crc_of(local + pieces[k][0], 4 * KiB), stock.crc(there + pieces[k][1], 4 * KiB), f"piece {k}")
        equal(stock.batch("write", name_of(a), [there + k * 100 for k in range(20)],
                          [at + (19 - k) * 100 for k in range(20)], [100] * 20), 0, "stock's batch")
        c.close_segment(segment)
        stock.close()
    c.close()
    a.finish()


def wrong_ranges():
    a = fresh("pool.size=64M")
    c, p, at = public(a, MiB)
    hidden = c.alloc(MiB)
    reader, q, read_only = public(a, MiB, "ro", A_READ)
    private = Client(a.socket, "private")
    r = private.alloc(MiB)
    secret = private.buffer(r, MiB)
    private.publish("private")
    stock = Stock()
    there = stock.register(MiB)
    me = name_of(a)
    fill(p, MiB, 0xaa)
    for target, size, what in ((at - 1, 2, "before"), (at + MiB - 1, 2, "across the end"), (at + MiB, 1, "behind"),
                               (hidden, 1, "not published"), (secret, 1, "not public"), (1, 1, "nowhere"),
                               (2 ** 64 - 1, 1, "wrap")):
        equal(stock.write(me, there, target, size), -1, "stock writes " + what)
        equal(stock.read(me, there, target, size), -1, "stock reads " + what)
    equal(stock.write(me, there, read_only, 8), -1, "stock writes what may be read only")
    equal(stock.read(me, there, read_only, 8), 0, "stock reads what may be read")
    equal(stock.write(me, there, at, MiB), 0, "and goes on")
    segment = c.open("mooncake:" + stock.name)
    local = c.alloc(MiB)
    for target, size in ((there - 1, 2), (there + MiB - 1, 2), (there + MiB, 1), (0, 1), (2 ** 64 - 1, 1)):
        for op in (c.write, c.read):
            s = op(local, segment, target, size)
            equal((s.state, s.error, s.bytes), (INVALID, BAD_RANGE, 0), f"{op.__name__} of {size} at {target:#x}")
    # what was registered after the opening is found, what was unregistered is refused by its owner
    more = stock.register(MiB)
    completed(c.write(local, segment, more, MiB), MiB, "a buffer that came later")
    equal(stock.unregister(there), 0, "unregister")
    s = c.write(local, segment, there, 4096)
    equal((s.state in (INVALID, FAILED), s.error, s.bytes, s.remote_quiesced), (True, BAD_RANGE, 0, True),
          f"a buffer that went away, state {s.state}")
    completed(c.write(local, segment, more, MiB), MiB, "and goes on")
    # names that lead nowhere
    refused(PEER_UNREACHABLE, c.open, "mooncake:127.0.0.1:1")
    refused(INVALID_ARGUMENT, c.open, "mooncake:")
    refused(PROTOCOL, c.open, f"mooncake:127.0.0.1:{socket_that_talks_nonsense()}")
    # what belongs to a client goes with it
    reader.close()
    await_(lambda: stock.read(me, there, read_only, 8) == -1, "a closed client's memory to be refused")
    c.withdraw()
    equal(stock.read(me, there, at, 8), -1, "stock reads what was withdrawn")
    for x in (c, private):
        x.close()
    stock.close()
    a.finish()


def socket_that_talks_nonsense():
    s = socket.create_server(("127.0.0.1", 0))

    def serve():
        fd, _ = s.accept()
        fd.recv(100)
        fd.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        fd.close()
        s.close()
    threading.Thread(target=serve, daemon=True).start()
    return s.getsockname()[1]


def notifications():
    a = fresh("pool.size=64M")
    c, _, at = public(a, MiB)
    d, _, _ = public(a, MiB, "other")
    stock = Stock()
    there = stock.register(MiB)
    equal(stock.write_notify(name_of(a), there, at, 4096, "kv", "for one"), 0, "write with notification")
    equal(c.recv(), (b"kv", b"for one"), "by name")
    equal(stock.write_notify(name_of(a), there, at, 4096, "anything", "for all"), 0, "write with notification")
    equal((c.recv(), d.recv()), ((b"anything", b"for all"),) * 2, "for all")
    equal(stock.probe(name_of(a)), 0, "probe")
    segment = c.open("mooncake:" + stock.name)
    b = c.batch()
    c.notify(b, segment, b"n", b"m")
    c.wait(b)
    s = c.task(b)
    equal((s.state in (INVALID, FAILED), s.error), (True, NOT_SUPPORTED), "to a stock process")
    c.batch_free(b)
    c.close_segment(segment)
    for x in (c, d):
        x.close()
    stock.close()
    a.finish()


run(every_size, lists_and_many_at_once, wrong_ranges, notifications)
