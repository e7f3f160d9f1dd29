# SPDX-License-Identifier: Apache-2.0
"""System calls that are short, interrupted or fail, by a preloaded library (tests/shim/shim.c).

    shim = Shim()
    agent = Agent(prefix=shim.prefix())          or  Mix(agent, "mix", "owner", shim=shim)
    shim.arm(FAILS, at=17)                       the 17th call from now on that can fail does
    shim.arm(INTERRUPTED, share=0.1, seed=3)     one in ten is
"""
from failpoints import *

OFF, FAILS, INTERRUPTED, SHORT = range(4)
LIBRARY = os.path.join(ROOT, "build/tests/shim.so")
NEVER = 1 << 31

if SAN:
    skip("sanitizers have a preloaded library of their own")


class Shim:
    def __init__(self):
        self.path = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="h"), "shim")
        atexit.register(shutil.rmtree, os.path.dirname(self.path), ignore_errors=True)
        with open(self.path, "w+b") as f:
            f.truncate(4096)
            self.page = mmap.mmap(f.fileno(), 4096)

    def prefix(self):
        return ["env", "LD_PRELOAD=" + LIBRARY, "MCSHM_SHIM=" + self.path]

    def arm(self, action, at=1, times=1, share=0.0, seed=1, error=0):
        struct.pack_into("<I", self.page, 0, OFF)
        struct.pack_into("<III", self.page, 4, at, times, 0)
        struct.pack_into("<II", self.page, 24, int(share * 1000000), seed)
        self.page[32:64] = bytes(32)
        struct.pack_into("<I", self.page, 72, error)
        struct.pack_into("<I", self.page, 0, action)

    def disarm(self):
        struct.pack_into("<I", self.page, 0, OFF)

    def calls(self):
        """Since the arming, of those that it can happen to."""
        return struct.unpack_from("<I", self.page, 12)[0]

    def acted(self):
        return struct.unpack_from("<Q", self.page, 16)[0]

    def last(self):
        return self.page[32:64].rstrip(b"\0").decode()


def some(n, most):
    """At most so many of 1 .. n, spread over them."""
    step = max(1, -(-n // most))
    return range(1, n + 1, step)


MOST = int(os.environ.get("SHIM_MOST", "40"))  # calls that fail in turn, of each kind
