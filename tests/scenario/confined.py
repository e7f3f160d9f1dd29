#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program as a systemd unit says, where no systemd runs: confined.py UNIT FOLDER PROGRAM [ARGUMENT]...

User, capabilities, limits, read-only tree (but FOLDER, its /run/mcshm), address families and system calls
of the unit's [Service] section, by the kernel's own calls. Needs root. What the unit does not let through ends the
program by SIGSYS here, lest a test overlook a refusal; EXPECTED calls get EPERM, as the unit says.
"""
import ctypes as C
import os
import re
import resource
import struct
import subprocess
import sys

UID = GID = 64747  # nobody's
EXPECTED = ("iopl",)  # DPDK asks once and does without
libc = C.CDLL(None, use_errno=True)
libc.syscall.restype = C.c_long


def directives(path, section="Service"):
    """{name: [values]} of one section."""
    found, inside = {}, False
    for line in open(path):
        line = line.strip()
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and line and line[0] not in "#;":
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def must(result, what):
    if result < 0:
        raise OSError(C.get_errno(), f"{what}: {os.strerror(C.get_errno())}")
    return result


def numbers():
    """{name: number} of this machine's system calls."""
    macros = subprocess.run(["gcc", "-E", "-dM", "-"], input="#include <sys/syscall.h>\n", capture_output=True,
                            text=True, check=True).stdout
    return {m[1]: int(m[2]) for m in re.finditer(r"^#define __NR_(\w+) (\d+)$", macros, re.M)}


def groups():
    """{"@name": its system calls, groups in it unfolded}, as systemd has them."""
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True,
                          check=True).stdout
    sets, now = {}, None
    for line in text.splitlines():
        word = line.strip()
        if line.startswith("@"):
            now = sets[line.split()[0]] = set()
        elif word and word[0] != "#" and now is not None:
            now.add(word)

    def unfold(word):
        return {word} if word[0] != "@" else set().union(*map(unfold, sets[word]))
    return {name: unfold(name) for name in sets}


def allowed(unit):
    """Names that SystemCallFilter lets through; the first line decides that it is a list of what is allowed."""
    known, names = groups(), set()
    names |= known["@default"]
    for line in unit["SystemCallFilter"]:
        words = line.removeprefix("~").split()
        change = set().union(*(known[w] if w[0] == "@" else {w} for w in words))
        names = names - change if line[0] == "~" else names | change
    return names


def filter_program(unit):
    """BPF: architecture, then socket()'s family, then one comparison a system call."""
    LD, JEQ, RET = 0x20, 0x15, 0x06
    ALLOW, KILL, EPERM = 0x7fff0000, 0x80000000, 0x00050001
    table = numbers()
    families = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
    code = [(LD, 0, 0, 4), (JEQ, 1, 0, 0xc000003e), (RET, 0, 0, KILL), (LD, 0, 0, 0)]  # x86-64 alone
    wanted = [families[f] for f in unit["RestrictAddressFamilies"][0].split()]
    code += [(JEQ, 0, len(wanted) + 2, table["socket"]), (LD, 0, 0, 16)]
    code += [(JEQ, len(wanted) - i, 0, f) for i, f in enumerate(wanted)]
    code += [(RET, 0, 0, KILL), (RET, 0, 0, ALLOW)]
    for names, verdict in ((EXPECTED, EPERM), (sorted(allowed(unit)), ALLOW)):
        for name in names:
            if name in table and name != "socket":
                code += [(JEQ, 0, 1, table[name]), (RET, 0, 0, verdict)]
    code.append((RET, 0, 0, KILL))
    return b"".join(struct.pack("<HBBI", *c) for c in code), len(code)


def carry_suppressions():
    """TSan's file would be hidden: reads it, and returns what writes it to /run once that is a new one."""
    found = re.search(r"suppressions=([^:]+)", os.environ.get("TSAN_OPTIONS", ""))
    text = open(found[1]).read() if found else None

    def put():
        if found:
            with open("/run/tsan.supp", "w") as f:
                f.write(text)
            os.environ["TSAN_OPTIONS"] = os.environ["TSAN_OPTIONS"].replace(found[1], "/run/tsan.supp")
    return put


