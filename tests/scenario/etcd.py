# SPDX-License-Identifier: Apache-2.0
"""A real etcd of the test's own, of one or more members, and metactl (store/meta by hand).

    etcd = Etcd()                                   one member on loopback
    etcd = Etcd(3)                                  three
    etcd = Etcd(2, places=[("ns1", "10.1.0.1"), ("ns2", "10.1.0.2")])    one a network namespace
    m = Meta("etcd", etcd.url, address="127.0.0.1:7001")
    m.register("name", 7)
"""
import base64
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import atexit

from mcshm import B, PATIENCE, await_, check, die_with_the_test, equal, skip, stop_all_of

ENOENT, EEXIST, EINVAL, ECOMM, ENOSPC, EACCES, EBADMSG, EMSGSIZE, ECANCELED, ENOTSUP = \
    -2, -17, -22, -70, -28, -13, -74, -90, -125, -95
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_ports(n):
    """Ports nobody listened at a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def requires_etcd():
    for tool in ("etcd", "etcdctl"):
        if not shutil.which(tool):
            skip(f"needs {tool}: scripts/deps.sh test installs it")


def b64(data):
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def plain_environment():
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("ETCD")}


class Etcd:
    """members: how many. places: (network namespace or None, address) of each. tls: folder made by certificates()."""

    def __init__(self, members=1, *args, places=None, tls=None, start=True):
        requires_etcd()
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="e")
        atexit.register(shutil.rmtree, self.dir, ignore_errors=True)
        self.places = places or [(None, "127.0.0.1")] * members
        members = len(self.places)
        ports = free_ports(2 * members)
        self.args, self.tls, self.processes = list(args), tls, [None] * members
        scheme = "https" if tls else "http"
        self.urls = [f"{scheme}://{at}:{ports[2 * i]}" for i, (_, at) in enumerate(self.places)]
        self.peers = [f"http://{at}:{ports[2 * i + 1]}" for i, (_, at) in enumerate(self.places)]
        self.user = None
        if start:
            self.start()

    @property
    def url(self):
        return self.urls[0]

    @property
    def endpoints(self):
        return ",".join(self.urls)

    def launch(self, i):
        check(self.processes[i] is None, "member", i, "runs already")
        namespace, _ = self.places[i]
        words = ["ip", "netns", "exec", namespace] if namespace else []
        words += ["etcd", "--name", f"m{i}", "--data-dir", f"{self.dir}/m{i}",
                  "--listen-client-urls", self.urls[i], "--advertise-client-urls", self.urls[i],
                  "--listen-peer-urls", self.peers[i],
                  "--initial-advertise-peer-urls", self.peers[i],
                  "--initial-cluster", ",".join(f"m{k}={u}" for k, u in enumerate(self.peers)),
                  "--initial-cluster-token", os.path.basename(self.dir)]
        if self.tls:
            words += ["--cert-file", f"{self.tls}/server.pem", "--key-file", f"{self.tls}/server.key",
                      "--client-cert-auth", "--trusted-ca-file", f"{self.tls}/ca.pem"]
        with open(f"{self.dir}/log{i}", "ab") as log:
            self.processes[i] = subprocess.Popen(words + self.args, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, env=plain_environment(),
                                                 preexec_fn=die_with_the_test)

    def start(self):
        for i, p in enumerate(self.processes):
            if p is None:
                self.launch(i)
        self.await_ready()

    def await_ready(self):
        def answers():
            for i, p in enumerate(self.processes):
                check(p is None or p.poll() is None, "etcd ended: ", self.log(i))
            return all(self.ctl("get", "ready", member=i, ok=None).returncode == 0
                       for i, p in enumerate(self.processes) if p)
        await_(answers, "etcd to answer", 60)

    def log(self, i=0):
        with open(f"{self.dir}/log{i}", errors="replace") as f:
            return f.read()[-4000:]

    def ctl(self, *words, member=0, ok=True, binary=False, data=None):
        """etcdctl; its output, or with ok=None the finished process."""
        namespace, _ = self.places[member]
        line = ["ip", "netns", "exec", namespace] if namespace else []
        line += ["etcdctl", "--endpoints", self.urls[member], "--command-timeout", "20s"]
        if self.tls:
            line += ["--cacert", f"{self.tls}/ca.pem", "--cert", f"{self.tls}/client.pem",
                     "--key", f"{self.tls}/client.key"]
        if self.user:
            line += ["--user", self.user]
        env = plain_environment()
        env["ETCDCTL_API"] = "3"
        p = subprocess.run(line + list(words), input=data, stdin=None if data else subprocess.DEVNULL,
                           capture_output=True, env=env)
        if ok is None:
            return p
        check(p.returncode == 0, "etcdctl", words, p.stderr.decode(errors="replace"))
        return p.stdout if binary else p.stdout.decode(errors="replace")

    def post(self, path, body, member=0):
        """One call of the JSON gateway, from the test's own namespace."""
        r = urllib.request.Request(self.urls[member] + path, json.dumps(body).encode())
        with NO_PROXY.open(r, timeout=20) as f:
            return json.load(f)

    def keys(self, prefix=""):
        """Raw keys under a prefix, as etcdctl has them."""
        out = json.loads(self.ctl("get", "--prefix", "--keys-only", "-w", "json", "--", prefix))
        return sorted(base64.b64decode(kv["key"]) for kv in out.get("kvs", []))

    def leases(self):
        return len(self.ctl("lease", "list").split("\n")[1:-1])

    def revision(self):
        out = json.loads(self.ctl("get", "no such key", "-w", "json"))
        return out["header"]["revision"]

    def signal(self, i, how):
        os.kill(self.processes[i].pid, how)

    def freeze(self, i=0):
        stop_all_of(self.processes[i].pid, f"etcd {i}")

    def thaw(self, i=0):
        self.signal(i, signal.SIGCONT)

    def kill(self, i=0):
        self.processes[i].kill()
        self.processes[i].wait()
        self.processes[i] = None

    def restart_empty(self):
        """All members at once, with none of the data."""
        for i, p in enumerate(self.processes):
            if p:
                self.kill(i)
            shutil.rmtree(f"{self.dir}/m{i}", ignore_errors=True)
        self.start()

    def stop(self):
        for i, p in enumerate(self.processes):
            if p:
                self.kill(i)


