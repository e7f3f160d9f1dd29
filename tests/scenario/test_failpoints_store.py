#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""The agent dies, or is refused something, wherever it makes, keeps, gives and takes back memory for objects. What was acknowledged
is there afterwards with the right bytes; a client meets NO_SPACE or a clear refusal at worst; nothing is left behind."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from failpoints import *  # noqa: E402,F403

MiB, QUERY_STORE = 1 << 20, 8
points = Points("agent")
agent = Supervised("store.size=24M", "store.extent_size=2M", "agent.barrier_ms=100", "admin.mode=off",
                   prefix=points.prefix())
me = Client(agent.socket, "me")
acknowledged = {}
serial = 0


def data(key, size):
    return random.Random(key).randbytes(size)


def put(size, **more):
    """True: it was acknowledged."""
    global serial
    serial += 1
    key = b"key-%d" % serial
    try:
        r = me.put((key, data(key, size)), **more)[0]
    except McshmError as e:
        check(e.status in (AGENT_RESTARTED, NO_MEMORY), "a put ends with", e)
        return False
    if me.last.state == FAILED:
        equal(me.last.error, AGENT_RESTARTED, "how a put fails")
        return False
    if r.status == OK:
        acknowledged[key] = size
    check(r.status in (OK, NO_SPACE), "a put:", r.status)
    return r.status == OK


def verify(what):
    """Hard pins: none of them may have gone."""
    for key, size in acknowledged.items():
        status, got = me.get(key, room=max(size, 64))[0]
        equal(status, OK, f"{key} after {what}")
        check(got == data(key, size), key, "has other bytes after", what)


def clear():
    me.do("objects_remove_all", me.c, 0x020, None)
    acknowledged.clear()


def connect():
    """None: the agent has died over it."""
    try:
        return Client(agent.socket, "other")
    except McshmError as e:
        check(e.status in (AGENT_DOWN, NO_MEMORY), "a connection:", e)
        return None


def raw_maps():
    """The library gives a mapping back only when it has no use for it: here by hand."""
    raw = Raw(agent.socket)
    raw.send(1, struct.pack("<IIQ256s", 2, 0, 4, b"raw"))  # it will not come back to a later agent
    raw.recv()
    for extent in range(1, 64):
        for type_ in (28, 29):
            try:
                raw.send(type_, struct.pack("<II", extent, 0))
                answer = raw.recv()
            except OSError:
                return
            if answer is None:
                return  # the agent has died
            for fd in answer[3]:
                os.close(fd)


def work():
    """Extents come, are mapped for reading and writing, are listed, and go."""
    put(3 * MiB, flags=4)
    put(1000, flags=4)
    other = await_(connect, "a connection")
    try:
        r = other.create((b"open-%d" % serial, 4096))[0]
        if r.status == OK:
            other.release(r.hold)
        key = next(iter(acknowledged), None)
        if key is not None:
            r = other.hold(key)[0]
            if r.status == OK:
                check(peek(r.address, acknowledged[key]) == data(key, acknowledged[key]), key, "in place")
                other.release(r.hold)
        other.list()
        raw_maps()
    except McshmError as e:
        check(e.status in (AGENT_RESTARTED, AGENT_DOWN, NO_MEMORY, LIMIT, INVALID_HANDLE), "control calls:", e)
    other.close()


def move():
    """What is larger than an extent takes the place of what is smaller: extents are emptied, and given back."""
    for size in 30 * [MiB] + [(5 + serial % 7 * 2) * MiB, (6 + serial % 5 * 3) * MiB]:
        put(size)
        acknowledged.pop(b"key-%d" % serial, None)  # it may be evicted


def provoke(name):
    move() if name.startswith(("store_extent", "object_extent")) and name not in back else work()


def died(name, acted):
    await_(lambda: points.acted(name) > acted, f"the agent to die at {name}")
    points.disarm(name)


names = points.names("agent", "store")
back = {"store_extent_back", "store_unguard"}  # passed by the agent that takes over
work()
verify("nothing")
for name in names:
    acted = points.acted(name)
    points.arm(name, KILL)
    if name in back:
        agent.kill_agent()
        if name == "store_unguard":
            me.close()
            me = await_(connect, "a connection")
    for _ in range(20):
        if points.acted(name) > acted:
            break
        provoke(name)
        if len(acknowledged) > 6:
            clear()
    died(name, acted)
    agent.calm()
    await_(lambda: me.exist(b"x") == [NOT_FOUND], "the agent to answer")
    verify(f"a death at {name}")
    work()
    verify(f"a death at {name}, and more")
    clear()
for name in points.names("agent", "store", fails=True):
    acted = points.acted(name)
    points.arm(name, FAIL)
    if name in back:
        agent.kill_agent()
        acknowledged.clear()  # an extent that cannot be mapped again is lost, and said to be
    for _ in range(20):
        if points.acted(name) > acted:
            break
        provoke(name)
        if len(acknowledged) > 6:
            clear()
    check(points.acted(name) > acted, name, "was not passed")
    points.disarm(name)
    agent.calm()
    if name not in back:
        verify(f"a failure of {name}")
    clear()
    check(put(1000), "a put after", name, "has failed")

# a table over which no start comes to its end is not tried for ever: the next one begins without objects
check(put(1000), "a put")
acted = points.acted("store_recovered")
points.arm("store_recovered", KILL, times=3)
agent.kill_agent()
await_(lambda: points.acted("store_recovered") == acted + 3, "three starts to end")
points.disarm("store_recovered")
await_(lambda: "starts over them have failed again and again" in agent.text(), "a start without objects")
me.close()
me = await_(connect, "a connection")
equal(me.object_json("query", QUERY_STORE)["objects"], 0, "objects after starts that failed")
acknowledged.clear()
check(put(1000), "a put into a fresh store")
me.close()
agent.finish()
