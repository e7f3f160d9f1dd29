#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the packages in a fresh Debian 12, uses them as users of their own would, removes and purges them.
#
#   deb-check.sh FOLDER    where deb.sh left them
#
# The system is made by debootstrap, in a folder that goes when this ends; what runs in it has mounts and
# processes of its own, and the host's network. BASE_TARBALL names what debootstrap --make-tarball has
# kept, to fetch less. Says what it had to skip, and exits with 77 when that is all.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || {
    echo "usage: deb-check.sh FOLDER" >&2
    exit 2
}
shopt -s nullglob
packages=("$1"/*.deb)
[ ${#packages[@]} -gt 0 ] || {
    echo "deb-check.sh: no packages in $1; make deb builds them" >&2
    exit 1
}
skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "installing in a fresh system needs root"
for tool in debootstrap unshare chroot; do
    command -v $tool >/dev/null || skip "$tool is missing; scripts/deps.sh deb installs it"
done
unshare --mount --pid --fork true 2>/dev/null || skip "namespaces are not allowed here"

root=$(mktemp -d /var/tmp/mcshm-deb.XXXXXX)
cleanup() {
    # whatever was mounted went with its namespace
    rm -rf --one-file-system "$root"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
trap 'echo "deb-check.sh: failed, see above"' ERR

echo "== a fresh Debian 12"
if ! debootstrap --variant=minbase ${BASE_TARBALL:+--unpack-tarball="$BASE_TARBALL"} bookworm "$root/system" >"$root/log" 2>&1; then
    tail -n 5 "$root/log"
    skip "debootstrap could not fetch a system"
fi
mkdir "$root/system/packages" "$root/system/check"
cp "${packages[@]}" "$root/system/packages"
rm -f "$root"/system/packages/*-dbgsym_*
cp -L /etc/resolv.conf "$root/system/etc/resolv.conf"
# how packages are reached is this host's affair
cp -a /etc/apt/apt.conf.d/. "$root/system/etc/apt/apt.conf.d/" 2>/dev/null || true
rm -f "$root"/system/etc/apt/apt.conf.d/*{docker,packagekit,debconf,appstream}*
# services are not to start: there is no systemd
printf '#!/bin/sh\nexit 101\n' >"$root/system/usr/sbin/policy-rc.d"
chmod 755 "$root/system/usr/sbin/policy-rc.d"
cp scripts/deb-inside.sh "$root/system/inside.sh"
# shellcheck disable=SC2016
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"$root/system/move.c"

cp tests/scenario/survivor.c "$root/system/survivor.c"

inside() { # install or remove
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount --bind "$1/proc/sys" "$1/proc/sys"
        mount -o remount,bind,ro "$1/proc/sys"
        mount -t sysfs -o ro sysfs "$1/sys"
        mount -t tmpfs tmpfs "$1/run"
        mount --rbind /dev "$1/dev"
        exec chroot "$1" /bin/bash /inside.sh "$2"' bash "$root/system" "$1"
}
inside install
echo "== booting it ($SECONDS s)"
code=0
scripts/deb-boot.sh "$root/system" || code=$?
[ $code -eq 0 ] || [ $code -eq 77 ] || exit $code
inside remove
echo "== all is well ($SECONDS s)"
