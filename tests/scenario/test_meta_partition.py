#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three members of etcd in three network namespaces, two agents beside them: the member that they ask is
cut off, silently."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403

requires_etcd()
tag = os.getpid()
hub, homes = f"mh{tag}", [f"m{i}{tag}" for i in range(3)]


def ip(*words):
    p = subprocess.run(["ip", *words], capture_output=True, text=True, env=plain_environment())
    return p.returncode == 0 or print("ip", *words, p.stderr)


def remove():
    for n in [hub] + homes:
        subprocess.run(["ip", "netns", "del", n], capture_output=True, env=plain_environment())


atexit.register(remove)
if not ip("netns", "add", hub):
    skip("network namespaces need root")
check(ip("-n", hub, "link", "add", "br0", "type", "bridge") and ip("-n", hub, "link", "set", "br0", "up") and
      ip("-n", hub, "link", "set", "lo", "up") and
      ip("-n", hub, "addr", "add", "10.0.0.254/24", "dev", "br0"), "cannot make a bridge")
for i, home in enumerate(homes):
    check(ip("netns", "add", home) and
          ip("-n", hub, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", home) and
          ip("-n", hub, "link", "set", f"port{i}", "master", "br0", "up") and
          ip("-n", home, "addr", "add", f"10.0.0.{i + 1}/24", "dev", "eth0") and
          ip("-n", home, "link", "set", "eth0", "up") and ip("-n", home, "link", "set", "lo", "up"),
          "cannot connect a namespace")

etcd = Etcd(places=[(home, f"10.0.0.{i + 1}") for i, home in enumerate(homes)])
a = Meta("etcd", etcd.endpoints, address="10.0.0.254:7001", namespace=hub, ttl=4)
b = Meta("etcd", etcd.endpoints, address="10.0.0.254:7002", namespace=hub, ttl=4)
for m in (a, b):
    m.await_state(health="ok")
equal(a.register("x", 1).res, 0, "register")
for turn in range(2):
    used = etcd.urls.index(a.state().endpoint)
    check(ip("-n", hub, "link", "set", f"port{used}", "down"), "cannot cut")
    # at once, unless the others have to elect a leader first
    await_(lambda: a.lookup("x", fresh=True).res == 0, "a lookup to find another member", 60)
    # what one registers now, the other's mirror gets to know, though no watch was told of its end
    await_(lambda: b.register(f"y{turn}", 1).res == 0, "registration with two of three members", 60)
    await_(lambda: a.lookup(f"y{turn}").res == 0 and a.state().cached == turn + 1, "the mirror to follow", 60)
    equal(b.unregister(f"y{turn}", 1).res, 0, "unregister")
    await_(lambda: (a.read(0.05), (f"y{turn}", 0) in a.changes)[1], "a to hear that it went", 60)
    equal(b.register(f"y{turn}", 2).res, 0, "register again")
    check(ip("-n", hub, "link", "set", f"port{used}", "up"), "cannot connect again")
    for m in (a, b):
        m.await_state(health="ok", seconds=60)
a.quit()
b.quit()
etcd.stop()
