"""Keeping freed memory, so that training on a CPU does not wait for the kernel.

XLA allocates a step's buffers anew at every step. glibc takes large ones from the kernel and returns them at once, and
the kernel clears every page each time, which took a quarter of a small GPT's step.
"""

import ctypes
import sys

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD, ARENA_MAX = -4, -1, -2, -8  # numbers in <malloc.h>
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**28, ARENA_MAX: 1}


def keep_freed() -> None:
    """Makes glibc keep the memory that this process frees; has no effect elsewhere, nor on threads that exist."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option:
        for option, value in SETTINGS.items():
            set_option(option, value)
