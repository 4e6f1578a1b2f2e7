"""Logarithmic maps, lines over layers, neurons as points, norms and spreads, on arrays small enough to check by eye."""

from __future__ import annotations

import itertools
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from pages.figures.attribution import logit_parts
from pages.figures.effect import sweep_bars
from pages.figures.gate import MOST, chosen_neurons, curve_lines, gate_scatter
from pages.figures.layer_lines import Line, layer_lines
from pages.figures.log_map import log_map
from pages.figures.norms import difference_points, sizes_over_tokens, weight_line
from pages.figures.spread import spread_map, value_ticks
from pages.figures.stream import stream_size
from pages.figures.theme import log_axis
from pages.figures.token_axis import counted

SIZES = [[0.0, 1.0, 10.0], [100.0, 1000.0, 1.0]]


def checked(figure: go.Figure) -> go.Figure:
    """The same figure, every property looked at by plotly."""
    return go.Figure(figure.to_plotly_json())


def sizes(values=SIZES, **more) -> go.Figure:
    shape = np.shape(values)
    given = {"rows": [f"r{i}" for i in range(shape[0])], "row_axis": "step", "col_axis": "layer"} | more
    return log_map(np.array(values), **given)


# --- the logarithmic map ---


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_knows_every_property(dark):
    x = np.linspace(-3, 3, 7)
    lines = [Line("a", [1, 2], "mlp"), Line("b", [3, 1], "residual", "dot")]
    checked(sizes(pick=True, column=1, chosen=(0, 2), numbered=False, dark=dark))
    checked(layer_lines(lines, name="y", layer_axis="layer", alt="two", layers=3, chosen=1, zero=True, dark=dark))
    checked(layer_lines(lines, name="y", layer_axis="layer", alt="two", layers=3, log=True, dark=dark))
    checked(gate_scatter(x, x, x, x < 0, [0, 6], (x, x), curve_name="SiLU", dark=dark))
    checked(curve_lines(x, {"SiLU": x, "ReLU": x}, "ReLU", dark=dark))
    checked(sizes_over_tokens(x + 4, x + 4, x + 4, ["a"] * 7, chosen=2, dark=dark))
    checked(weight_line(x, dark=dark))
    checked(difference_points(x, x + 1, name="d", dark=dark))
    checked(spread_map(np.eye(2, 4), np.arange(-2.0, 3.0), [0, 1], 1.0, kind="mlp", name="gate", chosen=1, dark=dark))


def test_colours_are_by_the_logarithm_and_the_hover_keeps_the_size():
    heat = sizes().data[0]
    z = np.asarray(heat.z)
    assert z[0, 1] == pytest.approx(0)
    assert z[1].tolist() == pytest.approx([2, 3, 0])
    assert z[0, 0] == pytest.approx(heat.zmin)
    assert heat.zmin < 0
    assert heat.zmax == pytest.approx(3)
    assert np.asarray(heat.customdata).tolist() == SIZES
    assert "customdata" in heat.hovertemplate
    assert heat.colorbar.ticktext[0] == "1.00"
    assert heat.colorbar.ticktext[-1] == "1000"


def test_a_hundredfold_outlier_leaves_the_others_apart():
    z = np.asarray(sizes([[946.0, 5.0, 7.0]]).data[0].z)[0]
    span = z[0] - np.log10(5.0)
    assert (z[2] - z[1]) / span == pytest.approx(np.log10(7 / 5) / np.log10(946 / 5), rel=1e-4)


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[3.0]], [[2.0, 2.0]], [[np.nan, 1.0]], [[np.inf, 1.0]], [[np.nan]]])
def test_maps_of_nothing_of_one_size_and_of_broken_cells(values):
    figure = checked(sizes(values, pick=True))
    heat = figure.data[0]
    assert heat.zmin < heat.zmax
    assert figure.layout.meta["flagged"] == sum(not np.isfinite(v) for v in values[0])


def test_cells_are_picked_where_there_are_few_enough():
    few = sizes(pick=True)
    assert few.layout.meta["pickable"]
    points = next(layer for layer in few.data if layer.type == "scatter")
    assert list(zip(points.x, points.y, strict=True))[4] == (1, 1)
    many = sizes(np.ones((30, 300)), pick=True)
    assert not many.layout.meta["pickable"]
    assert many.layout.dragmode != "select"
    assert not sizes().layout.meta["pickable"]


