#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that uses keys which nobody has given it gets errors on its own queue pairs: nothing moves, other agents' rails
do not notice, and neither do those of the same agent for long."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scenario"))
from failpoints import *  # noqa: E402,F403
from rdma import *  # noqa: E402,F403

SIZE = MiB
points = Points("agent")
a, b = sides(2)
rogue, y = a.agent("rdma.fallback=no", prefix=points.prefix()), b.agent()
honest = a.agent(port=7100)
owner, beside = Owner(y, "owner", SIZE), Owner(y, "beside", 4 * SIZE)
meet(honest, beside)
bystander = Traffic(honest, beside, lanes=2, paths=RDMA)
bystander.progress()
honest.await_rails(y, 0, 1)
c = Client(rogue.socket, "rogue")
p = c.alloc(SIZE)
meet(rogue, owner)
segment = c.open(owner.names)
rogue.await_rails(y, 0, 1)
fill(owner.p, SIZE, 0x11)
fill(p, SIZE, 0x22)
for op in WRITE, READ, WRITE:
    points.arm("rdma_guess", FAIL, times=1 << 20)
    t = c.run(c.request(op, p, segment, owner.at, 64 * KiB))
    check(t.state == FAILED and t.error in (ACCESS, REVOKED), "with a guessed key", t.state, t.error)
    check(points.acted("rdma_guess") > 0, "no key was guessed: this shows nothing")
    points.disarm("rdma_guess")
    equal(owner.peek(), b"\x11" * SIZE, "the target of a guessed key")
    equal(peek(p, SIZE), b"\x22" * SIZE, "what a READ with a guessed key brought")
    bystander.progress(1)
equal({s for n in (0, 1) for s in honest.rail_states(y, n)}, {"up"}, "the rails of another agent")
equal(honest.counted("slices_moved_over"), 0, "slices that another agent had to move over")
bystander.finish()
equal(sum(bystander.failures.values()), 0, "failed tasks of another agent")


def well():
    t = c.write(p, segment, owner.at, SIZE)
    equal((t.state, t.error), (COMPLETED, OK), "with right keys again")
    return PATHS[t.path] == "rdma" and all(rogue.rail_states(y, n) == {"up"} for n in (0, 1))


await_(well, lambda: f"RDMA with right keys again: {rogue.rails()}", 3 * PATIENCE)
check(owner.peek() == peek(p, SIZE), "the target in the end")
c.close()
owner.close()
beside.close()
finish(rogue, honest, y)
