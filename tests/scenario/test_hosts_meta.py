#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Names in etcd: running transfers do not need it, whatever happens to it; one name has one owner in the cluster,
and another one soon after its host has died."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403
from etcd import Etcd  # noqa: E402

TTL = 3
net = Net("a", "b", "c", "e")
ha, hb, hc, he = net
etcd = Etcd(places=[(he.ns, he.address())])
settings = ["meta.backend=etcd", "meta.endpoints=" + etcd.endpoints, f"meta.ttl_s={TTL}",
            "meta.timeout_ms=1000", "peer.connect_ms=500", "peer.ping_ms=200", "peer.dead_ms=1500"]
a, b, c = (h.agent(*settings) for h in (ha, hb, hc))
owner = Owner(b, "kv", 8 * MiB)
traffic = Traffic(a, owner)
asking = Client(a.socket, "asking")


def opens(name, causes=(METADATA,)):
    """A handle, or None after one of these causes."""
    try:
        return asking.open(name)
    except McshmError as e:
        check(e.status in causes, f"opening {name}:", e)
        return None


def goes_on(what):
    try:
        traffic.progress(3)
    except AssertionError as e:
        raise AssertionError(f"{what}: {e}") from e


# ---- outages

goes_on("at first")
for what, strike, mend in (("killed", etcd.kill, etcd.start), ("frozen", etcd.freeze, etcd.thaw)):
    strike()
    began = time.monotonic()
    late = Client(b.socket, "late " + what)
    try:
        late.publish("late " + what)
        raise AssertionError(f"a name was taken while etcd is {what}")
    except McshmError as e:
        check(e.status in (METADATA, TIMEOUT), f"publishing while etcd is {what}:", e)
    check(opens("never seen " + what) is None, "a name that nobody knows")
    check(time.monotonic() - began < 2 + PATIENCE, "refusals took", time.monotonic() - began, "s")
    # longer than the lease, so that every name is lost
    await_(lambda: time.monotonic() - began > 1.5 * TTL, "the lease to run out", 60)
    goes_on("while etcd is " + what)
    mend()
    await_(lambda: opens("kv", (METADATA, NOT_FOUND)), "the name to be known again")

    def late_publishes():
        try:
            late.publish("late " + what)
            return True
        except McshmError as e:
            check(e.status in (METADATA, TIMEOUT), "publishing after it:", e)
            return False
    await_(late_publishes, "names to be taken again")
    await_(lambda: opens("late " + what, (METADATA, NOT_FOUND)), "the new name to be found")
    late.close()
    goes_on("after etcd was " + what)
etcd.restart_empty()
await_(lambda: b"mcshm/segments/kv" in etcd.keys("mcshm/segments/"), "the name in an etcd that has lost everything")
fresh = Client(c.socket, "fresh")
fresh.open("kv")  # by an agent that has never asked
fresh.close()
goes_on("with an empty etcd")
traffic.finish()
equal(sum(traffic.failures.values()), 0, "failed tasks")

# ---- one name, one owner

second = Client(c.socket, "second")
said = refused(EXISTS, second.publish, "kv")
check(b.address in said, "the holder is named:", said)
third = Client(b.socket, "third")
refused(EXISTS, third.publish, "kv")
third.close()
owner.c.withdraw()


def publishes(client, name):
    """Whether the name was free by now."""
    try:
        client.publish(name)
        return True
    except McshmError as e:
        check(e.status == EXISTS, f"publishing {name}:", e)
        return False


second.publish("kv")  # at once: withdrawing has waited until the name was free
p = second.alloc(4096)
at = old_at = second.buffer(p, 4096)
q = asking.alloc(4096)
fill(q, 4096, 7)
equal(asking.write(q, opens("kv"), at, 4096).state, COMPLETED, "a write to the new owner")
equal(peek(p, 4096), b"\7" * 4096, "its bytes")
old = opens("kv")

# the host of the owner dies: the name is free when its lease has run out, and old handles lead nowhere
c.kill()
killed = time.monotonic()
heir = Client(b.socket, "heir")
tries = 0


def inherits():
    global tries
    tries += 1
    return publishes(heir, "kv")


await_(inherits, "the name of a dead host", TTL + PATIENCE)
print(f"taken over {time.monotonic() - killed:.1f} s after its host was killed, at try {tries}")
p = heir.alloc(4096)
at = heir.buffer(p, 4096)
t = asking.write(q, old, old_at, 64)
check(t.state in (FAILED, INVALID, S_TIMEOUT) and t.error in (STALE, PEER_UNREACHABLE, REVOKED),
      "an old handle", t.state, t.error)
equal(peek(p, 64), b"\0" * 64, "the heir's bytes")
segment = await_(lambda: opens("kv", (PEER_UNREACHABLE, STALE, NOT_FOUND)), "the heir to be found")
equal(asking.write(q, segment, at, 4096).state, COMPLETED, "a write to the heir")
second.close()
heir.close()
owner.close()

# an agent that starts again at the same address takes its own names back at once
c.start()
first = Owner(c, "again", 4096)
c.kill()
first.close()
c.start()
again = Owner(c, "again", 4096)
segment = await_(lambda: opens("again", (STALE, PEER_UNREACHABLE, NOT_FOUND)), "the agent's next life")
equal(asking.write(q, segment, again.at, 4096).state, COMPLETED, "a write to it")
# and one that comes without the name is not asked twice for it
c.kill()
again.close()
c.start()
await_(lambda: opens("again", (STALE, PEER_UNREACHABLE, NOT_FOUND)) is None, "a name that is gone")
asking.close()
finish(a, b, c)
etcd.stop()
