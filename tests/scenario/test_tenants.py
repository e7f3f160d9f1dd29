#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants: who belongs where, what each may have, that only who asks for too much is refused, what a reload
changes, and that a rate holds. As root clients are of several users; otherwise of this one alone."""
import os
import signal
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

if os.geteuid() != 0:
    skip("takes root: clients of several users")

MiB = 1 << 20
A, B_, OTHER, GROUPED = 61001, 61002, 61003, 61004
RULES = """
[tenant]
memory = 64M
[tenant:one]
uids = 61001
weight = {weight}
memory = {memory}
sessions = 2
queues = 3
tasks = 4
[tenant:two]
uids = 61002
rate = {rate}
[tenant:grouped]
gids = 61900
"""


class Configured(Agent):
    """An agent with a file, which can be written again."""

    def write(self, **more):
        values = dict(weight=1, memory="8M", rate=0)
        values.update(more)
        with open(os.path.join(self.dir, "ini"), "w") as f:
            f.write(RULES.format(**values))

    def command(self, *more):
        return super().command("--config", os.path.join(self.dir, "ini"), *more)

    def reload(self, **more):
        seen = self.text().count("SIGHUP:")
        self.write(**more)
        self.process.send_signal(signal.SIGHUP)
        await_(lambda: self.text().count("SIGHUP:") > seen, "the reload")

    def tenant(self, name):
        return next((t for t in self.ask("ls", "tenants")["tenants"] if t["name"] == name), None)


def at(uid, f, groups=()):
    """Runs f(pipe) in a process of this user."""

    def run(pipe):
        os.setgroups(list(groups))
        os.setgid(uid)
        os.setuid(uid)
        f(pipe)
    return Child(run)


# in a folder that everybody may enter
folder = tempfile.mkdtemp(dir="/tmp", prefix="mcshm-")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
agent = Configured("agent.socket_mode=0666", "pool.extent_size=2M", dir=folder, start=False)
os.chmod(agent.dir, 0o755)
agent.write()
agent.start()


# ---- who belongs where -------------------------------------------------------------

def who(pipe):
    c = Client(agent.socket, "who")
    pipe.send(c.info().tenant)
    pipe.recv()
    c.close()


ids = {}
people = [("one", A, ()), ("two", B_, ()), (str(OTHER), OTHER, ()), ("grouped", GROUPED, (5, 61900, 7)),
          ("grouped", GROUPED + 1, tuple(range(62000, 62200)) + (61900,))]
for name, uid, groups in people:
    child = at(uid, who, groups)
    ids[name] = child.pipe.recv()[0]
    t = agent.tenant(name)
    check(t is not None and t["sessions"] == 1, name, t)
    equal(int(t["id"], 16), ids[name], "id of " + name)
    rows = [s for s in agent.ask("ls", "sessions")["sessions"] if s["name"] == "who"]
    equal([str(s["tenant"]) for s in rows], [name], "the session's tenant")
    child.pipe.send(0)
    child.join()
check(ids[str(OTHER)] == OTHER and all(ids[n] >> 63 == 1 for n in ("one", "two", "grouped")), ids)


# ---- limits of the control thread ----------------------------------------------------

def greedy(pipe):
    c = Client(agent.socket, "first")
    text = refused(LIMIT, c.alloc, 16 * MiB)
    check("[tenant:one] memory = 8388608" in text and "tenant one" in text, text)
    got = [c.alloc(MiB) for _ in range(8)]
    text = refused(LIMIT, c.alloc, MiB)
    check("[tenant:one] memory" in text, text)
    # what is freed can be had again; memory of one's own counts
    for p in got:
        c.free(p)
    fd = os.memfd_create("own", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 16 * MiB)
    import fcntl
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    text = refused(LIMIT, c.register_memfd, fd, 16 * MiB)
    check("[tenant:one] memory" in text, text)
    second = Client(agent.socket, "second")
    text = refused(LIMIT, Client, agent.socket, "third")
    check("[tenant:one] sessions = 2" in text, text)
    q = C.c_void_p()
    c.do("queue_open", c.c, None, C.byref(q))
    more = C.c_void_p()
    text = refused(LIMIT, c.do, "queue_open", c.c, None, C.byref(more))
    check("[tenant:one] queues = 3" in text, text)
    lib.mcshm_queue_close(q)
    # tasks in flight: the fifth is refused in its slot, the four go through
    a = c.alloc(4 * MiB)
    c.publish("greedy")
    address = c.buffer(a, 2 * MiB)
    s = c.open("greedy")
    b = c.batch(12)
    c.submit(b, *[c.request(WRITE, a + 2 * MiB, s, address, 2 * MiB) for _ in range(12)])
    c.wait(b)
    ends = [(c.task(b, i).state, c.task(b, i).error) for i in range(12)]
    check(set(ends) == {(COMPLETED, OK), (INVALID, LIMIT)}, ends)
    check(ends[:4] == [(COMPLETED, OK)] * 4, ends)
    pipe.send(ends.count((INVALID, LIMIT)))
    pipe.recv()
    second.close()
    c.close()


def modest(pipe):
    """A client of another tenant, all the time."""
    c = Client(agent.socket, "modest")
    a = c.alloc(2 * MiB)
    c.publish("modest")
    address = c.buffer(a, MiB)
    s = c.open("modest")
    while True:
        fill(a + MiB, MiB, 7)
        equal(c.write(a + MiB, s, address, MiB).state, COMPLETED, "the modest one's task")
        equal(peek(a + MiB - 1, 1), b"\7", "the modest one's bytes")
        pipe.send(0)
        if pipe.recv()[0]:
            break
    c.close()


beside = at(OTHER, modest)
beside.pipe.recv()
child = at(A, greedy)
refused_tasks = child.pipe.recv()[0]
beside.pipe.send(0)
beside.pipe.recv()
t = agent.tenant("one")
equal(t["refused"]["tasks"], refused_tasks, "tasks refused")
equal((t["refused"]["sessions"], t["refused"]["queues"]), (1, 1), "sessions and queues refused")
check(t["refused"]["memory"] >= 3, t)
equal(t["tasks_in_flight"], 0, "tasks in flight")
equal(t["batches_in_flight"], 0, "batches in flight")
check(t["memory"] >= 4 * MiB and t["bytes"] >= 8 * MiB, t)
equal(sum(agent.tenant(str(OTHER))["refused"].values()), 0, "the modest one was refused nothing")
await_(lambda: {"one", OTHER} <= {t["tenant"] for t in agent.ask("top", "--once")["tenants"]},
       "both tenants in mcshm top")
admin = agent.status()["admin"]["listen"]
metrics = urllib.request.urlopen(f"http://{admin}/metrics", timeout=PATIENCE).read().decode()
check(f'mcshm_tenant_refused_total{{tenant="one",limit="tasks"}} {refused_tasks}' in metrics, metrics)
check('mcshm_tenant_weight{tenant="one"} 1\n' in metrics, metrics)
child.pipe.send(0)
child.join()
await_(lambda: agent.tenant("one")["memory"] == 0, "its memory to be given back")
equal((agent.tenant("one")["sessions"], agent.tenant("one")["queues"]), (0, 0), "what it has now")


# ---- reload --------------------------------------------------------------------------

def holder(pipe):
    c = Client(agent.socket, "holder")
    refused(LIMIT, c.alloc, 10 * MiB)
    pipe.send(0)
    pipe.recv()
    a = c.alloc(10 * MiB)
    pipe.send(0)
    pipe.recv()
    refused(LIMIT, c.alloc, 2 * MiB)  # less than it has: it keeps that, and gets no more
    equal(peek(a, 1), b"\0", "what it has")
    c.close()


child = at(A, holder)
child.pipe.recv()
agent.reload(memory="32M", weight=9)
equal(agent.tenant("one")["weight"], 9, "the weight after a reload")
child.pipe.send(0)
child.pipe.recv()
agent.reload(memory="4M")
child.pipe.send(0)
child.join()
equal(agent.tenant("one")["limits"]["memory"], 4 * MiB, "the limit after another")
# a bad file changes nothing
agent.reload(memory="4M\n[tenant:three]\nuids = 61002")
check("both name user 61002" in agent.text(), agent.text())
equal(agent.tenant("one")["limits"]["memory"], 4 * MiB, "the limit after a bad file")


# ---- rate ----------------------------------------------------------------------------

def rated(pipe):
    c = Client(agent.socket, "rated", caller_max=(1 << 64) - 1)
    equal(c.info().caller_max, 0, "caller_max of a tenant with a rate")
    a = c.alloc(2 * MiB)
    c.publish("rated")
    address = c.buffer(a, MiB)
    s = c.open("rated")
    b = c.batch(24)
    start = time.monotonic()
    c.submit(b, *[c.request(WRITE, a + MiB, s, address, MiB) for _ in range(24)])
    c.wait(b)
    seconds = time.monotonic() - start
    equal([c.task(b, i).state for i in range(24)], [COMPLETED] * 24, "tasks of who has a rate")
    # a deadline holds while it has no leave
    late = c.write(a + MiB, s, address, MiB, deadline_us=2000)
    pipe.send(seconds, late.state)
    c.close()


agent.reload(rate="32M")
child = at(B_, rated)
seconds, late = child.pipe.recv()
child.join()
# 24 MiB at 32 MiB/s, less what was saved up and a slice
check(seconds >= 0.7, seconds, "s for 24 MiB at 32 MiB a second")
equal(late, S_TIMEOUT, "state of a task without leave until its deadline")
check(agent.tenant("two")["throttled_ms"] > 300, agent.tenant("two"))
beside.pipe.send(1)
beside.join()
agent.finish()
