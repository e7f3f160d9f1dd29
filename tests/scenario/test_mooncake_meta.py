#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Stock Mooncake processes that meet through a metadata service: Mooncake's own HTTP server, and etcd."""
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import NO_PROXY, Etcd, free_ports  # noqa: E402
from mooncake_stock import *  # noqa: E402,F403


class Http:
    """What is in Mooncake's HTTP server."""

    def __init__(self, url):
        self.url = url

    def ask(self, method, key, value=None):
        request = urllib.request.Request(f"{self.url}?key={urllib.parse.quote(key, safe='')}", method=method,
                                         data=None if value is None else value.encode())
        try:
            with NO_PROXY.open(request, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as e:
            return None if e.code == 404 else e.code
        except OSError:
            return False  # it is not there

    def get(self, key):
        return self.ask("GET", key)


def both_directions(metadata, settings, get, prefix="mooncake/", env=None):
    a = fresh("pool.size=64M", *settings)
    me = name_of(a)
    records = [f"{prefix}rpc_meta/{me}", f"{prefix}ram/{me}"]
    await_(lambda: all(get(r) for r in records), lambda: "its records: " + a.text())
    equal(json.loads(get(records[0])), {"ip_or_host_name": "127.0.0.1", "rpc_port": int(me.split(":")[1])}, "rpc_meta")
    c = Client(a.socket, "meta")
    p, local = c.alloc(4 * MiB), c.alloc(4 * MiB)
    at = c.buffer(p, 4 * MiB)
    c.publish("kv", PUBLIC)
    await_(lambda: [b["addr"] for b in json.loads(get(records[1]))["buffers"]] == [at], "the buffer in its record")
    stock = Stock(metadata, "stock-one:13000", **(env or {}))
    there = stock.register(4 * MiB)
    stock.fill(there, 4 * MiB, 1)
    equal(stock.first_address(me), at, "what it describes")
    equal(stock.write(me, there, at, 4 * MiB), 0, "stock writes")
    equal(crc_of(p, 4 * MiB), stock.crc(there, 4 * MiB), "stock wrote")
    segment = c.open("mooncake:stock-one:13000")
    fill_pattern(local, 4 * MiB, 2)
    s = c.write(local, segment, there, 4 * MiB)
    equal((s.state, s.error, PATHS[s.path], s.remote_quiesced), (COMPLETED, OK, "mooncake", True), "write")
    equal(stock.crc(there, 4 * MiB), crc_of(local, 4 * MiB), "wrote")
    equal(stock.read(me, there, at, MiB), 0, "stock reads")
    s = c.read(local, segment, there, 4 * MiB)
    equal((s.state, s.error), (COMPLETED, OK), "read")
    equal(crc_of(local, 4 * MiB), stock.crc(there, 4 * MiB), "read")
    refused(NOT_FOUND, c.open, "mooncake:nobody:1")
    c.close_segment(segment)
    c.withdraw()
    await_(lambda: json.loads(get(records[1]))["buffers"] == [], "the buffer to leave its record")
    stock.close()
    c.close()
    return a, me, records


def http():
    server = HttpMetadata(free_ports(1)[0])
    store = Http(server.url)
    await_(lambda: store.get("x") is None, "the metadata server")
    settings = ("mooncake.metadata=" + server.url,)
    a, me, records = both_directions(server.url, settings, store.get)
    # a killed agent leaves its records behind; that server refuses to overwrite one of them
    a.kill()
    check(store.get(records[0]), "a record of the dead")
    b = fresh(*settings, "mooncake.advertise=" + me, "pool.size=64M", "meta.ttl_s=2", "peer.down_ms=200")
    await_(lambda: f'"tcp_data_port":{data_port_of(b)}' in (store.get(records[1]) or ""),
           "its records to be taken over")
    c = Client(b.socket, "outage")
    stock = Stock(server.url, "stock-two:13000")
    there = stock.register(MiB)
    segment = c.open("mooncake:stock-two:13000")
    local = c.alloc(MiB)
    # another process takes the name: who had it open is told
    stock.kill()
    store.ask("DELETE", "mooncake/rpc_meta/stock-two:13000")  # else it cannot
    stock = Stock(server.url, "stock-two:13000")
    there = stock.register(MiB)
    await_(lambda: c.write(local, segment, there, MiB).error == STALE, "the name's other life to be found out")
    c.close_segment(segment)
    segment = c.open("mooncake:stock-two:13000")
    equal(c.write(local, segment, there, MiB).state, COMPLETED, "opened again")
    server.kill()
    # running work does not need the service
    for _ in range(3):
        equal(c.write(local, segment, there, MiB).state, COMPLETED, "without the service")
    refused(METADATA, c.open, "mooncake:stock-three:13000")
    p = c.alloc(MiB)
    c.buffer(p, MiB)
    c.publish("later", PUBLIC)
    server = HttpMetadata(server.port)  # empty
    await_(lambda: all(store.get(r) for r in records), lambda: "publication after an outage: " + b.text())
    server.kill()
    server = HttpMetadata(server.port)  # and again, with nothing to tell
    await_(lambda: all(store.get(r) for r in records), lambda: "publication in an emptied service: " + b.text())
    c.close()
    stock.close()
    b.finish()
    equal([store.get(r) for r in records], [None, None], "records of a stopped agent")
    server.kill()


def http_with_a_cluster():
    server = HttpMetadata(free_ports(1)[0])
    store = Http(server.url)
    await_(lambda: store.get("x") is None, "the metadata server")
    a, _, _ = both_directions(server.url, ("mooncake.metadata=" + server.url, "mooncake.cluster=c1"), store.get,
                              "mooncake/c1/", {"MC_METADATA_CLUSTER_ID": "c1"})
    a.finish()
    server.kill()


def etcd():
    e = Etcd()
    where = e.url[len("http://"):]

    def get(key):
        return e.ctl("get", "--print-value-only", key).strip() or None

    a, _, records = both_directions("etcd://" + where, ("mooncake.metadata=etcd://" + where,),
                                    get)
    a.finish()
    equal([get(r) for r in records], [None, None], "records of a stopped agent")
    e.stop()


run(http, http_with_a_cluster, etcd)
