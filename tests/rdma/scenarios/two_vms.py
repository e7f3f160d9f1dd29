#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# limit: 150
"""Two hosts that share nothing: an agent in each of two VMs, over two rails. A client in VM 0 reads and writes memory of VM 1, while each
wire in turn is cut at VM 1's end, of which the device here has no event, and mended. All tasks end COMPLETED over RDMA."""
from rdma import *  # noqa: F403

SIZE = 256 * KiB
LANES = 4
SPACE = 4 * MiB
NAME = "shared"
LIMIT_S = 120
if "VM_ID" not in os.environ:
    skip("needs two VMs: tests/rdma/run starts them")
me = int(os.environ["VM_ID"])


class Guest(Side):
    """One of the two VMs, as two-vms.sh and guest-net.sh make them."""

    def __init__(self, number):
        super().__init__(Wires(2), "ab"[number])

    def interface(self, rail):
        return f"eth{rail}"

    def device(self, rail):
        return f"rxe{rail}"

    def at(self, port=hosts.PORT):
        return f"10.8.0.{self.number}:{port}"


class Far:
    """The other VM's agent and its published memory, as an Owner is in the same VM."""
    address = Guest(1).at()
    names = f"{address}/{NAME}"

    def __init__(self, agent):
        self.c = Client(agent.socket, "reader")
        self.p = self.c.alloc(SPACE)
        self.segment, = await_(self.opened, "the other VM's segment", 3 * PATIENCE)
        buffer, = self.c.describe(self.segment)
        self.at = buffer.address
        equal((buffer.size, buffer.access), (SPACE, RW), "what the other VM has published")

    def opened(self):
        try:
            return [self.c.open(self.names)]
        except McshmError as e:
            check(e.status in (NOT_FOUND, PEER_UNREACHABLE, TIMEOUT), e)
            return None

    def ends(self, t):
        equal((t.state, t.error, PATHS[t.path], t.remote_quiesced), (COMPLETED, OK, "rdma", True), "a task between two VMs")

    def peek(self, offset=0, size=SPACE):
        fill(self.p, size, 0)
        self.ends(self.c.read(self.p, self.segment, self.at + offset, size))
        return peek(self.p, size)

    def put(self, data):
        put(self.p, data)
        self.ends(self.c.write(self.p, self.segment, self.at, len(data)))

    def tell(self, word):
        batch = self.c.batch()
        self.c.notify(batch, self.segment, b"vm0", word)
        self.c.wait(batch)
        self.ends(self.c.task(batch))
        self.c.batch_free(batch)


def pattern(seed):
    return Chunk(random.Random(seed), SPACE).bytes


def wire(rail, up):
    """The end in VM 1; tests/rdma/run does what is printed."""
    print(f'qmp: 1 set_link name="nic{rail}" up={"true" if up else "false"}', flush=True)


agent = Guest(me).agent()
if me == 1:
    owner = Owner(agent, NAME, SPACE)
    put(owner.p, pattern(1))
    equal(owner.c.recv(LIMIT_S), (b"vm0", b"done"), "word from the other VM")
    equal(owner.peek(), pattern(2), "what the other VM has written")
    owner.close()
    finish(agent)
    sys.exit()

far = Far(agent)
meet(agent, far)
agent.await_rails(far, 0, 1)
equal(far.peek(), pattern(1), "what the other VM has put there")
traffic = Traffic(agent, far, lanes=LANES, size=SIZE, paths=RDMA)
traffic.progress(2)
for rail in 1, 0:
    wire(rail, False)
    await_(lambda: traffic.error or "up" not in agent.rail_states(far, rail), lambda: f"rail {rail} to be down: {agent.rails()}")
    carried = agent.carried(far, 1 - rail)
    traffic.progress(3)
    check(agent.carried(far, 1 - rail) > carried, "nothing went over the other rail:", agent.rails())
    check(agent.host.carries(rail), "the device here has seen a cut that is not its own")
    wire(rail, True)
    agent.await_rails(far, 0, 1)
    carried = agent.carried(far, rail)
    await_(lambda: traffic.error or agent.carried(far, rail) > carried, f"bytes over rail {rail} again", 2 * PATIENCE)
    traffic.progress(2)
traffic.finish()
equal((sum(traffic.failures.values()), set(traffic.took)), (0, {"rdma"}), "traffic")
for rail in 0, 1:
    check(f"RDMA device {agent.host.device(rail)}/1 is down" not in agent.text(), "an event of a device here:", agent.text())
print(f"{traffic.rounds} rounds, {traffic.bytes >> 20} MiB, slowest {traffic.slowest:.2f} s")
far.put(pattern(2))
equal(far.peek(), pattern(2), "what was written there")
far.tell(b"done")
far.c.close()
finish(agent)
