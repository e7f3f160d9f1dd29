#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A while of everything at once, with clients killed at random: every byte is checked, and in the end
nothing is left. The seed is printed, so that a failure can be looked for again."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

SECONDS = 12
WORKERS = 4
AREA = 1 << 20  # of the target, one a worker
GUARD = 4096    # at either end of an area, never named by a task
seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
print("seed", seed)
agent = Agent("task.deadline_ms=60000")
owner = Client(agent.socket, "owner")
base = owner.alloc(WORKERS * AREA)
fill(base, WORKERS * AREA, 0xee)
owner.publish("target")
address = owner.buffer(base, WORKERS * AREA)
granted = owner.alloc(WORKERS * AREA)
fill(granted, WORKERS * AREA, 0xee)
granted_at = owner.buffer(granted, WORKERS * AREA, RW | A_MAP_READ | A_MAP_WRITE)


def worker(index, life):
    rng = random.Random(seed * 1000 + index * 100 + life)

    def run(pipe):
        c = Client(agent.socket, f"worker {index}.{life}", caller_max=rng.choice([0, 65536]),
                   queue=dict(depth=64, slots=256, batches=16, args_size=65536))
        s = c.open("target")
        mine = c.alloc(AREA)
        pipe.send("at work")
        while True:
            at = rng.choice([address, granted_at]) + index * AREA
            size = rng.choice([1, 64, 4096, 100000, rng.randrange(1, AREA - 2 * GUARD)])
            offset = rng.randrange(GUARD, AREA - GUARD - size + 1)
            data = rng.randbytes(min(size, 512)) * (size // min(size, 512) + 1)
            C.memmove(mine + offset, data, size)
            kind = rng.randrange(6)
            if kind == 0 and size >= 64:  # the same bytes as a list, in any order
                step = max(size // 40, 1)
                pieces = [(o, o, min(step, size - o)) for o in range(0, size, step)]
                rng.shuffle(pieces)
                t = c.run(c.request(WRITE, mine + offset, s, at + offset, 0), pieces=pieces)
            elif kind == 1:  # canceled: how far it came is not told, so it is written again
                b = c.batch(2)
                r = c.request(WRITE, mine + offset, s, at + offset, size, priority=BACKGROUND)
                c.submit(b, r, r)
                c.cancel(b, 0)
                c.wait(b)
                check(c.task(b, 0).state in (COMPLETED, S_CANCELED), "a canceled task")
                t = c.task(b, 1)
                c.batch_free(b)
            elif kind == 2:  # memory that comes and goes
                other = c.alloc(size)
                C.memmove(other, mine + offset, size)
                t = c.write(other, s, at + offset, size, priority=rng.randrange(3))
                c.free(other)
            else:
                t = c.write(mine + offset, s, at + offset, size, priority=rng.randrange(3))
            equal((t.state, t.bytes), (COMPLETED, size), "a write")
            fill(mine + offset, size, 0)
            b = c.batch(1)
            c.submit(b, c.request(READ, mine + offset, s, at + offset, size, flags=FENCE))
            c.wait(b)
            equal(c.task(b).state, COMPLETED, "a read")
            c.batch_free(b)
            check(peek(mine + offset, size) == data[:size], "bytes came back wrong", index, life)
    return Child(run)


rng = random.Random(seed)
lives = [0] * WORKERS
workers = [worker(i, 0) for i in range(WORKERS)]
for w in workers:
    w.pipe.recv()
end = time.monotonic() + SECONDS
kills = 0
while time.monotonic() < end:
    i = rng.randrange(WORKERS)
    try:  # a worker that fails says so by its end
        workers[i].pipe.s.settimeout(rng.random() * 0.4)
        workers[i].pipe.s.recv(1)
        raise AssertionError(f"worker {i} ended: {os.waitpid(workers[i].pid, 0)}")
    except TimeoutError:
        pass
    workers[i].kill(rng.choice([signal.SIGKILL, signal.SIGTERM]))
    kills += 1
    lives[i] += 1
    workers[i] = worker(i, lives[i])
    workers[i].pipe.recv()
for w in workers:
    w.kill()
print(kills, "clients killed,", agent.counter("tasks"), "tasks")
await_(lambda: agent.status()["sessions"] == 2, "the workers to go")
for start in (base, granted):
    for i in range(WORKERS):
        for at in (start + i * AREA, start + (i + 1) * AREA - GUARD):
            equal(peek(at, GUARD), b"\xee" * GUARD, "guard bytes")
equal(agent.counter("sessions_thrown_out"), 0, "sessions thrown out: " + agent.text())
equal(agent.counter("broken_queues"), 0, "broken queues")
owner.close()
agent.finish()
