#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Segments' names in Mooncake's HTTP metadata server, which knows no leases; names without any service."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403
from gateway import *  # noqa: E402,F403

g = MetadataServer()
a = Meta("http", g.url, address="127.0.0.1:7001", incarnation=11, ttl=2)
b = Meta("http", g.url, address="127.0.0.1:7002", incarnation=22, ttl=2)

# -- spelling: one key, however it is written
names = ["a/b", "h:1", "x%2Fy", "[::1]:9", "ü", "n" * 200, "a&key=b", "c+d", "with space", "#?"]
for i, name in enumerate(names):
    equal(a.register(name, i + 1).res, 0, f"register {name!r}")
    r = b.lookup(name)
    equal((r.res, r.record["name"], r.record["incarnation"]), (0, name, i + 1), f"lookup {name!r}")
equal(sorted(g.kvs), sorted("mcshm/segments/" + n for n in names), "keys of the server")
for name in ["", " ", "n" * 256, "line\nbreak"]:
    equal(a.register(name).res, EINVAL, f"register {name!r}")
for i, name in enumerate(names):
    equal(a.unregister(name, i + 1).res, 0, f"unregister {name!r}")
equal(g.kvs, {}, "keys after all went")

# -- raw keys, as Mooncake writes them
equal(a.put("mooncake/rpc_meta/n:1", '{"rpc_port":5}').res, 0, "put")
equal(g.kvs["mooncake/rpc_meta/n:1"], b'{"rpc_port":5}', "the value")
equal(b.get("mooncake/rpc_meta/n:1").value, b'{"rpc_port":5}', "get")
equal(b.put("mooncake/rpc_meta/n:1", "{}").res, EEXIST, "a key the server does not replace")
equal(b.get("mooncake/none").res, ENOENT, "get of nothing")
equal(a.delete("mooncake/rpc_meta/n:1").res, 0, "delete")
equal(a.delete("mooncake/rpc_meta/n:1").res, 0, "delete of nothing")
equal(g.kvs, {}, "keys")

# -- ownership: a record that is renewed is a living agent's
equal(a.register("one", 1).res, 0, "register")
r = b.register("one", 2)
equal((r.res, r.record["agent"]), (EEXIST, "127.0.0.1:7001"), "the name of another")
check("since 20" in r.text, "no time in", r.text)
first = json.loads(g.kvs["mcshm/segments/one"])
await_(lambda: json.loads(g.kvs["mcshm/segments/one"])["renewed"] >= first["renewed"] + 8, "renewals", 60)
equal(b.register("one", 2).res, EEXIST, "after four times its ttl, renewed")
equal(json.loads(g.kvs["mcshm/segments/one"])["since"], first["since"], "since when it has been there")
equal(b.unregister("one", 2).res, 0, "unregister another's")
equal(b.lookup("one").res, 0, "it is still there")
equal(b.lookup("nothing").res, ENOENT, "a name nobody has")
a.kill()
await_(lambda: b.lookup("one", fresh=True).res == ENOENT, "the dead agent's record to count as dead", 60)
equal(b.register("one", 2).res, 0, "then another may have it")
equal(b.state().stale_taken, 1, "and that is counted")
# the next life of an agent takes its own names at once
b.kill()
c = Meta("http", g.url, address="127.0.0.1:7002", incarnation=33, ttl=2)
equal(c.register("one", 3).res, 0, "the next life takes its name")
equal(json.loads(g.kvs["mcshm/segments/one"])["incarnation"], "3", "its record")

# -- lost and emptied
d = Meta("http", g.url, address="127.0.0.1:7004", incarnation=44, ttl=2)
equal(d.lookup("one").record["incarnation"], 3, "lookup")
with g.lock:
    g.kvs.clear()
