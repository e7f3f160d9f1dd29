#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Many clients at once with every number of engines, and one core for all of it; idle and stuck agents that use no
CPU; batches used again; processes whose memory lies at the same address; every way a process can end."""
import ctypes
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
CLIENTS = 16 if SAN else 48


def ticks_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- each of many connects, opens another's segment and moves something, whatever the number of engines

cores = sorted(os.sched_getaffinity(0))
for engines in range(1, min(len(cores), 4) + 1):
    agent = Agent("engine.cores=" + ",".join(map(str, cores[:engines])), "engine.spin_us=0", "session.max=256")
    owner = Client(agent.socket, "owner")
    mem = owner.alloc(CLIENTS * 4096)
    owner.publish("owner")
    at = owner.buffer(mem, CLIENTS * 4096)

    def one(k):
        c = Client(agent.socket, f"c{k}")
        p = c.alloc(4096)
        fill(p, 4096, k + 1)
        equal(c.write(p, c.open("owner"), at + k * 4096, 4096).state, COMPLETED, f"client {k}")
        c.close()

    failures = []

    def guarded(k):
        try:
            one(k)
        except BaseException as e:
            failures.append(e)
    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal(failures, [], f"{engines} engines")
    equal(peek(mem, CLIENTS * 4096), b"".join(bytes([k + 1]) * 4096 for k in range(CLIENTS)), "what they wrote")
    owner.close()
    agent.finish()

# ---- an agent that may use one core only

agent = Agent(prefix=["taskset", "-c", str(cores[-1])])
c = Client(agent.socket, "c")
p = c.alloc(MiB)
c.publish("c")
at = c.buffer(p, MiB // 2)
s = c.open("c")
equal(c.write(p + MiB // 2, s, at, MiB // 2).state, COMPLETED, "with one core")

# ---- idle, and with a task that is stuck, it uses next to nothing: compared with one that spins at the same time


def share_of(what, pid):
    """Ticks of the agent beside those of a process that does nothing but spin."""
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=die_with_the_test)
    mine, theirs = ticks_of(pid), ticks_of(spinner.pid)
    await_(lambda: ticks_of(spinner.pid) - theirs >= 40, "a while of spinning", 10 * PATIENCE)
    mine = ticks_of(pid) - mine
    spinner.kill()
    spinner.wait()
    check(mine <= 6, what + ": the agent used", mine, "ticks beside 40 of spinning")


share_of("idle", agent.process.pid)
others = [Client(agent.socket, f"idle-{i}") for i in range(2)]
share_of("with idle clients", agent.process.pid)
full = Client(agent.socket, "full", queue=dict(args_size=2 * MiB))
full.publish("full")
b = c.batch(1)
f = full.open("full")
stuck = full.batch(100)
for _ in range(100):
    full.notify(stuck, f, b"n", b"m" * 4000)
await_(lambda: agent.counter("inbox_full") > 0, "an inbox to be full")
share_of("with stuck tasks", agent.process.pid)
for _ in range(100):
    full.recv()
full.wait(stuck)
for k in range(100):
    equal(full.task(stuck, k).state, COMPLETED, "a task that was stuck")
full.batch_free(stuck)
c.batch_free(b)
for x in others + [full]:
    x.close()

# ---- a batch that has ended says the same for ever, to any thread, and nothing after it was freed

b = c.batch(1)
c.submit(b, c.request(WRITE, p + MiB // 2, s, at, 64))
c.wait(b)
for _ in range(100):
    equal((c.task(b).state, c.task(b).bytes), (COMPLETED, 64), "polled once more")
c.batch_free(b)
for _ in range(4):
    refused(INVALID_HANDLE, c.task, b)
    refused(INVALID_HANDLE, c.batch_free, b)
# the same request, a hundred times, with other bytes and another notification each time
request = c.request(WRITE, p + MiB // 2, s, at, 4096, flags=NOTIFY)
for k in range(100):
    fill(p + MiB // 2, 4096, k)
    request.notify = ctypes.pointer(note(b"n%d" % k, b"m%d" % k))
    equal(c.run(request).state, COMPLETED, f"run {k}")
    equal(peek(p, 4096), bytes([k]) * 4096, f"bytes of run {k}")
    equal(c.recv(), (b"n%d" % k, b"m%d" % k), f"notification of run {k}")

# ---- processes whose memory is at the same address are not taken for each other


def twin(pipe):
    t = Client(agent.socket, "twin")
    q = t.alloc(MiB)
    fill(q, MiB, 0x77)
    t.publish("twin")
    pipe.send(q, t.buffer(q, MiB))
    pipe.recv()
    pipe.send(peek(q, 64).hex())
    t.close()


child = Child(twin)
theirs, address = child.pipe.recv()
clash = ctypes.CDLL(None).mmap
clash.restype = clash.argtypes = None
clash.restype, clash.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
here = clash(theirs, 4096, 3, 0x100022, -1, 0)  # private memory of ours where theirs is, where it is free
if here == theirs:
    fill(here, 4096, 0x11)
t = c.open("twin")
equal(c.read(p, t, address, 64).state, COMPLETED, "a read of theirs")
equal(peek(p, 64), b"\x77" * 64, "their bytes, not those at the same address here")
fill(p + MiB // 2, 64, 0x33)
equal(c.write(p + MiB // 2, t, address, 64).state, COMPLETED, "a write to theirs")
child.pipe.send("look")
equal(child.pipe.recv(), ["33" * 64], "their bytes, written from here")
child.join()
if here == theirs:
    equal(peek(here, 64), b"\x11" * 64, "ours at the same address")

# ---- every way out of a process: the exit status is what was asked for, and nothing of it is left

ways = {"return": ("pass", 0), "sys.exit": ("sys.exit(3)", 3), "exception": ("raise ValueError", 1),
        "os._exit": ("os._exit(4)", 4), "in a thread": ("threading.Thread(target=lambda: os._exit(5)).start()", 5),
        "closed": ("x.close(); y.close()", 0), "two, one closed": ("x.close()", 0)}
for name, (words, code) in ways.items():
    script = f"""import os, sys, threading
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
from mcshm import *
x, y = Client({agent.socket!r}, "x"), Client({agent.socket!r}, "y")
a, b = x.alloc(4096), y.alloc(4096)
{words}
"""
    r = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True)
    equal(r.returncode, code, f"exit status after {name}: {r.stderr}")
    check("Sanitizer" not in r.stderr, name, r.stderr)
await_(lambda: agent.status()["sessions"] == 2, "what ended to be gone")
c.close()
agent.finish()

# ---- a stop with much memory at hand is clean

agent = Agent("pool.size=1G", "pool.pages=off")
c = Client(agent.socket, "large")
large = c.alloc(512 * MiB)
equal(agent.stop(), 0, "exit status with 512 MiB to give back: " + agent.text())
refused(AGENT_DOWN, c.alloc, 64)
c.close()
