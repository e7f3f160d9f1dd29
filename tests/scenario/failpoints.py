# SPDX-License-Identifier: Apache-2.0
"""Failpoints for scenario tests (shm/failpoint.h; tests/README.md tells how to use them).

    points = Points("agent")                  what the points of a process do, and how often it passed them
    agent = Agent(prefix=points.prefix())     a process that has them
    points.arm("queue_init", FAIL, errno.ENOMEM)
    mix = Mix(agent, "mix", "owner")          a client in C (mixclient.c)

Import it before anything else of the kit: plain runs then take agent, library and tools from build/fail.
"""
import errno
import mmap
import os
import select

if not os.environ.get("SAN"):
    os.environ["B"] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/fail")

from mcshm import *  # noqa: E402,F401,F403

OFF, KILL, STOP, DELAY, FAIL = range(5)
HANG = 4 * PATIENCE  # seconds; what takes so long hangs


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    # leaks of clients count; those of Python do not
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "").replace(":detect_leaks=0", "")
    return {**env, **more}


class Points:
    """The page of one process, or of several that come one after the other."""
    all = None

    def __init__(self, name):
        self.path = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="f"), name)
        atexit.register(shutil.rmtree, os.path.dirname(self.path), ignore_errors=True)
        # any process that has the points describes them in the file; this one is quick
        subprocess.run([os.path.join(B, "bin/mixclient"), "x", "points", "x"], env=self.env(), check=True,
                       stdout=subprocess.DEVNULL)
        with open(self.path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 0)
        count, size = struct.unpack_from("<II", self.page, 8)
        equal(size, 128, "bytes of an entry")
        self.at = {}
        for i in range(count):
            at = 64 + i * size
            self.at[self.text(at, 40)] = at

    def text(self, at, size):
        return self.page[at:at + size].rstrip(b"\0").decode()

    def env(self):
        return environment(MCSHM_FAILPOINTS_FILE=self.path)

    def prefix(self):
        return ["env", "MCSHM_FAILPOINTS_FILE=" + self.path]

    def names(self, side, reach, fails=False):
        return [n for n, at in self.at.items() if self.text(at + 40, 8) == side and
                self.text(at + 48, 8) == reach and
                (not fails or struct.unpack_from("<I", self.page, at + 56)[0])]

    def arm(self, name, action, arg=errno.ENOMEM, first=1, times=1):
        at = self.at[name]
        struct.pack_into("<I", self.page, at + 60, OFF)
        struct.pack_into("<IIII", self.page, at + 64, arg, first, times, 0)
        struct.pack_into("<I", self.page, at + 60, action)

    def disarm(self, *names):
        for name in names or self.at:
            struct.pack_into("<I", self.page, self.at[name] + 60, OFF)

    def passes(self, name):
        return struct.unpack_from("<Q", self.page, self.at[name] + 80)[0]

    def acted(self, name):
        return struct.unpack_from("<Q", self.page, self.at[name] + 88)[0]

    def reached(self, side, reach):
        """Every point of the workload must have been passed."""
        missed = [n for n in self.names(side, reach) if self.passes(n) == 0]
        check(not missed, f"points of {side}/{reach} that nothing has passed:", missed)


class Mix:
    """A client of mixclient.c. Its points are those of `points`, or of nobody."""
    nobody = None

    def __init__(self, agent, mode, name, *words, points=None, shim=None):
        if points is None:
            Mix.nobody = Mix.nobody or Points("nobody")
            points = Mix.nobody
        self.mode = mode
        self.p = subprocess.Popen((shim.prefix() if shim else []) +
                                  [os.path.join(B, "bin/mixclient"), agent.socket, mode, name, *words],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  bufsize=0, env=environment() if shim else points.env(), preexec_fn=die_with_the_test)
        self.said = ""
        atexit.register(self.end_it)
        if mode != "mix":
            line = self.line()
            check(line.startswith("ready"), mode, "does not start:", self.said)

    def end_it(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()

    def line(self):
        """The next line that it says, but of what was refused and is tried again."""
        if not select.select([self.p.stdout], [], [], HANG)[0]:
            raise AssertionError(f"{self.mode} says nothing: {self.said}")
        line = self.p.stdout.readline().decode()
        self.said += line
        return self.line() if line.startswith("refused: ") else line.strip()

    def ask(self, words):
        self.p.stdin.write(words.encode() + b"\n")
        self.p.stdin.flush()
        return self.line()

    def check(self):
        """The owner's guards are whole."""
        equal(self.ask("check"), "ok", "the owner's memory: " + self.said)

    def progress(self, rounds=2):
        """So many more rounds of `beside`."""
        wanted = int(self.ask("rounds")) + rounds
        await_(lambda: int(self.ask("rounds")) >= wanted, "others' transfers to go on")

    def wait(self):
        """The exit code, within a time that nothing may take."""
        try:
            said, _ = self.p.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.mode} hangs: {self.said}") from None
        self.said += said.decode(errors="replace")
        atexit.unregister(self.end_it)
        return self.p.returncode

    def end(self, code=0):
        """Says that it shall end."""
        equal(self.wait(), code, f"exit code of {self.mode}: {self.said}")

    def stopped(self):
        """Awaits that it stands still at a point."""
        def look():
            with open(f"/proc/{self.p.pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[0] in "Tt"
        await_(look, f"{self.mode} to stop")


def mix(agent, *words, points=None, shim=None, name="owner", codes=(0, 3)):
    """Runs one to its end; returns what it said."""
    m = Mix(agent, "mix", name, *words, points=points, shim=shim)
    code = m.wait()
    check(code in codes, f"exit code {code} of mix, wanted {codes}:", m.said)
    return m.said


def holdings(agent):
    """What the agent has at present, for a comparison: sessions, memory, segments, descriptors."""
    s = agent.status()
    exports = sum(p["exports"] for p in agent.peers()) if hasattr(agent, "peers") else 0
    return (s["sessions"], s["pool"]["extents"], s["pool"]["used"], s["segments"], exports, agent.fds())


def as_before(agent, before, what, fewer=False):
    """fewer: descriptors of connections that are made anew when they are wanted may be missing."""
    last = []

    def same():
        last[:] = [holdings(agent)]
        return last[0] == before or (fewer and last[0][:-1] == before[:-1] and last[0][-1] < before[-1])
    await_(same, lambda: f"{what}: sessions, extents, bytes, segments, exports, fds were {before}, are {last}")


SETTINGS = ("engine.idle=sleep", "engine.spin_us=0", "session.inbox_size=16K", "admin.mode=off")


def explain_failpoints(*failure):
    """A test that fails shows what its agents had to say last."""
    for agent in Agent.made:
        if os.path.exists(agent.log):
            print("".join(agent.text().splitlines(True)[-25:]), flush=True)
    sys.__excepthook__(*failure)


sys.excepthook = explain_failpoints
