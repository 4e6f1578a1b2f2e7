"""One head's map, bars beside it, and many heads as tiles: on arrays small enough to check by eye."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from hovers import said_at
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from pages.figures import heatmap, theme
from pages.figures.head_map import DECADES, head_map, log_bar, logarithm
from pages.figures.head_tiles import (
    CELLS,
    Plan,
    frame_tile,
    head_tiles,
    header_all,
    plan_all,
    plan_layer,
    row_of,
    side_for,
)
from pages.figures.looks import looks

MARKUP = '<b>B</b> $x$ %{y} <a href="javascript:alert(1)">'


def causal(size: int) -> np.ndarray:
    scores = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    raised = np.where(np.tri(size, dtype=bool), np.exp(scores), 0)
    return (raised / raised.sum(1, keepdims=True)).astype(np.float32)


def drawn(size: int = 5, token: int = 2, cells: np.ndarray | None = None, **more) -> go.Figure:
    cells = causal(size) if cells is None else cells
    rows, cols = cells.shape
    given = {
        "masked": ~np.tri(rows, cols, dtype=bool),
        "queries": [f"q{i}" for i in range(rows)],
        "keys": [f"k{i}" for i in range(cols)],
        "name": "Q0 → KV0",
    }
    return head_map(cells, token=token, **given | more)


def sent(figure: go.Figure) -> int:
    return len(figure.to_json())


def checked(figure: go.Figure) -> None:
    """Plotly's own check of every property, which the app leaves out."""
    go.Figure(figure.to_dict())


# --- one head ---


def test_query_0_is_at_the_top_and_keys_run_right():
    figure = drawn()
    top, bottom = figure.layout.yaxis.range[1], figure.layout.yaxis.range[0]
    assert (top, bottom) == (-0.5, 4.5)
    assert list(figure.layout.xaxis.range) == [-0.5, 4.5]
    assert_array_equal(figure.data[0].z[2, :3], causal(5)[2, :3])
    assert np.isnan(figure.data[0].z[np.triu_indices(5, 1)]).all()


def test_the_scale_of_weights_is_0_to_1_and_scores_have_a_sign():
    assert (drawn().data[0].zmin, drawn().data[0].zmax) == (0, 1)
    scores = drawn(cells=np.array([[-3.0, 1.0], [2.0, 1.0]], np.float32), masked=np.zeros((2, 2), bool), kind="scores")
    assert (scores.data[0].zmin, scores.data[0].zmax) == (-3, 3)


def test_logarithms_are_decades_above_a_thousandth():
    assert_allclose(logarithm(np.float32([1, 0.1, 0.01, 0.001, 0.0001, 0])), [3, 2, 1, 0, 0, 0], atol=1e-6)
    assert np.isnan(logarithm(np.float32([np.nan]))).all()


def test_log_colours_are_said_in_the_legend_and_the_hover_keeps_the_weight():
    plain, log = drawn(), drawn(log=True)
    heat = log.data[0]
    assert (heat.zmin, heat.zmax) == (0, DECADES)
    assert list(heat.colorbar.ticktext) == ["≤ 0.001", "0.01", "0.1", "1"] == log_bar()["ticktext"]
    assert_array_equal(heat.customdata, plain.data[0].z)
    assert "%{customdata" in heat.hovertemplate
    assert said_at(log) == said_at(plain)
    assert heat.text == plain.data[0].text  # what stands in it
    assert_allclose(heat.z[2, :3], 3 + np.log10(causal(5)[2, :3].astype(np.float64)), atol=1e-5)


def test_scores_have_no_log_colours():
    assert drawn(kind="scores", log=True).data[0].colorbar.ticktext == drawn(kind="scores").data[0].colorbar.ticktext


def outlines(figure: go.Figure) -> list[tuple]:
    return [(s.x0, s.x1, s.y0, s.y1, s.line.dash) for s in figure.layout.shapes if s.line.color == theme.TEXT[0]]


def test_the_row_ends_and_the_column_begins_at_the_chosen_token():
    assert outlines(drawn(token=2)) == [(-0.5, 2.5, 1.5, 2.5, None), (1.5, 2.5, 2.5, 4.5, "dot")]
    assert outlines(drawn(token=4)) == [(-0.5, 4.5, 3.5, 4.5, None)]  # nobody else looks at the last one


