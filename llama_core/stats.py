"""One pass over a tensor -> the numbers of a StepStats.

Three facts make it cheap. Read as whole numbers, the bits of a float keep its order, so minimum, maximum,
zeros and the presence of NaN or infinity all come from fast integer extremes. Sums are taken in chunks
that stay in the cache and are added in float64. And all tensors of a run are measured together, after
the pass: between two matrix products each would find its code and data pushed out of the cache.

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

CHUNK = 1 << 19  # 2 MiB: stays in the cache through its five passes
CANCELS = 1e-2  # below this share of the mean square, a variance by difference is not trusted
SEVERAL = 1 << 16  # cells, from which on torch's threads beat numpy's shorter way
SMALLEST = 1e-30  # a mean square below it has lost values to underflow
_ONES = torch.ones(CHUNK)
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
    seen = wide if cells is None else _pack(wide, cells)
    m = measure(seen.reshape(-1))
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
        x.numel() - seen.numel(),
    )


def _pack(x: Tensor, cells: np.ndarray) -> Tensor:
    # numpy's take is 7 times faster than torch's index_select over few rows.
    maps = x.numpy().reshape(-1, x.shape[-2] * x.shape[-1])
    packed = np.empty((len(maps), cells.size), dtype=np.float32)
    maps.take(cells, axis=1, out=packed, mode="wrap")  # the cells are in range; the default checks and copies
    return torch.from_numpy(packed)


_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


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
        # Dots by torch: numpy's would wake the threads of a second BLAS, which fight with torch's own.
        total += torch.dot(chunk, _ONES[: chunk.numel()]).item()
        squares += torch.dot(chunk, chunk).item()
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
    least, most = _ends(x, _SIGNED)
    if least >= 0:  # no negative cell
        return _as_float(least), _as_float(most), least == 0
    if most < 0:  # no cell above -0.0
        return _as_float(most), _as_float(least), least == _NEGATIVE_ZERO
    first, last = _ends(x, _UNSIGNED)
    return _as_float(last - 2**32), _as_float(most), least == _NEGATIVE_ZERO or first == 0


_SIGNED, _UNSIGNED = np.int32, np.uint32


def _ends(x: Tensor, read_as: type) -> tuple[int, int]:
    """Least and most of the bits of x, read as signed or as unsigned numbers."""
    if x.numel() < SEVERAL:
        bits = x.numpy().view(read_as)
        return int(np.minimum.reduce(bits)), int(np.maximum.reduce(bits))
    bits = x.view(torch.int32)
    if read_as is _SIGNED:
        return tuple(int(end) for end in bits.aminmax())
    # torch orders no unsigned numbers: the other sign bit gives signed ones their order.
    return tuple(int(end) - _NEGATIVE_ZERO for end in torch.bitwise_xor(bits, _NEGATIVE_ZERO).aminmax())


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
