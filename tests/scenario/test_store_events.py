#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The feed of what happens to objects: order, numbers, what is told of each, reading on, what was lost, another life; and the
same over HTTP, only where it is asked for."""
import os
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB, QUERY_STORE = 1 << 20, 8
agent = Supervised("store.size=8M", "store.extent_size=4M", "store.events=1M", "agent.barrier_ms=100")
me = Client(agent.socket, "me")


def put(key, data, **more):
    r = me.put((key, data), **more)[0]
    equal(r.status, OK, f"a put of {key}")
    return r


def kinds(first=1, limit=1000000):
    return [(e["kind"], e.get("key", e.get("key_hex"))) for e in me.events(first, limit)["events"]]


# what happens is told in its order, with what it is about
r = put(b"a", b"first")
put(b"a", b"again")  # nothing is written, nothing is told
put(b"a", b"second!", flags=UPSERT)
put(b"\xff\0", b"x")
equal(me.remove(b"a"), [OK], "a removal")
feed = me.events(1, 1000)
equal(kinds(), [("stored", "a"), ("stored", "a"), ("replaced", "a"), ("stored", "ff00"), ("removed", "a")], "the feed")
equal([e["number"] for e in feed["events"]], [1, 2, 3, 4, 5], "numbers")
equal((feed["first"], feed["next"], feed["lost"]), (1, 6, 0), "first, next, lost")
e = feed["events"][0]
equal((e["size"], e["version"], int(e["crc32c"], 16), e["tenant"]), (5, r.version, r.crc, os.geteuid()), "an event")

# it is read in parts, and on from where one was
got, at = [], 1
while True:
    part = me.events(at, 2)
    if not part["events"]:
        break
    got += part["events"]
    at = part["next"]
equal(got, feed["events"], "the feed in parts")
refused(INVALID_ARGUMENT, me.events, 1, 0)

# evictions are told
for i in range(12):
    put(b"push-%d" % i, bytes(MiB))
gone = [e["key"] for e in me.events(at)["events"] if e["kind"] == "evicted" and e.get("key")]
there = {o["key"] for o in me.list()["objects"] if "key" in o}
equal({b.decode() for b in (b"push-%d" % i for i in range(12))} - there, set(gone), "what went, and what was told to have")

# a reader that is too slow is told how much it has missed
at = me.events(1)["next"]
long = b"k" * 4000
for i in range(400):
    put(long + b"%d" % i, b"")
feed = me.events(at)
check(feed["lost"] > 0 and feed["first"] == at + feed["lost"], "lost:", feed["first"], feed["lost"], at)
equal([e["number"] for e in feed["events"]], list(range(feed["first"], feed["next"])), "numbers of what is left")

# the next life begins to count anew, says so, and does not tell again what was there before
epoch = feed["epoch"]
agent.await_next(agent.kill_agent())
feed = me.events(1)
check(feed["epoch"] != epoch and feed["next"] < at, "the feed of the next life:", feed["epoch"], feed["next"])
check(not [e for e in feed["events"] if e["kind"] == "stored"], "it tells of old objects as new ones")
put(b"new", b"n")
check(("stored", "new") in kinds(feed["next"]), "what the next life has stored:", kinds())
me.close()
agent.finish()


# over HTTP
def fetch(a, path):
    try:
        with urllib.request.urlopen(f"http://{a.status()['admin']['listen']}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


off, on = Agent(), Agent("admin.events=on")
code, text = fetch(off, "/events")
check(code == 403 and "[admin] events = on" in text, "/events where it is off:", code, text)
c = Client(on.socket, "c")
c.put((b"x", b"1"), (b"y", b"2"))
code, text = fetch(on, "/events")
equal(code, 200, "/events")
equal([e["key"] for e in json.loads(text)["events"]], ["x", "y"], "events over HTTP")
equal(json.loads(fetch(on, "/events?from=2&limit=1")[1])["events"][0]["key"], "y", "the second")
equal(json.loads(fetch(on, "/events?from=3")[1])["events"], [], "what has not happened yet")
for wrong in ("from=x", "limit=0", "limit=10001", "from=-1", "limit="):
    equal(fetch(on, "/events?" + wrong)[0], 400, wrong)
c.close()
off.finish()
on.finish()
