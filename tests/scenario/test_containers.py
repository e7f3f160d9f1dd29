#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients in containers with nothing of the host's but the folder of the socket: transfers, tenants, death, process
numbers used again, 64 KiB of /dev/shm, memory limits, a filter like Docker's; and the agent in a container itself."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from containers import *  # noqa: E402,F403

why_not = available()
if why_not:
    skip(why_not)
MiB = 1 << 20
PUBLIC, STAGED = 1, 3
ROUNDS = 100 if SAN else 1000


def agent_on_host(*settings):
    """Its folder is a file system of 64 KiB."""
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="c")
    atexit.register(lambda: (libc.umount2(folder.encode(), 2), shutil.rmtree(folder, ignore_errors=True)))
    mount("tmpfs", folder, "tmpfs", data="size=64k,mode=755")
    os.mkdir(folder + "/run")
    a = Agent("agent.socket_mode=0666", "agent.socket=" + folder + "/run/s", *settings, start=False, dir=folder + "/run")
    log = tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR"), prefix="l", delete=False)
    atexit.register(os.unlink, log.name)
    a.log = log.name
    a.start()
    return a


def sessions(agent):
    return [s for s in agent.ask("ls", "sessions")["sessions"] if s["name"] not in ("mcshm", "")]


def gone(agent, name):
    """Awaits the end of a session; how long that took is told, not judged."""
    since = time.monotonic()
    await_(lambda: all(s["name"] != name for s in sessions(agent)), f"the session of {name} to end")
    print(f"{name}: its end was seen after {1000 * (time.monotonic() - since):.0f} ms, the asking included")


# ---- two containers, two tenants


def worker(pipe):
    """A client with rings of more than /dev/shm holds; what the parent says decides what it opens."""
    name, public = pipe.recv()
    equal(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize, 64 << 10, "bytes of /dev/shm")
    equal((os.getuid(), os.access("/usr", os.W_OK)), (0, False), "root inside, of a read-only tree")
    check("/run/elsewhere/s" in refused(AGENT_DOWN, Client, "/run/elsewhere/s"), "the path that was tried is not named")
    c = Client(SOCKET, name, queue={"depth": 16384, "slots": 65536, "batches": 4096, "args_size": 4 * MiB})
    p = c.alloc(2 * MiB)
    c.publish(name, PUBLIC if public else 0)
    at = c.buffer(p, MiB, RW | A_MAP_READ)
    s = c.open(name)
    for i in range(ROUNDS):
        fill(p + MiB, 4096, i % 251)
        equal(c.write(p + MiB, s, at, 4096).state, COMPLETED)
        equal(peek(p, 4096), bytes([i % 251]) * 4096)
    # private memory: nobody reads it out of this process, the library carries it
    own = C.create_string_buffer(b"\x77" * MiB, MiB)
    c.register(C.addressof(own), MiB)
    status = c.write(C.addressof(own), s, at, MiB)
    equal((status.state, status.path), (COMPLETED, STAGED), "a write of private memory")
    equal(peek(c.map(s, at, MiB), MiB), b"\x77" * MiB, "read in place")
    pipe.send(name, at)
    while True:
        word, *more = pipe.recv()
        if word == "open":
            pipe.send(refused(*more[:1], c.open, more[1]))
        elif word == "write":
            segment = c.open(more[0])
            fill(p + MiB, 4096, more[2])
            pipe.send(c.write(p + MiB, segment, more[1], 4096).state, segment)
        elif word == "again":
            pipe.send(c.write(p + MiB, more[0], more[1], 4096).state)
        elif word == "peek":
            pipe.send(peek(p, 4096) == bytes([more[0]]) * 4096)
        elif word == "seen":
            text = C.c_void_p()
            c.do("query", c.c, 3, C.byref(text))
            pipe.send([s["name"] for s in json.loads(C.string_at(text.value))["sessions"]])
        else:
            return


a = agent_on_host()
one, two = Container(worker, a.dir, base=100000), Container(worker, a.dir, base=200000)
one.pipe.send("one", False)
two.pipe.send("two", True)
_, at_one = one.pipe.recv()
_, at_two = two.pipe.recv()
seen = {s["name"]: s for s in sessions(a)}
equal({n: seen[n]["tenant"] for n in ("one", "two")}, {"one": 100000, "two": 200000}, "tenants")
for name in seen:
    check(seen[name]["pid"] > 1 and os.path.exists(f"/proc/{seen[name]['pid']}"), "the host's number of", name, seen[name])
two.pipe.send("open", ACCESS, "one")
check("tenant 100000" in two.pipe.recv()[0], "the refusal does not say whose it is")
two.pipe.send("seen")
equal(two.pipe.recv(), [["two"]], "what root of a container sees")
one.pipe.send("write", "two", at_two, 0x3c)
state, handle = one.pipe.recv()
equal(state, COMPLETED, "a write to another tenant's public segment")
two.pipe.send("peek", 0x3c)
equal(two.pipe.recv(), [True], "its bytes")

# ---- a container is killed: noticed at once, though its processes meant nothing to the agent
two.kill()
gone(a, "two")
one.pipe.send("again", handle, at_two)
check(one.pipe.recv()[0] != COMPLETED, "a write to a dead container")
one.pipe.send("end")
one.join()
gone(a, "one")


# ---- a client dies, and a child that it forked keeps its socket open


def orphans(pipe):
    client = os.fork()
    if client == 0:
        Client(SOCKET, "parent")
        if os.fork() == 0:
            signal.pause()  # holds the socket, until the container goes
        pipe.send("ready")
        signal.pause()
    pipe.recv()
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    pipe.send("killed")
    pipe.recv()


