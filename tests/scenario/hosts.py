# SPDX-License-Identifier: Apache-2.0
"""Hosts, cables and faults for scenario tests: network namespaces with an agent in each.

    a, b = Net("a", "b", rails=2)         two hosts with two cables between them
    agent = a.agent("tcp.checksum=off")   mcshmd inside host a
    owner = Owner(agent, "name", 1 << 20) a client of it that publishes memory

Clients talk to their agent over a Unix socket, which namespaces do not part, so all of them may live in the
test's own process, and it sees the memory of both ends. Two hosts are cabled directly; more of them, or
switch=True, by one bridge a rail. Host number k has 10.77.RAIL.k and fd00:77:RAIL::k on its interface
rRAIL. Namespaces go with the test; those that a killed test left are removed by the next one.
"""
import collections
import contextlib
import http.client
import ipaddress
import itertools
import random
import re
import shlex
import threading

from mcshm import *  # noqa: F401,F403

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
PORT = 7000
libc = C.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000

if os.geteuid() != 0:
    skip("needs root, for network namespaces")
for tool in ("ip", "iptables", "ip6tables", "tc", "ss"):
    if shutil.which(tool) is None:
        skip(f"needs {tool}")
# A test that is told to end gives its namespaces back, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def command(words, **more):
    if isinstance(words, str):
        words = shlex.split(words)
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run(words, capture_output=True, text=True, env=env, **more)


def run(words, **more):
    """Runs a command that must succeed; returns what it wrote."""
    p = command(words, **more)
    check(p.returncode == 0, words, "failed:", p.stderr or p.stdout)
    return p.stdout


def enter(fd):
    """Moves the calling thread into a network namespace."""
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(C.get_errno(), "setns")


def sweep():
    """Removes namespaces whose test is no more."""
    for line in run("ip netns list").splitlines():
        m = re.match(r"mcshm-(\d+)-", line)
        if m and not os.path.exists(f"/proc/{m[1]}"):
            command(["ip", "netns", "del", line.split()[0]])


class Net:
    serial = itertools.count()

    def __init__(self, *names, rails=1, ipv4=True, ipv6=False, mtu=None, switch=None):
        sweep()
        self.serial, self.rails, self.ipv4, self.ipv6 = next(Net.serial), rails, ipv4, ipv6
        self.namespaces = []
        atexit.register(self.remove)
        if command(["ip", "netns", "add", self.named("probe")]).returncode != 0:
            skip("this kernel or sandbox does not allow network namespaces")
        run(["ip", "netns", "del", self.named("probe")])
        self.hosts = [Host(self, name, k + 1) for k, name in enumerate(names)]
        if switch is None:
            switch = len(names) > 2
        middle = self.namespace("switch") if switch else None
        for rail in range(rails):
            r = f"r{rail}"
            if middle:
                run(f"ip -n {middle} link add {r} type bridge")
                run(f"ip -n {middle} link set {r} up")
                for h in self.hosts:
                    port = f"{r}p{h.number}"
                    run(f"ip link add {r} netns {h.ns} type veth peer name {port} netns {middle}")
                    run(f"ip -n {middle} link set {port} master {r}")
                    run(f"ip -n {middle} link set {port} up")
            elif len(self.hosts) == 2:
                one, other = self.hosts
                run(f"ip link add {r} netns {one.ns} type veth peer name {r} netns {other.ns}")
            else:  # one host alone
                return
            for h in self.hosts:
                if mtu:
                    run(f"ip -n {h.ns} link set {r} mtu {mtu}")
                h.address_again(rail)
        for h in self.hosts:
            for rail in range(rails):
                h.carrier(rail)

    def __iter__(self):
        return iter(self.hosts)

    def named(self, name):
        return f"mcshm-{os.getpid()}-{self.serial}{name}"

    def namespace(self, name):
        ns = self.named(name)
        run(["ip", "netns", "add", ns])
        self.namespaces.append(ns)
        run(f"ip -n {ns} link set lo up")
        return ns

    def remove(self):
        for ns in self.namespaces:
            command(["ip", "netns", "del", ns])
        self.namespaces = []


