"""The most likely next tokens, as bars with their probabilities beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import empty, figure, plain

_BAR = 26  # px a row


def next_tokens(
    labels: Sequence[str],
    probabilities: np.ndarray,
    *,
    dark: bool = False,
    top: int = 10,
    height: int | None = None,
) -> go.Figure:
    """Horizontal bars, the most likely at the top, as they are handed in: labels[i] has probabilities[i].

    Two different tokens may have the same text: bars stand at 0, 1, 2 …, texts are only tick texts.
    """
    p = np.asarray(probabilities, dtype=np.float32)
    if p.ndim != 1 or len(labels) != p.size:
        raise ValueError(f"{len(labels)} labels for probabilities of shape {p.shape}: one label each is needed.")
    order = np.argsort(-p, kind="stable")[:top]
    height = height or _BAR * max(len(order), 1) + 16
    if not order.size:
        return empty(t("figures.next.none"), dark=dark, height=160)
    shown = p[order]
    texts = [numbers.percent(v) for v in shown]
    colour, page = theme.kind_colour("head", dark), theme.tone(theme.BACKGROUND, dark)
    places = np.arange(len(order), dtype=np.int32)
    bars = {
        "type": "bar",
        "x": shown,
        "y": places,
        "orientation": "h",
        "width": 0.62,
        "marker": {"color": [colour, *[theme.blend(page, colour, 0.45)] * (len(places) - 1)], "line": {"width": 0}},
        "text": texts,
        "textposition": "outside",
        "textfont": {"family": theme.MONO, "size": 12, "color": theme.tone(theme.TEXT, dark)},
        "cliponaxis": False,
        "customdata": [plain(labels[i], 60) for i in order],
        "hovertemplate": "<b>%{x:.4~g}</b><br>%{customdata}<extra></extra>",
    }
    said = ", ".join(f"{labels[i]!s} {text}" for i, text in zip(order[:3], texts, strict=False))
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 64, "t": 8, "b": 8},
        "xaxis": {"visible": False, "range": [0, max(float(shown.max()), 1e-9)]},
        "yaxis": {
            "range": [len(order) - 0.5, -0.5],
            "tickvals": places,
            "ticktext": [plain(labels[i], 20) for i in order],
            "tickfont": {"family": theme.MONO, "size": 13, "color": theme.tone(theme.TEXT, dark)},
        },
        "meta": {"alt": t("figures.next.alt", tokens=said)},
    }
    return figure([bars], layout, dark)
