"""What an edit did: how far the stream moved, next tokens before and after, one part after another switched off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind
from pages.words import t

from . import heatmap, numbers, theme
from .log_map import log_map
from .theme import figure, plain, taken

Frame = tuple[int, int, int]
"""What was edited, as (layer, first token, last token)."""

_ROWS = 300  # px that all layers share, each within
_ROW = (16, 34)
_PAIR = 40  # px of two bars


def cone_map(
    shares: np.ndarray, *, tokens: Sequence[str], frames: Sequence[Frame], chosen: int, dark: bool = False
) -> go.Figure:
    """Layers down, tokens to the right; a zero is blank. shares [L T]; frames: what was edited; chosen: a token.

    `layout.meta["pickable"]`: clicks on cells are reported as x (token) and y (layer).
    """
    L, T = shares.shape
    drawn = log_map(
        shares,
        rows=[""] * L,
        row_axis=t("edit.cone.layer"),
        col_axis=t("edit.cone.token"),
        cols=tokens,
        name=t("edit.cone.name"),
        colour=theme.kind_colour("attention", dark),
        pick=True,
        column=chosen,
        height=_tall(L) + 150,
        dark=dark,
    )
    layers, layout = taken(drawn)
    layout["shapes"] = [*layout["shapes"], *(_edited(frame, T, dark) for frame in frames)]
    finite = shares[np.isfinite(shares)]
    layout["meta"] |= {
        "alt": t(
            "edit.cone.alt",
            layers=L,
            tokens=numbers.exact(T),
            touched=numbers.exact(np.count_nonzero(shares)),
            most=numbers.short(finite.max(initial=0.0)),
        )
    }
    layers[0]["colorbar"] |= _apart(layers[0]["colorbar"])
    return figure(layers, layout)


def _apart(bar: dict) -> dict:
    """Of the legend's numbers those that have room between its ends."""
    places, texts = list(bar["tickvals"]), list(bar["ticktext"])
    room = 0.3 * (places[-1] - places[0])
    kept = [
        i
        for i, place in enumerate(places)
        if place in (places[0], places[-1]) or min(place - places[0], places[-1] - place) > room
    ]
    return {"tickvals": [places[i] for i in kept], "ticktext": [texts[i] for i in kept]}


def _tall(layers: int) -> int:
    return layers * int(np.clip(_ROWS // layers, *_ROW))


def _edited(frame: Frame, tokens: int, dark: bool) -> dict:
    """A dotted frame, a little outside the cells where they are narrow."""
    layer, first, last = frame
    wide = max(0.5, tokens / 250)
    line = {"color": theme.kind_colour("mlp", dark), "width": 2, "dash": "dot"}
    ends = {"x0": first - wide, "x1": last + wide, "y0": layer - 0.5, "y1": layer + 0.5}
    return {"type": "rect", "xref": "x", "yref": "y", "line": line, **ends}


def before_after(
    labels: Sequence[str], before: Sequence[float], after: Sequence[float], dark: bool = False
) -> go.Figure:
    """Two bars a token, before above after, in the order given."""
    places, ink = np.arange(len(labels)), theme.tone(theme.TEXT, dark)
    most = max(1e-9, *before, *after) * 1.001  # a bar that reached over the edge would lose its number
    quiet = theme.blend(theme.tone(theme.BACKGROUND, dark), ink, 0.3)
    pairs = ((t("edit.bars.before"), before, -0.19, quiet), (t("edit.bars.after"), after, 0.19, ink))
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": np.asarray(shares, dtype=np.float32),
            "y": (places + shift).astype(np.float32),
            "width": 0.36,
            "marker": {"color": colour, "line": {"width": 0}},
            "text": [numbers.percent(share) for share in shares],
            "textposition": "outside",
            "textfont": {"family": theme.MONO, "size": 11, "color": ink},
            "cliponaxis": False,
            "customdata": [plain(label, 60) for label in labels],
            "hovertemplate": f"<b>%{{x:.4~g}}</b> {plain(name)}<br>%{{customdata}}<extra></extra>",
        }
        for name, shares, shift, colour in pairs
    ]
    said = "; ".join(
        t("edit.bars.one", token=label, before=numbers.percent(p), after=numbers.percent(q))
        for label, p, q in list(zip(labels, before, after, strict=True))[:4]
    )
    layout = {
        "height": _PAIR * len(labels) + 44,
        "margin": {"l": 8, "r": 64, "t": 34, "b": 4},
        "barmode": "overlay",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        "xaxis": {"visible": False, "range": [0, most]},
        "yaxis": {
            "range": [len(labels) - 0.5, -0.5],
            "tickvals": places,
            "ticktext": [plain(label, 16) for label in labels],
            "tickfont": {"family": theme.MONO, "size": 13, "color": ink},
        },
        "meta": {"alt": t("edit.bars.alt", tokens=said)},
    }
    return figure(bars, layout, dark)


