# SPDX-License-Identifier: Apache-2.0
"""libmcshm through ctypes, and an agent of one's own, for scenario tests.

A scenario is a script: it makes an Agent, forks or connects clients, checks with check() and ends
with 0, or with an uncaught exception. Under SAN=address the sanitized library is loaded; under
SAN=thread the plain one is (TSan cannot be loaded late), against the sanitized agent.
"""
import atexit
import ctypes as C
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

from libmcshm import *
from libmcshm import B, SAN, lib
from objects import ObjectCalls


class McshmError(Exception):
    def __init__(self, status, call, text):
        super().__init__(f"{call}: {lib.mcshm_strerror(status).decode()}: {text}")
        self.status, self.text = status, text


def check(condition, *words):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in words))


def equal(got, wanted, what=""):
    if got == wanted:
        return
    if isinstance(got, bytes) and isinstance(wanted, bytes) and len(got) == len(wanted) > 256:
        at = next(i for i, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1])
        others = sum(a != b for a, b in zip(got, wanted))
        raise AssertionError(f"{what}: {others} of {len(got)} bytes differ, from {at} on: got {got[at:at + 16].hex()}, "
                             f"wanted {wanted[at:at + 16].hex()}")
    raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}"[:10000])


def await_(condition, what, seconds=PATIENCE):
    """Polls until condition() is true; returns what it returned. what: words, or a function that finds them."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        check(time.monotonic() < end, "waited in vain for", what() if callable(what) else what)
        time.sleep(0.005)


def stop_all_of(pid, what):
    """SIGSTOP, and all threads of the process have stopped. The signal alone returns before that: one that sleeps
    may be woken by what comes next, and go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    tasks = f"/proc/{pid}/task"

    def stopped():
        try:
            return all(open(f"{tasks}/{t}/stat").read().rpartition(")")[2].split()[0] == "T"
                       for t in os.listdir(tasks))
        except (FileNotFoundError, ProcessLookupError):  # one of them has just ended
            return False
    await_(stopped, f"{what} to stand still")


def refused(status, call, *args, **more):
    """call(*args) must fail with this status; returns the sentence."""
    try:
        call(*args, **more)
    except McshmError as e:
        equal(e.status, status, f"status of {e}")
        return e.text
    raise AssertionError(f"{call.__name__}{args[:3]} succeeded, wanted status {status}")


def skip(reason):
    print(reason)
    sys.exit(77)


