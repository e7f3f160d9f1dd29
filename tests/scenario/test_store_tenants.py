#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants in the store: one key is two objects, nobody sees, maps or removes another's, a limit costs only who has it, and memory that
was one's is never another's. As root: clients are of several users."""
import mmap
import os
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

if os.geteuid() != 0:
    skip("takes root: clients of several users")

MiB, QUERY_STORE = 1 << 20, 8
MAP, UNMAP = 28, 29
folder = tempfile.mkdtemp(dir="/tmp", prefix="mcshm-")
os.chmod(folder, 0o755)
atexit.register(shutil.rmtree, folder, ignore_errors=True)
path = os.path.join(folder, "s")
agent = Agent("agent.socket=" + path, "agent.socket_mode=0666", "store.size=24M", "store.extent_size=2M",
              "tenant:one.uids=61001", "tenant:one.store=8M", "tenant:two.uids=61002",
              "tenant:small.uids=61003", "tenant:small.memory=1M")
agent.socket = path


def at(uid, f):
    """f(client, pipe) in a process of this user; what it returns."""

    def run(pipe):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        pipe.send(f(uid))
        pipe.recv()
    child = Child(run)
    value = child.pipe.recv()[0]
    child.pipe.send("end")
    child.join()
    return value


def own(uid):
    c = Client(path, "c%d" % uid)
    equal(c.put((b"k", b"of %d" % uid))[0].status, OK, "a put")
    equal(c.put((b"shared/%d" % uid, b"x"))[0].status, OK, "a put")
    equal(c.get(b"k")[0], (OK, b"of %d" % uid), "its own object")
    c.close()
    return "ok"


for uid in (61001, 61002):
    at(uid, own)


# the other's is not there, in no way
def others(uid):
    c = Client(path, "c%d" % uid)
    equal(c.get(b"k")[0], (OK, b"of %d" % uid), "one key, two objects")
    other = b"shared/%d" % (61001 + 61002 - uid)
    equal(c.exist(other), [NOT_FOUND], "another's object")
    equal(c.remove(other), [NOT_FOUND], "a removal of it")
    refused(NOT_FOUND, c.stat, other)
    equal(sorted(o["key"] for o in c.list()["objects"]), ["k", f"shared/{uid}"], "a list")
    equal({e["key"] for e in c.events(1)["events"]}, {"k", f"shared/{uid}"}, "the feed")
    equal([t["name"] for t in c.object_json("query", QUERY_STORE)["tenants"]], ["one" if uid == 61001 else "two"],
          "tenants that it sees")
    c.close()
    return "ok"


for uid in (61001, 61002):
    at(uid, others)
root = Client(path, "root")
equal({o["tenant"] for o in root.list()["objects"]}, {"one", "two"}, "what root sees")
equal(root.removed("all", 0x20), 0, "what root removes of others")


# extents: one's own alone, read-only is read-only
def extents(uid):
    raw = Raw(path)
    raw.hello()
    mine = []
    for i in range(1, 32):
        raw.send(MAP, struct.pack("<II", i, 0))
        _, status, body, fds = raw.recv()
        if status != OK:
            equal(status, INVALID_HANDLE, "a mapping of what is not there, or another's")
            continue
        mine.append(i)
        size = struct.unpack("<Q", body[:8])[0]
        m = mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ)
        text = m[:]
        check(b"of %d" % uid in text, "its own bytes are not in its extent")
        check(b"of %d" % (61001 + 61002 - uid) not in text, "another's bytes are in its extent")
        for attempt in (lambda: mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
                        lambda: os.open(f"/proc/self/fd/{fds[0]}", os.O_RDWR)):
            try:
                attempt()
            except PermissionError:
                continue
            raise AssertionError("what is read-only can be written")
        os.close(fds[0])
        raw.send(MAP, struct.pack("<II", i, 1))
        equal(raw.recv()[1], ACCESS, "a writable mapping of what the agent writes")
        raw.send(UNMAP, struct.pack("<II", i, 0))
        equal(raw.recv()[1], OK, "an unmapping")
    return mine


one, two = at(61001, extents), at(61002, extents)
check(len(one) == 1 and len(two) == 1 and one != two, "extents:", one, two)


# a limit: its own objects go, nobody else's
def fill_up(uid):
    c = Client(path, "c%d" % uid)
    for i in range(30):
        equal(c.put((b"fill-%d" % i, bytes([i]) * MiB))[0].status, OK, "a put over the limit")
        check(c.get(b"fill-%d" % i, room=MiB)[0] == (OK, bytes([i]) * MiB), "what was just put")
    mine = c.object_json("query", QUERY_STORE)["tenants"][0]
    c.close()
    return mine


mine = at(61001, fill_up)
check(mine["bytes"] <= 8 * MiB and mine["memory"] <= 12 * MiB and mine["limit"] == 8 * MiB and
      mine["evictions"] >= 20, "tenant one:", mine)


def still(uid):
    c = Client(path, "c%d" % uid)
    equal(c.get(b"k")[0], (OK, b"of %d" % uid), "an object of who has not asked for anything")
    c.close()
    return "ok"


at(61002, still)

# without a limit one takes what the others leave; what it gets was nobody's
mine = at(61002, fill_up)
check(mine["memory"] > 8 * MiB, "tenant two:", mine)
text = urllib.request.urlopen(f"http://{agent.status()['admin']['listen']}/metrics", timeout=PATIENCE).read().decode()
check('mcshm_store_tenant_limit_bytes{tenant="one"} 8388608' in text and
      'mcshm_store_tenant_objects{tenant="two"}' in text, "metrics of tenants")


# mappings count for the tenant's memory
def too_small(uid):
    c = Client(path, "c%d" % uid)
    refused(LIMIT, lambda: c.create((b"in place", 100)))
    raw = Raw(path)
    raw.hello()
    seen = []
    for i in range(1, 200):
        raw.send(MAP, struct.pack("<II", i, 1))
        seen.append(raw.recv()[1])
    c.close()
    return [seen.count(LIMIT), seen.count(INVALID_HANDLE)]


equal(at(61003, too_small), [1, 198], "mappings beyond the tenant's memory, and of what is not there")
root.close()
agent.finish()
