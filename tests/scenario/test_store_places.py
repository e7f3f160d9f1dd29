#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where objects are, with three hosts: places that are asked for, failure domains, pins and groups that go with what is copied or
moved, a host that is drained, removals over all hosts, and what is told of a host that is gone."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

net = Net("a", "b", "c")
SETTINGS = ["store.size=32M", "store.extent_size=4M", f"store.master={next(iter(net)).at()}", "store.rebuild_ms=300",
            "store.beat_ms=100", "store.away_ms=1500", "store.gone_ms=3000", "store.lease_ms=1000",
            "peer.ping_ms=100", "peer.dead_ms=500", "peer.connect_ms=200"]
agents = [h.agent(*SETTINGS, "store.domain=" + d) for h, d in zip(net, ("rack1", "rack1", "rack2"))]
one, two, three = agents
for agent in agents:
    await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")
c, d, e = clients = [Client(x.socket, "client", queue={"args_size": 4 * MiB}) for x in agents]


def value(key, size=20000):
    return random.Random(key).randbytes(size)


def put(client, *keys, **more):
    results = client.put(*[(k, value(k)) for k in keys], **more)
    equal({r.status for r in results}, {OK}, f"puts of {keys[:3]}")
    return results


def where(key):
    """The hosts whose agents hold it."""
    return [i for i, x in enumerate(clients) if x.exist(key, flags=LOCAL) == [OK]]


def at(key, *hosts):
    await_(lambda: where(key) == list(hosts), lambda: f"{key} to be at {hosts}, it is at {where(key)}")


def here(client, key):
    """What an agent itself says of it."""
    found = [o for o in client.list(key, flags=LOCAL)["objects"] if o["key"].encode() == key]
    check(len(found) == 1, key, "is not there:", found)
    return found[0]


def readable(*keys):
    for x in clients:
        if x is not None:
            equal(x.get(*keys, room=20000), [(OK, value(k)) for k in keys], "read everywhere")


# -- a place that is asked for; one that nobody knows is none

put(c, b"there", host=two.address.encode())
at(b"there", 1)
put(c, b"nowhere known", host=b"10.9.9.9:1")
at(b"nowhere known", 0)
put(c, b"both", host=three.address.encode(), replicas=2)
at(b"both", 0, 2)
readable(b"there", b"nowhere known", b"both")

# -- two replicas are of two failure domains

for i in range(8):
    equal(put(d, b"apart/%d" % i, replicas=2)[0].copies, 2)
    at(b"apart/%d" % i, 1, 2)
equal(put(e, b"thrice", replicas=3)[0].copies, 3, "as far apart as can be, then the rest")
equal(put(e, b"eight", replicas=8)[0].copies, 3, "as many as there are hosts")

# -- pins and groups go with it

put(c, b"hard", host=two.address.encode(), flags=HARD_PIN)
at(b"hard", 1)
equal(here(d, b"hard")["hard_pin"], True, "pinned hard where it has come to")
put(c, b"soft", host=two.address.encode(), soft_pin_ms=600000)
at(b"soft", 1)
check(here(d, b"soft")["soft_pin_ms"] > 300000, here(d, b"soft"))
put(c, b"left", groups=[b"a group"])
put(c, b"right", groups=[b"a group"], host=two.address.encode())
at(b"right", 1)
equal(here(d, b"right")["group"], here(c, b"left")["group"], "one group on both hosts")
put(c, b"hard twice", flags=HARD_PIN, replicas=2)
for i in where(b"hard twice"):
    equal(here(clients[i], b"hard twice")["hard_pin"], True)
for i in range(0, 2400, 100):  # more than fits
    put(d, *[b"fill/%d" % k for k in range(i, i + 100)])
check(two.metric("mcshm_store_evictions_total") > 0, "evicted")
equal(d.exist(b"hard", b"soft", flags=LOCAL), [OK, OK], "what is pinned is there")

# -- what is pinned, held or leased on another host is removed by force alone

equal(c.remove(b"hard"), [IN_USE], "pinned on another host")
equal(e.remove(b"hard"), [IN_USE], "seen from a third")
equal(c.removed("prefix", b"hard", 4, 0), 0, "by prefix")
equal(c.removed("regex", b"^hard", 0), 0, "by expression")
put(d, b"held")
held, = d.hold(b"held")
equal(c.remove(b"held"), [IN_USE], "read in place on another host")
d.release(held.hold)
await_(lambda: c.remove(b"held") == [OK], "nobody to hold it")
put(d, b"leased")
equal(d.exist(b"leased", flags=LEASED, lease_ms=60000), [OK])
equal(c.remove(b"leased", b"no such key"), [IN_USE, NOT_FOUND])
equal(c.remove(b"leased", b"hard", b"hard twice", flags=FORCE), [OK] * 3)
equal(where(b"leased") + where(b"hard") + where(b"hard twice"), [], "gone everywhere")

# -- one more copy, or another place, by request

