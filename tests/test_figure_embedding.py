"""The pictures of what goes in."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.testing import assert_allclose

from pages.figures import theme
from pages.figures.embedding import embedding_rows, near_tokens

MARKUP = "<b>$x$ %{y}"


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_finds_nothing_to_object_to(dark):
    rows = np.random.default_rng(0).normal(size=(5, 8))
    for fig in (
        embedding_rows(rows, [*list("abcd"), MARKUP], [1, 20, 300, 1, 5], start=24, chosen=25, dark=dark),
        near_tokens(["a", MARKUP], [0.9, -0.2], dark=dark),
        near_tokens([], [], dark=dark),
    ):
        assert json.loads(go.Figure(fig.to_dict()).to_json()) == json.loads(fig.to_json())
        assert len(fig.layout.meta["alt"]) > 10


def test_each_row_has_its_piece_and_its_id_in_columns():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    fig = embedding_rows(rows, ["a", MARKUP, "a"], [7, 123, 7], start=24, chosen=25)
    assert_allclose(fig.data[0].z, rows)
    assert list(fig.layout.yaxis.tickvals) == [24, 25, 26]
    assert list(fig.layout.yaxis.ticktext) == ["a    7", f"{theme.plain(MARKUP)}  123", "a    7"]
    assert fig.layout.shapes[-1].y0 == 24.5
    assert (
        len(fig.layout.shapes) == len(embedding_rows(rows, list("abc"), [1, 2, 3], start=0, chosen=9).layout.shapes) + 1
    )


def test_a_wide_row_is_pooled():
    fig = embedding_rows(np.ones((2, 5000)), ["a", "b"], [1, 2])
    assert np.shape(fig.data[0].z)[1] <= 1024
    assert fig.layout.meta["pooled"]


def test_the_nearest_stands_at_the_top_and_the_axis_holds_negative_cosines():
    fig = near_tokens(["a", MARKUP], [0.9, -0.2])
    assert_allclose(fig.data[0].x, [0.9, -0.2], rtol=1e-6)
    assert list(fig.data[0].text) == ["0.900", "-0.200"]
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1]
    assert fig.layout.xaxis.range[0] == pytest.approx(-0.2)
    assert near_tokens(["a"], [0.5]).layout.height == fig.layout.height == near_tokens([], []).layout.height
