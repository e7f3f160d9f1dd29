#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""etcd away, half away, emptied, compacted: what is known stays, what was missed is found, everything comes back."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403
from gateway import *  # noqa: E402,F403

etcd = Etcd()
host, _, port = etcd.url[7:].rpartition(":")

# -- a lease of 2 s lives through many of them, with every core busy
steady = Meta("etcd", etcd.url, address="127.0.0.1:7000", ttl=2)
steady.await_state(health="ok")
lease = steady.state().lease
burners = [Child(lambda pipe: [0 for _ in iter(int, 1)]) for _ in range(2)]
lease_since = time.monotonic()

# -- the watch is cut, and etcd has compacted what was missed
proxy = Proxy(host, int(port))
a = Meta("etcd", etcd.url, address="127.0.0.1:7001", incarnation=11)
b = Meta("etcd", proxy.url, address="127.0.0.1:7002", incarnation=22)
b.await_state(health="ok")


def break_and_restore(meanwhile):
    proxy.mode = "refuse"
    proxy.cut()
    await_(lambda: b.state().health != "ok", "b to notice")
    meanwhile()
    proxy.mode = "pass"
    b.await_state(health="ok")


for compact_at in ("after", "at"):
    equal(a.register("s1", 1).res, 0, "register s1")
    await_(lambda: b.lookup("s1").res == 0 and b.state().cached == 1, "b to know s1")
    relists = b.state().relists

    def meanwhile():
        equal(a.unregister("s1", 1).res, 0, "unregister s1")
        gone = etcd.revision()
        equal(a.register("s2", 2).res, 0, "register s2")
        etcd.ctl("compact", str(etcd.revision() if compact_at == "after" else gone))
        etcd.ctl("defrag")
    break_and_restore(meanwhile)
    await_(lambda: (b.read(0.05), b.changes[-1:] == [("s1", 0)])[1], "b to hear that s1 is gone")
    equal(b.state().cached, 1, "s2 alone is known")
    equal(b.lookup("s1").res, ENOENT, "s1")
    equal(b.lookup("s2").record["incarnation"], 2, "s2")
    if compact_at == "after":
        equal(b.state().relists, relists + 1, "lists after compaction")
    equal(a.unregister("s2", 2).res, 0, "unregister s2")
    b.await_state(cached=0)

# nothing was compacted: no list, the watch goes on where it was
relists = b.state().relists
break_and_restore(lambda: equal(a.register("s3", 3).res, 0, "register s3"))
b.await_state(cached=1)
equal(b.state().relists, relists, "lists after a mere break")

# -- a watch that nobody says is dead: the audit finds out
proxy2 = Proxy(host, int(port))
c = Meta("etcd", proxy2.url, address="127.0.0.1:7003", ttl=3)
c.await_state(health="ok", cached=1)
restarts = c.state().watch_restarts
proxy2.forget()
equal(a.register("s4", 4).res, 0, "register s4")
c.await_state(cached=2)
check(c.state().watch_restarts > restarts, "the watch was not opened again")
c.quit()

# -- faults of a proxy, each followed by work
equal(a.register("known", 5).res, 0, "register")
equal(b.lookup("known").res, 0, "lookup")
n = 0
for fault in ("reset", "swallow", "half", b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n",
              b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
              b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 300\r\n\r\n"):
    if fault == "reset":
        proxy.cut()
    else:
        proxy.mode = fault
        r = b.lookup(f"unknown{n}")
        check(r.res in (ECOMM, EBADMSG), fault, "gives", r)
        check(r.text, "no sentence for", fault)
        equal(b.lookup("known").res, 0, f"what is known during {fault}")
        proxy.mode = "pass"
    # one call is enough: the fault was the connection's or the moment's
    equal(b.register(f"after{n}", n + 1).res, 0, f"register after {fault}")
    equal(b.lookup(f"after{n}", fresh=True).res, 0, f"lookup after {fault}")
    n += 1
# a kept connection that died is replaced without the caller noticing, also for the first call
for i in range(3):
    proxy.cut()
    equal(b.lookup("known", fresh=True).res, 0, "lookup over a dead kept connection")
b.await_state(health="ok", registered=n)

for child in burners:
    child.kill()
while time.monotonic() - lease_since < 10:  # five times its length
    equal(steady.state().lease, lease, "the lease")
    time.sleep(0.5)
equal((steady.state().lease, steady.state().leases_lost), (lease, 0), "the lease that was kept")

# -- etcd is frozen, then killed: the answer comes within the time limit, what is known stays
etcd.freeze()
equal(b.lookup("nobody", fresh=True).res, ECOMM, "lookup of a frozen etcd")
equal(b.lookup("known").res, 0, "lookup of what is known")
b.await_state(health="down")
equal(b.register("in-the-dark", 1).res, ECOMM, "register with a frozen etcd")
etcd.thaw()
b.await_state(health="ok", registered=n, wanted=n)
a.await_state(health="ok", registered=3)  # its lease may have ended meanwhile
await_(lambda: b.state().cached == 3 and b.lookup("known").res == 0, "b to have what a registered")
await_(lambda: b.lookup("in-the-dark", fresh=True).res == ENOENT, "what was refused not to stay")
etcd.kill()
b.await_state(health="down")
equal(b.lookup("known").res, 0, "lookup of what is known")
etcd.start()
for m in (a, b, steady):
    m.await_state(health="ok")
equal(b.lookup("known", fresh=True).res, 0, "after its return")

# -- etcd comes back with nothing: all names are there again by themselves
before = etcd.keys("mcshm/segments/")
etcd.restart_empty()
for m in (a, b, steady):
    m.await_state(health="ok")
await_(lambda: etcd.keys("mcshm/segments/") == before, lambda: f"{before}, there are {etcd.keys('mcshm/segments/')}")
await_(lambda: len(etcd.keys("mcshm/hosts/")) == 3, "the hosts' records")
await_(lambda: b.state().cached == 3, "b to know a's names again")
equal(b.lookup("known").res, 0, "lookup")
equal(etcd.leases(), 3, "leases: one an agent")
# and the events come again
equal(a.unregister("known", 5).res, 0, "unregister")
await_(lambda: (b.read(0.05), b.changes[-1:] == [("known", 0)])[1], "b to hear of it")

# -- the lease is taken away
lost = a.state().leases_lost
etcd.ctl("lease", "revoke", f"{a.state().lease:x}")
a.await_state(leases_lost=lost + 1, registered=2, health="ok")
await_(lambda: b.state().cached == 2, "b to know a's names again")
for m in (a, b, steady):
    m.quit()
etcd.stop()
proxy.close()
proxy2.close()

# -- three members: one that is killed or frozen costs one try
etcd = Etcd(3)
m = Meta("etcd", etcd.endpoints, address="127.0.0.1:7001", ttl=5)
m.await_state(health="ok")
equal(m.register("s", 1).res, 0, "register")
for hurt, heal in ((etcd.kill, etcd.launch), (etcd.freeze, etcd.thaw)):
    for i in range(3):
        hurt(i)
        await_(lambda: m.register(f"n{i}", 1).res == 0, "registration with two of three members")
        equal(m.lookup("s").res, 0, "lookup")
        heal(i)
        m.await_state(health="ok", seconds=60)
etcd.kill(0)
etcd.kill(1)
equal(m.register("no-quorum", 1).res, ECOMM, "registration without a majority")
equal(m.lookup("s").res, 0, "lookup of what is known")
etcd.start()
m.await_state(health="ok", registered=4, seconds=60)
m.quit()
etcd.stop()
