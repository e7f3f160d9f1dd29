#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# beside others
# long
#
# The models of the protocols in shared memory hold, and every mutant of them fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -n "${SAN:-}" ]; then
    echo "models are the same in every build"
    exit 77
fi
if ! command -v spin >/dev/null; then
    echo "needs spin: scripts/deps.sh test installs it"
    exit 77
fi
tests/model/run
