"""RoPE in pictures: arrows that turn, wavelengths, who is paired with whom, scores that depend on distance alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .heatmap import value_map

SHOWN = 32
"""Most planes in one picture; of more pairs every second, third … is drawn."""

ARCS = 64
"""Most arcs that tie pairs in one picture."""

_SMALLEST = 0.62  # of the largest circle's radius: a shorter arrow could not be read


def shown_pairs(R: int) -> np.ndarray:
    """The pairs that `arrows` draws: all, or an even choice from the fastest on."""
    return np.arange(0, R, -(-R // SHOWN))


def arrows(
    before: np.ndarray,
    after: np.ndarray,
    angle: np.ndarray,
    dims: np.ndarray,
    *,
    kind: Literal["query", "key"],
    dark: bool = False,
    columns: int = 8,
    name: str = "",
) -> go.Figure:
    """Each pair of a vector as an arrow in a plane of its own, before (light) and after (dark) its turn.

    before, after: [R 2]; angle: [R] radians, not reduced; dims: [R 2], the two dimensions of each pair. The area
    of a circle stands for the length of its pair, with a smallest size. The wedge is the turn modulo a full one.
    A button plays the turn from position 0.
    """
    pairs = shown_pairs(len(before))
    columns = min(columns, max(4, len(pairs)))
    rows = int(-(-len(pairs) // columns))
    spots = np.arange(len(pairs))
    sizes, turned = np.hypot(*before[pairs].T), np.hypot(*after[pairs].T)
    radius = 0.46 * np.sqrt(np.clip(sizes / (sizes.max() or 1.0), _SMALLEST**2, 1.0))
    planes = _Planes((spots % columns).astype(float), -(spots // columns) * _ROW, radius)
    start = np.arctan2(before[pairs, 1], before[pairs, 0])
    colour, page = theme.kind_colour(kind, dark), theme.tone(theme.BACKGROUND, dark)
    strong = theme.blend(colour, "#ffffff" if dark else "#000000", 0.25)
    light = theme.blend(page, colour, 0.5)
    whole = angle[pairs]
    shaft, head = planes.arrows(start)
    moving = _moving(planes, start, whole, pairs)
    looks = (
        _fill(theme.blend(page, colour, 0.28)),
        _line(strong, 2.8),
        _fill(strong),
        {"type": "scatter", "mode": "text", "hoverinfo": "skip"}
        | {"textfont": {"family": theme.MONO, "size": 10, "color": theme.tone(theme.MUTED, dark)}},
    )
    hover = [
        t(
            "rope.arrow.hover",
            pair=r,
            a=dims[r, 0],
            b=dims[r, 1],
            before=_point(before[r]),
            after=_point(after[r]),
            angle=numbers.short(angle[r]),
            turns=numbers.short(angle[r] / (2 * np.pi)),
            size=numbers.short(size),
            now=numbers.short(now),
        )
        for r, size, now in zip(pairs, sizes, turned, strict=True)
    ]
    layers = [_line(theme.tone(theme.LINE, dark), 1) | planes.rings(), _line(light, 2) | shaft, _fill(light) | head]
    first = len(layers)  # of those that the frames move, named by their number
    layers += [look | place for look, place in zip(looks, moving, strict=True)]
    layers += [
        {
            "type": "scatter",
            "x": planes.x,
            "y": planes.y,
            "mode": "markers",
            "marker": {"size": 44, "opacity": 0, "color": colour},
            "text": hover,
            "hovertemplate": "%{text}<extra></extra>",
        },
    ]
    meta = {
        "alt": t(
            "rope.arrow.alt",
            name=name,
            shown=len(pairs),
            pairs=len(before),
            first=_degrees(angle[0]),
            last=_degrees(angle[pairs[-1]]),
        ),
        "shown": len(pairs),
        "pairs": len(before),
    }
    layout = {
        "height": 40 + 140 * rows,
        "margin": {"l": 0, "r": 4, "t": 36, "b": 0},
        "xaxis": _bare([-0.55, columns - 0.45]) | {"constrain": "domain", "constraintoward": "left"},
        "yaxis": _bare([-_ROW * (rows - 1) - 0.72, 0.5])
        | {"scaleanchor": "x", "constrain": "domain", "constraintoward": "top"},
        "annotations": [_title(name)],
        "meta": meta,
    }
    frames = []
    if np.any(whole):
        layout["updatemenus"] = [_play(dark)]
        frames = _frames(_moving(planes, start, np.linspace(0, 1, FRAMES)[:, None] * whole, pairs), first)
    return theme.figure(layers, layout, dark, frames)


FRAMES = 30
"""Steps of the turn that the button plays."""

_ROW = 1.19  # from one row of planes to the next, where a plane is 1 wide
_FRAME_MS = 55


@dataclass(frozen=True, eq=False)
class _Planes:
    """The little planes: their centres and the radius of each circle, [n] each."""

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray

    def _at(self, along: np.ndarray, up: np.ndarray, scale: float = 1.0) -> dict:
        """Corners [.. n c] in each plane, in units of its radius, as one broken line: each plane's, then a gap."""
        radius = scale * self.radius[:, None]
        ends = {"x": self.x[:, None] + radius * along, "y": self.y[:, None] + radius * up}
        return {name: _broken(values) for name, values in ends.items()}

    def rings(self) -> dict:
        ring = np.broadcast_to(np.linspace(0, 2 * np.pi, 41), (len(self.x), 41))
        return self._at(np.cos(ring), np.sin(ring))

    def wedges(self, start: np.ndarray, sweep: np.ndarray) -> dict:
        """From `start` [n] on, as far as `sweep` [.. n]."""
        way = start[:, None] + sweep[..., None] * np.linspace(0, 1, 11)  # of half a turn each piece is 18 degrees
        corner = np.zeros((*sweep.shape, 1))
        along, up = (np.concatenate((corner, side(way), corner), axis=-1) for side in (np.cos, np.sin))
        return self._at(along, up, 0.62)

    def arrows(self, angle: np.ndarray) -> tuple[dict, dict]:
        """The shafts and the tips of arrows that point at `angle` [.. n]."""
        u, v = np.cos(angle), np.sin(angle)
        length = np.minimum(0.13 / self.radius, 0.55)
        neck, half, zero = 1 - length, 0.45 * length, np.zeros_like(u)
        shaft = self._at(np.stack((zero, neck * u), axis=-1), np.stack((zero, neck * v), axis=-1))
        along = np.stack((u, neck * u - half * v, neck * u + half * v, u), axis=-1)
        up = np.stack((v, neck * v + half * u, neck * v - half * u, v), axis=-1)
        return shaft, self._at(along, up)


