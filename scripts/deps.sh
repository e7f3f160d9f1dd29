#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs by apt what mcshm needs on Debian 12. Touches apt only when something is missing.
#
#   scripts/deps.sh                        what building, testing and linting need
#   scripts/deps.sh build|test|lint|bench|deb|fuzz|vm  only these groups; several may be named
#   scripts/deps.sh --bench                the default and bench (UCX, iperf3, redis and memcached, to compare with)
#
# Servers that come with packages (etcd, redis, memcached) are for tests and benchmarks, which start their own: as services
# they are stopped and disabled right after they were installed here. Those that were there before are left alone.
set -euo pipefail

usage() {
    echo "usage: scripts/deps.sh [--bench] [build|test|lint|bench|deb|fuzz|vm]..." >&2
    exit 2
}

groups=()
for arg in "$@"; do
    case $arg in
    build | test | lint | bench | deb | fuzz | vm) groups+=("$arg") ;;
    --bench) groups+=(build test lint bench) ;;
    *) usage ;;
    esac
done
[ ${#groups[@]} -gt 0 ] || groups=(build test lint)

wanted=()
for group in "${groups[@]}"; do
    case $group in
    build)
        wanted+=(gcc libc6-dev make pkgconf libdpdk-dev libiniparser-dev libmicrohttpd-dev
            libcjson-dev libnuma-dev liburing-dev libisal-dev libcurl4-openssl-dev libprotobuf-c-dev protobuf-c-compiler libssl-dev libsystemd-dev libibverbs-dev libxxhash-dev libpcre2-dev)
        ;;
    test) wanted+=(libcriterion-dev python3 curl strace faketime etcd-server etcd-client iproute2 iptables python3-venv
        systemd man-db groff-base spin) ;;
    lint) wanted+=(git clang-format cppcheck shellcheck) ;;
    deb) wanted+=(dpkg-dev debhelper fakeroot lintian debootstrap) ;;
    vm) wanted+=(qemu-system-x86 busybox-static cpio kmod xz-utils zstd iproute2 rdma-core ibverbs-providers ibverbs-utils
        rdmacm-utils perftest python3 iptables) ;;
    fuzz) wanted+=(clang libclang-rt-14-dev llvm) ;;
    bench) wanted+=(ucx-utils iperf3 python3-venv redis-server memcached) ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps.sh: this is no Debian; install the equivalents of: ${wanted[*]}" >&2
    exit 1
fi

missing=()
for package in "${wanted[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps.sh: missing ${missing[*]}; run this as root, or ask who administrates the host" >&2
        exit 1
    fi
    as_root=(sudo)
    [ -t 0 ] || as_root+=(-n)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Package lists may be absent or old: install at once if they suffice, refresh them if not.
apt_install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1
}
quiet_services() {
    local package service
    for package in "${missing[@]}"; do
        case $package in
        etcd-server) service=etcd ;;
        redis-server | memcached) service=$package ;;
        *) continue ;;
        esac
        if [ -d /run/systemd/system ]; then
            "${as_root[@]}" systemctl --quiet disable --now "$service"
        else
            "${as_root[@]}" service "$service" stop && "${as_root[@]}" update-rc.d "$service" disable
        fi >"$log" 2>&1 ||
            echo "deps.sh: the service $service of package $package may be running; systemctl disable --now $service" >&2
    done
}
echo "installing ${missing[*]}"
if ! apt_install; then
    "${as_root[@]}" apt-get update -qq </dev/null >"$log" 2>&1 || true
    if ! apt_install; then
        tail -n 20 "$log" >&2
        echo "deps.sh: apt could not install ${missing[*]}; see the lines above" >&2
        exit 1
    fi
fi
quiet_services
