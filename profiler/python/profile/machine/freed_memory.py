# SPDX-License-Identifier: Apache-2.0
"""What a training on a CPU frees, glibc gives back to the system, and the next micro-batch pays for again,
page by page.

    freed_memory.keep()      # of this process, from here on

A plan with more micro-batches in flight frees and takes more at a time: thousands of page faults a step, 2 %
of one of 0.7 s.
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc takes none above
KEPT = 2**31 - 1  # bytes at the end of the heap


def keep() -> bool:
    """Whether it is kept: glibc alone can, and whoever has set its variables or tunables knows better."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Each of them stops glibc from moving the other by itself.
    return mallopt is not None and bool(
        mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD) and mallopt(TRIM_THRESHOLD, KEPT)
    )
