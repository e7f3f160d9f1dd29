#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wall clock jumps, by an hour and a second at a time: leases and time limits do not care."""
import glob
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403
from gateway import *  # noqa: E402,F403

faketime = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
if not faketime:
    skip("needs faketime, which is not installed")
if SAN:
    skip("libfaketime and sanitizers do not go together")
clock = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")), "clock")


def step(seconds):
    with open(clock + ".new", "w") as f:
        f.write(f"{seconds:+d}\n")
    os.rename(clock + ".new", clock)


step(0)
g = Gateway()
m = Meta("etcd", g.url, ttl=3, timeout=2000, env={
    "LD_PRELOAD": faketime[0], "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"})


def since(name):
    equal(m.register(name, 1).res, 0, "register")
    return json.loads(g.kvs[b"mcshm/segments/" + name.encode()][0])["since"]


check(abs(since("now") - time.time()) < 600, "the clock is off before it was set")
step(3600)
check(since("later") - time.time() > 3000, "the agent's wall clock was not stepped: nothing is tested")
lease = m.state().lease
n, started = g.count("keepalive"), time.monotonic()
for i in range(30):
    step((3600, -3600, 7200 + i, -i)[i % 4])
    time.sleep(0.1)
    equal(m.lookup("nobody", fresh=True).res, ENOENT, "lookup while the clock jumps")
renewals = g.count("keepalive") - n
# each waits three quarters of a second at least
check(renewals <= (time.monotonic() - started) / 0.7 + 2, renewals, "renewals: it does not wait between them")
step(-86400)
n = g.count("keepalive")
await_(lambda: g.count("keepalive") >= n + 3, "renewals after a step back")
s = m.await_state(health="ok", leases_lost=0)
equal(s.lease, lease, "the lease")
# a time limit neither ends early nor never
g.fault = lambda path, body: SWALLOW
for seconds in (86400, -86400):
    id = m.post("lookup", "nobody", "fresh")
    step(seconds)
    started = time.monotonic()
    equal(m.answer(id, 60).res, ECOMM, "lookup that is swallowed")
    check(time.monotonic() - started > 1.0, "the limit of 2 s ended after", time.monotonic() - started)
m.kill()
