#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one command in two VMs at once, which have VM_ID=0 and VM_ID=1 in their environment.
#
#   two-vms.sh [-r RAILS] [-L DIR] [options of vm.sh] -- COMMAND [ARGUMENT]...
#
# They share RAILS (2) wires, eth0 and so on, and one more for control, the last NIC. Consoles go to DIR/vm0.log and
# DIR/vm1.log, QMP sockets are DIR/q0 and DIR/q1; without -L that is a new folder, printed and kept. guest-net.sh gives
# the NICs addresses and makes the RDMA devices. Status: that of VM 0, or if it is 0 that of VM 1.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
rails=2 dir='' options=()
while [ $# -gt 0 ]; do
    case $1 in
    -r) rails=$2 ;;
    -L) dir=$2 ;;
    --)
        shift
        break
        ;;
    -?) options+=("$1" "$2") ;;
    *) break ;;
    esac
    shift 2
done
[ -n "$dir" ] || {
    dir=$(mktemp -d)
    echo "$dir"
}
mkdir -p "$dir"

vms=()
trap 'kill "${vms[@]}" 2>/dev/null || true' EXIT
trap 'exit 143' TERM INT HUP
for v in 0 1; do
    nics=()
    for r in $(seq 0 "$rails"); do
        nics+=(-n "$dir/w$v.$r,$dir/w$((1 - v)).$r")
        rm -f "$dir/w$v.$r"
    done
    "$here/vm.sh" -o "$dir/vm$v.log" -q "$dir/q$v" "${nics[@]}" "${options[@]}" -- env VM_ID=$v "VM_RAILS=$rails" "$@" &
    vms+=($!)
done
first=0 second=0
wait "${vms[0]}" || first=$?
wait "${vms[1]}" || second=$?
vms=()
exit $((first ? first : second))
