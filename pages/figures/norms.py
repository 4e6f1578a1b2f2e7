"""What a norm does: sizes before and after over the tokens, its weight sorted, and how far other norms would differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import figure, plain
from .token_axis import across, counted

MOST = 4096
"""Most channels that are drawn as points: of more, every n-th."""


def sizes_over_tokens(
    before: np.ndarray,
    after: np.ndarray,
    scale: np.ndarray,
    labels: Sequence[str],
    *,
    chosen: int | None = None,
    start: int = 0,
    height: int = 320,
    dark: bool = False,
) -> go.Figure:
    """rms of each token's vector before and after the norm, and the scale between them, [T] each. A log axis.

    start: the position of the first token; chosen: a position.
    """
    places = np.arange(start, start + len(before), dtype=np.int32)
    words = [f"{i} · {plain(text, 40)}" for i, text in enumerate(labels, start=start)]
    mode = "markers" if len(before) <= 60 else "lines"
    lines = (("before", before, "residual"), ("after", after, "norm"), ("scale", scale, "attention"))
    traces = [
        {
            "type": "scatter",
            "mode": mode,
            "x": places,
            "y": np.asarray(values, dtype=np.float32),
            "name": t(f"stream.norm.{name}"),
            "text": words,
            "marker": {"size": 9, "symbol": "diamond-open" if name == "scale" else "circle"},
            "line": {"width": 1.5},
            "hovertemplate": f"<b>%{{y:.4~g}}</b> {t(f'stream.norm.{name}')}<br>%{{text}}<extra></extra>",
        }
        for name, values, _ in lines
    ]
    for trace, (_, _, kind) in zip(traces, lines, strict=True):
        trace["marker"]["color"] = trace["line"]["color"] = theme.kind_colour(kind, dark)
    faint = theme.tone(theme.LINE, dark)
    shapes = []
    if chosen is not None:
        mark = {"color": theme.tone(theme.TEXT, dark), "width": 1, "dash": "dot"}
        shapes.append({"type": "line", "yref": "paper", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "line": mark})
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": shapes,
        "xaxis": {
            **across(labels, start=start),
            "range": [start - 0.5, start + len(labels) - 0.5],
            "title": {"text": t("stream.token")},
        },
        "yaxis": {
            **theme.log_axis(np.concatenate([before, after, scale])),
            "showgrid": True,
            "gridcolor": faint,
            "griddash": "dot",
        },
        "meta": {
            "alt": t(
                "stream.norm.alt",
                low=numbers.short(before.min()),
                high=numbers.short(before.max()),
                after=numbers.short(np.median(after)),
            )
        },
    }
    return figure(traces, layout, dark)


def weight_line(weight: np.ndarray, *, height: int = 320, dark: bool = False) -> go.Figure:
    """The learnt weight of a norm, sorted from its smallest to its largest channel."""
    order = np.argsort(weight, kind="stable")
    colour, faint = theme.kind_colour("norm", dark), theme.tone(theme.LINE, dark)
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": np.arange(weight.size, dtype=np.int32),
        "y": weight[order].astype(np.float32),
        "customdata": order.astype(np.int32),
        "line": {"color": colour, "width": 2},
        "hovertemplate": t("stream.weight.hover") + "<extra></extra>",
    }
    low, high = float(min(weight.min(), 0.0)), float(max(weight.max(), 0.0))
    room = 0.06 * (high - low) or 0.5
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": faint}}],
        "xaxis": {"title": {"text": t("stream.weight.axis")}, **counted(weight.size, room=6)},
        "yaxis": {"title": {"text": t("stream.weight.name")}, "range": [low - (room if low < 0 else 0), high + room]},
        "meta": {"alt": t("stream.weight.alt", low=numbers.short(weight.min()), high=numbers.short(weight.max()))},
    }
    return figure([line], layout, dark)


def difference_points(
    ours: np.ndarray, other: np.ndarray, *, name: str, height: int = 280, dark: bool = False
) -> go.Figure:
    """One point a channel: the norm's result to the right, the other norm's result minus it upwards. [N] each."""
    step = -(-ours.size // MOST)
    at = np.arange(0, ours.size, step)
    difference = other - ours
    end = float(np.abs(difference).max()) or 1.0
    faint = theme.tone(theme.LINE, dark)
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": ours[at].astype(np.float32),
        "y": difference[at].astype(np.float32),
        "text": [str(i) for i in at],
        "marker": {"color": theme.kind_colour("norm", dark), "size": 4, "opacity": 0.7},
        "hovertemplate": t("stream.difference.hover") + "<extra></extra>",
    }
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": faint}}],
        "xaxis": {"title": {"text": t("stream.difference.ours")}, "nticks": 7},
        "yaxis": {"title": {"text": plain(name)}, "range": [-1.08 * end, 1.08 * end], "nticks": 5, "tickformat": "~g"},
        "meta": {
            "alt": t("stream.difference.alt", name=name, n=numbers.exact(ours.size), largest=numbers.short(end)),
            "every": step,
        },
    }
    return figure([points], layout, dark)
