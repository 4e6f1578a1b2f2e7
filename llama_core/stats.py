"""One pass over a tensor -> the numbers of a StepStats.

Two facts make it cheap. Read as whole numbers, the bits of a float keep its order, so minimum, maximum,
zeros and the presence of NaN or infinity all come from fast integer extremes. And sums are taken in
chunks that stay in the cache and are added in float64. Only where NaN or infinity is present are cells
counted one by one; only where the difference of squares would cancel (a spread far below the mean) or
leave float32's range is a second pass in float64 taken.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .trace import StepStats

CHUNK = 1 << 18
CANCELS = 1e-2  # below this share of the mean square, a variance by difference is not trusted
SMALLEST = 1e-30  # a mean square below it has lost values to underflow
_NEGATIVE_ZERO = -(2**31)  # the bits of -0.0, as a signed number


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


def step_stats(x: Tensor, cells: np.ndarray | None = None) -> StepStats:
    """Statistics of x over its finite cells.

    cells: the flat positions within x's last two axes that count, as `np.flatnonzero(visible)` gives
    them; None counts all.
    """
    wide = x.detach().float().cpu()
    seen = wide if cells is None else _pack(wide, cells)
    return measure(seen.reshape(-1)).stats(tuple(x.shape), dtype_name(x.dtype), x.numel() - seen.numel())


def _pack(x: Tensor, cells: np.ndarray) -> Tensor:
    # numpy's take is 7 times faster than torch's index_select over few rows.
    maps = x.numpy().reshape(-1, x.shape[-2] * x.shape[-1])
    return torch.from_numpy(maps.take(cells, axis=1))


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def measure(flat: Tensor) -> Measures:
    """Measures of a flat float32 tensor on the CPU."""
    n = flat.numel()
    if n == 0:
        return Measures(0, *[math.nan] * 5, zeros=0)
    low, high, total, squares, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for chunk in flat.split(CHUNK) if n > CHUNK else (flat,):
        chunk_low, chunk_high, has_zero = extremes(chunk)
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):
            return _measure_finite(flat.numpy())
        low, high = min(low, chunk_low), max(high, chunk_high)
        total += float(chunk.sum())
        squares += float(torch.dot(chunk, chunk))
        zeros += chunk.numel() - int(chunk.count_nonzero()) if has_zero else 0
    mean, mean_square = total / n, squares / n
    variance = mean_square - mean * mean
    if not (SMALLEST < mean_square < math.inf and variance > CANCELS * mean_square) and (low, high) != (0.0, 0.0):
        mean, variance, mean_square = _in_float64(flat.numpy())
    return Measures(n, mean, variance, mean_square, low, high, zeros)


def extremes(x: Tensor) -> tuple[float, float, bool]:
    """Minimum, maximum (NaN or infinite if any cell is) and whether any cell is 0, of a flat float32 tensor.

    As signed numbers the bits order floats above 0 as they are and those below 0 backwards; as unsigned
    numbers the negative ones come last. A NaN lies beyond infinity in either half.
    """
    signed_low, signed_high = (int(t) for t in x.view(torch.int32).aminmax())
    if signed_low >= 0:  # no negative cell
        return _as_float(signed_low), _as_float(signed_high), signed_low == 0
    if signed_high < 0:  # no cell above -0.0
        return _as_float(signed_high), _as_float(signed_low), signed_low == _NEGATIVE_ZERO
    unsigned = x.numpy().view(np.uint32)
    has_zero = signed_low == _NEGATIVE_ZERO or int(unsigned.min()) == 0
    return _as_float(int(unsigned.max()) - 2**32), _as_float(signed_high), has_zero


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
    m = measure(torch.from_numpy(finite))
    inf = flat.size - finite.size - nan
    return Measures(m.count, m.mean, m.variance, m.mean_square, m.min, m.max, m.zeros, nan, inf)
