#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm doctor: what it finds at a living, dead, hung and closed agent, in a wrong configuration, without its
metadata service; and that its exit code follows. Checks of the host on made-up files: tests/cli/test_doctor.c."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

folder = public_folder()
ini = os.path.join(folder, "agent.ini")
BASE = "[agent]\nsocket = %s\nsocket_mode = 0660\n[pool]\nsize = 64M\nextent_size = 2M\npages = off\n" % \
    os.path.join(folder, "s")


def mcshm(*words, **more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run([os.path.join(B, "bin/mcshm"), *words], capture_output=True, text=True, env=env, **more)


def doctor(area, text=BASE, code=None, **more):
    """The findings of one area, by check; the exit code must be what they say, or code."""
    with open(ini, "w") as f:
        f.write(text)
    p = mcshm("--json", "doctor", area, "--config", ini, **more)
    d = json.loads(p.stdout)
    equal(p.returncode, {"ok": 0, "note": 0, "warn": 1, "bad": 2}[d["worst"]], (d, p.stderr))
    if code is not None:
        equal(p.returncode, code, d)
    for f in d["findings"]:
        equal(f["area"], area)
        check(f["severity"] in ("ok", "note") or f["remedy"], "no remedy", f)
    return {f["check"]: f for f in d["findings"]}


def says(found, name, severity, *words):
    check(name in found and found[name]["severity"] == severity, name, severity, found)
    for w in words:
        check(w in found[name]["what"] + found[name]["remedy"], w, "in", found[name])


# without an agent; the settings come from the file
d = doctor("agent", code=0)
says(d, "configuration", "ok", ini)
says(d, "socket", "note", os.path.join(folder, "s"), "No such file")
says(d, "agent", "note", "no agent serves")

# a living one
agent = Agent("agent.socket_mode=0660", "pool.pages=off", dir=folder)
d = doctor("agent", code=0)
says(d, "socket", "ok", "0660")
check(any(f["check"] == "agent" and f["severity"] == "ok" and f"pid {agent.process.pid}" in f["what"]
          for f in json.loads(mcshm("--json", "doctor", "agent", "--config", ini).stdout)["findings"]), d)
check(str(agent.process.pid) not in d["other agents"]["what"], d)

# what users see, and all areas at once
p = mcshm("doctor", "--config", ini)
check(p.returncode in (0, 1, 2) and p.stderr == "", p.stderr)
for area in ("agent", "memory", "cpu", "kernel", "host", "cluster"):
    check("\n" + area + "\n" in "\n" + p.stdout, area, "in", p.stdout)
check("io_uring" in p.stdout and "/dev/shm" in p.stdout or "container: none" in p.stdout, p.stdout)
for name, f in doctor("kernel").items():
    check(name in ("memfd", "populate", "membarrier", "io_uring", "pidfd", "other rights"), name)

# the folder, or the socket, keeps others out
if os.getuid() == 0:
    other = dict(user=65534, group=65534, extra_groups=[])
    with open(ini, "w") as f:
        f.write(BASE)
    os.chmod(ini, 0o644)

    def of_other():
        p = mcshm("--json", "doctor", "agent", "--config", ini, **other)
        return p.returncode, {f["check"]: f for f in json.loads(p.stdout)["findings"]}
    code, d = of_other()
    equal(code, 2, d)
    says(d, "socket", "bad", "user 65534 may not connect", "0660", "root:root", "usermod -aG root")
    os.chmod(agent.socket, 0o666)
    code, d = of_other()
    says(d, "socket", "ok", "0666")
    inner = os.path.join(folder, "inner")
    os.mkdir(inner, 0o700)
    p = mcshm("--json", "--socket", os.path.join(inner, "s"), "doctor", "agent", "--config", ini, **other)
    says({f["check"]: f for f in json.loads(p.stdout)["findings"]}, "socket", "bad", inner, "0700", "chmod o+x")

# it hangs
agent.freeze()


def hung():
    d = doctor("agent")
    return d["agent"]["severity"] == "bad" and d


d = await_(hung, "the doctor to see that it hangs")
says(d, "agent", "bad", "no sign of life", str(agent.process.pid), "mcshm top")
agent.kill()

# it died: its socket, then only its counters; somebody removes a living one's socket
d = doctor("agent", code=1)
says(d, "agent", "warn", "an agent died and left its socket", "start the agent")
os.unlink(agent.socket)
says(doctor("agent", code=1), "agent", "warn", "left its counters")
agent.start()
check(doctor("agent")["agent"]["severity"] in ("ok", "note"), "the next agent")
os.unlink(agent.socket)
says(doctor("agent", code=1), "agent", "warn", "its socket is gone", "start it again")
equal(agent.stop(), 0, agent.text())
with open(agent.socket, "w"):
    pass
says(doctor("agent", code=2), "socket", "bad", "is no socket")
os.unlink(agent.socket)

# wrong configurations are told in the agent's own words
d = doctor("agent", BASE + "[task]\ndeadline_ms = soon\n", code=2)
says(d, "configuration", "bad", "[task] deadline_ms", "'soon'")
d = doctor("cpu", BASE + "[engine]\ncores = 1000\n", code=2)
says(d, "engine cores", "bad", "core 1000", "does not start")

# the metadata service: one of three lives, none lives, one does not answer
PEER = BASE + "[peer]\nlisten = 127.0.0.1:0\n[meta]\nbackend = etcd\nendpoints = %s\n"
listener = socket.create_server(("127.0.0.1", 0))
alive = "http://127.0.0.1:%d" % listener.getsockname()[1]
closed = socket.create_server(("127.0.0.1", 0))
dead = "http://127.0.0.1:%d" % closed.getsockname()[1]
closed.close()


def cluster(endpoints):
    with open(ini, "w") as f:
        f.write(PEER % endpoints)
    return mcshm("--json", "doctor", "cluster", "--config", ini)


p = cluster(f"{dead},{alive}")
d = json.loads(p.stdout)
equal([(f["severity"], f["what"].split()[0]) for f in d["findings"]], [("warn", dead), ("ok", alive)], d)
equal(p.returncode, 1)
p = cluster(dead)
equal((p.returncode, [f["severity"] for f in json.loads(p.stdout)["findings"]]), (2, ["warn", "bad"]), p.stdout)
listener.close()
says(doctor("cluster", code=0), "metadata", "ok", "needs no service")

# RDMA that is required is looked at without being asked for
with open(ini, "w") as f:
    f.write(PEER % alive + "[rdma]\nenable = require\n")
d = json.loads(mcshm("--json", "doctor", "--config", ini).stdout)
check(any(f["area"] == "rdma" and f["check"] == "kernel" for f in d["findings"]), d)

# usage
for words in (["doctor", "nonsense"], ["doctor", "--config"], ["status", "--config", "x"], ["doctor", "cpu", "more"]):
    p = mcshm(*words)
    equal((p.returncode, len(p.stderr.splitlines()), p.stdout), (2, 1, ""), (words, p.stderr))
equal(mcshm("doctor", "rdma").returncode in (0, 1), True, "rdma")
