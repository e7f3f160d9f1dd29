# SPDX-License-Identifier: Apache-2.0
"""What scenarios of the GPU driver's faults share: agents and clients on the double (cuda.py) that do everything once."""
import cuda
from mcshm import *  # noqa: F401,F403

MiB = 1 << 20
SIZE = 3 * MiB
CUDA = PATHS.index("cuda")
UUIDS = [f"GPU-facecd{d:02x}-fa4e-4cda-8000-facefaceface" for d in range(2)]
control = cuda.control


def agent_with(*settings, **environment):
    return Agent(*settings, prefix=["env"] + [f"{k}={v}" for k, v in environment.items()])


def apart(f, *args):
    """In a process of its own, since a process loads the driver once."""
    Child(lambda pipe: f(*args)).join()


def gpus(agent):
    return agent.ask("ls", "gpus")


def used(ordinal=0):
    """Bytes of a device that anybody alive holds."""
    def ask(pipe):
        free, total = C.c_size_t(), C.c_size_t()
        device = cuda.Device(ordinal)
        with device.current():
            device("cuMemGetInfo_v2", C.byref(free), C.byref(total))
        device.release()
        pipe.send(total.value - free.value)
    child = Child(ask)
    n, = child.pipe.recv()
    child.join()
    return n


def finish(agent, lost=False):
    """Nothing of the driver's is left behind, but on a device that is lost, and nothing was called that must not be."""
    pid = agent.pid()
    agent.finish()
    equal(control.misuse(pid), "", "calls that only a bug explains")
    if not lost:
        equal(control.left(pid), {}, "what the agent has left behind")
    equal([used(0), used(1)], [0, 0], "GPU memory that is still held")


def host_memory_works(c):
    c.publish("works")
    p = c.alloc(MiB)
    fill(p, MiB, 0x5a)
    s = c.write(p, c.open("works"), c.buffer(p, MiB) + MiB // 2, MiB // 2)
    equal(s.state, COMPLETED, "a copy of host memory")
    c.free(p)
    c.withdraw()


def moves(c, device, seed):
    """From host memory into the GPU's, within it, and back, by the agent; the bytes are right."""
    host, gpu = c.alloc(SIZE), c.alloc(SIZE, location=b"cuda:%d" % device.ordinal)
    c.publish(f"moves{os.getpid()}")
    s = c.open(f"moves{os.getpid()}")
    at = c.buffer(host, SIZE), c.buffer(gpu, SIZE)
    data = bytes((i * 7 + seed) % 251 for i in range(4096)) * (MiB // 4096)
    C.memmove(host, data, MiB)
    for local, remote in ((host, at[1]), (gpu, at[1] + MiB), (gpu + MiB, at[0] + 2 * MiB)):
        t = c.write(local, s, remote, MiB, flags=SYNCED)
        if t.state != COMPLETED:
            raise McshmError(t.error, "write", "a task")
        equal(t.path, CUDA, "the path")
    equal(peek(host + 2 * MiB, MiB), data, "what came back from the GPU")
    # a list from back to front, which the driver gets as a batch
    fill(host + 2 * MiB, MiB, 0)
    t = c.run(c.request(READ, host + 2 * MiB, s, at[1], 0, flags=SYNCED),
              pieces=[(n, n, 4096) for n in reversed(range(0, MiB, 4096))])
    if t.state != COMPLETED:
        raise McshmError(t.error, "read", "a list")
    equal(peek(host + 2 * MiB, MiB), data, "what came back in pieces")
    c.withdraw()
    c.free(gpu)
    c.free(host)


def registers(c, device):
    at = device.alloc(SIZE)
    try:
        c.do("register_gpu", c.c, C.c_void_p(at), SIZE)
        c.unregister(at)
    finally:
        device.free(at)


def uses(agent, ordinal=0):
    c, device = Client(agent.socket), cuda.Device(ordinal)
    moves(c, device, 3)
    registers(c, device)
    c.close()
    device.release()
