"""What an edit did, as figures: blank where nothing moved, pairs of bars, sweeps."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest
from hovers import said_at

from pages.figures import theme
from pages.figures.effect import before_after, cone_map, sweep_bars, sweep_map


def cone(shares, frames=(), tokens=None, chosen=0, dark=False):
    tokens = [f"t{i}" for i in range(np.shape(shares)[1])] if tokens is None else tokens
    return cone_map(np.asarray(shares, dtype=float), tokens=tokens, frames=frames, chosen=chosen, dark=dark)


def checked(figure: go.Figure) -> go.Figure:
    """The same, after plotly's own check of every property, which figures skip when they are made."""
    go.Figure(figure.to_plotly_json())
    return figure


@pytest.mark.parametrize("dark", [False, True])
def test_a_zero_has_the_colour_of_the_page_and_the_smallest_change_has_not(dark):
    figure = checked(cone([[0, 0, 0], [0, 1e-7, 0], [0, 0.01, 1.0]], dark=dark))
    heat = figure.data[0]
    assert heat.colorscale[0][1] == theme.tone(theme.BACKGROUND, dark)
    z = np.array(heat.z)
    assert (z[[0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 2, 0]] == heat.zmin).all()
    assert z[1, 1] > heat.zmin + 0.05 * (heat.zmax - heat.zmin)
    assert z[1, 1] < z[2, 1] < z[2, 2] == heat.zmax
    assert np.array(heat.customdata)[0, 0] == 0


def test_what_was_edited_has_a_frame_and_the_chosen_token_another():
    figure = checked(cone(np.zeros((4, 6)), frames=[(2, 1, 3)], chosen=5))
    dotted = [(s.x0, s.x1, s.y0, s.y1) for s in figure.layout.shapes if s.line.dash == "dot"]
    assert dotted == [(0.5, 3.5, 1.5, 2.5)]
    assert (4.5, 5.5) in [(s.x0, s.x1) for s in figure.layout.shapes if s.line.dash is None]


def test_what_is_not_finite_is_marked():
    figure = checked(cone([[np.inf, 0.5], [0.0, 0.1]]))
    assert figure.layout.meta["flagged"] == 1
    assert "3 cells" in figure.layout.meta["alt"]


def test_large_maps_offer_no_clicks_and_keep_their_largest_cell():
    shares = np.zeros((30, 700))
    shares[29, 633] = 7
    figure = checked(cone(shares))
    assert not figure.layout.meta["pickable"]
    assert np.nanmax(np.array(figure.data[0].customdata)) == 7
    assert checked(cone(np.ones((30, 130)))).layout.meta["pickable"]


def test_numbers_of_the_legend_do_not_meet():
    bar = cone([[0.00606, 0.0938], [0, 0]]).data[0].colorbar
    assert list(bar.ticktext) == ["0.00606", "0.0938"]


def test_pairs_of_bars_keep_their_order_and_texts_cannot_act():
    figure = checked(before_after(["<b>x</b>", "y", "y"], [0.5, 0.25, 0.0], [0.1, 0.25, 0.7]))
    before, after = figure.data
    assert list(before.x) == pytest.approx([0.5, 0.25, 0.0])
    assert list(after.x) == pytest.approx([0.1, 0.25, 0.7])
    assert (np.array(before.y) < np.array(after.y)).all()
    assert figure.layout.yaxis.ticktext[0] == "&lt;b&gt;x&lt;/b&gt;"
    assert figure.layout.xaxis.range[1] > max(after.x)  # a bar over the edge would lose its number


def test_a_sweep_of_heads_is_a_signed_map_whose_cells_answer():
    values = np.array([[0.0, -3.0], [1.0, 0.5]])
    figure = checked(sweep_map(values, name="Δ logit of <x>", chosen=(0, 1)))
    heat = figure.data[0]
    assert np.array_equal(heat.z, values)
    assert (heat.zmin, heat.zmax) == (-3, 3)
    assert list(said_at(figure)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "4 parts, from -3.00 to 1.00" in figure.layout.meta["alt"]


def test_heads_that_are_still_to_come_are_blank_and_say_so():
    values = np.array([[0.5, -3.0], [np.nan, np.nan]])
    figure = checked(sweep_map(values, name="Δ", chosen=None, missing=np.array([[False, False], [False, True]])))
    assert np.isnan(figure.data[0].z).tolist() == [[False, False], [True, True]]
    assert said_at(figure) == {(0, 0): "0.5", (0, 1): "-3", (1, 0): "NaN", (1, 1): "not done yet"}
    assert figure.layout.meta["flagged"] == 1
    assert figure.layout.meta["masked"] == 0
    bars = checked(sweep_bars(values[0], name="Δ", kind="mlp", chosen=0, missing=np.array([False, True])))
    assert "1 parts, from 0.5" in bars.layout.meta["alt"]


def test_a_sweep_of_layers_is_bars_in_the_colour_of_the_part():
    figure = checked(sweep_bars(np.array([-1.0, 0.25]), name="Δ logit", kind="mlp", chosen=1))
    (bars,) = figure.data
    assert list(bars.y) == [-1.0, 0.25]
    assert bars.marker.color == theme.kind_colour("mlp", False)
    assert list(bars.marker.line.width) == [0, 2]
