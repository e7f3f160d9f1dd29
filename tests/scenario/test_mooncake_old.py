#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Side by side with the oldest release of stock Mooncake that the wheel is there of."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from mooncake_stock import *  # noqa: E402,F403


def the_oldest_release():
    """It speaks version 1: a WRITE has no answer, and each connection carries one request."""
    try:
        python = stock_python("0.3.7.post1")
    except NoMooncake as reason:
        skip(f"no old Mooncake to test with: {reason}")
    a = fresh("pool.size=64M")
    c, p, at = public(a, 8 * MiB)
    local = c.alloc(8 * MiB)
    stock = Stock(python=python)
    there = stock.register(8 * MiB)
    segment = c.open("mooncake:" + stock.name)
    for i, size in enumerate((1, 4096, MiB, 8 * MiB)):
        fill_pattern(local, size, i)
        completed(c.write(local, segment, there, size), size, f"write of {size}")
        equal(stock.crc(there, size), crc_of(local, size), f"wrote {size}")
        stock.fill(there, size, 100 + i)
        completed(c.read(local, segment, there, size), size, f"read of {size}")
        equal(crc_of(local, size), stock.crc(there, size), f"read {size}")
        equal(stock.write(name_of(a), there, at, size), 0, f"stock writes {size}")
        await_(lambda: crc_of(p, size) == stock.crc(there, size), f"what stock wrote: {size}")
        stock.fill(there, size, 200 + i)
        equal(stock.read(name_of(a), there, at, size), 0, f"stock reads {size}")
        equal(stock.crc(there, size), crc_of(p, size), f"stock read {size}")
    b = c.batch(64)
    c.submit(b, *[c.request(WRITE, local + k * 4096, segment, there + k * 4096, 4096) for k in range(64)])
    c.wait(b)
    for k in range(64):
        completed(c.task(b, k), 4096, f"task {k}")
    c.batch_free(b)
    equal(stock.crc(there, 256 * KiB), crc_of(local, 256 * KiB), "a batch")
    c.close_segment(segment)
    stock.close()
    c.close()
    a.finish()


run(the_oldest_release)
