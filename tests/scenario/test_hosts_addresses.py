#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Addresses and networks of all kinds: few ports, IPv6 alone, hosts with many interfaces, interfaces that are
down, a small MTU with losses, ports that are taken, names of hosts."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403


def works(frm, to, name="works", explicit=None):
    """Writes and reads back over the hosts; returns nothing."""
    owner = Owner(to, name, 4 * MiB)
    c = Client(frm.socket, "client")
    a = c.alloc(4 * MiB)
    data = Chunk(random.Random(5), 3 * MiB + 7).bytes
    put(a, data)
    s = c.open(explicit or owner.names)
    t = c.write(a, s, owner.at, len(data))
    equal((t.state, t.error, PATHS[t.path]), (COMPLETED, OK, "tcp"), f"a write to {explicit or owner.names}")
    check(owner.peek(0, len(data)) == data, "its bytes")
    fill(a, len(data), 0)
    equal(c.read(a, s, owner.at, len(data)).state, COMPLETED, "a read")
    check(peek(a, len(data)) == data, "its bytes")
    c.close()
    owner.close()


# 200 ports and 20,000 transfers: connections are kept, not made
ha, hb = Net("a", "b")
ha.ports(40000, 40199)
a, b = ha.agent(), hb.agent()
owner = Owner(b, "owner", 4 * MiB)
c = Client(a.socket, "client")
p = c.alloc(4 * MiB)
s = c.open(owner.names)
put(p, Chunk(random.Random(1), 4 * MiB).bytes)
for k in range(0, 2000 if SAN else 20000, 32):
    batch = c.batch(32)
    c.submit(batch, *[c.request(WRITE, p + (k + i) % 1024 * 4096, s, owner.at + (k + i) % 1024 * 4096, 4096)
                      for i in range(32)])
    c.wait(batch)
    equal({c.task(batch, i).state for i in range(32)}, {COMPLETED}, "a batch of small tasks")
    c.batch_free(batch)
check(owner.peek() == peek(p, 4 * MiB), "their bytes")
count = sum(1 for _, remote in ha.sockets(1) if remote == PORT)
check(0 < count <= 8, count, "connections")
check(len(ha.sockets(6)) < 50, len(ha.sockets(6)), "sockets in TIME_WAIT")
# no ports at all: that is said, and it ends when they are there again
c.close()
equal(a.stop(), 0, "exit status: " + a.text())
ha.ports(40000, 40009)
hold = []
while True:
    try:
        hold.append(ha.connect((hb.address(), PORT)))
    except OSError:
        break
check(len(hold) <= 20, len(hold), "connections with ten ports")
a.start()
c = Client(a.socket, "client")
try:
    c.open(owner.names)
    raise AssertionError("connected without a port")
except McshmError as e:
    equal(e.status, LOCAL_RESOURCE, f"out of ports: {e}")
for held in hold:
    held.close()
ha.ports(40000, 40199)


def opened():
    try:
        return c.open(owner.names)
    except McshmError as e:
        equal(e.status, LOCAL_RESOURCE, f"while ports come back: {e}")
        return None


await_(opened, "a connection with ports")
c.close()
owner.close()

# ports that are taken
said = start_fails(hb)
check(str(PORT) in said and "in use" in said.lower(), "the port is taken:", said)
finish(a, b)

# names of hosts; loopback needs no allow_insecure
(h,) = Net("a")
x = h.agent("peer.listen=127.0.0.1:7001", "peer.allow_insecure=no", address="127.0.0.1:7001")
y = h.agent("peer.listen=127.0.0.1:7002", "peer.allow_insecure=no", address="127.0.0.1:7002")
works(x, y)
works(y, x, "by name", "localhost:7001/by name")
c = Client(x.socket, "client")
for name, causes in (("no-such-host.invalid:7001/x", (PEER_UNREACHABLE, NOT_FOUND)),
                     ("127.0.0.1:1/x", (PEER_UNREACHABLE,)),
                     ("127.0.0.1:/x", (INVALID_ARGUMENT, NOT_FOUND)),
                     ("127.0.0.1:65536/x", (INVALID_ARGUMENT, NOT_FOUND)),
                     ("[::1:7001/x", (INVALID_ARGUMENT, NOT_FOUND)),
                     ("127.0.0.1:7x/x", (INVALID_ARGUMENT, NOT_FOUND))):
    try:
        c.open(name)
        raise AssertionError(f"{name} was opened")
    except McshmError as e:
        check(e.status in causes, f"opening {name}:", e)
