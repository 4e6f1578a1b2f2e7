"""One pass over a tensor -> the numbers of a StepStats.

On the CPU a compiled loop reads each cell once, see `kernel`. Only where NaN or infinity is present are cells counted
one by one; only where the difference of squares would cancel (a spread far below the mean) or leave float32's range is
a second pass in float64 taken. On another device, or without numba, torch's own reductions do it; what they find stays
on the device until it is fetched for all steps at once, so that no step waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .model import visible_cells
from .trace import StepStats, visible_keys

try:
    from .kernel import NOT_FINITE, UNSOUND, scan
except ImportError:  # without numba
    scan = None

CHUNK = 1 << 18  # 1 MiB: a pass in float64 stays in the cache
AT_ONCE = 1 << 24  # cells that torch's reductions take together: their float64 copies are 128 MiB
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Visible:
    """Which cells of a T x S map count: of each of the last T positions the keys that it may see."""

    T: int
    S: int
    window: int | None = None

    @cached_property
    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """The first key of each query, and the one behind its last. [T] each."""
        high = np.arange(self.S - self.T, self.S) + 1
        return np.maximum(high - (self.window or self.S), 0), high

    def of(self, maps: np.ndarray) -> np.ndarray:
        """The cells of [... T S] that count, flat."""
        return maps[..., visible_keys(self.T, self.S, self.window)].reshape(-1)

    def mask(self, device: torch.device) -> Tensor:
        """[T S] bool, on the device."""
        return visible_cells(self.T, self.S, device, self.window)


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


NOTHING = Measures(0, *[math.nan] * 5, zeros=0)


class Found(NamedTuple):
    """What torch's reductions found of a tensor. parts: [n 9], still on its device, as `_reduced` has them."""

    shape: tuple[int, ...]
    dtype: str
    parts: Tensor


def step_stats(x: Tensor, visible: Visible | None = None) -> StepStats:
    """Statistics of x over its finite cells, of a T x S map over those that count.

    With no finite cell the six measures are NaN.
    """
    return fetched({0: begun(x, visible)})[0]


def stats_of_parts(
    shape: tuple[int, ...], dtype: torch.dtype, parts: Iterable[Tensor], visible: Visible | None = None
) -> StepStats:
    """Statistics of a tensor that comes in parts, one after another, as `step_stats` has them of the whole."""
    found = _brought([_measured(part, visible) for part in parts])
    return _row(shape, dtype_name(dtype), merged([measures for some in found for measures in some]))


def begun(x: Tensor, visible: Visible | None = None) -> StepStats | Found:
    """The statistics of x, or what they are made of once it is `fetched`: nothing waits for the device here."""
    found, shape, dtype = _measured(x, visible), tuple(x.shape), dtype_name(x.dtype)
    return Found(shape, dtype, found) if isinstance(found, Tensor) else _row(shape, dtype, found)


def fetched(found: Mapping[Key, StepStats | Found]) -> dict[Key, StepStats]:
    """The statistics of all steps: what lies on a device is brought over at once."""
    waiting = {key: one for key, one in found.items() if isinstance(one, Found)}
    brought = _brought([one.parts for one in waiting.values()])
    rows = {
        key: _row(one.shape, one.dtype, merged(parts))
        for (key, one), parts in zip(waiting.items(), brought, strict=True)
    }
    return {**found, **rows}


def _measured(x: Tensor, visible: Visible | None) -> Measures | Tensor:
    x = x.detach() if x.requires_grad else x
    return _reduced(x, visible) if scan is None or not x.is_cpu else measure(x.float().numpy(), visible)


def _brought(found: Sequence[Measures | Tensor]) -> list[list[Measures]]:
    """The measures of all parts of each, in one copy from the device."""
    waiting = [one for one in found if isinstance(one, Tensor)]
    rows = iter(torch.cat(waiting).cpu().tolist() if waiting else [])
    return [[_measures(*next(rows)) for _ in one] if isinstance(one, Tensor) else [one] for one in found]


