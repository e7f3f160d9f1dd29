# SPDX-License-Identifier: Apache-2.0
"""What a container runtime does to a process, by the kernel's own calls, for tests. Needs root.

    def client(pipe):                                 # runs as process 1 of the container, root inside
        c = Client(SOCKET, "contained")
    k = Container(client, agent.dir)                  # as Child: k.pipe, k.kill(), k.join()

Namespaces of its own (user, mount, PID, network, IPC, UTS), users shifted by `base`, a read-only root on which nothing of
the host's /tmp, /run, /var/tmp is to be seen but the folder of the agent's socket at /run/mcshm (and, for tests of an
agent in a container, its program), 64 KiB of /dev/shm, and a system call filter that refuses what Docker's does.
"""
import ctypes as C
import os
import struct

import confined
import mcshm
from mcshm import *  # noqa: F403

SOCKET = "/run/mcshm/s"
libc = confined.libc
must = confined.must
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
MS_BIND, MS_REC, MS_PRIVATE, MS_REMOUNT, MS_RDONLY = 0x1000, 0x4000, 0x40000, 0x20, 1
# What Docker's default profile leaves out, as far as a process without capabilities could use it
REFUSED = ("process_vm_readv", "process_vm_writev", "ptrace", "mount", "umount2", "unshare", "setns", "pivot_root",
           "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "move_pages", "mbind",
           "set_mempolicy", "get_mempolicy", "migrate_pages", "kcmp", "io_uring_setup", "io_uring_enter",
           "io_uring_register", "name_to_handle_at", "open_by_handle_at", "pidfd_getfd", "fsopen", "fsmount",
           "move_mount", "open_tree", "mount_setattr", "acct", "quotactl", "swapon", "reboot", "init_module",
           "kexec_load", "settimeofday", "clock_settime", "iopl", "ioperm", "lookup_dcookie", "personality")
if SAN:  # a sanitized agent looks into itself
    REFUSED = tuple(name for name in REFUSED if name not in ("ptrace", "personality"))


def available():
    """None, or why there can be no containers here."""
    if os.getuid() != 0:
        return "needs root"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) == 0 else 1)
    return None if os.waitpid(pid, 0)[1] == 0 else "this kernel or sandbox does not allow user namespaces"


def filter_calls(numbers, names=REFUSED):
    """From now on these calls fail with EPERM, here and in all children."""
    LD, JEQ, RET, ALLOW, EPERM = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050001
    code = [(LD, 0, 0, 0)]
    for name in names:
        if name in numbers:
            code += [(JEQ, 0, 1, numbers[name]), (RET, 0, 0, EPERM)]
    code.append((RET, 0, 0, ALLOW))
    raw = b"".join(struct.pack("<HBBI", *c) for c in code)
    buffer = C.create_string_buffer(raw, len(raw))
    must(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    must(libc.prctl(22, 2, struct.pack("<HxxxxxxQ", len(code), C.addressof(buffer))), "PR_SET_SECCOMP")


def mount(source, target, kind, flags=0, data=None):
    must(libc.mount(source and source.encode(), target.encode(), kind and kind.encode(), flags,
                    data and data.encode()), f"mount {target}")


def enter_users(base):
    """A user namespace in which users 0 to 65535 are the host's base and up."""
    asks, answers = os.pipe(), os.pipe()
    pid, me = os.fork(), os.getpid()
    if pid == 0:  # from outside, as only the outside may
        me = os.getppid()
        os.read(asks[0], 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{me}/{name}", "w") as f:
                f.write(f"0 {base} 65536\n")
        os.write(answers[1], b"x")
        os._exit(0)
    must(libc.unshare(CLONE_NEWUSER), "unshare users")
    os.write(asks[1], b"x")
    os.read(answers[0], 1)
    os.waitpid(pid, 0)
    for fd in asks + answers:
        os.close(fd)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def furnish(folder, writable=False):
    """The mounts of a container, in a mount namespace of its own: /run/mcshm is folder, all else as said above."""
    put_suppressions = confined.carry_suppressions()
    keep = os.open(folder, os.O_PATH)  # of this namespace's mounts, under which it will be hidden
    mount("tmpfs", "/dev/shm", "tmpfs", data="size=64k,mode=1777")
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    put_suppressions()
    os.mkdir("/run/mcshm")
    os.mkdir("/run/build")
    mount(f"/proc/self/fd/{keep}", "/run/mcshm", None, MS_BIND)
    os.close(keep)
    mount("/mnt/build", "/run/build", None, MS_BIND)
    mcshm.B = "/run/build"  # where an Agent in here finds its program
    for path in ("/mnt", "/tmp", "/var/tmp"):
        mount("tmpfs", path, "tmpfs", data="size=64k,mode=1777")
    mount("proc", "/proc", "proc")
    AT_FDCWD, AT_RECURSIVE, RDONLY, mount_setattr = -100, 0x8000, 1, 442
    for path, flags, on, off in (("/", AT_RECURSIVE, RDONLY, 0), ("/dev/shm", 0, 0, RDONLY), ("/proc", 0, 0, RDONLY)) + \
            ((("/run/mcshm", 0, 0, RDONLY), ("/tmp", 0, 0, RDONLY)) if writable else ()):
        attributes = struct.pack("<QQQQ", on, off, 0, 0)
        must(libc.syscall(mount_setattr, AT_FDCWD, path.encode(), flags, attributes, len(attributes)), path)
    os.chdir("/")


class Container(Child):
    """base: the host's number of the user that is root inside; None: no user namespace."""

    def __init__(self, f, folder, base=None, filtered=True, writable=False, network=False):
        numbers = confined.numbers()
        spaces = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | (0 if network else CLONE_NEWNET)

        def outer(pipe):
            die_with_the_test()
            # the way to the folder may be closed to the container's users: it gets a place that is not
            must(libc.unshare(CLONE_NEWNS), "unshare mounts")
            mount(None, "/", None, MS_REC | MS_PRIVATE)
            mount("tmpfs", "/mnt", "tmpfs", data="mode=755")
            os.mkdir("/mnt/folder")
            mount(folder, "/mnt/folder", None, MS_BIND)
            os.mkdir("/mnt/build")
            mount(mcshm.B, "/mnt/build", None, MS_BIND)
            if base is not None:
                enter_users(base)
            must(libc.unshare(spaces), "unshare")
            inner = os.fork()
            if inner == 0:
                code = 1
                try:
                    die_with_the_test()
                    furnish("/mnt/folder", writable)
                    if filtered:
                        filter_calls(numbers)
                    equal(os.getpid(), 1, "the first process")
                    f(pipe)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            check(code == 0, "the container's first process ended with", code)
        super().__init__(outer)
