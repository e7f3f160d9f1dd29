#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mcshm-bench store: rows of every operation, on one host and, as root, between two, peers' beside them; the directory.
# mcshm-bench cache: a trace through the store of a real agent finds as much again as the policy alone would, of published
# traces as much as is known of LRU, and with the agent's own policy more.
. "$(dirname "$0")/lib.sh"
export TMPDIR=$DIR/own && mkdir "$TMPDIR"

bench() {
    "$B/bin/mcshm-bench" "$@" 2>"$DIR/stderr" || fail "mcshm-bench $*: $(cat "$DIR/stderr")"
}

bench cache --json --requests 800 --capacity-tokens 200000 >"$DIR/cache.json"
bench cache --json --requests 800 --capacity-tokens 200000 --offline >"$DIR/offline.json"
json '(all(k in r for r in d["rows"] for k in ("policy", "capacity_tokens", "hit_ratio", "hits", "blocks", "requests")) and
      {"lru", "fifo", "s3fifo", "chain"} == {r["policy"] for r in d["rows"]} and
      all(r["refused"] == 0 and 0 < r["hits"] < r["blocks"] for r in d["rows"])) or exit("cache: %s" % d)' <"$DIR/cache.json" >"$DIR/ok"
OFFLINE=$(cat "$DIR/offline.json")
export OFFLINE
json "[abs(r['hit_ratio'] - o['hit_ratio']) < 0.02 for r, o in zip(d['rows'], __import__('json').loads(__import__('os').environ['OFFLINE'])['rows'])] == 4 * [True] or exit('not what the policy alone holds: %s' % d)" <"$DIR/cache.json" >"$DIR/ok"

bench cache --json --requests 300 --capacity-tokens 0 --policy fifo >"$DIR/all.json"
json '(sorted(r["policy"] for r in d["rows"]) == ["fifo", "lru"] and
      len({r["hits"] for r in d["rows"]}) == 1) or exit("without a limit: %s" % d)' <"$DIR/all.json" >"$DIR/ok"

for bad in '--policy belady' '--capacity-tokens 3' '--block 100' '--trace /nonexistent' '--socket x'; do
    # shellcheck disable=SC2086
    expect_exit 1 "$B/bin/mcshm-bench" cache $bad
    equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
done

# Of published traces: LRU within half a point of what is known of it, and the agent's policy above it.
known() { # trace, tokens, LRU's percent
    local trace=${TRACES:-../shared/traces}/$1_trace.jsonl
    [ -f "$trace" ] || {
        echo "no $trace: only a generated one was replayed"
        return
    }
    bench cache --json --trace "$trace" --capacity-tokens "$2" --policy chain >"$DIR/known.json"
    json "(lambda r: abs(100 * r['lru'] - $3) <= 0.5 and r['chain'] > r['lru'])({r['policy']: r['hit_ratio'] for r in d['rows']}) or exit('$1: %s' % d)" <"$DIR/known.json" >"$DIR/ok"
}
# Without a limit all policies find the same; the simulator is enough for that.
unlimited() { # trace, percent
    local trace=${TRACES:-../shared/traces}/$1_trace.jsonl
    [ -f "$trace" ] || return 0
    bench cache --json --offline --trace "$trace" --capacity-tokens 0 --policy chain >"$DIR/known.json"
    json "all(abs(100 * r['hit_ratio'] - $2) <= 0.5 for r in d['rows']) or exit('$1: %s' % d)" <"$DIR/known.json" >"$DIR/ok"
}
unlimited conversation 36.6
unlimited synthetic 64.0
known conversation 3000000 13.6
known synthetic 3000000 30.9
[ -n "$SAN" ] || known conversation 10000000 28.5
[ -n "$SAN" ] || known synthetic 10000000 56.6

for bad in '--sizes 4X' '--sizes 4' '--batches 0' '--batches 70000' '--seconds 0' '--directory-keys 1' '--most 1'; do
    # shellcheck disable=SC2086
    expect_exit 1 "$B/bin/mcshm-bench" store $bad
    equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
done
[ "$(nproc)" -ge 2 ] || {
    echo "one core: store needs two, only cache was run"
    exit 0
}
remote=()
unset MOONCAKE
[ "$SAN" != thread ] || remote=(--no-remote) # two more agents that poll
bench store --json --sizes 4K,1M --batches 1,16 --seconds 0.01 --most 16M --directory-keys 20000 "${remote[@]}" >"$DIR/store.json"
json '(all(k in r for r in d["rows"] for k in ("op", "size", "batch", "where", "ops_s", "gbps", "p50_us", "p99_us")) and
      {"put", "get", "get_in_place", "exist", "prefix"} == {r["op"] for r in d["rows"] if r["where"] == "local"} and
      {(r["size"], r["batch"]) for r in d["rows"]} == {(4096, 1), (4096, 16), (1048576, 1), (1048576, 16)} and
      all(r["ops_s"] > 0 and 0 < r["p50_us"] <= r["p99_us"] for r in d["rows"]) and
      all((r["gbps"] is None) == (r["op"] in ("exist", "prefix")) for r in d["rows"]) and
      d["ring_rtt_ns"] > 0 and d["mooncake"] is None and
      all(d["directory"][k] > 0 for k in ("exist_s", "start_end_s", "bytes_per_key", "rebuild_s"))) or exit("store: %s" % d)' <"$DIR/store.json" >"$DIR/ok"
for peer in redis:redis-server memcached:memcached; do
    if command -v "${peer#*:}" >/dev/null; then
        json "({'put', 'get', 'exist'} == {r['op'] for r in d['${peer%:*}']} and all(r['ops_s'] > 0 for r in d['${peer%:*}'])) or exit('$peer: %s' % d)" <"$DIR/store.json" >"$DIR/ok"
    else
        json "d['${peer%:*}'] is None or exit('$peer: %s' % d)" <"$DIR/store.json" >"$DIR/ok"
    fi
done
if [ "$(id -u)" = 0 ] && [ ${#remote[@]} = 0 ]; then
    json '({"put", "get", "exist", "prefix"} == {r["op"] for r in d["rows"] if r["where"] == "remote"} and d["no_remote"] is None) or exit("remote: %s" % d)' <"$DIR/store.json" >"$DIR/ok"
else
    json 'd["no_remote"] is not None or exit("remote: %s" % d)' <"$DIR/store.json" >"$DIR/ok"
fi
# More keys than fit come and go within a lease: the store must not evict what is measured.
if [ "$(id -u)" = 0 ] && [ ${#remote[@]} = 0 ]; then
    bench store --json --sizes 4K --batches 32 --seconds 0.2 --most 1M --no-peers --directory-keys 20000 >"$DIR/long.json"
    json '{r["op"] for r in d["rows"] if r["where"] == "remote"} == {"put", "get", "exist", "prefix"} or exit("long: %s" % d)' <"$DIR/long.json" >"$DIR/ok"
fi
equal "$(ls "$TMPDIR")" "" "what the benchmark leaves behind"
