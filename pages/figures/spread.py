"""How one step's values are spread in every layer: a row a layer, the sizes to the right, far ones still visible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind
from pages.words import t

from . import numbers, theme
from .theme import figure
from .token_axis import counted

_ROW = 13  # px


def spread_map(
    counts: np.ndarray,
    edges: np.ndarray,
    layers: Sequence[int],
    unit: float,
    *,
    kind: Kind,
    name: str,
    chosen: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Counts [L N] of bins with `edges` [N + 1] that are even in asinh(x / unit); layer 0 at the top.

    The colour is the share of a layer's values in a bin, logarithmic from 1 in a hundred thousand: a single far
    value has a colour, and a bin with none has the page's.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    places = np.arcsinh(edges / unit).astype(np.float32)
    z = np.full(shares.shape, np.nan, dtype=np.float32)
    np.log10(shares, out=z, where=shares > 0)
    end = float(max(np.nanmax(z), -1.0)) if (shares > 0).any() else 0.0
    lows, highs = (np.broadcast_to(side, shares.shape) for side in (edges[:-1], edges[1:]))
    scale = theme.sequential(dark, theme.kind_colour(kind, dark))
    scale = [[0.0, scale[1][1]], *([0.15 + 0.85 * place, hue] for place, hue in scale[2:])]
    scale[-1][0] = 1.0
    heat = {
        "type": "heatmap",
        "z": z,
        "x": places,
        "y": np.asarray(layers, dtype=np.int32),
        "zmin": -5.0,
        "zmax": end,
        "colorscale": scale,
        "customdata": np.stack((lows, highs, 100 * shares, counts), axis=-1).astype(np.float32),
        "hoverongaps": False,
        "hovertemplate": t("ranges.spread.hover") + "<extra></extra>",
        "colorbar": {
            "orientation": "h",
            "lenmode": "pixels",
            "len": 240,
            "x": 0,
            "xanchor": "left",
            "xpad": 26,
            "y": 1,
            "yanchor": "bottom",
            "ypad": 4,
            "tickangle": 0,
            "tickvals": [-5, -3, -1],
            "ticktext": ["0.001 %", "0.1 %", "10 %"],
        },
    }
    ticks = value_ticks(float(edges[-1]), unit)
    shapes = [_zero(dark)]
    if chosen is not None and chosen in layers:
        shapes.append(_row(chosen, places, dark))
    down = counted(len(layers), start=layers[0])
    reach = [edges[np.nonzero(row)[0].max() + 1] if row.any() else 0.0 for row in counts]
    layout = {
        "height": max(240, _ROW * len(layers) + 110),
        "margin": {"l": 8, "r": 12, "t": 50, "b": 8},
        "shapes": shapes,
        "xaxis": {
            "title": {"text": t("ranges.spread.values")},
            "range": [float(places[0]), float(places[-1])],
            "tickvals": np.arcsinh(np.array(ticks) / unit).tolist(),
            "ticktext": [_round(value) for value in ticks],
            "tickangle": 0,
        },
        "yaxis": {
            "title": {"text": t("ranges.layer")},
            **down,
            "range": down["range"][::-1],
        },
        "meta": {"alt": t("ranges.spread.alt", name=name, layers=len(layers), high=numbers.short(max(reach)))},
    }
    return figure([heat], layout, dark)


_LETTER = 6.6  # px of a letter beside the axis


def value_ticks(end: float, unit: float) -> list[float]:
    """Zero and powers of ten on both sides, from about the unit up to the end, as many as a telephone has room for."""
    scale = theme.PHONE / 2 / float(np.arcsinh(end / unit))  # px

    def place(value: float) -> float:
        return scale * float(np.arcsinh(value / unit))

    def half(value: float) -> float:
        return _LETTER * len(_round(-value)) / 2

    def apart(chosen: list[float]) -> bool:
        return all(place(b) - half(b) >= place(a) + half(a) + 6 for a, b in pairwise(chosen))

    first, last = int(np.ceil(np.log10(unit) - 0.3)), int(np.floor(np.log10(end)))
    powers = [10.0**n for n in range(first, last + 1)]
    powers = [power for power in powers if place(power) >= half(power) + 10] or [end]  # "0" and a gap before them
    chosen = next(filter(apart, (powers[::every] for every in range(1, len(powers) + 1))))
    return [*(-power for power in reversed(chosen)), 0.0, *chosen]


def _round(value: float) -> str:
    """A power of ten, or another end, as short as it can be said: 100, -10k, 0.4."""
    size, unit = next((pair for pair in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= pair[0]), (1.0, ""))
    return f"{value / size:g}{unit}"


def _zero(dark: bool) -> dict:
    line = {"color": theme.tone(theme.LINE, dark), "width": 1}
    return {"type": "line", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "line": line}


def _row(layer: int, places: np.ndarray, dark: bool) -> dict:
    line = {"color": theme.tone(theme.TEXT, dark), "width": 1}
    ends = {"x0": float(places[0]), "x1": float(places[-1]), "y0": layer - 0.5, "y1": layer + 0.5}
    return {"type": "rect", "xref": "x", "yref": "y", "line": line, **ends}
