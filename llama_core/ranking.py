"""Which of many values are the largest, and the order of all."""

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


def falling(values: np.ndarray) -> np.ndarray:
    """Places of all values of a flat array, the largest first, equal ones by place; NaN comes last.

    numpy's sort that keeps the order of equals takes five times as long as the one that does not: few of a
    vocabulary's logits are equal, and those are put right afterwards.
    """
    places = np.argsort(-values)
    fallen = values[places]
    same = np.flatnonzero((fallen[1:] == fallen[:-1]) | np.isnan(fallen[:-1]))
    if len(same) > len(values) // 16:
        return np.argsort(-values, kind="stable")
    for run in np.split(same, np.flatnonzero(np.diff(same) > 1) + 1) if len(same) else ():
        places[run[0] : run[-1] + 2].sort()
    return places
