#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mcshm-bench gpu and kv --location cuda:N on the double of the driver: rows of every shape, every byte right, no copy by another
# path, and nobody takes the figures for a GPU's; a device that is lost, and a host without a driver, are failures.
. "$(dirname "$0")/lib.sh"
export TMPDIR=$DIR/own && mkdir "$TMPDIR"

bench() {
    "$B/bin/mcshm-bench" "$@" 2>"$DIR/stderr" || fail "mcshm-bench $*: $(cat "$DIR/stderr")"
}

refused() { # words that stderr must have, and the arguments
    local words=$1
    shift
    expect_exit 1 "$B/bin/mcshm-bench" "$@"
    equal "$(wc -l <"$DIR/stderr")" 1 "lines of $(cat "$DIR/stderr")"
    grep -q -- "$words" "$DIR/stderr" || fail "of $*: $(cat "$DIR/stderr")"
}

refused 'device x' gpu --device x --fake-cuda
refused 'sizes 4X' gpu --sizes 4X --fake-cuda
refused 'no such device' gpu --device 7 --fake-cuda
refused 'location gpu' kv --location gpu
refused 'go with --location' kv --fake-cuda
refused 'go with --location' kv --order gate --location cpu
refused 'order maybe' kv --order maybe --location cuda:0 --fake-cuda
# a library that is there and fails, and one that is not
FAKE_CUDA_FAIL=cuInit=CUDA_ERROR_UNKNOWN refused 'cuInit: CUDA_ERROR_UNKNOWN' gpu --fake-cuda
FAKE_CUDA_MISSING=cuMemMap refused 'no function cuMemMap' kv --location cuda:0 --fake-cuda
ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' || refused 'cannot be loaded' gpu

[ "$(nproc)" -ge 2 ] || echo "one core: gpu needs two, only kv was run"
[ "$(nproc)" -lt 2 ] || {
    bench gpu --fake-cuda --json --sizes 4K,64K,1M --seconds 0.002 --rounds 1 >"$DIR/gpu.json"
    json '(all(k in r for r in d["rows"] for k in ("op", "size", "pieces", "gbps", "bare_gbps", "ratio", "p50_us", "bare_p50_us", "added_us", "path")) and
          {(r["op"], r["size"]) for r in d["rows"] if r["pieces"] == 1} == {(o, s) for o in ("d2d", "h2d", "d2h") for s in (4096, 65536, 1048576)} and
          {r["size"] // r["pieces"] for r in d["rows"] if r["pieces"] > 1} == {4096, 16384, 65536, 262144} and
          all(r["gbps"] > 0 and r["bare_gbps"] > 0 and r["p50_us"] > 0 and r["path"] == "cuda" for r in d["rows"]) and
          d["fake"] is True and "FAKE" in d["device"] and d["driver"] == "13.0" and
          d["mismatches"] == 0 and d["verified_bytes"] >= sum(r["size"] for r in d["rows"])) or exit("gpu: %s" % d)' <"$DIR/gpu.json" >"$DIR/ok"
    # a driver without batched copies, and the second device by its UUID
    export FAKE_CUDA_MISSING=cuMemcpyBatchAsync_v2,cuMemcpyBatchAsync
    bench gpu --fake-cuda --device "$(LD_LIBRARY_PATH=$B/fake-cuda "$B/bin/mcshm" doctor gpu | sed -n 's/.*\(GPU-facecd01[-0-9a-f]*\): FAKE.*/\1/p')" \
        --sizes 64K --seconds 0.001 --rounds 1 >"$DIR/gpu.txt"
    unset FAKE_CUDA_MISSING
    # one that has them and takes none: said, by both, and no failure
    FAKE_CUDA_FAIL=cuMemcpyBatchAsync_v2=CUDA_ERROR_NOT_SUPPORTED bench gpu --fake-cuda --sizes 64K --seconds 0.001 --rounds 1 >"$DIR/singly.txt"
    grep -q 'refused a batch of 16 bare copies (CUDA_ERROR_NOT_SUPPORTED)' "$DIR/stderr" && grep -q 'takes no batched copies (CUDA_ERROR_NOT_SUPPORTED)' "$DIR/stderr" ||
        fail "what was said of batches: $(cat "$DIR/stderr")"
    equal "$(grep -c '^\*\*\* FAKE' "$DIR/gpu.txt")" 2 "warnings in $(cat "$DIR/gpu.txt")"
    grep -q 'FAKE GPU 1' "$DIR/gpu.txt" || fail "which device? $(cat "$DIR/gpu.txt")"
}

replay() { # arguments of kv
    bench kv --json --fake-cuda "$@" >"$DIR/kv.json"
    json '(d["mismatches"] == 0 and d["verified_bytes"] == d["bytes"] > 0 and d["path"] == "cuda" and d["fake_cuda"] is True and
          "FAKE" in d["device"] and d["location"].startswith("cuda:") and d["pages"] is None) or exit("kv: %s" % d)' <"$DIR/kv.json" >"$DIR/ok"
}
replay --location cuda:0 --requests 30 --model bytes=65536 --scale 1
replay --location cuda:1 --requests 20 --inflight 4 --cache-blocks 300 --order gate
# What prefill has queued on its stream is slow: a task that did not wait for it would carry old bytes.
FAKE_CUDA_DELAY_US=300 replay --location cuda:0 --requests 6 --model bytes=65536 --scale 1 --order gate
CUDA_VISIBLE_DEVICES=1 replay --location cuda:0 --requests 5 --idle busy
equal "$(json 'd["device"][:10]' <"$DIR/kv.json")" 'FAKE GPU 1' "the device that is left visible"

# Between hosts the caches are on a GPU, too, and their bytes go through host memory.
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null; then
    bench kv --json --fake-cuda --location cuda:0 --hosts 2 --order gate --requests 10 >"$DIR/kv.json"
    json '(d["mismatches"] == 0 and d["verified_bytes"] == d["bytes"] > 0 and d["path"] == "tcp" and d["hosts"] == 2) or exit("kv: %s" % d)' <"$DIR/kv.json" >"$DIR/ok"
fi

# The agent's device is lost amid the copies: said, no success.
FAKE_CUDA_FAIL=run:copy:40=CUDA_ERROR_ILLEGAL_ADDRESS expect_exit 1 "$B/bin/mcshm-bench" kv --location cuda:0 --fake-cuda --requests 20
[ -s "$DIR/stderr" ] || fail "a lost device was not mentioned"
equal "$(ls "$TMPDIR")" "" "what the benchmark leaves behind"
