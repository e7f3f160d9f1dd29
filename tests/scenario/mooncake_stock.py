# SPDX-License-Identifier: Apache-2.0
"""Stock Mooncake processes, from the wheel that PyPI has.

The wheel goes into a virtual environment in ${XDG_CACHE_HOME:-~/.cache}/mcshm-tests, once; where it cannot be had the
test is skipped.

    s = Stock()                       one process, P2PHANDSHAKE
    s = Stock("http://...", "name")   with a metadata service
    at = s.register(1 << 20)          any function of mooncake_child.py
    s.call("write", ...); s.wait()    the same in two steps, something may happen in between
"""
import ctypes
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib

from mcshm import COMPLETED, OK, PATHS, PATIENCE, RW, Agent, Client, await_, check, die_with_the_test, equal, skip

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "mooncake-transfer-engine-non-cuda"
BLOCK = 1048573
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mcshm-tests")


def plain_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "ASAN_", "UBSAN_", "MC_")) and
           not k.lower().endswith("_proxy")}
    env.update(MC_FORCE_TCP="1", MC_TCP_BIND_ADDRESS="127.0.0.1", **more)
    return env


class NoMooncake(Exception):
    pass


def stock_python(version=None):
    """The interpreter that has Mooncake, of the newest or a given version; made when there is none."""
    os.makedirs(CACHE, exist_ok=True)
    place = os.path.join(CACHE, "mooncake" + (f"-{version}" if version else ""))
    python = os.path.join(place, "bin/python")
    package = PACKAGE + (f"=={version}" if version else "")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "ASAN_"))}

    def works():
        return subprocess.run([python, "-c", "import mooncake.engine"], env=env, capture_output=True).returncode == 0

    with open(os.path.join(CACHE, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(python) and works():
            return python
        shutil.rmtree(place, ignore_errors=True)
        for command in ([sys.executable, "-m", "venv", place],
                        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package]):
            try:
                p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)
            except (OSError, subprocess.TimeoutExpired) as e:
                raise NoMooncake(str(e)) from None
            if p.returncode != 0:
                lines = (p.stderr or p.stdout).strip().splitlines()
                raise NoMooncake(f"{' '.join(command[-2:])}: {lines[-1] if lines else 'failed'}")
        if not works():
            raise NoMooncake(f"{package} cannot be imported")
    return python


try:
    PYTHON = stock_python()
except NoMooncake as reason:
    skip(f"no Mooncake to test with: {reason}")


class Stock:
    def __init__(self, metadata="P2PHANDSHAKE", name="127.0.0.1:12345", python=PYTHON, **env):
        self.log = tempfile.NamedTemporaryFile("w+", dir=os.environ.get("TMPDIR"), prefix="stock", suffix=".log")
        self.process = subprocess.Popen([python, os.path.join(HERE, "mooncake_child.py")],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, bufsize=1, env=plain_environment(**env),
                                        preexec_fn=die_with_the_test)
        result = self.start(metadata, name)
        check(result == 0, "Mooncake does not start:", self.text())
        host = name.rpartition(":")[0]
        self.name = f"{host}:{self.port()}" if metadata == "P2PHANDSHAKE" else name

    def call(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")

    def wait(self):
        line = self.process.stdout.readline()
        check(line != "", "the Mooncake process is gone:", self.text())
        return json.loads(line)

    def __getattr__(self, function):
        def ask(*words):
            self.call(function, *words)
            return self.wait()
        return ask

    def text(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()[-4000:]

    def freeze(self):
        """SIGSTOP, and all of its threads have stopped."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = f"/proc/{self.process.pid}/task"

        def stopped():
            return all(open(f"{tasks}/{t}/stat").read().rpartition(")")[2].split()[0] == "T"
                       for t in os.listdir(tasks))
        await_(stopped, "Mooncake to stand still")

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


def view(p, size):
    return memoryview((ctypes.c_char * size).from_address(p)).cast("B")


def fill_pattern(p, size, seed):
    """As fill() in mooncake_child.py, into memory of this process."""
    block = random.Random(seed).randbytes(min(BLOCK, size))
    for at in range(0, size, len(block)):
        ctypes.memmove(p + at, block, min(len(block), size - at))


def crc_of(p, size):
    return zlib.crc32(view(p, size))


class HttpMetadata:
    """Mooncake's own metadata server."""

    def __init__(self, port):
        self.port, self.url = port, f"http://127.0.0.1:{port}/metadata"
        self.log = tempfile.NamedTemporaryFile("w+", dir=os.environ.get("TMPDIR"), prefix="meta", suffix=".log")
        self.process = subprocess.Popen([PYTHON, "-m", "mooncake.http_metadata_server", "--port", str(port),
                                         "--host", "127.0.0.1"], env=plain_environment(), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, preexec_fn=die_with_the_test)

    def kill(self):
        self.process.kill()
        self.process.wait()


KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
PUBLIC = 1
agents = []  # of the scenario that runs, for its log


def name_of(agent):
    return re.search(r"mooncake: .* as ([0-9.]+:[0-9]+) \(data on port ([0-9]+)\)", agent.text()).group(1)


def data_port_of(agent):
    return int(re.search(r"\(data on port ([0-9]+)\)", agent.text()).group(1))


def fresh(*settings, **more):
    agents.append(Agent("mooncake.listen=127.0.0.1:0", *settings, **more))
    return agents[-1]


def public(agent, size, name="kv", access=RW):
    """A client with published memory: client, pointer, address."""
    c = Client(agent.socket, name)
    p = c.alloc(size)
    at = c.buffer(p, size, access)
    c.publish(name, PUBLIC)
    return c, p, at


def completed(status, size, what):
    equal((status.state, status.error, status.bytes, PATHS[status.path], status.remote_quiesced),
          (COMPLETED, OK, size, "mooncake", True), what)


def run(*scenarios):
    """All of them, or those that are named on the command line."""
    for scenario in scenarios:
        if len(sys.argv) < 2 or scenario.__name__ in sys.argv[1:]:
            print(scenario.__name__, flush=True)
            agents.clear()
            try:
                scenario()
            except BaseException:
                print("the agent's log:", *(a.text()[-3000:] for a in agents), sep="\n")
                raise
