#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows the host's hugepages, per NUMA node and size.
#
#   report.sh          a table
#   report.sh --json   one JSON document; sizes in bytes, node null for the whole host
#
# TOTAL: in the pool. FREE: not in use. RESERVED: free but promised to a mapping (the kernel
# counts this for the host only). SURPLUS: in use beyond the pool, given back when freed.
set -euo pipefail
. "$(dirname "$0")/common.sh"

json=false
case ${1:-} in
'') ;;
--json) json=true ;;
*)
    echo "usage: report.sh [--json]" >&2
    exit 2
    ;;
esac
[ $# -le 1 ] || die "one argument at most"

read_count() {
    local n=$2
    [ ! -f "$1" ] || read -r n <"$1"
    echo "$n"
}

rows=() # node size-in-kB total free reserved surplus
add_rows() {
    local dir size
    for dir in "$2"/hugepages-*kB; do
        [ -d "$dir" ] || continue
        size=${dir##*hugepages-}
        rows+=("$1 ${size%kB} $(read_count "$dir/nr_hugepages" 0) $(read_count "$dir/free_hugepages" 0) \
$(read_count "$dir/resv_hugepages" -) $(read_count "$dir/surplus_hugepages" 0)")
    done
}
for node in "$sysfs"/devices/system/node/node[0-9]*; do
    [ -d "$node/hugepages" ] || continue
    add_rows "${node##*/node}" "$node/hugepages"
done
add_rows host "$sysfs/kernel/mm/hugepages"
[ ${#rows[@]} -gt 0 ] || die "the kernel offers no hugepages: $sysfs/kernel/mm/hugepages is missing"

if $json; then
    separator=''
    printf '{"hugepages":['
    while read -r node size total free reserved surplus; do
        printf '%s{"node":%s,"size":%s,"total":%s,"free":%s,"reserved":%s,"surplus":%s}' \
            "$separator" "${node/host/null}" "$((size * 1024))" "$total" "$free" \
            "${reserved/-/null}" "$surplus"
        separator=,
    done < <(printf '%s\n' "${rows[@]}" | sort -V)
    printf ']}\n'
else
    printf '%-5s %5s %9s %9s %9s %9s\n' NODE SIZE TOTAL FREE RESERVED SURPLUS
    while read -r node size total free reserved surplus; do
        printf '%-5s %5s %9s %9s %9s %9s\n' "$node" "$(size_name "$size")" "$total" "$free" \
            "$reserved" "$surplus"
    done < <(printf '%s\n' "${rows[@]}" | sort -V)
fi
