#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent with two engines dies under a client that has much: a hundred extents, hundreds of allocations,
memfds of its own, queues on both engines, and a name in etcd that another agent's clients know."""
import fcntl
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403

MiB = 1 << 20
EXTENTS = 100
KILLS = 2 if SAN else 3

etcd = Etcd(1)
ports = free_ports(2)


def settings(port):
    return (f"peer.listen=127.0.0.1:{port}", "meta.backend=etcd", f"meta.endpoints={etcd.url}", "pool.size=600M",
            "pool.pages=off")


cores = sorted(os.sched_getaffinity(0))[:2]
agent = Supervised("engine.cores=" + ",".join(str(c) for c in cores), *settings(ports[0]))
other = Agent(*settings(ports[1]))
random.seed(7)


def owner(pipe):
    c = Client(agent.socket, "owner")
    # whole extents, each filled with what no other has
    large = [c.alloc(2 * MiB) for _ in range(EXTENTS)]
    # small ones of every size, with gaps between them
    small = [(c.alloc(n), n) for n in (random.randrange(1, 3000) for _ in range(600))]
    for p, _ in small[::3]:
        c.free(p)
    small = [s for i, s in enumerate(small) if i % 3]
    memfds = []
    for i in range(3):
        fd = os.memfd_create("own", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, MiB)
        fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, SHRINK
        memfds.append(c.register_memfd(fd, MiB))
        os.close(fd)
    c.publish("wide")
    things = [(p, 2 * MiB) for p in large] + small + [(p, MiB) for p in memfds]
    marks = [os.urandom(64) for _ in things]
    for (p, n), mark in zip(things, marks):
        C.memmove(p, mark[:n], min(n, 64))
        C.memmove(p + n - 1, mark[:1], 1)
    addresses = [c.buffer(p, n) for p, n in things[:EXTENTS] + things[-3:]]
    pipe.send(addresses, [m.hex() for m in marks[:EXTENTS] + marks[-3:]])
    while True:
        what = pipe.recv()[0]
        if what == "end":
            c.close()
            return
        for (p, n), mark in zip(things, marks):
            equal((peek(p, min(n, 64)), peek(p + n - 1, 1)), (mark[:n] if n == 1 else mark[:min(n, 64)] if n > 64 else
                                                              mark[:n - 1] + mark[:1], mark[:1]), "memory of the owner")
        # what is free is free, what is taken is taken: new allocations overlap nothing
        fresh = [(c.alloc(n), n) for n in (random.randrange(1, 3000) for _ in range(50))]
        taken = sorted([(p, p + n) for p, n in things + fresh])
        for a, b in zip(taken, taken[1:]):
            check(a[1] <= b[0], "allocations that overlap", a, b)
        for p, _ in fresh:
            c.free(p)
        pipe.send(c.info().restarts)


child = Child(owner)
addresses, marks = child.pipe.recv()
clients = [Client(agent.socket, f"reader {i}") for i in range(4)]  # their queues are spread over the engines
engines = {t["id"]: t for t in agent.status()["engines"]}
equal(len(engines), len(cores), "engines")
locals_ = [c.alloc(4096) for c in clients]
handles = [c.open("wide") for c in clients]
far = Client(other.socket, "far")
far_local = far.alloc(4096)
far_handle = far.open("wide")
equal(far.read(far_local, far_handle, addresses[0], 64).state, COMPLETED, "from the other host")
segment = agent.ask("ls", "segments")["segments"][0]
extents = {e["address"]: e["size"] for e in agent.ask("ls", "extents")["extents"]}
record = json.loads(etcd.ctl("get", "--print-value-only", "mcshm/segments/wide"))

for life in range(KILLS):
    before = agent.kill_agent()
    agent.await_next(before)
    await_(lambda: all(c.info().restarts == life + 1 for c in clients), "all to be back")
    child.pipe.send("look")
    equal(child.pipe.recv(), [life + 1], "restarts of the owner")
    for c, p, s in zip(clients, locals_, handles):
        for i in random.sample(range(len(addresses)), 10):
            t = c.read(p, s, addresses[i], 64)
            equal((t.state, t.error, peek(p, 64).hex()), (COMPLETED, OK, marks[i]), f"buffer {i} by the old handle")
    now = agent.ask("ls", "segments")["segments"][0]
    equal((now["name"], now["incarnation"], sorted(b["address"] for b in now["buffers"])),
          (segment["name"], segment["incarnation"], sorted(b["address"] for b in segment["buffers"])), "the segment")
    equal({e["address"]: e["size"] for e in agent.ask("ls", "extents")["extents"]}, extents, "extents and their places")
    # the record in etcd is the new agent's, of the same segment
    own = agent.status()["incarnation"]

    def taken_over():
        r = json.loads(etcd.ctl("get", "--print-value-only", "mcshm/segments/wide") or "{}")
        return r if int(r.get("agent_incarnation", 0)) == int(own, 16) else None
    fresh = await_(taken_over, "etcd to name the present agent")
    equal(fresh["incarnation"], record["incarnation"], "the segment's incarnation in etcd")

    # the other host's client opens it again, and has the same
    def open_again():
        try:
            s = far.open("wide")
        except McshmError:
            return None
        t = far.read(far_local, s, addresses[-1], 64)
        far.close_segment(s)
        return t.state == COMPLETED
    await_(open_again, "the other host to reach it again")
    equal(peek(far_local, 64).hex(), marks[-1], "what it read")
turns = agent.status()["engines"]
check(all(int(e["tasks"]) > 0 for e in turns), "each engine has served somebody since:", turns)
child.pipe.send("end")
child.join()
for c in clients + [far]:
    c.close()
await_(agent.empty, lambda: "all to go: " + json.dumps(agent.status()))
equal(agent.stop(), 0, "exit status: " + agent.text())
equal(other.stop(), 0, "exit status: " + other.text())
await_(lambda: etcd.keys("mcshm/segments/") == [], "the name to go from etcd")
