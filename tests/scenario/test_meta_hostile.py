#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""A gateway that swallows, resets, lies and floods: leases are kept as long as they can be, answers are
bounded and checked, no crowd of requests for one name."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403
from gateway import *  # noqa: E402,F403

# -- leases: side by side, since each takes its time
kept = Gateway()  # one renewal is swallowed, and the watch is reset beside it
away = Gateway()  # refuses everything for more than half of a lease
gone = Gateway()  # for longer than a lease
mk = Meta("etcd", kept.url, address="127.0.0.1:1001", ttl=6)
ma = Meta("etcd", away.url, address="127.0.0.1:1002", ttl=10)
mg = Meta("etcd", gone.url, address="127.0.0.1:1003", ttl=2)
for m in (mk, ma, mg):
    equal(m.register("name", 1).res, 0, "register")
    m.await_state(health="ok")
leases = {m: m.state().lease for m in (mk, ma, mg)}

swallowed = []


def swallow_one(path, body):
    if "keepalive" in path and not swallowed:
        swallowed.append(time.monotonic())
        return SWALLOW


kept.fault = swallow_one
n = away.count("keepalive")
await_(lambda: away.count("keepalive") > n, "a renewal")
away.fault = lambda path, body: RESET
away_since = time.monotonic()
gone.fault = lambda path, body: RESET
gone.cut_watches()
mg.await_state(health="down")
equal(mg.lookup("name", fresh=True).res, ECOMM, "lookup while nobody answers")
equal(mg.lookup("name").res, 0, "what is known stays")
await_(lambda: swallowed, "the renewal to be swallowed")
kept.cut_watches()
n = kept.count("keepalive")
await_(lambda: kept.count("keepalive") >= n + 3, "renewals after the swallowed one", 60)
s = mk.await_state(health="ok")
equal((s.lease, s.leases_lost), (leases[mk], 0), "the lease with one renewal swallowed")
await_(lambda: time.monotonic() - away_since > 6, "the outage to last", 60)
away.fault = None
s = ma.await_state(health="ok")
equal((s.lease, s.leases_lost), (leases[ma], 0), "the lease after an outage shorter than it")


def ended():
    with gone.changed:
        gone.expire()
        return not gone.leases


await_(ended, "the lease to end", 60)
gone.fault = None
s = mg.await_state(health="ok", registered=1, leases_lost=1)
check(s.lease != leases[mg], "it is the old lease")
equal(len(gone.leases), 1, "leases")
check(b"mcshm/segments/name" in gone.kvs and b"mcshm/hosts/127.0.0.1:1003" in gone.kvs, "not registered again")
# each renewal is a request of its own, with one object
for g in (kept, away, gone):
    for _, path, body in list(g.requests):
        if "keepalive" in path:
            equal(list(json.loads(body)), ["ID"], "a renewal's body")
for m in (mk, ma, mg):
    m.quit()
equal([len(g.leases) for g in (kept, away, gone)], [0, 0, 0], "leases after clean ends")

# -- a crowd asks for cold names: each is asked for once or a few times
g = Gateway()
for i in range(64):
    g.put(b"mcshm/segments/cold%d" % i, json.dumps(
        {"version": 1, "name": f"cold{i}", "incarnation": str(i + 1), "agent": "10.0.0.1:1"}).encode())
g.chunks = True
m = Meta("etcd", g.url, address="127.0.0.1:1001", timeout=20000)
names = {b64(f"mcshm/segments/cold{i}") for i in range(64)}
ids = []
for caller in range(16):
    for i in range(64):
        ids.append((i, m.post("lookup", f"cold{i}", "fresh" if caller % 4 == 0 else "")))
    ids.append((None, m.post("register", f"own{caller}", caller + 1)))
for i, id in ids:
    a = m.answer(id, 60)
    equal(a.res, 0, "answer")
    if i is not None:
        equal((a.record["name"], a.record["incarnation"]), (f"cold{i}", i + 1), "record")
