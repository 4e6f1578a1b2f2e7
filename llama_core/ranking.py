"""Which of many values are the largest."""

from __future__ import annotations

import numpy as np


def largest(values: np.ndarray, n: int) -> np.ndarray:
    """Places of the n largest values of a flat array, the largest first, equal ones by place; NaN comes last."""
    n = min(n, values.size)
    border = np.partition(values, -n)[-n]
    places = np.flatnonzero(values >= border)
    if len(places) < n:  # NaN stands above everything in a partition
        return largest(np.where(np.isnan(values), -np.inf, values), n)
    return places[np.argsort(-values[places], kind="stable")][:n]