def test_in_a_window_the_marks_stand_at_their_positions():
    cells = np.zeros((3, 4), np.float32)
    more = {"masked": np.zeros((3, 4), bool), "query_start": 10, "key_start": 2}
    assert outlines(drawn(cells=cells, token=11, **more)) == [(1.5, 5.5, 10.5, 11.5, None)]
    assert outlines(drawn(cells=cells, token=4, **more)) == [(3.5, 4.5, 9.5, 12.5, "dot")]
    assert outlines(drawn(cells=cells, token=1, **more)) == []


def test_narrow_rows_are_marked_from_beside():
    (_, _, y0, y1, _), _ = outlines(drawn(300, token=100))
    assert y1 - y0 > 3  # rows: the row itself stays to be seen
    assert (y0 + y1) / 2 == 100


def test_small_maps_can_be_clicked_and_large_ones_boxed():
    assert drawn(64).data[-1].type == "scatter"
    assert drawn(65).layout.dragmode == "select"


def test_no_mark_is_sized_in_px():
    """With such a shape in the map plotly reports the ends of a box in px."""
    for figure in (drawn(5), drawn(300, token=100)):
        assert all(s.xsizemode is None and s.ysizemode is None for s in figure.layout.shapes)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("size", "most"), [(1, 20_000), (300, 700_000), (1000, 1_000_000), (2048, 1_000_000)])
def test_a_long_prompt_sends_little(size, most, log):
    figure = drawn(size, log=log, token=size - 1)
    assert sent(figure) < most * (1 + log)  # the hover's weights travel beside the logarithms
    shown = figure.data[0].customdata if log else figure.data[0].z
    assert np.nanmax(shown) == causal(size).max()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["weights", "scores", "masked"])
@pytest.mark.parametrize("size", [1, 5, 70])
def test_plotly_accepts_every_map(size, kind, dark):
    checked(drawn(size, token=0, kind=kind, dark=dark, log=True))


def test_the_caption_of_a_pooled_map_says_so():
    assert any("3 × 3" in note for note in heatmap.notes(drawn(1000)))


# --- bars ---


def bars(**more) -> go.Figure:
    columns = [("weight", [0.9, 0.1], "attention"), ("adds", [0.5, 2.0], "value")]
    return looks(["a", MARKUP], [3, 0], columns, limits=[1.0, None], rows=2, alt="x", **more)


def test_a_row_of_bars_is_one_token_with_its_position():
    figure = bars()
    assert [list(bar.x) for bar in figure.data] == [[0.9, 0.1], [0.5, 2.0]]
    assert [list(bar.customdata) for bar in figure.data] == [[3, 0], [3, 0]]
    assert figure.layout.yaxis.ticktext[0] == "a 3"
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # the largest at the top
    assert figure.data[0].marker.color == theme.kind_colour("attention", False)
    assert figure.data[1].marker.color == theme.kind_colour("value", False)
    checked(figure)


def test_weights_are_drawn_against_1_and_lengths_against_the_longest():
    figure = bars()
    assert figure.layout.xaxis.range[1] == 1.5
    assert figure.layout.xaxis2.range[1] == 3.0


def test_a_bar_of_nothing_has_room():
    figure = looks(["a"], [0], [("adds", [0.0], "value")], alt="x")
    assert figure.layout.xaxis.range[1] > 0


def test_the_height_is_that_of_the_rows_there_is_room_for():
    one = looks(["a"], [0], [("w", [1.0], "attention")], alt="x", rows=8)
    assert (
        one.layout.height == looks(list("abcdefgh"), range(8), [("w", [1.0] * 8, "attention")], alt="x").layout.height
    )


def test_markup_in_words_cannot_act():
    assert "<b>B" not in bars().to_json()
    assert "javascript" not in json.dumps([bars(prefixes=["Q0", "Q1"]).layout.yaxis.ticktext])


# --- tiles ---

SMALL = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 15
HIDDEN = ~np.tri(3, dtype=bool)


def tiles(maps=SMALL, hidden=HIDDEN, plan: Plan | None = None, **more) -> go.Figure:
    n = len(maps)
    given = {"hovers": [f"h{i}" for i in range(n)], "alt": "x"}
    return head_tiles(maps, hidden, plan or row_of(n), **given | more)


