#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU memory of one host to and from that of another, over TCP: bytes, ways, and every end of them."""
import cuda
from fake_cuda import FAIL as FAIL_RULE, HANG
from hosts import *  # noqa: F403
from mcshm import after

cuda.requires_gpu()
SIZE, BLOCK = 16 * MiB, 64 * KiB
BLOCKS = SIZE // BLOCK
STAGED = ("gpu_staged_bytes", "gpu_served_staged_bytes")


class Owner2:
    """A client that publishes GPU memory, and some of its host's."""

    def __init__(self, agent, name, device):
        self.agent, self.device, self.names = agent, device, agent.names(name)
        self.c = Client(agent.socket, name)
        self.p = self.c.alloc(SIZE, location=b"cuda:0")
        self.h = self.c.alloc(SIZE)
        device.fill(self.p, SIZE, 0)
        fill(self.h, SIZE, 0)
        self.c.publish(name)
        self.at = self.c.buffer(self.p, SIZE)
        self.host_at = self.c.buffer(self.h, SIZE)


def pattern(seed):
    return Chunk(random.Random(seed), SIZE).bytes


def ended(t, state, error=None, what=""):
    check(t.state == state and error in (None, t.error), what, "ended", t.state, "error", t.error, "bytes", t.bytes)


def completed(t, size=SIZE):
    ended(t, COMPLETED, OK)
    check((t.bytes, PATHS[t.path], t.remote_quiesced) == (size, "tcp", True), "completed:", t.bytes, PATHS[t.path])


