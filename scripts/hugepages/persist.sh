#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Reserves hugepages at each boot, early, before memory is in pieces.
#
#   persist.sh --size 2M --count N [--node N]   N pages at each boot from now on; none for 0
#   persist.sh --apply                          takes what is noted; mcshm-hugepages.service does it at boot
#   persist.sh --unit FOLDER                    prints that service, for these scripts in FOLDER
#
# Notes the pages in /etc/mcshm/hugepages.conf, one pool a line, and has systemd run mcshm-hugepages.service.
# Pages of 1 GiB only the kernel itself can still find: what it must be told is printed, nothing is noted.
# DESTDIR is the root of another system.
set -euo pipefail
. "$(dirname "$0")/common.sh"
root=${DESTDIR:-}
etc=$root/etc
conf=$etc/mcshm/hugepages.conf
service=mcshm-hugepages.service
wants=$etc/systemd/system/sysinit.target.wants/$service
here=$(cd "$(dirname "$0")" && pwd)

usage() {
    echo "usage: persist.sh --size 2M|1G --count N [--node N] | --apply | --unit FOLDER" >&2
    exit 2
}

unit() { # the scripts' folder
    cat <<END
# SPDX-License-Identifier: Apache-2.0
[Unit]
Description=Hugepages for mcshm
Documentation=man:mcshmd(8)
DefaultDependencies=no
ConditionPathExists=/etc/mcshm/hugepages.conf
ConditionVirtualization=!container
RequiresMountsFor=$1 /etc/mcshm /run
After=local-fs.target
Before=sysinit.target mcshmd.service shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=$1/persist.sh --apply

[Install]
WantedBy=sysinit.target
END
}

# Pages of a pool that reserve.sh has added since boot.
added() { # node, kilobytes
    local node size pages sum=0
    [ ! -f "$state" ] || while read -r node size pages; do
        [ "$node $size" != "$1 $2" ] || sum=$pages
    done <"$state"
    echo "$sum"
}

# What is here already is not taken a second time.
apply() {
    local size count node number=0 kb missing code=0
    [ -f "$conf" ] || die "there is no $conf; persist.sh --size 2M --count N writes it"
    while read -r size count node; do
        number=$((number + 1))
        case $size in '' | '#'*) continue ;; esac
        if ! kb=$(kilobytes "$size") || ! [[ $count =~ ^[0-9]{1,9}$ && $node =~ ^(host|[0-9]{1,4})$ ]]; then
            echo "persist.sh: line $number of $conf is '$size $count $node': want SIZE COUNT NODE," \
                "such as '2M 1024 host'" >&2
            code=1
            continue
        fi
        missing=$((10#$count - $(added "$node" "$kb")))
        if [ "$missing" -le 0 ]; then
            echo "the $count pages of $size ($node) are there"
        elif [ "$node" = host ]; then
            "$here/reserve.sh" --size "$size" --count "$missing" || code=1
        else
            "$here/reserve.sh" --size "$size" --count "$missing" --node "$node" || code=1
        fi
    done <"$conf"
    return $code
}

# The service is written where none is installed.
enable() {
    local folder found=
    for folder in "$etc" "$root/usr/local/lib" "$root/usr/lib" "$root/lib"; do
        [ -n "$found" ] || [ ! -f "$folder/systemd/system/$service" ] || found=$folder/systemd/system/$service
    done
    if [ -z "$found" ]; then
        found=$etc/systemd/system/$service
        mkdir -p "${found%/*}"
        unit "$here" >"$found"
        echo "wrote $found"
    fi
    mkdir -p "${wants%/*}"
    ln -sfn "${found#"$root"}" "$wants"
    [ -n "$root" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

size='' count='' node=host kb=0
case ${1:-} in
--apply)
    [ $# -eq 1 ] || usage
    apply
    exit
    ;;
--unit)
    [ $# -eq 2 ] || usage
    unit "$2"
    exit
    ;;
esac
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --size) kb=$(kilobytes "$2") && size=$(size_name "$kb") || usage ;;
    --count) [[ $2 =~ ^[0-9]{1,9}$ ]] && count=$((10#$2)) || usage ;;
    --node) [[ $2 =~ ^[0-9]{1,4}$ ]] && node=$((10#$2)) || usage ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "$size" ] && [ -n "$count" ] || usage
# Another system's pools are not to be seen from here.
[ -n "$root" ] || require_pool "$node" "$kb"

if [ "$kb" -ge 1048576 ]; then
    [ "$node" = host ] && pages=$count || pages=$node:$count
    echo "Only the kernel finds pages of $size. Add to its command line (GRUB: GRUB_CMDLINE_LINUX in" \
        "/etc/default/grub, then update-grub) and boot:"
    echo "    hugepagesz=$size hugepages=$pages"
    exit 0
fi

mkdir -p "${conf%/*}" 2>/dev/null && [ -w "${conf%/*}" ] || die "may not write ${conf%/*}; run as root"
new=$(mktemp "$conf.XXXXXX")
trap 'rm -f "$new"' EXIT
{
    echo "# SIZE COUNT NODE: hugepages that $service takes at boot. Written by persist.sh"
    if [ -f "$conf" ]; then
        while read -r s c n; do
            case $s in '' | '#'*) continue ;; esac
            [ "$s $n" = "$size $node" ] || echo "$s $c $n"
        done <"$conf"
    fi
    [ "$count" -eq 0 ] || echo "$size $count $node"
} >"$new"
chmod 644 "$new"
mv "$new" "$conf"
if grep -qv '^#' "$conf"; then
    enable
    echo "noted in $conf: $count pages of $size ($node) at each boot; to have them now: persist.sh --apply"
else
    rm -f "$conf" "$wants"
    echo "no pages at boot any more; removed $conf"
fi