def test_names_stand_without_numbers_and_a_column_is_framed():
    figure = sizes(numbered=False, column=2, cols=["a", "b", "<b>c</b>"])
    assert list(figure.layout.yaxis.ticktext) == list(figure.layout.yaxis2.ticktext) == ["r0", "r1"]
    frame = figure.layout.shapes[-1]
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (1.5, 2.5, -0.5, 1.5)
    assert not any("<b>" in text.replace("<br>", "") for text in figure.layout.xaxis.ticktext)


def test_a_map_of_a_long_prompt_is_pooled():
    figure = sizes(np.random.default_rng(0).random((33, 2048)) + 1)
    assert np.asarray(figure.data[0].z).shape == (33, 1024)
    assert len(figure.to_json()) < 1_000_000


# --- lines over layers ---


def test_layers_that_are_not_there_yet_keep_their_room():
    figure = layer_lines([Line("a", [1, 2], "mlp")], name="y", layer_axis="layer", alt="x", layers=30)
    assert list(figure.layout.xaxis.range) == [-0.5, 29.5]
    assert np.asarray(figure.data[0].y).tolist() == [1, 2]
    assert layer_lines([Line("a", [1], "mlp")], name="y", layer_axis="l", alt="x", layers=1, log=True).layout.yaxis.type


def over_layers(L):
    """(figure, its axis of layers) of every kind that has one."""
    ones = np.ones(L)
    lines = {"name": "y", "layer_axis": "layer", "alt": "x", "layers": L}
    counts, edges = np.ones((L, 4)), np.arange(-2.0, 3.0)
    return {
        "lines": layer_lines([Line("a", ones, "mlp")], **lines).layout.xaxis,
        "lines, logarithmic": layer_lines([Line("a", ones, "mlp")], log=True, **lines).layout.xaxis,
        "stream": stream_size(ones, ones).layout.xaxis,
        "spread": spread_map(counts, edges, range(L), 1.0, kind="mlp", name="gate").layout.yaxis,
        "sweep": sweep_bars(ones, name="y", kind="mlp", chosen=0).layout.xaxis,
        "map, across": sizes(np.ones((3, L))).layout.xaxis,
        "map, down": sizes(np.ones((L, 3)), row_axis="layer", rows=[""] * L).layout.yaxis,
    }


@pytest.mark.parametrize("L", [1, 4, 30, 80])
def test_an_axis_of_layers_counts_whole_layers(L):
    for name, axis in over_layers(L).items():
        assert sorted(axis.range) == [-0.5, L - 0.5], name
        if axis.tickvals is None:  # plotly's own ticks: whole as long as there is room for fewer than layers
            assert 0 < axis.nticks < L, name
            continue
        ticks = list(axis.tickvals)
        assert ticks[0] == 0, name
        assert ticks == sorted({int(tick) for tick in ticks}), name
        assert ticks[-1] < L, name
        assert min(L, 4) <= len(ticks) <= 20, name
    parts = logit_parts(0.0, np.ones(L), np.ones(L), name="a").layout.xaxis
    assert list(parts.ticktext[1:]) == [str(tick) for tick in parts.tickvals[1:]]  # the embedding stands before layer 0


def test_a_window_of_layers_keeps_their_numbers():
    assert counted(4, start=2) == {"range": [1.5, 5.5], "tickvals": [2, 3, 4, 5], "tickformat": "d"}
    assert counted(80, start=7)["tickvals"][:3] == [10, 15, 20]


@pytest.mark.parametrize("low", [3e-6, 0.0151, 0.9999, 1.0, 2.01, 5.2, 70.0])
@pytest.mark.parametrize("times", [1, 1.001, 1.5, 3, 4.9, 20, 300, 1e4, 1e9])
def test_a_logarithmic_axis_has_two_to_seven_numbers_and_room_for_all_values(low, times):
    axis = log_axis([low, np.nan, 0.0, -1.0, np.inf, low * times])
    first, last = axis["range"]
    assert first < np.log10(low) <= np.log10(low * times) < last
    assert 2 <= len(axis["tickvals"]) <= 7
    assert all(first <= np.log10(tick) <= last for tick in axis["tickvals"])
    assert [float(text) for text in axis["ticktext"]] == pytest.approx(axis["tickvals"])


