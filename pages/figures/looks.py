"""Bars beside a map: where one token looks and what that moves, who looks at it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from . import numbers, theme
from .theme import figure, plain

_BAR, _TOP, _LEFT = 23, 26, 112  # px: a row, the line above the bars, the names


def looks(
    names: Sequence[str],
    places: Sequence[int],
    columns: Sequence[tuple[str, Sequence[float], str]],
    *,
    alt: str,
    limits: Sequence[float | None] | None = None,
    prefixes: Sequence[str] = (),
    rows: int = 8,
    dark: bool = False,
) -> go.Figure:
    """One row per token: its name and position, and a bar for each column of numbers.

    columns: (title, values, kind whose colour it has). limits: where each column's bars end, None: at its largest.
    prefixes: said before the names. rows: how many there is room for, so that the height stays. A click reports the
    row as `point_index` and the position as `customdata`.
    """
    texts = [f"{plain(name, 12)} {place}" for name, place in zip(names, places, strict=True)]
    if prefixes:
        texts = [
            f"{prefix} {plain(name, 9)} {place}" for prefix, name, place in zip(prefixes, names, places, strict=True)
        ]
    down = list(range(len(texts)))
    layers, layout = [], {}
    width = (1 - 0.06 * (len(columns) - 1)) / len(columns)
    for i, (title, values, kind) in enumerate(columns):
        axis, left = f"x{i + 1 if i else ''}", i * (width + 0.06)
        end = (limits[i] if limits else None) or max([*np.nan_to_num(values).tolist(), 1e-30])
        layers.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": down,
                "x": [float(value) for value in values],
                "xaxis": axis,
                "customdata": list(places),
                "text": [numbers.short(value) for value in values],
                "textposition": "outside",
                "cliponaxis": False,
                "constraintext": "none",
                "textfont": {"family": theme.MONO, "size": 11, "color": theme.tone(theme.TEXT, dark)},
                "marker": {"color": theme.kind_colour(kind, dark)},
                "selected": {"marker": {"opacity": 1}},
                "unselected": {"marker": {"opacity": 1}},
                "hovertemplate": "<b>%{x:.4~g}</b><br>%{hovertext}<extra></extra>",
                "hovertext": texts,
            }
        )
        layout[f"xaxis{i + 1 if i else ''}"] = {
            "domain": [left, left + width],
            "range": [0, end * (1.5 if len(columns) > 1 else 1.2)],  # room for the number after the longest bar
            "showticklabels": False,
            "ticks": "",
            "anchor": "y",
        }
        layout.setdefault("annotations", []).append(_title(title, axis))
    layout |= {
        "height": _TOP + _BAR * rows + 8,
        "margin": {"l": _LEFT, "r": 8, "t": _TOP, "b": 4},
        "bargap": 0.3,
        "barmode": "overlay",
        "yaxis": {
            "tickvals": down,
            "ticktext": texts,
            "range": [rows - 0.5, -0.5],
            "automargin": False,
            "tickfont": {"color": theme.tone(theme.TEXT, dark)},
        },
        "hovermode": "y",  # a bar may be thin: its whole row answers
        "hoverdistance": -1,
        "clickmode": "event+select",
        "meta": {"alt": alt},
    }
    return figure(layers, layout, dark)


def _title(text: str, axis: str) -> dict:
    return {
        "text": plain(text),
        "x": 0,
        "y": 1,
        "xref": f"{axis} domain",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 3,
        "showarrow": False,
        "font": {"size": 12},
    }
