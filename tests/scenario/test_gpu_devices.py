#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which devices and contexts are touched, and by whom: traffic of the CPU alone, clients that see different devices, devices that
reach each other or do not, and ranges beyond 4 GiB (field reports B73, B81)."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from mcshm import *  # noqa: E402,F403

cuda.requires_double("needs the test double: two devices")
MiB, GiB = 1 << 20, 1 << 30
UUID = ["facecd00", "facecd01"]


def spawn(f, **environment):
    """f(pipe) in a process that has this in its environment."""
    def run(pipe):
        os.environ.update(environment)
        f(pipe)
    return Child(run)


def finish(agent, *children):
    for child in children:
        child.join()
        equal(cuda.control.left(child.pid), {}, "what a client left with the driver")
    equal(cuda.control.misuse(agent.pid()), "", "misuse of the driver by the agent")
    agent.finish()
    equal(cuda.control.left(agent.pid()), {}, "what the agent left with the driver")


def threads(pid):
    return sorted(open(f"/proc/{pid}/task/{t}/comm").read().strip() for t in os.listdir(f"/proc/{pid}/task"))


def loaded(pid):
    return "libcuda" in open(f"/proc/{pid}/maps").read()


# ---- traffic of the CPU alone has no driver, no context and no thread for one ----

def cpu_only(pipe):
    c = Client(agent.socket, "cpu")
    at = c.alloc(MiB)
    c.publish("cpu")
    s, address = c.open("cpu"), c.buffer(at, MiB // 2)
    source = at + MiB // 2
    b = c.batch(100)
    for i in range(100):
        for k in range(100):
            c.submit(b, c.request(WRITE, source + k, s, address + k, 64))
        c.wait(b)
        c.batch_free(b)
        b = c.batch(100)
    pipe.send("done")
    pipe.recv()
    c.close()


agent = Agent()
before = threads(agent.pid())
child = spawn(cpu_only)
child.pipe.recv()
check(not loaded(agent.pid()), "the agent has loaded the driver")
equal(threads(agent.pid()), before, "the agent's threads")
for pid in (agent.pid(), child.pid):
    equal(cuda.control.process(pid), None, "what the driver was asked")
equal(agent.ask("ls", "gpus")["driver"], None, "the driver, for who asks")
child.pipe.send("end")
child.join()
text = agent.text()
check("cuda" not in text.lower() or text.lower().count("gpu") <= 1, "one line about it at most:", text)
agent.finish()


# ---- a client that sees device 1 alone calls it 0; one that sees both has it as 1 ----

def only_one(pipe):
    device, c = cuda.Device(0), Client(agent.socket, "one")
    check(device.uuid().startswith("GPU-" + UUID[1]), "its device 0", device.uuid())
    at = c.alloc(MiB, location=b"cuda:0")
    check("1 devices" in refused(NO_GPU, c.alloc, MiB, location=b"cuda:1"), "what it has")
    check("CUDA_VISIBLE_DEVICES" in refused(NO_GPU, c.alloc, MiB, location=f"cuda:GPU-{UUID[0]}".encode()), "not its own")
    device.fill(at, MiB, 7)
    c.publish("one")
    pipe.send(c.buffer(at, MiB, RW | A_MAP_READ | A_MAP_WRITE))
    pipe.recv()
    equal(device.get(at, MiB), bytes([9]) * MiB, "what the other wrote")
    c.close()
    device.release()


def both(pipe):
    zero, c = cuda.Device(0), Client(agent.socket, "both")
    address = pipe.recv()[0]
    s = c.open("one")
    check(c.describe(s)[0].location.startswith(b"cuda:" + UUID[1].encode()), "where it lies", c.describe(s)[0].location)
    at, host = c.alloc(MiB, location=f"cuda:GPU-{UUID[0]}".encode()), c.alloc(MiB)
    equal(c.read(host, s, address, MiB).state, COMPLETED, "read")
    equal(peek(host, MiB), bytes([7]) * MiB, "read")
    equal(c.read(at, s, address, MiB, flags=SYNCED).state, COMPLETED, "from one device to the other")
    equal(zero.get(at, MiB), bytes([7]) * MiB, "from one device to the other")
    there = c.map(s, address, MiB)  # mapped for device 1, and for device 0, which reaches it
    one = cuda.Device(1)
    equal(one.get(there, MiB), bytes([7]) * MiB, "mapped")
    zero.copy(there, at, MiB)
    c.unmap(there)
    zero.fill(at, MiB, 9)
    equal(c.write(at, s, address, MiB, flags=SYNCED).state, COMPLETED, "and back")
    pipe.send("done")
    c.close()
    one.release()
    zero.release()


agent = Agent()
a, b = spawn(only_one, CUDA_VISIBLE_DEVICES="1"), spawn(both)
address = a.pipe.recv()[0]
equal([cuda.control.count(agent.pid(), "contexts", d) for d in (0, 1)], [0, 1], "B73: the agent's contexts")
b.pipe.send(address)
b.pipe.recv()
equal([cuda.control.count(agent.pid(), "contexts", d) for d in (0, 1)], [1, 1], "the agent's contexts, with traffic on both")
equal(agent.ask("ls", "gpus")["peer_staged"], 0, "they reach each other")
a.pipe.send("done")
finish(agent, a, b)


# ---- an agent that does not see the client's device says which, and what to do; one that is told not to have any ----

def elsewhere(pipe):
    device, c = cuda.Device(1), Client(agent.socket, "elsewhere")
    check("GPU-" + UUID[1] in refused(NO_GPU, c.alloc, MiB, location=b"cuda:1"), "the UUID")
    at = device.alloc(MiB)
    check("GPU-" + UUID[1] in refused(NO_GPU, c.register_gpu, at, MiB), "the UUID")
    device.free(at)
    c.free(c.alloc(MiB, location=b"cuda:0"))
    c.close()
    device.release()


os.environ["CUDA_VISIBLE_DEVICES"] = "0"
agent = Agent()
del os.environ["CUDA_VISIBLE_DEVICES"]
finish(agent, spawn(elsewhere))


def none(pipe):
    c = Client(agent.socket, "none")
    check("[gpu] enable" in refused(NO_GPU, c.alloc, MiB, location=b"cuda:0"), "what is to be changed")
    refused(NO_GPU, c.register_gpu, 4096, 4096)
    refused(NO_GPU, c.gate)
    c.free(c.alloc(MiB))
    c.close()


agent = Agent("gpu.enable=off")
child = spawn(none)
child.join()
equal(cuda.control.process(child.pid), None, "it did not even load the driver")
agent.finish()


# ---- devices that do not reach each other: by the driver's own staging, said, or refused ----

def apart(strict):
    def run(pipe):
        zero, one, c = cuda.Device(0), cuda.Device(1), Client(agent.socket, "apart", strict=strict)
        name = "strict" if strict else "staged"
        here, there = c.alloc(MiB, location=b"cuda:0"), c.alloc(MiB, location=b"cuda:1")
        zero.fill(here, MiB, 5)
        one.fill(there, MiB, 6)
        c.publish(name)
        s, address = c.open(name), c.buffer(there, MiB)
        t = c.write(here, s, address, MiB, flags=SYNCED)
        if strict:
            equal((t.state, t.error), (FAILED, STRICT), "strict")
            equal(one.get(there, MiB), bytes([6]) * MiB, "nothing moved")
        else:
            equal(t.state, COMPLETED, "staged")
            equal(one.get(there, MiB), bytes([5]) * MiB, "staged")
        c.close()
        zero.release()
        one.release()
    return run


os.environ["FAKE_CUDA_PEER"] = "0"
agent = Agent()
children = [spawn(apart(True)), spawn(apart(False))]
for child in children:
    child.join()
check(agent.ask("ls", "gpus")["peer_staged"] > 0, "it is counted")
agent.finish()
del os.environ["FAKE_CUDA_PEER"]


# ---- beyond 4 GiB ----

def large(pipe):
    device, c = cuda.Device(), Client(agent.socket, "large", queue=dict(args_size=1 << 20))
    memory = device.segments(3 * GiB, 3 * GiB)  # nothing of it is touched but for the edges
    start, size = memory.at + 4096, 6 * GiB - 8192
    c.register_gpu(start, size)
    host = c.alloc(MiB)
    c.publish("large")
    s, address, hosts = c.open("large"), c.buffer(start, size), c.buffer(host, MiB)
    data = random.Random(1).randbytes(MiB)
    edges = [0, 2 * GiB - 300, 3 * GiB - 4096 - 300, 4 * GiB - 300, size - 70000]
    for edge in edges:
        device.put(start + edge, data[:70000])
    fill(host, MiB, 0)
    t = c.run(c.request(READ, host, s, address, 1), pieces=[(i * 70000, edge, 70000) for i, edge in enumerate(edges)])
    equal((t.state, t.bytes), (COMPLETED, 70000 * len(edges)), "a list to the edges")
    equal(peek(host, 70000 * len(edges)), data[:70000] * len(edges), "its bytes")
    C.memmove(host, data, MiB)
    t = c.run(c.request(READ, start, s, hosts, 1, flags=SYNCED), pieces=[(edge, 1000 + i, 5000) for i, edge in enumerate(edges)])
    equal(t.state, COMPLETED, "a list from there")
    for i, edge in enumerate(edges):
        equal(device.get(start + edge, 70000), data[1000 + i:6000 + i] + data[5000:70000], f"at {edge}")
    t = c.run(c.request(WRITE, start, s, hosts, 1, flags=SYNCED), stride=(3, 4096, 2 * GiB, 4096))
    equal(t.state, COMPLETED, "strides of 2 GiB")
    equal(peek(host, 3 * 4096), b"".join(device.get(start + i * 2 * GiB, 4096) for i in range(3)), "strides of 2 GiB")
    t = c.read(host, s, address + size - 64, 128)
    check(t.state in (INVALID, FAILED), "beyond the end", t.state)
    # the agent's own, which it has cleared
    own = c.alloc(5 * GiB, location=b"cuda:0")
    there = c.buffer(own, 5 * GiB)
    device.put(own + 4 * GiB - 500, data[:1000])
    fill(host, MiB, 1)
    equal(c.read(host, s, there + 4 * GiB - 4096, 8192).state, COMPLETED, "around 4 GiB")
    equal(peek(host, 8192), bytes(3596) + data[:1000] + bytes(3596), "around 4 GiB")
    C.memmove(host, data, 1000)
    equal(c.write(host, s, there + 5 * GiB - 1000, 1000).state, COMPLETED, "at the end of it")
    equal(device.get(own + 5 * GiB - 1000, 1000), data[:1000], "at the end of it")
    c.free(own)
    c.close()
    memory.free()
    device.release()


agent = Agent()
finish(agent, spawn(large))
