#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what vm.sh boots, once: Debian's kernel as a bare ELF file, its modules, and a small initramfs.
# Prints the folder that holds it all. There is no disk image: a guest's root is the host's own.
#
#   VM_CACHE    where it is kept: ${XDG_CACHE_HOME:-/var/tmp}/mcshm-vm, some 400 MiB
#   VM_KERNEL   Debian's metapackage: linux-image-amd64 (6.1) or linux-image-6.12-amd64
#
# Missing packages are installed by scripts/deps.sh, which wants root for it. A kernel that is there stays, so that
# results change with the tree only; remove the folder to fetch the newest.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
kernel=${VM_KERNEL:-linux-image-amd64}
base=${VM_CACHE:-${XDG_CACHE_HOME:-/var/tmp}/mcshm-vm}

fail() {
    echo "image.sh: $*" >&2
    exit 1
}

[ "$(uname -m)" = x86_64 ] || fail "the VM is for x86-64 hosts, this is $(uname -m)"
"$here/../../scripts/deps.sh" vm >&2

mkdir -p "$base"
# What is booted from here reads the whole file system: nobody else may have prepared it.
owner=$(stat -c %u "$base")
[ "$owner" = "$(id -u)" ] || [ "$owner" = 0 ] || fail "$base belongs to user $owner; set VM_CACHE to a folder of your own"
cache=$base/$kernel
if [ "$owner" = "$(id -u)" ]; then
    exec 9>"$base/lock"
    flock 9
fi

new=
trap '[ -z "$new" ] || rm -rf "$new"' EXIT

# The kernel's package as apt knows it. Not a cloud kernel: those have neither rxe nor 9p.
package() {
    apt-cache depends "$kernel" 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }' || true
}

# Finds the payload of a compressed kernel by its first bytes. What follows it makes the tools complain.
payload() { # vmlinuz, bytes as a regular expression, command that unpacks
    local at
    at=$(LC_ALL=C grep -obUaP "$2" "$1" | head -n 1 | cut -d: -f1) || true
    [ -n "$at" ] || return 1
    tail -c +$((at + 1)) "$1" | $3 >"$new/vmlinux" 2>/dev/null || true
    [ "$(head -c 4 "$new/vmlinux" | tail -c 3)" = ELF ]
}

fetch() {
    local name version
    new=$(mktemp -d "$base/new.XXXXXX")
    [ -n "$(package)" ] || apt-get -qq update >&2 || true
    name=$(package)
    [ -n "$name" ] || fail "apt knows no $kernel"
    version=${name#linux-image-}
    echo "fetching $name into $cache; once, some 70 MB" >&2
    mkdir "$new/get"
    (
        cd "$new/get"
        apt-get -qq -o "APT::Sandbox::User=$(id -un)" download "$name" >&2
        dpkg -x ./*.deb .
    ) || fail "$name could not be fetched"
    mv "$new/get/lib" "$new/lib"
    find "$new/lib" -name '*.ko.xz' -exec xz -d {} +
    depmod -b "$new" "$version"
    # A bare ELF kernel boots by PVH: nothing has to be unpacked under emulation.
    payload "$new/get/boot/vmlinuz-$version" '\xfd7zXZ\x00' 'xz -dc' ||
        payload "$new/get/boot/vmlinuz-$version" '\x28\xb5\x2f\xfd' 'zstd -dc' ||
        fail "no ELF kernel is in $name"
    rm -r "$new/get"
    echo "$version" >"$new/version"
    chmod 755 "$new"
    rm -rf "$cache"
    mv "$new" "$cache"
    new=
}

# busybox, what leads to the host's files over 9p, and guest-init
initramfs() {
    local version file
    echo "making $cache/initrd" >&2
    version=$(cat "$cache/version")
    new=$(mktemp -d)
    mkdir "$new"/{bin,m,proc,sys,dev,lower,rw,new}
    cp /bin/busybox "$new/bin/"
    cp "$here/guest-init" "$new/init"
    chmod 755 "$new/init"
    for module in virtio_pci 9pnet_virtio 9p overlay; do
        modprobe -d "$cache" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" "$new/m/"
        basename "$file" >>"$new/m/order"
    done
    (cd "$new" && find . | cpio -o -H newc --quiet) >"$cache/initrd.new"
    cp "$here/guest-init" "$cache/guest-init"
    mv "$cache/initrd.new" "$cache/initrd"
    rm -rf "$new"
    new=
}

[ -e "$cache/version" ] || fetch
[ -e "$cache/initrd" ] && cmp -s "$here/guest-init" "$cache/guest-init" || initramfs
echo "$cache"
