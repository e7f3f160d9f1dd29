#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm trace: the last tasks of a client, each with its stages, op, class, size, path, state and cause.
It remembers a bounded number of them, however many there are, and shows nobody another tenant's."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("agent.socket_mode=0666", dir=public_folder())
c = Client(agent.socket, "tracee", queue=dict(depth=64))
a = c.alloc(4 * MiB)
c.publish("tracee")
at = c.buffer(a + 2 * MiB, 2 * MiB)
s = c.open("tracee")


def mcshm(*words, **more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run([os.path.join(B, "bin/mcshm"), "--socket", agent.socket, *words],
                          capture_output=True, text=True, env=env, **more)


def trace(n, who="tracee"):
    return agent.ask("trace", who, "-n", str(n))


# one of each kind, and how it is told
equal(c.write(a, s, at, 4096).state, COMPLETED)
equal(c.run(c.request(READ, a, s, at, 0, priority=HIGH), pieces=[(0, 0, 64), (128, 128, 64)]).state, COMPLETED)
equal(c.write(a, s, at + 2 * MiB, 64).state, INVALID)
equal(c.run(c.request(WRITE, a, s, at, 2 * MiB, priority=BACKGROUND, flags=FENCE)).state, COMPLETED)
b = c.batch()
c.notify(b, s, b"n", b"hello")
c.wait(b)
c.batch_free(b)
d = trace(5)
fields = [(t["op"], t["shape"], t["class"], t["length"], t["bytes"], t["path"], t["state"], t["error"], t["fence"])
          for t in d["tasks"]]
equal(fields[:4], [
    ("write", "one", "normal", 4096, 4096, "local", "COMPLETED", None, False),
    ("read", "list", "high", 128, 128, "local", "COMPLETED", None, False),
    ("write", "one", "normal", 64, 0, "none", "INVALID", "BAD_RANGE", False),
    ("write", "one", "background", 2 * MiB, 2 * MiB, "local", "COMPLETED", None, True)], "the last tasks")
equal((fields[4][0], fields[4][6]), ("notify", "COMPLETED"), "the notification")
agos = [t["ago_us"] for t in d["tasks"]]
equal(agos, sorted(agos, reverse=True), "the oldest comes first")
check(d["tasks"][3]["move_ns"] > 0 and all(t["queue_ns"] >= 0 for t in d["tasks"]), d["tasks"])
equal(int(d["tasks"][0]["remote_address"], 16), at, "where it went")
equal((len(d["sessions"]), d["sessions"][0]["pid"], d["sessions"][0]["tasks"]), (1, os.getpid(), 5), d["sessions"])

# by session, by pid; the newest N only; nobody
session = d["sessions"][0]["id"]
equal([t["op"] for t in trace(2, str(session))["tasks"]], ["write", "notify"], "the last two, by session")
equal(len(trace(9, str(os.getpid()))["tasks"]), 5, "all of them, by pid")
p = mcshm("trace", "nobody")
equal((p.returncode, len(p.stderr.splitlines())), (1, 1), p.stderr)
check("'nobody'" in p.stderr, p.stderr)
for words in (["trace"], ["trace", "x", "-n", "0"], ["trace", "x", "-n", "4097"], ["trace", "x", "-n", "1K"],
              ["trace", "x", "-n"], ["status", "-n", "1"]):
    p = mcshm(*words)
    equal((p.returncode, len(p.stderr.splitlines())), (2, 1), (words, p.stderr))
p = mcshm("trace", "tracee")
for word in ("tracee", f"pid {os.getpid()}", "QUEUE us", "MOVE us", "NOTIFY us", "BAD_RANGE", "background", "5 of the 5"):
    check(word in p.stdout, word, "in", p.stdout)

# another tenant sees nothing of it, root does
if os.getuid() == 0:
    p = mcshm("trace", "tracee", user=65534, group=65534, extra_groups=[])
    equal((p.returncode, p.stdout), (1, ""), p.stderr)
    check("'tracee' that user 65534 may see" in p.stderr, p.stderr)


# Many tasks: what is kept does not grow, and is the newest; what was left out is counted.
def many(n):
    for _ in range(n // 32):
        b = c.batch(32)
        c.submit(b, *[c.request(WRITE, a, s, at, 64) for _ in range(32)])
        c.wait(b)
        c.batch_free(b)


def rss():
    return int(next(line for line in open(f"/proc/{agent.process.pid}/status") if line.startswith("VmRSS")).split()[1])


count = 20000 if SAN else 200000
many(count // 10)
before = rss()
many(count)
if not SAN:
    check(rss() - before < 512, "kB of memory that the agent took for", count, "tasks:", rss() - before)
check(c.write(a, s, at + 2 * MiB, 128).state == INVALID)
d = trace(4096)
check(0 < len(d["tasks"]) <= 256, len(d["tasks"]), "tasks of one queue are kept")
equal((d["tasks"][-1]["length"], d["tasks"][-1]["error"]), (128, "BAD_RANGE"), "the newest")
done = d["sessions"][0]
equal(done["tasks"], 5 + count // 10 // 32 * 32 + count // 32 * 32 + 1, "tasks that ended")
check(256 <= done["recorded"] <= done["tasks"], done)

# while the engine goes on, each record is whole
for _ in range(20):
    b = c.batch(32)
    c.submit(b, *[c.request(WRITE, a, s, at, 64 + 64 * (i % 2)) for i in range(32)])
    for t in trace(256)["tasks"]:
        check(t["op"] in ("read", "write", "notify") and t["bytes"] in (0, 64, 128) and t["bytes"] <= t["length"], t)
    c.wait(b)
    c.batch_free(b)
    if SAN:
        break
c.close()
agent.finish()
