#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Reserves hugepages, now or at each boot.
#
#   reserve.sh --size 2M|1G --count N [--node N]          adds N pages now
#   reserve.sh --size 2M|1G --count N [--node N] --boot   N pages at each boot from now on
#
# Says how many pages were really got; exits with 1 when that is fewer. What was added is
# remembered until the next boot, and release.sh gives it back.
set -euo pipefail
. "$(dirname "$0")/common.sh"
etc=${ETC_ROOT:-/etc}

usage() {
    echo "usage: reserve.sh --size 2M|1G --count N [--node N] [--boot]" >&2
    exit 2
}

size='' count='' node=host boot=false
while [ $# -gt 0 ]; do
    case $1 in
    --boot)
        boot=true
        shift
        ;;
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

if $boot; then
    if [ "$size" -eq 2048 ] && [ "$node" = host ]; then
        file=$etc/sysctl.d/60-mcshm-hugepages.conf
        mkdir -p "${file%/*}" 2>/dev/null && [ -w "${file%/*}" ] ||
            die "may not write ${file%/*}; run as root"
        printf '# written by reserve.sh --boot of mcshm; delete to undo\nvm.nr_hugepages = %s\n' \
            "$count" >"$file"
        echo "wrote $file: $count pages of 2M at each boot"
    else
        # These need memory that nobody has touched yet, so only the kernel itself can take them.
        [ "$node" = host ] && pages=$count || pages=$node:$count
        echo "Add to the kernel's command line (GRUB: GRUB_CMDLINE_LINUX in /etc/default/grub," \
            "then update-grub) and boot:"
        echo "    hugepagesz=$(size_name "$size") hugepages=$pages"
    fi
    exit 0
fi

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
        echo "too little contiguous memory; reserve them at boot: reserve.sh with --boot tells how" >&2
    else
        echo "too little contiguous memory; stop what uses much memory, run" \
            "'echo 1 >/proc/sys/vm/compact_memory' and retry, or use --boot" >&2
    fi
    exit 1
fi
