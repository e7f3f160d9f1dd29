#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What is built for users has no failpoints: neither code nor their names.
. "$(dirname "$0")/lib.sh"

[ -z "$SAN" ] || skip "the sanitizers' builds have them"
names=$(build/fail/bin/mcshmd --failpoints | awk '{ print $1 }')
[ "$(wc -w <<<"$names")" -gt 100 ] || fail "build/fail/bin/mcshmd knows these failpoints only: $names"
equal "$(strings -a build/fail/bin/mcshmd | grep -cx submit_prepared)" 1 "the name of a point in a test build"
for file in "$B/bin/mcshmd" "$B/bin/mcshm" "$B/lib/libmcshm.so.0" "$B/lib/libmcshm.a"; do
    found=$(strings -a "$file" | grep -i 'mcs_\?failpoint\|MCSHM_FAILPOINT') || true
    equal "$found" "" "failpoints in $file"
    found=$(nm -a "$file" 2>/dev/null | grep -i failpoint) || true
    equal "$found" "" "failpoints among the symbols of $file"
done
expect_exit 2 "$B/bin/mcshmd" --failpoints
expect_exit 0 build/fail/bin/mcshmd --failpoints
