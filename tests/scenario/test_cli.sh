#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tool mcshm, without and with an agent.
. "$(dirname "$0")/lib.sh"

one_line_on_stderr() {
    equal "$(wc -l <"$DIR/stderr")" 1 "lines on stderr ($(cat "$DIR/stderr"))"
    equal "$(wc -c <"$DIR/stdout")" 0 "bytes on stdout"
}

# usage
expect_exit 2 "$B/bin/mcshm"
grep -q '^usage: mcshm' "$DIR/stderr" || fail "no usage"
for wrong in nonsense "ls nonsense" "status more" "--nonsense status" "--socket" "ls extents more" "top more" "top --interval x" \
    "top --interval 0" "top --count 0" "reload more" "alloc-test --size 0" "alloc-test --size 1Q" "alloc-test --node" \
    "status --once" "trace" "ping" "ping a b"; do
    read -ra words <<<"$wrong"
    expect_exit 2 "$B/bin/mcshm" "${words[@]}"
    one_line_on_stderr
done
expect_exit 0 "$B/bin/mcshm" help
grep -q -- '--socket PATH' "$DIR/stdout" || fail "no help"

# no agent
for command in status ls "ls buffers" "ls extents" "ls sessions" "--json status" "top --once" "trace x" reload alloc-test; do
    read -ra words <<<"$command"
    expect_exit 1 mcshm "${words[@]}"
    one_line_on_stderr
    grep -q '^mcshm: ' "$DIR/stderr" || fail "who speaks? $(cat "$DIR/stderr")"
done
version=$(sed -n 's/^#define MCSHM_VERSION "\(.*\)"/\1/p' lib/mcshm.h)
equal "$(mcshm version)" "mcshm $version" "version without an agent"
equal "$(mcshm --json version)" "{\"version\":\"$version\",\"agent\":null}" "the same in JSON"
expect_exit 1 "$B/bin/mcshm" --socket "$(printf '%0200d' 0)" status # longer than a socket's path

# with an agent
start_agent
equal "$(mcshm version | tail -n 1)" "mcshmd $version" "version of the agent"
equal "$(mcshm --json version)" "{\"version\":\"$version\",\"agent\":\"$version\"}" "the same in JSON"

status=$(mcshm --json status)
equal "$(json 'd["version"]' <<<"$status")" "$version" "status.version"
equal "$(json 'd["pid"]' <<<"$status")" "$AGENT_PID" "status.pid"
equal "$(json 'd["socket"]' <<<"$status")" "$SOCKET" "status.socket"
equal "$(json 'd["pool"]["size"]' <<<"$status")" $((256 << 20)) "status.pool.size"
equal "$(json 'len(d["engines"]) > 0' <<<"$status")" true "engines"
equal "$(json 'd["admin"]["listen"].rsplit(":", 1)[0]' <<<"$status")" 127.0.0.1 "status.admin.listen"

mcshm status >"$DIR/stdout"
for word in version pid socket uptime pool gpu engine; do
    grep -qi "^ *$word" "$DIR/stdout" || fail "status says nothing of $word"
done
grep -Eq "^pid +$AGENT_PID$" "$DIR/stdout" || fail "status has another pid"

for list in segments buffers extents sessions nics; do
    equal "$(mcshm --json ls $list | json "isinstance(d['$list'], list)")" true "ls $list in JSON"
    mcshm ls $list | head -n 1 | grep -qi "^${list%s}" || [ $list = buffers ] || fail "ls $list: no heading"
done
equal "$(mcshm ls)" "$(mcshm ls segments)" "segments are the default"
# The tool itself is a session while it asks.
equal "$(mcshm --json ls sessions | json 'd["sessions"][0]["name"]')" mcshm "its own session"
mcshm ls sessions | grep -qw mcshm || fail "ls sessions does not show it"

# and the agent's own pages tell the same
curl -sSf --max-time 10 "http://$(agent_admin)/health" >"$DIR/stdout"
curl -sSf --max-time 10 "http://$(agent_admin)/metrics" >"$DIR/stdout"
grep -q '^mcshm_' "$DIR/stdout" || fail "/metrics is empty"
[ "$(agent_metric mcshm_sessions)" -ge 0 ] || fail "mcshm_sessions is no number"

# memory as an application sees it, and none of it is left
for node in "" "--node 0"; do
    read -ra words <<<"$node"
    mcshm --json alloc-test --size 24M "${words[@]}" >"$DIR/stdout" || fail "alloc-test $node"
    equal "$(json 'd["size"], d["verified"]' <"$DIR/stdout")" "($((24 << 20)), True)" "alloc-test $node"
    equal "$(json 'd["page_size"] >= 4096 and d["write_ms_per_gib"] > 0 and d["same_address"] in (True, False)' <"$DIR/stdout")" \
        true "what alloc-test tells"
done
mcshm alloc-test --size 1M >"$DIR/stdout"
grep -q '^1M of pool memory' "$DIR/stdout" || fail "alloc-test: $(cat "$DIR/stdout")"
expect_exit 1 mcshm alloc-test --size 1M --pages 1G # there are none in this pool
grep -q 'wanted were 1073741824' "$DIR/stderr" || fail "alloc-test --pages: $(cat "$DIR/stderr")"
expect_exit 1 mcshm alloc-test --size 1G # four times the pool
one_line_on_stderr
expect_exit 1 mcshm alloc-test --node 99
one_line_on_stderr
no_extents() { [ "$(mcshm --json status | json 'd["pool"]["used"]')" = 0 ]; }
await no_extents

stop_agent
expect_exit 1 mcshm status
one_line_on_stderr

# An agent that was killed leaves a socket file behind, which nobody answers.
start_agent
kill_agent
expect_exit 1 mcshm status
one_line_on_stderr
start_agent
mcshm status >"$DIR/stdout"
stop_agent