def test_the_numbers_of_a_logarithmic_axis_are_1_2_5_then_powers():
    assert log_axis([0.02, 0.5])["ticktext"] == ["0.02", "0.05", "0.1", "0.2", "0.5"]
    assert log_axis([1, 100_000])["ticktext"] == ["1", "10", "100", "1000", "10000", "100000"]
    assert len(log_axis([])["tickvals"]) >= 2


# --- neurons ---


def neurons(gate, up, quiet=None, labelled=(), **more) -> go.Figure:
    gate, up = np.array(gate, dtype=float), np.array(up, dtype=float)
    quiet = np.zeros(gate.size, dtype=bool) if quiet is None else np.array(quiet)
    x = np.linspace(-9, 9, 19)
    return gate_scatter(gate, up, gate * up, quiet, labelled, (x, np.maximum(x, 0)), curve_name="ReLU", **more)


def test_each_neuron_is_in_the_group_of_its_gate():
    figure = neurons([-1, 2, -3, 0.5], [1, 1, -1, 2], quiet=[True, False, False, False])
    groups = [np.asarray(points.customdata)[:, 0].tolist() for points in figure.data[:3]]
    assert groups == [[0], [2], [1, 3]]
    assert [points.name.split()[-1] for points in figure.data[:3]] == ["1", "1", "2"]
    assert np.asarray(figure.data[2].customdata)[0].tolist() == [1, 2, 1, 2]
    assert np.asarray(figure.data[2].x).tolist() == [2, 0.5]


def test_named_neurons_are_named_and_stand_on_the_curve():
    figure = neurons([-1, 2, 3], [1, 1, 1], labelled=[2, 0])
    assert [note.text for note in figure.layout.annotations] == ["2", "0"]
    dots = figure.data[-1]
    assert np.asarray(dots.x).tolist() == [3, -1]
    assert np.asarray(dots.y).tolist() == pytest.approx([3, 0])


def test_names_of_neighbours_do_not_cover_each_other():
    figure = neurons([1.0, 1.001, 1.002, 2], [1.0, 1.001, 1.0, -1], labelled=[0, 1, 2])
    places = [(note.xanchor, note.yshift) for note in figure.layout.annotations]
    assert len(set(places)) == 3


@pytest.mark.parametrize("width", [700, 290])
def test_names_of_neurons_cover_no_other_on_a_wide_page_or_a_telephone(width):
    """Eight in two clusters, as a trained model's loudest are; a letter of the 12 px font is 7.2 px wide."""
    gate = np.array([0.90, 1.00, 0.84, 0.80, 0.74, 0.81, 0.72, 0.66, -1.1])
    up = np.array([-0.98, -0.62, 0.80, -0.65, -0.73, 0.68, 0.70, -1.00, 1.2])
    figure = neurons(gate, up, labelled=range(8))
    (left, right), (low, high) = figure.layout.xaxis.range, figure.layout.yaxis.range
    boxes = []
    for note in figure.layout.annotations:
        x = (note.x - left) / (right - left) * width + note.xshift
        y = (note.y - low) / (high - low) * 340 + note.yshift
        boxes.append((x - 7.2 * len(note.text) * (note.xanchor == "right"), y, 7.2 * len(note.text)))
    for one, other in itertools.combinations(boxes, 2):
        apart = one[0] >= other[0] + other[2] or other[0] >= one[0] + one[2] or abs(one[1] - other[1]) >= 12
        assert apart, (one, other)


def test_one_far_neuron_does_not_press_the_others_together():
    gate = np.append(np.linspace(-1, 1, 99), 300)
    figure = neurons(gate, gate, labelled=[99])
    end = figure.layout.xaxis.range[1]
    assert end < 6
    assert figure.layout.meta["edge"] == 1
    far = figure.data[2]
    assert max(np.asarray(far.x)) < end
    assert np.asarray(far.customdata)[-1, 1] == 300
    assert far.marker.symbol[-1] == "diamond-open"


