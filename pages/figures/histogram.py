"""How the values of a tensor are spread. Counted here: only the counts of bins are sent.

One value of 946 among thousands around 5 must not press the rest into one bar, so the axis
covers the bulk; what lies outside is counted in a hatched bar at each end, and
`heatmap.notes`' sister `notes(fig)` says how far it goes.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind
from pages.words import t

from . import numbers, theme
from .theme import empty, figure, plain

_CHUNK = 1 << 20
_SAMPLE = 200_000  # values that decide where the bulk lies


def histogram(
    values: np.ndarray,
    *,
    kind: Kind,
    dark: bool = False,
    bins: int = 60,
    percentile: float = 99.8,
    other: np.ndarray | None = None,
    name: str = "",
    other_name: str = "",
    height: int = 220,
) -> go.Figure:
    """Bars in the colour of the kind; `other`, the step it is compared with, as an outline on the same bins.

    NaN and infinities are left out and counted in meta. Outlines are scaled to shares when the two differ in size.
    """
    values, dropped = _finite(values)
    if not values.size:
        return empty(t("figures.histogram.none"), dark=dark, height=height)
    low, high = float(values.min()), float(values.max())
    left, right = _bulk(values, percentile)
    if other is not None:
        other, _ = _finite(other)
        if other.size:
            other_left, other_right = _bulk(other, percentile)
            left, right = min(left, other_left), max(right, other_right)
    edges = _edges(left, right, bins)
    counts, below, above = count(values, edges)
    width = edges[1] - edges[0]

    places = (edges[:-1] + edges[1:]) / 2
    shown = [counts]
    x, wide, y = places, np.full(len(places), width), counts
    bounds = np.stack([edges[:-1], edges[1:]], axis=1)
    patterns, signs = np.full(len(places), "", dtype=object), [""] * len(places)
    for n, at, bound in (
        (below, edges[0] - 2 * width, (low, edges[0])),
        (above, edges[-1] + 2 * width, (edges[-1], high)),
    ):
        if n:
            x, y, wide = np.append(x, at), np.append(y, n), np.append(wide, 2 * width)
            signs.append("←" if at < edges[0] else "→")
            bounds, patterns = np.vstack([bounds, bound]), np.append(patterns, "/")
    colour = theme.kind_colour(kind, dark)
    bars = {
        "type": "bar",
        "x": x.astype(np.float32),
        "y": y.astype(np.int64 if y.max() >= 2**31 else np.int32),
        "width": wide.astype(np.float32),
        "marker": {
            "color": colour,
            "line": {"width": 0},
            "pattern": {"shape": patterns.tolist(), "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 5},
        },
        "text": signs,
        "textposition": "outside",
        "textangle": 0,
        "constraintext": "none",
        "cliponaxis": False,
        "textfont": {"family": theme.MONO, "size": 11, "color": theme.tone(theme.MUTED, dark)},
        "customdata": [
            [numbers.short(a), numbers.short(b), numbers.percent(n / values.size)]
            for (a, b), n in zip(bounds.tolist(), y.tolist(), strict=True)
        ],
        "hovertemplate": "<b>%{y:,}</b> (%{customdata[2]})<br>%{customdata[0]} … %{customdata[1]}<extra></extra>",
        "name": plain(name),
    }
    traces, legend = [bars], {}
    if other is not None and other.size:
        scaled = count(other, edges)[0] * (values.size / other.size)
        shown.append(scaled)
        traces.append(_outline(edges, scaled, other_name, dark))
        legend = {"showlegend": bool(name and other_name)}
    said = {"n": numbers.exact(values.size), "low": numbers.short(low), "high": numbers.short(high)}
    if low == high:
        alt = t("figures.histogram.one", n=said["n"], value=said["low"])
    elif below or above:
        ends = {"left": numbers.short(edges[0]), "right": numbers.short(edges[-1])}
        alt = t("figures.histogram.alt.outside", **said, **ends)
    else:
        alt = t("figures.histogram.alt", **said)
    meta = {
        "alt": alt,
        "n": int(values.size),
        "below": below,
        "above": above,
        "low": low,
        "high": high,
        "dropped": dropped,
    }
    top = max(below, above, *(float(s.max()) for s in shown))
    return figure(traces, {"height": height, "meta": meta, **legend, **_layout(x, wide, top, dark)}, dark)


def notes(fig: go.Figure) -> list[str]:
    """What the caption of this histogram has to admit. Plain text."""
    meta = theme.meta_of(fig) or {}
    found = []
    if meta.get("below"):
        found.append(t("figures.histogram.below", n=numbers.exact(meta["below"]), low=numbers.short(meta["low"])))
    if meta.get("above"):
        found.append(t("figures.histogram.above", n=numbers.exact(meta["above"]), high=numbers.short(meta["high"])))
    if meta.get("dropped"):
        found.append(t("figures.histogram.dropped", n=numbers.exact(meta["dropped"])))
    return found


def count(values: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, int, int]:
    """(values in each of the equal bins, below the first, above the last). The last bin includes its end."""
    n, left, right = len(edges) - 1, edges[0], edges[-1]
    total, below, above = np.zeros(n, dtype=np.int64), 0, 0
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK].astype(np.float64)
        low, high = part < left, part > right
        below, above = below + int(low.sum()), above + int(high.sum())
        inside = part[~(low | high)]
        place = ((inside - left) * (n / (right - left))).astype(np.int64)
        total += np.bincount(np.minimum(place, n - 1), minlength=n)
    return total, below, above


def _finite(values: np.ndarray) -> tuple[np.ndarray, int]:
    flat = np.asarray(values).ravel()
    good = np.isfinite(flat)
    dropped = int(flat.size - np.count_nonzero(good))
    return (flat[good] if dropped else flat), dropped


def _bulk(values: np.ndarray, percentile: float) -> tuple[float, float]:
    """Where most values lie; the whole range when it is not much wider than that."""
    low, high = float(values.min()), float(values.max())
    sample = values[:: max(1, values.size // _SAMPLE)]
    left, right = (float(v) for v in np.percentile(sample, [100 - percentile, percentile]))
    room = 0.5 * (right - left)
    if room == 0:  # nearly all values are one value: a window around it, as wide as its own size
        room = 0.5 * abs(left) or 0.5 * max(abs(low), abs(high))
        return max(low, left - room), min(high, right + room)
    return (low if low >= left - room else left), (high if high <= right + room else right)


def _edges(left: float, right: float, bins: int) -> np.ndarray:
    """Equal bins over the bulk; where it holds both signs, zero is an edge, so that no bar mixes them."""
    if not right > left:
        half = abs(left) * 0.05 or 0.5
        return np.linspace(left - half, left + half, 4)
    step = (right - left) / bins
    if left < 0 < right:
        down, up = int(np.ceil(-left / step - 1e-9)), int(np.ceil(right / step - 1e-9))
        return np.arange(-down, up + 1) * step
    return np.linspace(left, right, bins + 1)


def _outline(edges: np.ndarray, counts: np.ndarray, name: str, dark: bool) -> dict:
    return {
        "type": "scatter",
        "x": np.repeat(edges, 2)[1:-1].astype(np.float32),
        "y": np.repeat(counts, 2).astype(np.float32),
        "mode": "lines",
        "line": {"color": theme.tone(theme.MUTED, dark), "width": 1.5},
        "hoverinfo": "skip",
        "name": plain(name),
    }


def _layout(x: np.ndarray, wide: np.ndarray, top: float, dark: bool) -> dict:
    return {
        "margin": {"l": 8, "r": 30, "t": 10, "b": 8},
        "bargap": 0,
        "barmode": "overlay",
        "xaxis": {
            "range": [float((x - wide).min()), float((x + wide).max())],
            "nticks": 7,
            "showline": True,
            "title": {"text": plain(t("figures.histogram.values"))},
        },
        "yaxis": {
            "range": [0, top * 1.06],
            "nticks": 4,
            "showgrid": True,
            "gridcolor": theme.tone(theme.LINE, dark),
            "griddash": "dot",
            "tickformat": "~s",
        },
        "legend": {
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yanchor": "top",
            "bgcolor": "rgba(0,0,0,0)",
        },
    }
