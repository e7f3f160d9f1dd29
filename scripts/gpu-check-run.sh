#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The bundle of scripts/gpu-check.sh, run where it lies: everything about GPUs, one after the other, in less than four minutes.
#
#   run                  on this machine's GPU; where there is none it says so and ends with 77
#   run --fake-cuda      on the double of tests/fake-cuda: tries the bundle, says nothing about a GPU
#   run --fake-cuda --as-hardware   the scenarios do not know that it is the double: what they do on a GPU
#   run --device N       which GPU the benchmarks use; default 0
#   run --only PATTERN   steps whose name matches (a shell pattern, such as 'scenario test_gpu_alloc*')
#   run --seconds N      at most; default 230; a step that there is no time for is left out, and said
#   run --log DIR        where output of each step goes; default: log, beside this program
#
# Ends with 0 when no step failed, else 1. Nothing of what it starts is left when it ends.
set -uo pipefail
shopt -s extglob # patterns such as @(one|another)

here=$(dirname "$(realpath "$0")")
fake=0 real=1 device=0 only='*' seconds=230 log=$here/log

usage() {
    sed -n '4,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit "$1"
}

while [ $# -gt 0 ]; do
    case $1 in
    --fake-cuda) fake=1 real=0 ;;
    --as-hardware) real=1 ;;
    --device | --only | --seconds | --log)
        [ $# -ge 2 ] || usage 2
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    -h | --help) usage 0 ;;
    *) usage 2 ;;
    esac
    shift
done
[[ $seconds =~ ^[1-9][0-9]*$ && $device =~ ^[0-9]+$ ]] || usage 2

mkdir -p "$log" || {
    echo "no folder for the log: give one with --log" >&2
    exit 2
}
log=$(realpath "$log")
rm -f "$log"/*.txt "$log"/*.json
scratch=$(mktemp -d "${TMPDIR:-/tmp}/onXXXXXX") || exit 2
# Whatever was started carries this in its environment, whoever its parent is by now.
export MCSHM_GPU_CHECK=$$.${scratch##*/}

processes() {
    local environment pid
    for environment in /proc/[0-9]*/environ; do
        pid=${environment#/proc/} pid=${pid%/environ}
        [ "$pid" != $$ ] && [ "$pid" != "$BASHPID" ] || continue
        { tr '\0' '\n' <"$environment" | grep -qxF "MCSHM_GPU_CHECK=$MCSHM_GPU_CHECK"; } 2>/dev/null && echo "$pid"
    done
}

# First asked, so that they give back what they have reserved, then killed.
finish() {
    local code=$? pid left
    trap - EXIT INT TERM HUP
    for pid in $(processes); do
        kill -TERM "$pid" 2>/dev/null && [ -n "$(processes)" ] && echo "a step has left a process behind: $pid is ended"
    done
    left=$((SECONDS + 5))
    while [ -n "$(processes)" ] && [ $SECONDS -lt $left ]; do
        read -rt 0.1 <><(:) || true
    done
    for _ in 1 2 3; do # one may start another while it is looked for
        for pid in $(processes); do
            kill -KILL "$pid" 2>/dev/null
        done
    done
    rm -rf "$scratch"
    exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# Ours are found before the machine's libraries, by our programs only.
ours=("LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "TMPDIR=$scratch" "B=$here" SAN= TERM=dumb)
double="LD_LIBRARY_PATH=$here/fake-cuda:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
python=("PYTHONHOME=$here/python" PYTHONDONTWRITEBYTECODE=1 "$here/python/bin/python3" -B)
option=()
if [ $fake = 1 ]; then
    ours[0]=$double
    option=(--fake-cuda)
fi
[ $real = 0 ] && ours+=(MCSHM_CUDA=fake) || ours+=(MCSHM_CUDA=real)

# ---- is there a GPU? ---------------------------------------------------------------------------

if ! env "${ours[@]}" "$here/bin/mcshm" help >"$log/loader.txt" 2>&1; then
    echo "the bundle does not run on this machine: $(tail -n 1 "$log/loader.txt")"
    echo "it takes x86-64 and a C library from glibc 2.35 on"
    exit 1
fi
env "${ours[@]}" timeout 60 "$here/bin/mcshm" doctor gpu >"$log/doctor.txt" 2>&1
env "${ours[@]}" timeout 60 "$here/bin/mcshm" --json doctor gpu >"$log/doctor.json" 2>&1
# What the check `devices` found, a line each.
devices=$(sed 's/},{/\n/g' "$log/doctor.json" | sed -n 's/.*"check":"devices","severity":"[a-z]*","what":"\([^"]*\)".*/\1/p')
if ! grep -q '^driver for CUDA' <<<"$devices"; then
    echo "no GPU can be used here, so nothing was tried: ${devices:-mcshm doctor gpu said nothing}"
    exit 77
fi
if [ $fake = 0 ] && grep -q 'FAKE GPU' <<<"$devices"; then
    echo "the driver that is found here is the double of tests/fake-cuda (LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}): no GPU was tried"
    exit 77
fi
# Where the driver does not persist, it puts a device to sleep whenever nobody has it open, and takes seconds to wake it: each step
# would wait for that.
for file in /dev/nvidia[0-9]*; do
    # shellcheck disable=SC2034 # it is open, that is all
    [ $fake = 1 ] || [ ! -r "$file" ] || exec {awake}<"$file"
done
tell() { # to the terminal and to the table
    printf '%s\n' "$@" | tee -a "$log/table.txt"
}
tell "$(date -u +%Y-%m-%dT%H:%MZ), $(uname -r), $(nproc) cores, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" "$devices"
[ $fake = 0 ] || tell "*** FAKE: the double of tests/fake-cuda. Nothing below says anything about a GPU. ***"
tell ''

# ---- steps -------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0 left_out=0

# Runs a step; its output goes to the log.
step() { # name, limit in seconds, command...
    local name=$1 limit=$2 left=$((seconds - SECONDS)) code begin=$EPOCHREALTIME verdict time file why
    shift 2
    # shellcheck disable=SC2254 # it is a pattern
    case $name in
    $only) ;;
    *) return ;;
    esac
    file=$log/${name//[^a-zA-Z0-9_]/-}.txt
    if [ $left -lt 5 ]; then
        left_out=$((left_out + 1))
        tell "NO TIME    $name"
        return
    fi
    # not in the foreground, where a signal to this script would wait for its end
    timeout -k 5 $((limit < left ? limit : left)) env "${ours[@]}" "$@" </dev/null >"$file" 2>&1 &
    wait $!
    code=$?
    time=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    case $code in
    0) verdict=pass passed=$((passed + 1)) ;;
    77) verdict=skip skipped=$((skipped + 1)) ;;
    124 | 137) verdict='TIMED OUT' failed=$((failed + 1)) ;;
    *) verdict=FAIL failed=$((failed + 1)) ;;
    esac
    case $verdict in
    pass) why= ;;
    *) why=$(grep -v '^[[:space:]]*$' "$file" | tail -n 1 | cut -c1-200) ;;
    esac
    tell "$(printf '%-10s %-44s %s  %s' "$verdict" "$name" "$time" "$why")"
}

