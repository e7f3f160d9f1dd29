#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tool's commands about objects: what they print, their JSON, their exit codes, bad input.
. "$(dirname "$0")/lib.sh"

start_agent --set store.size=96M --set store.extent_size=8M
mcshm() {
    "$B/bin/mcshm" --socket "$SOCKET" "$@"
}
field() { # of $DIR/stdout
    python3 -c "import json,sys; print(eval(sys.argv[1], {'d': json.load(open(sys.argv[2]))}))" "$1" "$DIR/stdout"
}

# in and out again: empty, small, larger than any chunk, binary, by files and by pipes
: >"$DIR/empty"
printf 'a block\0of bytes' >"$DIR/small"
head -c 70000000 /dev/urandom >"$DIR/large"
for what in empty small large; do
    mcshm put "v/$what" "$DIR/$what" >"$DIR/stdout"
    grep -q "^v/$what: $(stat -c %s "$DIR/$what") bytes, version [0-9]*, CRC32C 0x[0-9a-f]*, 1 copy$" "$DIR/stdout" ||
        fail "put says $(cat "$DIR/stdout")"
    mcshm get "v/$what" "$DIR/got" >"$DIR/stdout"
    cmp "$DIR/$what" "$DIR/got"
    grep -q "^v/$what: .* from memory, path [a-z]*$" "$DIR/stdout" || fail "get says $(cat "$DIR/stdout")"
    mcshm get --verify "v/$what" | cmp - "$DIR/$what"
    mcshm get "v/$what" --in-place 2>"$DIR/stderr" | cmp - "$DIR/$what"
    [ $what = empty ] || grep -q 'in place at 0x[0-9a-f]*, mapped read-only, checksum of the bytes there equal' "$DIR/stderr" ||
        fail "get --in-place says $(cat "$DIR/stderr")"
    [ $what != large ] || mcshm rm v/large >/dev/null
done
printf piped | mcshm put p - >/dev/null
equal "$(mcshm get p)" piped "what came through a pipe"
printf other | mcshm put p >"$DIR/stdout"
grep -q "is there already" "$DIR/stdout" || fail "a put over an existing key says $(cat "$DIR/stdout")"
equal "$(mcshm get p)" piped "nothing was written"
printf other | expect_exit 1 mcshm put p --new
grep -q exists "$DIR/stderr" || fail "--new says $(cat "$DIR/stderr")"
printf other | mcshm put p --upsert >/dev/null
equal "$(mcshm get p -)" other "replaced"
printf x | mcshm put --soft-pin 60 --replicas 1 pinned - >/dev/null
printf x | mcshm put --hard-pin hard - >/dev/null

# existence is the exit code
mcshm exist p pinned >/dev/null
expect_exit 1 mcshm exist p nobody
equal "$(cat "$DIR/stdout")" $'p: there\nnobody: not there' "exist"
expect_exit 1 mcshm exist p nobody --json
equal "$(field "[(o['key'], o['status']) for o in d['objects']]")" "[('p', 0), ('nobody', 16)]" "exist --json"

# what there is
mcshm ls-objects --prefix v/ >"$DIR/stdout"
grep -q '^v/empty  *0 ' "$DIR/stdout" || fail "ls-objects says $(cat "$DIR/stdout")"
printf x | mcshm put --hex ff00 - >/dev/null
mcshm ls-objects >"$DIR/stdout"
grep -q '^0xff00 ' "$DIR/stdout" || fail "ls-objects says $(cat "$DIR/stdout")"
equal "$(mcshm get --hex 0xFF00)" x "a key in digits"
mcshm ls-objects --limit 2 >"$DIR/stdout"
grep -q 'there are more' "$DIR/stdout" || fail "ls-objects --limit says $(cat "$DIR/stdout")"
mcshm ls-objects --json --limit 2 >"$DIR/stdout"
equal "$(field "(len(d['objects']), d['more'])")" "(2, True)" "ls-objects --json"
mcshm stat v/small >"$DIR/stdout"
grep -q '^size  *16$' "$DIR/stdout" || fail "stat says $(cat "$DIR/stdout")"
mcshm stat v/small --json >"$DIR/stdout"
equal "$(field "(d['key'], d['size'])")" "('v/small', 16)" "stat --json"
expect_exit 1 mcshm stat nobody
mcshm store top --once >"$DIR/stdout"
grep -q '^store  .* of 96M used' "$DIR/stdout" || fail "store top says $(cat "$DIR/stdout")"
mcshm store top --once --json >"$DIR/stdout"
equal "$(field "d['objects'] >= 5 and d['size']")" $((96 << 20)) "store top --json"
equal "$(mcshm store top --interval 0.05 --count 3 | grep -c '^store')" 3 "frames of store top"

# gone
expect_exit 1 mcshm rm p nobody
equal "$(cat "$DIR/stdout")" $'p: removed\nnobody: not there' "rm"
expect_exit 1 mcshm rm hard
mcshm rm hard --force >/dev/null
equal "$(mcshm rm --prefix v/)" "2 removed" "rm --prefix"
equal "$(mcshm --json rm --regex '^pin+ed$')" '{"removed":1}' "rm --regex"
expect_exit 1 mcshm rm --regex 'a('
equal "$(mcshm rm --all)" "1 removed" "rm --all"
mcshm ls-objects --json >"$DIR/stdout"
equal "$(field "d['objects']")" "[]" "nothing is left"

# bad input
for words in "put" "get" "exist" "rm" "rm a --all" "rm --prefix a --regex b" "put a b c" "put a --host" "store" "store x" \
    "put a --replicas 9" "put a --replicas 0" "put a --soft-pin 0" "put a --soft-pin 86401" "exist --hex abc" \
    "exist --hex xy" "get a --upsert" "ls-objects a" "ls-objects --limit 0" "drain" "put a --upsert --new"; do
    # shellcheck disable=SC2086
    expect_exit 2 mcshm $words </dev/null
    [ -s "$DIR/stderr" ] || fail "mcshm $words says nothing"
done
expect_exit 2 mcshm put '' - </dev/null
expect_exit 2 mcshm get "$(head -c 4097 /dev/zero | tr '\0' k)"
expect_exit 1 mcshm get nobody
expect_exit 1 mcshm get nobody --in-place
expect_exit 1 mcshm get nobody "$DIR/small"
equal "$(stat -c %s "$DIR/small")" 16 "what is not found overwrites nothing"
expect_exit 1 mcshm put a "$DIR/no-such-file"
expect_exit 1 mcshm put a "$DIR"
head -c 110000000 /dev/zero | expect_exit 1 mcshm put huge -
grep -q '^mcshm: huge: ' "$DIR/stderr" || fail "a value larger than the store: $(cat "$DIR/stderr")"
printf x | mcshm put -- --option - >/dev/null
equal "$(mcshm get -- --option)" x "a key that begins as an option"
expect_exit 1 mcshm drain 127.0.0.1:1
[ -s "$DIR/stderr" ] || fail "drain without a cluster says nothing"
mcshm rm --all >/dev/null

# into a full disk
if [ -w /dev/full ]; then
    printf x | mcshm put x - >/dev/null
    expect_exit 1 mcshm get x /dev/full
fi

# sizes that are none, in the agent's configuration
for size in 4gb '10 MB' -1 ''; do
    expect_exit 1 "$B/bin/mcshmd" --check --set "agent.socket=$DIR/none" --set "store.size=$size"
    grep -q "\[store\] size = '$size'" "$DIR/stderr" || fail "store.size=$size: $(cat "$DIR/stderr")"
done
