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
SHORT = 256  # cells: rows below are gathered, for most of their time would go into beginning and ending loops
CANCELS = 1e-2  # below this share of the mean square, a variance by difference is not trusted
SMALLEST = 1e-30  # a mean square below it has lost values to underflow
SOUND, UNSOUND, NOT_FINITE = 0, 1, 2


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
def _and(found, cells):
    total, squares, least, most, zeros = found
    some_total, some_squares = _sums(cells)
    some_least, some_most, some_zeros = _extremes(cells.view(np.int32))
    return total + some_total, squares + some_squares, min(least, some_least), max(most, some_most), zeros + some_zeros


@_njit()
def _all(cells, low, high, width):
    found, n = (0.0, 0.0, np.int32(0x7FFFFFFF), np.int32(-0x80000000), 0), 0
    if high[0] == 0:
        for a in range(0, cells.size, BLOCK):
            found = _and(found, cells[a : min(a + BLOCK, cells.size)])
        return found, cells.size
    gathered, block = 0, np.empty(BLOCK, np.float32)  # short rows, until they fill it
    for start in range(0, cells.size, low.size * width):
        for r in range(low.size):
            end = start + r * width + high[r]
            n += high[r] - low[r]
            for a in range(start + r * width + low[r], end, BLOCK):
                size = min(BLOCK, end - a)
                if size >= SHORT:
                    found = _and(found, cells[a : a + size])
                    continue
                if gathered + size > BLOCK:
                    found, gathered = _and(found, block[:gathered]), 0
                block[gathered : gathered + size] = cells[a : a + size]
                gathered += size
    return _and(found, block[:gathered]), n


@_njit()
def scan(cells, low, high, width):
    """How many cells count, their mean, variance, mean square, smallest, largest, zeros; and how sound that is.

    cells: flat float32, not empty, in rows of `width`, so many to a map as `low` and `high` are long; of row r of each
    map those from low[r] up to high[r] count; all, if high[0] is 0. SOUND; UNSOUND where the difference of squares
    cancels or float32 does not reach, so that mean, variance and mean square must be taken again; NOT_FINITE where
    nothing but the count is of use.
    """
    (total, squares, least, most, zeros), n = _all(cells, low, high, width)
    keys = np.empty(2, np.int32)
    keys[0], keys[1] = least, most
    for i in range(2):  # a key is a float's bits, turned over below zero
        if keys[i] < 0:
            keys[i] = np.int32(keys[i] ^ np.int32(0x7FFFFFFF))
    smallest, largest = keys.view(np.float32)
    mean, mean_square = total / n, squares / n
    variance = mean_square - mean * mean
    sound = SMALLEST < mean_square < np.inf and variance > CANCELS * mean_square
    state = SOUND if sound or (smallest == 0 and largest == 0) else UNSOUND
    if not (np.isfinite(smallest) and np.isfinite(largest)):
        state = NOT_FINITE
    return n, mean, variance, mean_square, float(smallest), float(largest), zeros, state