def main():
    a, b = Net("a", "b", rails=2)
    here, there = a.agent("peer.ping_ms=500", "peer.dead_ms=2000"), b.agent("peer.ping_ms=500", "peer.dead_ms=2000")
    for agent in (here, there):
        check("GPU" not in agent.text(), "no driver before it is asked for:", agent.text())
    device = cuda.Device(0)
    owner = Owner2(there, "kv", device)
    c = Client(here.socket, "mover")
    p, q, h = c.alloc(SIZE, location=b"cuda:0"), c.alloc(SIZE, location=b"cuda:0"), c.alloc(SIZE)
    segment = c.open(owner.names)

    kinds = {d.address: d.location for d in c.describe(segment)}
    check(kinds[owner.at].startswith(b"cuda") and kinds[owner.host_at].startswith(b"cpu"), "described as", kinds)

    # ---- every kind of memory to every other, whole and in scattered blocks
    for n, (mine, theirs, staged) in enumerate(((p, owner.at, (1, 1)), (p, owner.host_at, (1, 0)), (h, owner.at, (0, 1)))):
        data, before = pattern(n), (here.counted(STAGED[0]), there.counted(STAGED[1]))
        more = {"flags": SYNCED} if mine == p else {}

        def set_mine(data):
            device.put(p, data) if mine == p else put(h, data)

        def get_mine():
            return device.get(p, SIZE) if mine == p else peek(h, SIZE)

        def get_theirs():
            return device.get(owner.p, SIZE) if theirs == owner.at else peek(owner.h, SIZE)
        set_mine(data)
        completed(c.write(mine, segment, theirs, SIZE, **more))
        equal(get_theirs(), data, f"{n}: written")
        set_mine(bytes(SIZE))
        completed(c.read(mine, segment, theirs, SIZE, **more))
        equal(get_mine(), data, f"{n}: read")
        # block k here is block 7k there: nothing joins
        pieces = [(k * BLOCK, k * 7 % BLOCKS * BLOCK, BLOCK) for k in range(BLOCKS)]
        data = pattern(100 + n)
        set_mine(data)
        completed(c.run(c.request(WRITE, mine, segment, theirs, SIZE, **more), pieces))
        there_now = get_theirs()
        for local, remote, length in pieces:
            equal(there_now[remote:remote + length], data[local:local + length], f"{n}: block at {local}")
        set_mine(bytes(SIZE))
        completed(c.run(c.request(READ, mine, segment, theirs, SIZE, **more), pieces))
        equal(get_mine(), data, f"{n}: blocks read")
        equal(here.counted(STAGED[0]) - before[0], 4 * SIZE * staged[0], f"{n}: staged here")
        equal(there.counted(STAGED[1]) - before[1], 4 * SIZE * staged[1], f"{n}: staged there")
    for agent in (here, there):
        check(agent.text().count("staged through host memory") == 1, "said once:", agent.text())

    # ---- the first and last bytes, odd lengths
    device.fill(p, SIZE, 0x5a)
    device.fill(owner.p, SIZE, 0)
    completed(c.write(p + 3, segment, owner.at + SIZE - 4097, 4097, flags=SYNCED), 4097)
    completed(c.write(p, segment, owner.at, 1, flags=SYNCED), 1)
    got = device.get(owner.p, SIZE)
    check(got == b"\x5a" + bytes(SIZE - 4098) + b"\x5a" * 4097, "nothing beside")

    # ---- order: it must be said, and gates are waited for and set
    refused(GPU_ORDER, c.write, p, segment, owner.at, BLOCK)
    gate, stream = c.gate(), device.stream()
    device.fill(owner.p, BLOCK, 0)
    for byte in range(1, 20):
        device.fill(p, BLOCK, byte, stream)
        value = c.record(gate, stream)
        completed(c.write(p, segment, owner.at, BLOCK, order=after(gate.word, value)), BLOCK)
        equal(device.get(owner.p, BLOCK), bytes([byte]) * BLOCK, "written after its stream")
    device.destroy(stream)
    c.gate_destroy(gate)

    # ---- strict: neither end is staged
    strict = Client(here.socket, "strict", strict=True)
    sp, sh, s = strict.alloc(BLOCK, location=b"cuda:0"), strict.alloc(BLOCK), strict.open(owner.names)
    ended(strict.write(sp, s, owner.host_at, BLOCK, flags=SYNCED), FAILED, STRICT)
    ended(strict.read(sh, s, owner.at, BLOCK), FAILED, STRICT)
    completed(strict.write(sh, s, owner.host_at, BLOCK), BLOCK)
    strict.close()

    # ---- a cable goes amid it, then both, and are back
    data = pattern(7)
    device.put(p, data)
    batch = c.batch(16)
    for k in range(16):
        c.submit(batch, c.request(WRITE if k % 2 == 0 else READ, p if k % 2 == 0 else q, segment, owner.at, SIZE,
                                  flags=SYNCED | FENCE))
    a.down(0)
    c.wait(batch, 3 * PATIENCE)
    for k in range(16):
        completed(c.task(batch, k))
    c.batch_free(batch)
    equal(device.get(owner.p, SIZE), data)
    equal(device.get(q, SIZE), data)
    a.down(1)
    t = c.write(p, segment, owner.at, SIZE, flags=SYNCED, deadline_us=1000000)
    check(t.state in (FAILED, S_TIMEOUT), "without a cable:", t.state)
    a.up(0)
    a.up(1)
    await_(lambda: c.write(p, segment, owner.at, SIZE, flags=SYNCED, deadline_us=2000000).state == COMPLETED, "the way back",
           4 * PATIENCE)

    if not cuda.REAL:
        slowly(here, there, device, owner, c, p, segment)
    c.close()
    owner.c.close()
    for agent in (here, there):
        await_(lambda: agent.status()["sessions"] == 1, "all but the one that asks to end")
    finish(here, there)


