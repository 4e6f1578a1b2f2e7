"""What a step changed against one that it reads, as named numbers. numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .steps import At
from .trace import Trace


@dataclass(frozen=True)
class Change:
    """`at` against `source`, over the cells that are finite in both.

    cosine: of the two as one long vector each, NaN when one of them is all zero; ratio: rms of `at` / rms of
    `source`; largest: the largest size of a difference; share: cells that differ at all. All but ratio need equal
    shapes of the same axes (with 4 tokens and 4 heads of 4 numbers, scores have the shape of queries); without, they
    are None. difference: at - source, NaN where either is not finite; None where it was not to be kept.
    """

    source: At
    ratio: float
    cosine: float | None = None
    largest: float | None = None
    share: float | None = None
    difference: np.ndarray | None = None


def change(trace: Trace, source: At, at: At, cells: bool = True) -> Change:
    """Compare two captured tensors; sums are taken in float64. cells: whether the difference of every cell is kept."""
    before, after = trace.stat(source).rms, trace.stat(at).rms
    ratio = after / before if before else float("nan")
    shape = trace.stat(at).shape
    if trace.stat(source).shape != shape or _cells(source) != _cells(at):
        return Change(source, ratio)
    kept, products, largest, moved, count = [], np.zeros(3), 0.0, 0, 0
    for a, b, both in _parts(trace, source, at):
        if cells:
            kept.append(_difference(a, b, both))
        x, y = a[both].astype(np.float64), b[both].astype(np.float64)
        products += x @ y, x @ x, y @ y
        distance = np.abs(y - x)
        largest = max(largest, float(distance.max(initial=0.0)))
        moved, count = moved + np.count_nonzero(distance), count + distance.size
    sizes = float(np.sqrt(products[1] * products[2]))
    return Change(
        source,
        ratio,
        cosine=float(products[0]) / sizes if sizes else float("nan"),
        largest=largest if count else float("nan"),
        share=moved / count if count else float("nan"),
        difference=np.concatenate(kept).reshape(shape) if cells else None,
    )


def difference(trace: Trace, source: At, at: At, head: int) -> np.ndarray:
    """at - source, NaN where either is not finite. Of a T x S step the one head alone, over what its queries may see.

    [T S] then, else all axes of the step.
    """
    if not at.step.causal:
        (part,) = _parts(trace, source, at)
        return _difference(*part)
    a, b = trace.head(source, head), trace.head(at, head)
    return _difference(a, b, _finite(a, b) & trace.visible(at))


def _parts(trace: Trace, source: At, at: At) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Before, after, and which cells count. A T x S step head by head, so that never two maps of all heads are read."""
    if not at.step.causal:
        yield trace[source], trace[at], _finite(trace[source], trace[at])
        return
    visible = trace.visible(at)
    for head in range(trace.dims["Hq"]):
        a, b = trace.head(source, head), trace.head(at, head)
        yield a, b, _finite(a, b) & visible


def _cells(at: At) -> tuple[str, ...]:
    """What a step's axes count: heads stay heads when they are shared, and keys are positions."""
    return tuple({"Hkv": "Hq", "S": "T"}.get(axis, axis) for axis in at.step.axes)


def _finite(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isfinite(a) & np.isfinite(b)


def _difference(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> np.ndarray:
    return np.subtract(b, a, out=np.full(b.shape, np.nan, dtype=np.float32), where=both)
