#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects that are put from GPU memory and got into it: blocks of layers, scattered, in ranges, in order with streams. What is canceled, late,
damaged, or whose client is killed leaves nothing behind."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_gpu()
KiB, MiB = 1 << 10, 1 << 20
CUDA = PATHS.index("cuda")
KEYS, LAYERS, BLOCK = 48, 8, 40 * KiB
KILLS = 3 if SAN else 8
GREAT = 8 * MiB
agent = Agent("store.size=256M", "store.extent_size=16M", "store.lease_ms=50", "task.deadline_ms=60000")


def store():
    return agent.ask("store", "top", "--once")


def settled():
    s = store()
    return s["writing"] == 0 and s["pinned"] == 0


class World:
    def __init__(self, name):
        self.device = cuda.Device()
        self.c = Client(agent.socket, name, queue=dict(args_size=4 * MiB, depth=256))
        self.layers = [self.c.alloc(KEYS * BLOCK, location=b"cuda:0") for _ in range(LAYERS)]
        self.others = [self.c.alloc(KEYS * BLOCK, location=b"cuda:0") for _ in range(LAYERS)]
        self.great = self.c.alloc(GREAT, location=b"cuda:0")
        self.host = self.c.alloc(MiB)

    def blocks(self, layers):
        return [[(layer + i * BLOCK, BLOCK) for layer in layers] for i in range(KEYS)]

    def end(self):
        self.c.close()
        self.device.release()


def blocks(pipe):
    """A block of a prompt has a part in each layer: the object is all of them."""
    w = World("blocks")
    c, device = w.c, w.device
    data = [random.Random(n).randbytes(KEYS * BLOCK) for n in range(LAYERS)]
    for at, d in zip(w.layers, data):
        device.put(at, d)
    keys = [b"block/%d" % i for i in range(KEYS)]
    whole = [b"".join(d[i * BLOCK:(i + 1) * BLOCK] for d in data) for i in range(KEYS)]

    # what the stream is doing with it has to be said
    spans = w.blocks(w.layers)
    text = refused(GPU_ORDER, c.objects, PUT, keys, spans=spans)
    check("gpu_synced" in text and "span 0" in text, text)
    put = c.objects(PUT, keys, spans=spans, gpu_synced=True)
    equal({(r.status, r.path, r.size) for r in put}, {(OK, CUDA, BLOCK * LAYERS)}, "put")
    equal((c.last.state, c.last.path, c.last.bytes), (COMPLETED, CUDA, KEYS * BLOCK * LAYERS), "the task")
    for i in range(0, KEYS, 7):  # as anybody else sees it
        equal(c.get(keys[i], room=BLOCK * LAYERS, flags=VERIFY), [(OK, whole[i])], f"block {i}")
    got = c.objects(GET, keys, spans=w.blocks(w.others), gpu_synced=True, flags=VERIFY)
    equal([(r.status, r.path, r.crc) for r in got], [(OK, CUDA, r.crc) for r in put], "got")
    for n, at in enumerate(w.others):
        equal(device.get(at, KEYS * BLOCK), data[n], f"layer {n}")

    # parts of a key in memory of both kinds, and ranges of it
    parts = [(w.layers[0] + 3, 5001), (w.host, 70), (w.layers[1] + 77, 12345)]
    fill(w.host, 70, 0x5a)
    mixed = data[0][3:5004] + b"\x5a" * 70 + data[1][77:12422]
    equal([r.status for r in c.objects(PUT, [b"mixed"], spans=[parts], gpu_synced=True)], [OK])
    equal(c.get(b"mixed"), [(OK, mixed)])
    device.fill(w.great, MiB, 0)
    fill(w.host, 4096, 0)
    r, = c.objects(GET, [b"mixed"], flags=RANGES | VERIFY, gpu_synced=True,
                   spans=[[(w.great + 1, 6000, 1000), (w.host + 9, 100, 5000), (w.great + 9000, 1, len(mixed) - 1)]])
    equal((r.status, r.size, c.last.bytes), (OK, len(mixed), 6101), "ranges")
    equal(device.get(w.great, 9001), b"\0" + mixed[1000:7000] + bytes(2999) + mixed[-1:], "ranges in the GPU")
    equal(peek(w.host + 9, 100), mixed[5000:5100], "a range in the host's memory")
    r, = c.objects(GET, [b"mixed"], spans=[[(w.great, len(mixed) - 1)]], gpu_synced=True)
    equal((r.status, r.size), (TOO_SMALL, len(mixed)))

    # registered by its owner, in a corner of its memory
    own = device.segments(2 * MiB, 2 * MiB)
    c.register_gpu(own.at + 4096, 3 * MiB)
    equal([r.status for r in c.objects(GET, [b"mixed"], spans=[[(own.at + 2 * MiB - 5000, len(mixed))]], gpu_synced=True)], [OK])
    equal(device.get(own.at + 2 * MiB - 5000, len(mixed)), mixed, "across two allocations")
    c.unregister(own.at + 4096)
    own.free()

    # a writer in place that goes on after its seal is found out, and nothing wrong gets to the GPU
    made, = c.create((b"in place", 100000))
    fill(made.address, 100000, 7)
    equal([r.status for r in c.seal(made.hold)], [OK])
    device.fill(w.great, 100000, 0x11)
    c.objects(GET, [b"in place"], spans=[[(w.great, 100000)]], gpu_synced=True, flags=VERIFY)
    equal(device.get(w.great, 100000), b"\7" * 100000, "as it was sealed")
    C.memset(made.address + 77777, 8, 1)
    device.fill(w.great, 100000, 0x11)
    r, = c.objects(GET, [b"in place"], spans=[[(w.great, 100000)]], gpu_synced=True, flags=VERIFY)
    equal(r.status, CHECKSUM, "damaged")
    equal(device.get(w.great, 100000), b"\x11" * 100000, "not touched")
    w.end()