def certificates(*names):
    """A CA, a server's and a client's certificate in a folder. names: IP addresses of the server."""
    d = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="c")
    atexit.register(shutil.rmtree, d, ignore_errors=True)
    names = names or ("127.0.0.1",)

    def openssl(*words):
        p = subprocess.run(["openssl", *words], cwd=d, capture_output=True, text=True,
                           env=plain_environment())
        check(p.returncode == 0, "openssl", words, p.stderr)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca", "-days", "30")
    for who in ("server", "client"):
        with open(f"{d}/{who}.ext", "w") as f:
            f.write("subjectAltName=" + ",".join(f"IP:{n}" for n in names) +
                    "\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-new", *key, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        openssl("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{who}.pem", "-days", "30", "-extfile", f"{who}.ext")
    return d


class Answer(dict):
    __getattr__ = dict.__getitem__


class Meta:
    """metactl: one agent's view of the metadata."""
    serial = 0

    def __init__(self, backend, endpoints, address="127.0.0.1:7000", incarnation=1, namespace=None,
                 env=None, **more):
        self.settings = dict(backend=backend, endpoints=endpoints, address=address,
                             incarnation=incarnation, **more)
        words = ["ip", "netns", "exec", namespace] if namespace else []
        words += [os.path.join(B, "bin/metactl")] + [f"{k}={v}" for k, v in self.settings.items()]
        environment = plain_environment()
        environment.update(env or {})
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "").replace(":detect_leaks=0", "")
        self.errors = tempfile.TemporaryFile(dir=os.environ.get("TMPDIR"))
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=environment, preexec_fn=die_with_the_test)
        self.answers, self.changes, self.rest = {}, [], b""

    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def post(self, command, *words):
        """Sends a command; returns the id under which answer() finds what comes of it."""
        Meta.serial += 1
        line = " ".join([command, str(Meta.serial)] + [w if isinstance(w, str) else str(w) for w in words])
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return str(Meta.serial)

    def read(self, seconds):
        """Takes what has come, waiting so long for the first of it."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        if not data:
            check(False, "metactl ended:", self.process.wait(), self.log())
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            a = Answer(json.loads(line, strict=False))
            if "event" in a:
                self.changes.append((a.name, a.incarnation))
            else:
                self.answers[a.id] = a

    def answer(self, id, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while id not in self.answers:
            if time.monotonic() > end:
                check(False, "no answer within", seconds, "s:", self.log())
            self.read(0.2)
        return self.answers.pop(id)

    def ask(self, command, *words):
        return self.answer(self.post(command, *words))

    @staticmethod
    def word(text):
        return urllib.parse.quote(text, safe="")

    def register(self, name, incarnation=1):
        return self.ask("register", self.word(name), incarnation)

    def unregister(self, name, incarnation=1):
        return self.ask("unregister", self.word(name), incarnation)

    def lookup(self, name, fresh=False):
        return self.ask("lookup", self.word(name), *(["fresh"] if fresh else []))

    def get(self, key):
        a = self.ask("get", self.word(key))
        if "value" in a:
            a["value"] = base64.b64decode(a["value"])
        return a

    def put(self, key, value):
        return self.ask("put", self.word(key), self.word(value))

    def delete(self, key):
        return self.ask("delete", self.word(key))

    def state(self):
        return self.ask("state")

    def await_state(self, seconds=PATIENCE, **wanted):
        """Until the state has these values."""
        last = {}

        def reached():
            last.update(self.state())
            return all(last[k] == v for k, v in wanted.items())
        await_(reached, lambda: f"{wanted}, it is {last}\n{self.log()}", seconds)
        return Answer(last)

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))

    def peak(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        stop_all_of(self.process.pid, "metactl")

    def thaw(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def quit(self):
        """A clean end, which no sanitizer may complain about."""
        self.post("quit")
        self.process.stdin.close()
        while self.process.stdout.read(65536):
            pass
        status = self.process.wait(60)
        equal(status, 0, "exit status of metactl: " + self.log())
