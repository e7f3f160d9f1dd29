#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects that find no room in memory go to disk and come back, over deaths of the agent and restarts of everything; a
byte that changed costs its object alone; a disk that is full, and one that is gone, are told and cost what was there alone."""
import errno
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB, QUERY_STORE = 1 << 20, 8
SIZE = 400_000
N = 60  # three times what memory has room for


def folder():
    path = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="d")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def settings(path, *more):
    return ("store.size=8M", "store.extent_size=2M", "store.disk=" + path, "store.disk_size=64M",
            "agent.barrier_ms=100") + more


def store():
    return me.object_json("query", QUERY_STORE)


def disk():
    return store()["disk"]


def data(key, size=SIZE):
    return random.Random(key).randbytes(size)


def put(key, size=SIZE):
    equal(me.put((key, data(key, size)))[0].status, OK, f"a put of {key}")


def right(key, size=SIZE):
    """True: it is there, with the right bytes; False: it is not there."""
    status, got = me.get(key, room=size)[0]
    check(status in (OK, NOT_FOUND), f"a get of {key}:", status)
    check(status != OK or got == data(key, size), "other bytes than were put under", key)
    return status == OK


def all_right(keys):
    missing = [k for k in keys if not right(k)]
    equal(missing, [], "objects that are missing")


def scanned():
    await_(lambda: disk()["scanned"], "the disk to be scanned")


def keys(of, n=N):
    return [b"%s-%d" % (of, i) for i in range(n)]


# three times more than memory has room for: nothing is lost
path = folder()
agent = Supervised(*settings(path))
me = Client(agent.socket, "me")
scanned()
for k in keys(b"a"):
    put(k)
all_right(keys(b"a"))
equal(me.exist(*keys(b"a")), [OK] * N, "what exists, wherever it is")
d = disk()
check(d["writes"] > 0 and d["reads"] > 0 and d["objects"] > 0, "nothing went to disk and back:", d)
equal((d["checksum_errors"], d["torn"], d["lost"]), (0, 0, False), "faults of a sound disk")
equal(os.stat(path).st_mode & 0o077, 0, "rights of others in the folder")
equal([f for f in os.listdir(path) if os.stat(os.path.join(path, f)).st_mode & 0o077], [], "files that others may read")
check(me.object_json("query", QUERY_STORE)["size"] == 8 * MiB, "the store's size")

# the agent dies: what it knew of is there, wherever it was
removed = keys(b"a")[::5]
there = [k for k in keys(b"a") if k not in removed]
equal(me.remove(*removed), [OK] * len(removed), "removals")
for _ in range(2):
    lives = me.info().restarts
    agent.await_next(agent.kill_agent())
    await_(lambda: me.info().restarts > lives, "the client to be back")
    scanned()
    all_right(there)
    equal([k for k in removed if right(k)], [], "removed, and back after a death")

# all of it ends, the supervisor too: the files alone tell what is there
me.close()
equal(agent.stop(), 0, "a stop")
agent.start()
me = Client(agent.socket, "me")
scanned()
back = [k for k in there if right(k)]
check(len(back) > N // 4, "most of what was on disk is not there after a restart of everything:", len(back))
equal([k for k in removed if right(k)], [], "removed, and back after a restart of everything")
equal(disk()["torn"], 0, "what a clean stop has torn")
for k in back:  # a later life of a key is later, also than one of an earlier agent on disk
    me.put((k, data(b"later" + k)), flags=UPSERT)
for k in back:
    status, got = me.get(k, room=SIZE)[0]
    check(status == OK and got == data(b"later" + k), "an earlier life of", k)
me.removed("all", 0)

# one folder, one agent, whatever the folder is called
other = os.path.join(os.path.dirname(path), os.path.basename(path) + "-too")
os.symlink(path, other)
second = Agent(*settings(other), start=False)
second.launch()
equal(second.process.wait(30) != 0, True, "a second agent over one folder starts")
os.close(second.ready)
check(other in second.text(), "the folder is not named:", second.text())
os.unlink(other)
Agent.made.remove(second)

# a byte that changed
for k in keys(b"b"):
    put(k)
me.close()
equal(agent.stop(), 0, "a stop")
for name in os.listdir(path):
    with open(os.path.join(path, name), "r+b") as f:
        whole = f.read()
        at = whole.find(data(b"b-7")[:64])
        if at >= 0:
            f.seek(at + 100_000)
            f.write(bytes([whole[at + 100_000] ^ 1]))
            break
else:
    check(False, "an object that is not on disk after a stop: choose another")
agent.start()
me = Client(agent.socket, "me")
scanned()
there = [k for k in keys(b"b") if me.exist(k) == [OK]]
check(b"b-7" in there, "it was not found")
check(me.get(b"b-7", room=SIZE)[0][0] in (CHECKSUM, NOT_FOUND, DISK), "damaged bytes were read")
equal(disk()["checksum_errors"], 1, "damaged objects")
equal(me.exist(b"b-7"), [NOT_FOUND], "what is damaged, afterwards")
there.remove(b"b-7")
all_right(there)
check("damaged" in agent.text(), "the log says nothing of it")

# the folder is removed under it: what is in memory, and what comes, is not concerned
shutil.rmtree(path)
for i in range(200):
    put(b"c-%d" % (i % 40))
    me.remove(b"c-%d" % ((i + 20) % 40))
    if disk()["lost"]:
        break
check(disk()["lost"], "a disk that is not there is not noticed")
check("failed" in agent.text(), "the log says nothing of it")
for k in keys(b"e"):
    put(k)
check(right(keys(b"e")[-1]), "the last object that was put, without a disk")
for k in keys(b"e") + there:
    right(k)
me.close()
equal(agent.stop(), 0, "a stop without a disk")

# a disk that is full before it has what it may take: the oldest there make room, and nobody gets other bytes
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 16384, 1 << 18
libc = C.CDLL(None, use_errno=True)
if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
    print("a full disk was not tried: it needs root")
else:
    path = folder()
    equal(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), 0, "mounts of the test's own")
    equal(libc.mount(b"none", path.encode(), b"tmpfs", 0, b"size=24M,mode=700"), 0, "a small disk")
    agent = Agent(*settings(path))
    me = Client(agent.socket, "me")
    scanned()
    for i in range(200):
        put(b"f-%d" % i)
    here = [i for i in range(200) if right(b"f-%d" % i)]
    check(len(here) >= 30, "most of memory and disk is used:", len(here))
    check(disk()["full"] > 0 and not disk()["lost"], "a full disk:", disk())
    check("full" in agent.text(), "the log says nothing of it")
    me.close()
    agent.finish()

    # disk_size = 0, and others have filled the file system before the start
    path = folder()
    equal(libc.mount(b"none", path.encode(), b"tmpfs", 0, b"size=64k,mode=700"), 0, "a tiny disk")
    agent = Agent(*settings(path, "store.disk_size=0"))
    me = Client(agent.socket, "me")
    scanned()
    for i in range(60):
        put(b"g-%d" % i)
    check(right(b"g-59"), "the last object that was put, over a full disk")
    check(disk()["full"] > 0 and not disk()["lost"], "a full disk:", disk())
    me.close()
    agent.finish()