def streams(pipe):
    """Puts wait for the stream that fills, the stream waits for gets."""
    w = World("streams")
    c, device = w.c, w.device
    stream, ready, done = device.stream(), c.gate(), c.gate()
    seen = device.alloc(BLOCK)
    for i in range(40 if SAN else 200):
        byte = i % 251
        device.fill(w.layers[0], BLOCK, byte, stream)
        value = c.record(ready, stream)
        b = c.batch()
        c.submit_objects(b, c.object_request(PUT, [b"stream"], spans=[[(w.layers[0], BLOCK)]], flags=UPSERT,
                                             order=after(ready.word, value)))
        c.wait(b)
        equal((c.task(b).state, c.object_results(b, 1)[0].status), (COMPLETED, OK), f"put {i}")
        c.batch_free(b)
        b = c.batch()
        device.fill(w.others[0], BLOCK, 0xff, stream)  # the stream is still at it
        value = c.record(ready, stream)
        c.submit_objects(b, c.object_request(GET, [b"stream"], spans=[[(w.others[0], BLOCK)]],
                                             order=after(ready.word, value, done.word, i + 1)))
        c.follow(done, stream, i + 1)
        device.copy(seen, w.others[0], BLOCK, stream)
        device.sync(stream)
        equal(device.get(seen, BLOCK), bytes([byte]) * BLOCK, f"round {i}: what the stream has seen")
        c.wait(b)
        equal(c.object_results(b, 1)[0].status, OK, f"get {i}")
        c.batch_free(b)
    # what is refused signals, too; private memory follows no order
    b = c.batch(2)
    word = C.c_uint32.from_address(done.word)
    c.submit_objects(b, c.object_request(GET, [b"nowhere"], spans=[[(w.others[0], BLOCK)]],
                                         order=after(signal=done.word, signal_value=77777), gpu_synced=True))
    c.wait(b)
    equal((word.value, c.object_results(b, 1)[0].status), (77777, NOT_FOUND), "a get of nothing")
    private = C.create_string_buffer(4096)
    c.register(C.addressof(private), 4096)
    refused(NOT_SUPPORTED, c.submit_objects, b, c.object_request(
        PUT, [b"private"], spans=[[(C.addressof(private), 4096)]], order=after(signal=done.word, signal_value=1)))
    c.batch_free(b)
    c.unregister(C.addressof(private))
    device.free(seen)
    c.gate_destroy(ready)
    c.gate_destroy(done)
    device.destroy(stream)
    w.end()


def under_way(w, op, key, **more):
    """A request about all of w.great; its copies are out, or were."""
    b = w.c.batch()
    w.c.submit_objects(b, w.c.object_request(op, [key], spans=[[(w.great, GREAT)]], gpu_synced=True, **more))
    await_(lambda: w.c.task(b).state != WAITING, "the first copy to begin")
    return b


