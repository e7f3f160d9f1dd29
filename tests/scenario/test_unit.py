#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd unit: it is sound, its user and folders can be made, and an agent confined as it says does its work:
local, staged and read-in-place transfers, another host's, a reload, /metrics, a clean stop."""
import os
import re
import sys
import threading
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
import confined  # noqa: E402

MiB = 1 << 20
dir_ = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="u")
atexit.register(shutil.rmtree, dir_, ignore_errors=True)
unit = os.path.join(dir_, "mcshmd.service")
with open(os.path.join(ROOT, "etc/mcshmd.service.in")) as f, open(unit, "w") as out:
    out.write(f.read().replace("@PREFIX@/sbin", os.path.join(B, "bin")))


def run(*words):
    p = subprocess.run(words, capture_output=True, text=True)
    check(p.returncode == 0, words, "exit", p.returncode, p.stdout, p.stderr)
    return p.stdout + p.stderr


# ---- the files by themselves

d = confined.directives(unit)
for name, value in {"User": "mcshm", "RuntimeDirectory": "mcshm", "RuntimeDirectoryPreserve": "yes",
                    "StateDirectory": "mcshm", "StateDirectoryMode": "0700", "ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": ""}.items():
    equal(d[name][-1], value, name)
master = os.path.join(dir_, "mcshm-master.service")
with open(os.path.join(ROOT, "etc/mcshm-master.service.in")) as f, open(master, "w") as out:
    out.write(f.read().replace("@PREFIX@/sbin", os.path.join(B, "bin")))
if shutil.which("systemd-analyze"):
    equal(run("systemd-analyze", "verify", "--man=no", master).strip(), "", "systemd-analyze verify of the master's")
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", master)
    equal(run("systemd-analyze", "verify", "--man=no", unit).strip(), "", "systemd-analyze verify")
    # 20: an exposure of 2.0; the unit's own is told by docs/packaging.md
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit)
    # what docs/rdma.md tells to add for RDMA devices
    with open(os.path.join(ROOT, "docs/rdma.md")) as f:
        lines = re.search(r"```ini\n(\[Service\]\n.*?)```", f.read(), re.S)[1]
    os.mkdir(unit + ".d")
    with open(unit + ".d/rdma.conf", "w") as f:
        f.write(lines)
    equal(run("systemd-analyze", "verify", "--man=no", unit).strip(), "", "systemd-analyze verify, with RDMA")
    text = run("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", unit)
    check("char-infiniband_verbs:rw" in text, text)
    shutil.rmtree(unit + ".d")
else:
    print("systemd-analyze is not there: the unit was parsed, not verified")
if shutil.which("systemd-sysusers") and shutil.which("systemd-tmpfiles") and os.getuid() == 0:
    root = os.path.join(dir_, "root")
    os.makedirs(root + "/etc")
    run("systemd-sysusers", "--root=" + root, os.path.join(ROOT, "etc/sysusers.d/mcshm.conf"))
    user = re.search(r"^mcshm:x:(\d+):(\d+):", open(root + "/etc/passwd").read(), re.M)
    check(user is not None and re.search(r"^mcshm:", open(root + "/etc/group").read(), re.M), "no user mcshm")
    run("systemd-tmpfiles", "--root=" + root, "--create", os.path.join(ROOT, "etc/tmpfiles.d/mcshm.conf"))
    s = os.stat(root + "/run/mcshm")
    equal((s.st_mode & 0o7777, s.st_uid, s.st_gid), (0o755, int(user[1]), int(user[2])), "/run/mcshm")

# ---- an agent under these rules

if os.getuid() != 0:
    skip("the unit is sound; running as its user needs root")
if not shutil.which("systemd-analyze") or os.uname().machine != "x86_64":
    skip("the unit is sound; its system call filter needs systemd-analyze and x86-64")


class Confined(Agent):
    def __init__(self, *settings):
        super().__init__("peer.listen=127.0.0.1:0", "meta.backend=p2p", "agent.socket=/run/mcshm/s", *settings, start=False)
        with open(self.dir + "/c.ini", "w") as f:
            f.write("[task]\ndeadline_ms = 20000\n")
        # what systemd would hear from it; one that reads nothing would hold the agent up
        self.heard = []
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(self.dir + "/notify")
        threading.Thread(target=self.listen, daemon=True).start()
        os.chmod(self.dir + "/notify", 0o666)
        self.prefix = [sys.executable, "-B", os.path.join(ROOT, "tests/scenario/confined.py"), unit, self.dir]
        os.environ.update(NOTIFY_SOCKET="/run/mcshm/notify", WATCHDOG_USEC="1000000")
        self.start()
        del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        self.at = re.search(r"other agents reach this one at (\S+),", self.text())[1]

    def listen(self):
        while True:
            self.heard += self.notified.recv(4096).decode().split("\n")

    def command(self, *more):
        return super().command("--config", "/run/mcshm/c.ini", *more)


