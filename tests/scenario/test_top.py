#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm top: rates of agent, engines, clients and tenants from the stats file alone. It goes on while the
agent stands still, while its control thread hangs, while an engine hangs, and after a kill."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
libc = C.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [C.c_long, C.c_int, C.c_void_p, C.c_void_p]
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17


def is_tmpfs(path):
    best = max((line.split()[1:3] for line in open("/proc/mounts")
                if path.startswith(line.split()[1])), key=lambda m: len(m[0]))
    return best[1] == "tmpfs"


def mcshm(socket, *words):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    env["TERM"] = "dumb"
    return subprocess.run([os.path.join(B, "bin/mcshm"), "--socket", socket, *words],
                          capture_output=True, text=True, env=env, timeout=3 * PATIENCE)


def top(socket, *more):
    p = mcshm(socket, "--json", "top", "--once", "--interval", "0.1", *more)
    equal(p.returncode, 0, p.stderr)
    return json.loads(p.stdout)


class Hung:
    """One thread of a process that stands still, the others going on."""

    def __init__(self, pid, name):
        for self.tid in [int(t) for t in os.listdir(f"/proc/{pid}/task")]:
            if open(f"/proc/{pid}/task/{self.tid}/comm").read().strip().startswith(name):
                break
        else:
            raise AssertionError(f"no thread {name}")
        for what in (SEIZE, INTERRUPT):
            check(libc.ptrace(what, self.tid, None, None) == 0, "ptrace", os.strerror(C.get_errno()))
        os.waitpid(self.tid, 0x40000000)  # __WALL

    def go_on(self):
        libc.ptrace(DETACH, self.tid, None, None)


def traffic(socket, name, size):
    def run(pipe):
        c = Client(socket, name)
        a = c.alloc(4 * MiB)
        c.publish(name)
        at, s = c.buffer(a + 2 * MiB, 2 * MiB), None
        s = c.open(name)
        pipe.send("ready")
        while True:
            b = c.batch(16)
            c.submit(b, *[c.request(WRITE, a, s, at, size) for _ in range(16)])
            c.wait(b)
            c.batch_free(b)
    child = Child(run)
    child.pipe.recv()
    return child


def client(d, name):
    return [c for c in d["clients"] if c["name"] == name]


def look(agent, live, tenant):
    big, small = traffic(agent.socket, "big", MiB), traffic(agent.socket, "small", 64)
    s = agent.status()

    def both_move():
        d = top(agent.socket)
        rows = client(d, "big") + client(d, "small")
        return len(rows) == 2 and d["agent"]["pool_used"] and \
            all(c["tasks_rate"] > 0 and c["bytes_rate"] > 0 and c["queues"] for c in rows) and d
    d = await_(both_move, "both clients to move bytes")
    a = d["agent"]
    equal((a["pid"], a["version"], a["incarnation"], a["responds"], a["live_counters"]),
          (s["pid"], s["version"], s["incarnation"], True, live), "the agent's line")
    equal(a["pool_size"], 256 * MiB)
    equal([c["pid"] for c in client(d, "big") + client(d, "small")], [big.pid, small.pid], "pids")
    rates = [c["bytes_rate"] for c in d["clients"]]
    equal(rates, sorted(rates, reverse=True), "the fastest comes first")
    for c in client(d, "big") + client(d, "small"):
        check(c["bytes"] > 0 and c["failed"] == 0 and c["queues"] == 1 and c["memory"] >= 4 * MiB, c)
        check(c["queue_ns"] >= 0 and c["move_ns"] > 0 and 0 < c["p50_ns"] <= c["p99_ns"], c)
    e = d["engines"][0]
    check(e["tasks_rate"] > 0 and e["busy_percent"] > 0 and e["state"] != "stuck", e)
    t = d["tenants"]
    equal((len(t), t[0]["tenant"], t[0]["clients"]), (1, tenant, len(d["clients"])), "tenants")
    equal(t[0]["bytes"], sum(c["bytes"] for c in d["clients"]), "the tenant's bytes")
    # what people see
    p = mcshm(agent.socket, "top", "--once", "--interval", "0.1")
    equal(p.returncode, 0, p.stderr)
    for word in (f"pid {s['pid']}", "big", "small", "TENANT", "BYTES/s", "ENGINE", "P99"):
        check(word in p.stdout, word, "in", p.stdout)
    check("\033" not in p.stdout and "NOT RESPOND" not in p.stdout, p.stdout)
    p = mcshm(agent.socket, "--json", "top", "--count", "2", "--interval", "0.1")
    equal(len(p.stdout.splitlines()), 2, "frames of --count 2")
    return big, small