def _broken(corners: np.ndarray) -> np.ndarray:
    """[.. n c] -> [.. n(c+1)]: a gap behind the corners of each plane."""
    gap = np.full((*corners.shape[:-1], 1), np.nan)
    return np.concatenate((corners, gap), axis=-1).reshape(*corners.shape[:-2], -1)


def _moving(planes: _Planes, start: np.ndarray, angle: np.ndarray, pairs: np.ndarray) -> list[dict]:
    """What changes while the arrows turn by `angle` [.. n]: wedge, shaft, tip, label."""
    shaft, head = planes.arrows(start + angle)
    words = [f"{r} · {_degrees(a)}" for r, a in zip(np.broadcast_to(pairs, angle.shape).flat, angle.flat, strict=True)]
    label = {"x": planes.x, "y": planes.y - 0.58, "text": np.array(words).reshape(angle.shape)}
    return [planes.wedges(start, np.mod(angle + np.pi, 2 * np.pi) - np.pi), shaft, head, label]


def _frames(moving: list[dict], first: int) -> list[dict]:
    """The pictures of the turn: the layers from number `first` on, without what stays. float32 packs well."""
    *shapes, label = moving
    packed = [{name: values.astype(np.float32) for name, values in each.items()} for each in shapes]
    traces = list(range(first, first + len(moving)))
    return [
        {
            "data": [*({name: values[i] for name, values in each.items()} for each in packed), {"text": words}],
            "traces": traces,
        }
        for i, words in enumerate(label["text"])
    ]


def _play(dark: bool) -> dict:
    how = {"frame": {"duration": _FRAME_MS, "redraw": False}, "transition": {"duration": 0}, "mode": "immediate"}
    return {
        "type": "buttons",
        "buttons": [{"label": t("rope.play"), "method": "animate", "args": [None, how]}],
        "showactive": False,
        "x": 1,
        "xanchor": "right",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 6, "l": 0, "r": 36},  # the download stands there
        "bgcolor": theme.tone(theme.BACKGROUND, dark),
        "bordercolor": theme.tone(theme.LINE, dark),
        "font": {"size": 12, "color": theme.tone(theme.TEXT, dark)},
    }


def _title(name: str) -> dict:
    return {
        "text": theme.plain(name, 90),
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 8,
        "showarrow": False,
        "font": {"size": 13},
    }


def _degrees(radians: float) -> str:
    """An angle as it is drawn: whole turns left out, -180° to 180°."""
    degrees = math.degrees((radians + math.pi) % (2 * math.pi) - math.pi)
    if 0 < abs(degrees) < 0.1:
        return "< 0.1°"
    return f"{degrees:.{0 if abs(degrees) >= 9.95 else 1}f}°".replace("-0°", "0°").replace("0.0°", "0°")


def _point(v: np.ndarray) -> str:
    return f"({numbers.short(v[0])}, {numbers.short(v[1])})"


def _line(colour: str, width: float) -> dict:
    return {"type": "scatter", "mode": "lines", "line": {"color": colour, "width": width}, "hoverinfo": "skip"}


def _fill(colour: str) -> dict:
    return _line(colour, 0) | {"fill": "toself", "fillcolor": colour}


def _bare(span: Sequence[float]) -> dict:
    return {"range": list(span), "visible": False, "fixedrange": True}


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
    notes = [
        {
            "text": f"{theme.plain(label)} {numbers.exact(place)}",
            "xref": "paper",
            "x": 0.005 if place > middle else 0.995,
            "xanchor": "left" if place > middle else "right",
            "y": float(np.log10(place)),
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 11, "color": muted},
        }
        for label, place in marks.items()
    ]
    everything = np.concatenate([lengths, *(others or {}).values(), list(marks.values())])
    low, high = np.log10(everything.min()) - 0.25, np.log10(everything.max()) + 0.35
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
    corners = {"x": np.hstack((x[drawn], gap)).ravel(), "y": np.hstack((y[drawn], gap)).ravel()}
    arcs = _line(theme.tone(theme.MUTED, dark), 1) | corners
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
