# SPDX-License-Identifier: Apache-2.0
"""Two agents over RDMA rails in one guest, and what can happen to their devices.

    a, b = sides(rails=2)                   both ends of the rails that guest-net.sh made; any trouble of before is gone
    x, y = a.agent(), b.agent()             mcshmd with devices rxea0, rxea1 and rxeb0, rxeb1
    owner = Owner(y, "kv", 16 << 20)        clients, traffic, and the rest of scenario/hosts.py
    traffic = Traffic(x, owner, paths=RDMA)
    a.down(0); a.up(0)                      faults, each has a way back

Control connections and TCP rails are on 127.0.0.1 and 127.0.0.2: no fault of a rail reaches them.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scenario"))
from hosts import *  # noqa: E402,F401,F403
import hosts  # noqa: E402

RDMA = ("rdma",)
ANY = ("rdma", "tcp")
ROCE = 4791  # UDP port of RoCEv2
MTU = 4200
CLASS = "/sys/class/infiniband"


def skip_without_guest():
    if not os.path.isdir(f"{CLASS}/rxea0"):
        skip("needs the RDMA devices of tests/rdma/guest-net.sh")


class Wires:
    """What scenario/hosts.py wants to know of a network."""
    ipv4, ipv6 = True, False

    def __init__(self, rails):
        self.rails = rails


class Side:
    """One end of every rail: a or b."""

    def __init__(self, wires, name):
        self.net, self.name, self.number = wires, name, 1 if name == "a" else 2
        self.fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def inside(self):
        yield self

    def interface(self, rail):
        return f"{self.name}{rail}"

    def device(self, rail):
        return f"rxe{self.name}{rail}"

    def devices(self, rails=None):
        return ",".join(self.device(r) for r in range(self.net.rails if rails is None else rails))

    def address(self, rail=0):
        return f"10.9.{rail}.{self.number}"

    def at(self, port=hosts.PORT):
        return f"127.0.0.{self.number}:{port}"

    def agent(self, *settings, **more):
        return RdmaAgent(self, *settings, **more)

    # -- faults

    def down(self, rail):
        """Both ports of the wire see it at once."""
        run(f"ip link set {self.interface(rail)} down")

    def up(self, rail):
        """Routes went with the interface."""
        me, peer = self.number, 3 - self.number
        run(f"ip link set {self.interface(rail)} up")
        run(f"ip route replace 10.9.{rail}.{peer} dev {self.interface(rail)} src {self.address(rail)} "
            f"table {1000 + 2 * rail + me}")

    def silence(self, rail):
        """What comes in for the device is lost; neither port has an event."""
        run(f"iptables -w -I INPUT -i {self.interface(rail)} -p udp --dport {ROCE} -j DROP")

    def heal(self):
        run("iptables -w -F INPUT")

    def dropped(self):
        """Packets that silence() has swallowed."""
        return sum(int(line.split()[0]) for line in run("iptables -w -nvxL INPUT").splitlines()[2:])

    def mtu(self, rail, size):
        run(f"ip link set {self.interface(rail)} mtu {size}")

    def has_device(self, rail):
        return os.path.isdir(f"{CLASS}/{self.device(rail)}")

    def remove_device(self, rail):
        run(f"rdma link delete {self.device(rail)}")
        await_(lambda: not self.has_device(rail), f"{self.device(rail)} to go")

    def add_device(self, rail):
        run(f"rdma link add {self.device(rail)} type rxe netdev {self.interface(rail)}")

    def add_address(self, rail, address):
        run(f"ip addr add {address}/24 dev {self.interface(rail)} noprefixroute")

    def remove_address(self, rail, address):
        run(f"ip addr del {address}/24 dev {self.interface(rail)}")

    def readdress(self, rail, address):
        """Another address in the place of the present one, with the routes of guest-net.sh."""
        link = self.interface(rail)
        peer, table, back = 3 - self.number, 1000 + 2 * rail + self.number, 1000 + 2 * rail + 3 - self.number
        theirs = Side(self.net, "b" if self.name == "a" else "a")
        for old in self.addresses(rail):
            self.remove_address(rail, old)
        self.add_address(rail, address)
        for rule in (f"from {address} to 10.9.{rail}.{peer} lookup {table}",
                     f"from 10.9.{rail}.{peer} to {address} lookup {back}"):
            command("ip rule del pref 10 iif lo " + rule)  # there may be none
            run("ip rule add pref 10 iif lo " + rule)
        run(f"ip route replace 10.9.{rail}.{peer} dev {link} src {address} table {table}")
        run(f"ip route replace {address} dev {theirs.interface(rail)} src {theirs.address(rail)} table {back}")

    def addresses(self, rail):
        link = json.loads(run(f"ip -j addr show dev {self.interface(rail)}"))[0]
        return [i["local"] for i in link["addr_info"] if i["family"] == "inet"]

    def gids(self, rail):
        """The port's GIDs by index, without empty ones."""
        folder, found = f"{CLASS}/{self.device(rail)}/ports/1/gids", {}
        for index in sorted(os.listdir(folder), key=int)[:16]:
            try:
                gid = open(f"{folder}/{index}").read().strip()
            except OSError:
                continue
            if gid.strip("0:"):
                found[int(index)] = gid
        return found

    def has_gid(self, rail, address=None):
        tail = "".join(f"{int(n):02x}" for n in (address or self.address(rail)).split("."))
        wanted = f"ffff:{tail[:4]}:{tail[4:]}"
        return any(g.endswith(wanted) for g in self.gids(rail).values())

    def carries(self, rail):
        return open(f"{CLASS}/{self.device(rail)}/ports/1/state").read().startswith("4")

    def packets(self, rail):
        """Sent and received ones of the device."""
        folder = f"{CLASS}/{self.device(rail)}/ports/1/hw_counters"
        return sum(int(open(f"{folder}/{n}").read()) for n in ("sent_pkts", "rcvd_pkts"))

    def mend(self):
        """As guest-net.sh left it, whatever the scenario before has done."""
        for rail in range(self.net.rails):
            link = json.loads(run(f"ip -j link show dev {self.interface(rail)}"))[0]
            if link["mtu"] != MTU:
                self.mtu(rail, MTU)
            moved = self.addresses(rail) != [self.address(rail)]
            if moved:
                self.readdress(rail, self.address(rail))
            if moved or "UP" not in link["flags"]:
                self.up(rail)
            if not self.has_device(rail):
                self.add_device(rail)


