"""What each layer would say: a map of layers and positions with the token it would put first in every cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import heatmap, theme
from .theme import figure, plain, taken

_ROW = 21  # px
_WIDE = 980  # px of a wide page that the cells share


def lens_map(
    texts: Sequence[Sequence[str]],
    strength: np.ndarray,
    hovers: Sequence[Sequence[str]],
    *,
    rows: Sequence[str],
    tokens: Sequence[str],
    ends: tuple[str, str],
    most: float,
    name: str,
    start: int = 0,
    chosen: int | None = None,
    total: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Rows down (the embedding first), positions to the right; a click on a cell is reported as x (position), y (row).

    texts, hovers: [R C], strength [R C] from 0 to `most` is the colour; ends: what the legend writes at its two ends.
    rows [R], tokens [C]: labels; start: the position of the first column; total: rows there will be, so that the
    figure keeps its height while they arrive.
    """
    R, C = strength.shape
    total = total or R
    shown = np.full((total, C), np.nan, dtype=np.float32)
    shown[:R] = strength
    missing = np.isnan(shown)
    base = heatmap.value_map(
        shown,
        rows=[""] * total,
        row_axis=t("next.lens.layer"),
        col_axis=t("next.lens.position"),
        cols=tokens,
        signed=False,
        masked=missing if missing.any() else None,
        zmax=most,
        name=name,
        dark=dark,
        col_start=start,
        height=_ROW * total + 130,
    )
    layers, layout = taken(base)
    layers[0] |= {"texttemplate": "", "hoverinfo": "skip", "hovertemplate": ""}  # the cells below speak
    layers[0]["colorbar"] |= {"tickvals": [0.0, most], "ticktext": list(map(plain, ends)), "xpad": 22}
    letters = int(np.clip(_WIDE / C / 6.9 - 1, 4, 24))
    under = [f"{plain(token, letters)}<br>{start + i}" for i, token in enumerate(tokens)]
    layout["xaxis"] |= {"tickvals": list(range(start, start + C)), "ticktext": under, "tickangle": 0}
    down = {"tickvals": list(range(R)), "ticktext": [plain(row) for row in rows[:R]], "title": {"text": ""}}
    layout["yaxis"] |= down
    layout |= {"clickmode": "event+select", "hoverdistance": -1}
    layout["meta"] = layout["meta"] | {"alt": t("next.lens.alt", layers=R - 1, positions=C, name=name)}
    if chosen is not None and start <= chosen < start + C:
        line = {"color": theme.tone(theme.TEXT, dark), "width": 2}
        column = {"x0": chosen - 0.5, "x1": chosen + 0.5, "y0": -0.5, "y1": total - 0.5, "xref": "x", "yref": "y"}
        layout["shapes"] = [*layout["shapes"], {"type": "rect", "line": line, **column}]
    cells = [plain(text, letters) for row in texts for text in row]
    return figure([*layers, _cells(cells, strength / most, hovers, start, dark)], layout)


def _cells(texts: Sequence[str], share: np.ndarray, hovers: Sequence[Sequence[str]], start: int, dark: bool) -> dict:
    """The tokens in the cells, over points that are not seen and can be clicked. share: [R C] of the colour scale."""
    R, C = share.shape
    ground, ink = theme.tone(theme.BACKGROUND, dark), theme.tone(theme.TEXT, dark)
    turn = 0.8 if dark else 0.42  # where the colour under the text has become too much like the ink
    return {
        "type": "scatter",
        "x": np.tile(np.arange(start, start + C), R),
        "y": np.repeat(np.arange(R), C),
        "xaxis": "x2",
        "yaxis": "y2",
        "mode": "text+markers",
        "text": list(texts),
        "textfont": {
            "family": theme.MONO,
            "size": 11,
            "color": [ground if value > turn else ink for value in share.ravel()],
        },
        "marker": {"opacity": 0, "size": 16},
        "selected": {"marker": {"opacity": 0}},
        "unselected": {"marker": {"opacity": 0}},
        "hovertext": [text for row in hovers for text in row],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
    }


def hover_of(head: str, tokens: Sequence[str], shares: Sequence[str], more: Sequence[str]) -> str:
    """The text over one cell: a heading, the best tokens with their shares, then lines of more. All escaped."""
    width = max(len(text) for text in tokens)
    lines = [f"{plain(text):<{width}}  {share}" for text, share in zip(tokens, shares, strict=True)]
    return "<br>".join([f"<b>{plain(head)}</b>", *lines, *map(plain, more)])
