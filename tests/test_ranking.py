"""The order of values, against numpy's stable sort."""

from __future__ import annotations

import numpy as np
import pytest

from llama_core.ranking import falling, largest

CASES = {
    "all apart": np.random.default_rng(0).permutation(5000).astype(np.float64),
    "some equal": np.random.default_rng(1).integers(0, 40000, 5000).astype(np.float64),
    "most equal": np.random.default_rng(2).integers(0, 9, 5000).astype(np.float64),
    "both zeros": np.array([0.0, -0.0, 0.0, 1.0, -0.0] + [-float(i) for i in range(1, 100)]),
    "infinities": np.array([np.inf, 1.0, -np.inf, np.inf, -np.inf, *np.linspace(0, 1, 100)]),
    "some NaN": np.where(np.arange(400) % 50 == 7, np.nan, np.random.default_rng(3).normal(size=400)),
    "NaN and equal": np.array([np.nan, 2.0, 2.0, np.nan, 1.0, np.nan, *np.linspace(3, 4, 120)]),
    "only NaN": np.full(5, np.nan),
    "one": np.array([3.0]),
    "none": np.array([]),
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_values_fall_and_equal_ones_stand_by_place(values: np.ndarray) -> None:
    order = np.argsort(-values, kind="stable")
    assert falling(values).tolist() == order.tolist()
    if values.size:
        assert largest(values, 7).tolist() == order[:7].tolist()


def test_the_largest_are_found_in_order_with_equal_ones_by_place():
    assert largest(np.array([1.0, 3, 2, 3, 0]), 3).tolist() == [1, 3, 2]
    assert largest(np.array([2.0, 2, 2, 2]), 2).tolist() == [0, 1]
    assert largest(np.array([1.0, np.nan, 2]), 3).tolist() == [2, 0, 1]
    assert largest(np.array([np.nan, 5.0, 4.0, 1.0]), 2).tolist() == [1, 2]
    assert largest(np.array([1.0]), 9).tolist() == [0]
