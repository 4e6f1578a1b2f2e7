"""What a step changed against one that it reads, as named numbers. numpy only."""

from __future__ import annotations

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
    a, b = trace[source], trace[at]
    if a.shape != b.shape:
        return Change(source, ratio)
    both = np.isfinite(a) & np.isfinite(b)
    if at.step.causal:
        both &= trace.visible(at)
    x, y = a[both].astype(np.float64), b[both].astype(np.float64)
    sizes = float(np.sqrt((x @ x) * (y @ y)))
    difference = np.full(a.shape, np.nan, dtype=np.float32)
    np.subtract(b, a, out=difference, where=both)
    moved = np.abs(y - x)
    return Change(
        source,
        ratio,
        cosine=float(x @ y) / sizes if sizes else float("nan"),
        largest=float(moved.max()) if moved.size else float("nan"),
        share=float(np.count_nonzero(moved) / moved.size) if moved.size else float("nan"),
        difference=difference,
    )