class Host:
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))

    def __init__(self, net, name, number):
        self.net, self.name, self.number = net, name, number
        self.ns = net.namespace(name)
        self.fd = os.open(f"/run/netns/{self.ns}", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, words, **more):
        if isinstance(words, str):
            words = shlex.split(words)
        return run(["ip", "netns", "exec", self.ns] + words, **more)

    @contextlib.contextmanager
    def inside(self):
        """The calling thread is in this host meanwhile: sockets that it makes belong there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(self.fd)
        try:
            yield self
        finally:
            enter(home)
            os.close(home)

    def address(self, rail=0, ipv6=None):
        if ipv6 if ipv6 is not None else not self.net.ipv4:
            return str(ipaddress.ip_address(f"fd00:77:{rail}::{self.number}"))
        return f"10.77.{rail}.{self.number}"

    def at(self, port=PORT, rail=0, ipv6=None):
        """address:port, as a configuration takes it."""
        address = self.address(rail, ipv6)
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def agent(self, *settings, **more):
        return HostAgent(self, *settings, **more)

    # -- faults; each has a way back

    def address_again(self, rail):
        """Up, with its addresses: a downed interface loses those of IPv6."""
        run(f"ip -n {self.ns} link set r{rail} up")
        if self.net.ipv4:
            run(f"ip -n {self.ns} addr replace {self.address(rail, False)}/24 dev r{rail}")
        if self.net.ipv6 or not self.net.ipv4:
            run(f"ip -n {self.ns} addr replace {self.address(rail, True)}/64 dev r{rail} nodad")

    def carrier(self, rail):
        """Returns when the interface carries."""
        def up():
            return json.loads(run(f"ip -n {self.ns} -j link show r{rail}"))[0]["operstate"] == "UP"
        await_(up, f"r{rail} of {self.name} to come up")

    def down(self, rail):
        run(f"ip -n {self.ns} link set r{rail} down")

    def up(self, rail):
        self.address_again(rail)

    def filter(self, rule, rail=None, tools=("iptables", "ip6tables")):
        """Adds a rule for what comes in, such as "-j DROP", before all others."""
        where = f"-i r{rail} " if rail is not None else ""
        for tool in tools:
            run(f"ip netns exec {self.ns} {tool} -w -I INPUT {where}{rule}")

    def drop(self, rail=None):
        """Everything that comes in is lost, without a word. For both ways: on both hosts."""
        self.filter("-j DROP" if rail is not None else "! -i lo -j DROP", rail)

    def lose(self, probability):
        self.filter(f"-m statistic --mode random --probability {probability} -j DROP")

    def reset(self, rail=None):
        """Whoever sends a TCP segment here gets an RST."""
        self.filter("-p tcp -j REJECT --reject-with tcp-reset", rail)

    def heal(self):
        for tool in ("iptables", "ip6tables"):
            run(f"ip netns exec {self.ns} {tool} -w -F")

    def dropped(self):
        """Packets that the filter's rules have met, in order of the rules."""
        out = run(f"ip netns exec {self.ns} iptables -w -nvxL INPUT").splitlines()[2:]
        return [int(line.split()[0]) for line in out]

    def throttle(self, rail, rate):
        """What this host sends on a rail, such as "100mbit"; None: no limit any more."""
        if rate is None:
            command(f"tc -n {self.ns} qdisc del dev r{rail} root")  # there may be none
        else:
            run(f"tc -n {self.ns} qdisc replace dev r{rail} root tbf rate {rate} burst 256k latency 100ms")

    def ports(self, first, last):
        """The ephemeral ports."""
        self.write("/proc/sys/net/ipv4/ip_local_port_range", f"{first} {last}")

    def write(self, path, text):
        with self.inside(), open(path, "w") as f:
            f.write(text)

    # -- what can be seen from outside the agent

    def traffic(self, rail):
        """(bytes received, bytes sent) on a rail."""
        with self.inside(), open("/proc/thread-self/net/dev") as f:
            for line in f:
                if line.split(":")[0].strip() == f"r{rail}":
                    words = line.split(":")[1].split()
                    return int(words[0]), int(words[8])
        raise AssertionError(f"no r{rail}")

    def bytes(self):
        """(bytes received, bytes sent) on all rails."""
        both = [self.traffic(rail) for rail in range(self.net.rails)]
        return sum(b[0] for b in both), sum(b[1] for b in both)

    def sockets(self, state):
        """[(local port, remote port)] of TCP sockets in a state: 1 ESTABLISHED, 6 TIME_WAIT, 10 LISTEN."""
        found = []
        with self.inside():
            for name in ("tcp", "tcp6"):
                with open(f"/proc/thread-self/net/{name}") as f:
                    for line in list(f)[1:]:
                        words = line.split()
                        if int(words[3], 16) == state:
                            found.append(tuple(int(w.split(":")[1], 16) for w in words[1:3]))
        return found

    def connect(self, to, seconds=PATIENCE):
        """A raw TCP connection from inside this host to (address, port)."""
        with self.inside():
            family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
            s = socket.socket(family, socket.SOCK_STREAM)
        s.settimeout(seconds)
        s.connect(to)
        return s


