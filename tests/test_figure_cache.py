"""The maps of a cache that fills, and the bars of differences."""

from __future__ import annotations

import numpy as np

from pages.figures.cache import cached_differences, filling_map


def drawn(filled: int, new: int = 1):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    return filling_map(rows, filled, labels=list("abcd"), name="keys", new=new, end=5.0)


def test_rows_to_come_are_blank_and_say_so():
    figure = drawn(2)
    assert np.isnan(figure.data[0].z[2:]).all()
    assert not np.isnan(figure.data[0].z[:2]).any()
    ground = figure.data[-1]
    assert "not read yet" in ground.hovertemplate
    assert "2 of 4 rows" in figure.layout.meta["alt"]


def test_a_full_cache_has_no_ground():
    assert all(layer.name != "masked" for layer in drawn(4).data)


def test_the_scale_stays_while_it_fills():
    assert drawn(1).data[0].zmax == drawn(4).data[0].zmax == 5.0


def test_the_rows_of_the_last_pass_are_framed():
    frame = drawn(3, new=2).layout.shapes[-1]
    assert (frame.y0, frame.y1) == (0.5, 2.5)


def test_differences_stand_under_the_bound():
    figure = cached_differences(np.array([0.0, 2e-6]), 1e-5, labels=["a", "a"])
    assert figure.data[0].x.tolist() == [0, 1]
    assert figure.layout.shapes[0].y0 == 1e-5
    assert (figure.layout.annotations[0].x, figure.layout.annotations[0].xanchor) == (0, "left")
    assert figure.layout.yaxis.range[1] > 1e-5


def test_a_difference_above_the_bound_is_not_cut_off():
    assert cached_differences(np.array([0.0, 5.6]), 1e-5, labels=["a", "b"]).layout.yaxis.range[1] > 5.6
