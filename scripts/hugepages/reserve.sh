#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Reserves hugepages now; persist.sh does so at each boot.
#
#   reserve.sh --size 2M|1G --count N [--node N]   adds N pages
#
# Says how many pages were really got; exits with 1 when that is fewer. What was added is
# remembered until the next boot, and release.sh gives it back.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() {
    echo "usage: reserve.sh --size 2M|1G --count N [--node N]" >&2
    exit 2
}

size='' count='' node=host
while [ $# -gt 0 ]; do
    case $1 in
    --size | --count | --node)
        [ $# -ge 2 ] || usage
        case $1 in
        --size) size=$(kilobytes "$2") || usage ;;
        --count) [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] && count=$2 || usage ;;
        --node) [[ $2 =~ ^[0-9]{1,4}$ ]] && node=$((10#$2)) || usage ;;
        esac
        shift 2
        ;;
    *) usage ;;
    esac
done
[ -n "$size" ] && [ -n "$count" ] || usage
require_pool "$node" "$size"

lock_state
before=$(get_pages "$node" "$size")
set_pages "$node" "$size" $((before + count))
got=$(($(get_pages "$node" "$size") - before))
[ "$got" -ge 0 ] || got=0
[ "$got" -eq 0 ] || record "$node" "$size" "$got"
[ "$node" = host ] && where='' || where=" on node $node"
echo "reserved $got of $count pages of $(size_name "$size")$where"
if [ "$got" -lt "$count" ]; then
    if [ "$size" -ge 1048576 ]; then
        echo "too little contiguous memory; reserve them at boot: persist.sh tells how" >&2
    else
        echo "too little contiguous memory; stop what uses much memory, run" \
            "'echo 1 >/proc/sys/vm/compact_memory' and retry, or reserve them at boot with persist.sh" >&2
    fi
    exit 1
fi
