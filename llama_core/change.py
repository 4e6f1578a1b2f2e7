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
    `source`; largest: the largest size of a difference; share: cells that differ at all. The four need equal
    shapes but ratio; without, they are None. difference: at - source, NaN where either is not finite.
    """

    source: At
    ratio: float
    cosine: float | None = None
    largest: float | None = None
    share: float | None = None
    difference: np.ndarray | None = None


def change(trace: Trace, source: At, at: At) -> Change:
    """Compare two captured tensors; sums are taken in float64."""
    before, after = trace.stat(source).rms, trace.stat(at).rms
    ratio = after / before if before else float("nan")
    shape = trace.stat(at).shape
    if trace.stat(source).shape != shape:
        return Change(source, ratio)
    difference = np.full(shape, np.nan, dtype=np.float32)
    parts = _heads(trace, source, at, difference) if at.step.causal else [(trace[source], trace[at], difference, True)]
    products, largest, moved, cells = np.zeros(3), 0.0, 0, 0
    for a, b, out, seen in parts:
        both = np.isfinite(a) & np.isfinite(b) & seen
        np.subtract(b, a, out=out, where=both)
        x, y = a[both].astype(np.float64), b[both].astype(np.float64)
        products += x @ y, x @ x, y @ y
        distance = np.abs(y - x)
        largest = max(largest, float(distance.max(initial=0.0)))
        moved, cells = moved + np.count_nonzero(distance), cells + distance.size
    sizes = float(np.sqrt(products[1] * products[2]))
    return Change(
        source,
        ratio,
        cosine=float(products[0]) / sizes if sizes else float("nan"),
        largest=largest if cells else float("nan"),
        share=moved / cells if cells else float("nan"),
        difference=difference,
    )


def _heads(trace: Trace, source: At, at: At, difference: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Head by head, so that of a long prompt no two maps of all heads are read: before, after, place, which cells."""
    visible = trace.visible(at)
    for head in range(trace.dims["Hq"]):
        yield trace.head(source, head), trace.head(at, head), difference[0, head], visible