for x in clients:
    x.removed("all", FORCE)
put(c, b"moves", flags=HARD_PIN)
equal(c.place(b"moves", two.address)["hosts"], [one.address, two.address], "one more has it")
equal(where(b"moves"), [0, 1], "when it is answered")
equal(d.place(b"moves", two.address)["hosts"], [one.address, two.address], "it has it already")
equal(sorted(e.place(b"moves", three.address, of=one.address)["hosts"]), [two.address, three.address], "from here to there")
equal(where(b"moves"), [1, 2])
equal(c.place(b"moves", two.address, of=three.address)["hosts"], [two.address], "both had it")
at(b"moves", 1)
equal(here(d, b"moves")["hard_pin"], True)
readable(b"moves")
refused(NOT_FOUND, c.place, b"no such key", two.address)
refused(NOT_FOUND, c.place, b"moves", "10.9.9.9:1")
refused(NOT_FOUND, c.place, b"moves", one.address, of=three.address)
refused(BAD_KEY, c.place, b"", two.address)
refused(INVALID_ARGUMENT, c.place, b"moves", "x" * 300)
long = b"k" * 4096
put(c, long)
equal(c.place(long, three.address, of=one.address)["hosts"], [three.address], "the longest key")
for i in range(2000):  # pinned: nothing more has room there
    if e.put((b"full/%d" % i, bytes(100000)), flags=HARD_PIN)[0].status != OK:
        break
equal(c.put((b"large", bytes(200000)))[0].status, OK)
refused(NO_SPACE, c.place, b"large", three.address)
readable(b"moves")

# -- over all hosts: lists, and removals by pattern from any of them

for x in clients:
    x.removed("all", FORCE)
for i, x in enumerate(clients):
    put(x, *[b"p/%d/%d" % (i, k) for k in range(50)], *[b"q%d" % (10 * i + k) for k in range(10)])
for x in clients:
    equal(sorted(o["key"] for o in x.list(b"q")["objects"]), sorted("q%d" % k for k in range(30)), "a list")
listed = {o["key"]: o["hosts"] for o in c.list(b"q")["objects"]}
equal([listed["q0"], listed["q10"], listed["q20"]], [[x.address] for x in agents], "on which hosts they are")
equal(c.removed("prefix", b"p/2/", 4, 0), 50, "of a third host")
equal(e.removed("regex", b"^q[0-9]$", 0), 10)
equal([where(b"q5"), where(b"q15"), where(b"p/2/3"), where(b"p/1/3")], [[], [1], [], [1]])
equal(d.removed("all", 0), 50 + 50 + 20)
for x in clients:
    equal(x.list()["objects"], [])

# -- a host is drained: all that it has goes elsewhere, and nothing comes

keys = [b"drain/%d" % i for i in range(100)]
put(d, *keys[:90])
put(d, *keys[90:95], flags=HARD_PIN)
put(d, *keys[95:], replicas=2)
tool = [os.path.join(B, "bin/mcshm"), "--socket", one.socket]
check(command(tool + ["drain", "10.9.9.9:1"]).returncode != 0, "a host that is none")
run(tool + ["drain", two.address])


def left():
    holders = {h["address"]: h for h in one.ask("store", "top", "--once")["directory"]["master"]["holders"]}
    return holders[two.address]["objects"]


await_(lambda: all(1 not in where(k) for k in keys), lambda: f"the host to be empty, {left()} are left", 60)
readable(*keys)
equal({here(clients[where(k)[0]], k)["hard_pin"] for k in keys[90:95]}, {True}, "pins have moved, too")
equal(put(c, b"after", replicas=3)[0].copies, 2, "nothing comes to a host that is drained")
run(tool + ["drain", "--undo", two.address])
await_(lambda: put(c, b"after that", replicas=3, flags=UPSERT)[0].copies == 3, "it to take objects again")

# -- the feed of the leader names every key of a host that is gone, also what others have

c.removed("all", FORCE)
only, twice = [b"only/%d" % i for i in range(40)], [b"twice/%d" % i for i in range(10)]
put(e, *only)
put(e, *twice, host=one.address.encode(), replicas=2)
for k in twice:
    at(k, 0, 2)
begin = c.events()["next"]
three.kill()
clients[2] = None


def lost():
    return [x for x in c.events(begin)["events"] if x["kind"] == "lost"]


await_(lambda: len(lost()) >= 50, lambda: f"all keys of the dead host, {len(lost())} were told", 60)
equal(sorted(x["key"].encode() for x in lost()), sorted(only + twice), "what is told")
equal({x["host"] for x in lost()}, {three.address})
equal(c.exist(*only), [NOT_FOUND] * 40)
equal(c.get(*twice, room=20000), [(OK, value(k)) for k in twice])
for k in twice:
    await_(lambda: d.exist(k, flags=LOCAL) == [OK], "a copy to be made anew")
for x in (c, d):
    x.close()
finish(one, two)
print("ok")
