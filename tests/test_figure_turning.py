"""The pictures of RoPE on small hand-made arrays: arrows end where the numbers say, lengths and scores as given."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from llama_core.turning import members
from pages.figures import theme
from pages.figures.turning import (
    ARCS,
    FRAMES,
    SHOWN,
    along_distance,
    angle_table,
    arrows,
    pairing,
    shown_pairs,
    slower,
    wavelengths,
)

BEFORE = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
ANGLE = np.array([np.pi / 2, np.pi, 7 * np.pi, 0.0])
AFTER = np.stack(
    (
        BEFORE[:, 0] * np.cos(ANGLE) - BEFORE[:, 1] * np.sin(ANGLE),
        BEFORE[:, 1] * np.cos(ANGLE) + BEFORE[:, 0] * np.sin(ANGLE),
    ),
    axis=1,
)
RINGS, PALE, PALE_TIP, WEDGE, STRONG, STRONG_TIP, LABEL, HOVER = range(8)


def small(**more) -> go.Figure:
    return arrows(BEFORE, AFTER, ANGLE, members(4, "halves"), kind="query", name="q <b>", **more)


def tips(trace) -> np.ndarray:
    """The point of each arrow: the first corner of its tip. [n 2]"""
    return np.stack([np.asarray(values, dtype=float)[::5] for values in (trace.x, trace.y)], axis=1)


def checked(figure: go.Figure) -> go.Figure:
    """The same, every property validated by plotly."""
    return go.Figure(figure.to_plotly_json())


def test_arrows_point_where_the_vectors_do():
    figure = small()
    centre = np.stack((figure.data[HOVER].x, figure.data[HOVER].y), axis=1)
    for trace, vectors in ((PALE_TIP, BEFORE), (STRONG_TIP, AFTER)):
        ends = tips(figure.data[trace]) - centre
        for end, vector in zip(ends[:3], vectors[:3], strict=True):
            np.testing.assert_allclose(end / np.linalg.norm(end), vector / np.linalg.norm(vector), atol=1e-6)


def test_the_area_of_a_circle_is_the_length_of_its_pair_down_to_the_smallest():
    figure = arrows(
        np.array([[4.0, 0], [0, 3.0], [1e-3, 0]]), np.eye(3, 2), np.ones(3), members(3, "halves"), kind="key"
    )
    centre = np.stack((figure.data[HOVER].x, figure.data[HOVER].y), axis=1)
    sizes = np.linalg.norm(tips(figure.data[PALE_TIP]) - centre, axis=1)
    assert sizes[1] ** 2 / sizes[0] ** 2 == pytest.approx(3 / 4)
    assert sizes[2] / sizes[0] == pytest.approx(0.62)


def test_labels_leave_whole_turns_out_and_the_hover_does_not():
    figure = small()
    assert figure.data[LABEL].text[0] == "0 · 90°"
    assert figure.data[LABEL].text[3] == "3 · 0°"
    assert figure.data[LABEL].text[2] in ("2 · 180°", "2 · -180°")
    assert "3.50 turns" in figure.data[HOVER].text[2]
    assert "dimensions 1 and 5" in figure.data[HOVER].text[1]
    assert figure.data[HOVER].text[1].count("2.00") == 4


def test_the_played_turn_begins_before_and_ends_after():
    figure = small()
    assert len(figure.frames) == FRAMES
    first, last = (figure.frames[i].data[STRONG_TIP - WEDGE] for i in (0, -1))
    np.testing.assert_allclose(tips(first), tips(figure.data[PALE_TIP]), atol=1e-3)
    np.testing.assert_allclose(tips(last), tips(figure.data[STRONG_TIP]), atol=1e-3)
    assert list(figure.frames[0].traces) == [WEDGE, STRONG, STRONG_TIP, LABEL]
    assert list(figure.frames[-1].data[-1].text) == list(figure.data[LABEL].text)


def test_nothing_to_play_at_position_0():
    figure = arrows(BEFORE, BEFORE, np.zeros(4), members(4, "halves"), kind="query")
    assert not figure.frames
    assert not figure.layout.updatemenus


def test_many_pairs_are_thinned_evenly_and_it_is_known():
    assert shown_pairs(32).tolist() == list(range(32))
    assert shown_pairs(64).tolist() == list(range(0, 64, 2))
    for R in (1, 2, 33, 100, 256):
        assert 1 <= len(shown_pairs(R)) <= SHOWN
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 2))
    figure = arrows(x, x, rng.normal(size=256), members(256, "halves"), kind="key")
    assert (figure.layout.meta["shown"], figure.layout.meta["pairs"]) == (32, 256)
    assert len(figure.to_json()) < 900_000


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
        small(dark=dark),
        wavelengths(np.array([6.28, 62.8]), {"c": 10}, dark=dark),
        angle_table(angles, dark=dark),
        pairing(np.arange(4.0), np.arange(4.0), members(2, "halves"), limit=3.0, dark=dark),
        along_distance(np.arange(2), {"near": np.ones(2)}, chosen=(0, 1.0), dark=dark),
        slower(np.ones(3), dark=dark),
    ]
    for figure in figures:
        assert checked(figure).layout.meta["alt"]
        json.loads(figure.to_json())
