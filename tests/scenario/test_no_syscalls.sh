#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A polling client in steady state makes no system call: strace sees nothing between two marks.
. "$(dirname "$0")/lib.sh"

[ -z "$SAN" ] || skip "sanitizers make system calls of their own"
requires_command strace
requires_command gcc
# some sandboxes forbid ptrace
strace -o /dev/null true 2>/dev/null || skip "strace may not trace here"

start_agent --set engine.idle=busy
gcc -O2 -Wall -Ilib -o "$DIR/steady" tests/scenario/steady.c "$B/lib/libmcshm.a" -pthread
strace -f -o "$DIR/trace" "$DIR/steady" "$SOCKET" >"$DIR/out"
equal "$(cat "$DIR/out")" "$(printf 'steady from here\nup to here')" "what the client printed"
between=$(sed -n '/steady from here/,/up to here/p' "$DIR/trace" | sed '1d;$d')
[ -z "$between" ] || fail "system calls in steady state: $(head -n 5 <<<"$between")"
# and the trace is not empty for another reason
grep -q 'sendmsg' "$DIR/trace" || fail "strace saw nothing at all"
