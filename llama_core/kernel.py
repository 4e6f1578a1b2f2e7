"""The one compiled loop: everything the statistics of a float32 tensor need, in a single read of its memory.

numba compiles it the first time it is called, and keeps the result beside this file or in the user's cache folder.
Each block of BLOCK cells is summed in float32, many partial sums at once, while it is in the nearest cache; the blocks
are added in float64. Read as whole numbers, with the negative ones turned over, the bits of floats keep their order,
NaN beyond infinity at either end: so the two extremes also tell whether all cells are finite.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLOCK = 4096  # 16 KiB


def _njit(**options):
    """`njit` that keeps what it compiled, where some folder can be written."""

    def decorate(function):
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder for it
            return njit(nogil=True, **options)(function)

    return decorate


@_njit(fastmath={"reassoc", "contract", "nsz"})
def _sums(cells):
    total, squares = np.float32(0), np.float32(0)
    for i in range(cells.size):
        total += cells[i]
        squares += cells[i] * cells[i]
    return total, squares


@_njit()
def _extremes(bits):
    # Every whole number is held to 32 bits: numba would widen it, and the loop would not be done many cells at once.
    least, most, zeros = np.int32(0x7FFFFFFF), np.int32(-0x80000000), np.int32(0)
    for i in range(bits.size):
        size = np.int32(bits[i] & np.int32(0x7FFFFFFF))
        zeros = np.int32(zeros + np.int32(size == np.int32(0)))
        key = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        least = key if key < least else least
        most = key if key > most else most
    return least, most, zeros


@_njit()
def scan(cells, low, high, width):
    """Sum, sum of squares, smallest and largest key, zeros, of the cells that count.

    cells: flat float32, rows of `width`; of row r only those from low[r % n] up to high[r % n] count. A key is a
    float's bits as int32, turned over below zero: see `stats.as_float`.
    """
    bits = cells.view(np.int32)
    total, squares, zeros = 0.0, 0.0, 0
    least, most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for r in range(cells.size // width):
        end = r * width + high[r % low.size]
        for a in range(r * width + low[r % low.size], end, BLOCK):
            b = min(a + BLOCK, end)
            some_total, some_squares = _sums(cells[a:b])
            some_least, some_most, some_zeros = _extremes(bits[a:b])
            total, squares, zeros = total + some_total, squares + some_squares, zeros + some_zeros
            least, most = min(least, some_least), max(most, some_most)
    return total, squares, least, most, zeros
