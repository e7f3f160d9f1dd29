#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a GPU driver can do to an agent and its clients, on the double: there is none, it is too old, cannot do what is needed, has
given the device to another process, has no memory, fails at each of its calls in turn."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from fake_cuda import FAIL  # noqa: E402
from gpu import *  # noqa: E402,F403

cuda.requires_double()
MOST = int(os.environ.get("GPU_MOST", 3))  # of each function's calls, that one after the other fails


def refuses(agent, status, *words, location=b"cuda:0", size=SIZE):
    """GPU memory is refused with these words, twice, and the rest goes on."""
    c = Client(agent.socket)
    for _ in range(2):
        text = refused(status, c.alloc, size, location=location)
        for word in words:
            check(word in text, f"'{word}' is not in:", text)
    host_memory_works(c)
    c.close()


def unable():
    """Agents whose driver cannot do it, each with the sentence that a client gets, and one line in the log."""
    for environment, status, *words in (
            ({"LD_LIBRARY_PATH": "/nowhere"}, NO_GPU, UUIDS[0], "libcuda.so.1", "install"),
            ({"FAKE_CUDA_VERSION": 11080}, NO_GPU, UUIDS[0], "11.8", "12.0", "later driver"),
            ({"FAKE_CUDA_MISSING": "cuMemCreate"}, NO_GPU, "cuMemCreate", "later driver"),
            ({"FAKE_CUDA_FAIL": "cuInit=CUDA_ERROR_SYSTEM_NOT_READY"}, NO_GPU, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-smi"),
            ({"FAKE_CUDA_DEVICES": 0}, NO_GPU, UUIDS[0], "no device", "CUDA_VISIBLE_DEVICES"),
            ({"CUDA_VISIBLE_DEVICES": 1}, NO_GPU, UUIDS[0], "CUDA_VISIBLE_DEVICES"),
            ({"FAKE_CUDA_VMM": 0}, NOT_SUPPORTED, UUIDS[0], "register"),
            ({"FAKE_CUDA_POSIX": 0}, NOT_SUPPORTED, UUIDS[0], "register"),
            ({"FAKE_CUDA_COMPUTE_MODE": 2}, GPU_CONTEXT, UUIDS[0], "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
            ({"FAKE_CUDA_MEMORY": 2 * MiB}, NO_MEMORY, UUIDS[0], str(2 * MiB), "free some")):
        agent = agent_with(**environment)
        apart(refuses, agent, status, *words)
        lines = [line for line in agent.text().splitlines() if "no GPU memory" in line]
        check(len(lines) <= 1, "said more than once:", lines)
        finish(agent)


def late():
    """A driver that is not up yet when it is first wanted is tried again by a later request, and then it is there."""
    agent = agent_with(FAKE_CUDA_FAIL="cuInit:1=CUDA_ERROR_SYSTEM_NOT_READY")

    def tries():
        c = Client(agent.socket)
        text = refused(NO_GPU, c.alloc, SIZE, location=b"cuda:0")
        check("CUDA_ERROR_SYSTEM_NOT_READY" in text, text)

        def there():
            try:
                return c.alloc(SIZE, location=b"cuda:0")
            except McshmError as e:
                equal(e.status, NO_GPU, str(e))
        c.free(await_(there, "the driver to be tried again"))
        c.close()
    apart(tries)
    apart(uses, agent)
    equal(gpus(agent)["failed_opens"], 1, "times that it did not open")
    check("is there now, after 1 attempts" in agent.text(), agent.text())
    finish(agent)


def off():
    agent = agent_with("gpu.enable=off")
    apart(refuses, agent, NO_GPU, "enable")
    equal(control.process(agent.pid()), None, "an agent with [gpu] enable = off has called the driver")
    finish(agent)


def required():
    """[gpu] enable = require: an agent that has no GPU does not start, and says why."""
    agent = Agent("gpu.enable=require", prefix=["env", "LD_LIBRARY_PATH=/nowhere"], start=False)
    try:
        agent.start()
    except AssertionError as e:
        check("libcuda.so.1" in str(e), "why it does not start:", e)
    else:
        raise AssertionError("it starts without a driver")
    agent = agent_with("gpu.enable=require")
    apart(uses, agent)
    finish(agent)


def instances():
    """MIG instances are devices like others, but reach no other one."""
    agent = agent_with(FAKE_CUDA_MIG=1)
    os.environ["FAKE_CUDA_MIG"] = "1"
    apart(uses, agent)
    del os.environ["FAKE_CUDA_MIG"]
    check("GPU MIG-facecd00-" in agent.text(), "the log does not say so:", agent.text())
    equal(gpus(agent)["devices"][0]["uuid"], UUIDS[0].replace("GPU", "MIG"), "its name")
    finish(agent)


def another_s_device():
    """EXCLUSIVE_PROCESS: what the agent has, clients cannot use, and the other way round; both are told how to change it."""
    os.environ["FAKE_CUDA_COMPUTE_MODE"] = "3"
    agent = Agent()
    held = Child(lambda pipe: (cuda.Device(), pipe.send("has it"), pipe.recv()))
    held.pipe.recv()

    def refused_by_agent():
        c = Client(agent.socket)
        text = refused(GPU_CONTEXT, c.alloc, SIZE, location=b"cuda:0")
        check("CUDA_ERROR_DEVICE_UNAVAILABLE" in text and "nvidia-smi -c DEFAULT" in text, text)
        host_memory_works(c)
        c.close()
    apart(refused_by_agent)
    held.pipe.send("go")
    held.join()
    del os.environ["FAKE_CUDA_COMPUTE_MODE"]
    finish(agent)


def full():
    """A device's memory runs out under two clients: who comes too late is told so, and what is freed is there again."""
    agent = agent_with("gpu.extent_size=4M", FAKE_CUDA_MEMORY=32 * MiB)

    def takes(pipe):
        c, have = Client(agent.socket), []
        while True:
            try:
                have.append(c.alloc(4 * MiB, location=b"cuda:0"))
            except McshmError as e:
                equal(e.status, NO_MEMORY, str(e))
                check(str(32 * MiB) in e.text and "free some" in e.text, e.text)
                break
        check(len(have) <= 8, len(have))
        pipe.send(len(have))
        pipe.recv()
        for p in have:
            c.free(p)
        c.close()
    os.environ["FAKE_CUDA_MEMORY"] = str(32 * MiB)
    a = Child(takes)
    first, = a.pipe.recv()
    check(first >= 6, "a client has got", first, "of the eight times 4 MiB that there are")
    b = Child(takes)
    equal(b.pipe.recv(), [0], "what another client has got")
    b.pipe.send("done")
    b.join()
    a.pipe.send("done")
    a.join()
    apart(uses, agent)
    del os.environ["FAKE_CUDA_MEMORY"]
    finish(agent)


# Whoever is refused the end of something cannot end it: the driver keeps it.
# Whoever cannot wait for a device does not know when it is done.
ENDS = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuMemFree_v2", "cuMemHostUnregister", "cuIpcCloseMemHandle",
        "cuStreamDestroy_v2", "cuEventDestroy_v2", "cuDevicePrimaryCtxRelease_v2", "cuCtxPopCurrent_v2"}
def calls_of(pid):
    names = [n.value.decode() for n in control.at.names if n.value]
    return [n for n in names if ":" not in n and n not in ENDS and control.calls(pid, n)]


def tolerant(agent, pipe=None):
    """Everything once; what is refused is refused."""
    c, device = Client(agent.socket), cuda.Device()
    if pipe:  # from here on its own calls fail
        pipe.send(os.getpid())
        pipe.recv()
    for f in (lambda: moves(c, device, 5), lambda: registers(c, device)):
        try:
            f()
        except McshmError as e:
            check(e.status in (NO_GPU, NO_MEMORY, GPU_CONTEXT, GPU_LOST, NOT_SUPPORTED), str(e))
        except cuda.CudaError:
            pass
    c.close()
    if pipe:
        pipe.send("closed")
        pipe.recv()
    device.release()


def each_call_of_the_agent():
    """Any call of the agent's fails once, and from then on: clients get an error or their bytes, and whoever comes next is served."""
    agent = Agent()
    apart(uses, agent)
    names = calls_of(agent.pid())
    finish(agent)
    check(len(names) > 15, names)
    failed = 0
    for name in names:
        agent = Agent()
        # devices are looked at once, and what is found then stays
        discovers = name.startswith(("cuInit", "cuD", "cuMemGetAllocationG")) and name != "cuDevicePrimaryCtxRetain"
        for first, times in [(1, 0)] * (name != "cuStreamSynchronize") + \
                [(n, 1) for n in range(1, 1 if discovers else MOST + 1)]:
            control.arm(name, FAIL, cuda.OUT_OF_MEMORY, first=first, times=times, pid=agent.pid())
            try:
                apart(tolerant, agent)
                c = Client(agent.socket)
                host_memory_works(c)
                c.close()
                check(agent.alive(), "the agent is gone")
            except Exception:
                print(f"{name}, failing from the {first}. call on, {times} times:", agent.text())
                raise
            failed += control.at.rules[0].acted
            control.disarm()
        if not discovers:
            apart(uses, agent)
        finish(agent)
    check(failed > 2 * len(names), "only", failed, "calls have failed")


def each_call_of_a_client():
    """The same in the client's process: it gets an error, and neither it nor the agent has anything left of it."""
    agent = Agent()
    child = Child(lambda pipe: uses(agent))
    child.join()
    names, failed = calls_of(child.pid), 0
    check(len(names) > 15, names)
    for name in names:
        for first, times in [(1, 0)] + [(n, 1) for n in range(1, MOST + 1)]:
            child = Child(lambda pipe: tolerant(agent, pipe))
            pid, = child.pipe.recv()
            control.arm(name, FAIL, cuda.OUT_OF_MEMORY, first=first, times=times, pid=pid)
            child.pipe.send("go")
            child.pipe.recv()
            failed += control.at.rules[0].acted
            control.disarm()
            child.pipe.send("go")
            child.join()
            equal(control.misuse(pid), "", f"misuse after {name} failed")
            if name != "cuCtxPushCurrent_v2":  # the test's own end of things fails by that, too
                equal(control.left(pid), {}, f"what the client has left behind after {name} failed")
            await_(agent.empty, "the agent to be empty after " + name)
    check(failed > 2 * len(names), "only", failed, "calls have failed")
    apart(uses, agent)
    finish(agent)


for scenario in (unable, late, off, required, instances, another_s_device, full, each_call_of_the_agent, each_call_of_a_client):
    start = time.monotonic()
    scenario()
    print(f"{scenario.__name__}: {time.monotonic() - start:.1f} s", flush=True)
