#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""At the limits of the agent: descriptors, memory of queues, buffers, HTTP connections, a full pipe
for its log. Who asks for too much is told so; the others go on."""
import fcntl
import os
import resource
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent("engine.spin_us=0")
pid = agent.process.pid
good = Client(agent.socket, "good", queue=dict(depth=64))
a = good.alloc(MiB)
good.publish("good")
at = good.buffer(a, MiB // 2)
s = good.open("good")


def all_well():
    equal(good.write(a + MiB // 2, s, at, 4096).state, COMPLETED, "the good client")


def cpu():
    """Seconds that the control thread has used."""
    fields = open(f"/proc/{pid}/task/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# slow readers of /metrics are cut, also when nothing else happens there (checked at the end)
host, _, port = agent.status()["admin"]["listen"].rpartition(":")
silent = [socket.create_connection((host, int(port))) for _ in range(16)]
silent_since = time.monotonic()

# a ring's worth after a few, each time, though the engine sleeps at once: room that the agent gives
# back late is given back before it sleeps
def submitted(b, n):
    try:
        good.submit(b, *[good.request(WRITE, a + MiB // 2, s, at, 64) for _ in range(n)])
    except McshmError as e:
        equal(e.status, RING_FULL, "status of a full ring")
        return False
    return True


for n in (3, 63) * 10:
    b = good.batch(n)
    await_(lambda: submitted(b, n), "room in the ring")
    good.wait(b)
    good.batch_free(b)

# an extent that only mappings hold belongs to nobody
child = Client(agent.socket, "owner")
p = child.alloc(MiB)
child.publish("owner")
address = child.buffer(p, MiB, A_MAP_READ)
kept = good.map(good.open("owner"), address, MiB)
child.free(p)
check([e for e in agent.ask("ls", "extents")["extents"] if e["session"] is None],
      "the freed extent has no session", agent.ask("ls", "extents"))
child.close()
await_(lambda: agent.status()["sessions"] == 2, "the owner to go")
check([e for e in agent.ask("ls", "extents")["extents"] if e["session"] is None],
      "the dead owner's extent has no session", agent.ask("ls", "extents"))
good.unmap(kept)

# the memory of queues is limited, and given back
hogs = []
for i in range(6):
    r = Raw(agent.socket)
    r.hello()
    r.send(2, struct.pack("<IIIIQ", 64, 128, 16, 0, 256 * MiB))
    m = r.recv()
    hogs.append(r)
    for fd in m[3]:
        os.close(fd)
    if m[1] != OK:
        break
equal(m[1], NO_MEMORY, "queues without end")
check(b"queues of all sessions" in m[2], m)
check(1 <= len(hogs) - 1 <= 4, len(hogs), "queues of 256 MiB within 1 GiB")
for r in hogs:
    r.s.close()
await_(lambda: agent.status()["sessions"] == 2, "them to go")
big = Client(agent.socket, "big", queue=dict(args_size=256 * MiB))
big.close()
all_well()

# a session thrown out is counted, whatever it did
r = Raw(agent.socket)
r.hello()
r.send(18, b"")
check(r.closed(), "a message of the wrong size")
equal(agent.counter("sessions_thrown_out"), 1, "sessions thrown out")

# buffers of one segment: a limit, said
r = Raw(agent.socket)
r.hello()
fd = os.memfd_create("many", os.MFD_ALLOW_SEALING)
os.ftruncate(fd, MiB)
fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
r.send(6, struct.pack("<Q", MiB), fds=[fd])
extent = struct.unpack_from("<I", r.recv()[2])[0]
if SAN != "thread":  # where the copies of so long a list take minutes, and no other thread has a part in them
    for i in range(32769):
        r.send(10, struct.pack("<IIQQ", extent, 1, i * 2, 1))
        m = r.recv()
        if m[1] != OK:
            break
    equal((i, m[1]), (32768, LIMIT), "buffers of one segment")
    r.send(12, struct.pack("<IIQQ", extent, 0, 0, MiB))
    equal(r.recv()[1], OK, "all of them revoked")
r.s.close()
all_well()

# the work of setting sessions up and tearing them down is not the control thread's, whatever the size
large = Agent("session.inbox_size=16M")


def ticks_of(path):
    fields = open(path).read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def populated():
    """Sessions until enough was done to be measured: ticks of the control thread, of all threads."""
    for _ in range(10):
        r = Raw(large.socket)
        equal(r.hello()[1], OK, "hello")
        r.s.close()
    pid = large.process.pid
    one, all_ = ticks_of(f"/proc/{pid}/task/{pid}/stat"), ticks_of(f"/proc/{pid}/stat")
    return (one - start[0], all_ - start[1]) if all_ - start[1] >= 50 else None


start = [ticks_of(f"/proc/{large.process.pid}/task/{large.process.pid}/stat"),
         ticks_of(f"/proc/{large.process.pid}/stat")]
one, all_ = await_(populated, "half a second of setting up and tearing down")
check(one < all_ / 4, "the control thread used", one, "of", all_, "ticks")
large.finish()

# no descriptor left: clients wait in the backlog, the agent does not spin, nobody is thrown out
soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
r = Raw(agent.socket)
r.hello()
resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
r.send(6, struct.pack("<Q", MiB), fds=[fd])
m = r.recv()
equal(m and m[1], LIMIT, "a descriptor that the agent cannot take")
waiting = Raw(agent.socket)
before = cpu()
time.sleep(1.5)  # the time is what is measured
check(cpu() - before < 0.5, "the control thread used", cpu() - before, "s of 1.5 s")
all_well()
resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
equal(waiting.hello()[1], OK, "the client that waited")
r.send(6, struct.pack("<Q", MiB), fds=[fd])
equal(r.recv()[1], OK, "the same descriptor, later")
waiting.s.close()
r.s.close()
os.close(fd)


# a file that is no socket is not replaced; a start that fails leaves no socket behind
def start_fails(*more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    p = subprocess.run(agent.command(*more), capture_output=True, text=True, env=env)
    equal(p.returncode, 1, p.stderr)


precious = os.path.join(agent.dir, "precious")
with open(precious, "w") as f:
    f.write("x")
start_fails("--set", "agent.socket=" + precious)
equal(open(precious).read(), "x", "a file in the socket's place")

# the log's reader has stopped: its lines are lost, the agent is not
rd, wr = os.pipe()
fcntl.fcntl(wr, fcntl.F_SETFL, os.O_NONBLOCK)
try:
    while True:
        os.write(wr, b"x" * 4096)
except BlockingIOError:
    pass
fcntl.fcntl(wr, fcntl.F_SETFL, 0)
ready, w = os.pipe()
env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
second = os.path.join(agent.dir, "second")
process = subprocess.Popen(agent.command("--set", "agent.socket=" + second, "--ready-fd", str(w)),
                           stdin=subprocess.DEVNULL, stdout=wr, stderr=wr, pass_fds=(w,), env=env,
                           preexec_fn=die_with_the_test)
os.close(w)
os.set_blocking(ready, False)


def is_ready():
    try:
        return os.read(ready, 1) == b"R"
    except BlockingIOError:
        return False


try:
    await_(is_ready, "an agent whose log is full")
    r = Raw(second)
    r.raw(b"garbage")  # worth a line
    check(r.closed(), "garbage")
    process.terminate()
    equal(process.wait(PATIENCE), 0, "its clean stop")
finally:
    process.kill()

# sixteen silent connections do not shut the others out for ever
await_(lambda: time.monotonic() - silent_since > 12, "the time limit of /metrics")
c = socket.create_connection((host, int(port)))
c.settimeout(PATIENCE)
c.send(b"GET /health HTTP/1.0\r\n\r\n")
check(c.recv(4096).startswith(b"HTTP/1."), "/health after silent connections")
for x in silent + [c]:
    x.close()
all_well()
good.close()
agent.finish()
