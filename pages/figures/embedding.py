"""What goes in: the embedding rows of a prompt beside its pieces and ids, and which tokens are near one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import heatmap, numbers, theme
from .theme import empty, figure, plain

_PIECE = 16  # letters
_ROW = 22  # px


def embedding_rows(
    rows: np.ndarray,
    pieces: Sequence[str],
    ids: Sequence[int],
    *,
    start: int = 0,
    chosen: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """One row per position: its piece and its id on the left, its numbers as colour. rows [n D].

    start: the position of the first row.
    """
    n = len(rows)
    fig = heatmap.value_map(
        rows,
        rows=[f"{piece} (id {i})" for piece, i in zip(pieces, ids, strict=True)],
        row_axis=t("tokens.rows.row"),
        col_axis=t("tokens.rows.column"),
        name=t("tokens.rows.name"),
        chosen=None if chosen is None or not 0 <= chosen - start < n else (chosen, None),
        row_start=start,
        dark=dark,
        height=max(_ROW * n, 60) + 116,
    )
    wide = max(len(str(i)) for i in ids)
    ticks = [f"{plain(piece, _PIECE)}  {i:>{wide}}" for piece, i in zip(pieces, ids, strict=True)]
    layers, layout = theme.taken(fig)
    layout["yaxis"] |= {
        "tickvals": list(range(start, start + n)),
        "ticktext": ticks,
        "title": {"text": ""},
        "tickfont": {"color": theme.tone(theme.TEXT, dark)},
    }
    return theme.figure(layers, layout)


def near_tokens(labels: Sequence[str], cosines: Sequence[float], *, dark: bool = False, rows: int = 10) -> go.Figure:
    """Bars of cosines, the nearest at the top, on an axis from 0 (or below, where one is negative) to 1."""
    height = 26 * rows + 40
    if not labels:
        return empty(t("tokens.near.none"), dark=dark, height=height)
    shown = np.asarray(cosines, dtype=np.float32)
    places = np.arange(len(shown), dtype=np.int32)
    text = theme.tone(theme.TEXT, dark)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": shown,
        "y": places,
        "width": 0.62,
        "marker": {"color": theme.kind_colour("residual", dark), "line": {"width": 0}},
        "text": [numbers.short(x) for x in shown],
        "textposition": "outside",
        "textfont": {"family": theme.MONO, "size": 12, "color": text},
        "cliponaxis": False,
        "customdata": [plain(label, 60) for label in labels],
        "hovertemplate": "<b>%{x:.4~g}</b><br>%{customdata}<extra></extra>",
    }
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 56, "t": 8, "b": 8},
        "xaxis": {"range": [min(0.0, float(shown.min())), 1.0], "title": {"text": t("tokens.near.axis")}, "nticks": 6},
        "yaxis": {
            "range": [max(len(shown), rows) - 0.5, -0.5],
            "tickvals": places,
            "ticktext": [plain(label, 22) for label in labels],
            "tickfont": {"family": theme.MONO, "size": 13, "color": text},
        },
        "meta": {"alt": t("tokens.near.alt", n=len(shown), first=labels[0], cosine=numbers.short(shown[0]))},
    }
    return figure([bars], layout, dark)
