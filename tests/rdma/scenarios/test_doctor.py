#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mcshm doctor rdma and mcshm ls nics with devices of software: what is found, chosen and why, with and without an
agent; a port that is down, a wrong GID index, no permission."""
import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rdma import *  # noqa: E402,F403

a, b = sides(rails=2)
folder = public_folder()
ini = os.path.join(folder, "agent.ini")


def mcshm(*words, **more):
    return subprocess.run([os.path.join(B, "bin/mcshm"), *words], capture_output=True, text=True, **more)


def doctor(settings="", agent=None, **more):
    """The findings by check, as ("severity", "what; remedy")."""
    with open(ini, "w") as f:
        f.write(f"[agent]\nsocket = {agent.socket if agent else os.path.join(folder, 's')}\n"
                f"[peer]\nlisten = 127.0.0.1:9420\n[pool]\nsize = 64M\n[rdma]\ndevices = rxea*\n{settings}")
    os.chmod(ini, 0o644)
    p = mcshm("--json", "doctor", "rdma", "--config", ini, **more)
    found = {}
    for f in json.loads(p.stdout)["findings"]:
        found.setdefault(f["check"], []).append((f["severity"], f["what"] + "; " + f["remedy"]))
    equal(p.returncode, {"ok": 0, "note": 0, "warn": 1, "bad": 2}[json.loads(p.stdout)["worst"]], found)
    return found


def says(found, name, severity, *words):
    check(any(s == severity and all(w in text for w in words) for s, text in found.get(name, [])),
          name, severity, words, "in", found)


# without an agent
d = doctor()
says(d, "kernel", "ok", "ib_uverbs")
for rail in range(2):
    says(d, "devices", "ok", f"rxea{rail}, 1 port, software on a{rail}")
    says(d, "devices", "ok", f"rxea{rail}: this user may open /dev/infiniband/uverbs")
    says(d, "ports", "ok", f"rxea{rail}/1: ACTIVE", f"interface a{rail} (up)")
    says(d, "ports", "ok", f"rxea{rail}/1: MTU {MTU} of a{rail} carries packets of 4096 bytes")
    says(d, "ports", "ok", f"rxea{rail}/1: GID 1 (10.9.{rail}.1, RoCE v2)", "IPv4", f"the address of a{rail}, which is up")
    says(d, "ports", "note", f"rxeb{rail}/1: not used, [rdma] devices")
check("agent" not in d, d)
says(doctor("gid_index = 0\n"), "ports", "note", "GID 0 (fe80::", "as [rdma] gid_index says")
says(doctor("gid_index = 9\n"), "ports", "warn", "rxea0/1: GID index 9 is wanted", "gid_index = auto")
says(doctor("enable = require\ngid_index = 9\n"), "ports", "bad", "rxea0/1: GID index 9 is wanted")
a.mtu(1, 1500)
says(doctor(), "ports", "note", "rxea1/1: MTU 1500 of a1 carries packets of 1024 bytes", "ip link set a1 mtu 4200")
a.mtu(1, MTU)

# another user, whom the file keeps out; a limit of locked memory that is too low counts for him alone
other = dict(user=65534, group=65534, extra_groups=[])
uverbs = "/dev/infiniband/" + next(n for n in os.listdir("/sys/class/infiniband_verbs") if n.startswith("uverbs") and
                                   open(f"/sys/class/infiniband_verbs/{n}/ibdev").read().strip() == "rxea0")
mode = os.stat(uverbs).st_mode & 0o777
os.chmod(uverbs, 0o600)
d = doctor(**other)
says(d, "devices", "warn", "rxea0: this user (uid 65534) may not open " + uverbs, "mode 0600 of 0:root", "usermod")
says(d, "devices", "ok", "rxea1: this user may open")
os.chmod(uverbs, mode)
says(doctor(**other), "devices", "ok", "rxea0: this user may open")
limited = dict(other, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)))
says(doctor(**limited), "locked memory", "warn", "this shell's limit is 64K", "LimitMEMLOCK=infinity")

# with an agent
x = a.agent("rdma.enable=auto")


def nics():
    return {n["name"]: n for n in json.loads(mcshm("--json", "--socket", x.socket, "ls", "nics").stdout)["nics"]}


await_(lambda: {n["state"] for n in nics().values()} == {"up"}, lambda: f"all to be up: {nics()}")
n = nics()
equal(sorted(n), ["rxea0/1", "rxea1/1"], n)
for rail in range(2):
    found = n[f"rxea{rail}/1"]
    equal({k: found[k] for k in ("link", "gid", "gid_index", "mtu", "netdev", "prefix")},
          {"link": "Ethernet", "gid": f"10.9.{rail}.1", "gid_index": 1, "mtu": 4096, "netdev": f"a{rail}",
           "prefix": found["prefix"]}, found)
    check("RoCE v2" in found["why"] and found["rate"] > 0, found)
p = mcshm("--socket", x.socket, "ls", "nics")
check("rxea1/1" in p.stdout and "10.9.1.1" in p.stdout and "WHY" in p.stdout, p.stdout)
d = doctor(agent=x)
says(d, "agent", "ok", "the agent has rxea0/1 up: GID 1 (10.9.0.1, RoCE v2)")
says(d, "devices", "ok", "rxea0: the agent may open")

# its port goes down and comes back
a.down(0)
await_(lambda: nics()["rxea0/1"]["state"] == "down", lambda: f"rxea0 to be down: {nics()}")
d = doctor(agent=x)
says(d, "ports", "warn", "rxea0/1: ", "ip link set a0 up")
says(d, "agent", "warn", "the agent has rxea0/1 down: its port is down")
says(d, "agent", "ok", "the agent has rxea1/1 up")
a.up(0)
await_(lambda: nics()["rxea0/1"]["state"] == "up", lambda: f"rxea0 to be up again: {nics()}")
equal(x.stop(), 0, x.text())

# an index that no table has: the agent starts, and says what is wrong
x = a.agent("rdma.enable=auto", "rdma.gid_index=9")
await_(lambda: {n["state"] for n in nics().values()} == {"down"}, lambda: f"all to be down: {nics()}")
check(all("GID index 9 is wanted" in n["why"] and n["gid"] == "" for n in nics().values()), nics())
check("GID index 9" in x.text(), x.text())
says(doctor("gid_index = 9\n", agent=x), "agent", "warn", "down: GID index 9 is wanted")
equal(x.stop(), 0, x.text())