def _row(shape: tuple[int, ...], dtype: str, m: Measures) -> StepStats:
    masked = math.prod(shape) - m.count - m.nan - m.inf
    zeros = m.zeros / m.count if m.count else math.nan
    std, rms = math.sqrt(m.variance), math.sqrt(m.mean_square)
    return StepStats(shape, dtype, m.count, m.mean, std, rms, m.min, m.max, zeros, m.nan, m.inf, masked)


_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def merged(parts: list[Measures]) -> Measures:
    """The measures of all cells from those of their parts."""
    if len(parts) == 1:
        return parts[0]
    full = [m for m in parts if m.count]
    nan, inf = sum(m.nan for m in parts), sum(m.inf for m in parts)
    if len(full) <= 1:
        return (full[0] if full else NOTHING)._replace(nan=nan, inf=inf)
    count = sum(m.count for m in full)
    mean = math.fsum(m.mean * m.count for m in full) / count
    variance = math.fsum((m.variance + (m.mean - mean) ** 2) * m.count for m in full) / count
    return Measures(
        count,
        mean,
        variance,
        math.fsum(m.mean_square * m.count for m in full) / count,
        min(m.min for m in full),
        max(m.max for m in full),
        sum(m.zeros for m in full),
        nan,
        inf,
    )


# --- on the CPU ---

_ALL = (np.zeros(1, dtype=np.int64),) * 2


def measure(array: np.ndarray, visible: Visible | None = None) -> Measures:
    """Measures of a float32 array; of maps [... T S] those of the cells that count."""
    flat = array.reshape(-1)
    if flat.size == 0:
        return NOTHING
    low, high = _ALL if visible is None else visible.keys
    *found, state = scan(flat, low, high, flat.size if visible is None else visible.S)
    if state == NOT_FINITE:
        return _of_finite(flat if visible is None else visible.of(array))
    if state == UNSOUND:
        found[1:4] = _in_float64(flat if visible is None else visible.of(array))
    return Measures(*found)


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


def _of_finite(flat: np.ndarray) -> Measures:
    nan = int(np.count_nonzero(np.isnan(flat)))
    finite = flat[np.isfinite(flat)]
    return measure(finite)._replace(nan=nan, inf=flat.size - finite.size - nan)


# --- by torch's reductions, on any device ---


def _reduced(x: Tensor, visible: Visible | None) -> Tensor:
    """[n 9] float64 on x's device, a row for so many cells as are taken together: finite cells, a number near their
    mean, sum and sum of squares of what they are beyond it, minimum, maximum, zeros, NaN, infinities."""
    if x.numel() == 0:
        return x.new_zeros((0, 9), dtype=torch.float64)
    if visible is None:
        parts, counted = x.reshape(-1).split(AT_ONCE), torch.ones((), dtype=torch.bool, device=x.device)
    else:
        maps = x.reshape(-1, visible.T, visible.S)
        parts, counted = maps.split(max(1, AT_ONCE // maps[0].numel())), visible.mask(x.device)
    return torch.stack([_reduced_part(part, counted) for part in parts])


def _reduced_part(x: Tensor, counted: Tensor) -> Tensor:
    finite, nan = torch.isfinite(x) & counted, torch.isnan(x) & counted
    n = finite.sum()
    wide = torch.where(finite, x, 0).double()
    near = wide.sum() / n
    beyond = torch.where(finite, wide - near, 0)
    found = (
        n,
        near,
        beyond.sum(),
        beyond.square().sum(),
        torch.where(finite, x, math.inf).amin(),
        torch.where(finite, x, -math.inf).amax(),
        (finite & (x == 0)).sum(),
        nan.sum(),
        (torch.isinf(x) & counted).sum(),
    )
    return torch.stack([each.double() for each in found])


def _measures(
    n: float, near: float, total: float, squares: float, low: float, high: float, zeros: float, nan: float, inf: float
) -> Measures:
    if not n:
        return NOTHING._replace(nan=int(nan), inf=int(inf))
    off = total / n
    mean, variance = near + off, max(0.0, squares / n - off * off)
    return Measures(int(n), mean, variance, variance + mean * mean, low, high, int(zeros), int(nan), int(inf))
