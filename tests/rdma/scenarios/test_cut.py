#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 240
"""Wires that are cut in full flight and come back: at either end, so that both ports know, and silently at the peer's end, so
that only missing acknowledgements tell (B67). Tasks end COMPLETED over the other rail, every byte is right, and the rail is used again.
Without any RDMA rail, TCP takes over where it may."""
from rdma import *  # noqa: F403

LANES = 4
a, b = sides(2)
# retries end after about two seconds here: (4 + 1) x 268 ms and what the emulation adds
x, y = (side.agent("rdma.timeout=16", "rdma.retries=4") for side in (a, b))
owner = Owner(y, "owner", 2 * LANES * MiB)
meet(x, owner)
traffic = Traffic(x, owner, lanes=LANES, paths=RDMA)
traffic.progress()
x.await_rails(y, 0, 1)


def cut_and_mend(what, rail, cut, mend):
    other, before = 1 - rail, x.carried(y, 1 - rail)
    cut()
    await_(lambda: "up" not in x.rail_states(y, rail), lambda: f"rail {rail} to be seen as cut {what}: {x.rails(y)}")
    check(all(r["reason"] not in ("", "fine") for r in x.rail(y, rail)), "a reason:", x.rail(y, rail))
    traffic.progress(3)
    equal(x.rail_states(y, other), {"up"}, f"rail {other} beside one cut {what}")
    check(x.carried(y, other) > before, "nothing went over the other rail")
    mend()
    x.await_rails(y, rail)
    carried = x.carried(y, rail)
    await_(lambda: traffic.error or x.carried(y, rail) > carried, f"bytes over rail {rail} again after it was cut {what}",
           2 * PATIENCE)
    traffic.progress(2)


for k in range(5):
    side, rail = (a, b)[k % 2], (k // 2) % 2
    cut_and_mend("by " + side.interface(rail), rail, lambda: side.down(rail), lambda: side.up(rail))


def lost_packets():
    b.silence(1)
    await_(b.dropped, "packets to be lost")


cut_and_mend("without a word", 1, lost_packets, b.heal)
traffic.finish()
equal(sum(traffic.failures.values()), 0, "failed tasks")
equal(set(traffic.took), {"rdma"}, "paths")
check(x.counted("slices_moved_over") > 0, "no slice went on to another rail: this shows nothing")
print(f"{traffic.rounds} rounds, {traffic.bytes >> 20} MiB, slowest {traffic.slowest:.2f} s")

# all wires: TCP has one of its own here and takes over, until they are back
traffic = Traffic(x, owner, lanes=LANES, paths=ANY, seed=2)
traffic.progress()
for rail in 0, 1:
    a.down(rail)
tcp = traffic.took["tcp"]
await_(lambda: traffic.error or traffic.took["tcp"] > tcp + LANES, "tasks over TCP")
traffic.progress(2)
for rail in 0, 1:
    a.up(rail)
x.await_rails(y, 0, 1)
traffic.progress(2)
tcp = traffic.took["tcp"]
traffic.progress(3)
equal(traffic.took["tcp"], tcp, "tasks over TCP with RDMA rails up again")
traffic.finish()
equal(sum(traffic.failures.values()), 0, "failed tasks")
owner.close()
finish(x, y)

# where TCP may not, tasks end in time and say why, then it goes on by itself
x, y = (side.agent("rdma.fallback=no") for side in (a, b))
owner = Owner(y, "owner", 2 * LANES * MiB)
meet(x, owner)
traffic = Traffic(x, owner, lanes=LANES, paths=RDMA, tolerant=True, deadline_us=4000000)
traffic.progress()
x.await_rails(y, 0, 1)
for rail in 0, 1:
    b.down(rail)
await_(lambda: traffic.error or traffic.failures, "tasks to end without any RDMA rail")
for (state, error), n in traffic.failures.items():
    check(state in (FAILED, S_TIMEOUT) and error in (PEER_UNREACHABLE, TIMEOUT, RAIL), n, "tasks ended", state, error)
for rail in 0, 1:
    b.up(rail)
x.await_rails(y, 0, 1)
traffic.progress(3, 3 * PATIENCE)
traffic.finish()
equal(set(traffic.took), {"rdma"}, "paths")
check(traffic.slowest < 4 + PATIENCE, "the slowest took", traffic.slowest, "s with a deadline of 4 s")
owner.close()
finish(x, y)
