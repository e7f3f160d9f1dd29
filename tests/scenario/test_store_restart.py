#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that holds objects dies under its supervisor, or is restarted: what was put is there, with the right bytes, what
was half written is not; who reads or fills in place goes on, and what he has is nobody else's meanwhile."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB, QUERY_STORE = 1 << 20, 8
SETTINGS = ("store.size=32M", "store.extent_size=4M", "agent.barrier_ms=100")
agent = Supervised(*SETTINGS)
me = Client(agent.socket, "me")


def store(client=None):
    return (client or me).object_json("query", QUERY_STORE)


def restart(how=signal.SIGKILL):
    lives = me.info().restarts
    agent.await_next(agent.kill_agent(how))
    await_(lambda: me.info().restarts > lives, "the client to be back")


def data(key, size):
    return random.Random(key).randbytes(size)


def put(key, size, **more):
    r = me.put((key, data(key, size)), **more)[0]
    equal(r.status, OK, f"a put of {size} bytes")
    return r.version


def get(key, size):
    status, got = me.get(key, room=max(size, 64))[0]
    equal(status, OK, f"a get of {key[:40]}")
    check(got == data(key, size), "other bytes than were put under", key[:40])


# all kinds of keys and sizes, over a death, a second one, and a restart in good order
sizes = {b"empty": 0, b"one": 1, b"page": 4096, b"odd": 12345, b"large": 3 * MiB + 17, b"whole": 6 * MiB,
         b"k" * 4096: 100, bytes(range(256)): 1000, b"a/b\0c": 77}
sizes.update({b"small-%d" % i: 100 + i for i in range(200)})
versions = {key: put(key, size) for key, size in sizes.items()}
before = store()
for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
    restart(how)
    equal(me.exist(*sizes), [OK] * len(sizes), "what exists after a restart")
    for key, size in sizes.items():
        get(key, size)
    now = store()
    equal((now["objects"], now["bytes"]), (before["objects"], before["bytes"]), "objects and bytes")
    equal(now["identity"], before["identity"], "identity of the store")
    equal((now["recovered"]["torn"], now["recovered"]["lost_extents"]), (0, 0), "damage")
    check(now["events"]["epoch"] != before["events"]["epoch"], "the feed does not say that it begins anew")
    equal([e for e in me.events()["events"] if e["kind"] == "stored"], [], "events of what was there before")
# a later life of a key is later, also over a restart
equal(me.remove(b"one"), [OK], "a removal")
restart()
equal(me.exist(b"one"), [NOT_FOUND], "what was removed before the death")
check(put(b"one", 1) > versions[b"one"], "a version of an earlier life than the one before")

# half written: the key is free, the space is not, while its writer may still write there
me.remove(*[k for k in sizes if k.startswith(b"small")])
hold = me.create((b"half", MiB))[0]
equal(hold.status, OK, "a creation")
C.memset(hold.address, 0x11, MiB)
restart()
equal(me.exist(b"half"), [NOT_FOUND], "what was half written")
equal(store()["recovered"]["unfinished"], 1, "what was dropped as half written")
equal(me.seal(hold.hold)[0].status, NOT_OWNER, "a seal of what an earlier agent had begun")
put(b"half", 1000)
for i in range(60):  # more than there is room for: everything that may go has gone
    put(b"fill-%d" % i, MiB)
C.memset(hold.address, 0x22, MiB)
for i in range(59, 30, -1):
    status, got = me.get(b"fill-%d" % i, room=MiB)[0]
    check(status == NOT_FOUND or got == data(b"fill-%d" % i, MiB), "a writer of an earlier life wrote into", i)

# read in place: the bytes stay, whatever is put
reader = Client(agent.socket, "reader")
put(b"read", MiB)
held = reader.hold(b"read")[0]
equal(held.status, OK, "a hold")
restart()
check(store()["guarded"] != 0, "nothing is guarded")
for i in range(80):
    put(b"push-%d" % i, MiB)
    check(peek(held.address, MiB) == data(b"read", MiB), "a reader in place sees other bytes")