def sweep_map(
    values: np.ndarray,
    *,
    name: str,
    chosen: tuple[int, int] | None,
    missing: np.ndarray | None = None,
    dark: bool = False,
) -> go.Figure:
    """What each head, switched off alone, changes: layers down, heads to the right, below zero blue. values [L Hq].

    missing: heads that have not been switched off yet, which stay without a cell. A click is reported as x (head)
    and y (layer).
    """
    missing = np.zeros(values.shape, dtype=bool) if missing is None else missing
    drawn = heatmap.value_map(
        values.astype(np.float32),
        rows=None,
        masked=missing,
        row_axis=t("edit.sweep.layer"),
        col_axis=t("edit.sweep.head"),
        name=name,
        percentile=100,
        chosen=chosen,
        height=_tall(len(values)) + 112,
        dark=dark,
    )
    drawn = heatmap.pick_layer(drawn)
    layers, layout = taken(drawn)
    layout["meta"] |= {"alt": _alt(name, values[~missing]), "masked": 0}
    return figure(heatmap.to_come(layers, t("edit.sweep.missing")), layout)


def sweep_bars(
    values: np.ndarray,
    *,
    name: str,
    kind: Kind,
    chosen: int | None,
    missing: np.ndarray | None = None,
    dark: bool = False,
) -> go.Figure:
    """What each layer's part, switched off alone, changes: a bar a layer. values [L]; kind: whose colour.

    missing: layers that have not been switched off yet, which have no bar. A click is reported as x (layer).
    """
    done = values if missing is None else values[~missing]
    colour, line = theme.kind_colour(kind, dark), theme.tone(theme.LINE, dark)
    ink, layers = theme.tone(theme.TEXT, dark), np.arange(len(values), dtype=np.int32)
    bars = {
        "type": "bar",
        "x": layers,
        "y": values.astype(np.float32),
        "marker": {"color": colour, "line": {"color": ink, "width": [2 if i == chosen else 0 for i in layers]}},
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}},
        "hovertemplate": f"<b>%{{y:+.4~g}}</b><br>{plain(t('edit.sweep.layer'))} %{{x}}<extra></extra>",
    }
    layout = {
        "height": 300,
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "clickmode": "event+select",
        "bargap": 0.4,
        "xaxis": {
            "title": {"text": plain(t("edit.sweep.layer"))},
            "range": [-0.5, len(values) - 0.5],
            "tickvals": layers[:: -(-len(values) // 16)],
        },
        "yaxis": {"title": {"text": plain(name)}, "zeroline": True, "zerolinecolor": line, "nticks": 6},
        "meta": {"alt": _alt(name, done)},
    }
    return figure([bars], layout, dark)


def _alt(name: str, values: np.ndarray) -> str:
    ends = {"low": numbers.short(values.min()), "high": numbers.short(values.max())}
    return t("edit.sweep.alt", name=name, n=numbers.exact(values.size), **ends)
