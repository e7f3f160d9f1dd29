#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mcshm-bench net and kv --hosts 2, short: the fields that others read, the path, every byte right,
# a rail cut without a failed task, and nothing left behind when it is interrupted.
. "$(dirname "$0")/lib.sh"
requires_root
requires_command ip
requires_command tc
[ "$SAN" != thread ] || skip "the benchmark itself has no threads; its agents are watched by others"

bench() {
    "$B/bin/mcshm-bench" "$@" 2>"$DIR/stderr" || fail "mcshm-bench $*: $(cat "$DIR/stderr")"
}

check() { # file, Python condition on d
    json "($2) or exit('%s' % d)" <"$1" >"$DIR/ok"
}

# under a sanitizer the rails are no match for its cores, so that cutting one shows nothing
failover=()
[ -z "$SAN" ] || failover=(--no-failover)
bench net --json --sizes 4K,1M --batch 1,8 --clients 1,2 --rails 1,2 --checksum both --seconds 0.02 \
    --rounds 1 --no-rivals "${failover[@]}" >"$DIR/net.json"
check "$DIR/net.json" 'd["path"] == "tcp" and d["mismatches"] == 0 and d["checked_bytes"] > 0 and
    d["tcp_rtt_us"] > 0 and isinstance(d["fixed_cost_us"], float) and d["left_out"] == 0 and
    len(d["rows"]) == 80'
check "$DIR/net.json" 'all(k in r for r in d["rows"] for k in ("op", "size", "batch", "clients", "rails",
    "crc", "gbps", "tasks_s", "p50_us", "p99_us", "p999_us", "cpu_s_per_gb", "iperf_gbps",
    "iperf_cpu_s_per_gb", "mooncake_gbps", "mooncake_tasks_s"))'
check "$DIR/net.json" 'all(r["gbps"] > 0 and r["tasks_s"] > 0 and r["cpu_s_per_gb"] > 0 and
    0 < r["p50_us"] <= r["p99_us"] <= r["p999_us"] for r in d["rows"])'
check "$DIR/net.json" '{(r["op"], r["rails"], r["crc"]) for r in d["rows"]} == {(o, n, c)
    for o in ("READ", "WRITE") for n in (1, 2) for c in (True, False)}'
[ -n "$SAN" ] || check "$DIR/net.json" 'd["failover"]["failed_tasks"] == 0 and
    d["failover"]["gap_ms"] is not None and d["failover"]["sum_ratio"] > 0'

bench kv --hosts 2 --requests 20 --rails 2 --json >"$DIR/kv.json"
check "$DIR/kv.json" 'd["path"] == "tcp" and d["hosts"] == 2 and d["mismatches"] == 0 and
    d["verified_bytes"] == d["bytes"] > 0'
trace=${TRACES:-../shared/traces}/conversation_trace.jsonl
if [ -f "$trace" ]; then
    bench kv --hosts 2 --trace "$trace" --requests 10 --scale 0.004 --json >"$DIR/kv.json"
    check "$DIR/kv.json" 'd["path"] == "tcp" and d["requests"] == 10 and d["mismatches"] == 0 and
        d["verified_bytes"] == d["bytes"] > 0'
else
    echo "no published trace at $trace: only a generated one was replayed"
fi

# without RDMA devices: one sentence that says where there are some
if [ -z "$(ls -A /sys/class/infiniband 2>/dev/null)" ]; then
    for command in net "kv --hosts 2"; do
        # shellcheck disable=SC2086
        expect_exit 1 "$B/bin/mcshm-bench" $command --transport rdma
        equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
        grep -q "make bench-rdma" "$DIR/stderr" || fail "where are there some? $(cat "$DIR/stderr")"
    done
fi
expect_exit 1 "$B/bin/mcshm-bench" kv --transport rdma
grep -q -- "--hosts 2" "$DIR/stderr" || fail "what goes with --transport? $(cat "$DIR/stderr")"

# interrupted: its agents and namespaces go with it
"$B/bin/mcshm-bench" net --sizes 4K --batch 1 --clients 1 --rails 1 --seconds 30 --rounds 1 \
    --no-rivals --no-failover >"$DIR/stdout" 2>"$DIR/stderr" &
pid=$!
agents() { # the process ids of its agents
    local dir
    for dir in /proc/[0-9]*; do
        [ "$(cat "$dir/comm" 2>/dev/null)" = mcshmd ] || continue
        [ "$(sed -n 's/^PPid:[[:space:]]*//p' "$dir/status" 2>/dev/null)" != "$pid" ] || echo "${dir#/proc/}"
    done
}
both_agents() {
    [ "$(agents | wc -l)" -eq 2 ]
}
await both_agents
namespace=$(readlink "/proc/$(agents | head -n 1)/ns/net")
[ "$namespace" != "$(readlink /proc/self/ns/net)" ] || fail "the agent lives in the namespace of the test"
kill -INT "$pid"
code=0
wait "$pid" || code=$?
equal "$code" 130 "exit code after an interrupt"
namespace_is_gone() {
    local found
    found=$(readlink /proc/[0-9]*/ns/net 2>/dev/null | grep -cxF "$namespace") || true
    [ "$found" -eq 0 ]
}
await namespace_is_gone
leftover=$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'mcshm-bench-*' | wc -l)
equal "$leftover" 0 "folders left behind"

# without root: one sentence
if command -v setpriv >/dev/null && setpriv --reuid=65534 --regid=65534 --clear-groups \
    test -x "$B/bin/mcshm-bench"; then
    expect_exit 1 setpriv --reuid=65534 --regid=65534 --clear-groups "$B/bin/mcshm-bench" net --sizes 4K
    equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
    grep -q root "$DIR/stderr" || fail "what does it need? $(cat "$DIR/stderr")"
fi
