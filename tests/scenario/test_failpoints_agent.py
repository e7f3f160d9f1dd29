# SPDX-License-Identifier: Apache-2.0
# long
"""The agent dies or fails at each of its failpoints that a client on its host makes it pass.

Death: clients hear of it and hang nowhere, bytes around their buffers are as they were, the next start
over what is left serves as ever. Failure: whoever asked is told why, nothing is left behind, the others'
transfers go on, and what failed works the next time.
"""
from failpoints import *

points = Points("agent")
library = Points("library")
agent = Agent(*SETTINGS, prefix=points.prefix())


def settle():
    owner, beside = Mix(agent, "owner", "owner"), None
    beside = Mix(agent, "beside", "owner")
    mix(agent, points=library, codes=[0])
    return owner, beside, holdings(agent)


owner, beside, before = settle()
points.reached("agent", "mix")
fallible = points.names("agent", "mix", fails=True)

# failures; the agent lives on, and the session too unless it is itself what failed
sessions = ("session_accept", "session_born", "hello_region", "hello_guard", "reply_send")
for i, name in enumerate(fallible[::4 if SAN == "thread" else 1]):
    acted = points.acted(name)
    points.arm(name, FAIL, (errno.ENOMEM, errno.EMFILE)[i % 2])
    said = mix(agent, points=library)
    points.disarm(name)
    check(agent.alive(), f"the agent died of {name}:", agent.text())
    equal(points.acted(name), acted + 1, f"{name} has failed once: {said}")
    check(name in sessions or "has ended the session" not in said, f"{name} has ended a session: {said}")
    as_before(agent, before, f"after {name} has failed")
    beside.progress(1)
owner.check()

# deaths
names = points.names("agent", "mix")
for i, name in enumerate(names[::{"thread": 12, "address": 4}.get(SAN, 1)]):
    points.arm(name, KILL)
    said = mix(agent, "once", points=library)
    # a client is gone before its session is: the agent may pass the point only now
    await_(lambda: not agent.alive(), f"the agent to die at {name}: {said}")
    points.disarm(name)
    equal(agent.process.poll(), -signal.SIGKILL, f"the agent's end at {name}: {said}")
    owner.check()
    owner.end()
    if beside:
        check(beside.wait() in (0, 3), f"the bystander after {name}:", beside.said)
    agent.start()
    if i % 8 == 0:
        owner, beside, now = settle()
        equal(now, before, f"what the next life holds after {name}")
    else: # the next mix finds out
        owner, beside = Mix(agent, "owner", "owner"), None
mix(agent, points=library, codes=[0])
if beside:
    beside.end()
owner.end()
agent.finish()

# its start and its stop
for name in points.names("agent", "start")[::3 if SAN else 1]:
    for action in (KILL, FAIL) if name in points.names("agent", "start", fails=True) else (KILL,):
        log = len(agent.text())
        points.arm(name, action)
        agent.launch()
        equal(os.read(agent.ready, 1), b"", f"a start that ends at {name}")
        os.close(agent.ready)
        equal(agent.process.wait(PATIENCE), -signal.SIGKILL if action == KILL else 1,
              f"the end of a start at {name}: {agent.text()[log:]}")
        said = [line for line in agent.text()[log:].splitlines() if "error:" in line]
        check(action == KILL or len(said) == 1, f"one sentence about {name}, not", said)
        check(action == KILL or not os.path.exists(agent.socket), f"{name} left the socket behind")
        points.disarm(name)
for name in points.names("agent", "stop")[::3 if SAN else 1]:
    agent.start()
    owner = Mix(agent, "owner", "owner")
    points.arm(name, KILL)
    equal(agent.stop(), -signal.SIGKILL, f"the end of a stop at {name}")
    points.disarm(name)
    check(owner.wait() in (0, 3), "the owner:", owner.said)
agent.start()
mix_owner = Mix(agent, "owner", "owner")
mix(agent, points=library, codes=[0])
mix_owner.end()
agent.finish()
