#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# report.sh, reserve.sh, release.sh and persist.sh: on a made-up tree, then on the host's where root may.
. "$(dirname "$0")/lib.sh"

scripts=scripts/hugepages
export SYSFS_ROOT=$DIR/sys STATE_DIR=$DIR/run
mkdir "$STATE_DIR"

pool() { # folder, total, free, surplus, [reserved]
    mkdir -p "$1"
    echo "$2" >"$1/nr_hugepages"
    echo "$3" >"$1/free_hugepages"
    echo "$4" >"$1/surplus_hugepages"
    [ $# -lt 5 ] || echo "$5" >"$1/resv_hugepages"
}
host=$SYSFS_ROOT/kernel/mm/hugepages
nodes=$SYSFS_ROOT/devices/system/node
pool "$host/hugepages-2048kB" 12 10 1 3
pool "$host/hugepages-1048576kB" 2 2 0 0
for n in 0 1; do
    pool "$nodes/node$n/hugepages/hugepages-2048kB" $((4 + 4 * n)) 5 0
    pool "$nodes/node$n/hugepages/hugepages-1048576kB" 1 1 0
done

# report
table=$($scripts/report.sh)
equal "$(wc -l <<<"$table")" 7 "lines of the table"
equal "$(awk '$1 == "host" && $2 == "2M"' <<<"$table" | xargs)" "host 2M 12 10 3 1" "host's row"
equal "$(awk '$1 == 1 && $2 == "2M"' <<<"$table" | xargs)" "1 2M 8 5 - 0" "node 1's row"
report=$($scripts/report.sh --json)
equal "$(json 'len(d["hugepages"])' <<<"$report")" 6 "entries in JSON"
equal "$(json '[p for p in d["hugepages"] if p["node"] is None and p["size"] == 2 << 20][0]' <<<"$report")" \
    '{"node": null, "size": 2097152, "total": 12, "free": 10, "reserved": 3, "surplus": 1}' "host in JSON"
expect_exit 2 $scripts/report.sh --nonsense

# reserve adds, and release gives back what was added
equal "$($scripts/reserve.sh --size 2M --count 100)" "reserved 100 of 100 pages of 2M" "reserve"
$scripts/reserve.sh --size 2M --count 20 >"$DIR/stdout"
equal "$($scripts/reserve.sh --size 1G --count 3 --node 1)" "reserved 3 of 3 pages of 1G on node 1" \
    "reserve on a node"
equal "$(cat "$host/hugepages-2048kB/nr_hugepages")" 132 "pages of the host"
equal "$(cat "$nodes/node1/hugepages/hugepages-1048576kB/nr_hugepages")" 4 "pages of node 1"
$scripts/release.sh --size 2M --count 10 >"$DIR/stdout"
$scripts/release.sh >"$DIR/stdout"
grep -q '^released 110 pages of 2M$' "$DIR/stdout" || fail "release: $(cat "$DIR/stdout")"
grep -q '^released 3 pages of 1G on node 1$' "$DIR/stdout" || fail "release: $(cat "$DIR/stdout")"
equal "$(cat "$host/hugepages-2048kB/nr_hugepages")" 12 "pages of the host after release"
equal "$(cat "$nodes/node1/hugepages/hugepages-1048576kB/nr_hugepages")" 1 "pages of node 1 after release"
equal "$($scripts/release.sh)" "nothing to release: reserve.sh has added no pages since boot" "release again"
$scripts/release.sh --size 2M --count 50 >"$DIR/stdout"
equal "$(cat "$host/hugepages-2048kB/nr_hugepages")" 0 "never below none"

# A kernel that gives fewer pages than asked for: a pipe that answers 12, hears the wish, answers 15.
short=$nodes/node0/hugepages/hugepages-2048kB/nr_hugepages
rm "$short"
mkfifo "$short"
{
    echo 12 >"$short"
    read -r wish <"$short"
    echo "$wish" >"$DIR/wish"
    echo 15 >"$short"
} &
expect_exit 1 timeout "$PATIENCE" $scripts/reserve.sh --size 2M --count 100 --node 0
wait
equal "$(cat "$DIR/wish")" 112 "pages asked for"
equal "$(cat "$DIR/stdout")" "reserved 3 of 100 pages of 2M on node 0" "fewer pages"
grep -q 'compact_memory' "$DIR/stderr" || fail "no remedy: $(cat "$DIR/stderr")"
equal "$(cat "$STATE_DIR/mcshm.hugepages")" "0 2048 3" "what is remembered"

# at boot: noted for each pool, the service is enabled, and what it runs takes the pages once
rm "$short"
echo 15 >"$short"
rm "$STATE_DIR/mcshm.hugepages"
export DESTDIR=$DIR/root
conf=$DESTDIR/etc/mcshm/hugepages.conf wants=$DESTDIR/etc/systemd/system/sysinit.target.wants/mcshm-hugepages.service
$scripts/persist.sh --size 2M --count 64 >"$DIR/stdout"
grep -qx '2M 64 host' "$conf" || fail "not noted: $(cat "$conf")"
service=$DESTDIR$(readlink "$wants")
grep -qx "ExecStart=$PWD/$scripts/persist.sh --apply" "$service" || fail "service: $(cat "$service")"
grep -qx 'Before=sysinit.target mcshmd.service shutdown.target' "$service" || fail "not early: $(cat "$service")"
if command -v systemd-analyze >/dev/null; then
    equal "$(systemd-analyze verify --man=no "$service" 2>&1)" "" "systemd-analyze verify"
fi
$scripts/persist.sh --size 2M --count 32 --node 1 >"$DIR/stdout"
$scripts/persist.sh --size 2048kB --count 70 >"$DIR/stdout"
equal "$(grep -v '^#' "$conf" | sort | tr '\n' ';')" "2M 32 1;2M 70 host;" "noted pools"
equal "$($scripts/persist.sh --apply | sort | tr '\n' ';')" \
    "reserved 32 of 32 pages of 2M on node 1;reserved 70 of 70 pages of 2M;" "at boot"
equal "$(cat "$nodes/node1/hugepages/hugepages-2048kB/nr_hugepages")" 40 "pages of node 1 at boot"
equal "$($scripts/persist.sh --apply | sort | tr '\n' ';')" \
    "the 32 pages of 2M (1) are there;the 70 pages of 2M (host) are there;" "the service once more"
equal "$(cat "$nodes/node1/hugepages/hugepages-2048kB/nr_hugepages")" 40 "pages of node 1"
$scripts/persist.sh --size 2M --count 80 >"$DIR/stdout"
$scripts/persist.sh --apply | grep -qx 'reserved 10 of 10 pages of 2M' || fail "only what is missing"
# one that a package brought is used as it is
mkdir -p "$DESTDIR/usr/lib/systemd/system"
rm -r "$DESTDIR/etc/systemd"
$scripts/persist.sh --unit /usr/share/mcshm/hugepages >"$DESTDIR/usr/lib/systemd/system/mcshm-hugepages.service"
$scripts/persist.sh --size 2M --count 80 >"$DIR/stdout"
equal "$(readlink "$wants")" /usr/lib/systemd/system/mcshm-hugepages.service "the packaged service"
# a line that somebody damaged does not keep the others from their pages
printf '2M many host\n2M 90 host\n' >"$conf"
expect_exit 1 $scripts/persist.sh --apply
grep -q "line 1 of .* is '2M many host': want SIZE COUNT NODE" "$DIR/stderr" || fail "$(cat "$DIR/stderr")"
grep -qx 'reserved 10 of 10 pages of 2M' "$DIR/stdout" || fail "$(cat "$DIR/stdout")"
echo '2M 90 host' >"$conf"
$scripts/persist.sh --size 2M --count 0 >"$DIR/stdout"
[ ! -e "$conf" ] && [ ! -L "$wants" ] || fail "something is left of it"
expect_exit 1 $scripts/persist.sh --apply
$scripts/persist.sh --size 1G --count 4 | grep -q 'hugepagesz=1G hugepages=4$' || fail "1G at boot"
$scripts/persist.sh --size 1G --count 4 --node 1 | grep -q 'hugepages=1:4$' || fail "node at boot"
[ ! -e "$conf" ] || fail "pages of 1G were noted"
expect_exit 2 $scripts/persist.sh --size 2M
expect_exit 2 $scripts/persist.sh --size 2M --count many
unset DESTDIR
$scripts/release.sh >"$DIR/stdout"

# what is wrong is said in one sentence
expect_exit 2 $scripts/reserve.sh
expect_exit 2 $scripts/reserve.sh --size 2M --count 0
expect_exit 2 $scripts/reserve.sh --size 2M --count -4
expect_exit 2 $scripts/reserve.sh --size two --count 4
expect_exit 2 $scripts/reserve.sh --size 2M --count
expect_exit 2 $scripts/release.sh --size 2M
expect_exit 1 $scripts/reserve.sh --size 16M --count 1
equal "$(cat "$DIR/stderr")" "reserve.sh: this host has no hugepages of 16M; it has: 1G 2M" "unknown size"
expect_exit 1 $scripts/reserve.sh --size 2M --count 1 --node 9
equal "$(cat "$DIR/stderr")" "reserve.sh: there is no NUMA node 9; report.sh lists those there are" "unknown node"

# on the host itself
unset SYSFS_ROOT
$scripts/report.sh --json | json 'd["hugepages"]' >"$DIR/stdout" || exit 0 # a kernel without hugepages
file=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
if [ "$(id -u)" -ne 0 ] || [ ! -w $file ]; then
    echo "the host's own hugepages were left alone: they need root"
    exit 0
fi
# Told by what the scripts say, because others may change the host's count meanwhile.
got=$({ $scripts/reserve.sh --size 2M --count 4 2>"$DIR/stderr" || true; } | sed 's/^reserved \([0-9]*\) of .*/\1/')
case $got in
0) grep -q 'too little contiguous memory' "$DIR/stderr" || fail "no reason: $(cat "$DIR/stderr")" ;;
[1-4]) equal "$($scripts/release.sh)" "released $got pages of 2M" "release on the host" ;;
*) fail "reserve on the host: $got" ;;
esac
