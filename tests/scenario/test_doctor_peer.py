#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm doctor rdma --peer and --serve where there is no RDMA: bytes are compared, the way they took is named, and
the exit code is 0 for RDMA alone. Over RDMA: tests/rdma."""
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

# no RDMA, whatever this machine has
SETTINGS = ("peer.listen=127.0.0.1:0", "rdma.enable=off", "pool.pages=off")
a, b = Agent(*SETTINGS), Agent(*SETTINGS)
ENV = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
ADDRESS = {x: re.search(r"reach this one at (\S+),", x.text())[1] for x in (a, b)}


def words(agent, *more):
    return [os.path.join(B, "bin/mcshm"), "--socket", agent.socket, *more]


def doctor(agent, *more):
    return subprocess.run(words(agent, "doctor", "rdma", *more), capture_output=True, text=True, env=ENV)


def peer(agent, address, *more):
    p = subprocess.run(words(agent, "--json", "doctor", "rdma", "--peer", address, *more), capture_output=True,
                       text=True, env=ENV)
    d = json.loads(p.stdout)
    check(all(f["area"] == "rdma" for f in d["findings"]), d)
    return p.returncode, d["peer"]


# nobody serves; nobody is there; no port; no agent here
code, d = peer(a, ADDRESS[b])
equal((code, d["rdma"], d["sizes"]), (2, False, []), d)
check("doctor rdma --serve" in d["verdict"], d)
code, d = peer(a, "127.0.0.1:1")
equal(code, 2, d)
check("127.0.0.1:1" in d["verdict"], d)
code, d = peer(a, "127.0.0.1")
equal(code, 2, d)
check("127.0.0.1:PORT" in d["verdict"], d)

# a port that is not given is that of this host's own [peer] listen
ini = os.path.join(a.dir, "ini")
port = ADDRESS[b].rpartition(":")[2]
with open(ini, "w") as f:
    f.write(f"[peer]\nlisten = 127.0.0.1:{port}\n")
for given, taken in (("127.0.0.1", ADDRESS[b]), ("::1", f"[::1]:{port}"), ("[::1]", f"[::1]:{port}"),
                     ("[::1]:1", "[::1]:1"), ("localhost:1", "localhost:1"), ("localhost", f"localhost:{port}")):
    code, d = peer(a, given, "--config", ini)
    equal((code, d["address"]), (2, taken), d)

# served: right, but not over RDMA
server = subprocess.Popen(words(b, "doctor", "rdma", "--serve"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=ENV, preexec_fn=die_with_the_test)
check("mcshm-doctor" in server.stdout.readline(), "it serves")
code, d = peer(a, ADDRESS[b])
equal((code, d["rdma"], d["address"]), (1, False, ADDRESS[b]), d)
check("not all went over RDMA (the last: tcp)" in d["verdict"], d)
equal([s["size"] for s in d["sizes"]], [8, 256, 4096, 65536, 1 << 20, 4 << 20, 16 << 20], d)
for s in d["sizes"]:
    equal((s["path"], s["bytes"]), ("tcp", "right"), s)
    check(min(s["write_us"], s["read_us"], s["write_rate"], s["read_rate"]) > 0, s)
check(d["rails"] and all(r["peer"] == ADDRESS[b] and r["transport"] == "tcp" and r["state"] == "up"
                         for r in d["rails"]), d)
p = doctor(a, "--peer", ADDRESS[b])
equal((p.returncode, p.stderr), (1, ""), p.stdout)
for word in ("WRITE us", "16M", "right", "rails to it", ADDRESS[b], "WARN"):
    check(word in p.stdout, word, "in", p.stdout)

# one serves at a time; what is served under its name by somebody else is not written to
p = doctor(b, "--serve")
equal((p.returncode, p.stdout), (1, ""), p.stderr)
check("mcshm-doctor" in p.stderr, p.stderr)
server.send_signal(signal.SIGINT)
equal((server.wait(30), server.stderr.read()), (0, ""))
other = Client(b.socket, "other")
other.publish("mcshm-doctor", 1)
other.buffer(other.alloc(4096), 4096)
code, d = peer(a, ADDRESS[b])
equal(code, 2, d)
check("is not the doctor's" in d["verdict"], d)
other.close()

# its agent goes away while it serves
server = subprocess.Popen(words(b, "doctor", "rdma", "--serve"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=ENV, preexec_fn=die_with_the_test)
check("mcshm-doctor" in server.stdout.readline(), "it serves")
equal(b.stop(), 0, b.text())
equal(server.wait(PATIENCE), 1, "its agent is gone")
check("agent" in server.stderr.read(), "it says why")

# usage
for wrong in (["doctor", "--peer", "x:1"], ["doctor", "cpu", "--serve"], ["doctor", "rdma", "--peer"],
              ["ping", "x:1", "--serve"]):
    p = subprocess.run(words(a, *wrong), capture_output=True, text=True, env=ENV)
    equal((p.returncode, len(p.stderr.splitlines()), p.stdout), (2, 1, ""), (wrong, p.stderr))
