#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The configuration read again, by SIGHUP and by mcshm reload: live keys change at once, the others are named,
and a file that is wrong changes nothing. Only root and the agent's user may ask."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="r")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
ini = os.path.join(folder, "agent.ini")
LIVE = {"agent.log_level": "debug", "pool.size": "128M", "engine.spin_us": "7", "engine.slice": "64K",
        "queue.depth": "512", "session.inbox_size": "64K", "local.caller_max": "0", "local.stream_min": "1M",
        "task.deadline_ms": "1234"}
WAITING = {"pool.extent_size": "4M", "engine.idle": "busy", "admin.mode": "off"}


def write(settings):
    with open(ini, "w") as f:
        for key, value in settings.items():
            f.write("[%s]\n%s = %s\n" % (*key.split("."), value))


class FromFile(Agent):
    def command(self, *more):
        # what --set says would win over the file
        return [os.path.join(B, "bin/mcshmd"), "--config", ini, "--set", "agent.socket=" + self.socket,
                "--set", "agent.socket_mode=0666", *more]


def mcshm(*words, **more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run([os.path.join(B, "bin/mcshm"), "--socket", agent.socket, *words],
                          capture_output=True, text=True, env=env, **more)


START = {"pool.size": "64M", "pool.extent_size": "2M", "admin.listen": "127.0.0.1:0"}
write(START)
agent = FromFile(dir=public_folder())
before = Client(agent.socket, "before")
equal(before.info().deadline_us, 30000000, "the default deadline")
refused(NO_MEMORY, before.alloc, 100 << 20)

# nothing has changed; then all live keys at once, and three that wait
equal(agent.ask("reload"), {"changed": [], "waiting": []}, "nothing")
check("no live key has changed" in mcshm("reload").stdout)
write({**START, **LIVE, **WAITING})
d = agent.ask("reload")
equal((sorted(d["changed"]), sorted(d["waiting"])), (sorted(LIVE), sorted(WAITING)), "keys")
equal(agent.ask("reload"), {"changed": [], "waiting": d["waiting"]}, "the same again")
p = mcshm("reload")
equal(p.stdout, "no live key has changed\nwait for the agent's next start: " + " ".join(d["waiting"]) + "\n")

# and they are in force
after = Client(agent.socket, "after")
equal((after.info().deadline_us, after.info().caller_max), (1234000, 0), "what a new client hears")
before.free(before.alloc(100 << 20))
check("debug:" in agent.text(), "lines of level debug", agent.text())
a = after.alloc(4 << 20)
after.publish("after")
at = after.buffer(a, 2 << 20)
s = after.open("after")
started = time.monotonic()
# a receiver that never reads: the inbox of the reloaded size fills, then the deadline comes
n = 0
while True:
    b = after.batch()
    after.notify(b, s, b"x", b"y" * 4000)
    after.wait(b)
    t = after.task(b)
    after.batch_free(b)
    if t.state != COMPLETED:
        break
    n += 1
equal((t.state, t.error), (S_TIMEOUT, INBOX_FULL), "a full inbox")
check(8 <= n <= 16, n, "messages of 4000 bytes in an inbox of 64K")
check(time.monotonic() - started >= 1.2, "the deadline of 1234 ms")
equal(after.write(a + (2 << 20), s, at, 1 << 20).state, COMPLETED, "a copy in slices of 64K")

# a pool that is made smaller than what is used: nothing more is given, nothing taken
whole = before.alloc(60 << 20)
write({**START, **LIVE, **WAITING, "pool.size": "32M", "pool.extent_size": "2M"})
equal(agent.ask("reload")["changed"], ["pool.size"])
refused(NO_MEMORY, before.alloc, 1 << 20)
fill(whole, 60 << 20, 7)
before.free(whole)
before.free(before.alloc(1 << 20))
write({**START, **LIVE, **WAITING})
equal(agent.ask("reload")["changed"], ["pool.size"])

# wrong files: one sentence, exit code 1, nothing changes
for key, value, words in (("task.deadline_ms", "soon", ("[task] deadline_ms", "'soon'", "1 to 4000000")),
                          ("pool.size", "1", ("[pool] size", "'1'")),
                          ("pool.sizes", "1G", ("[pool] sizes", "unknown key")),
                          ("queue.depth", "1000", ("[queue] depth", "1000", "power of two"))):
    write({**START, **LIVE, **WAITING, key: value})
    p = mcshm("reload")
    equal((p.returncode, len(p.stderr.splitlines()), p.stdout), (1, 1, ""), p.stderr)
    for w in words:
        check(w in p.stderr, w, "in", p.stderr)
os.unlink(ini)
p = mcshm("reload")
equal((p.returncode, len(p.stderr.splitlines())), (1, 1), p.stderr)
check("cannot read the configuration" in p.stderr, p.stderr)
equal(Client(agent.socket, "still").info().deadline_us, 1234000, "the deadline in force")

# SIGHUP does the same, and says so in the log
write({**START, **LIVE, "task.deadline_ms": "777"})
agent.process.send_signal(signal.SIGHUP)
await_(lambda: "SIGHUP: 1 key changed: task.deadline_ms" in agent.text(), "SIGHUP to be heard: ")
equal(Client(agent.socket, "again").info().deadline_us, 777000, "after SIGHUP")

# who may not
if os.getuid() == 0:
    p = mcshm("reload", user=65534, group=65534, extra_groups=[])
    equal(p.returncode, 1, p.stderr)
    check("user 65534 may not reload" in p.stderr, p.stderr)
    equal(Client(agent.socket, "again").info().deadline_us, 777000, "after a reload that was refused")
equal(agent.stop(), 0, agent.text())