get(b"read", MiB)
reader.release(held.hold)  # of an earlier life: passed by
reader.close()
me.close()
me = Client(agent.socket, "me again")
await_(lambda: store()["guarded"] == 0, "what readers of an earlier life had to be free")
for i in range(80):
    put(b"again-%d" % i, MiB)
equal(me.exist(b"read"), [NOT_FOUND], "what nobody reads any more, under pressure")

# a stop for good ends the objects
me.close()
equal(agent.stop(), 0, "a stop")
agent.start()
me = Client(agent.socket, "me")
equal(store()["objects"], 0, "objects after a stop for good")
put(b"kept", 1000)

# without a store: said, and dropped
me.close()
equal(agent.stop(), 0, "a stop")
none = Agent("store.size=0")
c = Client(none.socket, "c")
equal(c.object_json("query", QUERY_STORE), {"enabled": False}, "what an agent without a store tells")
refused(NOT_SUPPORTED, c.list)
c.close()
none.finish()

# more extents than fit into the descriptors that a supervisor once kept
wide = Supervised("store.size=128M", "store.extent_size=2M", "store.objects=1000", "agent.barrier_ms=100")
me = Client(wide.socket, "me")
for i in range(60):
    put(b"wide-%d" % i, 2 * MiB - 100)
check(store()["extents"] >= 60, "extents:", store()["extents"])
wide.await_next(wide.kill_agent())
for i in range(60):
    get(b"wide-%d" % i, 2 * MiB - 100)
equal(store()["recovered"]["lost_extents"], 0, "extents that were lost")


def scribble(how):
    """The agent dies, and its table is written over before the next one reads it."""
    supervisor = wide.process.pid
    os.kill(supervisor, signal.SIGSTOP)
    pid = wide.pid()
    os.kill(pid, signal.SIGKILL)
    await_(lambda: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z", "the agent to be dead")
    table = next(f"/proc/{supervisor}/fd/{fd}" for fd in os.listdir(f"/proc/{supervisor}/fd")
                 if os.readlink(f"/proc/{supervisor}/fd/{fd}").startswith("/memfd:mcshm-objects"))
    os.chmod(table, 0o600)
    with open(table, "r+b", buffering=0) as f:
        how(f, os.fstat(f.fileno()).st_size)
    os.kill(supervisor, signal.SIGCONT)
    wide.await_next(pid)


def parts(f, size):
    """Where the sparse file has something."""
    at = 0
    while at < size:
        try:
            at = os.lseek(f.fileno(), at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
        yield at, end
        at = end


def some_bytes(f, size):
    r = random.Random(7)
    for at, end in parts(f, size):
        for _ in range(20 if at != 0 else 0):  # its head apart
            f.seek(r.randrange(at, min(end, at + 6000)))
            f.write(r.randbytes(1))


def everything(f, size):
    for at, end in list(parts(f, size)):
        f.seek(at)
        f.write(random.Random(8).randbytes(min(end - at, MiB)))


scribble(some_bytes)
found = [i for i in range(60) if me.get(b"wide-%d" % i, room=2 * MiB)[0][0] == OK]
for i in found:
    get(b"wide-%d" % i, 2 * MiB - 100)
check(store()["recovered"]["torn"] + store()["recovered"]["lost_extents"] > 0, "nothing is torn:", store()["recovered"])
scribble(everything)
equal(store()["objects"], 0, "objects out of a table of nonsense")
put(b"after", MiB)
get(b"after", MiB)
me.close()
wide.finish()

# nobody keeps: said at the start
alone = Agent("store.size=4M", "store.extent_size=4M")
check("objects end with this agent" in alone.text(), "it does not say that objects end with it")
alone.finish()
agent.start()
agent.finish()