def test_of_many_neurons_all_loud_ones_are_drawn():
    product = np.random.default_rng(0).normal(size=14_336)
    shown = chosen_neurons(np.abs(product))
    assert shown.size <= MOST + 1
    assert set(np.argsort(-np.abs(product))[: MOST // 2]) <= set(shown.tolist())
    assert len(set(shown.tolist())) == shown.size
    assert chosen_neurons(np.ones(5)).tolist() == [0, 1, 2, 3, 4]


def test_the_models_own_curve_is_solid():
    x = np.linspace(-1, 1, 3)
    lines = curve_lines(x, {"SiLU": x, "ReLU": x, "GELU": x}, "GELU").data
    assert [line.line.dash for line in lines] == ["dash", "dash", "solid"]


# --- norms ---


def test_the_weight_is_sorted_and_keeps_its_channels():
    line = weight_line(np.array([3.0, -1.0, 2.0])).data[0]
    assert np.asarray(line.y).tolist() == [-1, 2, 3]
    assert np.asarray(line.customdata).tolist() == [1, 2, 0]


def test_differences_are_the_others_minus_ours():
    figure = difference_points(np.array([1.0, 2.0]), np.array([1.5, 1.0]), name="d")
    assert np.asarray(figure.data[0].y).tolist() == [0.5, -1]
    assert figure.layout.meta["every"] == 1
    many = difference_points(np.zeros(8192), np.zeros(8192), name="d")
    assert len(many.data[0].x) == 4096
    assert many.layout.meta["every"] == 2


# --- spreads ---


def test_a_single_far_value_has_a_colour_and_an_empty_bin_has_none():
    counts = np.array([[0, 99_999, 0, 1], [50, 50, 0, 0]])
    figure = spread_map(counts, np.array([-2.0, 0.0, 1.0, 2.0, 300.0]), [0, 1], 1.0, kind="mlp", name="gate")
    z = np.asarray(figure.data[0].z)
    assert z[0, 1] == pytest.approx(np.log10(0.99999), abs=1e-6)
    assert z[0, 3] == pytest.approx(-5)
    assert np.isnan(z[0, [0, 2]]).all()
    assert z[1, 0] == pytest.approx(np.log10(0.5))
    assert figure.data[0].zmin == -5
    assert np.asarray(figure.data[0].x).tolist() == pytest.approx(np.arcsinh([-2, 0, 1, 2, 300]).tolist())
    assert "300" in figure.layout.meta["alt"]


def test_a_bin_says_its_ends_its_share_and_its_count():
    counts = np.array([[0, 3, 1], [0, 0, 0]])
    heat = spread_map(counts, np.array([-1.0, 0.0, 0.5, 9.0]), [0, 1], 1.0, kind="mlp", name="gate").data[0]
    assert np.asarray(heat.customdata)[0].tolist() == [[-1, 0, 0, 0], [0, 0.5, 75, 3], [0.5, 9, 25, 1]]
    said = re.findall(r"%\{customdata\[(\d)\]", heat.hovertemplate)
    assert said == ["0", "1", "2", "3"]
    assert np.asarray(heat.customdata).shape == (*np.asarray(heat.z).shape, 4)


@pytest.mark.parametrize(
    ("end", "unit", "ticks"),
    [
        (1000.0, 1.0, [-1000, -100, -10, -1, 0, 1, 10, 100, 1000]),
        (0.4, 0.3, [-0.4, 0, 0.4]),
        (5e6, 1.0, [-1e5, -1e3, -10, 0, 10, 1e3, 1e5]),
        (24600.0, 1.84, [-1e4, -1e3, -100, -10, 0, 10, 100, 1e3, 1e4]),
        (1.0, 3.65e-5, [-0.1, -1e-3, 0, 1e-3, 0.1]),  # weights of 698 tokens: -0.0001 and 0.0001 ran into each other
    ],
)
def test_ticks_of_values_are_powers_of_ten(end, unit, ticks):
    assert value_ticks(end, unit) == ticks
