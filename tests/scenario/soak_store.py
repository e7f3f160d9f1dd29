#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three hosts with agents, masters and an etcd, and everything that can happen to them, at random: soak_store.py [MINUTES].

Clients on all hosts put, replace, read and remove a few keys, every value with bytes of its own; meanwhile masters, agents and
etcd are killed and frozen, hosts cut off, clients killed. Agents have supervisors, so no object is lost. What each client has
seen is written down, and held against docs/consistency.md afterwards (history.py). The seed is printed (SEED=... repeats the
choices, not the timing).
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from masters import *  # noqa: E402,F403
import history  # noqa: E402

MINUTES = float(sys.argv[1]) if len(sys.argv) > 1 else 10
KEYS = [f"soak/{n}".encode() for n in range(16)]
ROOM = 70000
seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
print(f"seed {seed}, {MINUTES:g} minutes", flush=True)
rng = random.Random(seed)
folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="h")
if "KEEP" not in os.environ:
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


class Supervised(HostAgent):
    """Under `mcshmd --supervise`: what it holds outlives it."""

    def command(self, *more):
        words = super().command(*more)
        return words[:1] + ["--supervise"] + words[1:]

    def pid(self):
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        children = open(path).read().split()
        return int(children[0]) if children else 0


Host.agent = lambda self, *settings, **more: Supervised(self, *settings, **more)
cluster = Cluster("task.deadline_ms=8000")
if "KEEP" in os.environ:  # logs and histories stay, to be looked at
    for n, x in enumerate(cluster.agents + cluster.masters):
        os.link(x.log, f"{os.path.dirname(folder)}/{'agent' if n < 3 else 'master'}{n % 3}.log")


