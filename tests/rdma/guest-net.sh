# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# To be sourced in a guest: gives it RDMA devices. VM_RAILS (1) says how many rails.
#
# In a VM of two-vms.sh rail R is eth$R with device rxe$R, 10.9.R.1 in VM 0 and 10.9.R.2 in VM 1; control is 10.8.0.1 and 10.8.0.2.
# Elsewhere rail R is a pair of interfaces a$R and b$R of this one guest, with devices rxea$R (10.9.R.1) and rxeb$R (10.9.R.2):
# a wire between two agents that can be cut (ip link, tc). rxe works in no network namespace but the first.
# On every device GID 1 is the IPv4 address.
: "${VM_RAILS:=1}"
modprobe rdma_rxe
modprobe rdma_ucm
# A READ is answered by all its packets at once: what the default of 1000 cannot hold is lost, and costs an ACK timeout.
sysctl -qw net.core.netdev_max_backlog=100000

rdma_two_guests() {
    local r
    for r in $(seq 0 $((VM_RAILS - 1))); do
        ip addr add "10.9.$r.$((VM_ID + 1))/24" dev "eth$r"
        ip link set "eth$r" up
        rdma link add "rxe$r" type rxe netdev "eth$r"
    done
    ip addr add "10.8.0.$((VM_ID + 1))/24" dev "eth$VM_RAILS"
    ip link set "eth$VM_RAILS" up
}

# Both ends are addresses of this machine, which Linux would connect by lo, where rxe does not listen. So each rail has
# rules of its own that are looked at before the table of local addresses, and a table for each direction.
rdma_one_guest() {
    local r end side me peer table
    sysctl -qw net.ipv4.conf.all.rp_filter=0
    ip rule add pref 100 lookup local
    ip rule del pref 0
    for r in $(seq 0 $((VM_RAILS - 1))); do
        ip link add "a$r" mtu 4200 type veth peer name "b$r" mtu 4200
        for end in a:1:2 b:2:1; do
            IFS=: read -r side me peer <<<"$end"
            table=$((1000 + 2 * r + me))
            sysctl -qw "net.ipv4.conf.$side$r.accept_local=1" "net.ipv4.conf.$side$r.rp_filter=0"
            ip addr add "10.9.$r.$me/24" dev "$side$r" noprefixroute
            ip link set "$side$r" up
            ip rule add pref 10 iif lo from "10.9.$r.$me" to "10.9.$r.$peer" lookup $table
            ip rule add pref 11 oif "$side$r" lookup $table # rdma_cm and rxe look routes up by device
            ip route add "10.9.$r.$peer" dev "$side$r" src "10.9.$r.$me" table $table
        done
        rdma link add "rxea$r" type rxe netdev "a$r"
        rdma link add "rxeb$r" type rxe netdev "b$r"
    done
}

if [ -n "${VM_ID:-}" ]; then
    rdma_two_guests
else
    rdma_one_guest
fi
# A GID appears a moment after its address does.
for device in /sys/class/infiniband/rxe*; do
    for _ in $(seq 100); do
        grep -q ffff:0a09 "$device/ports/1/gids/1" && break
        sleep 0.05
    done
done
