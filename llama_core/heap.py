"""Freed memory stays with the process, so that the next run finds it.

A run at T = 256 keeps half a GiB. glibc gives such memory back to the system when it is freed and maps it
anew for the next run, and the page faults of that cost as much as a third of the forward pass. GLASS_LLAMA_KEEP_HEAP=0
turns this off; on other C libraries it does nothing. What a long prompt frees at once, a map of all heads or half a
layer at work, is given back: kept in pieces it would double what the process takes.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

from .settings import KEEP_HEAP

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # the numbers of malloc.h
_GIB = 1 << 30
LARGE = 4 << 20
"""Bytes of a tensor for which room is made first: it would not take the place that one of its size left."""


def keep_heap() -> bool:
    """Ask glibc to keep freed blocks below 1 GiB; whether it could be asked and agreed."""
    if not KEEP_HEAP.value:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    # One arena: the others, which threads get, are cut into pieces of 64 MiB and given back piece by piece.
    wishes = {_TRIM_THRESHOLD: 2 * _GIB - 1, _TOP_PAD: 64 << 20, _MMAP_THRESHOLD: _GIB, _ARENA_MAX: 1}
    return all(mallopt(what, size) == 1 for what, size in wishes.items())


def give_back(size: int) -> None:
    """Ask glibc to return what is free to the system, where a tensor of at least LARGE bytes comes next or went."""
    if size >= LARGE:
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
