"""The pictures of what comes out: losses, cuts, the lens, the parts of a logit."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pages.figures import theme
from pages.figures.attribution import logit_parts
from pages.figures.lens import hover_of, lens_map
from pages.figures.loss import loss_bars
from pages.figures.sampling import kept_and_cut
from pages.figures.token_axis import across

MARKUP = "<b>$x$ %{y}"


def losses(each=(2.0, 0.5, 3.5), labels=("a", "b", "a", MARKUP), **more):
    each = np.array(each)
    return loss_bars(each, float(each.mean()), 2.5, labels, **more)


def a_lens(rows=3, **more):
    strength = np.array([[0.1, 0.9], [0.2, 0.8], [1.0, 0.0]])[:rows]
    texts = [["x", MARKUP]] * rows
    given = {"rows": ["embedding", "0", "1 = logits"], "tokens": ["a", "b"], "ends": ("0", "1"), "most": 1.0}
    return lens_map(texts, strength, [["h<", "i"]] * rows, name="p", **(given | more))


EVERY = {
    "loss": lambda dark: losses(chosen=1, dark=dark),
    "many losses": lambda dark: losses(np.linspace(0, 9, 300), [f"t{i}" for i in range(301)], chosen=200, dark=dark),
    "no loss": lambda dark: loss_bars(np.zeros(0), np.nan, 1, ["a"], dark=dark),
    "cut": lambda dark: kept_and_cut(
        ["a", "b", "c"], np.array([0.5, 0.3, 0.2]), np.array([1.0]), untouched=np.full(3, 0.3), by_k=2, dark=dark
    ),
    "lens": lambda dark: a_lens(start=4, chosen=5, dark=dark),
    "half a lens": lambda dark: a_lens(2, total=5, dark=dark),
    "parts": lambda dark: logit_parts(0.5, np.array([1.0, -2]), np.array([0.25, 4]), name=MARKUP, dark=dark),
}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", EVERY)
def test_plotly_finds_nothing_to_object_to(kind, dark):
    fig = EVERY[kind](dark)
    assert json.loads(go.Figure(fig.to_dict()).to_json()) == json.loads(fig.to_json())
    assert len(fig.layout.meta["alt"]) > 10


def test_loss_bars_stand_at_positions_and_say_what_came():
    fig = losses(chosen=2)
    (bars,) = fig.data
    assert_array_equal(bars.x, [0, 1, 2])
    assert_allclose(bars.y, [2.0, 0.5, 3.5])
    assert list(bars.customdata[2]) == ["a", theme.plain(MARKUP), "3.0 %"]  # e^-3.5
    assert [line.y0 for line in fig.layout.shapes] == [2.0, 2.5]
    assert [note.text for note in fig.layout.annotations] == ["mean 2.00", "ln V 2.50"]
    assert len(set(bars.marker.color)) == 2
    assert bars.marker.color[2] != bars.marker.color[0] == bars.marker.color[1]
    assert list(fig.layout.xaxis.ticktext)[:2] == ["0<br>a<br>→ b", "1<br>b<br>→ a"]
    assert fig.layout.yaxis.range[0] == 0
    assert fig.layout.yaxis.range[1] > 3.5


def test_names_of_two_lines_that_meet_move_apart():
    fig = loss_bars(np.array([2.5, 2.5]), 2.5, 2.5, ["a", "b", "c"])
    shifts = [note.yshift for note in fig.layout.annotations]
    assert abs(shifts[0] - shifts[1]) >= 15


def test_a_single_token_has_no_loss_and_says_so():
    fig = loss_bars(np.zeros(0), np.nan, 4.0, ["a"])
    assert "nothing came after it" in fig.layout.annotations[0].text
    assert fig.layout.height == losses().layout.height


def test_labels_of_a_long_prompt_are_thinned_and_keep_their_positions():
    ticks = across([f"token {i}" for i in range(300)])
    assert len(ticks["tickvals"]) <= 18
    assert ticks["ticktext"][1] == f"token {int(ticks['tickvals'][1])} {int(ticks['tickvals'][1])}"
    assert ticks["tickangle"] == -60


def test_a_cut_shows_before_after_and_where_it_falls():
    before, after = np.array([0.4, 0.3, 0.2, 0.1]), np.array([4 / 7, 3 / 7])
    fig = kept_and_cut(["a", "b", "c", MARKUP], before, after, by_k=3)
    pale, solid, writing = fig.data
    assert_allclose(pale.x, before, rtol=1e-6)
    assert_allclose(solid.x, [4 / 7, 3 / 7, 0, 0], rtol=1e-6)
    assert [text.strip() for text in writing.text] == ["40.0 % → 57.1 %", "30.0 % → 42.9 %", "20.0 % cut", "10.0 % cut"]
    assert [line.y0 for line in fig.layout.shapes] == [2.5, 1.5]
    assert [note.text for note in fig.layout.annotations] == ["top-k cuts here", "top-p cuts here"]
    assert fig.layout.yaxis.ticktext[3] == theme.plain(MARKUP)


def test_without_a_cut_there_is_one_number_and_no_line():
    share = np.array([0.75, 0.25])
    fig = kept_and_cut(["a", "b"], share, share)
    assert [text.strip() for text in fig.data[2].text] == ["75.0 %", "25.0 %"]
    assert not fig.layout.shapes


def test_a_cut_beyond_the_drawn_rows_draws_no_line():
    fig = kept_and_cut(["a", "b"], np.array([0.5, 0.2]), np.full(40, 1 / 40), by_k=50)
    assert not fig.layout.shapes
    assert_allclose(fig.data[1].x, [1 / 40, 1 / 40], rtol=1e-6)


def test_each_cell_of_the_lens_stands_at_its_position_and_row_and_is_escaped():
    fig = a_lens(start=4, chosen=5)
    heat, cells = fig.data[0], fig.data[-1]
    assert_allclose(heat.z, [[0.1, 0.9], [0.2, 0.8], [1.0, 0.0]], rtol=1e-6)
    assert_array_equal(cells.x, [4, 5, 4, 5, 4, 5])
    assert_array_equal(cells.y, [0, 0, 1, 1, 2, 2])
    assert cells.text[1] == theme.plain(MARKUP)
    assert list(fig.layout.yaxis.ticktext) == ["embedding", "0", "1 = logits"]
    assert list(fig.layout.xaxis.ticktext) == ["a<br>4", "b<br>5"]
    assert [shape.x0 for shape in fig.layout.shapes][-1] == 4.5
    colours = cells.textfont.color
    assert colours[0] != colours[1]  # the ink turns where the ground is dark
    assert fig.layout.clickmode == "event+select"


def test_rows_that_are_not_ready_are_blank_and_the_map_keeps_its_height():
    half, whole = a_lens(2, total=3), a_lens(3)
    assert half.layout.height == whole.layout.height
    assert np.isnan(half.data[0].z[2]).all()
    assert len(half.data[-1].text) == 4


def test_the_hover_of_a_cell_is_escaped_line_by_line():
    text = hover_of("a <b>", ["x", "<i>"], ["50 %", "1 %"], ["rank 1 & more"])
    assert text.split("<br>") == ["<b>a &lt;b&gt;</b>", "x    50 %", "&lt;i&gt;  1 %", "rank 1 &amp; more"]


def test_the_parts_of_a_logit_add_up_to_the_end_of_their_line():
    attention, mlp = np.array([1.0, -2.0]), np.array([0.25, 4.0])
    fig = logit_parts(0.5, attention, mlp, name="a")
    embedding, heads, neurons, line = fig.data
    assert_allclose(embedding.y, [0.5])
    assert_allclose(heads.y, attention)
    assert_allclose(neurons.y, mlp)
    assert_allclose(line.y, np.cumsum([0.5, 1.0, 0.25, -2.0, 4.0]))
    assert fig.layout.annotations[0].text == "3.75"
    assert np.all(np.diff(line.x) > 0)
