#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# RDMA rails beside perftest and bare verbs, in a virtual machine with software RDMA devices: `mcshm-bench net` and `kv` with
# --transport rdma, over two rails. Ratios mean something, absolute figures nothing: the machine is emulated.
#
#   bench/rdma.sh [ARGUMENT of `mcshm-bench net`]...
#
# B: where the programs are (build). VM_MEMORY: of the machine, MiB (5120); VM_LIMIT: seconds (900). NET=no, KV=no: without
# one of the two.
set -euo pipefail
root=$(readlink -f "$(dirname "$0")/..")
programs=$(readlink -f "$root/${B:-build}/bin")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Under emulation an ACK timeout of 14 (67 ms) ends now and then; perftest has 18 too.
common=(--transport rdma --set rdma.timeout=18)
cat >"$folder/inside" <<END
. $(printf %q "$root/tests/rdma/guest-net.sh")
net=0 kv=0
[ "${NET:-yes}" = no ] || $(printf '%q ' "$programs/mcshm-bench" net "${common[@]}" "$@") || net=\$?
[ "${KV:-yes}" = no ] || $(printf '%q ' "$programs/mcshm-bench" kv --hosts 2 --rails 2 "${common[@]}" --requests 20 --scale 1/256) || kv=\$?
exit \$((net > kv ? net : kv))
END
cd "$folder"
"$root/tests/rdma/vm.sh" -c 2 -m "${VM_MEMORY:-5120}" -t "${VM_LIMIT:-900}" -- env VM_RAILS=2 TMPDIR=/tmp bash "$folder/inside"