def image(figure: go.Figure) -> Image.Image:
    data = base64.b64decode(figure.data[0].source.removeprefix("data:image/png;base64,"))
    return Image.open(io.BytesIO(data))


def cells(figure: go.Figure, i: int) -> np.ndarray:
    """The bytes of one tile, cell by cell; every pixel of a cell is the same."""
    drawn, whole = figure.data[0], np.array(image(figure))
    down, across = round(1 / drawn.dy), round(1 / drawn.dx)
    row, col = (round((places[i] - 0.5) * n) for places, n in ((figure.data[1].y, down), (figure.data[1].x, across)))
    part = whole[row : row + down, col : col + across]
    h, w = (n // side for n, side in zip(part.shape, figure.layout.meta["side"], strict=True))
    found = part[::h, ::w]
    assert_array_equal(part, found.repeat(h, axis=0).repeat(w, axis=1))
    return found


def test_each_tile_stands_where_the_plan_puts_it_and_gaps_are_gaps():
    figure = tiles(plan=Plan([(1, 0), (0, 1)], [0.1, 0.1], [0.1, 0.1], 50))
    expected = np.where(HIDDEN, 1, 2 + np.rint(SMALL / 255 * 253))
    assert_array_equal(cells(figure, 0), expected[0])
    assert_array_equal(cells(figure, 1), expected[1])
    whole = np.array(image(figure))
    assert np.count_nonzero(whole) == 2 * round(1 / figure.data[0].dx) ** 2  # all else is gap
    assert (whole[: len(whole) // 2, : len(whole) // 2] == 0).all()  # no tile here


def test_a_tile_is_one_wide_and_stands_within_a_pixel_of_its_frame():
    gaps = [0.07, 0.5, 0.07, 0.07, 0.33]
    figure = tiles(
        np.full((5, 3, 3), 255, np.uint8), np.zeros((3, 3), bool), Plan([(0, i) for i in range(5)], [0.1], gaps, 50)
    )
    drawn, shown = figure.data[0], np.array(image(figure))[-1] > 0
    starts, ends = (np.flatnonzero(np.diff(shown.astype(int), prepend=0, append=0) == way) for way in (1, -1))
    left = drawn.x0 - drawn.dx / 2
    assert_allclose(left + starts * drawn.dx, np.cumsum(gaps) + range(5), atol=drawn.dx)
    assert_allclose((ends - starts) * drawn.dx, 1)


def test_the_colours_are_those_of_the_scale_and_gaps_let_the_page_through():
    for dark in (False, True):
        shown = image(tiles(np.array([[[255, 0]]], np.uint8), np.array([[False, False]]), dark=dark))
        assert shown.info["transparency"] == 0
        colours = np.array(shown.getpalette()).reshape(-1, 3)
        scale = theme.sequential(dark)
        assert [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in colours[[255, 2, 1]]] == [
            scale[-1][1],
            scale[0][1],
            theme.tone(theme.SURFACE, dark),
        ]


def test_a_point_in_the_middle_of_each_tile_answers_clicks():
    figure = tiles(plan=Plan([(0, 0), (0, 1)], [0.1], [0.25, 0.5], 50))
    assert_allclose(figure.data[1].x, [0.75, 2.25])
    assert_allclose(figure.data[1].y, [0.6, 0.6])
    assert list(figure.data[1].hovertext) == ["h0", "h1"]
    assert figure.layout.clickmode == "event+select"


def test_the_chosen_tile_has_the_strong_frame():
    plan = row_of(2)
    whole = tiles(plan=plan)
    plain = len(whole.layout.shapes)
    framed = frame_tile(whole, plan, 1)
    assert len(whole.layout.shapes) == plain
    strong = [s for s in framed.layout.shapes if s.line.color == theme.TEXT[0]]
    assert len(strong) == 1
    assert strong[0].x0 == pytest.approx(1.14)
    assert not [s for s in tiles().layout.shapes if s.line.color == theme.TEXT[0]]


def test_what_is_masked_may_differ_from_tile_to_tile():
    hidden = np.stack([HIDDEN, np.zeros_like(HIDDEN)])
    figure = tiles(hidden=hidden)
    assert (cells(figure, 0)[HIDDEN] == 1).all()
    assert (cells(figure, 1) > 1).all()


def test_log_tiles_follow_the_same_scale_as_one_head():
    maps = np.array([[[255, 26], [3, 0]]], dtype=np.uint8)
    z = cells(tiles(maps, np.zeros((2, 2), bool), log=True), 0)
    expected = 2 + np.rint(np.clip(3 + np.log10(np.maximum(maps[0] / 255, 1e-9)), 0, 3) / 3 * 253)
    assert_array_equal(z, expected)
    assert list(tiles(log=True).data[1].marker.colorbar.ticktext) == log_bar()["ticktext"]
    assert list(tiles().data[1].marker.colorbar.ticktext) == ["0", "1"]


def test_many_tiles_are_pooled_and_their_largest_survives():
    maps = np.zeros((1024, 64, 64), dtype=np.uint8)
    maps[:, 63, 5] = 255
    figure = tiles(maps, np.zeros((64, 64), bool), plan_all(32, 32, 4))
    assert figure.layout.meta["side"] == [16, 16]
    assert all(np.count_nonzero(cells(figure, i) == 255) == 1 for i in range(1024))
    assert sent(figure) < 1_500_000


def test_even_noise_sends_under_a_megabyte():
    maps = np.random.default_rng(0).integers(0, 255, (270, 64, 64), dtype=np.uint8)
    assert sent(tiles(maps, np.zeros((64, 64), bool), plan_all(30, 9, 3))) < 900_000


@pytest.mark.parametrize("n", [1, 9, 270, 1024, 5000])
def test_all_cells_together_stay_within_the_limit(n):
    assert n * side_for(n) ** 2 <= max(CELLS, n * 64)


@pytest.mark.parametrize(
    ("heads", "group"), [(1, 1), (9, 3), (8, 4), (32, 4), (32, 1), (12, 3), (7, 7), (64, 8), (32, 32), (128, 1)]
)
def test_the_heads_of_a_layer_each_have_a_place_and_groups_stay_together(heads, group):
    plan = plan_layer(heads, group)
    across = len(plan.cols)
    assert len(set(plan.places)) == heads
    assert plan.places == [divmod(h, across) for h in range(heads)]
    assert group == 1 or across % group == 0 or group % across == 0
    assert plan.wide * plan.tile <= 620 * 1.15
    assert plan.tall * plan.tile <= 601


@pytest.mark.parametrize(("layers", "heads", "group"), [(1, 1, 1), (30, 9, 3), (4, 8, 4), (32, 32, 4), (80, 64, 8)])
def test_all_layers_and_heads_each_have_a_place(layers, heads, group):
    plan = plan_all(layers, heads, group)
    assert len(set(plan.places)) == layers * heads
    for i, (_, col) in enumerate(plan.places):
        assert col % heads == i % heads  # a head keeps its column in every block
    assert (plan.wide * plan.tile <= 1001) == (plan.tile > 8)


def test_thirty_layers_of_nine_heads_stand_in_two_blocks():
    plan = plan_all(30, 9, 3)
    assert (len(plan.rows), len(plan.cols)) == (15, 18)
    assert plan.places[15 * 9] == (0, 9)
    assert plan.cols[3] > plan.cols[2]  # a group begins


def test_the_header_names_layers_heads_and_groups():
    header = header_all(plan_all(30, 9, 3), 30, 9, 3)
    assert [text for _, _, text in header.rows] == [str(n) for n in range(30)]
    assert [text for _, text in header.cols] == [f"Q{n}" for n in range(9)] * 2
    assert [text for _, _, text in header.groups] == ["KV0", "KV1", "KV2"] * 2
    assert header_all(plan_all(4, 4, 1), 4, 4, 1).groups == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_plotly_accepts_tiles(dark, log):
    plan = plan_all(2, 2, 2)
    maps = np.zeros((4, 3, 3), np.uint8)
    whole = tiles(maps, HIDDEN, plan, header=header_all(plan, 2, 2, 2), log=log, dark=dark)
    checked(frame_tile(whole, plan, 1, dark))
    checked(tiles(titles=["Q0 → KV0", MARKUP], log=log, dark=dark))


def test_titles_are_drawn_letter_for_letter():
    assert "<a href" not in tiles(titles=["a", MARKUP]).to_json()