class HostAgent(Agent):
    """mcshmd inside a host. Settings given come after the kit's own and win."""
    all = []

    def __init__(self, host, *settings, **more):
        HostAgent.all.append(self)
        self.host = host
        self.port = more.pop("port", PORT)
        own = ["pool.size=128M", "pool.extent_size=8M", "engine.idle=sleep",
               f"engine.cores={next(Host.cores)}", "peer.allow_insecure=yes", "meta.backend=p2p",
               ("peer.listen=0.0.0.0:" if host.net.ipv4 else "peer.listen=[::]:") + str(self.port)]
        self.address = more.pop("address", host.at(self.port))
        super().__init__(*own, *settings, **more)

    def before(self):
        super().before()
        enter(self.host.fd)

    def is_p2p(self):
        return [s for s in self.settings if s.startswith("meta.backend=")][-1] == "meta.backend=p2p"

    def names(self, segment):
        """What clients of other agents call a segment of this one."""
        return f"{self.address}/{segment}" if self.is_p2p() else segment

    def rails(self, peer=None):
        rails = self.ask("ls", "rails")["rails"]
        return [r for r in rails if peer is None or r["peer"] == peer.address]

    def rail(self, peer, number):
        """The reports, one an engine, of the rail whose both ends are on interface rNUMBER."""
        mine, theirs = self.host.address(number), peer.host.address(number)
        found = [r for r in self.rails() if mine in r["local"] and
                 r["remote"].rpartition(":")[0].strip("[]") == theirs]
        check(found, f"no rail {number} to {peer.address} among", self.rails())
        return found

    def rail_states(self, peer, number):
        return {r["state"] for r in self.rail(peer, number)}

    def peers(self):
        return self.ask("ls", "peers")["peers"]

    def peer(self, other):
        """What this agent knows of another's present life, or None."""
        found = [p for p in self.peers() if p["address"] == other.address and p["state"] != "defunct"]
        check(len(found) < 2, "two entries of one peer:", found)
        return found[0] if found else None

    def sees(self, other):
        """Are the two connected?"""
        peer = self.peer(other)
        return peer is not None and peer["state"] == "up"

    def pings(self, other, count=1):
        """Does `mcshm ping` find it alive?"""
        return command([os.path.join(B, "bin/mcshm"), "--socket", self.socket, "ping", other.address,
                        "--count", str(count)]).returncode == 0

    def nodelay(self):
        """The values of TCP_NODELAY among its connections with other agents."""
        values = set()
        pid = os.pidfd_open(self.process.pid)
        for name in os.listdir(f"/proc/{self.process.pid}/fd"):
            fd = libc.syscall(438, pid, int(name), 0)  # pidfd_getfd
            if fd < 0:
                continue
            try:
                s = socket.socket(fileno=fd)
            except OSError:
                os.close(fd)
                continue
            if s.family != socket.AF_UNIX and s.type == socket.SOCK_STREAM and \
                    not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                values.add(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            s.close()
        os.close(pid)
        return values

    def rss(self):
        """Bytes of memory of its own, without what it shares with clients."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * KiB

    def metric(self, name):
        """A value of /metrics, asked where only this host's own can."""
        host, _, port = self.status()["admin"]["listen"].rpartition(":")
        with self.host.inside():
            h = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE)
            h.request("GET", "/metrics")
            text = h.getresponse().read().decode()
            h.close()
        for line in text.splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"/metrics has no {name}")

    def counted(self, *names):
        """The sum of some counters."""
        counters = self.status()["counters"]
        return sum(int(counters[n]) for n in names)


def explain(*failure):
    """A test that fails shows what its agents had to say, and last why it failed."""
    for agent in [a for a in HostAgent.all if a.process is not None and os.path.exists(a.log)][-4:]:
        code = agent.process.poll()
        print(f"-- the agent of host {agent.host.name},", "alive" if code is None else f"ended with {code}", flush=True)
        lines = 80 if "Sanitizer" in agent.text() else 12
        print("".join(agent.text().splitlines(True)[-lines:]), flush=True)
    sys.__excepthook__(*failure)


sys.excepthook = explain


