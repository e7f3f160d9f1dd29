#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# beside others
# long
# scripts/gpu-check.sh: a bundle of at most 50 MiB that runs without anything of this tree, of its environment and of io_uring; without a
# GPU it says so; what fails on the double fails it; nothing is left of its processes.
. "$(dirname "$0")/lib.sh"
[ -z "$SAN" ] || skip "the bundle is of plain programs"
[ "$(nproc)" -ge 2 ] || skip "mcshm-bench gpu needs two cores"
export TMPDIR=$DIR/own && mkdir "$TMPDIR"
bundle=$DIR/bundle

scripts/gpu-check.sh --built --bundle "$bundle" >"$DIR/made"
grep -q 'MiB of at most 50' "$DIR/made" || fail "$(cat "$DIR/made")"

# All libraries but the C library's own come along.
missing=$(find "$bundle/bin" "$bundle/tests" "$bundle/python" "$bundle/lib" -type f -perm -u+x \
    -exec env LD_LIBRARY_PATH="$bundle/lib" ldd {} + 2>/dev/null |
    awk '$2 == "=>" && index($3, "'"$bundle"'/lib/") != 1 { print $1 }' | sort -u |
    grep -vE '^(ld-linux|libc\.so|libm\.so|libdl\.so|librt\.so|libpthread\.so|libresolv\.so)' || true)
equal "$missing" "" "libraries that are not in the bundle"

check() { # arguments of run, in an environment and a folder of their own
    (cd / && env -i PATH="$PATH" TMPDIR="$TMPDIR" "$bundle/run" --log "$DIR/log" "$@") >"$DIR/out" 2>&1
}

code=0
ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' || {
    check || code=$?
    equal "$code" 77 "without a driver: $(cat "$DIR/out")"
    grep -q 'no GPU can be used here' "$DIR/out" || fail "what it said: $(cat "$DIR/out")"
}

check --fake-cuda --only '@(kv|bench)*' || fail "$(cat "$DIR/out")"
grep -q '^\*\*\* FAKE' "$DIR/out" && grep -q '3 passed, 0 failed' "$DIR/log/table.txt" || fail "$(cat "$DIR/out")"
equal "$(grep -c 'mismatches 0, ' "$DIR/log/table.txt")" 2 "replays that were compared, in $(cat "$DIR/log/table.txt")"

# The scenarios, by the bundle's own Python, as they would run on hardware, and a unit program
first=$(find "$bundle/tests/scenario" -name 'test_gpu*.py' | sort | sed -n 's|.*/||; s|\.py$||; 1p')
[ -n "$first" ] || fail "no scenario is in the bundle"
# (but for the one that has a device fill gigabytes)
check --fake-cuda --as-hardware --only 'scenario !(*gates)' || fail "$(cat "$DIR/out" "$DIR"/log/scenario*)"
grep -q '^pass ' "$DIR/log/table.txt" && grep -q '^skip .*needs the test double' "$DIR/log/table.txt" || fail "$(cat "$DIR/log/table.txt")"
check --fake-cuda --only 'unit*test_cuda' || fail "$(cat "$DIR/out" "$DIR"/log/unit*)"

# On a machine that has only the C library, bash and the tools of every distribution.
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    libraries=$(dirname "$(ldd "$(command -v bash)" | awk '$1 ~ /^libc\.so/ { print $3 }')")
    mkdir "$DIR/few"
    tools=$(for tool in bash env timeout mktemp tee awk sed grep date nproc cut tail rm mkdir realpath dirname cat tr uname; do
        realpath "$(command -v "$tool")"
    done | sort -u)
    # shellcheck disable=SC2086 # one a line, without blanks
    ldd $tools | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | xargs cp -L -t "$DIR/few"
    cp -L "$libraries"/{ld-linux-x86-64.so.2,libm.so.6,libdl.so.2,librt.so.1,libpthread.so.0,libresolv.so.2} "$DIR/few"
    unshare -m env -i PATH="$PATH" TMPDIR="$TMPDIR" bash -c "mount --bind '$DIR/few' '$libraries' &&
        ! '$B/bin/mcshmd' --version >/dev/null 2>&1 && exec '$bundle/run' --log '$DIR/log' --fake-cuda --only '@(kv synced|scenario $first|unit*test_gpu)'" \
        >"$DIR/out" 2>&1 || fail "with few libraries: $(cat "$DIR/out" "$DIR"/log/*.txt)"
fi

# Where io_uring is not permitted.
if command -v strace >/dev/null && strace -qq -o "$DIR/trace" true 2>/dev/null; then
    strace -f --seccomp-bpf -qq -o "$DIR/trace" -e trace=io_uring_setup -e inject=io_uring_setup:error=EPERM \
        "$bundle/run" --log "$DIR/log" --fake-cuda --only 'kv synced' >"$DIR/out" 2>&1 || fail "without io_uring: $(cat "$DIR/out")"
fi

# A step that fails is a failure, one that there is no time for is told of.
code=0
(cd / && FAKE_CUDA_FAIL=cuMemCreate=CUDA_ERROR_OUT_OF_MEMORY "$bundle/run" --log "$DIR/log" --fake-cuda --only 'kv synced') >"$DIR/out" 2>&1 || code=$?
equal "$code" 1 "exit code with a driver out of memory"
grep -q '^FAIL  *kv synced' "$DIR/log/table.txt" || fail "$(cat "$DIR/log/table.txt")"
check --fake-cuda --seconds 1 && fail "there was no time for anything, and it passed"
grep -q ' left out for want of time' "$DIR/log/table.txt" && grep -q '^NO TIME' "$DIR/log/table.txt" || fail "$(cat "$DIR/log/table.txt")"

# Told to end amid a step, it does so soon, and the step has given back what it had.
pages() {
    cat /proc/sys/vm/nr_hugepages
}
agent_is_up() {
    compgen -G "$TMPDIR/on*/mcshm-bench-*/socket"
}
before=$(pages)
(cd / && FAKE_CUDA_DELAY_US=100000 exec "$bundle/run" --log "$DIR/log" --fake-cuda --only 'kv synced') >"$DIR/out" 2>&1 &
run=$!
await agent_is_up
kill -TERM $run
await has_ended $run
code=0
wait $run || code=$?
equal "$code" 130 "exit code when told to end: $(cat "$DIR/out")"
[ "$(pages)" -le "$before" ] || fail "hugepages: $(pages), before $before"

equal "$(ls "$TMPDIR")" "" "what it leaves behind"
left=$(grep -lzsF "TMPDIR=$TMPDIR/" /proc/[0-9]*/environ || true)
equal "$left" "" "processes that it leaves behind"
