#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install: everything in its place, usable from there, and gone after make uninstall.
. "$(dirname "$0")/lib.sh"

[ -z "$SAN" ] || skip "installed builds have no sanitizer"
stage=$DIR/stage prefix=/opt/mcshm
build=$(realpath --relative-to=. "$B")
make -s B="$build" DESTDIR="$stage" PREFIX=$prefix install >"$DIR/stdout"

for file in sbin/mcshmd sbin/mcshm-master bin/mcshm bin/mcshm-bench lib/libmcshm.so lib/libmcshm.so.0 lib/libmcshm.a \
    include/mcshm.h lib/pkgconfig/mcshm.pc share/mcshm/mcshmd.ini.sample share/mcshm/hugepages/reserve.sh \
    share/mcshm/grafana/mcshm.json share/man/man1/mcshm.1 share/man/man1/mcshm-bench.1 share/man/man3/mcshm.3 \
    share/man/man3/mcshm_submit.3 share/man/man5/mcshmd.ini.5 share/man/man8/mcshmd.8 share/man/man8/mcshm-master.8 lib/sysusers.d/mcshm.conf \
    lib/tmpfiles.d/mcshm.conf lib/systemd/system/mcshmd.service lib/systemd/system/mcshm-hugepages.service \
    lib/systemd/system/mcshm-master.service; do
    [ -e "$stage$prefix/$file" ] || fail "$file was not installed"
done
equal "$(find "$stage" -type f -not -path "$stage$prefix/*" | wc -l)" 0 "files outside of PREFIX"
equal "$("$stage$prefix/bin/mcshm" --socket "$SOCKET" version)" "$("$B/bin/mcshm" --socket "$SOCKET" version)" \
    "the installed tool"
"$stage$prefix/share/mcshm/hugepages/report.sh" >"$DIR/stdout" || [ ! -d /sys/kernel/mm/hugepages ]

# What the services start is where they look for it.
for service in mcshmd mcshm-master mcshm-hugepages; do
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$stage$prefix/lib/systemd/system/$service.service")
    [ -x "$stage$program" ] || fail "$service.service starts '$program', which is not there"
done

# The manual: whole, without a complaint of the formatter, and every key, command and call is in it.
pages=$stage$prefix/share/man
if command -v man >/dev/null && command -v groff >/dev/null; then
    for page in "$pages"/man[1358]/mcshm.* "$pages"/man1/mcshm-bench.1 "$pages"/man5/* "$pages"/man8/*; do
        complaints=$(LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l "$page" 2>&1 >"$DIR/page.txt")
        equal "$complaints" "" "man on ${page##*/}"
        [ "$(wc -l <"$DIR/page.txt")" -gt 20 ] || fail "${page##*/} is short: $(cat "$DIR/page.txt")"
    done
else
    echo "the manual pages were not formatted: that needs man-db and groff"
fi
roff() { # word: as it stands in a page
    echo "${1//-/\\-}"
}
"$B/bin/mcshmd" --dump-config | sed -n 's/^\([a-z0-9_]*\) = .*/\1/p' | while read -r key; do
    grep -qxF ".B $key" "$pages/man5/mcshmd.ini.5" || fail "mcshmd.ini(5) lacks $key"
done
for program in mcshmd mcshm-master; do
    "$B/bin/$program" --help | grep -oE -- '--[a-z-]+' | while read -r option; do
        grep -qF -- "$(roff "$option")" "$pages/man8/$program.8" || fail "$program(8) lacks $option"
    done
done
"$B/bin/mcshm" help | sed -n 's/^  \([a-z-]*\) .*/\1/p' | while read -r word; do
    grep -qE "^  $(roff "$(roff "$word")") " "$pages/man1/mcshm.1" || fail "mcshm(1) lacks $word"
done
for word in $("$B/bin/mcshm-bench" --help | sed -n 's/^  mcshm-bench \([a-z]*\) .*/\1/p'); do
    grep -qx ".SS $word" "$pages/man1/mcshm-bench.1" || fail "mcshm-bench(1) lacks $word"
done
grep -oE '\bmcshm_[a-z_]+\(' lib/mcshm.h | sort -u | while read -r call; do
    grep -qF "$call" "$pages/man3/mcshm.3" || fail "mcshm(3) lacks $call"
    [ "$(cat "$pages/man3/${call%(}.3")" = ".so man3/mcshm.3" ] || fail "there is no page ${call%(}(3)"
done

# A program of somebody else, by pkg-config, with the shared and the static library.
cat >"$DIR/user.c" <<'END'
#include <mcshm.h>
#include <stdio.h>

int main(void)
{
    mcshm *c;
    mcshm_options o;

    mcshm_options_init(&o);
    o.socket_path = "/nonexistent/socket";
    printf("%s %d\n", mcshm_version(), mcshm_connect(&o, &c) == MCSHM_AGENT_DOWN);
    return 0;
}
END
export PKG_CONFIG_PATH=$stage$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
wanted="$(pkg-config --modversion mcshm) 1"
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -std=c99 "$DIR/user.c" -o "$DIR/shared" $(pkg-config --cflags --libs mcshm)
equal "$(LD_LIBRARY_PATH=$stage$prefix/lib "$DIR/shared")" "$wanted" "a program with the shared library"
# shellcheck disable=SC2046
gcc -std=c99 $(pkg-config --cflags mcshm) "$DIR/user.c" "$stage$prefix/lib/libmcshm.a" -pthread -o "$DIR/static"
equal "$("$DIR/static")" "$wanted" "a program with the static library"
if command -v g++ >/dev/null; then
    # shellcheck disable=SC2046
    g++ -fsyntax-only -Wall -Wextra -Werror -x c++ "$DIR/user.c" $(pkg-config --cflags mcshm)
fi

# Applications link no DPDK library, and the library shows nothing but its own names.
if readelf -d "$stage$prefix/lib/libmcshm.so.0" | grep -E 'NEEDED.*librte'; then
    fail "libmcshm needs DPDK"
fi
stray=$(nm -D --defined-only "$stage$prefix/lib/libmcshm.so.0" | awk '{ print $3 }' |
    grep -vE '^(mcshm_|MCSHM_)' || true)
equal "$stray" "" "symbols of others in libmcshm.so"
# Each call of the header is there.
grep -oE '\bmcshm_[a-z_]+\(' "$stage$prefix/include/mcshm.h" | tr -d '(' | sort -u |
    while read -r name; do
        nm -D --defined-only "$stage$prefix/lib/libmcshm.so.0" | grep -q " $name\(@@.*\)\?$" ||
            fail "libmcshm.so lacks $name"
    done

make -s B="$build" DESTDIR="$stage" PREFIX=$prefix uninstall >"$DIR/stdout"
equal "$(find "$stage" -type f -o -type l | wc -l)" 0 "files left after uninstall"

# The packages are about this version, and need what building needs.
equal "$(sed -n '1s/^mcshm (\(.*\)) .*/\1/p' debian/changelog)" "$("$B/bin/mcshm-bench" --version | sed 's/.* //')" \
    "debian/changelog"
sed -n '/^    build)/,/;;/p' scripts/deps.sh | grep -oE '[a-z0-9-]+-dev' | grep -v libc6-dev | while read -r package; do
    grep -qE "^ +$package,?$" debian/control || fail "debian/control builds without $package"
done
