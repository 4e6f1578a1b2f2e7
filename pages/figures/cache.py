"""The KV cache as maps that fill, and how far cached logits are from uncached ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import heatmap, numbers, theme
from .theme import figure, plain, taken
from .token_axis import across


def filling_map(
    rows: np.ndarray,
    filled: int,
    *,
    labels: Sequence[str],
    name: str,
    new: int = 1,
    end: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Positions down, channels to the right: the first `filled` rows are there, those to come are blank.

    rows [S Dh]; labels [S]; new: how many of the filled rows the last pass wrote, which are framed; end: where the
    scale ends, so that it stays while the map fills.
    """
    S, Dh = rows.shape
    to_come = np.zeros((S, Dh), dtype=bool)
    to_come[filled:] = True
    base = heatmap.value_map(
        rows,
        rows=labels,
        row_axis=t("cache.position"),
        col_axis=t("cache.channel"),
        masked=to_come if filled < S else None,
        zmax=end,
        name=name,
        dark=dark,
        height=int(np.clip(96 + 18 + 15 * S, 260, 560)),
    )
    layers, layout = taken(base)
    for layer in layers:
        if layer.get("name") == "masked":
            layer["hovertemplate"] = t("cache.to_come.hover") + "<extra></extra>"
    line = {"color": theme.tone(theme.TEXT, dark), "width": 2}
    frame = {"x0": -0.5, "x1": Dh - 0.5, "y0": filled - new - 0.5, "y1": filled - 0.5, "xref": "x", "yref": "y"}
    layout["shapes"] = [*layout["shapes"], {"type": "rect", "line": line, **frame}]
    alt = t("cache.map.alt", name=name, filled=filled, total=S, channels=Dh)
    layout["meta"] = layout["meta"] | {"masked": 0, "alt": alt}
    return figure(layers, layout)


def cached_differences(
    each: np.ndarray, bound: float, *, labels: Sequence[str], chosen: int | None = None, dark: bool = False
) -> go.Figure:
    """One bar a position: the largest difference of its logits. The line: what rounding may do. each [T]."""
    colour = theme.kind_colour("head", dark)
    quiet = theme.blend(theme.tone(theme.BACKGROUND, dark), colour, 0.45)
    places = np.arange(len(each), dtype=np.int32)
    bars = {
        "type": "bar",
        "x": places,
        "y": each.astype(np.float64),
        "width": 0.62 if len(each) <= 120 else 1.0,
        "marker": {"color": [colour if i == chosen else quiet for i in places], "line": {"width": 0}},
        "customdata": [plain(label, 40) for label in labels],
        "hovertemplate": "<b>%{y:.3~g}</b><br>%{x} · %{customdata}<extra></extra>",
    }
    top = max(float(each.max(initial=0.0)), bound) * 1.12
    limit = theme.kind_colour("mlp", dark)
    line = {"color": limit, "width": 1.5, "dash": "dash"}
    written = {"text": t("cache.bound", value=numbers.short(bound, 2)), "font": {"color": limit, "size": 12}}
    ends = np.linspace(0, max(float(each.max(initial=0.0)), bound), 3)
    layout = {
        "height": 300,
        "margin": {"l": 8, "r": 28, "t": 24, "b": 8},
        "bargap": 0,
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound, "line": line}],
        "annotations": [
            written | {"xref": "paper", "x": 0, "y": bound, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
        ],
        "xaxis": {**across(labels), "range": [-0.5, len(labels) - 0.5], "title": {"text": t("cache.position")}},
        "yaxis": {
            "range": [0, top],
            "tickvals": ends,
            "ticktext": [numbers.short(value, 2) for value in ends],
            "title": {"text": t("cache.difference.axis")},
        },
        "meta": {
            "alt": t(
                "cache.difference.alt",
                n=len(each),
                largest=numbers.short(each.max(initial=0.0)),
                bound=numbers.short(bound),
            )
        },
    }
    return figure([bars], layout, dark)
