#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm doctor rdma --peer over RDMA rails: exit code 0, every size right and over RDMA, both sides' devices and the
rails named; with no port left it says what works instead. Without RDMA: tests/scenario/test_doctor_peer.py."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rdma import *  # noqa: E402,F403

a, b = sides(rails=2)
x, y = a.agent(), b.agent()


def words(agent, *more):
    return [os.path.join(B, "bin/mcshm"), "--socket", agent.socket, *more]


def peer():
    p = subprocess.run(words(x, "--json", "doctor", "rdma", "--peer", y.address), capture_output=True, text=True)
    return p.returncode, json.loads(p.stdout)["peer"]


server = subprocess.Popen(words(y, "doctor", "rdma", "--serve"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, preexec_fn=die_with_the_test)
check("mcshm-doctor" in server.stdout.readline(), "it serves")
code, d = peer()
equal((code, d["rdma"], d["verdict"]), (0, True, "all bytes were right, and all went over RDMA"), d)
equal([(s["size"], s["path"], s["bytes"]) for s in d["sizes"]],
      [(n, "rdma", "right") for n in (8, 256, 4096, 65536, 1 << 20, 4 << 20, 16 << 20)], d)
equal(sorted(n["name"] for n in d["nics"]), ["rxea0/1", "rxea1/1"], d)
equal(sorted((n["name"], n["gid"]) for n in d["peer"][0]["nics"]), [("rxeb0/1", "10.9.0.2"), ("rxeb1/1", "10.9.1.2")], d)
up = [r for r in d["rails"] if r["transport"] == "rdma" and r["state"] == "up"]
equal({r["local"].split()[0] for r in up}, {"rxea0/1", "rxea1/1"}, d)
p = subprocess.run(words(x, "doctor", "rdma", "--peer", y.address), capture_output=True, text=True)
equal((p.returncode, p.stderr), (0, ""), p.stdout)
for word in ("16M", "rxea0/1", "rxeb1/1", "devices that it takes connections on", "rails to it", "ok: all bytes"):
    check(word in p.stdout, word, "in", p.stdout)
check("does not know" not in p.stdout, p.stdout)  # devices that its own settings leave out
check(all(n["memory"] > 32 << 20 for n in d["nics"]), "the memory for it is registered", d["nics"])
print(p.stdout)

# no port is left: bytes get there all the same, and that is said to be another way
for rail in range(2):
    a.down(rail)
await_(lambda: not any(a.carries(rail) for rail in range(2)), "both ports to be down")
code, d = peer()
check(code in (1, 2) and not d["rdma"] and "tcp" in d["verdict"], code, d)
for rail in range(2):
    a.up(rail)
server.send_signal(signal.SIGINT)
equal((server.wait(PATIENCE), server.stderr.read()), (0, ""))
for agent in (x, y):
    equal(agent.stop(), 0, agent.text())