def sides(rails=2):
    skip_without_guest()
    wires = Wires(rails)
    both = Side(wires, "a"), Side(wires, "b")
    both[0].heal()
    for side in both:
        side.mend()
    for side in both:
        for rail in range(rails):
            await_(lambda: side.carries(rail) and side.has_gid(rail), f"{side.device(rail)} to carry")
    return both


class RdmaAgent(HostAgent):
    """mcshmd with the devices of one side. Settings given come after the kit's own and win."""

    def __init__(self, side, *settings, rails=None, **more):
        # An ACK timeout of a second: a shorter one ends now and then on emulated processors.
        port = more.get("port", hosts.PORT)
        super().__init__(side, "pool.pages=off", "peer.listen=" + side.at(port), "engine.spin_us=20", "peer.connect_ms=5000",
                         "rdma.enable=require", "rdma.devices=" + side.devices(rails), "rdma.timeout=18",
                         "rdma.silent_ms=10000", *settings, address=side.at(port), **more)
        self.side = side

    def before(self):
        die_with_the_test()

    def rail(self, peer, number):
        """The reports, one an engine, of the RDMA rail on device NUMBER."""
        found = [r for r in self.rails(peer)
                 if r["transport"] == "rdma" and r["local"].startswith(self.host.device(number) + "/")]
        check(found, f"no RDMA rail {number} to {peer.address} among", self.rails())
        return found

    def await_rails(self, peer, *numbers, state="up", seconds=3 * PATIENCE):
        def there():
            try:
                return all(self.rail_states(peer, n) == {state} for n in numbers)
            except AssertionError:
                return False
        await_(there, lambda: f"rails {numbers} to be {state}: {self.rails()}", seconds)

    def carried(self, peer, number):
        """Bytes over a rail so far."""
        return sum(r["bytes"] for r in self.rail(peer, number))


def meet(agent, owner, path="rdma"):
    """Until tasks of the agent's clients reach the owner that way. The first ones need not wait for RDMA rails to be made."""
    c = Client(agent.socket, "first")
    p = c.alloc(64)
    segment = c.open(owner.names)

    def there():
        t = c.read(p, segment, owner.at, 64)
        equal((t.state, t.error), (COMPLETED, OK), "a first task")
        return PATHS[t.path] == path
    await_(there, lambda: f"tasks over {path}: {agent.rails()}", 2 * PATIENCE)
    c.close()
