#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Gives hugepages back to the system.
#
#   release.sh                                     all that reserve.sh added since boot
#   release.sh --size 2M|1G --count N [--node N]   N pages, whoever reserved them
#
# Pages in use return to the system when their user ends.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() {
    echo "usage: release.sh [--size 2M|1G --count N [--node N]]" >&2
    exit 2
}

release() { # node, kilobytes, pages
    local before after where=''

    require_pool "$1" "$2"
    before=$(get_pages "$1" "$2")
    [ "$before" -ge "$3" ] || set -- "$1" "$2" "$before"
    set_pages "$1" "$2" $((before - $3))
    after=$(get_pages "$1" "$2")
    [ "$1" = host ] || where=" on node $1"
    echo "released $((before - after)) pages of $(size_name "$2")$where"
}

size='' count='' node=host
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --size) size=$(kilobytes "$2") || usage ;;
    --count) [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] && count=$2 || usage ;;
    --node) [[ $2 =~ ^[0-9]{1,4}$ ]] && node=$((10#$2)) || usage ;;
    *) usage ;;
    esac
    shift 2
done
if [ -z "$size$count" ]; then
    [ "$node" = host ] || usage
    [ -f "$state" ] || {
        echo "nothing to release: reserve.sh has added no pages since boot"
        exit 0
    }
    lock_state
    while read -r node size count; do
        release "$node" "$size" "$count"
        record "$node" "$size" "-$count"
    done < <(cat "$state")
else
    [ -n "$size" ] && [ -n "$count" ] || usage
    lock_state
    release "$node" "$size" "$count"
    record "$node" "$size" "-$count"
fi
