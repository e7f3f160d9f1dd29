#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The agent's log: a cause that comes hundreds of times is told a few times a minute; a full disk or a closed
stderr neither stops nor kills it. The limit itself, over time: tests/daemon/test_log.c."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

MiB = 1 << 20


def works(agent):
    c = Client(agent.socket, "works")
    a = c.alloc(MiB)
    c.publish("works")
    at = c.buffer(a, MiB // 2)
    equal(c.write(a + MiB // 2, c.open("works"), at, 4096).state, COMPLETED, "a transfer")
    c.close()


def nonsense(agent, n):
    for _ in range(n):
        r = Raw(agent.socket)
        r.raw(b"garbage")
        check(r.closed(), "garbage")
        r.s.close()


# one cause, 300 times; a client's name with a break in it makes no line of its own
agent = Agent()
before = len(agent.text().splitlines())
nonsense(agent, 300)
lines = agent.text().splitlines()[before:]
check(1 <= len(lines) <= 20, len(lines), "lines:", lines[:3])
check(all(line.startswith("mcshmd: warning: ") and "malformed" in line for line in lines), lines)
equal(agent.counter("protocol_errors"), 300, "each is counted")
works(agent)
agent.finish()


class Mute(Agent):
    """Whose log goes nowhere."""

    def __init__(self, stderr, **more):
        self.stderr = stderr
        super().__init__("agent.log_level=debug", **more)

    def before(self):
        super().before()
        if self.stderr is None:
            os.close(2)
            os.close(1)
            os.close(0)
        else:
            fd = os.open(self.stderr, os.O_WRONLY)
            os.dup2(fd, 2)
            os.close(fd)


# a full disk; descriptors 0 to 2 closed: what the agent opens next does not become its log
for stderr in ("/dev/full", None):
    agent = Mute(stderr)
    nonsense(agent, 50)
    works(agent)
    for fd in (0, 1, 2):
        where = os.readlink(f"/proc/{agent.process.pid}/fd/{fd}")
        check(where.startswith("/dev/") or where.startswith(agent.dir), fd, where)
    agent.finish()
