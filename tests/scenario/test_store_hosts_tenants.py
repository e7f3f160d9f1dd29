#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants over two hosts: one key is two objects everywhere, nobody sees, reads, moves or removes another's from whichever host, and a
limit holds also for what is placed by others. Clients are of several users."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

ONE, TWO, QUERY_STORE = 61001, 61002, 8
folder = tempfile.mkdtemp(dir="/tmp", prefix="mcshm-")
os.chmod(folder, 0o755)
atexit.register(shutil.rmtree, folder, ignore_errors=True)
net = Net("a", "b")
paths = [os.path.join(folder, h.name) for h in net]
SETTINGS = ["store.size=32M", "store.extent_size=2M", f"store.master={next(iter(net)).at()}", "store.beat_ms=100",
            "agent.socket_mode=0666", "tenant:one.uids=61001", "tenant:two.uids=61002"]
agents = [h.agent(*SETTINGS, *more, "agent.socket=" + p)
          for h, p, more in zip(net, paths, ([], ["tenant:one.store=4M"]))]
for agent, path in zip(agents, paths):
    agent.socket = path
for agent in agents:
    await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")
there = agents[1].address


def at(uid, f):
    """f(client on the one host, client on the other) in a process of this user; what it returns."""

    def run(pipe):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        both = [Client(p, "c%d" % uid, queue={"args_size": MiB}) for p in paths]
        value = f(*both)
        for c in both:
            c.close()
        pipe.send(value)
        pipe.recv()
    child = Child(run)
    value = child.pipe.recv()[0]
    child.pipe.send("end")
    child.join()
    return value


def own(uid):
    def f(c, d):
        put, get = (c, d) if uid == ONE else (d, c)
        equal([r.status for r in put.put((b"k", b"of %d" % uid), (b"own/%d" % uid, b"x" * 5000))], [OK, OK])
        equal(get.get(b"k"), [(OK, b"of %d" % uid)], "read on the other host")
        return "ok"
    return f


def stranger(uid):
    other = b"own/%d" % (ONE + TWO - uid)

    def f(c, d):
        for x in (c, d):
            equal(x.get(b"k"), [(OK, b"of %d" % uid)], "one key, two objects")
            equal(x.exist(other) + x.remove(other, flags=FORCE), [NOT_FOUND] * 2, "another's")
            equal(x.get(other), [(NOT_FOUND, None)])
            equal(x.hold(other)[0].status, NOT_FOUND)
            refused(NOT_FOUND, x.stat, other)
            refused(NOT_FOUND, x.place, other, there)
            equal(sorted(o["key"] for o in x.list()["objects"]), ["k", f"own/{uid}"], "a list of the cluster")
            equal(x.removed("prefix", other, len(other), FORCE), 0)
        return "ok"
    return f


for step in (own, stranger):
    for uid in (ONE, TWO):
        at(uid, step(uid))

# all of one's own, and nothing of the other's
equal(at(TWO, lambda c, d: c.removed("all", FORCE)), 2)
at(TWO, lambda c, d: equal(c.get(b"k") + d.get(b"k"), [(NOT_FOUND, None)] * 2))
at(ONE, lambda c, d: equal(d.get(b"k", b"own/61001"), [(OK, b"of 61001"), (OK, b"x" * 5000)]))


# a limit of that host's holds for what comes from elsewhere
def much(c, d):
    for i in range(20):
        equal(c.put((b"much/%d" % i, bytes([i]) * MiB), host=there.encode())[0].status, OK, "a put for the other host")
    for i in range(20):
        (status, data), = c.get(b"much/%d" % i, room=MiB)
        check(status == NOT_FOUND or (status, data) == (OK, bytes([i]) * MiB), i, status)
    mine = d.object_json("query", QUERY_STORE)["tenants"][0]
    check(mine["limit"] == 4 * MiB and mine["bytes"] <= 4 * MiB, "the tenant on the host that limits it:", mine)
    return "ok"


at(ONE, much)
finish(*agents)
print("ok")