def slowly(here, there, device, owner, c, p, segment):
    """With copies that take their time, so that what is done meanwhile meets them."""
    one, other = here.process.pid, there.process.pid
    # revoked at the target, and withdrawn here, amid writes: after the answer nothing changes any more
    for who, client, at in (("there", owner.c, owner.p), ("here", c, p)):
        cuda.control.delay(3000)
        device.fill(p, SIZE, 0x77)
        batch = c.batch(4)
        for k in range(4):
            c.submit(batch, c.request(WRITE if who == "there" else READ, p, segment, owner.at, SIZE, flags=SYNCED))
        await_(lambda: cuda.control.count(other if who == "there" else one, "copies") > 0 and c.task(batch).state == PENDING, "the first bytes")
        if who == "there":
            client.revoke(at, SIZE)
        else:
            client.free(at)
        cuda.control.delay(0)
        if who == "there":
            device.fill(at, SIZE, 0x11)
            c.wait(batch, 3 * PATIENCE)
            for k in range(4):
                t = c.task(batch, k)
                check(t.state in (FAILED, INVALID, COMPLETED), "revoked", t.state, t.error)
            time.sleep(0.2)
            equal(device.get(at, SIZE), b"\x11" * SIZE, "after its revocation")
            check(there.alive() and here.alive(), "an agent died")
            owner.at = owner.c.buffer(owner.p, SIZE)
        else:
            c.wait(batch, 3 * PATIENCE)
        c.batch_free(batch)
    p = c.alloc(SIZE, location=b"cuda:0")

    # A copy at the target that takes longer than any silence is none, and holds up no other memory. (An agent that gets no processor
    # for so long is silent: then once more.)
    def others_go_on():
        cuda.control.arm("run:copy", HANG, pid=other)
        batch = c.batch()
        device.fill(p, MiB, 0x42)
        device.fill(owner.p, BLOCK, 0)
        c.submit(batch, c.request(WRITE, p, segment, owner.at, BLOCK, flags=SYNCED))
        await_(lambda: cuda.control.waiting() != 0, "the copy to hang")
        begun, states = time.monotonic(), []
        while time.monotonic() < begun + 1.5:
            states.append(c.write(p, segment, owner.host_at, BLOCK, flags=SYNCED, deadline_us=2000000).state)
            time.sleep(0.3)  # between two, nothing but the hanging one is under way
        equal(c.task(batch).state, PENDING)
        cuda.control.disarm()
        c.wait(batch)
        completed(c.task(batch), BLOCK)
        c.batch_free(batch)
        equal(device.get(owner.p, BLOCK), b"\x42" * BLOCK)
        return set(states) == {COMPLETED}
    check(any(others_go_on() for _ in range(5)), "a hanging copy holds up host memory")

    # a client is killed with copies of both directions under way: nothing of it is left
    cuda.control.delay(3000)
    sessions = here.status()["sessions"]
    child = subprocess.Popen([sys.executable, "-B", __file__, "victim", here.socket, owner.names, str(owner.at)],
                             stdout=subprocess.PIPE, preexec_fn=die_with_the_test)
    equal(child.stdout.readline(), b"on its way\n")
    child.kill()
    child.wait()
    cuda.control.delay(0)
    await_(lambda: here.status()["sessions"] == sessions, "the killed client's session to go")

    # the peer's device is lost: its memory is out of reach, in words, and host memory goes on
    cuda.control.arm("run:copy", FAIL_RULE, cuda.ILLEGAL_ADDRESS, pid=other)
    device.fill(p, SIZE, 1)
    t = c.write(p, segment, owner.at, SIZE, flags=SYNCED)
    ended(t, FAILED, GPU_LOST, "to a lost device")
    t = c.write(p, segment, owner.at, BLOCK, flags=SYNCED)
    ended(t, FAILED, GPU_LOST, "and it stays so")
    cuda.control.disarm()
    completed(c.write(p, segment, owner.host_at, SIZE, flags=SYNCED))
    equal(peek(owner.h, SIZE), b"\x01" * SIZE)


def victim(socket_path, names, at):
    cuda.Device(0)
    c = Client(socket_path, "victim")
    p, segment = c.alloc(SIZE, location=b"cuda:0"), c.open(names)
    batch = c.batch(8)
    for n in range(8):
        c.submit(batch, c.request(WRITE if n % 2 else READ, p, segment, int(at), SIZE, flags=SYNCED))
    await_(lambda: c.task(batch).state == PENDING, "the first bytes")
    print("on its way", flush=True)
    signal.pause()


if sys.argv[1:2] == ["victim"]:
    victim(*sys.argv[2:])
else:
    main()
