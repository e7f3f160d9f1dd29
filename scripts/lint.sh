#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Formatting, static analysis and the rules of the house. Silent, with exit code 0, when all is well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

bad=0
complain() {
    printf '%s\n' "$*"
    bad=1
}
# Each line of a command's output is a complaint.
lines_of() {
    local what=$1 line
    shift
    while IFS= read -r line; do
        complain "$line${what:+: $what}"
    done < <("$@" 2>&1)
}

for tool in clang-format cppcheck shellcheck; do
    command -v $tool >/dev/null || complain "needs $tool: scripts/deps.sh lint installs it"
done
[ $bad -eq 0 ] || exit 1

if git rev-parse --git-dir >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files -co --exclude-standard | sort -u |
        while IFS= read -r f; do [ -f "$f" ] && echo "$f"; done)
else
    mapfile -t files < <(find . -path ./build -prune -o -type f -print | sed 's|^\./||' | sort)
fi
c_files=() scripts=() sources=()
for f in "${files[@]}"; do
    case $f in
    *.c | *.h) c_files+=("$f") sources+=("$f") ;;
    *.py | *.map | *.supp | Makefile | *.mk) sources+=("$f") ;;
    *.sh) scripts+=("$f") sources+=("$f") ;;
    *.md | *.ini | *.in | LICENSE | .*) ;;
    *) head -c 64 "$f" | grep -qaE '^#!.*sh' && scripts+=("$f") && sources+=("$f") ;;
    esac
done
[ -f .ci/run ] && scripts+=(.ci/run) && sources+=(.ci/run)

# formatting
unformatted() {
    clang-format --dry-run -Werror "${c_files[@]}" 2>&1 | sed -n 's/^\([^:]*\):.*error:.*/\1/p' | sort -u
}
lines_of 'clang-format -i would change it' unformatted

# a license line on top of every source
for f in "${sources[@]}"; do
    head -n 3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2\.0' ||
        complain "$f: no SPDX-License-Identifier: Apache-2.0 in its first lines"
    n=$(wc -l <"$f")
    [ "$n" -le 800 ] || complain "$f: $n lines; a file past 800 wants splitting"
done

# nothing left to be done later; written so that this line does not find itself
lines_of 'no such notes' grep -nHwIE 'TO[D]O|FI[X]ME|X[X]X' "${files[@]}"

# atomics live in shm/ only
outside_shm=()
for f in "${c_files[@]}"; do
    [[ $f == shm/* ]] || outside_shm+=("$f")
done
lines_of 'atomics live in shm/ only' grep -nHE \
    '\b(atomic_[a-z]|__atomic_|__sync_|rte_atomic|rte_smp_)|_Atomic|stdatomic\.h' "${outside_shm[@]}"

# who may include whom
may_include() { # the including file, the included one
    local from=${1%%/*} to=${2%%/*}
    case $1 in
    tests/*) return 0 ;;
    lib/compat/*) [ "$2" = lib/mcshm.h ] || [[ $2 == lib/compat/* ]] ;;
    *)
        [ "$from" = "$to" ] && return 0
        case $from in
        lib | transports) [ "$to" = shm ] ;;
        store) [ "$to" = shm ] || [[ $1 == store/object/* && $2 == transports/file/* ]] ;;
        daemon) [[ $to =~ ^(shm|transports|store)$ ]] ;;
        # pure, and of files; the doctor asks the GPU driver itself
        cli) [[ $2 =~ ^(lib/mcshm|transports/rdma/(gid|sysfs)|shm/cuda)\.h$ ]] ;;
        python) [ "$2" = lib/mcshm.h ] ;;
        # its floors are made of the contract; the directory is measured by itself
        bench) [ "$2" = lib/mcshm.h ] || [ "$to" = shm ] || [[ $2 == store/object/* ]] ;;
        *) false ;;
        esac
        ;;
    esac
}
while IFS=: read -r file line text; do
    name=${text#*\"} name=${name%%\"*}
    for place in "$(dirname "$file")/" '' lib/; do
        target=$(realpath -m --relative-to=. "$place$name")
        [ -f "$target" ] && break
    done
    if [ ! -f "$target" ]; then
        complain "$file:$line: $name is not in the tree; system headers go in <>"
    elif ! may_include "$file" "$target"; then
        complain "$file:$line: ${file%%/*}/ may not include $target"
    fi
done < <(grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "${c_files[@]}")

# shell; SC2015 is how these scripts write conditions, SC2119 knows no optional arguments
lines_of '' shellcheck -f gcc -x -P SCRIPTDIR -e SC2015,SC2119,SC2120,SC2317 "${scripts[@]}"

# C: the compiler with all warnings as errors (also the tests; LINT_BUILD may name a build that was made
# so already), and cppcheck, which leaves
# uninitialised variables to the compiler: its own guesses at them are mostly wrong
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build=${LINT_BUILD:-build/lint}
make -s -j"$(nproc)" CI=1 B="$build" unit >"$log" 2>&1 || complain "$(tail -n 40 "$log")"
checked=()
for f in "${c_files[@]}"; do
    [[ $f == *.c && $f != tests/* ]] && checked+=("$f")
done
lines_of '' cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr \
    --template=gcc --suppress=missingIncludeSystem --suppress=uninitvar --suppress=uninitStructMember \
    -D__x86_64__ -D_GNU_SOURCE -I. -Ilib \
    -j"$(nproc)" "${checked[@]}"

# the sample configuration is what the agent's table of keys says
if [ -x "$build/bin/mcshmd" ]; then
    "$build/bin/mcshmd" --sample-config 2>&1 | cmp -s - etc/mcshmd.ini ||
        complain "etc/mcshmd.ini: differs from 'mcshmd --sample-config'; write it anew"
fi

exit $bad
