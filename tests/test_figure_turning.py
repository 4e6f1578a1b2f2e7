"""The charts of RoPE on small hand-made arrays: lengths, angles and scores as given."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from llama_core.turning import members
from pages.figures import theme
from pages.figures.turning import (
    ARCS,
    along_distance,
    angle_table,
    pairing,
    slower,
    wavelengths,
)


def checked(figure: go.Figure) -> go.Figure:
    """The same, every property validated by plotly."""
    return go.Figure(figure.to_plotly_json())


def test_wavelengths_are_drawn_as_given_and_filled_within_the_longest_mark():
    lengths = np.array([6.28, 62.8, 628.0, 6280.0])
    figure = wavelengths(lengths, {"prompt <b>": 5, "context": 700}, dark=True)
    dots = figure.data[0]
    np.testing.assert_allclose(dots.y, lengths)
    assert list(dots.marker.color) == [theme.tone(theme.TEXT, True)] * 3 + [theme.tone(theme.BACKGROUND, True)]
    np.testing.assert_allclose(dots.customdata, 700 / lengths)
    assert [shape.y0 for shape in figure.layout.shapes] == [5, 700]
    assert figure.layout.annotations[0].text == "prompt &lt;b&gt; 5"
    assert figure.layout.yaxis.type == "log"


def test_of_two_lines_that_are_close_the_lower_has_its_name_under_it():
    lengths = np.array([6.28, 62.8, 628.0])
    places = lambda **marks: [note.yanchor for note in wavelengths(lengths, marks).layout.annotations]  # noqa: E731
    assert places(prompt=233, context=256) == ["top", "bottom"]
    assert places(prompt=5, context=256) == ["bottom", "bottom"]


def test_other_curves_stand_under_the_dots():
    lengths = np.array([6.28, 62.8])
    figure = wavelengths(lengths, {"c": 10}, others={"plain": lengths, "changed": 2 * lengths}, name="own")
    assert [trace.name for trace in figure.data] == ["plain", "changed", "own"]
    np.testing.assert_allclose(figure.data[1].y, 2 * lengths)
    assert figure.layout.showlegend


def test_the_table_shows_cosines_and_its_hover_angles():
    angles = np.outer(np.arange(6), [1.0, 0.1]).astype(np.float32)
    figure = angle_table(angles, chosen=3)
    np.testing.assert_allclose(figure.data[0].z, np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(figure.data[0].customdata, angles)
    assert figure.data[0].zmax == 1
    assert len(figure.layout.shapes) == 2
    assert len(angle_table(angles, chosen=6).layout.shapes) == 1  # beyond the table: nothing to outline


def test_arcs_tie_the_dimensions_of_each_pair():
    before, after = np.arange(8.0), np.arange(8.0)[::-1].copy()
    for layout in ("halves", "neighbours"):
        figure = pairing(before, after, members(4, layout), limit=7.0)
        np.testing.assert_array_equal(figure.data[0].z, [before, after])
        x = np.asarray(figure.data[-1].x).reshape(4, -1)
        np.testing.assert_allclose(x[:, [0, -2]], members(4, layout), atol=1e-6)
        assert np.isnan(x[:, -1]).all()
        assert list(figure.layout.yaxis.ticktext) == ["before", "after"]


def test_arcs_are_thinned():
    x = np.zeros(512)
    figure = pairing(x, x, members(256, "halves"), limit=1.0)
    assert np.isnan(np.asarray(figure.data[-1].x)).sum() == ARCS


def test_curves_over_distance_and_the_dot_of_this_run():
    distances = np.arange(3)
    figure = along_distance(distances, {"near": np.array([3.0, 1, 2]), "far": np.array([3.0, 1, 2])}, chosen=(1, 1.0))
    assert len(figure.data) == 3
    assert (figure.data[2].x[0], figure.data[2].y[0]) == (1, 1.0)
    assert len(along_distance(distances[:1], {"near": np.array([3.0])}).data) == 1


def test_slower_is_drawn_from_zero():
    figure = slower(np.array([1.0, 2.0, 8.0]))
    np.testing.assert_array_equal(figure.data[0].y, [1, 2, 8])
    assert figure.layout.yaxis.rangemode == "tozero"


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_every_figure_and_each_has_an_alt_text(dark):
    angles = np.outer(np.arange(6), [1.0, 0.1])
    figures = [
        wavelengths(np.array([6.28, 62.8]), {"c": 10}, dark=dark),
        angle_table(angles, dark=dark),
        pairing(np.arange(4.0), np.arange(4.0), members(2, "halves"), limit=3.0, dark=dark),
        along_distance(np.arange(2), {"near": np.ones(2)}, chosen=(0, 1.0), dark=dark),
        slower(np.ones(3), dark=dark),
    ]
    for figure in figures:
        assert checked(figure).layout.meta["alt"]
        json.loads(figure.to_json())