def read_only(folder, program, state):
    """ProtectSystem=strict, PrivateTmp, RuntimeDirectory and StateDirectory: the tree is read-only but for an empty /tmp, for
    folder, which is at /run/mcshm, and for an empty folder `state` in /var/lib. Returns where the program is, which its user could perhaps not reach."""
    CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
    AT_FDCWD, AT_RECURSIVE, RDONLY, mount_setattr = -100, 0x8000, 1, 442
    must(libc.unshare(CLONE_NEWNS), "unshare")
    must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    put_suppressions = carry_suppressions()
    sources = [os.open(path, os.O_PATH) for path in (folder, program)]
    for path, mode in ((b"/tmp", b"mode=1777"), (b"/run", b"mode=755")):
        must(libc.mount(b"tmpfs", path, b"tmpfs", 0, mode), path)
    put_suppressions()
    lasting = []
    if state:
        lasting.append(b"/var/lib/" + state.encode())
        must(libc.mount(b"tmpfs", b"/var/lib", b"tmpfs", 0, b"mode=755"), "/var/lib")
        os.mkdir(lasting[0])
        must(libc.mount(b"tmpfs", lasting[0], b"tmpfs", 0, f"mode=700,uid={UID},gid={GID}".encode()), lasting[0])
    os.mkdir("/run/mcshm")
    os.close(os.open("/run/program", os.O_CREAT | os.O_WRONLY))
    targets = (b"/run/mcshm", b"/run/program")
    for fd, target in zip(sources, targets):
        must(libc.mount(f"/proc/self/fd/{fd}".encode(), target, None, MS_BIND, None), target)
        os.close(fd)
    writable = [(path, 0, 0, RDONLY) for path in [b"/tmp", targets[0], *lasting]]
    for path, flags, on, off in [(b"/", AT_RECURSIVE, RDONLY, 0), *writable]:
        attributes = struct.pack("<QQQQ", on, off, 0, 0)
        must(libc.syscall(mount_setattr, AT_FDCWD, path, flags, attributes, len(attributes)), "mount_setattr")
    os.chdir("/")
    return targets[1].decode()


def main(path, folder, *program):
    unit = directives(path)
    kept = unit["CapabilityBoundingSet"][-1].split() + unit["AmbientCapabilities"][-1].split()
    assert kept == [], f"this launcher gives no capabilities; the unit wants {kept}"
    sanitized = bool(os.environ.get("SAN"))
    code, count = (b"", 0) if sanitized else filter_program(unit)
    for name, limit in (("LimitMEMLOCK", resource.RLIMIT_MEMLOCK), ("LimitNOFILE", resource.RLIMIT_NOFILE),
                        ("LimitCORE", resource.RLIMIT_CORE)):
        value = unit[name][-1]
        value = resource.RLIM_INFINITY if value == "infinity" else int(value)
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, PermissionError):  # a container may not raise it; the program has to live with less
            pass
    os.chown(folder, UID, GID)
    there = read_only(folder, program[0], unit.get("StateDirectory", [""])[-1])
    os.umask(int(unit["UMask"][-1], 8))
    for cap in range(64):
        libc.prctl(24, cap, 0, 0, 0)  # PR_CAPBSET_DROP; fails past the last one
    os.setgroups([])
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)
    must(libc.prctl(1, 9, 0, 0, 0), "PR_SET_PDEATHSIG")  # undone by the change of user
    must(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if not sanitized:  # sanitizers ptrace, write code and change their personality
        libc.prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, MemoryDenyWriteExecute; where the kernel knows it
        buffer = C.create_string_buffer(code, len(code))
        must(libc.prctl(22, 2, struct.pack("<HxxxxxxQ", count, C.addressof(buffer))), "PR_SET_SECCOMP")
    os.execv(there, program)


if __name__ == "__main__":
    main(*sys.argv[1:])
