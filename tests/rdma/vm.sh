#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Boots a throw-away VM, runs one command in it and exits with the command's status.
#
#   vm.sh [options] -- COMMAND [ARGUMENT]...
#
#   -c N      processors (1)
#   -m MIB    memory (1024)
#   -t SEC    the VM ends after that, with status 124 (300)
#   -s DIR    this folder of the host is writable in the guest, at the same path, and the command starts in it (the
#             current folder; '' for none)
#   -k ARGS   more arguments for the kernel, such as hugepages=128
#   -n SPEC   a NIC, may be given again: eth0, eth1, ... with MTU 4200 and no address. SPEC is "hub" (all NICs of this VM
#             are on one wire) or MINE,THEIRS: Unix datagram sockets, the other way round in another VM (two-vms.sh)
#   -q PATH   a QMP socket (qmp.py); the NICs are nic0, nic1, ...
#   -o FILE   the console goes there instead of to standard output
#   -Q ARGS   more arguments for QEMU, parted at blanks
#
# QEMU runs without KVM. The guest's root is the host's / below a tmpfs: what was built here runs there at the same
# path, what is written there outside of -s is lost. Build nothing meanwhile: the guest keeps what it has read.
# Status: the command's; 124 out of time; 125 the guest died (panic, oops, or it did not come up); 2 usage.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

usage() {
    sed -n '3,/^# Status/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

processors=1 memory=1024 limit=300 share=$PWD kernel_args='' console=stdio nics=0 qemu=()
while getopts c:m:t:s:k:n:q:o:Q: option; do
    case $option in
    c) processors=$OPTARG ;;
    m) memory=$OPTARG ;;
    t) limit=$OPTARG ;;
    s) share=$OPTARG ;;
    k) kernel_args=$OPTARG ;;
    q) qemu+=(-qmp "unix:$OPTARG,server=on,wait=off") ;;
    o) console=file:$OPTARG ;;
    Q)
        read -ra words <<<"$OPTARG"
        qemu+=("${words[@]}")
        ;;
    n)
        case $OPTARG in
        hub) qemu+=(-netdev "hubport,id=n$nics,hubid=0") ;;
        *,*)
            qemu+=(-netdev "dgram,id=n$nics,local.type=unix,local.path=${OPTARG%,*},remote.type=unix,remote.path=${OPTARG#*,}")
            ;;
        *) usage ;;
        esac
        # rxe's largest path MTU of 4096 wants 4200. No two NICs, nor two VMs, may have the same address.
        mac=$(printf '%s %s' "$OPTARG" $nics | md5sum | sed 's/\(..\)\(..\)\(..\).*/52:54:00:\1:\2:\3/')
        qemu+=(-device "virtio-net-pci,bus=pci.0,netdev=n$nics,id=nic$nics,mac=$mac,host_mtu=4200,romfile=")
        nics=$((nics + 1))
        ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
image=$("$here/image.sh")

run=$(mktemp -d)
vm=
# shellcheck disable=SC2329
clean() {
    [ -z "$vm" ] || kill "$vm" 2>/dev/null || true
    rm -rf "$run"
}
trap clean EXIT
trap 'exit 143' TERM INT HUP

printf '%q ' "$@" >"$run/command"
# The second half of the guest's first process, after guest-init. It leaves by isa-debug-exit, whose status
# tells a command that has ended from a guest that has died.
cat >"$run/start" <<EOF
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
stty -onlcr
share=$(printf %q "$share")
if [ -n "\$share" ]; then
    mkdir -p "\$share"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap share "\$share"
    cd "\$share"
fi
[ $nics = 0 ] || modprobe virtio_net
bash /run/vm/command
echo \$? >/run/vm/status
printf '\\001' | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
EOF

filesystem() { # tag, folder, more options
    qemu+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3"
        -device "virtio-9p-pci,bus=pci.0,fsdev=$1,mount_tag=$1")
}
filesystem root / ,readonly=on
filesystem mods "$image/lib/modules" ,readonly=on
filesystem run "$run" ''
[ -z "$share" ] || filesystem share "$share" ''

# Emulated, `rep movsb` moves a byte at a time and PCLMULQDQ a bit at a time: without them rxe is twice as fast.
timeout -k 5 "$limit" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
    -M pc,hpet=off -accel tcg,thread=multi -cpu max,-erms,-pclmulqdq -smp "$processors" -m "$memory" \
    -kernel "$image/vmlinux" -initrd "$image/initrd" -device isa-debug-exit,iobase=0xf4,iosize=1 \
    -append "console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off no_timer_check tsc=reliable random.trust_cpu=on $kernel_args" \
    -serial "$console" "${qemu[@]}" </dev/null &
vm=$!
status=0
wait $vm || status=$?
vm=
case $status in
3) exit "$(cat "$run/status" 2>/dev/null || echo 125)" ;;
124 | 137)
    echo "vm.sh: out of time, the limit is $limit s (-t)" >&2
    exit 124
    ;;
*)
    echo "vm.sh: the guest died (QEMU's status is $status)" >&2
    exit 125
    ;;
esac
