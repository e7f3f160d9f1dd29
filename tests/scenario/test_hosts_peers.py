#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that are not there yet, peers that are dead, and agents that meet each other at the same moment."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

GONE = (PEER_UNREACHABLE, STALE, REVOKED, RAIL)
net = Net("a", "b", "c")
ha, hb, hc = net
psk = psk_file(os.environ.get("TMPDIR", "/tmp"), f"psk{os.getpid()}")
atexit.register(os.unlink, psk)
settings = ["peer.auth=psk", "peer.psk_file=" + psk, "peer.allow_insecure=no", "peer.ping_ms=200",
            "peer.dead_ms=1500", "peer.connect_ms=500"]
a, c = ha.agent(*settings), hc.agent(*settings)
b = hb.agent(*settings, start=False)

# a peer that is not there yet: refused at once and in words, reached soon after it is there
late = Client(a.socket, "early")
lines = len(a.text().splitlines())
began = time.monotonic()
tries = 0
while time.monotonic() - began < 1:
    try:
        late.open(b.names("late"))
        raise AssertionError("opened a segment of an agent that does not run")
    except McshmError as e:
        equal(e.status, PEER_UNREACHABLE, e)
    tries += 1
    await_(lambda: time.monotonic() - began > tries * 0.2, "a fifth of a second")
check(tries >= 3, "so long did they take:", tries)
b.start()
owner = Owner(b, "late", MiB)
up = time.monotonic()


def reached():
    try:
        return late.open(owner.names)
    except McshmError as e:
        check(e.status in (PEER_UNREACHABLE, TIMEOUT), e)
        return None


segment = await_(reached, "the peer that is there now")
print(f"reached {time.monotonic() - up:.2f} s after it was there")
p = late.alloc(MiB)
equal(late.write(p, segment, owner.at, MiB).state, COMPLETED, "and written to")
said = [line for line in a.text().splitlines()[lines:] if b.address in line]
check(len(said) <= 8, "one line a change of state:", "\n".join(said))

# a dead peer and a healthy one: what the healthy one gets hardly depends on the other
well = Owner(c, "well", 4 * MiB)


def rate(seconds=1.5):
    t = Traffic(a, well, lanes=4, size=256 * KiB)
    t.progress(1)
    began, bytes_ = time.monotonic(), t.bytes
    await_(lambda: time.monotonic() - began > seconds, "the time to pass")
    t.progress(1)
    r = (t.bytes - bytes_) / (time.monotonic() - began)
    t.finish()
    return r


alone = rate()
victims = [Client(a.socket, "writes") for _ in range(2)]
victims = [(d, d.open(owner.names)) for d in victims]
lines = len(a.text().splitlines())
hb.drop()
hb.filter("-p tcp --syn -j DROP")
begun = time.monotonic()
causes, stop = collections.Counter(), threading.Event()


def opens():
    d = Client(a.socket, "opens")
    while not stop.wait(0.01):
        try:
            d.open(owner.names)
            causes[OK] += 1
        except McshmError as e:
            causes[e.status] += 1
    d.close()


def writes(d, s):
    q = d.alloc(4096)
    while not stop.wait(0.01):
        causes[d.write(q, s, owner.at, 4096, deadline_us=500000).error] += 1
    d.close()


batch = late.batch(32)
for i in range(32):
    late.submit(batch, late.request(WRITE, p, segment, owner.at, MiB, deadline_us=1000000))
pesterers = [threading.Thread(target=opens)] + [threading.Thread(target=writes, args=v) for v in victims]
for t in pesterers:
    t.start()
beside = rate()
late.wait(batch)
for i in range(32):
    t = late.task(batch, i)
    check(t.state in (FAILED, S_TIMEOUT, INVALID) and t.error in GONE + (TIMEOUT,),
          "to a dead peer", t.state, t.error)
late.batch_free(batch)
# other work on this machine comes and goes; what a dead peer would cost is there every time
for _ in range(6):
    if beside > alone / 3:
        break
    beside = max(beside, rate())
stop.set()
for t in pesterers:
    t.join(3 * PATIENCE)
    check(not t.is_alive(), "a call to a dead peer that does not end")
print(f"{alone / 1e6:.0f} MB/s alone, {beside / 1e6:.0f} MB/s beside a dead peer;", dict(causes))
check(OK not in causes, "a dead peer has answered", causes)
check(beside > alone / 3, "a dead peer slows others down:", alone, beside)
syns, seconds = hb.dropped()[0], time.monotonic() - begun
check(syns <= 10 * (seconds + 1), syns, "attempts to connect to a dead peer in", seconds, "s")
said = a.text().splitlines()[lines:]
check(len(said) <= 20 * (1 + seconds / 60), len(said), "lines about one dead peer:", "\n".join(said))
hb.heal()
await_(lambda: a.sees(b), lambda: f"the peer to come back: {a.peers()}")
equal(late.write(p, segment, owner.at, MiB).state, COMPLETED, "the peer is back")
late.close()
owner.close()
well.close()

# everybody meets everybody at the same moment
for i in range(4 if SAN else 12):
    for x in a, b, c:
        equal(x.stop(), 0, "exit status: " + x.text())
    for x in a, b, c:
        x.launch()
    for x in a, b, c:
        x.await_ready()
    owners = {x: Owner(x, "met", 4096) for x in (a, b, c)}
    clients = {(x, y): Client(x.socket, "meets") for x, y in itertools.permutations((a, b, c), 2)}
    gate = threading.Barrier(len(clients))
    wrong = []

    def meet(x, y):
        try:
            d = clients[x, y]
            q = d.alloc(64)
            fill(q, 64, 7)
            gate.wait(PATIENCE)
            t = d.write(q, d.open(owners[y].names), owners[y].at, 64)
            check(t.state == COMPLETED, "a first write", t.state, t.error)
        except BaseException as e:
            wrong.append((x.address, y.address, e))
    threads = [threading.Thread(target=meet, args=pair) for pair in clients]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join(2 * PATIENCE)
    check(not wrong and not any(t.is_alive() for t in threads), "met in vain:", wrong)
    check(time.monotonic() - began < 2 + PATIENCE / 4, "it took", time.monotonic() - began, "s")
    for x in a, b, c:
        equal(sorted(p["address"] for p in x.peers()), sorted(y.address for y in (a, b, c) if y is not x),
              "one entry a peer")
    for d in [*clients.values(), *owners.values()]:
        d.close()
finish(a, b, c)
