#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dies with whom: clients that exit, fork and are killed; agents that are killed."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20
agent = Agent()
owner = Client(agent.socket, "owner")
own = owner.alloc(8 * MiB)
owner.publish("target")
address = owner.buffer(own, 8 * MiB)


def settled():
    s = agent.status()
    return s["sessions"] == 2 and s["pool"]["extents"] == 1 and s["segments"] == 1


def busy_client(pipe, wait=True):
    c = Client(agent.socket, "victim", queue=dict(depth=64))
    a = c.alloc(8 * MiB)
    s = c.open("target")
    c.publish("victim")
    c.buffer(a, 4096)
    b = c.batch(64)
    for i in range(60):
        c.submit(b, c.request(WRITE, a, s, address, 8 * MiB, priority=BACKGROUND))
    pipe.send("busy")
    if wait:
        pipe.recv()


await_(settled, "the first state")
fds = agent.fds()

# killed in mid-transfer: everything of it goes, the name is free again, nobody else notices
for i in range(10):
    child = Child(busy_client)
    child.pipe.recv()
    check(agent.status()["segments"] == 2, "the victim is there")
    child.kill()
    await_(settled, "the killed client's things to go: " + str(agent.status()))
# exits without a word
for i in range(3):
    child = Child(lambda pipe: busy_client(pipe, wait=False))
    child.pipe.recv()
    child.join()
    await_(settled, "the things of a client that exited to go")
# stopped: it keeps what it has, and the others go on
child = Child(busy_client)
child.pipe.recv()
child.freeze()
self_segment = owner.open("target")
other = owner.alloc(4096)
equal(owner.write(other, self_segment, address, 4096).state, COMPLETED, "beside a stopped client")
child.kill()
owner.free(other)
await_(settled, "the stopped client's things to go")
await_(lambda: agent.fds() == fds, "descriptors of the agent to be as before")


# a forked child: the parent's handles refuse it; its own death and life change nothing
def parent(pipe):
    c = Client(agent.socket, "parent")
    a = c.alloc(4096)
    s = c.open("target")
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            refused(FORKED, c.alloc, 64)
            refused(FORKED, c.batch)
            refused(FORKED, c.open, "target")
            refused(FORKED, c.recv, 0)
            lib.mcshm_close(c.c)
            mine = Client(agent.socket, "child")
            b = mine.alloc(4096)
            equal(mine.write(b, mine.open("target"), address, 4096).state, COMPLETED, "child's own")
            os.write(w, b"ok")
        finally:
            os._exit(0)
    os.close(w)
    equal(os.read(r, 2), b"ok", "what the forked child found")
    os.waitpid(pid, 0)
    equal(c.write(a, s, address, 4096).state, COMPLETED, "the parent after the child's death")
    # a child that lives on holds a copy of the socket: the death is noticed all the same
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pipe.send(pid)
    pipe.recv()


child = Child(parent)
grandchild = child.pipe.recv()[0]
child.kill()
await_(settled, "a dead parent's things to go, though its child keeps the socket")
os.kill(grandchild, signal.SIGKILL)

# one socket, one agent
second = subprocess.run(agent.command(), capture_output=True, text=True, timeout=PATIENCE)
equal(second.returncode, 1, "exit status of a second agent")
check("another agent serves" in second.stderr and agent.socket in second.stderr, second.stderr)
check(agent.alive() and agent.status()["sessions"] == 2, "the first one is untouched")

# kill -9 of the agent: clients are told, nothing is left, the next one starts on the same socket
b = owner.batch()
agent.kill()
check(os.path.exists(agent.socket), "a killed agent cannot clean up")
refused(AGENT_DOWN, owner.alloc, 4096)
refused(AGENT_DOWN, owner.submit, b, owner.request(WRITE, own, self_segment, address + 4 * MiB, 64))
refused(AGENT_DOWN, Client, agent.socket)
agent.start()
fresh = Client(agent.socket, "fresh")
fresh.publish("target")
fresh.close()
owner.close()

# a waiting client is told as well
c = Client(agent.socket, "waiter")
a = c.alloc(MiB)
c.publish("self")
at = c.buffer(a, MiB)
s = c.open("self")
b = c.batch()
agent.freeze()
c.submit(b, c.request(WRITE, a, s, at + MiB // 2, 64))
refused(TIMEOUT, c.wait, b, 0.05)
agent.kill()
refused(AGENT_DOWN, c.wait, b)
c.close()
agent.start()

# SIGTERM with clients at work: they are told, the agent ends cleanly and in time
owner = Client(agent.socket, "owner")
own = owner.alloc(8 * MiB)
owner.publish("target")
address = owner.buffer(own, 8 * MiB)
child = Child(busy_client)
child.pipe.recv()
clients = [Client(agent.socket, f"c{i}") for i in range(5)]
for c in clients:
    c.alloc(MiB)
equal(agent.stop(), 0, "exit status after SIGTERM: " + agent.text())
check(not os.path.exists(agent.socket), "the socket is gone")
for c in clients:
    refused(AGENT_DOWN, c.alloc, 64)
    c.close()
owner.close()
child.kill()
agent.start()
agent.finish()
