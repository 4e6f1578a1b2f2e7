"""Next tokens with what temperature, top-k and top-p do to them: what is kept, what is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import figure, plain

_BAR = 25  # px a row


def kept_and_cut(
    labels: Sequence[str],
    before: np.ndarray,
    after: np.ndarray,
    *,
    untouched: np.ndarray | None = None,
    by_k: int | None = None,
    taken: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Rows from the most probable down. A pale bar is the probability before the cuts, the dark one in it after them.

    before [n]: of the tokens that are drawn, labels [n] their texts. after [kept]: of those that are left, so it may
    be longer than n. untouched [n]: at temperature 1, a tick. by_k: how many of all tokens top-k leaves, where it cuts.
    taken: the row of the token that was chosen; one beyond those drawn has no bar. The axis ends at 100 % or, where
    no bar reaches a tenth of it, at 10 %, 1 %, …
    """
    n, kept = len(before), min(len(after), len(before))
    colour, page = theme.kind_colour("head", dark), theme.tone(theme.BACKGROUND, dark)
    muted, text = theme.tone(theme.MUTED, dark), theme.tone(theme.TEXT, dark)
    places = np.arange(n, dtype=np.int32)
    final = np.zeros(n)
    final[:kept] = after[:kept]
    said = [_said(before[i], final[i], i < kept) for i in range(n)]
    shared = {"type": "bar", "orientation": "h", "y": places, "hoverinfo": "skip"}
    pale = shared | {
        "x": before.astype(np.float32),
        "width": 0.74,
        "name": t("next.cut.before"),
        "marker": {"color": theme.blend(page, colour, 0.22), "line": {"width": 0}},
    }
    solid = shared | {
        "x": final.astype(np.float32),
        "width": 0.36,
        "name": t("next.cut.after"),
        "marker": {"color": colour, "line": {"width": 0}},
    }
    ends = np.maximum(before, final)
    ends = ends if untouched is None else np.maximum(ends, untouched)
    writing = {
        "type": "scatter",
        "mode": "text",
        "x": ends.astype(np.float32),
        "y": places,
        "text": [f"  {each}" for each in said],
        "textposition": "middle right",
        "textfont": {"family": theme.MONO, "size": 12, "color": [text if i < kept else muted for i in range(n)]},
        "customdata": [plain(label, 60) for label in labels],
        "hovertemplate": "<b>%{customdata}</b><br>%{text}<extra></extra>",
        "cliponaxis": False,
        "showlegend": False,
    }
    layers = [pale, solid, writing]
    if untouched is not None:
        layers.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": untouched.astype(np.float32),
                "y": places,
                "name": t("next.cut.untouched"),
                "hoverinfo": "skip",
                "marker": {
                    "symbol": "line-ns",
                    "size": 14,
                    "line": {"width": 2, "color": theme.tone(theme.ACCENT, dark)},
                },
            }
        )
    if taken is not None and taken < n:
        layers.append(
            shared
            | {
                "x": final[taken : taken + 1].astype(np.float32),
                "y": places[taken : taken + 1],
                "width": solid["width"],
                "name": t("write.bars.taken"),
                "marker": {"color": theme.tone(theme.ACCENT, dark), "line": {"width": 0}},
            }
        )
    layout = {
        "height": _BAR * n + 66,
        "margin": {"l": 8, "r": 130, "t": 34, "b": 30},
        "barmode": "overlay",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        "shapes": _borders(n, kept, by_k, dark),
        "annotations": _names(n, kept, by_k, dark),
        "xaxis": _axis(float(ends.max())),
        "yaxis": {
            "range": [n - 0.5, -0.5],
            "tickvals": places,
            "ticktext": [
                f"<b>{plain(each, 20)}</b>" if i == taken else plain(each, 20) for i, each in enumerate(labels)
            ],
            "tickfont": {"family": theme.MONO, "size": 13, "color": text},
        },
        "meta": {"alt": t("next.cut.alt", kept=numbers.exact(len(after)), best=labels[0], share=said[0])},
    }
    return figure(layers, layout, dark)


def _axis(top: float) -> dict:
    """From 0 to the power of ten that holds the longest bar, so that most pictures share one scale."""
    end = 10.0 ** min(np.ceil(np.log10(max(top, 1e-6)) - 1e-6), 0)
    ticks = [0.0, end / 2, end]
    return {"range": [0, end], "tickvals": ticks, "ticktext": [f"{100 * tick:g} %" for tick in ticks]}


def _said(before: float, after: float, kept: bool) -> str:
    if not kept:
        return t("next.cut.gone", before=numbers.percent(before))
    if abs(after - before) < 5e-5:
        return numbers.percent(before)
    return f"{numbers.percent(before)} → {numbers.percent(after)}"


def _cuts(n: int, kept: int, by_k: int | None) -> list[tuple[int, str]]:
    """(first row that is gone, by what), for cuts that fall among the rows drawn."""
    cuts = []
    if by_k is not None and by_k < n:
        cuts.append((by_k, t("next.cut.k")))
    if kept < n and kept != by_k:
        cuts.append((kept, t("next.cut.p")))
    return cuts


def _borders(n: int, kept: int, by_k: int | None, dark: bool) -> list[dict]:
    line = {"color": theme.kind_colour("mlp", dark), "width": 1.5, "dash": "dash"}
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": row - 0.5, "y1": row - 0.5, "line": line}
        for row, _ in _cuts(n, kept, by_k)
    ]


def _names(n: int, kept: int, by_k: int | None, dark: bool) -> list[dict]:
    place = {"xref": "paper", "x": 1, "xanchor": "left", "yanchor": "middle", "xshift": 6, "showarrow": False}
    font = {"color": theme.kind_colour("mlp", dark), "size": 12}
    return [place | {"y": row - 0.5, "text": text, "font": font} for row, text in _cuts(n, kept, by_k)]
