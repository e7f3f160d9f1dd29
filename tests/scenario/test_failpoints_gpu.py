# SPDX-License-Identifier: Apache-2.0
# long
"""The agent dies or fails wherever it makes, imports, gives back or takes back GPU memory: whoever asked is told and can ask again, the
bytes of those who come back are right, and nothing is left with the driver, whose double counts."""
from failpoints import *
import cuda

cuda.requires_double()
MiB = 1 << 20
points = Points("agent")


def everything(device, c, tolerant=False):
    """GPU memory of all kinds, used and given back. tolerant: what is refused is asked for again, and then had."""
    def do(call, *args, **more):
        try:
            return call(*args, **more)
        except McshmError as e:
            check(tolerant and e.status != AGENT_DOWN, e)
            return call(*args, **more)
    def transfer(address):
        """Two tasks, the first of which waits for what the second one sets."""
        fill(words, 4, 0)
        b = c.batch(2)
        c.submit(b, c.request(WRITE, host, s, address, MiB, order=after(words, 1, words + 4, 1)),
                 c.request(WRITE, host, s, hosts, 4096, order=after(None, 0, words, 1)))
        c.wait(b)
        states = [c.task(b, i).state for i in range(2)]
        c.batch_free(b)
        return states

    def objects(op, at, **more):
        def once():
            return c.objects(op, [b"gpu", b"host"], spans=[[(at, MiB)], [(host, MiB)]], gpu_synced=True, **more)
        states = [r.status for r in do(once)]
        check(states == [OK] * 2 or tolerant and [r.status for r in once()] == [OK] * 2, "objects", states)

    host, words = do(c.alloc, MiB), do(c.alloc, 64)
    fill(words, 64, 0)
    made = do(c.alloc, MiB, location=b"cuda:0")
    theirs = device.segments(2 * MiB, 2 * MiB)
    do(c.register_gpu, theirs.at + 4096, 3 * MiB)
    late = do(c.alloc, 40 * MiB)
    c.publish("everything")
    s, hosts = c.open("everything"), c.buffer(late, MiB)
    for at in (made, theirs.at + 4096):
        address = c.buffer(at, MiB)
        fill(host, MiB, 7)
        states = transfer(address)
        check(states == [COMPLETED] * 2 or tolerant and transfer(address) == [COMPLETED] * 2, "transfers", states)
        equal(device.get(at, MiB), b"\7" * MiB, "its bytes")
    objects(PUT, made, flags=UPSERT)
    device.fill(made, MiB, 0)
    objects(GET, made, flags=VERIFY)
    equal(device.get(made, MiB), b"\7" * MiB, "an object's bytes")
    c.removed("all", FORCE)
    c.withdraw()
    c.unregister(theirs.at + 4096)
    theirs.free()
    for at in (made, late, words, host):
        c.free(at)


def one(tolerant=False, codes=(0,)):
    """Such a client in a process of its own: 0, or, where the agent is to die, 3 when that kept something from it."""
    def run(pipe):
        device = cuda.Device()
        try:
            c = Client(agent.socket, "one")
            everything(device, c, tolerant)
            c.close()
        except (McshmError, AssertionError) as e:
            if 3 not in codes:
                raise
            print("with its agent goes:", e, flush=True)
            os._exit(3)
    code = os.waitstatus_to_exitcode(os.waitpid(Child(run).pid, 0)[1])
    check(code in codes, f"exit code {code}, wanted {codes}")


def nothing_left(what):
    await_(agent.empty, f"{what}: the agent to have nothing left: {agent.status()}")
    await_(lambda: cuda.control.bytes_used() == 0, f"{what}: device memory to be free")


agent = Agent(*SETTINGS, "store.size=32M", "store.extent_size=8M", prefix=points.prefix())
one()
points.reached("agent", "gpu")
for name in points.names("agent", "gpu", fails=True):
    for nth in (1, 2, 3):
        acted = points.acted(name)
        points.arm(name, FAIL, errno.ENOMEM, first=nth)
        one(tolerant=True)
        points.disarm(name)
        check(agent.alive(), f"the agent died of {name}:", agent.text())
        check(nth > 1 or points.acted(name) > acted, f"{name} was not passed")
        nothing_left(f"after {name}@{nth} has failed")
for name in points.names("agent", "gpu")[::{"thread": 3, "address": 2}.get(SAN, 1)]:
    agent.kill()
    agent.start()
    points.arm(name, KILL)
    one(codes=(0, 3))
    await_(lambda: not agent.alive(), f"the agent to die at {name}")
    points.disarm(name)
    equal(agent.process.poll(), -signal.SIGKILL, f"the agent's end at {name}")
    await_(lambda: cuda.control.bytes_used() == 0, f"device memory to be free after {name}")
    agent.start()
    one()
    nothing_left(f"the life after {name}")
agent.finish()

# Who has GPU memory, of both kinds, while agents die and come back.
agent = Supervised(*SETTINGS, prefix=points.prefix())


def keeper(pipe):
    device, c = cuda.Device(), Client(agent.socket, "keeper")
    theirs, ipc = device.segments(2 * MiB, 2 * MiB), device.alloc(4 * MiB)
    host = c.alloc(MiB)
    ranges = {c.alloc(3 * MiB, location=b"cuda:0"): 3 * MiB, theirs.at: 4 * MiB, ipc + 256: 3 * MiB}
    for at in list(ranges)[1:]:
        c.register_gpu(at, ranges[at])
    c.publish("keeper")
    s, addresses = c.open("keeper"), {at: c.buffer(at, MiB) for at in ranges}
    n = 0
    pipe.send("ready")
    while pipe.recv()[0] == "look":
        lost = 0
        for at, address in addresses.items():
            n += 1
            fill(host, MiB, n % 251)
            t = c.write(host, s, address, MiB)
            if t.state != COMPLETED:  # what was being taken back when it failed
                lost += 1
                continue
            equal(device.get(at, MiB), bytes([n % 251]) * MiB, "bytes in the GPU")
        pipe.send(lost)
    c.close()
    for at in (theirs,):
        at.free()
    device.free(ipc)
    device.release()


def look(k):
    k.pipe.send("look")
    return k.pipe.recv()[0]


k = Child(keeper)
equal(k.pipe.recv(), ["ready"], "the keeper")
equal(look(k), 0, "lost before anything has happened")
agent.await_next(agent.kill_agent())
agent.calm()
equal(look(k), 0, "lost by a restart")
points.reached("agent", "gpuback")
for name in points.names("agent", "gpuback"):
    for nth in (1, 2, 3):
        acted = points.acted(name)
        points.arm(name, KILL, first=nth)
        agent.kill_agent()
        await_(lambda: points.acted(name) > acted, f"the next agent to die at {name}@{nth}")
        points.disarm(name)
        agent.calm()
        equal(look(k), 0, f"lost by two deaths, the second at {name}@{nth}")
for name in points.names("agent", "gpuback", fails=True):
    acted = points.acted(name)
    points.arm(name, FAIL)
    agent.kill_agent()
    await_(lambda: points.acted(name) > acted, f"{name} to fail")
    points.disarm(name)
    agent.calm()
    check(look(k) <= 1, f"{name}: more is lost than what failed")
k.pipe.send("end")
k.join()
nothing_left("the keeper is gone")
agent.finish()
