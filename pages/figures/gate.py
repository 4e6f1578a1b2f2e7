"""The gate as a picture: neurons as points, gate to the right and up upwards, with the curve that they pass below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .theme import figure, plain

MOST = 4000
"""Most neurons that are drawn: the loudest ones, and of the others every n-th."""
_FAR = 4.0  # a value further out than this times the usual is drawn at the edge, with an arrow


def gate_scatter(
    gate: np.ndarray,
    up: np.ndarray,
    product: np.ndarray,
    quiet: np.ndarray,
    labelled: Sequence[int],
    curve: tuple[np.ndarray, np.ndarray],
    *,
    curve_name: str,
    height: int = 620,
    dark: bool = False,
) -> go.Figure:
    """Every neuron of one layer at one token, [F] each. quiet: which are shut; labelled: indices named in the picture.

    curve (x, y): what the gate passes through; it is drawn over the same gates, with the labelled neurons on it.
    meta: drawn, total (neurons), edge (how many stand at the edge because they lie beyond it).
    """
    shown = chosen_neurons(np.abs(product))
    across, above = _end(gate[shown]), _end(up[shown])
    page, loud = theme.tone(theme.BACKGROUND, dark), theme.kind_colour("mlp", dark)
    size = np.sqrt(np.abs(product) / (np.abs(product).max() or 1.0))
    groups = (
        (quiet, theme.blend(page, theme.tone(theme.MUTED, dark), 0.6), "mlp.group.shut"),
        (~quiet & (gate < 0), theme.blend(page, loud, 0.45), "mlp.group.negative"),
        (~quiet & ~(gate < 0), loud, "mlp.group.open"),
    )
    ends = (across, above)
    traces = [_points(shown[of[shown]], gate, up, product, size, ends, hue, t(word)) for of, hue, word in groups]
    x, y = (np.asarray(values, dtype=np.float32) for values in curve)
    inside = np.abs(x) <= across * 1.12
    text = theme.tone(theme.TEXT, dark)
    traces.append(_curve(x[inside], y[inside], text, curve_name))
    named = np.asarray(labelled, dtype=int)
    heights = np.interp(np.clip(gate[named], -across, across), x, y)
    traces.append(_dots(named, np.clip(gate[named], -across, across), heights, loud))
    beyond = int(np.count_nonzero((np.abs(gate[shown]) > across) | (np.abs(up[shown]) > above)))
    most = float(np.nanmax(y[inside])) if inside.any() else 1.0
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "itemsizing": "constant"},
        "annotations": _labels(labelled, gate, up, across, above, text),
        "shapes": _grounds(across, dark),
        "xaxis": {"title": {"text": t("mlp.axis.gate")}, "range": [-1.12 * across, 1.12 * across], "anchor": "y2"},
        "yaxis": {"title": {"text": t("mlp.axis.up")}, "range": [-1.15 * above, 1.15 * above], "domain": [0.34, 1.0]},
        "yaxis2": {
            "title": {"text": plain(curve_name)},
            "range": [min(-0.35, float(np.nanmin(y[inside], initial=0.0))) - 0.06 * most, 1.1 * most],
            "domain": [0.0, 0.27],
            "nticks": 4,
        },
        "meta": {
            "alt": t("mlp.scatter.alt", n=numbers.exact(gate.size), quiet=numbers.percent(quiet.mean())),
            "drawn": int(shown.size),
            "total": int(gate.size),
            "edge": beyond,
        },
    }
    return figure(traces, layout, dark)


def chosen_neurons(sizes: np.ndarray) -> np.ndarray:
    """Indices of at most about MOST neurons: half of them the loudest, the others evenly from the rest."""
    if sizes.size <= MOST:
        return np.arange(sizes.size)
    order = np.argsort(-sizes, kind="stable")
    rest = order[MOST // 2 :]
    return np.sort(np.concatenate([order[: MOST // 2], rest[:: -(-rest.size // (MOST // 2))]]))


def _end(values: np.ndarray) -> float:
    """Where the axis ends: the largest size, or less when single values would press the rest together."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max()) if sizes.size else 0.0
    usual = float(np.percentile(sizes, 98)) if sizes.size else 0.0
    return (_FAR * usual if 0 < _FAR * usual < largest else largest) or 1.0


def _points(at, gate, up, product, size, ends, colour, name) -> dict:
    across, above = ends
    x, y = np.clip(gate[at], -across, across), np.clip(up[at], -above, above)
    outside = (np.abs(gate[at]) > across) | (np.abs(up[at]) > above)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{plain(name)} {numbers.exact(at.size)}",
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "marker": {
            "color": colour,
            "opacity": 0.8,
            "size": (3 + 11 * size[at]).astype(np.float32),
            "symbol": np.where(outside, "diamond-open", "circle").tolist() if outside.any() else "circle",
            "line": {"width": 0},
        },
        "customdata": np.stack([at, gate[at], up[at], product[at]], axis=1).astype(np.float32),
        "hovertemplate": t("mlp.scatter.hover") + "<extra></extra>",
    }


