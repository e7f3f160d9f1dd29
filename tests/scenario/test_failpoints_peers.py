# SPDX-License-Identifier: Apache-2.0
# long
"""One of two agents dies or fails at each failpoint between hosts, during transfers that are verified.

Whoever works with the other one is told, hangs nowhere, leaves nothing behind and goes on once it is back; a
bystander on the owner's host never notices; bytes around the owner's buffer are as they were.
"""
from failpoints import *
from hosts import *

# what a dead peer may cost in time is theirs to say who run it; here: little
settings = SETTINGS + ("peer.ping_ms=100", "peer.dead_ms=600", "peer.connect_ms=200", "peer.open_ms=4000",
                       "peer.down_ms=300", "task.deadline_ms=5000", "tcp.connections=2")
ha, hb = Net("a", "b")
points = {"caller": Points("caller"), "called": Points("called")}
library = Points("library")
x = ha.agent(*settings, prefix=points["caller"].prefix())
y = hb.agent(*settings, prefix=points["called"].prefix())
agents = {"caller": x, "called": y}
name = y.names("owner")
quick = {"thread": 16, "address": 5}.get(SAN, 1)  # every so many points


def far(*words, codes=(0, 3)):
    return mix(x, "far", *words, points=library, name=name, codes=codes)


def settle():
    owner, beside = Mix(y, "owner", "owner"), None
    beside = Mix(y, "beside", "owner")
    far(codes=[0])
    return owner, beside


def connected():
    """Both hold what they hold of each other while they are connected."""
    return holdings(x), holdings(y)


def settled(before, what):
    as_before(x, before[0], what + ", at the caller", fewer=True)
    as_before(y, before[1], what + ", at the called", fewer=True)


owner, beside = settle()


def all_there():
    far(codes=[0])
    return sum(r["conns"] for r in x.rails(y)) == 2


await_(all_there, "all connections of the rail")
before = connected()
for role, p in points.items():
    p.reached("agent", role)

# failures: both live on
for role, p in points.items():
    for i, point in enumerate(p.names("agent", role, fails=True)[::quick]):
        error = errno.ECONNRESET if point == "uring_recv" and i % 2 else \
            errno.ENOBUFS if point.startswith("uring") else errno.ENOMEM
        acted = p.acted(point)
        # greetings are made once: the other's next life makes them anew
        greeting = point in ("dial", "dialed", "hello_send", "peer_up", "ways_made", "rails_answered",
                             "setup_sent", "setup_answered", "rail_adopted", "guest_accept", "guest_wire",
                             "peer_welcome", "export_rails", "guest_data", "serve_adopt")
        if greeting:
            beside.end()
            owner.end()
            y.kill()
            y.start()
            owner, beside = Mix(y, "owner", "owner"), None
            beside = Mix(y, "beside", "owner")
        p.arm(point, FAIL, error)
        said = far()
        p.disarm(point)
        check(x.alive() and y.alive(), f"an agent died of {point}:", agents[role].text())
        equal(p.acted(point), acted + 1, f"{point} has failed once: {said}")
        settled(before, f"after {point} has failed")
        beside.progress(1)
owner.check()

# a slice that cannot be cut, whichever it is: of two clients at a time, one fails, and no slice serves two tasks later
p = points["caller"]
for k in range(1, 9):
    acted = p.acted("slice_cut")
    p.arm("slice_cut", FAIL, first=k)
    both = [Mix(x, "mix", name, "far", points=library), Mix(x, "mix", name, "far", "second", points=library)]
    codes = sorted(m.wait() for m in both)
    check(codes in ([0, 0], [0, 3], [3, 3]), f"exit codes {codes} with slice {k} missing:", both[0].said, both[1].said)
    equal(p.acted("slice_cut"), acted + 1, f"slice {k} was missing once")
settled(before, "after slices that were missing")
beside.progress(1)
owner.check()

# a connection lost in mid-transfer, and death while that is put right
p = points["called"]
for point in points["caller"].names("agent", "loss"):
    role = "called" if point == "kill_served" else "caller"
    passes = points[role].passes(point)
    p.arm("serve_applied", FAIL)
    far(codes=[0, 3])
    p.disarm("serve_applied")
    await_(lambda: points[role].passes(point) > passes, f"{point} to be passed")
far(codes=[0])
settled(before, "after lost connections")

# deaths; greetings are made between lives that do not know each other yet
known = True
for role, p in points.items():
    names = p.names("agent", role) + [n for n in p.names("agent", "loss") if (n == "kill_served") == (role == "called")]
    for i, point in enumerate(names[::quick]):
        if known and role == "caller":
            x.kill()
            x.start()
        elif known:
            if beside:
                beside.end()
            owner.end()
            y.kill()
            y.start()
            owner, beside = Mix(y, "owner", "owner"), None
        known = False
        if point in p.names("agent", "loss"):
            points["called"].arm("serve_applied", FAIL)
        p.arm(point, KILL)
        m = Mix(x, "mix", name, "far", "once", points=library)
        code = m.wait()
        try:
            end = agents[role].process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{point} was not passed: {m.said}") from None
        equal(end, -signal.SIGKILL, f"the end of the {role} at {point}: {m.said}")
        points["called"].disarm("serve_applied")
        p.disarm(point)
        check(code in (0, 3), f"exit code {code} at {point}:", m.said)
        owner.check()
        if role == "called":
            owner.end()
            if beside:
                check(beside.wait() in (0, 3), "the bystander:", beside.said)
            beside = None
        elif beside:
            beside.progress(1)
        agents[role].start()
        if role == "called":
            owner = Mix(y, "owner", "owner")
        if i % 8 == 0:
            beside = beside or Mix(y, "beside", "owner")
            far(codes=[0])
            settled(before, f"after death at {point}")
            known = True
far(codes=[0])
owner.check()
if beside:
    beside.end()
owner.end()
finish(x, y)
