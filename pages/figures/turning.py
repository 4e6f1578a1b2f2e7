"""RoPE in charts: wavelengths, who is paired with whom, scores that depend on distance alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .heatmap import value_map

ARCS = 64
"""Most arcs that tie pairs in one picture."""


# --- frequencies ---


def wavelengths(
    lengths: np.ndarray,
    marks: Mapping[str, float],
    *,
    others: Mapping[str, np.ndarray] | None = None,
    dark: bool = False,
    height: int = 330,
    name: str = "",
) -> go.Figure:
    """Positions that each pair needs for a full turn, on a log axis; `marks` are lengths drawn as lines across.

    lengths: [R]. others: further curves of the same length by name, drawn as lines under the first.
    Pairs that turn fully within the longest mark are filled, the others hollow.
    """
    pairs = np.arange(len(lengths))
    ink, muted = theme.tone(theme.TEXT, dark), theme.tone(theme.MUTED, dark)
    longest = max(marks.values())
    full = lengths <= longest
    colour = theme.tone(theme.ACCENT, dark)
    middle = np.sqrt(lengths.min() * lengths.max())  # the dots rise: names of low lines stand right, of high ones left
    layers = [
        {
            "type": "scatter",
            "x": pairs,
            "y": other.astype(np.float64),
            "mode": "lines",
            "name": label,
            "line": {"color": (muted, colour)[i % 2], "width": 2, "dash": ("dot", "solid")[i % 2]},
            "hovertemplate": t("rope.wave.hover") + f"<extra>{theme.plain(label)}</extra>",
        }
        for i, (label, other) in enumerate((others or {}).items())
    ]
    layers.append(
        {
            "type": "scatter",
            "x": pairs,
            "y": lengths.astype(np.float64),
            "mode": "markers",
            "name": name,
            "marker": {
                "size": 7 if len(pairs) <= 64 else 4,
                "color": [ink if each else theme.tone(theme.BACKGROUND, dark) for each in full],
                "line": {"color": ink, "width": 1.3},
            },
            "customdata": (longest / lengths).astype(np.float64),
            "hovertemplate": t("rope.wave.hover") + "<br>" + t("rope.wave.turns") + "<extra></extra>",
        }
    )
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": float(place),
            "y1": float(place),
            "line": {"color": muted, "width": 1, "dash": "dash"},
            "layer": "below",
        }
        for place in marks.values()
    ]
    everything = np.concatenate([lengths, *(others or {}).values(), list(marks.values())])
    low, high = np.log10(everything.min()) - 0.25, np.log10(everything.max()) + 0.35
    close = 0.05 * (high - low)  # the lower of two lines that are closer has its name under it
    notes = [
        {
            "text": f"{theme.plain(label)} {numbers.exact(place)}",
            "xref": "paper",
            "x": 0.005 if place > middle else 0.995,
            "xanchor": "left" if place > middle else "right",
            "y": float(np.log10(place)),
            "yanchor": "top" if any(0 < np.log10(other / place) < close for other in marks.values()) else "bottom",
            "showarrow": False,
            "font": {"size": 11, "color": muted},
        }
        for label, place in marks.items()
    ]
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30 if others else 8, "b": 8},
        "showlegend": bool(others),
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "xaxis": _pair_axis(len(pairs)),
        "yaxis": {
            "title": {"text": t("rope.wavelength")},
            "type": "log",
            "range": [float(low), float(high)],
            "dtick": 1,
            "exponentformat": "power",
            "showgrid": True,
            "gridcolor": theme.blend(theme.tone(theme.BACKGROUND, dark), theme.tone(theme.LINE, dark), 0.5),
        },
        "shapes": lines,
        "annotations": notes,
        "meta": {
            "alt": t(
                "rope.wave.alt",
                pairs=len(lengths),
                low=numbers.short(lengths.min()),
                high=numbers.short(lengths.max()),
            )
        },
    }
    return theme.figure(layers, layout, dark)


def _pair_axis(R: int) -> dict:
    axis = {"title": {"text": t("rope.pair")}, "range": [-0.8, R - 0.2]}
    return axis | ({"dtick": 1} if R <= 10 else {})


def slower(times: np.ndarray, *, dark: bool = False, height: int = 330) -> go.Figure:
    """How many times slower than plain RoPE each pair turns. times: [R]"""
    pairs = np.arange(len(times))
    layers = [
        {
            "type": "bar",
            "x": pairs,
            "y": times.astype(np.float64),
            "marker": {"color": theme.tone(theme.ACCENT, dark)},
            "hovertemplate": t("rope.if.stretch.hover") + "<extra></extra>",
        }
    ]
    low, high = numbers.short(times.min()), numbers.short(times.max())
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30, "b": 8},
        "bargap": 0.25,
        "xaxis": _pair_axis(len(times)),
        "yaxis": {"title": {"text": t("rope.if.stretch.title")}, "rangemode": "tozero"},
        "meta": {"alt": t("rope.if.stretch.alt", pairs=len(times), low=low, high=high)},
    }
    return theme.figure(layers, layout, dark)


def angle_table(angles: np.ndarray, *, chosen: int | None = None, dark: bool = False, height: int = 330) -> go.Figure:
    """cos of the angle of position (down) and pair (across). angles: [P R] radians; chosen: a position to outline."""
    figure = value_map(
        np.cos(angles).astype(np.float32),
        rows=None,
        row_axis=t("rope.position"),
        col_axis=t("rope.pair"),
        zmax=1.0,
        chosen=None if chosen is None or chosen >= len(angles) else (chosen, None),
        dark=dark,
        height=height,
        name=t("rope.table.name"),
    )
    (heat, *others), layout = theme.taken(figure)
    if not layout["meta"]["pooled"]:
        _without_texts(heat)
        heat["customdata"] = angles.astype(np.float32)
        heat["hovertemplate"] = (
            f"<b>cos %{{z:.4~g}}</b><br>{t('rope.position')} %{{y}}<br>{t('rope.pair')} %{{x}}<br>"
            f"{t('rope.table.angle')} %{{customdata:.4~g}}<extra></extra>"
        )
    return theme.figure([heat, *others], layout)


def _without_texts(heat: dict) -> None:
    """Take off the numbers inside the cells of a small map."""
    for name in ("text", "texttemplate"):
        heat.pop(name, None)


# --- layouts ---


def pairing(
    before: np.ndarray, after: np.ndarray, dims: np.ndarray, *, limit: float, dark: bool = False, name: str = ""
) -> go.Figure:
    """One vector before and after its turn as two rows of cells, and arcs that tie the dimensions of each pair.

    before, after: [Dh]; dims: [R 2]; limit: the end of the colour scale, the same for pictures side by side.
    """
    rows = np.stack((before, after))
    figure = value_map(
        rows,
        rows=[t("rope.pairs.before"), t("rope.pairs.after")],
        row_axis="",
        col_axis=t("rope.dimension"),
        zmax=limit,
        dark=dark,
        height=250,
        name=name,
    )
    layers, layout = theme.taken(figure)
    _without_texts(layers[0])
    way = np.linspace(0, np.pi, 17)
    middle, half = dims.mean(axis=1), np.abs(np.diff(dims, axis=1)[:, 0]) / 2
    tall = 1.5 * half / half.max() if half.max() > 1 else np.full(len(half), 0.45)
    x = middle[:, None] - half[:, None] * np.cos(way)
    y = -0.62 - tall[:, None] * np.sin(way)
    drawn = np.arange(0, len(dims), -(-len(dims) // ARCS))
    gap = np.full((len(drawn), 1), np.nan)
    corners = {name: np.hstack((line[drawn], gap)).ravel().astype(np.float32) for name, line in (("x", x), ("y", y))}
    arcs = corners | {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": theme.tone(theme.MUTED, dark), "width": 1},
        "hoverinfo": "skip",
    }
    layout["yaxis"]["ticktext"] = [t("rope.pairs.before"), t("rope.pairs.after")]
    for axis in ("yaxis", "yaxis2"):
        layout[axis]["range"] = [1.5, -2.3]
    return theme.figure([*layers, arcs], layout)


# --- only the distance counts ---


def along_distance(
    distances: np.ndarray,
    curves: Mapping[str, np.ndarray],
    *,
    chosen: tuple[int, float] | None = None,
    dark: bool = False,
    height: int = 330,
) -> go.Figure:
    """Scores over the distance between query and key, one curve for each place where the key stands.

    chosen: the (distance, score) of this run, as a dot. The second curve lies dashed on the first.
    """
    ink, accent = theme.tone(theme.TEXT, dark), theme.tone(theme.ACCENT, dark)
    looks = ({"color": theme.blend(theme.tone(theme.BACKGROUND, dark), accent, 0.45), "width": 5},)
    looks += ({"color": ink, "width": 1.3, "dash": "5px,4px"},)
    layers = [
        {
            "type": "scatter",
            "x": distances,
            "y": values.astype(np.float64),
            "mode": "lines" if len(distances) > 1 else "markers",
            "name": label,
            "line": look,
            "hovertemplate": t("rope.distance.hover") + f"<extra>{theme.plain(label)}</extra>",
        }
        for (label, values), look in zip(curves.items(), looks, strict=False)
    ]
    if chosen is not None:
        layers.append(
            {
                "type": "scatter",
                "x": [chosen[0]],
                "y": [chosen[1]],
                "mode": "markers",
                "name": t("rope.distance.here"),
                "marker": {"size": 11, "color": theme.kind_colour("query", dark), "line": {"color": ink, "width": 1.5}},
                "hovertemplate": t("rope.distance.hover") + "<extra></extra>",
            }
        )
    values = np.concatenate(list(curves.values()))
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "xaxis": {"title": {"text": t("rope.distance")}},
        "yaxis": {"title": {"text": t("rope.score")}},
        "meta": {
            "alt": t(
                "rope.distance.alt",
                n=len(distances),
                low=numbers.short(values.min()),
                high=numbers.short(values.max()),
            )
        },
    }
    return theme.figure(layers, layout, dark)