def quiet(w, what):
    """Nobody writes there any more."""
    w.device.fill(w.great, GREAT, 0x11)
    for _ in range(3):  # what was under way before these has come by now, too
        equal([r.status for r in w.c.objects(GET, [b"small"], spans=[[(w.others[0], BLOCK)]], gpu_synced=True)], [OK])
    equal(w.device.get(w.great, GREAT), b"\x11" * GREAT, what)


def early(pipe):
    """Canceled, and too late."""
    w = World("early")
    w.device.fill(w.great, GREAT, 0x77)
    equal([r.status for r in w.c.objects(PUT, [b"great", b"small"], gpu_synced=True,
                                         spans=[[(w.great, GREAT)], [(w.layers[0], BLOCK)]])], [OK, OK])
    ends = set()
    for i in range(12):
        op, late = (PUT, GET)[i % 2], i // 2 % 2 * 10000
        b = under_way(w, op, b"great" if op == GET else b"early", deadline_us=late)
        if not late:
            w.c.cancel(b)
        w.c.wait(b)
        t = w.c.task(b)
        check(t.state in (COMPLETED, S_TIMEOUT if late else S_CANCELED), "ended", t.state)
        ends.add(t.state)
        if op == GET:
            quiet(w, "after a get that ended early")
        elif t.state == COMPLETED:
            w.c.remove(b"early", flags=FORCE)
        else:
            equal(w.c.exist(b"early"), [NOT_FOUND], "what was not put")
        w.c.batch_free(b)
        check(settled(), "what is left:", store())
    if not cuda.REAL:
        check({S_TIMEOUT, S_CANCELED} <= ends, "how they ended:", ends)
    # memory that is taken away amid it: it is quiet when that returns
    for op in (PUT, GET):
        at, keep = w.c.alloc(40 * MiB, location=b"cuda:0"), w.great  # an extent of its own
        w.great = at
        b = under_way(w, op, b"great" if op == GET else b"early")
        w.c.free(at)
        w.c.wait(b)
        check(w.c.object_results(b, 1)[0].status in (OK, REVOKED, INVALID_HANDLE), "freed amid it")
        w.c.batch_free(b)
        w.great = keep
        w.c.remove(b"early", flags=FORCE)
    await_(settled, "nothing to be held")
    w.end()


def victim(pipe):
    w = World("victim")
    w.device.fill(w.great, GREAT, 0x77)
    w.c.objects(PUT, [b"great"], spans=[[(w.great, GREAT)]], gpu_synced=True)
    b = w.c.batch(64)
    for i in range(32):
        for op, key in ((PUT, b"victim/%d" % i), (GET, b"great")):
            w.c.submit_objects(b, w.c.object_request(op, [key, key + b"/host"], gpu_synced=True,
                                                     spans=[[(w.great, GREAT)], [(w.host, 1000)]]))
    await_(lambda: w.c.task(b).state != WAITING, "the first copy to begin")
    pipe.send("ready")
    pipe.recv()


def run(f):
    start = time.monotonic()
    child = Child(f)
    child.join()
    if not cuda.REAL:
        equal(cuda.control.left(child.pid), {}, "what a client has left with the driver")
    print(f"{f.__name__}: {time.monotonic() - start:.1f} s", flush=True)


run(blocks)
if not cuda.REAL:
    # the store's memory is the driver's to copy to by itself
    equal(cuda.control.count(agent.pid(), "pageable"), 0, "copies from and to memory that the driver does not know")
run(streams)
if not cuda.REAL:
    cuda.control.delay(30000, pid=agent.pid())
run(early)
if not cuda.REAL:
    cuda.control.delay(4000, pid=agent.pid())
for i in range(KILLS):
    child = Child(victim)
    child.pipe.recv()
    time.sleep(random.random() * 0.05)  # anywhere in them
    child.kill()
    await_(lambda: settled() and agent.status()["sessions"] == 1, lambda: f"what a killed client had to go: {store()}")
    c = Client(agent.socket, "after")
    for k in range(0, 32, 7):  # there, whole, or not
        s, = c.exist(b"victim/%d" % k)
        check(s in (OK, NOT_FOUND), "a key of a killed client", s)
    c.removed("all", FORCE)
    c.close()
