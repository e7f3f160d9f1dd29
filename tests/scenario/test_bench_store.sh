#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
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
known conversation 3000000 13.6
known synthetic 3000000 30.9
[ -n "$SAN" ] || known conversation 10000000 28.5
[ -n "$SAN" ] || known synthetic 10000000 56.6
equal "$(ls "$TMPDIR")" "" "what the benchmark leaves behind"