sizes=() kv=()
[ $fake = 0 ] || {
    sizes=(--sizes "4K,64K,1M" --seconds 0.005 --rounds 2)
    kv=(--requests 30)
}
step 'kv synced' 60 "$here/bin/mcshm-bench" kv --json --location "cuda:$device" "${kv[@]}" "${option[@]}"
step 'kv gate' 60 "$here/bin/mcshm-bench" kv --json --location "cuda:$device" --order gate "${kv[@]}" "${option[@]}"
step 'bench gpu' 120 "$here/bin/mcshm-bench" gpu --device "$device" "${sizes[@]}" "${option[@]}"
for scenario in "$here"/tests/scenario/test_gpu*.py; do
    [ -f "$scenario" ] || continue
    name=${scenario##*/}
    step "scenario ${name%.py}" 90 "${python[@]}" "$scenario"
done
# What these try needs a driver that fails on demand.
for unit in "$here"/tests/*/test_*; do
    case $unit in
    */scenario/*) ;;
    *) [ ! -x "$unit" ] || step "unit (on the double) ${unit#"$here"/tests/}" 60 env "$double" "$unit" ;;
    esac
done

# ---- what came of it ---------------------------------------------------------------------------

kv_table() { # file
    [ -f "$1" ] || return
    sed -n 's/^[[:space:]]*"\(order\|requests\|bytes\|verified_bytes\|mismatches\|gbps\|p50_us\|p99_us\|path\|device\|fake_cuda\)":[[:space:]]*\(.*[^,]\),\{0,1\}$/\1 \2/p' "$1" |
        awk '{ name = $1; $1 = ""; printf "%s%s%s", n++ ? ", " : "kv: ", name, $0 } END { if (n) print "" }'
}

tell ''
kv_table "$log/kv-synced.txt" | tee -a "$log/table.txt"
kv_table "$log/kv-gate.txt" | tee -a "$log/table.txt"
[ ! -f "$log/bench-gpu.txt" ] || tee -a "$log/table.txt" <"$log/bench-gpu.txt"
tell '' "$passed passed, $failed failed, $skipped skipped, $left_out left out for want of time; $SECONDS s; log: $log"
[ $((failed)) -eq 0 ] && [ $((passed)) -gt 0 ]