# one with a disk for objects, where docs/store.md has it
disk = "/var/lib/mcshm/store"
a, b = Confined(f"store.disk={disk}", "store.disk_size=64M", "store.size=16M", "store.extent_size=4M"), Confined()
check(f"the store's disk, {disk}: 0 objects" in a.text(), "no disk:", a.text())
for word in ("READY=1", "WATCHDOG=1"):  # Type=notify, WatchdogSec
    await_(lambda: word in a.heard, lambda: f"{word} among {a.heard}")
status = dict(line.split(":", 1) for line in open(f"/proc/{a.process.pid}/status"))
equal([status[k].strip().lstrip("0") for k in ("CapPrm", "CapEff", "CapBnd", "CapAmb")], [""] * 4, "capabilities")
equal(status["Uid"].split(), [str(confined.UID)] * 4, "users")
equal((status["NoNewPrivs"].strip(), status["Seccomp"].strip()), ("1", "0" if SAN else "2"), "confinement")

c = Client(a.socket, "local")
p = c.alloc(2 * MiB)
c.publish("mine")
at = c.buffer(p, MiB, RW | A_MAP_READ)
s = c.open("mine")
fill(p + MiB, MiB, 0x5a)
equal(c.write(p + MiB, s, at, MiB).state, COMPLETED, "a local write")
equal(peek(p, MiB), b"\x5a" * MiB, "its bytes")
own = C.create_string_buffer(b"\x77" * MiB, MiB)  # private memory goes through the pool
c.register(C.addressof(own), MiB)
equal(c.write(C.addressof(own), s, at, MiB).state, COMPLETED, "a staged write")
equal(peek(p, MiB), b"\x77" * MiB, "its bytes")
fd = os.memfd_create("foreign", os.MFD_ALLOW_SEALING)
os.ftruncate(fd, MiB)
import fcntl  # noqa: E402
fcntl.fcntl(fd, 1033, 2 | 4)  # F_ADD_SEALS: SHRINK, GROW
foreign = c.register_memfd(fd, MiB)
equal(c.read(foreign, s, at, MiB).state, COMPLETED, "a read into a client's memfd")
equal(peek(foreign, MiB), b"\x77" * MiB, "its bytes")
reader = Client(a.socket, "reader")
equal(peek(reader.map(reader.open("mine"), at, MiB), 16), b"\x77" * 16, "read in place")
reader.close()

owner = Client(b.socket, "owner")
q = owner.alloc(MiB)
owner.publish("theirs")
there = owner.buffer(q, MiB)
fill(p, MiB, 0x21)
equal(c.write(p, c.open(f"{b.at}/theirs"), there, MiB).state, COMPLETED, "a write to the other agent")
equal(peek(q, MiB), b"\x21" * MiB, "its bytes")

# objects: more than there is memory for, so that some go to disk and come back
for i in range(30):
    equal([r.status for r in c.put((b"%d" % i, bytes([i]) * MiB))], [OK], "a put")
for i in range(30):
    equal(c.get(b"%d" % i, room=MiB), [(OK, bytes([i]) * MiB)], "a get")

with urllib.request.urlopen(f"http://{a.status()['admin']['listen']}/metrics", timeout=PATIENCE) as answer:
    metrics = answer.read().decode()
check("mcshm_sessions " in metrics, "/metrics")
for name in ("writes", "reads"):
    check(int(re.search(rf"^mcshm_store_disk_{name}_total (\d+)$", metrics, re.M)[1]) > 0, f"no {name} of the disk:", metrics)
with open(a.dir + "/c.ini", "w") as f:
    f.write("[task]\ndeadline_ms = 25000\n")
a.process.send_signal(signal.SIGHUP)
await_(lambda: "1 key changed" in a.text(), "SIGHUP to be heard")
c.close()
owner.close()
a.finish()
b.finish()
