#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The program in README.md compiles against an installed library and does what it says; what the
# README names exists.
. "$(dirname "$0")/lib.sh"

[ -z "$SAN" ] || skip "the installed library is the plain one"
requires_command pkg-config
# shellcheck disable=SC2016
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"$DIR/move.c"
[ "$(wc -l <"$DIR/move.c")" -gt 15 ] || fail "no program in README.md"
[ "$(wc -l <"$DIR/move.c")" -le 32 ] || fail "the program in README.md has grown beyond 30 lines"
make -s install PREFIX="$DIR/usr" >/dev/null
export PKG_CONFIG_PATH=$DIR/usr/lib/pkgconfig LD_LIBRARY_PATH=$DIR/usr/lib
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -o "$DIR/move" "$DIR/move.c" $(pkg-config --cflags --libs mcshm)
start_agent
"$DIR/move" "$SOCKET" >"$DIR/out" || fail "the program failed: $(cat "$DIR/out")"
grep -q 'moved 65536 bytes, path ' "$DIR/out" || fail "it said: $(cat "$DIR/out")"
grep -oE '`(make [a-z]+|scripts/[a-z/_.-]+|docs/[a-z-]+\.md|build/bin/[a-z-]+)' README.md | tr -d '`' |
    sort -u | while read -r first rest; do
    if [ "$first" = make ]; then
        grep -q "^$rest:" Makefile || fail "README.md names make $rest"
    else
        [ -e "$first" ] || fail "README.md names $first"
    fi
done
