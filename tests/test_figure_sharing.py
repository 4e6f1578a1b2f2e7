"""Who reads which keys, drawn: one hue per group, lines to the right head, bars and cosines as given."""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go
import pytest

from pages.figures.sharing import (
    HUES,
    cache_bars,
    drawing,
    group_colour,
    head_colour,
    likeness,
    reading_rows,
    tiled_bars,
)


def boxes(svg: str) -> dict[str, str]:
    """The colour of each box by what it says."""
    return {text: fill for fill, text in re.findall(r'<rect [^>]*fill="(#\w+)"[^>]*/><text [^>]*>(\w+)</text>', svg)}


def test_a_group_has_one_hue_and_its_heads_are_shades_of_it():
    assert head_colour(0, 4, False) == head_colour(0, 1, False) == group_colour(0, False)
    shades = [head_colour(h, 4, False) for h in range(4)]
    assert len(set(shades)) == 4
    assert head_colour(4, 4, False) == group_colour(1, False)
    assert group_colour(0, True) != group_colour(0, False)
    assert all(group_colour(kv, False) != group_colour(kv + 1, False) for kv in range(20))
    assert group_colour(len(HUES), False) == group_colour(0, False)


@pytest.mark.parametrize(("heads", "kv"), [(9, 3), (8, 2), (4, 4), (4, 1), (16, 1), (128, 8), (128, 128), (1, 1)])
def test_every_head_is_drawn_once_in_the_svg_of_its_group(heads, kv):
    svgs = re.findall("<svg.*?</svg>", drawing(heads, kv, 0))
    assert len(svgs) == kv
    group = heads // kv
    for i, svg in enumerate(svgs):
        found = boxes(svg)
        assert list(found) == [f"Q{h}" for h in range(i * group, (i + 1) * group)] + [f"K{i}", f"V{i}"]
        assert found[f"K{i}"] == found[f"V{i}"] == group_colour(i, False)
        assert all(found[f"Q{h}"] == head_colour(h, group, False) for h in range(i * group, (i + 1) * group))
        assert svg.count("<path") == min(group, 8)


def test_the_chosen_head_and_what_it_reads_are_framed():
    found = re.findall(r'stroke-width="2"/><text [^>]*>(\w+)<', drawing(8, 2, 6))
    assert found == ["Q6", "K1", "V1"]


def test_rows_say_which_head_is_read_grouped_and_tiled():
    cells = re.findall(r"<td[^>]*>(\w+)</td>", reading_rows(8, 2))
    assert cells[:8] == [f"Q{h}" for h in range(8)]
    assert cells[8:16] == ["KV0"] * 4 + ["KV1"] * 4
    assert cells[16:] == ["KV0", "KV1"] * 4


def test_bars_are_the_bytes():
    figure = cache_bars(["MHA", "GQA <b>"], [1_000_000, 250_000], 1)
    assert list(figure.data[0].x) == [1e6, 2.5e5]
    assert list(figure.data[0].text) == ["1.0 MB", "250 kB"]
    assert list(figure.data[0].customdata) == ["1,000,000", "250,000"]
    assert figure.layout.yaxis.ticktext[1] == "GQA &lt;b&gt;"
    assert figure.data[0].marker.color[0] != figure.data[0].marker.color[1]


def test_cosines_as_given_with_a_frame_per_group():
    cosines = np.array([[1, 0.5, 0.1, 0.2], [0.5, 1, 0.3, 0.1], [0.1, 0.3, 1, 0.9], [0.2, 0.1, 0.9, 1]])
    figure = likeness(cosines, 2, chosen=1)
    np.testing.assert_allclose(figure.data[0].z, cosines, rtol=1e-6)
    assert (figure.data[0].zmin, figure.data[0].zmax) == (0, 1)
    frames = [(s.x0, s.x1, s.line.color) for s in figure.layout.shapes if s.line.width == 3]
    assert frames == [(-0.5, 1.5, group_colour(0, False)), (1.5, 3.5, group_colour(1, False))]


def test_colours_begin_later_where_all_maps_are_alike_and_it_is_known():
    figure = likeness(np.array([[1, 0.87], [0.87, 1]]), 1)
    assert figure.data[0].zmin == figure.layout.meta["begin"] == pytest.approx(0.8)
    assert likeness(np.ones((2, 2)), 1).layout.meta["begin"] == 0


def test_differences_as_bars_in_the_heads_shades():
    figure = tiled_bars(np.array([0.0, 1.0, 2.0, 0.0]), 2, 0.5)
    np.testing.assert_array_equal(figure.data[0].y, [0, 1, 2, 0])
    assert list(figure.data[0].marker.color) == [head_colour(h, 2, False) for h in range(4)]
    assert figure.layout.shapes[0].y0 == 0.5


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_every_figure_and_each_has_an_alt_text(dark):
    for figure in (
        cache_bars(["a"], [1], 0, dark=dark),
        likeness(np.eye(4), 2, dark=dark),
        tiled_bars(np.ones(2), 1, 0.5, dark=dark),
    ):
        assert go.Figure(figure.to_plotly_json()).layout.meta["alt"]
