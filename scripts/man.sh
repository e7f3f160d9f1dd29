#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes the manual pages from what the programs and the header say of themselves, so that none can go stale.
#
#   man.sh PROGRAMS FOLDER   programs in PROGRAMS (build/bin) to FOLDER/man1, man3, man5, man8
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 out=$2
version=$(sed -n 's/^#define MCSHM_VERSION "\(.*\)"/\1/p' lib/mcshm.h)

mkdir -p "$out"/man{1,3,5,8}

# Text as it stands, for roff.
verbatim() {
    printf '.nf\n'
    sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
    printf '.fi\n'
}

head_of() { # name, section, one line, synopsis
    printf '.\\" SPDX-License-Identifier: Apache-2.0\n.TH %s %s "" "mcshm %s"\n' "${1^^}" "$2" "$version"
    printf '.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n%s\n' "$1" "$3" "$4"
}

# The tool
{
    head_of mcshm 1 "asks the agent of this host about itself" ".B mcshm
.RI [ OPTION ]... \" COMMAND \" [ ARGUMENT ]..."
    printf '.SH DESCRIPTION\nA client of\n.BR mcshmd (8)\nlike any other.\n.PP\n'
    "$programs/mcshm" help | verbatim
    printf '.SH EXIT STATUS\n0: done; 1: it could not be done, and a sentence says why; 2: wrong command line.\n'
    printf 'What doctor found is said by a status of its own, see above.\n'
    printf '.SH FILES\n.TP\n.I /run/mcshm/mcshmd.sock\nthe agent'\''s socket\n'
    printf '.SH SEE ALSO\n.BR mcshmd (8),\n.BR mcshmd.ini (5),\n.BR mcshm\\-bench (1),\n.BR mcshm (3)\n'
} >"$out/man1/mcshm.1"

# The benchmarks
{
    head_of mcshm-bench 1 "measures mcshm on this host and between two" ".B mcshm\\-bench
.IR COMMAND \" [\" OPTION ]..."
    printf '.SH DESCRIPTION\n'
    "$programs/mcshm-bench" --help | tail -n +2 | verbatim
    for command in $("$programs/mcshm-bench" --help | sed -n 's/^  mcshm-bench \([a-z]*\)  .*/\1/p'); do
        printf '.SS %s\n' "$command"
        "$programs/mcshm-bench" "$command" --help | verbatim
    done
    printf '.SH SEE ALSO\n.BR mcshmd (8),\n.BR mcshm (1)\n'
} >"$out/man1/mcshm-bench.1"

# The library: the header's comments and declarations, in its order
names=$(grep -oE '\bmcshm_[a-z_]+\(' lib/mcshm.h | tr -d '(' | sort -u)
{
    head_of "mcshm" 3 "client library of mcshmd" ".nf
.B #include <mcshm.h>
.PP
cc ... \$(pkg\-config \-\-cflags \-\-libs mcshm)
.fi" | sed "s/^mcshm \\\\-/mcshm, $(tr '\n' ' ' <<<"$names" | sed 's/ $//; s/ /, /g') \\\\-/"
    printf '.SH DESCRIPTION\n'
    awk -f scripts/man-header.awk lib/mcshm.h
    printf '.SH SEE ALSO\n.BR mcshmd (8),\n.BR mcshm (1)\n'
} >"$out/man3/mcshm.3"
for name in $names; do
    printf '.so man3/mcshm.3\n' >"$out/man3/$name.3"
done

"$programs/mcshmd" --man-page-config >"$out/man5/mcshmd.ini.5"
"$programs/mcshmd" --man-page >"$out/man8/mcshmd.8"
"$programs/mcshm-master" --man-page >"$out/man8/mcshm-master.8"
