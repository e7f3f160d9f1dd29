# SPDX-License-Identifier: Apache-2.0
# long
"""The agent dies, or its disk fails, at each failpoint on the way to disk and back: what was acknowledged is there with
the right bytes, what was removed is not, and who reads meanwhile never sees other bytes."""
from failpoints import *
import random

MiB, SIZE, N = 1 << 20, 300_000, 40
path = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="d")
atexit.register(shutil.rmtree, path, ignore_errors=True)
points = Points("agent")
agent = Supervised("store.size=8M", "store.extent_size=2M", "store.disk=" + path, "store.disk_size=48M",
                   "agent.barrier_ms=100", prefix=points.prefix())
me = Client(agent.socket, "me")
there, gone = {}, set()  # key -> which content
random.seed(7)
counter = 0


def disk():
    return me.object_json("query", 8)["disk"]


def data(key, n):
    return random.Random(b"%s %d" % (key, n)).randbytes(SIZE)


def asked(call, *args, **more):
    """Its result; None: the agent died over it, it may have taken effect or not."""
    try:
        return call(*args, **more)[0]
    except McshmError as e:
        equal(e.status, AGENT_RESTARTED, f"how a task ends: {e}")
        return None


def put(key):
    global counter
    counter += 1
    await_(lambda: getattr(asked(me.put, (key, data(key, counter)), flags=UPSERT), "status", None) == OK, "a put")
    there[key] = counter
    gone.discard(key)


def remove(key):
    await_(lambda: asked(me.remove, key) in (OK, NOT_FOUND), "a removal")
    there.pop(key, None)
    gone.add(key)


def get(key):
    """True: right; False: not there, or not now."""
    status, got = asked(me.get, key, room=SIZE) or (None, None)
    if status != OK:
        return False
    check(got == data(key, there[key]), "other bytes than were put under", key)
    return True


def load():
    for i in range(N):
        put(b"k-%d" % i)
        if i % 4 == 3:
            remove(b"k-%d" % (i - 2))
        get(random.choice(list(there)))


def settle(what):
    await_(lambda: disk()["scanned"], "the disk to be scanned")
    missing = [k for k in there if not get(k)]
    check(len(missing) <= lose, f"{what}: acknowledged and missing:", missing)
    for k in missing:
        there.pop(k)
    back = [k for k, s in zip(gone, me.exist(*gone)) if s == OK]
    equal(back, [], f"{what}: removed, and back")


def survive(name, first):
    acted, before = points.acted(name), agent.pid()
    points.arm(name, KILL, first=first)
    for _ in range(4):
        load()
        if points.acted(name) > acted:
            break
    if points.acted(name) == acted and name == "disk_scanned":
        agent.kill_agent()
    await_(lambda: points.acted(name) > acted, f"the agent to die at {name}")
    points.disarm(name)
    agent.await_next(before)
    await_(lambda: asked(me.exist, b"none") == NOT_FOUND, "the next agent")
    settle(f"after death at {name}@{first}")
    agent.calm()


# 40 objects of 300 kB: memory and disk have room for all of them
lose = 0
load()
settle("at first")
KILLED = [n for n in points.names("agent", "disk") if n.startswith("disk_")]
for name in KILLED if SAN == "" else KILLED[::3]:
    if name in ("disk_evict", "disk_evicted"):
        continue
    for first in (1, 2):
        survive(name, 1 if name == "disk_scanned" else first)

# now the disk is too small for all: the oldest there go
for i in range(200):
    put(b"more-%d" % i)
lose = 1000
settle("when the disk is small")
points.reached("agent", "disk")
for name in ("disk_evict", "disk_evicted"):
    acted, before = points.acted(name), agent.pid()
    points.arm(name, KILL)
    for i in range(400):
        put(b"more-%d" % (i % 200))
        if points.acted(name) > acted:
            break
    check(points.acted(name) > acted, "nothing was evicted from disk")
    points.disarm(name)
    agent.await_next(before)
    settle(f"after death at {name}")
    agent.calm()

# single operations of the kernel fail: reads cost their object, everything else goes on
for name, error, times in (("file_read", errno.EIO, 3), ("file_short", errno.EIO, 9), ("file_write", errno.ENOSPC, 1),
                           ("disk_bin", errno.ENOSPC, 1)):
    acted = points.acted(name)
    points.arm(name, FAIL, error, times=times)
    for i in range(400):
        put(b"more-%d" % (i % 200))
        get(random.choice(list(there)))
        if points.acted(name) > acted:
            break
    check(points.acted(name) > acted, f"{name} was not passed")
    points.disarm(name)
    settle(f"after {name} has failed")
    check(not disk()["lost"], f"{name} has cost the whole disk")

# the disk fails for good: said, counted; memory goes on
points.arm("file_sync", FAIL, errno.EIO)
for i in range(100):
    put(b"last-%d" % i)
    if disk()["lost"]:
        break
check(disk()["lost"], "a disk that cannot make anything durable is still written to")
settle("after the disk has failed")
put(b"after")
check(get(b"after"), "what is put without a disk")
check("failed" in agent.text(), "the log says nothing of it")
me.close()
equal(agent.stop(), 0, "a stop")