# ---- a folder on tmpfs: every word is live ---------------------------------------------------------
memory = os.path.isdir("/dev/shm") and is_tmpfs("/dev/shm") and os.access("/dev/shm", os.W_OK)
if memory:
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="mcshm-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    agent = Agent("engine.idle=busy", "agent.socket_mode=0640", dir=folder)
    equal(os.stat(agent.socket + ".stats").st_mode & 0o7777, 0o440, "mode of the stats file")
    big, small = look(agent, True, os.getuid())

    # the control thread hangs: engines and clients go on, and that is seen
    hung = Hung(agent.process.pid, "mcshmd")
    d = await_(lambda: [d for d in [top(agent.socket)] if not d["agent"]["responds"] and
                        d["engines"][0]["tasks_rate"] > 0 and client(d, "big")[0]["bytes_rate"] > 0],
               "top to see that the control thread hangs, and work goes on")[0]
    check(d["agent"]["silent_s"] >= 3 and "debugger" in d["agent"]["process"], d["agent"])
    p = mcshm(agent.socket, "top", "--once", "--interval", "0.1")
    check("THE AGENT DOES NOT RESPOND" in p.stdout and p.returncode == 0, p.stdout)
    hung.go_on()
    await_(lambda: top(agent.socket)["agent"]["responds"], "it to answer again")

    # an engine hangs
    big.kill()
    small.kill()
    await_(lambda: top(agent.socket)["agent"]["sessions"] == 0, "the clients to go")
    worker = [t for t in os.listdir(f"/proc/{agent.process.pid}/task")
              if "worker" in open(f"/proc/{agent.process.pid}/task/{t}/comm").read()]
    check(worker, "a thread of DPDK's",
          [open(f"/proc/{agent.process.pid}/task/{t}/comm").read()
           for t in os.listdir(f"/proc/{agent.process.pid}/task")])
    hung = Hung(agent.process.pid, open(f"/proc/{agent.process.pid}/task/{worker[0]}/comm").read().strip())
    d = await_(lambda: [d for d in [top(agent.socket)] if d["engines"][0]["state"] == "stuck"],
               "the stuck engine")[0]
    check(d["agent"]["responds"], "the control thread does", d)
    p = mcshm(agent.socket, "top", "--once", "--interval", "0.1")
    check("ENGINE 0 DOES NOT RESPOND" in p.stdout, p.stdout)
    hung.go_on()
    await_(lambda: top(agent.socket)["engines"][0]["state"] == "polling", "the engine to poll again")
    agent.finish()
    check(not os.path.exists(agent.socket + ".stats"), "a clean stop leaves its stats file")

# ---- a folder on a disk, or whatever holds the test's files --------------------------------------------
agent = Agent(f"tenant:inference.uids={os.getuid()}")
live = is_tmpfs(os.path.realpath(agent.dir))
if memory:
    big, small = traffic(agent.socket, "big", MiB), traffic(agent.socket, "small", 64)
else:
    big, small = look(agent, live, "inference")


def moves():
    d = top(agent.socket)
    return client(d, "big") and client(d, "big")[0]["bytes_rate"] > 0 and d


d = await_(moves, "the big client's bytes")
equal(d["agent"]["live_counters"], live, "live counters")
equal((client(d, "big")[0]["tenant"], d["tenants"][0]["tenant"]), ("inference", "inference"), "the tenant of a rule")
sums = client(d, "big")[0]["bytes"]

# it stands still as a whole
agent.freeze()
d = await_(lambda: [d for d in [top(agent.socket)] if not d["agent"]["responds"]], "silence")[0]
check("is stopped" in d["agent"]["process"], d["agent"])
check(client(d, "big")[0]["bytes"] >= sums, "what it had counted")

# killed: its last words stay, until the next one replaces them
old = top(agent.socket)["agent"]["incarnation"]
agent.kill()
big.kill()
small.kill()
d = top(agent.socket)
check(not d["agent"]["responds"] and "there is no" in d["agent"]["process"] and client(d, "big"), d)
agent.start()
d = top(agent.socket)
check(d["agent"]["incarnation"] != old and d["agent"]["responds"] and not d["clients"], d)

# a client's name cannot steer the terminal, and one that ended is gone
c = Client(agent.socket, "n\u00e4me")
await_(lambda: client(top(agent.socket), "n\u00e4me"), "its row")
c.close()
await_(lambda: not client(top(agent.socket), "n\u00e4me"), "its row to go")
agent.finish()
p = mcshm(agent.socket, "top", "--once")
equal((p.returncode, len(p.stderr.splitlines())), (1, 1), p.stderr)

# what lies there instead of a stats file is told from one, and keeps nobody waiting
for what in (b"", b"x" * 100, b"\0" * 8192, os.urandom(8192),
             b"\1MCSTATS" + (1).to_bytes(4, "little") + b"\xff" * 8180,
             b"\1MCSTATS" + (2).to_bytes(4, "little") + b"\0" * 8180):
    with open(agent.socket + ".stats", "wb") as f:
        f.write(what)
    p = mcshm(agent.socket, "top", "--once", "--interval", "0.1")
    equal((p.returncode, len(p.stderr.splitlines())), (1, 1), (what[:12], p.stderr))
os.unlink(agent.socket + ".stats")
os.mkfifo(agent.socket + ".stats")
equal(mcshm(agent.socket, "top", "--once").returncode, 1, "a FIFO")
os.unlink(agent.socket + ".stats")

# no room for it: said once, and all else works
os.mkdir(agent.socket + ".stats")
agent.start()
check("going on without counters" in agent.text(), agent.text())
c = Client(agent.socket, "works")
a = c.alloc(MiB)
c.publish("works")
at = c.buffer(a, MiB // 2)
equal(c.write(a + MiB // 2, c.open("works"), at, 4096).state, COMPLETED, "a transfer")
c.close()
agent.finish()
