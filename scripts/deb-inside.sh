#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What deb-check.sh does inside the fresh system: /packages has the packages, /move.c and /survivor.c programs.
#
#   deb-inside.sh install|remove
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
fail() {
    echo "failed: $*"
    [ ! -f /check/agent.log ] || tail -n 20 /check/agent.log
    exit 1
}
trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
step() {
    echo "== $* ($SECONDS s)"
}
quietly() {
    "$@" >/tmp/log 2>&1 </dev/null || {
        tail -n 20 /tmp/log
        fail "$*"
    }
}
await() {
    local end=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "waited in vain for: $*"
        sleep 0.1
    done
}
# No session but the one that asks.
alone() {
    mcshm --json status | grep -q '"sessions": *1\b'
}
# Files of the system, less what the package manager and its tools keep for themselves.
files() {
    find / -xdev \( -path /tmp -o -path /packages -o -path /check -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/lib/apt \
        -o -path /var/log -o -path /var/lib/systemd \) -prune -o -print |
        grep -vE '^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|^/etc/(\.pwd\.lock|ld\.so\.cache|machine-id|resolv\.conf)$|/\.updated$' | sort
}

install() {
    step "what the packages need"
    quietly apt-get update
    # what they bring along is not what is looked for: first that, then they
    mapfile -t needs < <(apt-get install -s --no-install-recommends /packages/*.deb |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p' | grep -vE '^(lib)?mcshm')
    quietly apt-get install -y --no-install-recommends "${needs[@]}" gcc libc6-dev pkgconf
    files >/check/before

    step "installing"
    quietly apt-get install -y --no-install-recommends /packages/*.deb
    getent passwd mcshm >/dev/null || fail "there is no user mcshm"
    for file in /usr/sbin/mcshmd /usr/sbin/mcshm-master /lib/systemd/system/mcshm-master.service /lib/systemd/system/mcshmd.service /lib/systemd/system/mcshm-hugepages.service \
        /etc/mcshm/mcshmd.ini /usr/share/mcshm/hugepages/persist.sh /usr/share/mcshm/grafana/mcshm.json; do
        [ -e "$file" ] || fail "$file was not installed"
    done
    [ -L /etc/systemd/system/multi-user.target.wants/mcshmd.service ] || fail "the agent is not enabled"
    [ ! -e /etc/systemd/system/multi-user.target.wants/mcshm-master.service ] || fail "a master is enabled"
    [ -L /etc/systemd/system/sysinit.target.wants/mcshm-hugepages.service ] || fail "hugepages are not enabled"
    systemd-tmpfiles --create mcshm.conf
    [ "$(stat -c '%U:%G %a' /run/mcshm)" = "mcshm:mcshm 755" ] || fail "/run/mcshm: $(stat -c '%U:%G %a' /run/mcshm)"
    systemd-analyze verify --man=no /lib/systemd/system/mcshmd.service /lib/systemd/system/mcshm-master.service /lib/systemd/system/mcshm-hugepages.service

    step "running it as user mcshm, without a capability"
    mcshmd --check-config
    useradd -m member
    useradd -m stranger
    usermod -aG mcshm member
    run_agent() {
        setpriv --reuid mcshm --regid mcshm --init-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
            mcshmd >>/check/agent.log 2>&1 &
        agent=$!
        await test -S /run/mcshm/mcshmd.sock
        await mcshm status
    }
    as() { # user, command...
        local user=$1
        shift
        setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all "$@"
    }
    run_agent
    as member mcshm status | grep -q '^version' || fail "status"
    if as stranger mcshm status >/tmp/log 2>&1; then
        fail "somebody outside of group mcshm was let in"
    fi
    grep -q '/run/mcshm/mcshmd.sock' /tmp/log || fail "a stranger hears nothing of the socket: $(cat /tmp/log)"
    # prefill and decode, every byte checked
    as member mcshm-bench kv --socket /run/mcshm/mcshmd.sock --requests 20 --json >/tmp/kv.json || fail "kv: $(cat /tmp/kv.json)"
    # a program of somebody else's, with the shared library
    # shellcheck disable=SC2046
    gcc -o /check/move /move.c $(pkg-config --cflags --libs mcshm)
    # shellcheck disable=SC2046
    gcc -o /check/survivor /survivor.c $(pkg-config --cflags --libs mcshm)
    chmod 755 /check/move /check/survivor
    as member /check/move | grep 'moved 65536 bytes' || fail "the program of the README"
    await alone

    step "a changed configuration outlives reinstalling"
    sed -i 's/^deadline_ms = .*/deadline_ms = 12345/' /etc/mcshm/mcshmd.ini
    quietly apt-get install -y --no-install-recommends --reinstall /packages/mcshm_*.deb
    grep -q '^deadline_ms = 12345' /etc/mcshm/mcshmd.ini || fail "the configuration was overwritten"
    /usr/share/mcshm/hugepages/persist.sh --size 2M --count 8 >/tmp/log 2>&1 || grep -q 'no hugepages' /tmp/log || fail "$(cat /tmp/log)"
    kill -TERM "$agent"
    wait "$agent" || fail "the agent ended with $?"
}

remove() {
    step "removing"
    quietly apt-get remove -y mcshm mcshm-bench
    [ ! -e /usr/sbin/mcshmd ] || fail "the agent is still there"
    [ -e /etc/mcshm/mcshmd.ini ] || fail "the configuration went with mere removal"

    step "purging"
    quietly apt-get purge -y mcshm mcshm-bench libmcshm-dev libmcshm0
    [ ! -e /etc/mcshm ] || fail "left behind: $(find /etc/mcshm)"
    userdel -r member 2>/dev/null
    userdel -r stranger 2>/dev/null
    rmdir /.before 2>/dev/null || true # of the boot
    files >/check/after
    diff /check/before /check/after || fail "files were left behind or taken away"
    if dpkg -l | grep -E '^[a-z]+ +(lib)?mcshm'; then
        fail "packages are left"
    fi
}

"$1"
