#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# long
"""Twenty seconds of soak_store.py, always the same choices (SEED=... makes others): what clients on three hosts see under kills, stalls
and cuts keeps docs/consistency.md."""
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("SEED", "14")
os.execv(sys.executable, [sys.executable, "-B", os.path.join(here, "soak_store.py"), "0.33"])