k = Container(orphans, a.dir, base=100000)
k.pipe.recv()
equal([s["name"] for s in sessions(a)], ["parent"], "sessions")
k.pipe.send("kill it")
k.pipe.recv()
gone(a, "parent")
k.pipe.send("end")
k.join()


# ---- pool memory is the agent's, whatever limit its client lives under


def remove_cgroup(path):
    def removed():
        for pid in open(path + "/cgroup.procs").read().split():  # a failed test's
            os.kill(int(pid), signal.SIGKILL)
        try:
            os.rmdir(path)
        except OSError:
            return False
        return True
    await_(removed, path + " to be free")


def memory_cgroup():
    """A new memory cgroup, its file for the limit, and the limit; None where there can be none."""
    name = f"mcshm-{os.getpid()}"
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        try:
            os.mkdir(f"{root}/{name}")
        except OSError:
            continue
        atexit.register(remove_cgroup, f"{root}/{name}")
        if os.path.exists(f"{root}/{name}/{file}"):
            return f"{root}/{name}", file
    return None


group = memory_cgroup()
if group is None:
    print("a client under a memory limit: skipped, no memory cgroup can be made here")
else:
    with open(f"{group[0]}/{group[1]}", "w") as f:
        f.write(str(48 * MiB))

    def limited(pipe):
        pipe.send("there")
        pipe.recv()
        c = Client(SOCKET, "limited")
        p = c.alloc(128 * MiB)
        for i in range(0, 128 * MiB, MiB):
            fill(p + i, MiB, i // MiB + 1)
        c.publish("limited")
        at = c.buffer(p, 64 * MiB)
        equal(c.write(p + 64 * MiB, c.open("limited"), at, 64 * MiB).state, COMPLETED)
        equal(peek(p + 63 * MiB, 4096), b"\x80" * 4096)
        pipe.send("moved")
        pipe.recv()

    k = Container(limited, a.dir, base=100000)
    equal(k.pipe.recv(), ["there"])
    inside = open(f"/proc/{k.pid}/task/{k.pid}/children").read().split()
    equal(len(inside), 1, "the container's first process")
    for pid in [str(k.pid)] + inside:
        with open(group[0] + "/cgroup.procs", "w") as f:
            f.write(pid)
    k.pipe.send("go")
    equal(k.pipe.recv(), ["moved"])
    k.pipe.send("end")
    k.join()
    gone(a, "limited")
a.finish()


# ---- the number of a dead client is given to another process, in the agent's own PID namespace


def reuse(pipe):
    agent = Agent("agent.socket=" + SOCKET, dir="/run/mcshm")
    agent.socket = SOCKET

    def numbered(ready):
        Client(SOCKET, "numbered")
        ready.send("ready")
        signal.pause()
    child = Child(numbered)
    child.pipe.recv()
    client = child.pid
    equal([(s["name"], s["pid"]) for s in sessions(agent)], [("numbered", client)], "sessions")
    agent.freeze()  # it must not be asked before the number has its new owner
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    with open("/proc/sys/kernel/ns_last_pid", "w") as f:
        f.write(str(client - 1))
    sleeper = os.fork()
    if sleeper == 0:
        signal.pause()
    equal(sleeper, client, "the number of the sleeper")
    agent.thaw()
    gone(agent, "numbered")
    os.kill(sleeper, 0)
    equal(os.waitpid(sleeper, os.WNOHANG), (0, 0), "the sleeper was touched")
    os.kill(sleeper, signal.SIGKILL)
    os.waitpid(sleeper, 0)
    agent.finish()


reused = Container(reuse, tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="r"), filtered=False, writable=True)
reused.join()

# ---- the agent in a container: clients of the same one are told apart, those of others only where it is allowed


def server(pipe):
    for settings in ((), ("agent.unmapped_users=share",)):
        agent = Agent("agent.socket=" + SOCKET, "agent.socket_mode=0666", "admin.mode=off", *settings, dir="/run/mcshm")
        agent.socket = SOCKET
        local = Client(SOCKET, "inside")
        p = local.alloc(MiB)
        local.publish("inside", PUBLIC)
        pipe.send(local.buffer(p, MiB))
        pipe.recv()
        pipe.send(peek(p, 4096) == b"\x11" * 4096, agent.counter("unmapped_refused"))
        pipe.recv()
        local.close()
        agent.finish()
        os.unlink("/run/mcshm/log")


def stranger(pipe):
    at, welcome = pipe.recv()
    if not welcome:
        pipe.send(refused(PERMISSION, Client, SOCKET))
        return
    c = Client(SOCKET, "stranger")
    p = c.alloc(MiB)
    fill(p, MiB, 0x11)
    equal(c.write(p, c.open("inside"), at, MiB).state, COMPLETED)
    c.close()
    pipe.send("moved")


home = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="h")
atexit.register(shutil.rmtree, home, ignore_errors=True)
os.chmod(home, 0o755)
os.chown(home, 300000, 300000)
agent = Container(server, home, base=300000, writable=True)
for welcome in (False, True):
    at = agent.pipe.recv()[0]
    guest = Container(stranger, home, base=100000)
    guest.pipe.send(at, welcome)
    said = guest.pipe.recv()[0]
    guest.join()
    if not welcome:
        check("not mapped" in said and "unmapped_users" in said, "no remedy in:", said)
    agent.pipe.send("look")
    equal(agent.pipe.recv(), [welcome, 0 if welcome else 1], "bytes of the stranger, and refusals")
    agent.pipe.send("end")
agent.join()
