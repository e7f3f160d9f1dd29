# SPDX-License-Identifier: Apache-2.0
"""The control file of the double of libcuda.so.1 (tests/fake-cuda/fake.h, the same layout): rules, counts."""
import ctypes as C
import mmap
import os

DEVICES, RULES, PROCESSES, MEMORIES, CALLS = 8, 32, 256, 8192, 96
OFF, FAIL, LOSE, SLEEP, HANG = range(5)
COUNTS = ("contexts", "retains", "handles", "mappings", "reservations", "allocations", "opened", "host", "registrations",
          "streams", "events", "copies", "bytes", "batches", "staged", "pageable", "opens", "registered_bytes")
OBJECTS = COUNTS[:11]  # what can be left behind


class Rule(C.Structure):
    _fields_ = [("call", C.c_char * 40), ("action", C.c_uint32), ("result", C.c_int32), ("pid", C.c_uint32), ("ms", C.c_uint32),
                ("first", C.c_uint64), ("times", C.c_uint64), ("seen", C.c_uint64), ("acted", C.c_uint64), ("waiting", C.c_uint64)]


class Process(C.Structure):
    _fields_ = [("pid", C.c_uint32), ("misuses", C.c_uint32), ("sentence", C.c_char * 200),
                ("counts", (C.c_int64 * len(COUNTS)) * DEVICES), ("calls", C.c_uint64 * CALLS)]


class Memory(C.Structure):
    _fields_ = [("inode", C.c_uint64), ("size", C.c_uint64), ("device", C.c_uint32), ("reserved", C.c_uint32),
                ("holders", C.c_uint64 * (PROCESSES // 64))]


class Layout(C.Structure):
    _fields_ = [("magic", C.c_uint64), ("size", C.c_uint32), ("ncalls", C.c_uint32), ("delay_us", C.c_uint32),
                ("delay_pid", C.c_uint32), ("names", (C.c_char * 40) * CALLS), ("rules", Rule * RULES),
                ("processes", Process * PROCESSES), ("memories", Memory * MEMORIES)]


class Control:
    """A new file, for all processes that are started from now on."""

    def __init__(self, path):
        with open(path, "wb+") as f:
            f.truncate(C.sizeof(Layout))
            self.memory = mmap.mmap(f.fileno(), C.sizeof(Layout))
        self.at = Layout.from_buffer(self.memory)
        os.environ["FAKE_CUDA_CONTROL"] = path

    def arm(self, call, action, result=0, first=1, times=1, pid=0, place=0):
        """At the first-th call of that name from now on and `times` of them (0: all). result: a CUresult, or milliseconds."""
        r = self.at.rules[place]
        r.action = OFF
        r.call, r.result, r.ms, r.pid, r.first, r.times, r.seen, r.acted = call.encode(), result, result, pid, first, times, 0, 0
        r.action = action

    def disarm(self):
        for r in self.at.rules:
            r.action = OFF

    def waiting(self, place=0):
        """Threads that sleep or hang at the rule."""
        return self.at.rules[place].waiting

    def delay(self, us, pid=0):
        """Before each operation of a stream."""
        self.at.delay_pid, self.at.delay_us = pid, us

    def process(self, pid):
        """What the process that last had this id has had to do with the double; None: nothing."""
        found = None
        for p in self.at.processes:
            if p.pid == pid:
                found = p
        return found

    def count(self, pid, what, device=None):
        p = self.process(pid)
        if p is None:
            return 0
        return sum(p.counts[d][COUNTS.index(what)] for d in (range(DEVICES) if device is None else [device]))

    def calls(self, pid, name):
        p = self.process(pid)
        for i in range(self.at.ncalls if p is not None else 0):
            if self.at.names[i].value == name.encode():
                return p.calls[i]
        return 0

    def left(self, pid):
        """What of the driver's the process has now: {} when it is nothing."""
        return {what: self.count(pid, what) for what in OBJECTS if self.count(pid, what) != 0}

    def bytes_used(self):
        """Of all devices' memory, by anybody who lives."""
        alive = sum(1 << i for i, p in enumerate(self.at.processes) if p.pid != 0 and os.path.exists(f"/proc/{p.pid}"))
        return sum(m.size for m in self.at.memories
                   if m.inode != 0 and alive & sum(word << 64 * i for i, word in enumerate(m.holders)))

    def misuse(self, pid):
        p = self.process(pid)
        return p.sentence.decode() if p is not None and p.misuses else ""
