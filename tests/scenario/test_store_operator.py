#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an operator of a store sees: a master of its own that is asked no more than it can answer while it rebuilds; one that is
away is said once, and so is its return; drains, who can be drained, and when one is over."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from masters import *  # noqa: E402,F403

REBUILD_MS = 3000


def mcshm(agent, *words, code=0):
    p = subprocess.run([os.path.join(B, "bin/mcshm"), "--socket", agent.socket, *words], capture_output=True, text=True,
                       timeout=PATIENCE)
    equal(p.returncode, code, f"mcshm {words}: {p.stdout} {p.stderr}")
    return p.stdout + p.stderr


def lines(process, text):
    return [line for line in process.text().splitlines() if text in line]


def joined(agent):
    return agent.metric("mcshm_store_directory_joined") == 1


a, b = Net("a", "b")
master = Master(a, *STORE, f"store.rebuild_ms={REBUILD_MS}")
own = [*STORE, "store.master=" + master.address, "peer.ping_ms=300", "peer.dead_ms=1500", "peer.connect_ms=300"]
one, two = a.agent(*own), b.agent(*own)
c = Client(one.socket, "c", queue={"args_size": 4 * MiB})

# a put while the directory is being rebuilt waits, and does not ask for it as fast as it is refused
equal([r.status for r in c.put((b"first", b"1"))], [OK], "a put during a rebuild")
retries = one.metric("mcshm_store_directory_retries_total")
check(retries < 10 * REBUILD_MS / 20, retries, "questions to a master that rebuilds")
for line in master.text().splitlines():
    check(line.startswith("mcshm-master: "), "whose line is it?", line)

# a drain: who there is, how far it is, each order said once, over where nobody else can take a copy
await_(lambda: joined(one) and joined(two), "both to join")
text = mcshm(one, "drain", "10.9.9.9:1", code=1)
check(one.address in text and two.address in text, "it names who there is:", text)
equal([r.status for r in c.put((b"both", b"2"), replicas=3)], [OK], "more replicas than hosts")
equal(len(json.loads(mcshm(two, "--json", "stat", "both"))["hosts"]), 2)
equal([r.status for r in c.put((b"there", b"3"), host=two.address.encode())], [OK])
await_(lambda: json.loads(mcshm(one, "--json", "drain", two.address)) == {"draining": True, "objects": 0}, "the drain to end")
equal(len(lines(master, "is to be drained")), 1, "lines about it: " + master.text())
for key, value in ((b"both", b"2"), (b"there", b"3")):
    equal(c.get(key), [(OK, value)])
    equal(json.loads(mcshm(one, "--json", "stat", key.decode()))["hosts"], [one.address])
mcshm(one, "drain", two.address, "--undo")
mcshm(one, "drain", two.address, "--undo")
equal(len(lines(master, "is not to be drained any more")), 1, master.text())

# what cannot be
for address in ("10.0.0.1", "10.0.0.1:x", ":1", "10.0.0.1:65536"):
    mcshm(one, "put", "k", "--host", address, code=2)

# without the master: said once, seen in the metrics; what is here is read; a put ends with NO_DIRECTORY
equal(master.stop(), 0)
await_(lambda: not joined(one), "to notice that nobody leads")
await_(lambda: lines(one, "does not answer"), "to say so")
equal(c.get(b"first"), [(OK, b"1")])
equal([r.status for r in c.put((b"second", b"2"), deadline_us=1500000)], [NO_DIRECTORY])
check("no master" in mcshm(one, "ls-objects", code=1))
master.start()
await_(lambda: joined(one) and joined(two), "to join again")
for agent in one, two:
    equal((len(lines(agent, "does not answer")), len(lines(agent, "answers again"))), (1, 1), agent.text())
equal([r.status for r in c.put((b"second", b"2"))], [OK])

c.close()
one.finish()
two.finish()
equal(master.stop(), 0)
