#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls of the driver that do not come back hold up nobody but whom they are about: who died with its memory there, who asked for
some (field report B77); and copies that do not end."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda  # noqa: E402
from fake_cuda import HANG  # noqa: E402
from gpu import *  # noqa: E402,F403

cuda.requires_double()
SAID = "has not returned"


def holder(agent, pipe):
    """Has memory of both kinds, and dies or goes on with it."""
    c, device = Client(agent.socket, "holder"), cuda.Device()
    own = device.alloc(SIZE)
    c.do("register_gpu", c.c, C.c_void_p(own), SIZE)
    c.alloc(SIZE, location=b"cuda:0")
    pipe.send("has it")
    pipe.recv()


def steady(agent, pipe):
    """Somebody else, on the same device, all the time."""
    c, device = Client(agent.socket, "steady"), cuda.Device()
    while pipe.recv() == ["go"]:
        moves(c, device, 9)
        host_memory_works(c)
        registers(c, device)
        pipe.send("done")
    c.close()
    device.release()


def go(child):
    child.pipe.send("go")
    equal(child.pipe.recv(), ["done"])


def death(call):
    """The end of a dead client's memory hangs in the driver: others go on, new ones come, it is counted and said once, and once the
    call comes back the memory is gone, too."""
    agent = Agent()
    other = Child(lambda pipe: steady(agent, pipe))
    go(other)
    a = Child(lambda pipe: holder(agent, pipe))
    a.pipe.recv()
    control.arm(call, HANG, pid=agent.pid())
    a.kill()
    await_(lambda: control.waiting() == 1, f"{call} to hang")
    go(other)
    apart(uses, agent)
    await_(lambda: gpus(agent)["stuck_now"] == 1, "the call to count as stuck")
    go(other)
    apart(uses, agent)
    report = gpus(agent)
    equal((report["stuck"], report["stuck_now"]), (1, 1), "stuck calls")
    check(report["devices"][0]["ours"] >= SIZE, "memory that the driver still has does not count:", report)
    lines = [line for line in agent.text().splitlines() if SAID in line]
    equal(len(lines), 1, f"lines about it: {agent.text()}")
    control.disarm()
    await_(lambda: gpus(agent)["stuck_now"] == 0, "the call to come back")
    go(other)
    other.pipe.send("end")
    other.join()
    finish(agent)


def wish():
    """The call that is to make memory hangs: who asked waits, and is let go of when it is killed; others are served."""
    agent = Agent()
    other = Child(lambda pipe: steady(agent, pipe))
    go(other)
    control.arm("cuMemCreate", HANG, pid=agent.pid())
    a = Child(lambda pipe: holder(agent, pipe))
    await_(lambda: control.waiting() == 1, "cuMemCreate to hang")
    go(other)
    apart(uses, agent)
    a.kill()
    go(other)
    control.disarm()
    other.pipe.send("end")
    other.join()
    finish(agent)


def limit(call):
    """Who asked hears after [gpu] call_s that the call hangs; so does what its process asks for next, at once. What comes of the call
    is freed when it is back."""
    agent = Agent("gpu.call_s=1")
    other = Child(lambda pipe: steady(agent, pipe))
    go(other)

    def asks(pipe):
        c, device = Client(agent.socket), cuda.Device()
        own = device.segments(SIZE - SIZE % cuda.GRANULARITY)
        pipe.recv()
        start = time.monotonic()
        if call == "cuMemCreate":
            text = refused(TIMEOUT, c.alloc, SIZE, location=b"cuda:0")
        else:
            text = refused(TIMEOUT, c.register_gpu, own.at, own.sizes[0])
        check("[gpu] call_s" in text and UUIDS[0] in text, text)
        check(0.9 < time.monotonic() - start < 20, "it took", time.monotonic() - start)
        for client in (c, Client(agent.socket)):
            text = refused(TIMEOUT, client.alloc, SIZE, location=b"cuda:0")
            check("still hangs" in text, text)
            host_memory_works(client)
        pipe.send("told")
        pipe.recv()
        moves(c, device, 3)
        c.close()
        own.free()
        device.release()
    a = Child(asks)
    control.arm(call, HANG, pid=agent.pid(), times=1)
    a.pipe.send("go")
    equal(a.pipe.recv(), ["told"])
    go(other)
    equal(gpus(agent)["told_late"], 1, "requests that were answered before the driver did")
    control.disarm()
    await_(lambda: gpus(agent)["devices"][0]["ours"] == 0, "the call to come back, and what it made to be freed")
    a.pipe.send("go")
    a.join()
    go(other)
    other.pipe.send("end")
    other.join()
    finish(agent)


def copies():
    """A copy hangs: its task has not ended, whatever its deadline, since the device may still write; host memory and the other device go
    on; once it comes back the task ends."""
    agent = Agent()

    def waits(pipe):
        c, device = Client(agent.socket), cuda.Device()
        host, gpu = c.alloc(SIZE), c.alloc(SIZE, location=b"cuda:0")
        c.publish("waits")
        s, at = c.open("waits"), c.buffer(gpu, SIZE)
        b = c.batch()
        pipe.recv()
        c.submit(b, c.request(WRITE, host, s, at, SIZE, deadline_us=200000))
        pipe.send("submitted")
        pipe.recv()
        equal(c.task(b).state, PENDING, "a task whose copy hangs, long after its deadline")
        pipe.send("pending")
        c.wait(b)
        state = c.task(b).state
        check(state in (S_TIMEOUT, COMPLETED), "how it ends:", state)
        c.batch_free(b)
        c.close()
        device.release()
    other = Child(lambda pipe: steady(agent, pipe))
    go(other)
    a = Child(waits)
    control.arm("run:copy", HANG, pid=agent.pid())
    a.pipe.send("go")
    a.pipe.recv()
    await_(lambda: control.waiting() == 1, "the copy to hang")
    apart(lambda: host_memory_works(Client(agent.socket)))
    apart(uses, agent, 1)
    time.sleep(0.3)  # beyond the deadline
    a.pipe.send("look")
    equal(a.pipe.recv(), ["pending"])
    control.disarm()
    a.join()
    go(other)
    other.pipe.send("end")
    other.join()
    finish(agent)


def end():
    """An agent that is told to stop stops, though a call hangs."""
    agent = Agent()
    a = Child(lambda pipe: holder(agent, pipe))
    a.pipe.recv()
    control.arm("cuIpcCloseMemHandle", HANG, pid=agent.pid())
    a.kill()
    await_(lambda: control.waiting() == 1, "the call to hang")
    equal(agent.stop(), 0, "exit status: " + agent.text())
    control.disarm()


for scenario, *more in ((death, "cuIpcCloseMemHandle"), (death, "cuMemUnmap"), (death, "cuMemRelease"), (wish,), (limit, "cuMemCreate"), (limit, "cuMemImportFromShareableHandle"), (copies,), (end,)):
    start = time.monotonic()
    scenario(*more)
    print(f"{scenario.__name__} {' '.join(more)}: {time.monotonic() - start:.1f} s", flush=True)