await_(lambda: "mcshm/segments/one" in g.kvs, "the emptied server to be filled again")
g.fault = lambda path, body: RESET
await_(lambda: d.lookup("one").res == 0 and d.state().health == "down", "what is known to stay known")
equal(d.lookup("unknown").res, ECOMM, "what is not known")
equal(d.lookup("one", fresh=True).res, ECOMM, "what shall be fresh")
r = c.register("two", 1)
equal(r.res, ECOMM, "register while nobody answers")
g.fault = lambda path, body: (503, b"")
equal(d.lookup("unknown").res, ECOMM, "status 503")
g.fault = lambda path, body: (403, b"")
equal(d.lookup("unknown").res, EACCES, "status 403")
g.fault = lambda path, body: (200, b'{"a":' * 10000)
equal(d.lookup("unknown").res, EBADMSG, "nonsense")
g.fault = lambda path, body: (200, b"x" * (9 << 20))
equal(d.lookup("unknown").res, EBADMSG, "more than 8 MiB")
equal(d.get("anything").res, EBADMSG, "more than 8 MiB")
g.fault = lambda path, body: CLOSE
equal(d.lookup("unknown").res, ECOMM, "headers and no body")
g.fault = None
for m in (c, d):
    m.await_state(health="ok")
equal(d.lookup("one").record["incarnation"], 3, "lookup")
await_(lambda: d.lookup("two", fresh=True).res == ENOENT, "what was refused not to stay")
# another agent wrote over the record meanwhile: it is not taken back while that one lives
with g.lock:
    record = json.loads(g.kvs["mcshm/segments/one"])
    g.kvs["mcshm/segments/one"] = json.dumps({**record, "agent": "127.0.0.1:9", "agent_incarnation": "9",
                                              "incarnation": "9", "renewed": int(time.time()) + 3600}).encode()
c.await_state(wanted=1, registered=0)
equal(d.lookup("one").record["agent"], "127.0.0.1:9", "the record of the other")
await_(lambda: (d.read(0.05), ("one", 9) in d.changes)[1], "d to hear of the change")
with g.lock:
    g.kvs.pop("mcshm/segments/one")
c.await_state(wanted=1, registered=1, seconds=60)
c.quit()
d.quit()
equal(g.kvs, {}, "a clean end leaves nothing")
g.close()

# -- no service at all
for backend in ("memory", "p2p"):
    m = Meta(backend, "")
    equal(m.register("own", 1).res, 0, "register")
    equal(m.lookup("own").record["incarnation"], 1, "lookup")
    equal(m.lookup("other").res, ENOENT, "another name")
    equal(m.lookup("10.0.0.9:700/other").record["agent"], "10.0.0.9:700", "an explicit name")
    equal(m.unregister("own", 2).res, 0, "unregister another incarnation")
    equal(m.lookup("own").res, 0, "it is still there")
    equal(m.unregister("own", 1).res, 0, "unregister")
    equal(m.lookup("own").res, ENOENT, "it is gone")
    for r in (m.get("k"), m.put("k", "v"), m.delete("k")):
        equal(r.res, ENOTSUP, "raw keys")
    equal(m.state().health, "ok", "health")
    m.quit()

# -- what cannot work is said in one sentence, at once
for settings, word in ((dict(endpoints=""), "endpoints"), (dict(endpoints="10.0.0.1:2379"), "http://"),
                       (dict(endpoints="http://a,http://b"), "more than 1"), (dict(ttl=1), "ttl_s"),
                       (dict(ttl=3601), "ttl_s"), (dict(timeout=0), "timeout_ms"), (dict(prefix=""), "prefix"),
                       (dict(address=""), "[peer] listen"), (dict(ca="/no/such"), "/no/such"),
                       (dict(cert="/dev/null"), "key is missing"), (dict(endpoints="ftp://x"), "http://")):
    m = Meta(**{**dict(backend="http", endpoints="http://127.0.0.1:1"), **settings})
    equal(m.process.wait(30), 1, f"exit status with {settings}")
    check(word in m.log() and len(m.log().split("\n")) == 2, settings, "gives", m.log())
