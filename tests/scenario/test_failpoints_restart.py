# SPDX-License-Identifier: Apache-2.0
# long
"""The agent dies under its supervisor while it writes its ledger, and the next one while it takes over; clients die
and stand still while they come back. The others come back, every byte is right, nothing is left behind."""
from failpoints import *


class Kept(Supervised):
    def fds(self):
        last, same = None, 0
        while same < 10:
            n = len(os.listdir(f"/proc/{await_(self.pid, 'an agent')}/fd"))
            same = same + 1 if n == last else 0
            last = n
            time.sleep(0.002)
        return last


points, library = Points("agent"), Points("library")
agent = Kept(*SETTINGS, "agent.barrier_ms=500", prefix=points.prefix())


def settle():
    owner, beside = Mix(agent, "owner", "owner"), None
    beside = Mix(agent, "beside", "owner", points=library)
    mix(agent, codes=[0])
    return owner, beside


def anew():
    """Other clients, after something of theirs was refused."""
    global owner, beside
    for m in (beside, owner):
        code = m.wait()
        check(code in (0, 3), f"exit code {code} of {m.mode}:", m.said)
    agent.calm()
    owner, beside = settle()


def died(name, acted):
    await_(lambda: points.acted(name) > acted, f"the agent to die at {name}")
    points.disarm(name)


# where the ledger grows, before anybody has anything
for name in ("ledger_grow", "ledger_chunk"):
    acted = points.acted(name)
    points.arm(name, KILL, first=2)
    Mix(agent, "mix", "nobody", "once").wait()
    died(name, acted)
    equal(agent.stop(), 0, "a stop")
    agent.start()
owner, beside = settle()
points.reached("agent", "restart")
agent.await_next(agent.kill_agent())
beside.progress()
points.reached("agent", "resume")
library.reached("library", "resume")
agent.calm()
before = holdings(agent)
every = {"thread": 6, "address": 3}.get(SAN, 1)

# the ledger is being written; its next reader finds records whole or not at all
for name in [n for n in points.names("agent", "restart") if n not in ("ledger_grow", "ledger_chunk")][::every]:
    for nth in (1, 4):
        acted = points.acted(name)
        points.arm(name, KILL, first=nth)
        mix(agent)
        if points.acted(name) == acted:
            continue  # it was passed less often
        died(name, acted)
        beside.progress()
        owner.check()
        agent.calm()
        as_before(agent, before, f"after death at {name}@{nth}")

# the next agent dies while it takes over
for name in points.names("agent", "resume")[::every]:
    acted = points.acted(name)
    points.arm(name, KILL)
    agent.kill_agent()
    died(name, acted)
    beside.progress()
    owner.check()
    agent.calm()
    beside.progress()
    mix(agent, codes=[0])
    as_before(agent, before, f"after two deaths, the second at {name}")

# or cannot take something over: whose it is hears of it
for name in points.names("agent", "resume", fails=True)[::every]:
    acted = points.acted(name)
    points.arm(name, FAIL)
    agent.kill_agent()
    await_(lambda: points.acted(name) > acted, f"{name} to fail")
    points.disarm(name)
    anew()
    as_before(agent, before, f"after {name} has failed")

# a client that comes back dies, or stands still
for name in library.names("library", "resume")[::every]:
    library.arm(name, STOP)
    agent.kill_agent()
    beside.stopped()
    mix(agent, codes=[0, 3])
    owner.check()
    beside.p.send_signal(signal.SIGCONT)
    # the mix takes memory away: who might still write to it has two seconds to come back
    if f"(beside, pid {beside.p.pid}, uid 0): ended: it may still copy" in agent.text():
        beside.wait()
        beside = Mix(agent, "beside", "owner", points=library)
    beside.progress()
    library.arm(name, KILL)
    agent.calm()
    agent.kill_agent()
    equal(beside.wait(), -signal.SIGKILL, f"the client at {name}")
    library.disarm(name)
    mix(agent, codes=[0, 3])
    owner.check()
    beside = Mix(agent, "beside", "owner", points=library)
    agent.calm()
    beside.progress()
    as_before(agent, before, f"after a client's death at {name}")
beside.end()
owner.end()
agent.finish()
