#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two processes of five threads each do everything with the same objects at once, in a store that is too small for all.
. "$(dirname "$0")/lib.sh"

requires_command gcc
rounds=1500
[ -z "$SAN" ] || rounds=300
start_agent --set store.size=8M --set store.extent_size=2M --set store.lease_ms=20 --set pool.size=128M
flags=(-O1 -g -Wall)
[ -z "$SAN" ] || flags+=("-fsanitize=${SAN/address/address,undefined}")
gcc "${flags[@]}" -Ilib -o "$DIR/objects" tests/scenario/objectclient.c "$B/lib/libmcshm.a" -pthread
"$DIR/objects" "$SOCKET" $rounds 1 >"$DIR/first" 2>&1 &
first=$!
"$DIR/objects" "$SOCKET" $rounds 2 || fail "the second process"
wait $first || fail "the first process: $(cat "$DIR/first")"
cat "$DIR/first"
mcshm() {
    "$B/bin/mcshm" --socket "$SOCKET" "$@"
}
mcshm rm --all --force >/dev/null
empty() {
    mcshm store top --once --json | grep -q '"used":0,'
}
await empty
