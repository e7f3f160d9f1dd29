# SPDX-License-Identifier: Apache-2.0
"""A client dies, stands still or fails at each failpoint of the library: nobody else notices."""
from failpoints import *

agent = Agent(*SETTINGS)
points = Points("library")
owner = Mix(agent, "owner", "owner")
beside = Mix(agent, "beside", "owner")
mix(agent, points=points, codes=[0])
points.reached("library", "mix")
before = holdings(agent)
names = points.names("library", "mix")
often = ("call_send", "call_sent", "call_received")  # each control request passes them
if SAN:
    names = names[::4 if SAN == "thread" else 2]
calls = points.passes("call_send")


def die(name, nth=1):
    points.arm(name, KILL, first=nth)
    m = Mix(agent, "mix", "owner", points=points)
    equal(m.wait(), -signal.SIGKILL, f"mix at {name}@{nth}: {m.said}")
    points.disarm(name)


def stand_still(name):
    points.arm(name, STOP)
    m = Mix(agent, "mix", "owner", points=points)
    m.stopped()
    beside.progress()
    m.p.send_signal(signal.SIGCONT)
    equal(m.wait(), 0, f"mix stopped at {name}: {m.said}")
    points.disarm(name)


def fail(name, error, nth=1):
    acted = points.acted(name)
    points.arm(name, FAIL, error, first=nth)
    said = mix(agent, points=points)
    points.disarm(name)
    equal(points.acted(name), acted + 1, f"{name} has failed once: {said}")


for name in names:
    die(name)
    owner.check()
    as_before(agent, before, f"after a client's death at {name}")
    stand_still(name)
    for error in (errno.ENOMEM, errno.EIO):
        if name in points.names("library", "mix", fails=True):
            fail(name, error)
    beside.progress(1)
for nth in range(2, calls + 1, {"thread": 30, "address": 9}.get(SAN, 1)):
    for i, name in enumerate(often):
        die(name, nth) if (nth + i) % 2 else fail(name, errno.EIO, nth)
owner.check()
as_before(agent, before, "after all deaths")
beside.end()
owner.end()
agent.finish()
