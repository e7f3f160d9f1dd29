#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Segments' names in a real etcd: spelling, ownership, takeover, large lists, full service, users, TLS,
members that fail."""
import base64
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403

etcd = Etcd(1, "--quota-backend-bytes", str(256 << 20))
a = Meta("etcd", etcd.url, address="127.0.0.1:7001", incarnation=11)
b = Meta("etcd", etcd.url, address="127.0.0.1:7002", incarnation=22)
for m in (a, b):
    m.await_state(health="ok")

# -- spelling: the raw name is the key, for every path
names = ["a/b", "h:1", "x%2Fy", "[::1]:9", "ü", "n" * 200, "n" * 255, 'quo"te\\', "with space"]
for i, name in enumerate(names):
    equal(a.register(name, 100 + i).res, 0, f"register {name!r}")
    r = b.lookup(name, fresh=True)
    equal((r.res, r.record["name"], r.record["incarnation"]), (0, name, 100 + i), f"lookup {name!r}")
equal(etcd.keys("mcshm/segments/"), sorted(b"mcshm/segments/" + n.encode() for n in names), "keys")
for name in ["", " ", "   ", "n" * 256, "line\nbreak", "tab\t", "\x7f", "\u00a0", "\u0085"]:
    equal(a.register(name).res, EINVAL, f"register {name!r}")
    equal(a.lookup(name).res, EINVAL, f"lookup {name!r}")
equal(a.ask("lookup", "%ff%fe").res, EINVAL, "no UTF-8")
equal(a.register("10.0.0.1:70/x").res, EINVAL, "a name that says where it is")
r = a.lookup("[fe80::1]:700/some/name")
equal((r.res, r.record["agent"], r.record["name"], r.record["incarnation"]),
      (0, "[fe80::1]:700", "some/name", 0), "an explicit name")
for i, name in enumerate(names):
    equal(a.unregister(name, 100 + i).res, 0, f"unregister {name!r}")
equal(etcd.keys("mcshm/segments/"), [], "keys after all went")
# a prefix that begins like another is another
c = Meta("etcd", etcd.url, address="127.0.0.1:7003", prefix="mcshm0")
d = Meta("etcd", etcd.url, address="127.0.0.1:7004", prefix="mcsh")
for m in (c, d):
    equal(m.register("other").res, 0, "register under another prefix")
equal(a.register("mine").res, 0, "register")
for m in (a, c, d):
    m.await_state(health="ok")
await_(lambda: b.state().cached == 1, "b to know of 'mine' alone")
equal(b.lookup("other", fresh=True).res, ENOENT, "another prefix's name")
c.quit()
d.quit()
# keys of others under our prefix are no records and hurt nobody
etcd.ctl("put", "mcshm/segments/junk", "{]")
etcd.ctl("put", "mcshm/segments/\x01", "{}")
etcd.ctl("put", "mcshm/segments/liar", '{"version":1,"name":"other","incarnation":"1","agent":"a:1"}')
for name in ("junk", "liar"):
    equal(b.lookup(name).res, EBADMSG, f"lookup {name}")
    equal(b.register(name).res, EBADMSG, f"register over {name}")
check("delete that key" in b.register("junk").text, "no remedy")
etcd.ctl("del", "--prefix", "mcshm/segments/j")
equal(b.register("junk").res, 0, "register when the junk is gone")
equal(b.unregister("junk").res, 0, "unregister")
etcd.ctl("del", "mcshm/segments/liar")
etcd.ctl("del", "mcshm/segments/\x01")

# -- raw keys; under the agent's lease
equal(a.put("mooncake/ram/n:1", "{}").res, 0, "put")
equal((b.get("mooncake/ram/n:1").value, b.get("mooncake/none").res), (b"{}", ENOENT), "get")
check(etcd.keys("mooncake/") == [b"mooncake/ram/n:1"], "the raw key")
equal(a.put("mooncake/ram/n:1", "{2}").res, 0, "put again")
equal(b.get("mooncake/ram/n:1").value, b"{2}", "get again")
equal(a.ask("puts", "big", 512 << 10).res, 0, "the largest value")
equal(b.get("big").size, 512 << 10, "its size")
equal(a.ask("puts", "big", (512 << 10) + 1).res, EMSGSIZE, "one byte more")
equal(a.delete("big").res, 0, "delete")
equal(a.delete("mooncake/ram/n:1").res, 0, "delete")
equal(b.get("mooncake/ram/n:1").res, ENOENT, "get after delete")

# -- one name, one owner
equal(a.register("one", 1).res, 0, "register")
r = b.register("one", 2)
equal(r.res, EEXIST, "the name of a living other")
equal(r.record["agent"], "127.0.0.1:7001", "the holder")
check("127.0.0.1:7001" in r.text and "since 20" in r.text, "the sentence names no holder:", r.text)
equal(b.lookup("one").record["incarnation"], 1, "the record is the first one's")
equal(b.unregister("one", 2).res, 0, "unregister what is another's")
equal(a.lookup("one", fresh=True).res, 0, "and it is still there")
equal(a.unregister("one", 999).res, 0, "unregister another incarnation")
equal(a.lookup("one", fresh=True).res, 0, "and it is still there")
equal(a.register("one", 3).res, 0, "the owner itself replaces it")
await_(lambda: (b.read(0.05), ("one", 3) in b.changes)[1], "b to hear of the new incarnation")
equal(b.lookup("one").record["incarnation"], 3, "the new incarnation, from the cache")
equal(a.unregister("one", 3).res, 0, "unregister")
await_(lambda: (b.read(0.05), ("one", 0) in b.changes)[1], "b to hear that it went")
equal(b.register("one", 4).res, 0, "then another may have it")
equal(b.unregister("one", 4).res, 0, "unregister")

# -- an agent dies: its next life takes its names over at once, others when the lease has ended
x = Meta("etcd", etcd.url, address="127.0.0.1:7010", incarnation=1, ttl=3)
equal(x.register("heir", 1).res, 0, "register")
equal(x.register("rest", 1).res, 0, "register")
x.kill()
equal(b.register("rest", 7).res, EEXIST, "the lease still lives")
y = Meta("etcd", etcd.url, address="127.0.0.1:7010", incarnation=2, ttl=3)
equal(y.register("heir", 2).res, 0, "the next life takes it")
equal(y.state().stale_taken, 1, "and counts it")
equal(b.lookup("heir", fresh=True).record["incarnation"], 2, "the new record")
await_(lambda: b.register("rest", 7).res == 0, "the name to be free when the lease has ended")
await_(lambda: b.lookup("heir").record["incarnation"] == 2, "the mirror to follow")
equal(b.unregister("rest", 7).res, 0, "unregister")
y.quit()
equal(b.lookup("heir", fresh=True).res, ENOENT, "a clean end takes everything back")

# -- an agent that stood still for longer than its lease: what another took is not taken back while
#    that one lives
x = Meta("etcd", etcd.url, address="127.0.0.1:7012", incarnation=1, ttl=2)
equal(x.register("paused", 1).res, 0, "register")
equal(x.register("left", 1).res, 0, "register")
x.freeze()
await_(lambda: b.register("paused", 9).res == 0, "the name of one that stands still to be free")
x.thaw()
x.await_state(wanted=2, registered=1, leases_lost=1)
equal(b.lookup("paused", fresh=True).record["incarnation"], 9, "the record is b's")
equal(b.lookup("left", fresh=True).record["incarnation"], 1, "the other is there again")
check("127.0.0.1:7002" in x.log(), "no word about who has it:", x.log())
equal(b.unregister("paused", 9).res, 0, "unregister")
x.await_state(health="ok", registered=2)
x.quit()

# -- many abnormal ends leave nothing
for i in range(15):
    x = Meta("etcd", etcd.url, address="127.0.0.1:7011", incarnation=100 + i, ttl=2)
    for n in range(3):
        x.post("register", f"crash{n}", 1000 * i + n)
    x.read(0.3)
    x.kill()
before = etcd.keys("mcshm/segments/crash")
check(before, "no crash left anything: nothing was tested")
await_(lambda: not etcd.keys("mcshm/segments/crash") and etcd.leases() == 2, "records and leases of the dead to go")
equal(etcd.keys("mcshm/"), [b"mcshm/hosts/127.0.0.1:7001", b"mcshm/hosts/127.0.0.1:7002",
                            b"mcshm/segments/mine"], "keys of the living alone")
equal(b.lookup("crash0").res, ENOENT, "a dead incarnation is not resolved")

# -- a long list, and events larger than a gateway's message
filler = "x" * 1500
for start in range(0, 5000, 100):
    etcd.post("/v3/kv/txn", {"success": [{"request_put": {
        "key": b64(f"mcshm/segments/long{i}"),
        "value": b64(json.dumps({"version": 1, "name": f"long{i}", "incarnation": str(i + 1),
                                 "agent": "10.9.9.9:1", "note": filler}))}} for i in range(start, start + 100)]})
await_(lambda: a.state().cached == 5000, lambda: f"a's mirror to have all: {a.state()}")
c = Meta("etcd", etcd.url, address="127.0.0.1:7005")
c.await_state(health="ok", cached=5001)
equal(c.lookup("long4999").record["incarnation"], 5000, "one of them")
c.freeze()  # and meanwhile
for i in range(48):
    etcd.ctl("put", f"mcshm/segments/wide{i}", json.dumps(
        {"version": 1, "name": f"wide{i}", "incarnation": "1", "agent": "10.9.9.9:1", "note": "y" * 100000}))
c.thaw()
c.await_state(health="ok", cached=5049)
etcd.ctl("del", "--prefix", "mcshm/segments/long")
etcd.ctl("del", "--prefix", "mcshm/segments/wide")
c.await_state(cached=1)
c.quit()

# -- an idle agent writes nothing
idle = etcd.revision()
time.sleep(4)  # nothing can be awaited when nothing shall happen: some renewals and audits
equal(etcd.revision(), idle, "etcd's revision after idling")
for m in (a, b):
    m.quit()
equal(etcd.leases(), 0, "leases after a clean end")
etcd.stop()

# -- a full service: refused by name, removals and what is known go on, it recovers by itself
etcd = Etcd(1, "--quota-backend-bytes", str(16 << 20))
a = Meta("etcd", etcd.url, address="127.0.0.1:7001", incarnation=11)
b = Meta("etcd", etcd.url, address="127.0.0.1:7002", incarnation=22)
equal(a.register("known", 5).res, 0, "register")
equal(a.register("goes", 6).res, 0, "register")
equal(b.lookup("known").res, 0, "lookup")


def full():
    p = etcd.ctl("put", "filler", data=os.urandom(600000).hex().encode(), ok=None)
    return b"space exceeded" in p.stderr


etcd.ctl("put", "theirs", "v")
await_(full, "etcd to be full")
equal(b.put("theirs", "mine").res, ENOSPC, "put in a full service")
r = b.register("late", 1)
equal(r.res, ENOSPC, "register in a full service")
check("defragment" in r.text, "no remedy in:", r.text)
equal(b.lookup("known").res, 0, "lookup of what is known")
equal(b.lookup("known", fresh=True).res, 0, "reads are answered")
equal(a.unregister("goes", 6).res, 0, "removal")
equal(b.lookup("goes", fresh=True).res, ENOENT, "it is gone")
c = Meta("etcd", etcd.url, address="127.0.0.1:7003")
equal(c.register("late too", 1).res, ENOSPC, "register by an agent that gets no lease")
c.quit()
etcd.ctl("del", "filler")
etcd.ctl("compact", str(etcd.revision()))
etcd.ctl("defrag")
etcd.ctl("alarm", "disarm")
equal(await_(lambda: b.register("late", 1).res == 0 or None, "registration to work again"), True, "")
b.await_state(health="ok")
equal(b.get("theirs").value, b"v", "what was not replaced is still there")
a.quit()
b.quit()
etcd.stop()

# -- users: a token is taken, and another when etcd forgets it
etcd = Etcd(1, "--auth-token", "simple")
for words in (["user", "add", "root:topsecret"], ["user", "add", "mcshm:pa\"ss w"], ["role", "add", "meta"],
              ["role", "grant-permission", "meta", "--prefix=true", "readwrite", "mcshm/"],
              ["user", "grant-role", "mcshm", "meta"], ["user", "grant-role", "root", "root"]):
    etcd.ctl(*words)
etcd.ctl("auth", "enable")
etcd.user = "root:topsecret"
m = Meta("etcd", etcd.url, address="127.0.0.1:7001", user="mcshm", password='pa"ss w')
m.await_state(health="ok")
equal(m.register("s", 1).res, 0, "register with a token")
equal(m.put("elsewhere", "v").res, EACCES, "a key the role does not reach")
bad = Meta("etcd", etcd.url, address="127.0.0.1:7002", user="mcshm", password="wrong")
r = bad.register("t", 1)
equal(r.res, EACCES, "register with a wrong password")
check("password" in r.text, "no remedy in:", r.text)
bad.quit()
none = Meta("etcd", etcd.url, address="127.0.0.1:7003")
equal(none.lookup("s").res, EACCES, "lookup without a user")
none.quit()
etcd.kill()
etcd.start()  # simple tokens live in memory
equal(await_(lambda: m.register("u", 2).res == 0 or None, "a new token"), True, "")
m.await_state(health="ok", registered=2)
m.quit()
etcd.stop()

# -- endpoints by name; a name that nobody resolves holds nothing up
etcd = Etcd()
named = etcd.url.replace("127.0.0.1", "localhost")
m = Meta("etcd", f"http://no-such-host.invalid:2379,{named}")
equal(m.register("s", 1).res, 0, "register by one of two names")
m.quit()
m = Meta("etcd", "http://no-such-host.invalid:2379", timeout=500)
equal(m.lookup("s").res, ECOMM, "lookup at an unknown host")
m.quit()
etcd.stop()

# -- TLS on both sides
d = certificates()
etcd = Etcd(1, tls=d)
m = Meta("etcd", etcd.url, ca=f"{d}/ca.pem", cert=f"{d}/client.pem", key=f"{d}/client.key")
equal(m.register("s", 1).res, 0, "register over TLS")
m.quit()
stranger = Meta("etcd", etcd.url, ca=f"{d}/ca.pem", timeout=1000)
equal(stranger.lookup("s").res, ECOMM, "without a certificate")
stranger.quit()
other = certificates()
distrust = Meta("etcd", etcd.url, ca=f"{other}/ca.pem", cert=f"{d}/client.pem", key=f"{d}/client.key", timeout=1000)
equal(distrust.lookup("s").res, ECOMM, "a server of another CA")
distrust.quit()
etcd.stop()
