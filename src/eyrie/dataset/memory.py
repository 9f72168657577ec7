"""How a process of this stage holds its memory: what it frees it takes again from its own heap.

The stage goes through its data in pieces of some megabytes. By default the C library and Arrow's own allocator give
each of them back to the kernel, which must then clear the same pages for the next one.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
#: of malloc.h: from which size a block is mapped by itself (32 MiB is the most), when the heap's end is given back, and
#: how many heaps there are
M_MMAP_THRESHOLD, BLOCK = -3, 32 << 20
M_TRIM_THRESHOLD, TRIM = -1, 256 << 20
M_ARENA_MAX, ARENAS = -8, 1


def keep() -> None:
    """Set the C library, and Arrow to use it: here, and in processes that are started from here."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, BLOCK)
        mallopt(M_TRIM_THRESHOLD, TRIM)
        mallopt(M_ARENA_MAX, ARENAS)
    # Read once, when they are loaded. OpenBLAS's threads spin at first, and nothing here multiplies matrices;
    # Arrow's own pools reserve address space.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault(ARROW_POOL, "system")
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.set_memory_pool(arrow.system_memory_pool())
