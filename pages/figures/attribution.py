"""One logit as the sum of what every part of the model added to it."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import figure


def logit_parts(
    embedding: float, attention: np.ndarray, mlp: np.ndarray, *, name: str, dark: bool = False, height: int = 340
) -> go.Figure:
    """Bars: the embedding (at -1), then attention and MLP of each layer; a line: their sum so far, up to the logit.

    attention, mlp: [L]. name: whose logit, for the alt text.
    """
    L = len(attention)
    layers = np.arange(L)
    places = np.concatenate([[-1.0], np.stack([layers, layers + 0.5], axis=1).ravel()])  # in the order of the pass
    steps = np.concatenate([[embedding], np.stack([attention, mlp], axis=1).ravel()])
    sums = np.cumsum(steps)
    ink = theme.tone(theme.TEXT, dark)
    parts = [
        ("residual", t("next.parts.embedding"), np.array([-1.0]), np.array([embedding])),
        ("attention", t("next.parts.attention"), layers - 0.21, attention),
        ("mlp", t("next.parts.mlp"), layers + 0.21, mlp),
    ]
    bars = [
        {
            "type": "bar",
            "x": x.astype(np.float32),
            "y": y.astype(np.float32),
            "width": 0.42 if kind != "residual" else 0.6,
            "name": words,
            "marker": {"color": theme.kind_colour(kind, dark), "line": {"width": 0}},
            "customdata": [words if kind == "residual" else t("next.parts.of", layer=i, part=words) for i in layers]
            if kind != "residual"
            else [words],
            "hovertemplate": "<b>%{y:+.4~g}</b><br>%{customdata}<extra></extra>",
        }
        for kind, words, x, y in parts
    ]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": places.astype(np.float32),
        "y": sums.astype(np.float32),
        "name": t("next.parts.sum"),
        "line": {"color": ink, "width": 1.5, "shape": "hv"},
        "hoverinfo": "skip",
    }
    end = {
        "text": numbers.short(sums[-1]),
        "x": 1,
        "xref": "paper",
        "xanchor": "left",
        "xshift": 6,
        "y": float(sums[-1]),
        "showarrow": False,
        "font": {"family": theme.MONO, "size": 12, "color": ink},
    }
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 60, "t": 34, "b": 8},
        "barmode": "overlay",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "annotations": [end],
        "xaxis": {
            "title": {"text": t("next.parts.layer")},
            "range": [-1.6, L - 0.3],
            "tickvals": [-1, *_every(L)],
            "ticktext": [t("next.parts.embed"), *map(str, _every(L))],
        },
        "yaxis": {
            "title": {"text": t("next.parts.axis")},
            "zeroline": True,
            "zerolinecolor": theme.tone(theme.LINE, dark),
        },
        "meta": {"alt": t("next.parts.alt", name=name, n=len(steps), total=numbers.short(sums[-1]))},
    }
    return figure([*bars, line], layout, dark)


def _every(layers: int) -> list[int]:
    step = 1 if layers <= 16 else 2 if layers <= 32 else 5 if layers <= 80 else 10
    return list(range(0, layers, step))
