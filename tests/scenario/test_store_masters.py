#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Three agents, three masters, an etcd of three: leaders die, stall, are cut off; hosts die with the only copy and with one of
two. What was acknowledged stays readable with its bytes, from everywhere, and two leaders never act."""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from masters import *  # noqa: E402,F403

AWAY = (PEER_UNREACHABLE, NO_DIRECTORY, REBUILDING, TIMEOUT, AGENT_DOWN, NOT_OWNER)


def data_of(key):
    r = random.Random(key)
    return r.randbytes(r.choice([1, 100, 4096, 20000]))


class Writer(threading.Thread):
    """Puts key after key on one host until it is told to stop; what was acknowledged is in `acked`."""

    def __init__(self, cluster, i, name):
        super().__init__(daemon=True)
        self.cluster, self.i, self.name_, self.acked, self.others, self.over = cluster, i, name, [], [], False
        self.failure = None
        self.start()

    def run(self):
        try:
            c = self.cluster.client(self.i, self.name_)
            n = 0
            while not self.over:
                key = f"{self.name_}/{n}".encode()
                r, = c.put((key, data_of(key)))
                (self.acked if r.status == OK else self.others).append((key, r.status))
                n += 1
                time.sleep(0.002)
            c.close()
        except BaseException as e:  # noqa: the test's own thread says it
            self.failure = e

    def stop(self):
        self.over = True
        self.join(60)
        check(not self.is_alive(), "a writer hangs")
        if self.failure:
            raise self.failure
        for key, status in self.others:
            check(status in AWAY, key, "was answered", status)
        return [key for key, _ in self.acked]


def until(writers, more):
    """Each of the writers has got so many more acknowledged."""
    counts = [len(w.acked) for w in writers]
    for w, n in zip(writers, counts):
        await_(lambda: len(w.acked) >= n + more or w.failure, "puts to go on", 60)


def all_readable(cluster, keys):
    for i in range(len(cluster.agents)):
        c = cluster.client(i, "reader")
        for at in range(0, len(keys), 200):
            part = keys[at:at + 200]
            for key, (status, data) in zip(part, c.get(*part, room=20000)):
                equal(status, OK, (key, "from host", i))
                check(data == data_of(key), key, "has other bytes on host", i)
        c.close()


cluster = Cluster()
leader = cluster.await_leader()
acked = []

# -- the leader is killed during puts
writers = [Writer(cluster, i, f"kill{i}") for i in range(3)]
until(writers, 50)
tokens = [leader.metric("mcshm_store_master_token")]
leader.kill()
second = cluster.await_leader(leader)
until(writers, 50)
for w in writers:
    acked += w.stop()
tokens.append(second.metric("mcshm_store_master_token"))
check(tokens[1] > tokens[0], "tokens grow", tokens)
cluster.await_joined()
all_readable(cluster, acked)
leader.start()
print(len(acked), "objects over the death of a leader", flush=True)

# -- the leader stands still for 15 s, and another leads; when it goes on it knows at once
leader = cluster.await_leader()
writers = [Writer(cluster, i, f"stall{i}") for i in range(3)]
until(writers, 20)
leader.freeze()
leader.frozen = True
since = time.monotonic()
second = cluster.await_leader(leader)
until(writers, 50)
time.sleep(max(0, 15 - (time.monotonic() - since)))
fenced = leader.thaw() or leader.metric("mcshm_store_master_leads")
equal(fenced, 0, "the first thing that it says after the stall is that it does not lead")
leader.frozen = False
until(writers, 20)
for w in writers:
    acked += w.stop()
equal(sum(m.metric("mcshm_store_master_leads") for m in cluster.masters), 1, "one leads")
cluster.await_joined()
all_readable(cluster, acked)
print(len(acked), "with the stall of another", flush=True)

# -- the leader's host is cut off from the others, and from etcd's majority
leader = cluster.await_leader()
cut = cluster.masters.index(leader)
rest = [i for i in range(3) if i != cut]
local = cluster.client(cut, "cut off")
mine = b"mine"
equal([r.status for r in local.put((mine, data_of(mine)))], [OK])
other, isolated = cluster.client(rest[0], "other"), cluster.client(cut, "isolated")
equal([r.status for r in other.put((b"theirs", b"before"))], [OK])
writers = [Writer(cluster, i, f"cut{i}") for i in rest]
until(writers, 20)
cluster.hosts[cut].drop()
ended = []


def replace():
    try:
        ended.extend(r.status for r in isolated.put((b"theirs", b"after"), flags=UPSERT))
    except McshmError as e:
        ended.append(e.status)


replacing = threading.Thread(target=replace, daemon=True)
replacing.start()
await_(lambda: leader.metric("mcshm_store_master_leads") == 0, "the leader that is cut off to see it")
check(OK not in ended, "it has replaced what it could tell nobody of")
leader.frozen = True  # it is not asked any more
second = cluster.await_leader(leader, 60)
until(writers, 50)
equal(local.get(mine, room=20000), [(OK, data_of(mine))], "what is here is found without a directory")
for w in writers:
    acked += w.stop()
cluster.hosts[cut].heal()
leader.frozen = False
cluster.await_joined()
replacing.join(60)
good = [(OK, b"after")] + ([(OK, b"before")] if ended != [OK] else [])
await_(lambda: other.get(b"theirs", room=100)[0] in good, "it to be what the put has said")
other.close()
isolated.close()
acked.append(mine)
all_readable(cluster, acked)
equal(sum(m.metric("mcshm_store_master_leads") for m in cluster.masters), 1, "one leads")
local.close()
print(len(acked), "with a host cut off", flush=True)

# -- another takes the leader's key away: it steps down, and one leads again with a greater token
leader = cluster.await_leader()
token = leader.metric("mcshm_store_master_token")
cluster.etcd.ctl("put", "mcshm/store/leader", '{"version":1,"address":"10.77.0.9:7100","incarnation":"5","base":"0"}')
await_(lambda: leader.metric("mcshm_store_master_leads") == 0, "it to see that it does not lead")
cluster.etcd.ctl("del", "mcshm/store/leader")
leader = cluster.await_leader(seconds=60)
check(leader.metric("mcshm_store_master_token") > token, "a greater token")
cluster.await_joined()
all_readable(cluster, acked)

# -- the same key on both sides of a change of the leader
a, b, c = [cluster.client(i, "both") for i in range(3)]
size = 5000
made, = a.create((b"both", size))
equal(made.status, OK)
leader.kill()
second = cluster.await_leader(leader)
cluster.await_joined()
put, = b.put((b"both", b"b" * size))
sealed, = a.seal(made.hold)
check(put.status == OK or sealed.status == OK, "neither was taken:", put.status, sealed.status)
values = {c.get(b"both", room=size)[0] for c in (a, b, c) for _ in range(3)}
equal(len(values), 1, "all read the same")
status, value = values.pop()
equal(status, OK)
check(value in ([b"b" * size] if put.status == OK else []) + [bytes(size)], "one of the two")
leader.start()
cluster.await_leader()

# -- etcd loses all that it knew while a host is silent: what that one has is not called absent, but waited for; by masters that
# know of an earlier leader, and by others that hear of it from agents
for fresh in False, True:
    key = b"kept%d" % fresh
    kept, = c.put((key, data_of(key)))
    equal(kept.status, OK)
    token = cluster.leader().metric("mcshm_store_master_token")
    cluster.agents[2].freeze()
    if fresh:
        for m in cluster.masters:
            m.kill()
    cluster.etcd.restart_empty()
    if fresh:
        for m in cluster.masters:
            m.start()
    await_(lambda: cluster.leader() and cluster.leader().metric("mcshm_store_master_token") > token, "a greater token", 60)
    cluster.await_joined(cluster.agents[:2])
    answers = []
    asker = threading.Thread(target=lambda: answers.extend(a.get(key, room=20000)), daemon=True)
    asker.start()
    time.sleep(1)
    check(not answers or answers[0][0] != NOT_FOUND, "who has it was not heard yet:", answers)
    cluster.agents[2].thaw()
    asker.join(60)
    equal(answers, [(OK, data_of(key))], "once it is heard")
    cluster.await_joined()
all_readable(cluster, acked)

# -- a host is lost: with the only copy, and with one of two
equal([r.status for r in c.put((b"only", b"1" * 5000))], [OK])
r, = c.put((b"two", b"2" * 5000), replicas=2)
equal((r.status, r.copies), (OK, 2))
c.close()
lost = cluster.agents[2]
lost.kill()
await_(lambda: a.get(b"only", room=5000)[0][0] == NOT_FOUND, "the only copy to be gone", 60)
equal(a.get(b"two", room=5000), [(OK, b"2" * 5000)])
equal(b.get(b"two", room=5000), [(OK, b"2" * 5000)])


def replicas():
    here = [x.objects(EXIST, [b"two"], flags=LOCAL)[0].status for x in (a, b)]
    return here == [OK, OK]


await_(replicas, "a second copy to be made anew", 60)
equal([r.status for r in a.put((b"only", b"3" * 5000))], [OK])
equal(b.get(b"only", room=5000), [(OK, b"3" * 5000)])
a.close()
b.close()
lost.start()
cluster.await_joined()

cluster.finish()
