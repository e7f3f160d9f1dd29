# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What report.sh, reserve.sh, release.sh and persist.sh share.
#
# SYSFS_ROOT and STATE_DIR point the scripts at other trees than the host's.
sysfs=${SYSFS_ROOT:-/sys}
state=${STATE_DIR:-/run}/mcshm.hugepages # lines of: node ("host" or a number), kilobytes of a page, pages added

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# 2M, 1G, 2048kB -> kilobytes
kilobytes() {
    case $1 in
    *[!0-9]*[!0-9BbkKMG]* | '' | [!0-9]*) return 1 ;;
    *[0-9]kB | *[0-9]K) echo $((10#${1%%[!0-9]*})) ;;
    *[0-9]M) echo $((10#${1%M} * 1024)) ;;
    *[0-9]G) echo $((10#${1%G} * 1024 * 1024)) ;;
    *) return 1 ;;
    esac
}

# kilobytes -> 2M, 1G
size_name() {
    if [ $(($1 % 1048576)) -eq 0 ]; then
        echo "$(($1 / 1048576))G"
    elif [ $(($1 % 1024)) -eq 0 ]; then
        echo "$(($1 / 1024))M"
    else
        echo "${1}K"
    fi
}

# The folder of the counters of one node ("host": the whole host) and page size.
pool_dir() {
    if [ "$1" = host ]; then
        echo "$sysfs/kernel/mm/hugepages/hugepages-$2kB"
    else
        echo "$sysfs/devices/system/node/node$1/hugepages/hugepages-$2kB"
    fi
}

# Dies with one sentence unless the host has this node and page size.
require_pool() {
    local dir known=()

    [ -d "$(pool_dir "$1" "$2")" ] && return
    if [ "$1" != host ] && [ ! -d "$sysfs/devices/system/node/node$1" ]; then
        die "there is no NUMA node $1; report.sh lists those there are"
    fi
    for dir in "$sysfs"/kernel/mm/hugepages/hugepages-*kB; do
        [ -d "$dir" ] || continue
        dir=${dir##*hugepages-}
        known+=("$(size_name "${dir%kB}")")
    done
    die "this host has no hugepages of $(size_name "$2"); it has: ${known[*]:-none}"
}

# Sets the number of pages; what the kernel then really has is read back by the caller.
set_pages() {
    local file
    file=$(pool_dir "$1" "$2")/nr_hugepages
    [ -w "$file" ] || die "may not write $file; run as root (in a container: on the host)"
    # The kernel takes fewer pages than asked for without an error; the count tells.
    { echo "$3" >"$file"; } 2>/dev/null || die "the kernel refused $3 pages in $file"
}

get_pages() {
    local n
    read -r n <"$(pool_dir "$1" "$2")/nr_hugepages"
    echo "$n"
}

# Only one of these scripts at a time reads, changes and records the counts.
lock_state() {
    [ -w "${state%/*}" ] || die "may not write ${state%/*}; run as root"
    exec 9<"$sysfs/kernel/mm/hugepages"
    flock 9
}

# Adds $3 pages (may be negative) to what is recorded for a node and size.
record() {
    local node size pages sum=$3 rest=''

    if [ -f "$state" ]; then
        while read -r node size pages; do
            if [ "$node" = "$1" ] && [ "$size" = "$2" ]; then
                sum=$((sum + pages))
            else
                rest+="$node $size $pages"$'\n'
            fi
        done <"$state"
    fi
    [ "$sum" -le 0 ] || rest+="$1 $2 $sum"$'\n'
    if [ -n "$rest" ]; then
        printf '%s' "$rest" >"$state.new"
        mv "$state.new" "$state"
    else
        rm -f "$state"
    fi
}