class Worker:
    def __init__(self, k, life):
        self.k, self.life, self.host = k, life, k % 3
        self.rng = random.Random(f"{seed} {k} {life}")
        self.log = os.open(f"{folder}/{k}.{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.n = 0

    def note(self, **what):
        os.write(self.log, (json.dumps(what) + "\n").encode())

    def run(self, pipe):
        try:
            c = cluster.client(self.host, f"soak {self.k}")
            at = c.room(ROOM)
            pipe.send("at work")
            while True:
                self.round(c, at)
        except McshmError as e:
            if e.status != AGENT_DOWN:
                raise
            with contextlib.suppress(OSError):
                pipe.send("agent down")

    def ask(self, c, at, op, key, me, more):
        if op in ("put", "upsert", "twice"):
            data = history.value(me, key, self.rng.choice([64, 64, 4096, 65536]))
            C.memmove(at, data, len(data))
            result, = c.objects(PUT, [key], spans=[[(at, len(data))]], flags=UPSERT if op == "upsert" else 0,
                                replicas=2 if op == "twice" else 1)
        elif op == "get":
            result, = c.objects(GET, [key], spans=[[(at, ROOM)]])
            if result.status == OK:
                more["value"] = history.identify(C.string_at(at, result.size), key)
        elif op == "exist":
            result, = c.objects(EXIST, [key])
        else:
            result, = c.objects(REMOVE, [key], flags=self.rng.choice([FORCE, 0]))
        return result

    def round(self, c, at):
        r = self.rng
        self.n += 1
        key = r.choice(KEYS)
        op = r.choice(["put", "put", "upsert", "get", "get", "get", "get", "exist", "remove", "twice"])
        me = f"{self.k}.{self.life}.{self.n}"
        self.note(id=me, op=op, key=key.decode(), host=self.host, worker=f"{self.k}.{self.life}", begin=time.monotonic())
        more = {}
        try:
            result = self.ask(c, at, op, key, me, more)
        except McshmError as e:  # the task itself has ended so: whether it was done is not known
            if e.status not in (TIMEOUT, AGENT_RESTARTED):
                raise
            self.note(id=me, end=time.monotonic(), status=e.status)
            return
        self.note(id=me, end=time.monotonic(), status=result.status, version=result.version, **more)
        time.sleep(r.random() * 0.01)


lives = [0] * 6


def employ(k):
    lives[k] += 1
    child = Child(Worker(k, lives[k]).run)
    child.k = k
    return child


def attend(seconds):
    """A while; workers whose agent is gone for good get a successor, others must not end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for k, w in enumerate(workers):
            w.pipe.s.setblocking(False)
            try:
                word = w.pipe.s.recv(64)
            except BlockingIOError:
                continue
            if word == b'["at work"]':
                continue
            check(word == b'["agent down"]', f"worker {k} ended:", word)
            w.join()
            workers[k] = employ(k)
        time.sleep(0.01)


def joined(agent):
    try:
        return agent.metric("mcshm_store_directory_joined") == 1
    except (OSError, AssertionError, http.client.HTTPException, ValueError):
        return False


windows = []  # (host, from, to): it was away, or not whole again


def disturb(i, begin, end, seconds):
    since = time.monotonic()
    begin()
    attend(seconds)
    end()
    limit = time.monotonic() + 60
    while not joined(cluster.agents[i]):
        check(time.monotonic() < limit, "host", i, "does not join again:", cluster.agents[i].text()[-3000:])
        attend(0.05)
    attend(0.3)
    windows.append((i, since, time.monotonic()))


def member(i, hurt, heal, seconds):
    hurt(i)
    attend(seconds)
    heal(i)


workers = [employ(k) for k in range(len(lives))]
happened, end = collections.Counter(), time.monotonic() + MINUTES * 60
while time.monotonic() < end:
    what = rng.choice(os.environ["EVENTS"].split(",") if "EVENTS" in os.environ else [
        "kill master", "kill master", "freeze master", "kill agent", "freeze agent", "kill etcd", "freeze etcd",
        "cut off", "kill worker", "quiet"])
    i, long = rng.randrange(3), rng.uniform(0.2, 6)
    happened[what] += 1
    print(f"{time.monotonic():.3f} {what} {i} {long:.1f} s", flush=True)
    if what == "kill master":
        m = cluster.leader() if rng.random() < 0.7 else None
        m = m or cluster.masters[i]
        m.kill()
        attend(long)
        m.start()
    elif what == "freeze master":
        m = cluster.leader() or cluster.masters[i]
        m.freeze()
        attend(long * 1.5)
        m.thaw()
    elif what == "kill agent":
        a = cluster.agents[i]
        disturb(i, lambda: os.kill(await_(a.pid, "an agent to kill"), signal.SIGKILL), lambda: None, 0.1)
    elif what == "freeze agent":
        a = cluster.agents[i]
        pid = await_(a.pid, "an agent to freeze")
        disturb(i, lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT), long)
    elif what == "kill etcd":
        member(i, cluster.etcd.kill, cluster.etcd.launch, long)
    elif what == "freeze etcd":
        member(i, cluster.etcd.freeze, cluster.etcd.thaw, long)
    elif what == "cut off":
        disturb(i, cluster.hosts[i].drop, cluster.hosts[i].heal, long)
    elif what == "kill worker":
        k = rng.randrange(len(workers))
        workers[k].kill()
        workers[k] = employ(k)
    attend(rng.uniform(0.2, 2))

# -- all is well again: everybody reads the same
cluster.etcd.await_ready()
for i in range(3):
    limit = time.monotonic() + 60
    while not joined(cluster.agents[i]):
        check(time.monotonic() < limit, "host", i, "does not join again:", cluster.agents[i].text()[-3000:])
        attend(0.05)
attend(1)
for w in workers:
    w.kill()
readers = [cluster.client(i, "reader") for i in range(3)]
for key in KEYS:
    def seen():
        found = []
        for c in readers:
            at = c.room(ROOM)
            r, = c.objects(GET, [key], spans=[[(at, ROOM)]])
            if r.status not in (OK, NOT_FOUND):
                return None
            found.append((r.status, r.version if r.status == OK else 0,
                          history.identify(C.string_at(at, r.size), key) if r.status == OK else None))
        return found

    found = await_(seen, f"an answer about {key}", 60)
    check(len(set(found)) == 1, key, "is not the same everywhere:", found)
for c in readers:
    c.close()
operations = history.read(folder)
print(dict(happened), history.check_all(operations, windows), flush=True)
cluster.finish()
