#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects of other hosts while agents stop, are cut off and come back: a stalled agent keeps its objects, a holder that restarts has
none of a former life's bytes read, a reader that dies with leases holds up nobody for longer than they last, and a leader
that restarts is told everything anew."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

QUEUE = {"args_size": 16 * MiB}
net = Net("a", "b", "m")
a, b, m = net
SETTINGS = ["store.size=64M", "store.extent_size=8M", f"store.master={m.at()}", "store.rebuild_ms=300",
            "store.beat_ms=100", "store.away_ms=1500", "store.gone_ms=3000", "store.lease_ms=6000",
            "peer.ping_ms=100", "peer.dead_ms=500", "peer.connect_ms=200"]


def joined(*agents):
    for agent in agents:
        await_(lambda: agent.metric("mcshm_store_directory_joined") == 1, f"{agent.address} to join the directory")


def value(key, size=50000):
    return random.Random(key).randbytes(size)


def eventually(what, f):
    await_(f, what)


lead, one, two = m.agent(*SETTINGS), a.agent(*SETTINGS), b.agent(*SETTINGS)
joined(lead, one, two)
c, d = Client(one.socket, "c", queue=QUEUE), Client(two.socket, "d", queue=QUEUE)
keys = [b"object/%d" % i for i in range(200)]
for r in c.put(*[(k, value(k)) for k in keys]):
    equal(r.status, OK, "put")
everything = [(OK, value(k)) for k in keys]
equal(d.get(*keys, room=50000), everything, "read over there")

# -- a writer ends between start and end: nobody has seen its object, and another host may put the key

w = Client(one.socket, "w", queue=QUEUE)
half, = w.create((b"half", 1000))
equal(half.status, OK, "created")
equal(d.get(b"half") + c.get(b"half"), [(NOT_FOUND, None)] * 2, "not before its seal")
equal([r.status for r in d.put((b"half", b"other"))], [IN_USE], "it is being written")
w.close()
eventually("the key to be free", lambda: d.put((b"half", b"other"))[0].status == OK)
equal(c.get(b"half"), [(OK, b"other")])

# -- the holder stands still for longer than away_ms: told so in time; it keeps its objects

stop_all_of(one.process.pid, "the holder")
begun = time.monotonic()
statuses = {s for s, _ in d.get(b"object/7", b"object/8", room=50000)}
check(statuses <= {PEER_UNREACHABLE, NOT_FOUND, TIMEOUT}, "reads of a holder that stands still:", statuses)
check(time.monotonic() - begun < 35, "they are told in time")
eventually("the directory to find it away", lambda: d.exist(b"object/7") != [OK])
check(d.put((b"mine", b"x"))[0].status == OK, "others go on")
os.kill(one.process.pid, signal.SIGCONT)
joined(one)
eventually("its objects to be back", lambda: d.get(*keys, room=50000) == everything)

# -- cut off from everybody, and back

a.drop()
eventually("the cut to be noticed", lambda: d.exist(b"object/9") != [OK])
equal(c.get(b"object/9", room=50000), [(OK, value(b"object/9"))], "what is here is read here")
a.heal()
eventually("the other side to find it again", lambda: d.get(*keys, room=50000) == everything)

# -- the reader's agent dies with leases: a removal waits for them, not longer

equal(d.get(b"object/0", room=50000), [(OK, value(b"object/0"))])
two.kill()
begun = time.monotonic()
equal(c.remove(b"object/0", flags=FORCE), [OK], "removed, though who leased it is gone")
check(time.monotonic() - begun < 20, "it took", time.monotonic() - begun)
two = b.agent(*SETTINGS)
joined(two)
d = Client(two.socket, "d", queue=QUEUE)
equal(d.get(b"object/0", room=50000), [(NOT_FOUND, None)])
eventually("another reader", lambda: d.get(*keys[1:], room=50000) == everything[1:])

# -- the leader restarts: it is told everything, and nothing is found to be gone that is not

equal(d.get(b"object/1", room=50000), [(OK, value(b"object/1"))], "leased")
lead.kill()
equal(c.get(b"object/1", room=50000), [(OK, value(b"object/1"))], "without a leader what is here is read")
equal(d.get(b"object/1", room=50000), [(OK, value(b"object/1"))], "and what is leased")
lead = m.agent(*SETTINGS)
for k in keys[1:]:
    def known():
        global got
        got, = d.get(k, room=50000)
        return got[0] not in (REBUILDING, NO_DIRECTORY, PEER_UNREACHABLE)

    eventually("the leader to know", known)
    equal(got, (OK, value(k)), "after the leader's restart")
eventually("a put", lambda: d.put((b"new", b"1"))[0].status == OK)

# -- slow reads are under way while the leader restarts, and new objects are put at once: each read has its own bytes

slow = [b"slow/%d" % i for i in range(16)]
for r in c.put(*[(k, value(k, 512 * KiB)) for k in slow]):
    equal(r.status, OK, "put of what is read slowly")
a.throttle(0, "40mbit")
got = {}


def read_slowly(part):
    reader = Client(two.socket, "reader", queue=QUEUE)
    for k in part:
        got[k], = reader.get(k, room=512 * KiB)
    reader.close()


readers = [threading.Thread(target=read_slowly, args=[slow[i::4]]) for i in range(4)]
for t in readers:
    t.start()
await_(lambda: two.metric("mcshm_store_leases_taken_total") > 0, "reads to begin")
lead.kill()
# the reads fill the link over which the new leader has to hear of what is there
lead = m.agent(*SETTINGS, "store.rebuild_ms=5000")
for i in range(20):
    eventually("puts to go on", lambda: c.put((b"meanwhile/%d" % i, bytes(MiB)))[0].status == OK)
for t in readers:
    t.join()
for k in slow:
    status, data = got[k]
    check(status == OK and data == value(k, 512 * KiB) or
          status in (REBUILDING, NO_DIRECTORY, PEER_UNREACHABLE), "a slow read:", k, status)
check(sum(got[k][0] == OK for k in slow) >= 4, "most of them end well", {k: got[k][0] for k in slow})
a.throttle(0, None)

# -- the holder restarts without a keeper: its objects are gone, and nobody reads what is there now instead

equal(d.get(*keys[1:20], room=50000), everything[1:20])
one.kill()
one = a.agent(*SETTINGS)
joined(one)
c = Client(one.socket, "c", queue=QUEUE)
for r in c.put(*[(b"other/%d" % i, bytes(50000)) for i in range(200)]):
    equal(r.status, OK, "put after the restart")
for k in keys[1:20]:
    (status, data), = d.get(k, room=50000)
    check(status in (NOT_FOUND, PEER_UNREACHABLE), "an object of the holder's former life:", k, status)

print("ok")