asked = [json.loads(body).get("key") for _, path, body in list(g.requests) if path == "/v3/kv/range"]
each = {k: asked.count(k) for k in names}
check(max(each.values()) <= 3, "requests for one name:", each)
m.await_state(health="ok", registered=16, cached=64)
m.quit()

# -- lies and floods
g = Gateway()
m = Meta("etcd", g.url, address="127.0.0.1:1001", ttl=60, timeout=20000 if SAN else 5000)
equal(m.register("good", 1).res, 0, "register")
m.await_state(health="ok")
sent = [0]


def flood(h):
    h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 268435456\r\n\r\n")
    piece = b'{"kvs":[' + b'"' + b"x" * 65525
    try:
        for _ in range(4096):
            h.wfile.write(piece[:65536])
            sent[0] += len(piece)
            piece = b"x" * 65536
    except OSError:
        pass


def kv(**more):
    return {"key": b64("mcshm/segments/evil"), "mod_revision": "5", "create_revision": "5", **more}


def body(o):
    return json.dumps({"header": {"revision": "9"}, **o}).encode()


record = {"version": 1, "name": "evil", "incarnation": "1", "agent": "a:1"}


def valued(**more):
    return body({"kvs": [kv(value=b64(json.dumps({**record, **more})))]})


lies = {
    "flood": flood,
    "nesting": (200, b"[" * 1000000),
    "nesting in an object": (200, b'{"a":' * 100000),
    "many values": (200, b'{"a":[' + b"0," * 2000000 + b"0]}"),
    "nothing": (200, b""),
    "a number": (200, b"7"),
    "truncated": (200, valued()[:-20]),
    "rubbish behind": (200, valued() + b"}"),
    "no UTF-8": (200, b'{"header":{"revision":"9"},"kvs":[{"key":"\xff\xfe"}]}'),
    "bad base64": (200, body({"kvs": [kv(value="@@@@")]})),
    "cut base64": (200, body({"kvs": [kv(value="abc")]})),
    "kvs is a string": (200, body({"kvs": "x"})),
    "kvs holds numbers": (200, body({"kvs": [1, 2]})),
    "key is a number": (200, body({"kvs": [kv(key=7)]})),
    "revision is a word": (200, body({"kvs": [kv(mod_revision="soon")]})),
    "revision too large": (200, body({"kvs": [kv(mod_revision="9" * 40)]})),
    "negative revision": (200, body({"kvs": [kv(mod_revision="-5")]})),
    "no revision": (200, json.dumps({"kvs": [kv()]}).encode()),
    "header is a list": (200, json.dumps({"header": [], "kvs": [kv()]}).encode()),
    "the value is no record": (200, body({"kvs": [kv(value=b64("hello"))]})),
    "another name": (200, valued(name="good")),
    "name is a list": (200, valued(name=["evil"])),
    "no incarnation": (200, valued(incarnation="0")),
    "incarnation too large": (200, valued(incarnation="18446744073709551616")),
    "version is minus one": (200, valued(version=-1)),
    "agent too long": (200, valued(agent="a" * 256)),
    "agent with a newline": (200, valued(agent="a\n:1")),
    "an error of the wrong shape": (500, b'{"error":{"message":[1],"grpc_code":{}}}'),
    "status 204": (204, b""),
    "status 404": (404, b"Not Found"),
}
lie = [None]
g.fault = lambda path, body: lie[0] if path == "/v3/kv/range" and b64("mcshm/segments/evil").encode() in body else None
base = m.peak()
for what, answer in lies.items():
    lie[0] = answer
    bad = m.state().bad_replies
    r = m.lookup("evil", fresh=True)
    wanted = (EBADMSG, ECOMM) if "500" in str(answer) or "error" in what else (EBADMSG,)
    check(r.res in wanted, what, "gives", r)
    check(r.text, "no sentence for", what)
    if r.res == EBADMSG:
        check(m.state().bad_replies > bad, what, "was not counted")
    equal(m.lookup("good", fresh=True).res, 0, f"an honest answer after {what}")
