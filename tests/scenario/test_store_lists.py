#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists and removals by pattern: pages, keys of any bytes, expressions that are wrong or would have no end, what is in use, and that
nobody else waits for them."""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

FORCE_, LOCAL_ = 0x20, 0x40
agent = Agent("store.size=64M", "store.extent_size=8M")
me, other = Client(agent.socket, "me"), Client(agent.socket, "other")
keys = [b"p/%04d" % i for i in range(2000)] + [b"q/\xff%d" % i for i in range(10)] + [b"nul\0%d" % i for i in range(5)]
for i in range(0, len(keys), 500):
    equal({r.status for r in me.put(*[(k, b"x") for k in keys[i:i + 500]])}, {OK}, "puts")


def names(listed):
    return [bytes.fromhex(o["key_hex"]) if "key_hex" in o else o["key"].encode() for o in listed["objects"]]


# all of them, each once; by prefix; in pages
got = me.list()
equal(sorted(names(got)), sorted(keys), "a list of all")
equal(got["more"], False, "more")
equal(sorted(names(me.list(b"q/"))), sorted(k for k in keys if k.startswith(b"q/")), "a list by prefix")
equal(names(me.list(b"nul\0" + b"3")), [b"nul\0" + b"3"], "a prefix with a NUL")
equal(me.list(b"none")["objects"], [], "a prefix of nothing")
pages, skip = [], 0
while True:
    page = me.list(b"p/", skip=skip, limit=300)
    pages += names(page)
    skip += 300
    if not page["more"]:
        break
equal(sorted(pages), sorted(k for k in keys if k.startswith(b"p/")), "pages")
for limit in (0, 1000001):
    refused(INVALID_ARGUMENT, lambda: me.list(limit=limit))
refused(NOT_FOUND, me.stat, b"none")
o = me.stat(b"p/0001")
equal((o["key"], o["size"], o["tier"], o["hard_pin"], o["pins"]), ("p/0001", 1, "memory", False, 0), "one object")

# expressions: a part of the keys, wrong ones, and such that would have no end
equal(me.removed("regex", b"^p/0[0-9]{2}0$", 0), 100, "removed by expression")
equal(me.exist(b"p/0000", b"p/0001"), [NOT_FOUND, OK], "what is left")
equal(me.removed("regex", b"^q/.1$", 0), 1, "a byte that is no character")
for wrong in (b"(", b"[a", b"*", b"a{3,2}", b"(((a{1,255}){1,255}){1,255}){1,255}", b"(" * 4000, b"\\C"):
    refused(INVALID_ARGUMENT, lambda: me.removed("regex", wrong, 0))
slow = b"x" * 60 + b"a" * 2000 + b"bc"
me.put((slow, b"s"))
refused(INVALID_ARGUMENT, lambda: me.removed("regex", b"^x*(a|aa|a*)*(a|a)*(aa|aaa)*b$", 0))
equal(me.exist(slow), [OK], "what it could not judge")

# what is read, leased or pinned stays unless it is forced
me.put((b"use/pinned", b"1"), flags=HARD_PIN)
me.put((b"use/held", b"2"), (b"use/free", b"3"))
held = other.hold(b"use/held")[0]
equal(me.removed("prefix", b"use/", 4, 0), 1, "removed of what is in use")
equal(me.exist(b"use/pinned", b"use/held", b"use/free"), [OK, OK, NOT_FOUND], "what is in use")
equal(me.removed("prefix", b"use/", 4, FORCE_), 2, "removed by force")
equal(peek(held.address, 1), b"2", "what is read in place, removed by force")
other.release(held.hold)

# others are not held up: puts and gets go on while lists run one after the other
done = threading.Event()


def keep_listing():
    c = Client(agent.socket, "lister")
    while not done.is_set():
        c.list()
    c.close()


threads = [threading.Thread(target=keep_listing) for _ in range(3)]
for t in threads:
    t.start()
for i in range(200):
    equal(me.put((b"while", b"%d" % i), flags=UPSERT)[0].status, OK, "a put while others list")
    equal(me.get(b"while")[0], (OK, b"%d" % i), "a get while others list")
done.set()
for t in threads:
    t.join()
left = len(names(me.list()))
equal(me.removed("all", LOCAL_), left, "all")
equal(me.list()["objects"], [], "what is left of all")

# a client that dies while it waits for a list holds nobody up
for i in range(0, len(keys), 500):
    me.put(*[(k, b"x") for k in keys[i:i + 500]])


def dies(pipe):
    raw = Raw(agent.socket)
    raw.hello()
    for _ in range(20):
        raw.send(30, struct.pack("<IIQQII4608s", 0, LOCAL_, 1000000, 0, 0, 0, b""))
    pipe.send("asked")
    pipe.recv()


child = Child(dies)
child.pipe.recv()
child.kill()
equal(len(names(me.list())), len(keys), "a list after that")
for c in (me, other):
    c.close()
agent.finish()
