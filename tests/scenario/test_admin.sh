#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# /metrics and /health; an address that is taken, in each mode; SIGHUP; --dump-config.
. "$(dirname "$0")/lib.sh"
requires_command curl

start_agent
address=$(mcshm --json status | json 'd["admin"]["listen"]')
metrics=$(curl -sf "http://$address/metrics")
equal "$(curl -sf "http://$address/health")" ok "health"
equal "$(curl -s -o /dev/null -w '%{http_code}' "http://$address/nothing")" 404 "another path"
equal "$(curl -s -o /dev/null -w '%{http_code}' -X POST -d x "http://$address/metrics")" 405 "another method"
# every sample has its HELP and TYPE, and counters say so in their name
awk '/^# TYPE/ { type[$3] = $4 } /^mcshm_/ { name = $1; sub(/{.*/, "", name); if (!(name in type)) exit 1
     if ((type[name] == "counter") != (name ~ /_total$/)) exit 1 }' <<<"$metrics" || fail "metrics: $metrics"
# operators read of each of them
while read -r name; do
    grep -q "^| \`$name\` |" docs/operations.md || fail "docs/operations.md does not tell of $name"
done < <(sed -n 's/^# TYPE \([^ ]*\) .*/\1/p' <<<"$metrics")
grep -q '^mcshm_sessions ' <<<"$metrics" || fail "no sessions in: $metrics"

# a second agent on the same address
second=("$B/bin/mcshmd" --set agent.socket="$DIR/second.sock" --set admin.listen="$address")
code=0
"${second[@]}" --set admin.mode=required 2>"$DIR/stderr" || code=$?
equal $code 1 "exit code with admin.mode=required"
grep -q "cannot listen on \[admin\] listen = $address" "$DIR/stderr" || fail "$(cat "$DIR/stderr")"
"${second[@]}" --set admin.mode=best-effort 2>"$DIR/second.log" &
pid=$!
await grep -q 'ready:' "$DIR/second.log"
grep -q 'going on without /metrics' "$DIR/second.log" || fail "no warning: $(cat "$DIR/second.log")"
! grep -q 'serving /metrics' "$DIR/second.log" || fail "it claims to serve: $(cat "$DIR/second.log")"
kill -TERM $pid
wait $pid || fail "exit code $? of the second agent"

# SIGHUP: live keys change, the others are named, a bad file changes nothing
printf '[agent]\nsocket = %s\n[admin]\nmode = off\n[task]\ndeadline_ms = 1000\n' "$DIR/third.sock" >"$DIR/third.ini"
"$B/bin/mcshmd" --config "$DIR/third.ini" 2>"$DIR/third.log" &
pid=$!
await grep -q 'ready:' "$DIR/third.log"
printf '[agent]\nsocket = %s\n[admin]\nmode = off\n[task]\ndeadline_ms = 2000\n[pool]\nextent_size = 4M\n' "$DIR/third.sock" >"$DIR/third.ini"
kill -HUP $pid
await grep -q 'SIGHUP: 1 key changed: task.deadline_ms; 1 waits for the next start: pool.extent_size' "$DIR/third.log"
echo '[task' >"$DIR/third.ini"
kill -HUP $pid
await grep -q 'keeping the configuration in force' "$DIR/third.log"
kill -TERM $pid
wait $pid || fail "exit code $? of the third agent"

# the sample file in the tree is what the program writes, and dumps read back
"$B/bin/mcshmd" --sample-config | cmp - etc/mcshmd.ini || fail "etc/mcshmd.ini is out of date"
"$B/bin/mcshmd" --config etc/mcshmd.ini --dump-config >"$DIR/dump.ini"
"$B/bin/mcshmd" --config "$DIR/dump.ini" --dump-config | cmp - "$DIR/dump.ini"