check(sent[0] < 32 << 20, "took", sent[0], "bytes of an answer without end")
if not SAN:
    check(m.peak() - base < 32 << 20, "memory grew by", m.peak() - base)
# a member twice: the first counts, nothing breaks
lie[0] = (200, valued().replace(b'"kvs"', b'"kvs":[],"kvs"'))
equal(m.lookup("evil", fresh=True).res, ENOENT, "duplicate members")
g.fault = None
m.await_state(health="ok")

# the same on the stream of events, in transactions, leases and lists
start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
created = b'{"result":{"header":{"revision":"2"},"created":true}}\n'


def stream(data, times=1):
    def write(h):
        try:
            h.wfile.write(start + created)
            for _ in range(times):
                h.wfile.write(data)
        except OSError:
            pass
    return write


def events(*list):
    return stream(created + json.dumps({"result": {"header": {"revision": "9"}, "events": list}}).encode())


for what, answer in {
    "flood": stream(b'{"result":{"x":"' + b"x" * 65536, 1), "flood without end": stream(b'{"x":"' + b"x" * 65536, 4000),
    "nesting": stream(b'{"a":' * 1000), "no object": stream(b"[1]"), "html": stream(b"<html>"),
    "wrong types": stream(b'{"result":[]}{"result":7}'), "events are a word": stream(b'{"result":{"events":"x"}}'),
    "an event is a number": events(1), "without a key": events({"kv": {}}), "kv is a list": events({"kv": []}),
    "bad base64": events({"kv": kv(value="!")}), "bad type": events({"type": 7, "kv": kv()}),
    "no record": events({"kv": kv(value=b64("x"))}), "another prefix": events({"kv": kv(key=b64("zzz"))}),
    "canceled": stream(b'{"result":{"header":{},"canceled":true,"cancel_reason":7}}'),
    "canceled without a reason": stream(b'{"result":{"canceled":true}}'),
    "an error": stream(b'{"error":{"grpc_code":13,"message":"boom"}}'), "too large": stream(
        b'{"error":{"grpc_code":8,"message":"grpc: received message larger than max (5 vs. 4)"}}'),
}.items():
    told = []

    def once(path, body, answer=answer):
        if path == "/v3/watch" and not told:
            told.append(path)
            return answer
    g.fault = once
    g.cut_watches()
    await_(lambda: told, f"the watch to be opened ({what})")
    g.fault = None
    m.await_state(health="ok")
    equal(m.lookup("good").res, 0, f"lookup after {what} on the stream")
check(m.state().relists >= 1, "'too large' made no list")
if not SAN:
    check(m.peak() - base < 32 << 20, "memory grew by", m.peak() - base)
m.quit()
m = Meta("etcd", g.url, address="127.0.0.1:1001", ttl=2, timeout=20000 if SAN else 5000)
equal(m.register("good", 1).res, 0, "register")
m.await_state(health="ok")
before = m.peak()
for where in ("/v3/kv/txn", "/v3/lease/grant", "/v3/lease/keepalive", "/v3/kv/range"):
    for what in ("nesting", "nothing", "a number", "kvs is a string", "header is a list", "no UTF-8"):
        told = []

        def twice(path, body):
            if path == where and len(told) < 2:
                told.append(path)
                return lies[what]
        g.fault = twice
        r = m.register(f"x {where} {what}", 1)
        check(r.res in (0, EBADMSG), what, "in", where, "gives", r)
        if where == "/v3/lease/grant":
            with g.changed:
                for lease in list(g.leases):
                    g.revoke(lease)
        elif where == "/v3/kv/range":
            g.cut_watches()
        await_(lambda: len(told) == 2, f"{where} to be asked for ({what})", 60)
        g.fault = None
        m.await_state(health="ok", seconds=60)
        await_(lambda: m.lookup("good", fresh=True).res == 0, f"an honest answer after {what} in {where}", 60)
if not SAN:
    check(m.peak() - before < 32 << 20, "memory grew by", m.peak() - before)
m.quit()
