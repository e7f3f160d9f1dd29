#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The VM's own RDMA, without mcshm: verbs on each rail, and perftest.
set -euo pipefail

for r in 0 1; do
    "$B/bin/verbs_smoke" "rxea$r" "rxeb$r" 1
done

for tool in ib_write_bw ib_read_bw ib_write_lat; do
    options=(-x 1 -s 65536 -n 100 -u 18 -F)
    "$tool" -d rxeb0 "${options[@]}" >"$TMPDIR/server" 2>&1 &
    server=$!
    # perftest's server listens on TCP port 18515
    for _ in $(seq 100); do
        [ -z "$(ss -Hltn 'sport = :18515')" ] || break
        sleep 0.1
    done
    "$tool" -d rxea0 "${options[@]}" 10.9.0.2 | grep -A 1 '#bytes' || {
        cat "$TMPDIR/server"
        exit 1
    }
    wait $server
done
