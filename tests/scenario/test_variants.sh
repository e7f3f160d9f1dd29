#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# beside others
# The transfers and the promise once more: with two engines, with engines that never sleep, with one core
# for everything.
. "$(dirname "$0")/lib.sh"

both() { # settings, and a command before python3
    local test
    for test in transfers promise; do
        AGENT_SETTINGS=$1 "${@:2}" python3 "tests/scenario/test_$test.py" >"$DIR/out" 2>&1 ||
            fail "test_$test.py with $*: $(tail -n 20 "$DIR/out")"
    done
}

first=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
last=$(taskset -cp $$ | sed 's/.*[^0-9]\([0-9]*\)$/\1/')
both "" taskset -c "$first"
both "engine.idle=busy"
[ "$first" = "$last" ] || both "engine.cores=$first,$last"