if not cuda.REAL:
    cuda.control.delay(0)
run(blocks)
pid = agent.pid()
agent.finish()

if not cuda.REAL:
    equal(cuda.control.misuse(pid), "", "misuse of the driver by the agent")
    equal(cuda.control.left(pid), {}, "what the agent has left behind")

    # what clients have in place is hollowed when it is removed: not before the driver has let go of it
    agent = Agent("store.size=32M", "store.extent_size=16M", "store.lease_ms=50")

    def in_place(pipe):
        c = Client(agent.socket, "in place")
        c.alloc(MiB, location=b"cuda:0")
        c.room(32 * MiB)
        pipe.send("is there")
        pipe.recv()
        made, = c.create((b"mapped", 16 * MiB))
        fill(made.address, 16 * MiB, 9)
        equal([r.status for r in c.seal(made.hold)], [OK])
        pipe.send("sealed")
        pipe.recv()
        equal(c.remove(b"mapped", flags=FORCE), [OK])
        # these need all the store's memory, and not in such an extent
        equal([r.status for r in c.put((b"0", bytes(15 * MiB)), (b"1", bytes(15 * MiB)))], [OK, OK])
        pipe.send("put")
        pipe.recv()
        c.close()
    child = Child(in_place)
    child.pipe.recv()
    before = cuda.control.count(agent.pid(), "registrations")
    child.pipe.send("go")
    child.pipe.recv()
    equal(cuda.control.count(agent.pid(), "registrations"), before + 1, "an extent for what is created in place")
    child.pipe.send("go")
    child.pipe.recv()
    await_(lambda: cuda.control.count(agent.pid(), "registrations") == before + 2, "the driver to let go of it")
    child.pipe.send("go")
    child.join()

    # a driver that hangs in pinning holds up a put for a second, once
    cuda.control.arm("cuMemHostRegister_v2", cuda.HANG, pid=agent.pid(), times=0)
    c = Client(agent.socket, "host", queue=dict(args_size=MiB))
    start = time.monotonic()
    equal([r.status for r in c.create((b"host", 8 * MiB), flags=UPSERT)], [OK])
    check(time.monotonic() - start < PATIENCE, "puts under a driver that hangs")
    cuda.control.disarm()
    c.removed("all", FORCE)
    c.close()
    pid = agent.pid()
    agent.finish()
    equal(cuda.control.misuse(pid), "", "misuse of the driver by the agent")
    equal(cuda.control.left(pid), {}, "what the agent has left behind")

    # a device is lost amid it: what needs it ends so, the other one and host memory go on
    agent = Agent("store.size=256M", "store.extent_size=16M")

    def lost(pipe):
        c = Client(agent.socket, "lost", queue=dict(args_size=MiB))
        devices = [cuda.Device(n) for n in range(2)]
        at = [c.alloc(GREAT, location=b"cuda:%d" % n) for n in range(2)]
        host = c.alloc(MiB)
        for n in range(2):
            devices[n].fill(at[n], GREAT, n + 1)
        keys, spans = [b"0", b"1", b"host"], [[(at[0], GREAT)], [(at[1], GREAT)], [(host, MiB)]]
        equal([r.status for r in c.objects(PUT, keys, spans=spans, gpu_synced=True)], [OK] * 3)
        pipe.send("go")
        pipe.recv()
        got = [r.status for r in c.objects(GET, keys, spans=spans, gpu_synced=True)]
        check(sorted(got) == [OK, OK, GPU_LOST] and got[2] == OK, "got under a loss", got)
        pipe.send(got.index(GPU_LOST))
        pipe.recv()
        for op, names in ((GET, keys), (PUT, [b"new/" + k for k in keys])):
            equal([r.status for r in c.objects(op, names, spans=spans, gpu_synced=True)], got, "after the loss")
        equal(c.exist(*[b"new/" + k for k in keys]), [NOT_FOUND if s == GPU_LOST else OK for s in got])
        c.close()
        for d in devices:
            d.release()
    child = Child(lost)
    child.pipe.recv()
    cuda.control.arm("run:copy", cuda.FAIL, cuda.ILLEGAL_ADDRESS, pid=agent.pid())
    child.pipe.send("go")
    child.pipe.recv()
    cuda.control.disarm()
    child.pipe.send("go")
    child.join()
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
    agent.finish()
