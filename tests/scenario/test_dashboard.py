#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""etc/grafana/mcshm.json is a dashboard that Grafana can load, and asks for nothing that /metrics does not have."""
import os
import re
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403

with open(os.path.join(ROOT, "etc/grafana/mcshm.json")) as f:
    board = json.load(f)
check(board["schemaVersion"] >= 36 and board["uid"] and board["title"], "not a dashboard")
variables = [v["name"] for v in board["templating"]["list"]]
equal(variables, ["datasource", "instance"], "variables")
panels = [p for p in board["panels"] if p["type"] != "row"]
ids = [p["id"] for p in board["panels"]]
equal(len(set(ids)), len(ids), "panels with an id of their own")
equal([p["title"] for p in board["panels"] if p["type"] == "row"],
      ["Now", "Transfers", "Pool and sessions", "Tenants", "Engines", "Rails", "Peers and metadata",
       "Objects"], "rows")
taken = {}
expressions = []
for p in board["panels"]:
    g = p["gridPos"]
    check(0 <= g["x"] and g["x"] + g["w"] <= 24 and g["h"] > 0, p["title"], "does not fit", g)
    for cell in ((x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])):
        check(cell not in taken, p["title"], "lies on", taken.get(cell))
        taken[cell] = p["title"]
for p in panels:
    check(p["datasource"]["uid"] == "${datasource}" and p["targets"], p["title"], "asks nobody")
    refs = [t["refId"] for t in p["targets"]]
    equal(len(set(refs)), len(refs), "queries of " + p["title"])
    for t in p["targets"]:
        e = t["expr"]
        for a, b in ("()", "{}", "[]"):
            equal(e.count(a), e.count(b), f"{a}{b} in {e}")
        check('{instance=~"$instance"}' in e, "all agents at once:", e)
        expressions.append((p["title"], e, t["legendFormat"]))

# An agent with a peer, so that all families are there, with the labels that are asked for
a = Agent("peer.listen=127.0.0.1:0", "meta.backend=p2p")
b = Agent("peer.listen=127.0.0.1:0", "meta.backend=p2p")
at = re.search(r"other agents reach this one at (\S+),", b.text())[1]
owner, c = Client(b.socket, "owner"), Client(a.socket, "client")
p = owner.alloc(4096)
owner.publish("target")
there = owner.buffer(p, 4096)
equal(c.write(c.alloc(4096), c.open(f"{at}/target"), there, 4096).state, COMPLETED, "a write")
refused(NOT_FOUND, c.open, f"{at}/nothing")
bad = c.write(c.alloc(4096), c.open(f"{at}/target"), there + 4096, 4096)
check(bad.state != COMPLETED, "a write beyond the buffer")


def samples(agent):
    url = f"http://{agent.status()['admin']['listen']}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


types, labels = {}, {}
for text in (samples(a), samples(b)):
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.M))
    types.update(re.findall(r"^# TYPE (\S+) (counter|gauge)$", text, re.M))
    for name, words in re.findall(r"^(mcshm_\w+)(?:\{(.*)\})? \S+$", text, re.M):
        check(name in helped and name in types, name, "has no HELP or no TYPE")
        labels.setdefault(name, {"instance"}).update(re.findall(r"(\w+)=\"", words))
for title, e, legend in expressions:
    names = re.findall(r"\bmcshm_\w+", e)
    check(names, title, "asks for nothing:", e)
    for name in names:
        check(name in types, title, "asks for", name, "which /metrics does not have")
        if types[name] == "counter":
            check(re.search(rf"(rate|increase)\({name}\b", e), title, "shows a counter as it stands:", e)
        wanted = set(re.findall(r"\{\{(\w+)\}\}", legend))
        # a family whose samples appear with their first event, which did not happen here, shows no labels
        check(name not in labels or wanted <= labels[name], title, "wants the labels", wanted, "of", name, "which has",
              labels.get(name))
check("cause" in labels["mcshm_task_errors_total"] and "status" in labels["mcshm_refusals_total"], "labels of errors")
for client in (owner, c):
    client.close()
a.finish()
b.finish()