c.close()
finish(x, y)

# ::1, with no IPv4 at all, and two hosts with IPv6 alone
(h,) = Net("a")
run(f"ip -n {h.ns} addr del 127.0.0.1/8 dev lo")
x, y = (h.agent(f"peer.listen=[::1]:{port}", "peer.allow_insecure=no", "admin.listen=[::1]:0",
                address=f"[::1]:{port}") for port in (7001, 7002))
works(x, y)
works(y, x)
finish(x, y)
net = Net("a", "b", rails=2, ipv4=False)
a, b = (h.agent() for h in net)
works(a, b)
works(b, a)
equal(a.peer(b)["address"], b.address, "the address of a peer")
for rail in 0, 1:
    a.rail(b, rail)
finish(a, b)

# a small MTU, and one packet in a hundred is lost
net = Net("a", "b", mtu=1280, ipv6=True)
ha, hb = net
a, b = ha.agent("tcp.slice=256K"), hb.agent("tcp.slice=256K", "peer.listen=[::]:7000")
works(a, b)
works(a, b, "over six", f"{hb.at(ipv6=True)}/over six")
ha.lose(0.01)
hb.lose(0.01)
owner = Owner(b, "owner", 4 * MiB)
t = Traffic(a, owner, lanes=4, size=512 * KiB)
t.progress(4, 3 * PATIENCE)
t.finish()
owner.close()
ha.heal()
hb.heal()
finish(a, b)


# hosts with more than the one interface that others reach
def advertised(host, other, *settings):
    """What another agent is told that this one's address is."""
    agent = host.agent(*settings)
    works(agent, other)
    address = await_(lambda: [p["address"] for p in other.peers() if p["state"] == "up"], "the peer")
    equal(agent.stop(), 0, "exit status: " + agent.text())
    await_(lambda: not [p for p in other.peers() if p["state"] == "up"], "the peer to be gone")
    return address[0]


net = Net("a", "b")
ha, hb = net
b = hb.agent()
# a bridge of containers with nobody on it, and an interface that is down, both listed first
run(f"ip -n {ha.ns} link del r0")
run(f"ip -n {ha.ns} link add docker0 type bridge")
run(f"ip -n {ha.ns} addr add 172.17.0.1/16 dev docker0")
run(f"ip -n {ha.ns} link add idle type veth peer name other")
run(f"ip -n {ha.ns} addr add 198.51.100.1/24 dev idle")
said = start_fails(ha)
check("advertise" in said, "no usable address:", said)
run(f"ip -n {ha.ns} link set docker0 up")
run(f"ip link add r0 netns {ha.ns} type veth peer name r0 netns {hb.ns}")
for host in ha, hb:
    host.address_again(0)
for host in ha, hb:
    host.carrier(0)
equal(advertised(ha, b), ha.at(), "nothing configured")
equal(advertised(ha, b, f"peer.listen={ha.at()}"), ha.at(), "one address to listen at")
equal(advertised(ha, b, f"peer.advertise={ha.at()}"), ha.at(), "a configured address")
run(f"ip -n {ha.ns} link add pair type veth peer name riap")
for name, address in (("pair", "192.0.2.1/24"), ("riap", "192.0.2.2/24")):
    run(f"ip -n {ha.ns} addr add {address} dev {name}")
    run(f"ip -n {ha.ns} link set {name} up")
equal(advertised(ha, b, f"peer.advertise={ha.at()}", "tcp.rails=r0"), ha.at(), "control and data said apart")
for wrong in ("127.0.0.1:7000", "0.0.0.0:7000", "[::]:7000", "[::1]:7000", "localhost"):
    said = start_fails(ha, f"peer.advertise={wrong}")
    check("advertise" in said and wrong.split(":")[0].strip("[") in said, "advertising", wrong, "is refused:", said)
said = start_fails(ha, "tcp.rails=nosuch0")
check("nosuch0" in said, "a rail that is not there:", said)
finish(b)
