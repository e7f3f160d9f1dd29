#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The main job from nothing: installs what is missing, builds, reserves hugepages if it may, and has
# a prefill and a decode process replay a trace of requests through the agent.
#
#   scripts/demo.sh [ARGUMENTS OF mcshm-bench kv]...   such as --trace FILE --requests 1000
set -euo pipefail
cd "$(dirname "$0")/.."

as_root=()
if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null; then
    as_root=(sudo)
    [ -t 0 ] || as_root+=(-n)
fi

# Pages are recorded apart, so that those which somebody reserved before stay reserved.
state=$(mktemp -d)
hugepages() { # script, arguments
    "${as_root[@]}" env STATE_DIR="$state" scripts/hugepages/"$1" "${@:2}"
}
give_back() {
    [ ! -f "$state/mcshm.hugepages" ] || hugepages release.sh || true
    rm -rf "$state"
}
trap give_back EXIT
trap 'exit 130' INT TERM

scripts/deps.sh build
make -s -j"$(nproc)"

# A quarter of the free memory, at most 2 GiB; what is reserved already is left as it is.
free_kb=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
pages=$((free_kb / 4 / 2048))
[ $pages -le 1024 ] || pages=1024
if [ ! -d /sys/kernel/mm/hugepages/hugepages-2048kB ]; then
    echo "no hugepages: this kernel has none of 2M; ordinary pages will do"
elif [ $pages -gt 0 ] && "${as_root[@]}" test -w /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; then
    hugepages reserve.sh --size 2M --count $pages || true
else
    echo "no hugepages reserved: that needs root; ordinary pages will do"
fi

echo
build/bin/mcshm-bench kv "$@"
echo
scripts/demo-object.sh
cat <<'END'

How it works: README.md and docs/architecture.md. Other measurements: build/bin/mcshm-bench ring,
build/bin/mcshm-bench copy. Your own program: lib/mcshm.h and the example in README.md.
END
