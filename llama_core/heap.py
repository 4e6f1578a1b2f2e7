"""Freed memory stays with the process, so that the next run finds it.

A run at T = 256 keeps half a GiB. glibc gives such memory back to the system when it is freed and maps it
anew for the next run, and the page faults of that cost as much as a third of the forward pass. GLASS_LLAMA_KEEP_HEAP=0
turns this off; on other C libraries it does nothing.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # the numbers of malloc.h
_GIB = 1 << 30


def keep_heap() -> bool:
    """Ask glibc to keep freed blocks below 1 GiB; whether it could be asked and agreed."""
    if os.environ.get("GLASS_LLAMA_KEEP_HEAP") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # One arena: the others, which threads get, are cut into pieces of 64 MiB and given back piece by piece.
    wishes = {_TRIM_THRESHOLD: 2 * _GIB - 1, _TOP_PAD: 64 << 20, _MMAP_THRESHOLD: _GIB, _ARENA_MAX: 1}
    return all(mallopt(what, size) == 1 for what, size in wishes.items())
