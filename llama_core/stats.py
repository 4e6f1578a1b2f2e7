"""One pass over a tensor -> the numbers of a StepStats.

On the CPU: chunks that fit the cache, so that six reductions cost one trip to memory; chunk results
are added in float64. On other devices: reductions that stay there, to be fetched once, at the end.
NaN and infinity show in min and max; only then are they counted. Where the difference of squares
would cancel (a spread far below the mean) or leave float32's range, a second pass in float64 is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .trace import StepStats

CHUNK = 1 << 15
CANCELS = 1e-2  # below this share of the mean square, a variance by difference is not trusted
SMALLEST = 1e-30  # a mean square below it has lost values to underflow
_ONES = np.ones(CHUNK, dtype=np.float32)
_NEGATIVE_ZERO = np.int32(-(2**31))  # the bits of -0.0


@dataclass(frozen=True)
class Measures:
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

    def stats(self, shape: tuple[int, ...], dtype: str, masked: int = 0) -> StepStats:
        """The record of a trace; with no finite cell the six measures are NaN."""
        return StepStats(
            shape=shape,
            dtype=dtype,
            count=self.count,
            mean=self.mean,
            std=math.sqrt(self.variance),
            rms=math.sqrt(self.mean_square),
            min=self.min,
            max=self.max,
            zeros=self.zeros / self.count if self.count else math.nan,
            nan=self.nan,
            inf=self.inf,
            masked=masked,
        )


def step_stats(x: Tensor, cells: Tensor | None = None) -> StepStats:
    """Statistics of x over its finite cells.

    cells: the flat positions within x's last two axes that count, as `visible_cells(...).flatten().nonzero()`
    gives them; None counts all.
    """
    seen = x if cells is None else x.flatten(-2).index_select(-1, cells)
    measures = measure(seen.detach().float().cpu().reshape(-1).numpy())
    return measures.stats(tuple(x.shape), dtype_name(x.dtype), x.numel() - seen.numel())


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def measure(flat: np.ndarray) -> Measures:
    """Measures of a flat float32 array."""
    n = flat.size
    if n == 0:
        return Measures(0, *[math.nan] * 5, zeros=0)
    low, high, total, squares, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for start in range(0, n, CHUNK):
        chunk = flat[start : start + CHUNK]
        chunk_low, chunk_high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):
            return _measure_finite(flat)
        low, high = min(low, chunk_low), max(high, chunk_high)
        total += float(np.dot(chunk, _ONES[: chunk.size]))
        squares += float(np.dot(chunk, chunk))
        zeros += _count_zeros(chunk)
    mean, mean_square = total / n, squares / n
    variance = mean_square - mean * mean
    if not (SMALLEST < mean_square < math.inf and variance > CANCELS * mean_square) and (low, high) != (0.0, 0.0):
        mean, variance, mean_square = _in_float64(flat)
    return Measures(n, mean, variance, mean_square, low, high, zeros)


def _count_zeros(chunk: np.ndarray) -> int:
    # As bit patterns, +0.0 is the smallest unsigned and -0.0 the smallest signed integer: two fast
    # minima tell that there is none, which is the usual case.
    if chunk.view(np.uint32).min() != 0 and chunk.view(np.int32).min() != _NEGATIVE_ZERO:
        return 0
    return chunk.size - int(np.count_nonzero(chunk))


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
