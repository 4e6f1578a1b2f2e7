"""Which positions of a map are drawn: each its own cell, or blocks of them where there are too many.

A block keeps its value of largest size, so that what stands out in the tensor stands out in
the map; `Axis` says where blocks stand and what their ticks and their hover read. Only arrays
and texts here: the drawing is heatmap's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .theme import plain

LIMIT = 512
"""Most rows of a map that is sent, and its most cells: LIMIT². A map of few rows may have 2·LIMIT columns."""
AT_ONCE = 1 << 20
"""Cells that are pooled together."""


@dataclass(frozen=True)
class Axis:
    """One axis of a map: its name, the texts of its positions, and the blocks that are drawn.

    bins: [n, 2] half-open ranges of indices; start: the position of index 0.
    """

    name: str
    labels: Sequence[str] | None
    bins: np.ndarray
    start: int = 0

    @property
    def size(self) -> int:
        return int(self.bins[-1, 1])

    @property
    def pooled(self) -> bool:
        return len(self.bins) < self.size

    @property
    def centres(self) -> np.ndarray:
        return (self.start + (self.bins[:, 0] + self.bins[:, 1] - 1) / 2).astype(np.float32)

    @property
    def places(self) -> np.ndarray:
        """What plotly draws at: whole positions, or the borders of blocks (one more than blocks)."""
        if not self.pooled:
            return np.arange(self.start, self.start + self.size, dtype=np.int32)
        return (self.start - 0.5 + np.append(self.bins[:, 0], self.size)).astype(np.float32)

    @property
    def range(self) -> list[float]:
        return [self.start - 0.5, self.start + self.size - 0.5]  # a list: unchecked, plotly cannot read a tuple back

    def text(self, index: int, limit: int) -> str:
        return plain(self.labels[index], limit) if self.labels is not None else ""

    def hover(self) -> list[str]:
        """One text per block: "2 · cat", or "12–15 · The … is"."""
        if self.labels is None:
            return list(_numbers(self.start, self.size, int(self.bins[0, 1])))
        texts = []
        for a, b in self.bins.tolist():
            place, text = str(self.start + a), self.text(a, 48)
            if b - a > 1:
                place, last = f"{place}–{self.start + b - 1}", self.text(b - 1, 24)
                text = f"{self.text(a, 24)} … {last}" if text or last else ""
            texts.append(f"{place} · {text}" if text and text != place else place)
        return texts

    def ticks(self, room: int) -> tuple[list[float], list[int]]:
        """At most about `room` places, evenly thinned to a round step, and the indices they stand for."""
        step = next(s for s in _steps() if self.size <= s * room)
        chosen = [i for i in range(self.size) if (self.start + i) % step == 0] or [0]
        return [float(self.start + i) for i in chosen], chosen


@lru_cache(64)
def _numbers(start: int, size: int, block: int) -> tuple[str, ...]:
    """What blocks without labels read: the same for every map of so many columns."""
    ends = [(start + a, start + min(a + block, size) - 1) for a in range(0, size, block)]
    return tuple(str(a) if a == b else f"{a}–{b}" for a, b in ends)


def _steps():
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


@lru_cache(64)
def bins(n: int, limit: int = LIMIT) -> np.ndarray:
    """[k, 2] half-open ranges that cut n places into at most `limit` equal blocks (the last may be shorter)."""
    size = max(1, -(-n // limit))
    starts = np.arange(0, n, size)
    found = np.stack([starts, np.minimum(starts + size, n)], axis=1)
    found.flags.writeable = False
    return found


def pool(
    values: np.ndarray, limit: int = LIMIT, masked: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pooled float32, row_bins, col_bins): each block keeps its value of largest size, with its sign.

    Masked cells take no part; a block of only masked cells becomes NaN, as masked cells do
    in a map that needs no pooling. A NaN that is not masked survives as NaN: tell the two
    apart with `pool_mask`.
    """
    row_bins = bins(values.shape[0], limit)
    wide = max(limit, min(2 * limit, limit * limit // max(len(row_bins), 1)))  # D = 576 deserves a column each
    col_bins = bins(values.shape[1], wide)
    if len(row_bins) == values.shape[0] and len(col_bins) == values.shape[1]:
        whole = np.array(values, dtype=np.float32)
        if masked is not None:
            whole[masked] = np.nan
        return whole, row_bins, col_bins
    pooled = np.empty((len(row_bins), len(col_bins)), dtype=np.float32)
    sizes = _sizes(row_bins, col_bins)
    some = max(1, AT_ONCE // (sizes[0] * values.shape[1]))
    for first in range(0, len(row_bins), some):  # so many blocks of rows at a time: no copy of the whole
        rows = slice(row_bins[first, 0], row_bins[min(first + some, len(row_bins)) - 1, 1])
        part = np.asarray(values[rows], dtype=np.float32)
        tops, bottoms = part, part
        if masked is not None:
            tops, bottoms = (np.where(masked[rows], end, part) for end in (-np.inf, np.inf))
        high, low = _of_blocks(np.maximum, tops, sizes), _of_blocks(np.minimum, bottoms, sizes)
        found = np.where(np.abs(low) > np.abs(high), low, high)
        if masked is not None:
            found[(high == -np.inf) & (low == np.inf)] = np.nan
        pooled[first : first + some] = found
    return pooled, row_bins, col_bins


def _of_blocks(better: np.ufunc, x: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """One number for each block of so many rows and columns; the last blocks may be smaller."""
    for axis, size in enumerate(sizes):
        first, *others = (x[i::size] if axis == 0 else x[:, i::size] for i in range(size))
        found = first.copy()
        for part in others:
            some = found[: part.shape[0], : part.shape[1]]
            better(some, part, out=some)
        x = found
    return x


def pool_mask(masked: np.ndarray, row_bins: np.ndarray, col_bins: np.ndarray) -> np.ndarray:
    """Which blocks are masked as a whole."""
    return _of_blocks(np.logical_and, masked, _sizes(row_bins, col_bins))


def _sizes(row_bins: np.ndarray, col_bins: np.ndarray) -> tuple[int, int]:
    """Rows and columns of a block."""
    return int(row_bins[0, 1] - row_bins[0, 0]), int(col_bins[0, 1] - col_bins[0, 0])