def start_fails(host, *settings, port=PORT):
    """The agent must refuse to start with these; returns what it says."""
    agent = HostAgent(host, *settings, port=port, start=False)
    with open(agent.log, "ab") as log:
        p = subprocess.Popen(agent.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             preexec_fn=agent.before,
                             env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    try:
        code = p.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        raise AssertionError(f"it runs with {settings}")
    check(code == 1, f"exit status {code} with {settings}:", agent.text())
    return agent.text()


def finish(*agents):
    """The last check of each scenario, for all of its agents."""
    for agent in agents:
        check(agent.alive(), "the agent died:", agent.text())
    for agent in agents:
        agent.finish()


class Owner:
    """A client that publishes one buffer, zeroed."""

    def __init__(self, agent, name, size, access=RW, flags=0):
        self.agent, self.name, self.size = agent, name, size
        self.c = Client(agent.socket, name)
        self.p = self.c.alloc(size)
        fill(self.p, size, 0)
        self.c.publish(name, flags)
        self.at = self.c.buffer(self.p, size, access)
        self.names = agent.names(name)

    def peek(self, offset=0, size=None):
        return peek(self.p + offset, self.size - offset if size is None else size)

    def close(self):
        self.c.close()


class Chunk:
    """Bytes to send, cheap to make and all different: no slice can pass for another."""
    LENGTH = 1048573  # a prime, so that it falls in step with no slice

    def __init__(self, rng, size):
        block = rng.randbytes(min(size, Chunk.LENGTH))
        self.bytes = (block * (size // len(block) + 1))[:size]


def put(p, data):
    C.memmove(p, data, len(data))


class Traffic(threading.Thread):
    """A client that writes and reads back all the time and compares every byte at both ends.

    Each round writes `lanes` pieces of `size` bytes at once, compares what the owner has, then reads them
    back. Unless tolerant, a task that does not end COMPLETED is an error, and so is another path than one of `paths`.
    finish() raises what went wrong.
    """

    def __init__(self, agent, owner, lanes=4, size=MiB, offset=0, tolerant=False, deadline_us=0, seed=1,
                 fresh=None, paths=("tcp",), strict=False):
        super().__init__(daemon=True)
        self.owner, self.lanes, self.size, self.offset = owner, lanes, size, offset
        self.tolerant, self.deadline_us, self.fresh = tolerant, deadline_us, fresh
        self.paths, self.took = paths, collections.Counter()
        self.rng = random.Random(seed)
        self.c = Client(agent.socket, "traffic", strict=strict)
        self.out, self.back = self.c.alloc(lanes * size), self.c.alloc(lanes * size)
        self.segment = self.c.open(owner.names)
        self.rounds, self.bytes, self.failures = 0, 0, collections.Counter()
        self.slowest = 0.0
        self.error, self.stopping = None, False
        self.start()

    def run(self):
        try:
            while not self.stopping:
                self.round()
        except BaseException as e:  # told by finish()
            self.error = e

    def move(self, op, local):
        """All lanes one way; the lanes that were moved."""
        began = time.monotonic()
        b = self.c.batch(self.lanes)
        for lane in range(self.lanes):
            self.c.submit(b, self.c.request(op, local + lane * self.size, self.segment,
                                            self.owner.at + self.offset + lane * self.size, self.size,
                                            deadline_us=self.deadline_us))
        self.c.wait(b, 3 * PATIENCE)
        self.slowest = max(self.slowest, time.monotonic() - began)
        good = []
        for lane in range(self.lanes):
            t = self.c.task(b, lane)
            if t.state == COMPLETED:
                self.took[PATHS[t.path]] += 1
                check((t.bytes, PATHS[t.path] in self.paths, t.remote_quiesced) == (self.size, True, True),
                      "a completed task:", t.bytes, PATHS[t.path], t.remote_quiesced)
                good.append(lane)
            else:
                check(self.tolerant, "a task ended", t.state, "error", t.error)
                check(t.error != OK, "a failed task without a cause", t.state)
                self.failures[t.state, t.error] += 1
        self.c.batch_free(b)
        return good

    def round(self):
        data = Chunk(self.rng, self.size * self.lanes).bytes
        put(self.out, data)
        written = self.move(WRITE, self.out)

        def part(lane):
            return data[lane * self.size:(lane + 1) * self.size]
        for lane in written:
            check(self.owner.peek(self.offset + lane * self.size, self.size) == part(lane),
                  "a WRITE that completed, and other bytes at its target; lane", lane)
        fill(self.back, self.size * self.lanes, 0)
        for lane in self.move(READ, self.back):
            if lane in written:
                check(peek(self.back + lane * self.size, self.size) == part(lane),
                      "a READ that completed brought other bytes; lane", lane)
                self.bytes += 2 * self.size
        if written:
            self.rounds += 1

    def progress(self, rounds=2, seconds=PATIENCE):
        """Returns when so many more rounds are through."""
        wanted = self.rounds + rounds
        await_(lambda: self.error or self.rounds >= wanted, f"{rounds} rounds of traffic", seconds)
        if self.error:
            raise self.error

    def finish(self):
        self.stopping = True
        self.join(4 * PATIENCE)
        check(not self.is_alive(), "traffic that does not end")
        if self.error:
            raise self.error
        self.c.close()
        return self


def psk_file(folder, name="psk", text="a secret that all agents of a test share"):
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, text.encode() + b"\n")
    os.close(fd)
    return path
