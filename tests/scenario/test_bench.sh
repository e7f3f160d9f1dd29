#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mcshm-bench ring, copy, kv, share and restart, short: one JSON document on stdout with the fields that others read;
# kv on a generated trace, on published ones where they are at hand, and on broken ones.
. "$(dirname "$0")/lib.sh"
export TMPDIR=$DIR/own && mkdir "$TMPDIR"

bench() {
    "$B/bin/mcshm-bench" "$@" 2>"$DIR/stderr" || fail "mcshm-bench $*: $(cat "$DIR/stderr")"
}

replay() { # arguments of kv
    bench kv --json "$@" >"$DIR/kv.json"
    json '(all(k in d for k in ("requests", "bytes", "verified_bytes", "mismatches", "hit_ratio",
          "gbps", "p50_us", "p99_us"))) or exit("fields: %s" % list(d))' <"$DIR/kv.json" >"$DIR/ok"
    json '(d["mismatches"] == 0 and d["verified_bytes"] == d["bytes"] > 0 and
          0 <= d["hit_ratio"] < 1 and d["path"] == "local") or exit("kv: %s" % d)' <"$DIR/kv.json" >"$DIR/ok"
}

replay --requests 30 --model bytes=65536 --scale 1
replay --requests 20 --inflight 4 --cache-blocks 300
replay --requests 10 --model deepseek-v3 --idle busy
traces=${TRACES:-../shared/traces}
found=0
for trace in "$traces"/*.jsonl; do
    [ -f "$trace" ] || continue
    found=1
    replay --trace "$trace" --requests 25 --scale 0.004
    equal "$(json 'd["requests"]' <"$DIR/kv.json")" 25 "requests of $trace"
done
[ $found = 1 ] || echo "no published traces in $traces: only generated ones were replayed"

# an empty, a truncated and a senseless trace: refused in one sentence that names the line
for line in '' '{"timestamp": 0, "input_length": 5' '{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-1]}'; do
    printf '%s\n' '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}' "$line" >"$DIR/bad.jsonl"
    [ -n "$line" ] || : >"$DIR/bad.jsonl"
    expect_exit 1 "$B/bin/mcshm-bench" kv --trace "$DIR/bad.jsonl"
    equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
    [ -z "$line" ] || grep -q 'line 2' "$DIR/stderr" || fail "which line? $(cat "$DIR/stderr")"
done

bench restart --json --rounds 1 >"$DIR/restart.json"
json '(all(d[k]["lost"] == 0 and d[k]["gap_ms"] > 0 and d[k]["failed"] >= 0 and d[k]["completed"] > 0 and
      len(d[k]["gaps_ms"]) == 1 for k in ("kill", "term"))) or exit("restart: %s" % d)' <"$DIR/restart.json" >"$DIR/ok"
expect_exit 1 "$B/bin/mcshm-bench" restart --socket /nonexistent
grep -q 'is not killed' "$DIR/stderr" || fail "what it said: $(cat "$DIR/stderr")"

[ "$(nproc)" -ge 2 ] || {
    echo "one core: ring, copy and share need two, only kv and restart were run"
    exit 0
}
bench share --json --seconds 0.1 --size 64K --flood 4M >"$DIR/share.json"
json '((0 < d["jain"] <= 1 and d["slice_us"] > 0 and d["p99_idle_us"] > 0 and d["p99_high_us"] > 0 and
      (not d["users"] or 0 <= d["weighted_error"] and abs(sum(d["weighted_shares"]) - 1) < 1e-9))) or exit("share: %s" % d)' <"$DIR/share.json" >"$DIR/ok"
expect_exit 1 "$B/bin/mcshm-bench" share --flood 3
bench copy --json --sizes 4K,64K --seconds 0.002 --rounds 1 --no-ucx >"$DIR/copy.json"
json '(sorted({r["shape"] for r in d["rows"]}) == ["contiguous", "list", "stride"] and
      sorted({r["size"] for r in d["rows"]}) == [4096, 65536] and
      all(r["gbps"] > 0 and r["memcpy_gbps"] > 0 and r["ratio"] > 0 and "ucx_tag_bw_gbps" in r and
          r["ucx_tag_bw_gbps"] is None for r in d["rows"])) or exit("copy: %s" % d)' <"$DIR/copy.json" >"$DIR/ok"
# of the agents of all these runs, killed ones included
equal "$(ls "$TMPDIR")" "" "what the benchmark leaves behind"
[ "$SAN" != thread ] || exit 0 # its seccomp filter is not for a thread of TSan's
bench ring --json --rounds 1 --seconds 0.01 >"$DIR/ring.json"
json '(all(d[k] > 0 for k in ("rtt_ns", "raw_rtt_ns", "floor_rtt_ns", "rtt_ratio", "rate_mops",
      "raw_rate_mops", "floor_rate_mops", "rate_ratio")) and isinstance(d["idle256_cost"], float) and
      d["client_syscalls"] in (0, None)) or exit("ring: %s" % d)' <"$DIR/ring.json" >"$DIR/ok"
[ -n "$SAN" ] || equal "$(json 'd["client_syscalls"]' <"$DIR/ring.json")" 0 "system calls of the client"
