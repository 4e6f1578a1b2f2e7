"""How large the residual stream is after each layer."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .token_axis import counted


def stream_size(
    all_tokens: Sequence[float], first_token: Sequence[float], *, dark: bool = False, height: int = 260
) -> go.Figure:
    """Two lines over the layers: rms over all tokens and of the first token. A log axis: outliers are a hundredfold."""
    layers = list(range(len(all_tokens)))
    colours = (theme.kind_colour("residual", dark), theme.tone(theme.ACCENT, dark))
    lines = [
        {
            "type": "scatter",
            "x": layers,
            "y": [float(size) for size in sizes],
            "mode": "lines+markers" if len(layers) < 40 else "lines",
            "name": name,
            "line": {"color": colour, "width": 2},
            "marker": {"size": 5},
            "hovertemplate": f"{t('figures.stream.layer')} %{{x}}<br>%{{y:.4~g}}<extra>{name}</extra>",
        }
        for name, sizes, colour in zip(
            (t("figures.stream.all"), t("figures.stream.first")), (all_tokens, first_token), colours, strict=True
        )
    ]
    low, high = numbers.short(min(all_tokens)), numbers.short(max(all_tokens))
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": {"text": t("figures.stream.layer")}, **counted(len(layers))},
        "yaxis": {"title": {"text": t("figures.stream.rms")}, **theme.log_axis([*all_tokens, *first_token])},
        "meta": {"alt": t("figures.stream.alt", layers=len(layers), low=low, high=high)},
    }
    return theme.figure(lines, layout, dark)
