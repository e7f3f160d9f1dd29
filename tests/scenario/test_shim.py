# SPDX-License-Identifier: Apache-2.0
"""System calls of agent and client that fail, are interrupted or short, one after the other and at random.

What fails is refused in words and leaves nothing behind; what is only interrupted or short is never noticed.
"""
from shim import *

shim, client = Shim(), Shim()
agent = Agent(*SETTINGS, prefix=shim.prefix(), start=False)
seed = random_seed = int(os.environ.get("SEED", "7"))
ROUNDS = int(os.environ.get("ROUNDS", "20"))  # thousands of them for a long run

# its start: whole, or one sentence about what is missing
shim.arm(FAILS, at=NEVER)
agent.start()
starting = shim.calls()
shim.disarm()
equal(agent.stop(), 0, "a stop")
check(starting > 10, "calls of a start:", starting)
for at in some(starting, MOST // 2):
    log = len(agent.text())
    shim.arm(FAILS, at=at)
    agent.launch()
    ready = os.read(agent.ready, 1)
    os.close(agent.ready)
    what = f"call {at} of a start, {shim.last()}, has failed"
    shim.disarm()
    if ready == b"R":
        equal(agent.stop(), 0, f"{what}: the exit status")
        continue
    equal(agent.process.wait(PATIENCE), 1, f"{what}: the exit status; {agent.text()[log:]}")
    said = [line for line in agent.text()[log:].splitlines() if line.startswith("mcshmd: error: ")]
    check(len(said) == 1 and len(said[0]) > 30, f"{what}: one sentence, not", said)
    check(not os.path.exists(agent.socket), f"{what}: the socket is left")
for share in (0.05, 0.5):
    for action in (INTERRUPTED, SHORT):
        shim.arm(action, share=share, seed=seed)
        agent.start()
        owner = Mix(agent, "owner", "owner")
        mix(agent, codes=[0])
        owner.end()
        shim.disarm()
        agent.finish()

# a session: the agent's calls
agent.start()
owner = Mix(agent, "owner", "owner")
beside = Mix(agent, "beside", "owner")
mix(agent, codes=[0])
before = holdings(agent)
shim.arm(FAILS, at=NEVER)
mix(agent, codes=[0])
calls = shim.calls()
shim.disarm()
check(calls > 50, "calls of a session:", calls)
for at in some(calls, MOST):
    shim.arm(FAILS, at=at)
    said = mix(agent)
    what = f"call {at} of a session, {shim.last()}, has failed"
    shim.disarm()
    check(agent.alive(), f"{what}: the agent died", agent.text())
    as_before(agent, before, what)
    beside.progress(1)
for seed in range(random_seed, random_seed + 3):
    for action in (INTERRUPTED, SHORT):
        acted = shim.acted()
        shim.arm(action, share=0.3, seed=seed)
        mix(agent, codes=[0])
        shim.disarm()
        check(action == SHORT or shim.acted() > acted, "nothing was interrupted")
    shim.arm(FAILS, share=0.02, seed=seed)  # several at a time
    for i in range(3):
        mix(agent, "once")
    shim.disarm()
    check(agent.alive(), f"seed {seed}: the agent died", agent.text())
as_before(agent, before, "after random failures")
owner.check()


# and again and again: nothing of it adds up
def rss():
    with open(f"/proc/{agent.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) << 10


for i in range(ROUNDS + 5):
    if i == 5:
        warm = rss()
    shim.arm(FAILS, share=0.05, seed=1000 * random_seed + i)
    mix(agent, "once")
    shim.disarm()
mix(agent, codes=[0])
as_before(agent, before, f"after {ROUNDS} rounds of failures")
check(rss() - warm < 4 << 20, f"bytes of the agent's own memory after {ROUNDS} rounds of failures:", rss(), "were", warm)

# a session: the client's calls
client.arm(FAILS, at=NEVER)
mix(agent, shim=client, codes=[0])
calls = client.calls()
check(calls > 50, "calls of a client:", calls)
for at in some(calls, MOST):
    client.arm(FAILS, at=at)
    mix(agent, shim=client)
for seed in range(random_seed, random_seed + 3):
    for action in (INTERRUPTED, SHORT):
        client.arm(action, share=0.3, seed=seed)
        mix(agent, shim=client, codes=[0])
as_before(agent, before, "after clients' failures")
owner.check()
beside.end()
owner.end()
agent.finish()