class Client(ObjectCalls):
    """One connection with one queue."""

    def __init__(self, path, name="test", caller_max=0, strict=False, queue=None, **more):
        o = Options()
        lib.mcshm_options_init(C.byref(o))
        o.socket_path, o.name = path.encode(), name.encode()
        o.caller_max, o.strict = caller_max, strict
        for field, value in more.items():
            setattr(o, field, value)
        self.c, self.q = C.c_void_p(), C.c_void_p()
        self.do("connect", C.byref(o), C.byref(self.c))
        if queue is None:
            queue = {}
        qo = QueueOptions(size=C.sizeof(QueueOptions), **queue)
        try:
            self.do("queue_open", self.c, C.byref(qo), C.byref(self.q))
        except McshmError:
            lib.mcshm_close(self.c)
            raise

    def do(self, what, *args):
        status = getattr(lib, "mcshm_" + what)(*args)
        if status != OK:
            raise McshmError(status, what, lib.mcshm_last_error(None).decode())

    def close(self):
        if self.q:
            status = lib.mcshm_queue_close(self.q)
            check(status in (OK, AGENT_DOWN), "queue_close", status)
            self.q = None
        lib.mcshm_close(self.c)
        self.c = None

    def alloc(self, size, align=0, location=None):
        p = C.c_void_p()
        self.do("alloc", self.c, size, align, location, C.byref(p))
        return p.value

    def free(self, p):
        self.do("free", self.c, p)

    def register(self, p, size):
        self.do("register", self.c, p, size)

    def register_gpu(self, p, size):
        self.do("register_gpu", self.c, p, size)

    def gate(self, location=b"cuda:0"):
        g = Gate()
        self.do("gate_create", self.c, location, C.byref(g))
        return g

    def gate_destroy(self, g):
        self.do("gate_destroy", self.c, C.byref(g))

    def record(self, g, stream):
        value = C.c_uint32()
        self.do("gate_record", self.c, C.byref(g), stream, C.byref(value))
        return value.value

    def follow(self, g, stream, value):
        self.do("gate_follow", self.c, C.byref(g), stream, value)

    def unregister(self, p):
        self.do("unregister", self.c, p)

    def register_memfd(self, fd, size):
        p = C.c_void_p()
        self.do("register_memfd", self.c, fd, size, C.byref(p))
        return p.value

    def publish(self, name, flags=0):
        self.do("segment_publish", self.c, name.encode(), flags)

    def withdraw(self):
        self.do("segment_withdraw", self.c)

    def buffer(self, p, size, access=RW):
        address = C.c_uint64()
        self.do("buffer_publish", self.c, p, size, access, C.byref(address))
        return address.value

    def unbuffer(self, p, size):
        self.do("buffer_withdraw", self.c, p, size)

    def revoke(self, p, size):
        self.do("revoke", self.c, p, size)

    def open(self, name):
        s = C.c_uint32()
        self.do("segment_open", self.c, name.encode(), C.byref(s))
        return s.value

    def close_segment(self, segment):
        self.do("segment_close", self.c, segment)

    def describe(self, segment):
        n = C.c_size_t(64)
        buffers = (Buffer * 64)()
        self.do("segment_describe", self.c, segment, buffers, C.byref(n))
        return list(buffers[:min(n.value, 64)])

    def map(self, segment, address, size):
        p = C.c_void_p()
        self.do("map", self.c, segment, address, size, C.byref(p))
        return p.value

    def unmap(self, p):
        self.do("unmap", self.c, p)

    def batch(self, tasks=1):
        b = C.c_uint64()
        self.do("batch_alloc", self.q, tasks, C.byref(b))
        return b.value

    def batch_free(self, b):
        self.do("batch_free", self.q, b)

    def request(self, op, local, segment, remote, length, **more):
        return Request(opcode=op, priority=more.pop("priority", NORMAL), local=local,
                       segment=segment, remote_address=remote & (1 << 64) - 1,
                       length=length & (1 << 64) - 1, **more)

    def submit(self, b, *requests):
        self.do("submit", self.q, b, (Request * len(requests))(*requests), len(requests))

    def submit_list(self, b, request, pieces):
        self.do("submit_list", self.q, b, C.byref(request),
                (Piece * len(pieces))(*[Piece(*p) for p in pieces]), len(pieces))

    def submit_stride(self, b, request, *stride):
        self.do("submit_stride", self.q, b, C.byref(request), C.byref(Stride(*stride)))

    def notify(self, b, segment, name, message, **more):
        r = Request(segment=segment, priority=NORMAL, notify=C.pointer(note(name, message)), **more)
        self.do("submit_notify", self.q, b, C.byref(r))

    def wait(self, b, seconds=PATIENCE):
        self.do("batch_wait", self.q, b, int(seconds * 1e6))

    def task(self, b, index=0):
        s = TaskStatus()
        self.do("task_poll", self.q, b, index, C.byref(s))
        return s

    def cancel(self, b, index=0):
        self.do("cancel", self.q, b, index)

    def run(self, request, pieces=None, stride=None):
        """Submits one task, waits, frees the batch; returns its status."""
        b = self.batch()
        try:
            if pieces is not None:
                self.submit_list(b, request, pieces)
            elif stride is not None:
                self.submit_stride(b, request, *stride)
            else:
                self.submit(b, request)
            self.wait(b)
            return self.task(b)
        finally:
            self.batch_free(b)

    def write(self, local, segment, remote, length, **more):
        return self.run(self.request(WRITE, local, segment, remote, length, **more))

    def read(self, local, segment, remote, length, **more):
        return self.run(self.request(READ, local, segment, remote, length, **more))

    def recv(self, seconds=PATIENCE):
        n = Notification()
        self.do("notify_recv", self.c, C.byref(n), int(seconds * 1e6))
        return C.string_at(n.name, n.name_size), C.string_at(n.message, n.message_size)

    def info(self):
        i = Info()
        self.do("get_info", self.c, C.byref(i))
        return i

    def stats(self):
        s = Stats()
        self.do("get_stats", self.c, C.byref(s))
        return s


