"""How surprised the model was by each token that came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import empty, figure, plain
from .token_axis import across


def loss_bars(
    each: np.ndarray,
    mean: float,
    even: float,
    labels: Sequence[str],
    *,
    chosen: int | None = None,
    dark: bool = False,
    height: int = 340,
    above: bool = False,
) -> go.Figure:
    """One bar a position: -ln p of the token that came after it. Lines: their mean, and ln V.

    each [T - 1], labels [T]. On a short prompt the axis says which token came. above: the lines are named in a legend
    above the bars, else beyond their right ends.
    """
    if not len(each):
        return empty(t("next.loss.none"), dark=dark, height=height)
    colour, page = theme.kind_colour("head", dark), theme.tone(theme.BACKGROUND, dark)
    places = np.arange(len(each), dtype=np.int32)
    quiet = theme.blend(page, colour, 0.4)
    bars = {
        "type": "bar",
        "x": places,
        "y": each.astype(np.float32),
        "width": 0.62 if len(each) <= 120 else 1.0,
        "marker": {"color": [colour if i == chosen else quiet for i in places], "line": {"width": 0}},
        "customdata": [
            [plain(labels[i], 40), plain(labels[i + 1], 40), numbers.percent(np.exp(-each[i]))] for i in places
        ],
        "hovertemplate": t("next.loss.hover") + "<extra></extra>",
        "showlegend": False,
    }
    top = max(float(each[np.isfinite(each)].max(initial=0.0)), even) * 1.06
    mean_colour, even_colour = theme.tone(theme.ACCENT, dark), theme.kind_colour("mlp", dark)
    lines = [(mean, mean_colour, "solid", "next.loss.mean"), (even, even_colour, "dash", "next.loss.even")]
    axis = across(labels, labels[1:])
    names = [t(word, value=numbers.short(y)) for y, _, _, word in lines]
    shapes = [_line(y, hue, dash) | {"name": name} for (y, hue, dash, _), name in zip(lines, names, strict=True)]
    if chosen is not None and len(each) > 60:  # a thin bar is hard to find
        mark = {"color": colour, "width": 1, "dash": "dot"}
        shapes.append({"type": "line", "yref": "paper", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "line": mark})
    if above:
        shapes = [shape | {"showlegend": "name" in shape} for shape in shapes]
        named = {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}}
    else:
        shifts = _apart(mean, even, top, height)
        ends = [(y, hue, name, shift) for (y, hue, _, _), name, shift in zip(lines, names, shifts, strict=True)]
        named = {"annotations": [_name(*end) for end in ends]}
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 12 if above else 96, "t": 12, "b": 8},
        "bargap": 0,
        "shapes": shapes,
        **named,
        "xaxis": {
            **axis,
            "range": [-0.5, len(labels) - 0.5],
            "title": {"text": t("next.loss.position")},
        },
        "yaxis": {"range": [0, top], "title": {"text": t("next.loss.axis")}, "nticks": 6},
        "meta": {
            "came": "tickangle" not in axis,
            "alt": t(
                "next.loss.alt",
                n=len(each),
                mean=numbers.short(mean),
                even=numbers.short(even),
                low=numbers.short(each.min()),
                high=numbers.short(each.max()),
            ),
        },
    }
    return figure([bars], layout, dark)


def _line(y: float, colour: str, dash: str) -> dict:
    line = {"color": colour, "width": 1.5, "dash": dash}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _name(y: float, colour: str, text: str, shift: float) -> dict:
    """The name of a line, beyond its right end."""
    place = {"xref": "paper", "x": 1, "y": y, "xanchor": "left", "yanchor": "middle", "xshift": 6, "yshift": shift}
    return place | {"text": text, "showarrow": False, "font": {"color": colour, "size": 12}}


def _apart(a: float, b: float, top: float, height: int) -> tuple[float, float]:
    """How far the names of two lines move, in px, so that neither covers the other."""
    gap = (b - a) / top * height
    if abs(gap) >= 16:
        return 0.0, 0.0
    push = (16 - abs(gap)) / 2 * (1 if gap >= 0 else -1)
    return -push, push