def _curve(x: np.ndarray, y: np.ndarray, colour: str, name: str) -> dict:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "yaxis": "y2",
        "line": {"color": colour, "width": 2},
        "name": plain(name),
        "showlegend": False,
        "hovertemplate": f"gate %{{x:.3~g}}<br>{plain(name)} <b>%{{y:.3~g}}</b><extra></extra>",
    }


def _dots(named: np.ndarray, x: np.ndarray, y: np.ndarray, colour: str) -> dict:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x.astype(np.float32),
        "y": np.asarray(y, dtype=np.float32),
        "yaxis": "y2",
        "marker": {"color": colour, "size": 8},
        "text": [str(i) for i in named],
        "showlegend": False,
        "hovertemplate": t("mlp.neuron") + " <b>%{text}</b><extra></extra>",
    }


_SIDES = tuple((*side, dy) for far in (9, 22) for side in (("left", 9), ("right", -9)) for dy in (far, -far))
_WIDTHS, _TALL = (700, theme.PHONE), 340  # px that the points have on a wide page and on a telephone

Label = tuple[float, float, float, float]
"""Its point as a share of the width; then in px: its middle from there, its height, its length."""


def _labels(
    labelled: Sequence[int], gate: np.ndarray, up: np.ndarray, across: float, above: float, colour: str
) -> list:
    """The numbers of neurons, each on the first side of its point where it covers no other, however wide the page."""
    taken: list[Label] = []
    found = []
    for i in labelled:
        x, y = float(np.clip(gate[i], -across, across)), float(np.clip(up[i], -above, above))
        share, top, long = x / (2.24 * across), y / (2.3 * above) * _TALL, 7.5 * len(str(i))
        sides = [side for side in _SIDES if side[0] == "right" or x < 0.8 * across]
        places = [(share, dx + (long if dx > 0 else -long) / 2, top + dy, long) for _, dx, dy in sides]
        free = (n for n, place in enumerate(places) if not any(_meet(place, other) for other in taken))
        best = next(free, 0)
        taken.append(places[best])
        anchor, dx, dy = sides[best]
        found.append(
            {
                "x": x,
                "y": y,
                "text": str(int(i)),
                "showarrow": False,
                "xanchor": anchor,
                "xshift": dx,
                "yshift": dy,
                "font": {"family": theme.MONO, "size": 12, "color": colour},
            }
        )
    return found


def _meet(one: Label, other: Label) -> bool:
    """Whether two labels cover each other at any width."""
    (x, dx, y, long), (u, du, v, wide) = one, other
    return abs(y - v) < 13 and any(abs((x - u) * width + dx - du) < (long + wide) / 2 for width in _WIDTHS)


def _grounds(across: float, dark: bool) -> list[dict]:
    """The side where a gate is negative, tinted, in both parts; and the line at zero."""
    faint = theme.tone(theme.LINE, dark)
    found = []
    for yref in ("y domain", "y2 domain"):
        rect = {
            "type": "rect",
            "layer": "below",
            "xref": "x",
            "yref": yref,
            "x0": -1.12 * across,
            "x1": 0,
            "y0": 0,
            "y1": 1,
        }
        found.append(rect | {"fillcolor": theme.tone(theme.SURFACE, dark), "line": {"width": 0}})
        found.append(
            {"type": "line", "layer": "below", "xref": "x", "yref": yref, "x0": 0, "x1": 0, "y0": 0, "y1": 1}
            | {"line": {"color": faint, "width": 1}}
        )
    for yref in ("y", "y2"):
        found.append(
            {"type": "line", "layer": "below", "xref": "x domain", "yref": yref, "x0": 0, "x1": 1, "y0": 0, "y1": 0}
            | {"line": {"color": faint, "width": 1}}
        )
    return found


# --- four curves ---

_HUES = {"SiLU": "mlp", "ReLU": "attention", "GELU": "key", "quick GELU": "value"}


def curve_lines(
    x: np.ndarray, curves: dict[str, np.ndarray], own: str, *, height: int = 300, dark: bool = False
) -> go.Figure:
    """The four curves over the same gates. own: the one that the model uses, drawn wider."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": np.asarray(x, dtype=np.float32),
            "y": np.asarray(y, dtype=np.float32),
            "name": plain(name),
            "line": {
                "color": theme.kind_colour(_HUES[name], dark),
                "width": 3 if name == own else 1.5,
                "dash": "solid" if name == own else "dash",
            },
            "hovertemplate": f"gate %{{x:.3~g}}<br>{plain(name)} <b>%{{y:.3~g}}</b><extra></extra>",
        }
        for name, y in curves.items()
    ]
    faint = theme.tone(theme.LINE, dark)
    line = {"type": "line", "layer": "below", "line": {"color": faint, "width": 1}}
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [
            line | {"xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0},
            line | {"yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1},
        ],
        "xaxis": {"title": {"text": t("mlp.axis.gate")}, "nticks": 9},
        "yaxis": {"title": {"text": t("mlp.curves.axis")}, "nticks": 6},
        "meta": {"alt": t("mlp.curves.alt", own=own)},
    }
    return figure(traces, layout, dark)