def after(word=None, value=0, signal=None, signal_value=0):
    """A request's order: begins when *word has come to value, sets *signal at its end. Words are addresses."""
    return C.pointer(Order(word, value, signal_value, signal))


def note(name, message):
    a, b = C.create_string_buffer(name, len(name)), C.create_string_buffer(message, len(message))
    n = Notification(C.cast(a, C.c_void_p), len(name), C.cast(b, C.c_void_p), len(message))
    n.keep = (a, b)
    return n


def fill(p, size, byte):
    C.memset(p, byte, size)


def peek(p, size):
    return C.string_at(p, size)


def public_folder():
    """A folder that every user may enter: the test's own lies where only root can go."""
    folder = tempfile.mkdtemp(dir="/tmp", prefix="mcshm-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o755)
    return folder


def die_with_the_test():
    C.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: a failed test leaves no agent


class Agent:
    """mcshmd in a folder of its own."""
    made = []

    def __init__(self, *settings, **more):
        Agent.made.append(self)
        self.dir = more.get("dir")
        if self.dir is None:
            self.dir = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="a")
            atexit.register(shutil.rmtree, self.dir, ignore_errors=True)
        self.socket = os.path.join(self.dir, "s")
        self.log = os.path.join(self.dir, "log")
        self.settings = ("pool.size=256M", "pool.extent_size=2M", "admin.listen=127.0.0.1:0",
                         "agent.socket=" + self.socket) + settings + \
            tuple(os.environ.get("AGENT_SETTINGS", "").split())
        self.prefix = more.get("prefix", [])
        self.process = None
        if more.get("start", True):
            self.start()

    def command(self, *more):
        words = self.prefix + [os.path.join(B, "bin/mcshmd")]
        for s in self.settings:
            words += ["--set", s]
        return words + list(more)

    def start(self):
        self.launch()
        self.await_ready()

    def launch(self):
        """Starts it without waiting until it is ready. From a thread that lives as long as the agent."""
        self.ready, w = os.pipe()
        os.set_inheritable(w, True)
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "").replace(":detect_leaks=0", "")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command("--ready-fd", str(w)), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, pass_fds=(w,), env=env,
                                            preexec_fn=self.before)
        os.close(w)

    def before(self):
        """Runs in the agent's process before mcshmd does."""
        die_with_the_test()

    def await_ready(self):
        ready = os.read(self.ready, 1)  # "" when it ended instead
        os.close(self.ready)
        if ready != b"R":
            self.process.wait()
            raise AssertionError("the agent does not start: " + self.text())

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def alive(self):
        return self.process.poll() is None

    def pid(self):
        return self.process.pid

    def stop(self):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        stop_all_of(self.pid(), "the agent")

    def thaw(self):
        os.kill(self.pid(), signal.SIGCONT)

    def ask(self, *words):
        """What `mcshm --json WORDS` says."""
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        p = subprocess.run([os.path.join(B, "bin/mcshm"), "--socket", self.socket, "--json", *words],
                           capture_output=True, text=True, env=env)
        check(p.returncode == 0, "mcshm", words, p.stderr)
        return json.loads(p.stdout)

    def status(self):
        return self.ask("status")

    def counter(self, name):
        return int(self.status()["counters"][name])

    def fds(self):
        """Open descriptors, once their number stands still: a session may be on its way out."""
        last, same = None, 0
        while same < 10:
            n = len(os.listdir(f"/proc/{self.pid()}/fd"))
            same = same + 1 if n == last else 0
            last = n
            time.sleep(0.002)
        return last

    def empty(self):
        """No session but the asking one, no extent, no segment."""
        s = self.status()
        return s["sessions"] == 1 and s["pool"]["extents"] == 0 and s["pool"]["used"] == 0 and \
            s["segments"] == 0

    def finish(self):
        """The last check of each scenario: nothing leaked, a clean stop, no sanitizer report."""
        check(self.alive(), "the agent died:", self.text())
        await_(self.empty, "sessions and memory to go: " + json.dumps(self.status()))
        equal(self.stop(), 0, "exit status of the agent: " + self.text())
        check(not os.path.exists(self.socket), "the socket is still there")


