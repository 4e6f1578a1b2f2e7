"""One pass over a tensor -> the numbers of a StepStats.

Two facts make it cheap. Read as whole numbers, the bits of a float keep its order, so minimum, maximum,
zeros and the presence of NaN or infinity all come from fast integer extremes. And sums are dot products
of short blocks, which are added in float64. All of it is numpy in the calling thread: torch's threads
gain little on tensors of this size and lose much where other work wants the cores.

Only where NaN or infinity is present are cells counted one by one; only where the difference of squares
would cancel (a spread far below the mean) or leave float32's range is a second pass in float64 taken.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .trace import StepStats

CHUNK = 1 << 18  # 1 MiB: stays in the cache through its six passes
BLOCK = 1 << 13  # one dot product: short enough for float32, and for the BLAS to stay in this thread
CANCELS = 1e-2  # below this share of the mean square, a variance by difference is not trusted
SMALLEST = 1e-30  # a mean square below it has lost values to underflow
_ONES = np.ones(BLOCK, dtype=np.float32)
_NEGATIVE_ZERO = -(2**31)  # the bits of -0.0, as a signed number


class Measures(NamedTuple):
    """Sums over the finite cells of a tensor. `mean_square` and `variance` are population figures."""

    count: int
    mean: float
    variance: float
    mean_square: float
    min: float
    max: float
    zeros: int
    nan: int = 0
    inf: int = 0


def step_stats(x: Tensor, cells: np.ndarray | None = None) -> StepStats:
    """Statistics of x over its finite cells.

    cells: the flat positions within x's last two axes that count, as `np.flatnonzero(visible)` gives
    them; None counts all. With no finite cell the six measures are NaN.
    """
    wide = x if x.dtype is torch.float32 and x.is_cpu else x.detach().float().cpu()
    array = wide.numpy()
    seen = array.reshape(-1) if cells is None else _pack(array, cells)
    with np.errstate(over="ignore"):  # squares beyond float32 are noticed below, and taken again in float64
        m = measure(seen)
    return StepStats(
        tuple(x.shape),
        dtype_name(x.dtype),
        m.count,
        m.mean,
        math.sqrt(m.variance),
        math.sqrt(m.mean_square),
        m.min,
        m.max,
        m.zeros / m.count if m.count else math.nan,
        m.nan,
        m.inf,
        array.size - seen.size,
    )


def _pack(maps: np.ndarray, cells: np.ndarray) -> np.ndarray:
    rows = maps.reshape(-1, maps.shape[-2] * maps.shape[-1])
    packed = np.empty((len(rows), cells.size), dtype=np.float32)
    rows.take(cells, axis=1, out=packed, mode="wrap")  # the cells are in range; the default checks and copies
    return packed.reshape(-1)


_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def measure(flat: np.ndarray) -> Measures:
    """Measures of a flat float32 array."""
    n = flat.size
    if n == 0:
        return Measures(0, *[math.nan] * 5, zeros=0)
    low, high, total, squares, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for start in range(0, n, CHUNK):
        chunk = flat[start : start + CHUNK]
        chunk_low, chunk_high, has_zero = extremes(chunk)
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):
            return _measure_finite(flat)
        low, high = min(low, chunk_low), max(high, chunk_high)
        some_total, some_squares = _sums(chunk)
        total += some_total
        squares += some_squares
        zeros += chunk.size - int(np.count_nonzero(chunk)) if has_zero else 0
    mean, mean_square = total / n, squares / n
    variance = mean_square - mean * mean
    if not (SMALLEST < mean_square < math.inf and variance > CANCELS * mean_square) and (low, high) != (0.0, 0.0):
        mean, variance, mean_square = _in_float64(flat)
    return Measures(n, mean, variance, mean_square, low, high, zeros)


def _sums(chunk: np.ndarray) -> tuple[float, float]:
    """Sum and sum of squares: blocks in float32, their results in float64."""
    whole = chunk.size - chunk.size % BLOCK
    blocks, rest = chunk[:whole].reshape(-1, BLOCK), chunk[whole:]
    total = float(np.dot(rest, _ONES[: rest.size]))
    squares = float(np.dot(rest, rest))
    if whole:
        total += float(np.vecdot(blocks, _ONES).sum(dtype=np.float64))
        squares += float(np.vecdot(blocks, blocks).sum(dtype=np.float64))
    return total, squares


def extremes(x: np.ndarray) -> tuple[float, float, bool]:
    """Minimum, maximum (NaN or infinite if any cell is) and whether any cell is 0, of a flat float32 array.

    As signed numbers the bits order floats above 0 as they are and those below 0 backwards; as unsigned
    numbers the negative ones come last. A NaN lies beyond infinity in either half.
    """
    signed = x.view(np.int32)
    least, most = int(np.minimum.reduce(signed)), int(np.maximum.reduce(signed))
    if least >= 0:  # no negative cell
        return _as_float(least), _as_float(most), least == 0
    if most < 0:  # no cell above -0.0
        return _as_float(most), _as_float(least), least == _NEGATIVE_ZERO
    unsigned = x.view(np.uint32)
    has_zero = least == _NEGATIVE_ZERO or int(np.minimum.reduce(unsigned)) == 0
    return _as_float(int(np.maximum.reduce(unsigned)) - 2**32), _as_float(most), has_zero


def _as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<i", bits))[0]


def _in_float64(flat: np.ndarray) -> tuple[float, float, float]:
    """mean, variance, mean square by two passes in float64, chunk by chunk."""
    pieces = [flat[i : i + CHUNK] for i in range(0, flat.size, CHUNK)]
    mean = math.fsum(float(p.sum(dtype=np.float64)) for p in pieces) / flat.size
    deviations = squares = 0.0
    for piece in pieces:
        wide = piece.astype(np.float64)
        squares += float(np.dot(wide, wide))
        wide -= mean
        deviations += float(np.dot(wide, wide))
    return mean, deviations / flat.size, squares / flat.size


def _measure_finite(flat: np.ndarray) -> Measures:
    nan = int(np.count_nonzero(np.isnan(flat)))
    finite = flat[np.isfinite(flat)]
    m = measure(finite)
    inf = flat.size - finite.size - nan
    return Measures(m.count, m.mean, m.variance, m.mean_square, m.min, m.max, m.zeros, nan, inf)
