#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Debian packages from a copy of the tree, so that nothing here changes.
#
#   deb.sh FOLDER    leaves *.deb, *.changes and *.buildinfo in FOLDER, and what lintian says in FOLDER/lintian.txt
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || {
    echo "usage: deb.sh FOLDER" >&2
    exit 2
}
out=$(realpath -m "$1")
version=$(sed -n 's/^#define MCSHM_VERSION "\(.*\)"/\1/p' lib/mcshm.h)
packaged=$(dpkg-parsechangelog -S Version)
[ "$version" = "$packaged" ] || {
    echo "deb.sh: debian/changelog is about $packaged, lib/mcshm.h says $version: bring one up to date" >&2
    exit 1
}

rm -rf "$out"
mkdir -p "$out/mcshm-$version"
{ if git rev-parse --git-dir >/dev/null 2>&1; then git ls-files -co --exclude-standard -z; else find . -path ./build -prune -o -type f -print0; fi; } |
    while IFS= read -r -d '' file; do [ -f "$file" ] && printf '%s\0' "$file"; done |
    tar -c --exclude='.git*' --exclude=.ci --null -T - | tar -x -C "$out/mcshm-$version"
cd "$out/mcshm-$version"
DEB_BUILD_OPTIONS=${DEB_BUILD_OPTIONS:-parallel=$(nproc)} dpkg-buildpackage -b -us -uc >"$out/log" 2>&1 || {
    tail -n 40 "$out/log" >&2
    echo "deb.sh: the packages could not be built; $out/log has all of it" >&2
    exit 1
}
cd "$out"
rm -rf "mcshm-$version"
lintian --allow-root --tag-display-limit 0 ./*.changes >lintian.txt 2>&1 || true
ls -- *.deb
