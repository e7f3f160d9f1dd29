#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The benchmarks over RDMA, short: prefill and decode over two rails, every byte right; READ and WRITE beside perftest, a small
# WRITE beside bare verbs, a registration; every task over rdma. No figure is asserted.
# limit: 200
set -euo pipefail

check() { # file, Python condition on d
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
eval(sys.argv[2]) or sys.exit("%s does not hold: %s" % (sys.argv[2], json.dumps(d)))' "$@"
}
rdma=(--transport rdma --set rdma.timeout=18 --json)

"$B/bin/mcshm-bench" kv --hosts 2 --rails 2 --requests 5 --scale 1/256 "${rdma[@]}" >"$TMPDIR/kv.json"
check "$TMPDIR/kv.json" 'd["path"] == "rdma" and d["hosts"] == 2 and d["mismatches"] == 0 and d["verified_bytes"] == d["bytes"] > 0'

"$B/bin/mcshm-bench" net --sizes 64K,9M --batch 4 --rails 1,2 --rounds 1 --seconds 0.2 --register 64M --no-failover "${rdma[@]}" \
    >"$TMPDIR/net.json"
check "$TMPDIR/net.json" 'd["path"] == d["transport"] == "rdma" and d["mismatches"] == 0 and d["checked_bytes"] > 0'
check "$TMPDIR/net.json" '[(r["op"], r["size"], r["rails"]) for r in d["rows"]] == [(o, s << 10, n)
    for s, n in ((64, 1), (9216, 1), (1024, 2)) for o in ("READ", "WRITE")]'
# its largest message is 8 MiB, as the devices'
check "$TMPDIR/net.json" 'all(r["gbps"] > 0 and (r["size"] > 8 << 20 or r["perftest_ratio"] > 0) for r in d["rows"])'
check "$TMPDIR/net.json" 'all(d["rdma"][k] > 0 for k in ("write_8_us", "bare_write_8_us", "two_hops_us", "write_8_ratio",
    "ib_write_lat_us", "register_s", "bare_register_s", "register_ratio"))'
check "$TMPDIR/net.json" 'd["rdma"]["devices"] == ["rxea0 rxeb0", "rxea1 rxeb1"] and d["rdma"]["registered_bytes"] == 64 << 20'
