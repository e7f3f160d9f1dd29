#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration of a block that outlives the process that put it, and the agent.
. "$(dirname "$0")/lib.sh"

scripts/demo-object.sh "$B/bin" >"$DIR/out" || { cat "$DIR/out" && fail "the demonstration fails"; }
grep -q '^Process 1 put a block and ended: pid [0-9]*, exit status 0, gone$' "$DIR/out" || fail "$(cat "$DIR/out")"
equal "$(grep -c 'in place at 0x[0-9a-f]*, mapped read-only, checksum of the bytes there equal$' "$DIR/out")" 2 \
    "readers in place: $(cat "$DIR/out")"