class Supervised(Agent):
    """The same under `mcshmd --supervise`: `process` is the supervisor, pid() the present agent's."""

    def command(self, *more):
        words = super().command(*more)
        return words[:len(self.prefix) + 1] + ["--supervise"] + words[len(self.prefix) + 1:]

    def pid(self):
        """0 while there is none."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        children = open(path).read().split()
        return int(children[0]) if children else 0

    def kill_agent(self, how=signal.SIGKILL):
        """Kills the agent, which the supervisor follows up; returns the pid that was."""
        pid = await_(self.pid, "an agent to kill")
        os.kill(pid, how)
        return pid

    def await_next(self, before):
        """Until another agent than `before` answers; returns its status."""
        await_(lambda: self.pid() not in (0, before), "the supervisor to start another agent: " + self.text())
        return self.status()

    def again(self):
        """Tells the supervisor to restart the agent in good order; returns the pid that was."""
        pid = await_(self.pid, "an agent")
        self.process.send_signal(signal.SIGUSR2)
        return pid

    def calm(self):
        """A restart in good order: the next kill is the first again, and followed up at once."""
        self.await_next(self.again())


class Child:
    """A forked process that runs f(pipe); f talks by pipe.send(line) and pipe.recv()."""

    def __init__(self, f):
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                a.close()
                f(Pipe(b))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        b.close()
        self.pipe = Pipe(a)

    def kill(self, how=signal.SIGKILL):
        os.kill(self.pid, how)
        return os.waitpid(self.pid, 0)[1]

    def freeze(self):
        stop_all_of(self.pid, "a child")

    def thaw(self):
        os.kill(self.pid, signal.SIGCONT)

    def join(self):
        equal(os.waitpid(self.pid, 0)[1], 0, "exit status of a child")


class Pipe:
    def __init__(self, s):
        self.s = s
        s.settimeout(3 * PATIENCE)

    def send(self, *values):
        self.s.send(json.dumps(values).encode())

    def recv(self):
        data = self.s.recv(65536)
        check(data, "the other process is gone")
        return json.loads(data)


class Raw:
    """A connection that speaks shm/message.h by hand."""
    MAGIC = 0x4d485343

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(PATIENCE)
        self.s.connect(path)

    def send(self, type_, body=b"", fds=(), magic=MAGIC, version=2, length=None, status=0, id_=1):
        h = struct.pack("<IHHIIII", magic, version, type_, 24 + len(body) if length is None else length,
                        id_, status, 0)
        self.raw(h + body, fds)

    def raw(self, data, fds=()):
        socket.send_fds(self.s, [data], list(fds)) if fds else self.s.send(data)

    def recv(self):
        """(type, status, body, fds), or None when the agent has hung up."""
        try:
            data, fds, _, _ = socket.recv_fds(self.s, 16384, 4)
        except ConnectionResetError:
            return None
        if not data:
            return None
        _, _, type_, _, _, status, _ = struct.unpack("<IHHIIII", data[:24])
        return type_, status, data[24:], fds

    def hello(self, abi=2):
        self.send(1, struct.pack("<IIQ256s", abi, 0, 0, b"raw"))
        return self.recv()

    def closed(self):
        """Has the agent ended this session? Reads what it still had to say."""
        while True:
            m = self.recv()
            if m is None:
                return True
            for fd in m[3]:
                os.close(fd)
