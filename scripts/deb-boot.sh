#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Boots the system in a folder, with systemd as its first process, and looks at the services of mcshm.
#
#   deb-boot.sh FOLDER    the system that deb-check.sh has made, packages installed
#
# It has processes, mounts, network and control groups of its own, and may change nothing of the kernel's: /sys and
# /proc/sys are read-only in it. Exits with 77 where there is no place for its control groups.
set -euo pipefail
root=$1
exec </dev/null

groups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
if [ -z "$groups" ] || ! mkdir "$groups/mcshm-boot-$$" 2>/dev/null; then
    echo "skipped: booting it needs control groups of version 2 that can be made"
    exit 77
fi
groups=$groups/mcshm-boot-$$
boot=
cleanup() {
    local end=$((SECONDS + 10))
    [ -z "$boot" ] || kill -KILL "$boot" 2>/dev/null || true
    until find "$groups" -depth -type d -exec rmdir {} \; 2>/dev/null && [ ! -d "$groups" ]; do
        [ "$SECONDS" -lt $end ] || break
        sleep 0.1
    done
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2016
inside='
    echo $$ >"$2/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --cgroup --ipc --uts --net bash -euo pipefail -c "$3" bash "$1"'
# shellcheck disable=SC2016
first='
    mount --make-rprivate /
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    while read -r name minor; do mknod -m 666 "dev/$name" c 1 "$minor"; done <<<"null 3
zero 5
full 7
random 8
urandom 9"
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mkdir -p .before
    pivot_root . .before
    umount -l /.before
    exec env -i container=mcshm PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal'
bash -euo pipefail -c "$inside" bash "$root" "$groups" "$first" >"$root/check/boot.log" 2>&1 &
boot=$!
disown "$boot"

fail() {
    echo "failed: $*"
    tail -n 5 "$root/check/boot.log"
    there journalctl -u 'mcshm*' -n 40 --no-pager -o cat || true
    exit 1
}
there() {
    nsenter -t "$init" -a "$@"
}
await() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt $end ] || fail "waited in vain for: $*"
        sleep 0.1
    done
}
as() { # user, command...
    there setpriv --reuid "$1" --regid "$1" --init-groups --inh-caps=-all "${@:2}"
}
first_process() {
    init=$(cat "/proc/$boot/task/$boot/children") && init=${init% } && [ "$(cat "/proc/$init/comm")" = systemd ]
}
await first_process
await there systemctl is-active multi-user.target
await there systemctl is-active mcshmd
pid=$(there systemctl show -p MainPID --value mcshmd)
facts=$(there sed -n 's/^\(Uid\|CapEff\|CapBnd\|NoNewPrivs\|Seccomp\):\t\([^\t]*\).*/\1=\2/p' "/proc/$pid/status" | tr '\n' ' ')
[ "$facts" = "Uid=$(there id -u mcshm) CapEff=0000000000000000 CapBnd=0000000000000000 NoNewPrivs=1 Seccomp=2 " ] ||
    fail "the agent runs with $facts"
await there mcshm status
as member mcshm status >/dev/null || fail "a member may not connect"
! as stranger mcshm status 2>/dev/null >&2 || fail "a stranger may connect"
there systemd-analyze security mcshmd --no-pager | tail -n 1

# what a reload and a wrong configuration say
there systemctl reload mcshmd || fail "reload"
there cp -a /etc/mcshm/mcshmd.ini /check/kept.ini
there sh -c 'echo "[nonsense]" >>/etc/mcshm/mcshmd.ini'
! there systemctl reload mcshmd 2>/dev/null || fail "a wrong configuration was loaded"
there systemctl is-active mcshmd >/dev/null || fail "a wrong configuration ended the agent"
there cp -a /check/kept.ini /etc/mcshm/mcshmd.ini
await there sh -c 'journalctl -u mcshmd -o cat --no-pager | grep -F "[nonsense]: unknown section"'

# A disk for objects, where docs/store.md has it
there sed -i 's|^disk = .*|disk = /var/lib/mcshm/store|' /etc/mcshm/mcshmd.ini
there systemctl restart mcshmd
await there mcshm status
[ "$(there stat -c '%U %a' /var/lib/mcshm/store)" = "mcshm 700" ] || fail "no folder for objects"
there cp -a /check/kept.ini /etc/mcshm/mcshmd.ini
there rm /check/kept.ini
there systemctl restart mcshmd
await there mcshm status
pid=$(there systemctl show -p MainPID --value mcshmd)

# Clients and objects survive what happens to the agent: a death, a restart
there sh -c 'head -c 300000 /dev/urandom >/check/block && chmod 644 /check/block'
as member mcshm put block /check/block || fail "no object could be put"
as member /check/survivor 8 >"$root/check/survivor.out" 2>&1 &
survivor=$!
await grep -q ready "$root/check/survivor.out"
there sh -c "kill -KILL $pid" # in a minimal system only shells have kill
again() {
    local now
    now=$(there systemctl show -p MainPID --value mcshmd) && [ "$now" != 0 ] && [ "$now" != "$pid" ] &&
        there systemctl is-active mcshmd
}
await again
await as member sh -c 'mcshm get block | cmp - /check/block'
there systemctl restart mcshmd
await as member sh -c 'mcshm get block | cmp - /check/block'
code=0
wait $survivor || code=$?
cat "$root/check/survivor.out"
[ $code -eq 0 ] || fail "a client did not survive the agent"

# a master of the store
printf '[peer]\nlisten = 127.0.0.1:9430\n[admin]\nlisten = 127.0.0.1:9429\n' >"$root/etc/mcshm/mcshm-master.ini"
there systemctl start mcshm-master || fail "mcshm-master does not start"
there systemctl stop mcshm-master
[ "$(there systemctl show -p Result --value mcshm-master)" = success ] || fail "mcshm-master's stop"
rm "$root/etc/mcshm/mcshm-master.ini"

# a stop is for good, and the folder stays for those who have it mounted
there systemctl stop mcshmd
[ "$(there systemctl show -p Result --value mcshmd)" = success ] || fail "the stop: $(there systemctl show -p Result --value mcshmd)"
there test -d /run/mcshm || fail "/run/mcshm went with the agent"
! there test -e /run/mcshm/mcshmd.sock || fail "the socket is left"
