# SPDX-License-Identifier: Apache-2.0
"""Masters of the store, hosts with agents, and an etcd, for scenarios.

    c = Cluster()                  three hosts: on each an agent with a store and a master; etcd with three members
    c.leader()                     the master that leads, or None
"""
from hosts import *  # noqa: F401,F403
from etcd import Etcd

MASTER_PORT = 7100
# Times as short as they can be without the machine's speed coming in.
STORE = ["store.size=64M", "store.extent_size=8M", "store.beat_ms=200", "store.away_ms=3000", "store.gone_ms=8000",
         "store.rebuild_ms=10000", "store.lease_ms=1000"]


class Master(HostAgent):
    """mcshm-master inside a host."""

    def __init__(self, host, *settings, **more):
        super().__init__(host, *settings, port=MASTER_PORT, **more)

    def command(self, *more):
        words = super().command(*more)
        words[len(self.prefix)] = os.path.join(B, "bin/mcshm-master")
        return words

    def metric(self, name):
        listen = next(line.rpartition("http://")[2] for line in self.text().splitlines()[::-1]
                      if "serving /metrics" in line)
        host, _, port = listen.rpartition(":")
        with self.host.inside():
            h = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
            h.request("GET", "/metrics")
            text = h.getresponse().read().decode()
            h.close()
        for line in text.splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"/metrics has no {name}")


class Cluster:
    def __init__(self, *settings, masters=True, hosts=("a", "b", "c")):
        self.net = Net(*hosts)
        self.hosts = list(self.net)
        self.etcd = Etcd(places=[(h.ns, h.address()) for h in self.hosts])
        meta = ["meta.backend=etcd", "meta.endpoints=" + self.etcd.endpoints, "meta.ttl_s=5", "meta.timeout_ms=2000",
                "peer.ping_ms=300", "peer.dead_ms=1500", "peer.connect_ms=300"]
        role = ["store.master=follow"] if masters else []
        self.masters = [Master(h, *STORE, *meta, *settings) for h in self.hosts] if masters else []
        self.agents = [h.agent(*STORE, *meta, *role, *settings) for h in self.hosts]
        self.await_joined()

    def leader(self):
        """The one that says so of itself, with the greatest token; None."""
        best = None
        for m in self.masters:
            if m.process is None or m.process.poll() is not None or getattr(m, "frozen", False):
                continue
            if m.metric("mcshm_store_master_leads") == 1:
                token = m.metric("mcshm_store_master_token")
                best = max(best, (token, m), key=lambda t: t[0]) if best else (token, m)
        return best[1] if best else None

    def await_leader(self, other_than=None, seconds=PATIENCE):
        def found():
            leader = self.leader()
            return leader if leader is not other_than else None
        return await_(found, "a leader", seconds)

    def await_joined(self, agents=None):
        for a in agents or self.agents:
            await_(lambda: a.metric("mcshm_store_directory_joined") == 1, lambda: "to join the directory: " + a.text())

    def client(self, i, name="c"):
        return Client(self.agents[i].socket, name, queue={"args_size": 4 * MiB})

    def finish(self):
        for x in self.agents + self.masters:
            check(x.alive(), "it died:", x.text())
        for a in self.agents:
            a.finish()
        for m in self.masters:
            equal(m.stop(), 0, "exit status of a master: " + m.text())
        self.etcd.stop()
