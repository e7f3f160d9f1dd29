#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The supervisor and the agent's half of it: what starts what anew, when both stop, a ledger that is no use,
and who the agent believes that it still waits for."""
import fcntl
import mmap
import subprocess

from mcshm import *

MIB = 1 << 20


def owner_of(agent, name):
    """A client in a process of its own, with memory that it published; "end" ends it."""
    def run(pipe):
        c = Client(agent.socket, name)
        p = c.alloc(MIB)
        fill(p, MIB, 9)
        c.publish(name)
        pipe.send(c.buffer(p, MIB), c.info().session_incarnation)
        while True:
            what = pipe.recv()[0]
            if what == "restarts":
                pipe.send(c.info().restarts, peek(p, MIB) == bytes([9]) * MIB)
            elif what == "down":
                def is_down():
                    try:
                        c.free(c.alloc(64))
                        return False
                    except McshmError as e:
                        equal(e.status, AGENT_DOWN, f"status of {e}")
                        return True
                await_(is_down, "the agent to be down for good")
                pipe.send(True)
            else:
                c.close()
                return
    child = Child(run)
    child.address, child.incarnation = child.pipe.recv()
    return child


def restarts_of(child):
    child.pipe.send("restarts")
    n, intact = child.pipe.recv()
    check(intact, "pool memory over a restart")
    return n


def await_recovery(agent, what, **wanted):
    """Until status() says so of those who come back; if it never does, what it says of them all, and the log."""
    def told():
        return {k: agent.ask(*q)[k] for k, q in (("recovery", ["status"]), ("sessions", ["ls", "sessions"]))}
    await_(lambda: wanted.items() <= agent.status()["recovery"].items(),
           lambda: f"{what}: wanted {wanted}: {told()}\n{agent.text()}")


def ended(child):
    child.pipe.send("end")
    child.join()


# ---- who starts the agent anew, and who does not ----
agent = Supervised()
one = owner_of(agent, "one")
lives = 1
for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGKILL):
    before = agent.status()
    agent.await_next(agent.kill_agent(how))
    lives += 1
    await_(lambda: restarts_of(one) == lives - 1, "the client to be back")
    now = agent.status()
    equal(now["recovery"]["before"], before["incarnation"], "whom the next agent took over from")
    equal(int(now["counters"]["restarts"]), lives - 1, "restarts")
    equal([now["pool"][k] for k in ("used", "extents")], [before["pool"][k] for k in ("used", "extents")], "the pool")
agent.await_next(agent.again())
await_(lambda: restarts_of(one) == lives, "the client to be back after SIGUSR2")
agent.process.send_signal(signal.SIGHUP)  # is passed on
await_(lambda: "SIGHUP: 0 keys changed" in agent.text(), "the agent to hear of SIGHUP")

# two deaths, the second in the midst of coming back
first = agent.kill_agent()
second = await_(lambda: agent.pid() not in (0, first) and agent.pid(), "the next")
os.kill(second, signal.SIGKILL)
third = await_(lambda: agent.pid() not in (0, first, second) and agent.pid(), "the one after it")
await_(lambda: restarts_of(one) > lives, "the client to be back after two deaths")

# a client dies while there is no agent; another stands still over two restarts
two, three = owner_of(agent, "two"), owner_of(agent, "three")
three.freeze()
agent.process.send_signal(signal.SIGSTOP)  # nobody starts the agent
pid = agent.kill_agent()
two.kill()
agent.process.send_signal(signal.SIGCONT)
agent.await_next(pid)
await_recovery(agent, "the dead one to be missed, and the one that stands still not", away=1, coming=0)
names = [s["name"] for s in agent.ask("ls", "segments")["segments"]]
equal(sorted(names), ["one", "three"], "names")
c = Client(agent.socket, "looker")
p = c.alloc(4096)
s = c.open("three")
t = c.read(p, s, three.address, 4096)
equal((t.state, t.error), (FAILED, AGENT_RESTARTED), "a task to memory that is not back")
t = c.run(Request(opcode=READ, segment=s, priority=NORMAL, local=p, remote_address=three.address, length=4096),
          pieces=[(0, 0, 64)])
equal((t.state, t.error), (FAILED, AGENT_RESTARTED), "a list to memory that is not back")
agent.await_next(agent.kill_agent())
three.thaw()
await_recovery(agent, "the one that stood still", away=0)
await_(lambda: restarts_of(three) > 0, "the one that stood still to say so")
await_(lambda: c.info().restarts == 1, "the looker")
equal(c.read(p, s, three.address, 4096).state, COMPLETED, "the same task, by the same handle")
c.close()

# who will not come back leaves neither its name nor its memory to a process that lives on
used = agent.status()["pool"]["used"]
leaver = Client(agent.socket, "leaver", reconnect_ms=0)
leaver.alloc(MIB)
leaver.publish("leaver")
agent.await_next(agent.kill_agent())
after = Client(agent.socket, "leaver", reconnect_ms=0)
after.publish("leaver")
after.close()
await_recovery(agent, "nobody to be waited for", away=0)
await_(lambda: agent.status()["pool"]["used"] == used, lambda: f"its memory: {agent.status()['pool']}, not {used}")
refused(AGENT_DOWN, leaver.alloc, 64)
leaver.close()

# nobody waits for it to be ready any more
first = Supervised(start=False)
first.launch()
os.close(first.ready)
await_(lambda: "ready: version" in first.text(), "the agent")
first.await_next(first.kill_agent())
first.finish()

# signals at an agent that has only just been started
for how in (signal.SIGHUP, signal.SIGUSR2, signal.SIGTERM):
    first = Supervised(start=False)
    first.launch()
    while not first.pid():
        pass
    first.process.send_signal(how)
    if how == signal.SIGTERM:
        equal(first.process.wait(PATIENCE), 0, "exit status of a stop during the start: " + first.text())
    else:
        first.await_ready()
        lives = 2 if how == signal.SIGUSR2 else 1
        await_(lambda: first.text().count("ready: version") == lives, lambda: "it to serve: " + first.text())
        first.finish()

# the first process of a container is the parent of what others leave behind
first = Supervised(prefix=["bash", "-c", "true & exec \"$@\"", "bash"])
children = f"/proc/{first.process.pid}/task/{first.process.pid}/children"
await_(lambda: len(open(children).read().split()) == 1, lambda: "orphans: " + open(children).read())
first.finish()

# stop for good: clients know at once, nothing is left
two = owner_of(agent, "two")
equal(agent.stop(), 0, "exit status: " + agent.text())
check(not os.path.exists(agent.socket), "the socket is still there")
for child in (one, two, three):
    child.pipe.send("down")
    equal(child.pipe.recv(), [True], "AGENT_DOWN")
    ended(child)

# SIGINT to the agent itself is for good, too
agent = Supervised()
one = owner_of(agent, "one")
agent.kill_agent(signal.SIGINT)
equal(agent.process.wait(PATIENCE), 0, "exit status of the supervisor")
one.pipe.send("down")
equal(one.pipe.recv(), [True], "AGENT_DOWN after SIGINT")
ended(one)

# the supervisor is killed: the agent has no keeper any more and stops for good
agent = Supervised()
one = owner_of(agent, "one")
pid = agent.pid()
agent.kill()
one.pipe.send("down")
equal(one.pipe.recv(), [True], "AGENT_DOWN after the supervisor's death")
ended(one)
await_(lambda: not os.path.exists(f"/proc/{pid}"), "the agent to end")
check(not os.path.exists(agent.socket), "the socket is still there")

# a start that fails says so once
agent = Supervised("engine.cores=99999", start=False)
agent.launch()
equal(agent.process.wait(PATIENCE), 1, "exit status of a start that fails")
equal(agent.text().count("cores = 99999"), 1, "sentences: " + agent.text())


# ---- ledgers that are no use: a keeper of our own ----
class Kept(Agent):
    """An agent whose keeper is this test."""

    def __init__(self):
        self.ledger = None
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind("\0mcshm-test-%d" % os.getpid())
        self.notify.settimeout(PATIENCE)
        super().__init__(start=False)

    def life(self, seconds=0):
        """Starts it with the ledger that it had; returns what it says of itself."""
        env = {**os.environ, "NOTIFY_SOCKET": "@mcshm-test-%d" % os.getpid(), "FDSTORE": "16"}
        env.pop("LD_PRELOAD", None)
        words, fds = ["exec \"$@\""], ()
        if self.ledger is not None:
            words = [f"export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=mcshm-ledger; exec \"$@\" 3<&{self.ledger}"]
            fds = (self.ledger,)
        start = len(self.text()) if os.path.exists(self.log) else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["bash", "-c"] + words + ["bash"] + self.command(), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, pass_fds=fds, env=env, preexec_fn=self.before)
        while True:
            text, got, _, _ = socket.recv_fds(self.notify, 4096, 4)
            if b"FDNAME=mcshm-ledger" in text and got:
                self.ledger = got[0]
            else:
                for fd in got:
                    os.close(fd)
            if b"READY=1" in text:
                return self.text()[start:]


kept = Kept()
kept.life()
one = owner_of(kept, "one")
size = os.fstat(kept.ledger).st_size
check(size >= 3 * 65536, "a ledger with sessions, extents and queues:", size)
kept.kill()
check("1 session to come back" in kept.life(), kept.text())
await_(lambda: restarts_of(one) == 1, "the client to be back")
TRIES = 52
for i in range(3):
    with mmap.mmap(kept.ledger, size) as m:
        good = m[:]
        equal(m[TRIES:TRIES + 4], bytes(4), "starts that were not over")
        for _ in range(40 * (i + 1)):  # damage, all over and in what is used
            at = int.from_bytes(os.urandom(4), "little") % (size if i == 0 else 2000)
            m[(65536 + at) % size] ^= 1 << i
    kept.kill()
    kept.life()
    check(kept.alive() and kept.status()["recovery"]["kept"], "an agent over a damaged ledger")
kept.kill()
with mmap.mmap(kept.ledger, size) as m:
    m[TRIES:TRIES + 4] = struct.pack("<I", 3)
check("3 starts over the ledger of an earlier agent have failed" in kept.life(), kept.text())
one.pipe.send("down")
equal(one.pipe.recv(), [True], "AGENT_DOWN of a client that no ledger knows any more")
ended(one)
kept.kill()
kept.ledger = os.memfd_create("nonsense", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.write(kept.ledger, os.urandom(200000))
fcntl.fcntl(kept.ledger, 1033, 2)  # F_ADD_SEALS, SHRINK
check("cannot be read" in kept.life(), kept.text())
two = owner_of(kept, "two")
kept.process.send_signal(signal.SIGTERM)
equal(kept.process.wait(PATIENCE), 0, "a stop for the next agent")
check("1 session to come back" in kept.life(), kept.text())
await_(lambda: restarts_of(two) == 1, "a client of the fresh ledger to be back")
kept.process.send_signal(signal.SIGINT)
equal(kept.process.wait(PATIENCE), 0, "a stop for good")
two.pipe.send("down")
equal(two.pipe.recv(), [True], "AGENT_DOWN")
ended(two)


# ---- an agent that cannot see its clients' processes: of another PID namespace ----
class Inside(Supervised):
    def supervisor(self):
        return int(open(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read().split()[0])

    def pid(self):
        first = self.supervisor()
        children = open(f"/proc/{first}/task/{first}/children").read().split()
        return int(children[0]) if children else 0


if os.geteuid() == 0:
    # /proc shows the pids of another namespace, where LeakSanitizer looks for the threads of this one
    asan = "ASAN_OPTIONS=" + os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    agent = Inside("agent.recovery_s=2", "agent.barrier_ms=100",
                   prefix=["env", asan, "unshare", "--pid", "--fork", "--kill-child"])
    one, two = owner_of(agent, "one"), owner_of(agent, "two")
    equal([s["pid"] for s in agent.ask("ls", "sessions")["sessions"]], [0, 0, 0], "pids that the agent sees")
    os.kill(agent.process.pid, signal.SIGSTOP)
    os.kill(agent.supervisor(), signal.SIGSTOP)
    pid = agent.kill_agent()
    two.kill()
    os.kill(agent.supervisor(), signal.SIGCONT)
    os.kill(agent.process.pid, signal.SIGCONT)
    agent.await_next(pid)
    await_(lambda: restarts_of(one) == 1, "the client to be back, whose process the agent cannot see")
    await_recovery(agent, "the dead one to be given up after recovery_s", away=0)
    check("has not come back in [agent] recovery_s" in agent.text(), agent.text())
    ended(one)
    await_(agent.empty, "all to go")
    os.kill(agent.supervisor(), signal.SIGTERM)
    equal(agent.process.wait(PATIENCE), 0, "exit status: " + agent.text())
