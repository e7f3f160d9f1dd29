#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that dies under its supervisor, one case after the other: who waits, who sleeps, who is gone
meanwhile, who asks for something just then; and agents that do not come back."""
import os
import resource
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
# the others are waited for a little longer: a busy machine may keep them from coming back at once
agent = Supervised("agent.barrier_ms=2000")


def restart(how=signal.SIGKILL):
    """One restart, and the next agent answers."""
    agent.await_next(agent.kill_agent(how))


def sessions():
    return agent.status()["sessions"] - 1


def text_of(pattern_seed, size):
    return bytes((pattern_seed + i * 7) & 0xff for i in range(256)) * (size // 256)


owner = Client(agent.socket, "owner")
own = owner.alloc(8 * MiB)
C.memmove(own, text_of(1, 8 * MiB), 8 * MiB)
owner.publish("target")
address = owner.buffer(own, 4 * MiB)
owner.buffer(own + 4 * MiB, MiB, A_READ)
me = Client(agent.socket, "me")
mine = me.alloc(8 * MiB)
target = me.open("target")

# pool memory, handles and addresses are what they were; the name is found; rights hold
session, first = me.info().session_incarnation, me.info().agent_incarnation
for i in range(2):
    restart()
    await_(lambda: me.info().restarts == i + 1 and owner.info().restarts == i + 1, "both to be back")
    equal(peek(own, 8 * MiB), text_of(1, 8 * MiB), "pool memory over a restart")
    equal(me.read(mine, target, address, 4 * MiB).state, COMPLETED, "a READ by the old handle")
    equal(peek(mine, 4 * MiB), text_of(1, 4 * MiB), "what it brought")
    s = me.write(mine, target, address + 4 * MiB, 64)
    equal((s.state, s.error), (INVALID, ACCESS), "a WRITE where only READ was published")
equal(me.info().session_incarnation, session, "incarnation of the session")
check(me.info().agent_incarnation != first, "incarnation of the agent")
again = me.open("target")
equal([(b.address, b.size, b.access) for b in me.describe(again)],
      [(address, 4 * MiB, RW), (address + 4 * MiB, MiB, A_READ)], "what the segment has, opened anew")
me.close_segment(again)
refused(EXISTS, me.publish, "target")
owner.unbuffer(own + 4 * MiB, MiB)
equal(me.read(mine, target, address + 4 * MiB, 64).state, INVALID, "what was withdrawn after the restart")

# and new things next to the old ones: nothing is given twice
more = [owner.alloc(3 * MiB) for _ in range(4)]
for i, p in enumerate(more):
    fill(p, 3 * MiB, i)
equal(peek(own, 8 * MiB), text_of(1, 8 * MiB), "old memory beside new memory")
for i, p in enumerate(more):
    equal(peek(p, 3 * MiB), bytes([i]) * 3 * MiB, "new memory")
small = [owner.alloc(64) for _ in range(200)]  # more than one message of them
restart()
for p in small[::2]:
    owner.free(p)
small = small[1::2] + [owner.alloc(64) for _ in range(100)]
equal(len(set(small)), 200, "allocations of 64 bytes, none of them twice")
for p in small + more:
    owner.free(p)
used = agent.status()["pool"]["used"]

# a restart in good order: nothing in hand is lost that ends in time, and all come back
pid = agent.again()
agent.await_next(pid)
equal(me.write(mine, target, address, 64).state, COMPLETED, "after a restart that was asked for")
equal(agent.status()["pool"]["used"], used, "pool memory in use")


# a client in notify_recv(), one in batch_wait(): neither hangs, neither notices more than it must
def receiver(pipe):
    c = Client(agent.socket, "receiver")
    c.publish("inbox")
    pipe.send("ready")
    pipe.send(c.recv()[1].decode())
    pipe.recv()
    c.close()


agent.calm()
child = Child(receiver)
child.pipe.recv()
inbox = me.open("inbox")
restart()
b = me.batch()
me.notify(b, inbox, b"n", b"after the restart")
me.wait(b)
equal(me.task(b).state, COMPLETED, "a notification to a receiver that slept over the restart")
me.batch_free(b)
equal(child.pipe.recv()[0], "after the restart", "what it got")
child.pipe.send("end")
child.join()
me.close_segment(inbox)

# tasks in hand when the agent dies; the wait for them ends
b = me.batch(250)
me.submit(b, *[me.request(WRITE, mine, target, address, 4 * MiB) for _ in range(250)])
await_(lambda: me.task(b, 0).state == COMPLETED, "the first one")
agent.kill_agent()
me.wait(b)
ends = [(t.state, t.error) for t in (me.task(b, i) for i in range(250))]
check(set(ends) <= {(COMPLETED, OK), (FAILED, AGENT_RESTARTED)}, "how they ended", set(ends))
me.batch_free(b)
equal(me.write(mine, target, address, 4 * MiB).state, COMPLETED, "and once more")
equal(peek(own, 4 * MiB), peek(mine, 4 * MiB), "the bytes")

# control calls that meet a dead agent: they wait, and are done once
for call in range(4):
    agent.kill_agent()
    p = me.alloc(MiB)
    fill(p, MiB, call)
    me.publish("mine") if call == 0 else None
    agent.kill_agent() if call == 1 else None
    me.free(p)
await_(lambda: agent.status()["pool"]["used"] == used, lambda: f"all that was freed to be free: {agent.status()}")
me.withdraw()


# gone meanwhile: what it had goes with it; its name is free
def victim(pipe):
    c = Client(agent.socket, "victim")
    c.publish("victim")
    c.buffer(c.alloc(4 * MiB), 4096)
    pipe.send("ready")
    pipe.recv()
    lib.mcshm_close(c.c)
    pipe.send("closed")
    pipe.recv()


agent.calm()
for how in ("killed", "closed"):
    child = Child(victim)
    child.pipe.recv()
    old = agent.kill_agent()
    if how == "killed":
        child.kill()
    else:  # lives on; its close does not wait for the agent
        child.pipe.send("close")
        equal(child.pipe.recv()[0], "closed")
    agent.await_next(old)
    await_(lambda: sessions() == 2 and agent.status()["pool"]["used"] == used,
           lambda: f"the things of a client that was {how} meanwhile to go: {agent.status()}")
    refused(NOT_FOUND, me.open, "victim")
    if how == "closed":
        child.pipe.send("end")
        child.join()

# stopped over the restart: it keeps what it has, others go on, and it comes back when it goes on
child = Child(victim)
child.pipe.recv()
child.freeze()
restart()
equal(me.write(mine, target, address, 64).state, COMPLETED, "beside a client that is stopped")
equal(sessions(), 3, "the stopped one has its place")
child.thaw()
await_(lambda: me.open("victim"), "its segment")
child.pipe.send("close")
child.pipe.recv()
child.pipe.send("end")
child.join()
await_(lambda: sessions() == 2, "the stopped one to end")


# one descriptor is free, and a second one will be needed: it waits for that, and is not lost
def poor(pipe):
    c = Client(agent.socket, "poor")
    p = c.alloc(MiB)
    fill(p, MiB, 5)
    before, taken = c.info().restarts, []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        os.close(taken.pop())
    pipe.send("ready")
    pipe.recv()
    for fd in taken:
        os.close(fd)
    await_(lambda: c.info().restarts == before + 1, "it to come back")
    equal(peek(p, MiB), bytes([5]) * MiB, "its memory")
    c.close()


child = Child(poor)
child.pipe.recv()
before = me.info().restarts
restart()
await_(lambda: me.info().restarts == before + 1, "the others to have waited for it")
equal(sessions(), 3, "one that has no descriptor to come back with")
child.pipe.send("go on")
child.join()
await_(lambda: sessions() == 2, "it to end")


# the child of a fork while the agent is away: neither disturbs the other
def parent(pipe):
    c = Client(agent.socket, "parent")
    a = c.alloc(MiB)
    s = c.open("target")
    pipe.send("ready")
    pipe.recv()
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            refused(FORKED, c.alloc, 64)
            lib.mcshm_close(c.c)
            mine = Client(agent.socket, "child")
            a, s = mine.alloc(64), mine.open("target")
            # nobody makes a new client wait for an owner that is still on its way back
            await_(lambda: mine.write(a, s, address, 64).state == COMPLETED, "the child's own task to complete")
            mine.close()
            ok = True
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if ok else 1)
    equal(os.waitpid(pid, 0)[1], 0, "exit status of the fork's child")
    equal(c.write(a, s, address, 64).state, COMPLETED, "the parent's")
    c.close()


agent.calm()
child = Child(parent)
child.pipe.recv()
agent.kill_agent()
child.pipe.send("fork")
child.join()

# copies in the caller's thread: not by a dead agent's grant, and again by the next one's
owner.unbuffer(own, 4 * MiB)
address = owner.buffer(own, 4 * MiB, RW | A_MAP_WRITE)
fast = Client(agent.socket, "fast", caller_max=MiB)
to = fast.open("target")
a = fast.alloc(MiB)
await_(lambda: PATHS[fast.write(a, to, address, 4096).path] == "caller", "copies in the caller's thread")
for i in range(2):
    agent.kill_agent()
    fill(a, 4096, 0x40 + i)
    equal(fast.write(a, to, address, 4096).state, COMPLETED, "somehow")
    equal(peek(own, 4096), bytes([0x40 + i]) * 4096, "its bytes")
    await_(lambda: PATHS[fast.write(a, to, address, 4096).path] == "caller", "the next agent to grant it again")
owner.revoke(own, 4 * MiB)
equal(fast.write(a, to, address, 4096).state, INVALID, "after a revocation by the next agent")
fast.close()
address = owner.buffer(own, 4 * MiB)


# read in place: the mapping stays, shows what comes, and the next agent counts it
granted = owner.buffer(own + 4 * MiB, MiB, RW | A_MAP_READ)
m = me.map(target, granted, MiB)


def mapped():
    return [s["mappings"] for s in agent.ask("ls", "sessions")["sessions"] if s["mappings"]]


equal(mapped(), [1], "mappings as the agent counts them")
before = peek(own + 4 * MiB, MiB)
restart()
equal(peek(m, MiB), before, "what was mapped before the restart")
fill(mine, 4096, 0x77)
equal(me.write(mine, target, granted, 4096).state, COMPLETED)
equal(peek(m, 4096), bytes([0x77]) * 4096, "what came after it")
await_(lambda: mapped() == [1], lambda: f"the next agent to count it: {mapped()}")
me.unmap(m)
equal(mapped(), [], "mappings after mcshm_unmap()")
owner.unbuffer(own + 4 * MiB, MiB)
C.memmove(own + 4 * MiB, before, MiB)


# two engines of pollers that never make a system call of their own: ping and pong
def ponger(pipe):
    c = Client(agent.socket, "pong")
    a = c.alloc(MiB)
    fill(a, MiB, 0)
    c.publish("pong")
    c.buffer(a, MiB)
    pipe.send("ready")
    s = await_(lambda: pipe.recv()[0] and c.open("ping"), "the other one")
    there = c.describe(s)[0].address
    word = C.cast(a, C.POINTER(C.c_uint32))
    for turn in range(1, 10**9):
        while word[0] < turn and word[0] != 0xffffffff:
            pass
        if word[0] == 0xffffffff:
            break
        C.cast(a + 4096, C.POINTER(C.c_uint32))[0] = turn
        while c.write(a + 4096, s, there, 4).state != COMPLETED:
            pass
    c.close()


agent.calm()
child = Child(ponger)
child.pipe.recv()
ping = Client(agent.socket, "ping")
a = ping.alloc(MiB)
fill(a, MiB, 0)
ping.publish("ping")
ping.buffer(a, MiB)
there = ping.open("pong")
there_at = ping.describe(there)[0].address
child.pipe.send("go")
word, out = C.cast(a, C.POINTER(C.c_uint32)), C.cast(a + 4096, C.POINTER(C.c_uint32))
turn = 0
for round_ in range(3):
    goal = turn + 50
    killed = False
    while turn < goal:
        turn += 1
        out[0] = turn
        while ping.write(a + 4096, there, there_at, 4).state != COMPLETED:
            pass
        await_(lambda: word[0] == turn, lambda: f"the answer to turn {turn}, it is {word[0]}")
        if turn == goal - 25:
            agent.kill_agent()
out[0] = 0xffffffff
equal(ping.write(a + 4096, there, there_at, 4).state, COMPLETED, "the last ping")
child.join()
ping.close()

# what the supervisor and the agents said, and counted
await_(lambda: sessions() == 2, "the others to be gone")
text = agent.text()
check("taking over from agent" in text and "supervisor: the agent died of signal 9" in text, text)
equal(peek(own + 4 * MiB, 4 * MiB), text_of(1, 8 * MiB)[4 * MiB:], "memory that nobody wrote to, after all of that")


# stopped for good: known at once, however long one would wait for a later one
def waiter(pipe):
    c = Client(agent.socket, "waiter", reconnect_ms=600000)
    pipe.send("ready")
    n = Notification()
    equal(lib.mcshm_notify_recv(c.c, C.byref(n), -1), AGENT_DOWN, "who waits when the agent is stopped for good")
    refused(AGENT_DOWN, c.alloc, 64)
    c.close()


child = Child(waiter)
child.pipe.recv()
for c in (owner, me):
    c.close()
equal(agent.stop(), 0, "exit status of the supervisor: " + agent.text())
child.join()
check(not os.path.exists(agent.socket), "the socket is still there")

# nobody starts it again: known when the time that was given is over
agent = Supervised()
c = Client(agent.socket, "patient", reconnect_ms=700)
b = c.batch()
agent.process.send_signal(signal.SIGSTOP)
began = time.monotonic()
pid = agent.kill_agent()
equal(lib.mcshm_batch_free(c.q, b), OK, "an empty batch needs no agent")
refused(AGENT_DOWN, c.alloc, 64)
check(time.monotonic() - began >= 0.7, "it was not waited for")
c.close()
agent.process.send_signal(signal.SIGCONT)
agent.await_next(pid)
agent.finish()

# what a client that is not back yet has counts for its tenant: nobody else may have as much meanwhile
agent = Supervised("tenant.memory=24M")


def holder(pipe):
    c = Client(agent.socket, "holder")
    p = c.alloc(16 * MiB)
    pipe.send("ready")
    pipe.recv()
    c.free(p)
    pipe.send(c.info().restarts)
    pipe.recv()
    c.close()


child = Child(holder)
child.pipe.recv()
child.freeze()
agent.await_next(agent.kill_agent())
c = Client(agent.socket, "other")
check("[tenant] memory" in refused(LIMIT, c.alloc, 16 * MiB), "what it was told")
child.thaw()
child.pipe.send("go on")
equal(child.pipe.recv(), [1], "restarts of the holder")
c.free(c.alloc(16 * MiB))
child.pipe.send("end")
child.join()
c.close()
agent.finish()

# without a supervisor there is nothing to wait for
agent = Agent()
c = Client(agent.socket, "realist", reconnect_ms=600000)
agent.kill()
refused(AGENT_DOWN, c.alloc, 64)
c.close()
agent.start()
agent.finish()


# a limit that was lowered takes nothing from who has more, not even by a restart
class Configured(Supervised):
    def command(self, *more):
        return super().command("--config", os.path.join(self.dir, "ini"), *more)

    def configure(self, allocations):
        with open(os.path.join(self.dir, "ini"), "w") as f:
            f.write(f"[session]\nmax_allocs = {allocations}\n")


agent = Configured(start=False)
agent.configure(100)
agent.start()
c = Client(agent.socket, "rich")
held = [c.alloc(64) for _ in range(100)]
agent.configure(50)
agent.ask("reload")
refused(LIMIT, c.alloc, 64)
agent.await_next(agent.kill_agent())
await_(lambda: c.info().restarts == 1, "it to be back")
equal([s["allocations"] for s in agent.ask("ls", "sessions")["sessions"] if s["name"] == "rich"], [100], "allocations that are back")
refused(LIMIT, c.alloc, 64)
for p in held[:51]:
    c.free(p)
c.free(c.alloc(64))
c.close()
agent.finish()
