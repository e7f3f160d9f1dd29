#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Rails that fail in full flight: nothing but the time tells, every byte is right; rails come back by
themselves, and so does traffic when all of them were gone."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

RAILS = 3
net = Net("a", "b", rails=RAILS)
psk = psk_file(os.environ.get("TMPDIR", "/tmp"), f"psk{os.getpid()}")
atexit.register(os.unlink, psk)
a, b = (h.agent("peer.auth=psk", "peer.psk_file=" + psk, "peer.allow_insecure=no", "peer.connect_ms=300",
                "peer.ping_ms=200", "peer.dead_ms=2000") for h in net)
owner = Owner(b, "owner", 32 * MiB)
LANES = 6
traffic = [Traffic(a, owner, lanes=LANES, size=MiB, offset=i * LANES * MiB, seed=i + 1) for i in range(2)]


def check_all(what):
    for t in traffic:
        try:
            t.progress(3, 2 * PATIENCE)
        except AssertionError as e:
            raise AssertionError(f"{what}: {e}; rails: {a.rails(b)}") from e


def states(rail):
    return a.rail_states(b, rail)


def all_up(what):
    for rail in range(RAILS):
        await_(lambda: states(rail) == {"up"}, lambda: f"rail {rail} to be up {what}: {a.rails(b)}",
               2 * PATIENCE)


check_all("at first")
all_up("at first")

# the rail of the control connection, for longer than that lives: the others carry on, another one is found
for h in a.host, b.host:
    h.drop(0)
await_(lambda: not a.sees(b) or not b.sees(a), "the control connection to be given up")
await_(lambda: a.sees(b) and b.sees(a), lambda: f"another one over another rail: {a.peers()} {b.peers()}")
check_all("with the control connection's rail cut")
for r in 1, 2:
    equal(states(r), {"up"}, f"rail {r} beside it")
for h in a.host, b.host:
    h.heal()
all_up("after the control connection's rail was cut")

cuts = {
    "own carrier": (lambda r: a.host.down(r), lambda r: a.host.up(r)),
    "the far side": (lambda r: b.host.down(r), lambda r: b.host.up(r)),
    "silence both ways": (lambda r: (a.host.drop(r), b.host.drop(r)), lambda r: (a.host.heal(), b.host.heal())),
    "silence one way": (lambda r: b.host.drop(r), lambda r: b.host.heal()),
    "resets": (lambda r: (a.host.reset(r), b.host.reset(r)), lambda r: (a.host.heal(), b.host.heal())),
}
for k, (what, (cut, mend)) in enumerate(cuts.items()):
    rail = k % RAILS
    others = [r for r in range(RAILS) if r != rail]
    before = sum(r["bytes"] for r in a.rails(b))
    cut(rail)
    # a rail is judged by what it does, so there is traffic until it is seen
    await_(lambda: "up" not in states(rail), 
           lambda: f"rail {rail} to be seen as cut by {what}: {a.rails(b)}")
    check(all(r["reason"] not in ("", "fine") for r in a.rail(b, rail)), "a reason:", a.rail(b, rail))
    check_all("with a rail cut by " + what)
    for r in others:
        check("up" in states(r), f"rail {r} beside one cut by {what}", a.rails(b))
    check(sum(r["bytes"] for r in a.rails(b)) > before, "bytes over the others")
    mend(rail)
    all_up("again after " + what)
    carried = sum(r["bytes"] for r in a.rail(b, rail))
    await_(lambda: sum(r["bytes"] for r in a.rail(b, rail)) > carried, f"bytes over rail {rail} again")
    check_all("after " + what)
check(a.counted("slices_moved_over") > 0, "slices that went on to another rail")

# a connection reset by the kernel's own means, where it has them
probe = a.host.run(["ss", "-K", "dst", b.host.address(1)])
print("ss -K closed", max(len(probe.splitlines()) - 1, 0), "connections")
check_all("after ss -K")

# two of three
a.host.drop(0)
b.host.down(1)
await_(lambda: "up" not in states(0) | states(1), "two rails to be seen as cut")
check_all("on one of three rails")
equal(states(2), {"up"}, "the rail that is left")
a.host.heal()
b.host.up(1)
all_up("after two were gone")
check_all("on three rails again")
for t in traffic:
    t.finish()
    equal(sum(t.failures.values()), 0, "failed tasks")
    print(f"{t.rounds} rounds, {t.bytes >> 20} MiB, slowest {t.slowest:.2f} s")

# all rails: tasks end in time and say why; then it goes on by itself
t = Traffic(a, owner, lanes=LANES, tolerant=True, deadline_us=3000000)
t.progress()
for rail in range(RAILS):
    a.host.drop(rail)
    b.host.drop(rail)
await_(lambda: t.error or t.failures, "tasks to end without any rail")
for (state, error), n in t.failures.items():
    check(state in (FAILED, S_TIMEOUT) and error in (PEER_UNREACHABLE, TIMEOUT, RAIL),
          n, "tasks ended", state, error, "without any rail")
check(t.slowest < 3 + PATIENCE / 2, "the slowest took", t.slowest, "s with a deadline of 3 s")
await_(lambda: not any("up" in states(r) for r in range(RAILS)), "all rails to be seen as cut")
await_(lambda: not a.sees(b), lambda: f"the peer to be seen as dead: {a.peers()}")
a.host.heal()
b.host.heal()
t.progress(3, 3 * PATIENCE)
all_up("after all were gone")
failures = sum(t.failures.values())
t.progress(3)
equal(sum(t.failures.values()), failures, "failed tasks after all rails are back")
t.finish()
check(len(a.text().splitlines()) < 400, "the log is too talkative:", len(a.text().splitlines()), "lines")
owner.close()
finish(a, b)
