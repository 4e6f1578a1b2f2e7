"""The pictures of what a model costs."""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.testing import assert_allclose

from llama_core.sizes import SHAPES, parameters
from pages.figures import numbers
from pages.figures.costs import Growth, growth, parameter_areas, short_context


def lines():
    return [Growth("a <b>", [16, 32, 64], "key", strong=True), Growth("b", [5, 5, 5], "mlp", dash=True)]


@pytest.mark.parametrize("dark", [False, True])
def test_plotly_finds_nothing_to_object_to(dark):
    for fig in (
        parameter_areas(parameters(SHAPES["Llama 3 8B"]), dark=dark),
        growth([16, 32, 64], lines(), at=32, written=numbers.bytes_, level=("w", 40.0), name="n", dark=dark),
    ):
        assert go.Figure(fig.to_dict()).to_dict() == fig.to_dict()
        assert len(fig.layout.meta["alt"]) > 10


def test_areas_are_exact_counts_and_groups_are_their_sums():
    counts = parameters(SHAPES["Llama 3 8B"])
    (areas,) = parameter_areas(counts).data
    found = dict(zip(areas.ids, np.asarray(areas.values).astype(int).tolist(), strict=True))
    assert {part: found[part] for part in counts} == counts
    assert found["attention"] == counts["q"] + counts["k"] + counts["v"] + counts["o"]
    assert found["mlp"] == counts["gate"] + counts["up"] + counts["down"]
    roots = [n for n, parent in zip(areas.values, areas.parents, strict=True) if not parent]
    assert sum(roots) == 8_030_261_248
    assert any(text.startswith("525,336,576 · 6.5 %") for text in areas.customdata)


def _light(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(part, 16) / 255 for part in re.findall("..", colour.removeprefix("#"))]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("dark", [False, True])
def test_what_stands_on_an_area_can_be_read(dark):
    """WCAG 2.2 asks for a contrast of 4.5 (criterion 1.4.3)."""
    (areas,) = parameter_areas(parameters(SHAPES["Llama 3 8B"]), dark=dark).data
    for part, area, text in zip(areas.ids, areas.marker.colors, areas.textfont.color, strict=True):
        low, high = sorted((_light(area), _light(text)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, part


def test_a_tied_head_has_no_area():
    (areas,) = parameter_areas(parameters(SHAPES["Llama 3.2 1B"])).data
    assert "head" not in areas.ids
    assert sum(n for n, parent in zip(areas.values, areas.parents, strict=True) if not parent) == 1_235_814_400


def test_growth_draws_what_it_is_given_on_two_log_axes():
    fig = growth([16, 32, 64], lines(), at=32, written=numbers.bytes_, level=("weights", 40.0), name="n")
    first, second = fig.data
    assert_allclose(first.x, [16, 32, 64])
    assert_allclose(first.y, [16, 32, 64])
    assert first.customdata[2] == "64 B (64)"
    assert first.line.width > second.line.width
    assert (fig.layout.xaxis.type, fig.layout.yaxis.type) == ("log", "log")
    chosen, level = fig.layout.shapes
    assert (chosen.x0, chosen.x1, level.y0) == (32, 32, 40.0)
    assert fig.layout.annotations[0].y == pytest.approx(np.log10(40))


def test_contexts_are_said_in_powers_of_two():
    assert [short_context(n) for n in (16, 512, 1024, 131072, 1 << 20)] == ["16", "512", "1k", "128k", "1M"]
