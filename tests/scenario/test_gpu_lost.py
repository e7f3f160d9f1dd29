#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device is lost to the agent under copies, by a sticky error: every task on it ends with GPU_LOST, nothing is given from it again, the
other device and host memory go on, and the agent that comes next has the clients' memory back."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from fake_cuda import FAIL, LOSE  # noqa: E402
from gpu import *  # noqa: E402,F403

cuda.requires_double()
TASKS = 64
PIECE = SIZE // TASKS // 4096 * 4096


def many(agent, ordinal, pipe):
    """Batches of small tasks, all the time until one fails; says what became of the last batch, and of those before."""
    c, device = Client(agent.socket), cuda.Device(ordinal)
    name = f"many{ordinal}"
    host, gpu = c.alloc(SIZE), c.alloc(SIZE, location=b"cuda:%d" % ordinal)
    C.memset(host, 0x31 + ordinal, SIZE)
    c.publish(name)
    s, at = c.open(name), c.buffer(gpu, SIZE)
    rounds, states = 0, [COMPLETED]
    told = False
    pipe.s.setblocking(False)
    while set(states) == {COMPLETED}:
        b = c.batch(TASKS)
        c.submit(b, *[c.request(WRITE, host + i * PIECE, s, at + i * PIECE, PIECE) for i in range(TASKS)])
        c.wait(b)
        ends = [c.task(b, i) for i in range(TASKS)]
        states = [e.state for e in ends]
        c.batch_free(b)
        rounds += 1
        if not told:
            pipe.send("running")
            told = True
        try:
            if pipe.s.recv(100):
                break
        except BlockingIOError:
            pass
    pipe.s.setblocking(True)
    pipe.send(rounds, sorted({(e.state, e.error) for e in ends}))
    pipe.recv()  # the device is lost
    try:
        c.alloc(SIZE * 20, location=b"cuda:%d" % ordinal)
        pipe.send("given")
    except McshmError as e:
        pipe.send(e.status, e.text)
    pipe.recv()
    host_memory_works(Client(agent.socket))
    # what the device's memory holds, the client's own context still sees
    if states == [COMPLETED] * TASKS:
        equal(device.get(gpu, PIECE), bytes([0x31 + ordinal]) * PIECE, "bytes in the GPU")
    c.close()
    device.release()


def lost(call, action, error, word):
    agent = Agent()
    a, b = (Child(lambda pipe, o=o: many(agent, o, pipe)) for o in range(2))
    for child in (a, b):
        equal(child.pipe.recv(), ["running"])
    # both copiers pass here; the device whose copy it was is lost, and the rule is at its end
    control.arm(call, action, error, pid=agent.pid(), first=5)
    await_(lambda: [d["lost"] for d in gpus(agent)["devices"]].count(True) == 1, "a device to be lost")
    control.disarm()
    gone = [d["lost"] for d in gpus(agent)["devices"]].index(True)
    check(word in agent.text() and UUIDS[gone] in agent.text(), "the log does not say it:", agent.text())
    victim, other = (a, b)[gone], (a, b)[1 - gone]
    rounds, ends = victim.pipe.recv()
    check([FAILED, GPU_LOST] in ends and all(e in ([FAILED, GPU_LOST], [COMPLETED, 0]) for e in ends), "ends of tasks:", ends)
    other.pipe.send("enough")
    rounds, ends = other.pipe.recv()
    equal(ends, [[COMPLETED, 0]], "ends of tasks on the other device")
    for child in (victim, other):
        child.pipe.send("go")
    status, text = victim.pipe.recv()
    equal(status, GPU_LOST, text)
    check(UUIDS[gone] in text and "the agent anew" in text, text)
    equal(other.pipe.recv(), ["given"])
    for child in (victim, other):
        child.pipe.send("go")
        child.join()
    finish(agent, lost=True)


def next_agent():
    """The agent that comes after one that has lost a device has none of its contexts: clients' memory is theirs again, with its bytes."""
    agent = Supervised()
    pid = agent.pid()

    def keeps(pipe):
        c, device = Client(agent.socket), cuda.Device()
        host, gpu = c.alloc(SIZE), c.alloc(SIZE, location=b"cuda:0")
        device.fill(gpu, SIZE, 0x77)
        c.publish("keeps")
        s, at = c.open("keeps"), c.buffer(gpu, SIZE)
        equal(c.read(host, s, at, 4096).state, COMPLETED, "a copy before")
        pipe.send("go")
        pipe.recv()
        t = c.read(host, s, at, 4096)
        equal((t.state, t.error), (FAILED, GPU_LOST), "a copy on a lost device")
        pipe.send("lost")
        pipe.recv()
        C.memset(host, 0, SIZE)
        equal(c.read(host, s, at, SIZE).state, COMPLETED, "a copy by the next agent")
        equal(peek(host, SIZE), b"\x77" * SIZE, "what it has read")
        c.close()
        device.release()
    child = Child(keeps)
    child.pipe.recv()
    control.arm("run:copy", FAIL, cuda.ILLEGAL_ADDRESS, pid=pid)
    child.pipe.send("go")
    child.pipe.recv()
    control.disarm()
    agent.kill_agent()
    agent.await_next(pid)
    child.pipe.send("go")
    child.join()
    finish(agent)


for scenario, *more in ((lost, "run:copy", FAIL, cuda.ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"),
                        (lost, "cuEventQuery", LOSE, cuda.ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"),
                        (lost, "cuMemcpyAsync", LOSE, cuda.ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"),
                        (next_agent,)):
    start = time.monotonic()
    scenario(*more)
    print(f"{scenario.__name__} {' '.join(map(str, more[:1]))}: {time.monotonic() - start:.1f} s", flush=True)
