# SPDX-License-Identifier: Apache-2.0
"""A stock Mooncake process, told what to do by lines of JSON on its standard input. mooncake_stock.py starts it
with the Python that has Mooncake's wheel."""
import ctypes
import json
import mmap
import os
import random
import sys
import threading
import zlib

from mooncake.engine import TransferEngine

BLOCK = 1048573
engine = TransferEngine()
buffers = []


def pattern(seed, size):
    block = random.Random(seed).randbytes(min(BLOCK, size))
    for at in range(0, size, len(block)):
        yield at, block[:size - at]


def start(metadata, name):
    return engine.initialize(name, metadata, "tcp", "")


def port():
    return engine.get_rpc_port()


def register(size):
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    buffers.append((address, memory))
    return address if engine.register_memory(address, size) == 0 else 0


def unregister(address):
    return engine.unregister_memory(address)


def place(address):
    for base, memory in buffers:
        if base <= address < base + len(memory):
            return memory, address - base
    raise KeyError(address)


def fill(address, size, seed):
    memory, offset = place(address)
    for at, piece in pattern(seed, size):
        memory[offset + at:offset + at + len(piece)] = piece


def crc(address, size):
    memory, offset = place(address)
    return zlib.crc32(memoryview(memory)[offset:offset + size])


def write(target, address, peer_address, size):
    return engine.transfer_sync_write(target, address, peer_address, size)


def read(target, address, peer_address, size):
    return engine.transfer_sync_read(target, address, peer_address, size)


def write_notify(target, address, peer_address, size, name, message):
    from mooncake.engine import TransferNotify, TransferOpcode  # not in the oldest releases
    return engine.transfer_sync(target, address, peer_address, size, TransferOpcode.Write,
                                TransferNotify(name, message))


def batch(op, target, addresses, peer_addresses, sizes):
    f = engine.batch_transfer_sync_write if op == "write" else engine.batch_transfer_sync_read
    return f(target, addresses, peer_addresses, sizes)


def many(target, address, peer_address, size, threads, times):
    """Several threads that write and read back, each in its own part. The number of failures."""
    failures = []

    def run(k):
        for i in range(times):
            a, p = address + k * size, peer_address + k * size
            if write(target, a, p, size) != 0 or read(target, a, p, size) != 0:
                failures.append((k, i))

    all_threads = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    return len(failures)


def forever(op, target, address, peer_address, size):
    """Until it fails; how often it went well."""
    f = write if op == "write" else read
    n = 0
    while f(target, address, peer_address, size) == 0:
        n += 1
    return n


def first_address(target):
    return engine.get_first_buffer_address(target)


def notifies():
    return [[n.name, n.msg] for n in engine.get_notifies()]


def probe(target):
    return engine.send_probe(target)


ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: a failed test leaves no process
for line in sys.stdin:
    words = json.loads(line)
    print(json.dumps(globals()[words[0]](*words[1:])), flush=True)
sys.stdout.flush()
os._exit(0)
