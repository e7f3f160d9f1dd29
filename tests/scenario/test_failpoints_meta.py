# SPDX-License-Identifier: Apache-2.0
"""The agent dies or fails at each failpoint about names in the cluster's metadata: no name is left there, none is lost."""
from failpoints import *
from etcd import Etcd, free_ports

etcd = Etcd()
points = Points("agent")
agent = Agent(*SETTINGS, f"peer.listen=127.0.0.1:{free_ports(1)[0]}", "meta.backend=etcd",
              "meta.endpoints=" + etcd.endpoints, "meta.ttl_s=2", "meta.timeout_ms=2000", prefix=points.prefix())
life = 0


def names():
    """The segments that etcd knows."""
    return sorted(k.rpartition(b"/")[2].decode() for k in etcd.keys("mcshm/segments/"))


def settle():
    """Publishes under a name that no earlier life has had."""
    global life
    life += 1
    return Mix(agent, "owner", f"owner{life}")


def alone(what):
    await_(lambda: names() == [f"owner{life}"], lambda: f"{what}: names in etcd: {names()}")


owner = settle()
mix(agent, name=f"owner{life}", codes=[0])
await_(lambda: points.passes("lease_renewed"), "the lease to be renewed")
points.reached("agent", "meta")
alone("at first")

for name in points.names("agent", "meta", fails=True):
    acted = points.acted(name)
    points.arm(name, FAIL)
    if name == "lease_granted":  # the first one is lost
        points.arm("lease_renewed", FAIL)
    await_(lambda: points.acted(name) > acted, f"{name} to fail")
    points.disarm()
    alone(f"after {name} has failed")
    mix(agent, name=f"owner{life}", codes=[0])
    alone(f"after {name} has failed and more")

for name in points.names("agent", "meta"):
    points.arm(name, KILL)
    if name == "lease_granted":
        points.arm("lease_renewed", FAIL)
    m = Mix(agent, "mix", f"owner{life}", "once")
    equal(agent.process.wait(PATIENCE), -signal.SIGKILL, f"the agent's end at {name}")
    points.disarm()
    code = m.wait()
    check(code in (0, 3), f"exit code {code} of mix at {name}:", m.said)
    owner.check()
    owner.end()
    agent.start()
    owner = settle()
    mix(agent, name=f"owner{life}", codes=[0])
alone("after all deaths")
owner.end()
await_(lambda: names() == [], "all names to go")
agent.finish()
