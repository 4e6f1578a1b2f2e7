"""What a model costs: parameters by part as areas, and what grows with the context as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind
from pages.words import t

from . import numbers, theme
from .colours import ink
from .theme import figure, plain

# part: (its group or "", its colour, how much of the page is mixed in to tell it from its neighbours)
_PARTS: Mapping[str, tuple[str, Kind, float]] = {
    "embedding": ("", "residual", 0.0),
    "q": ("attention", "query", 0.0),
    "k": ("attention", "key", 0.0),
    "v": ("attention", "value", 0.0),
    "o": ("attention", "attention", 0.0),
    "gate": ("mlp", "mlp", 0.0),
    "up": ("mlp", "mlp", 0.16),
    "down": ("mlp", "mlp", 0.32),
    "norms": ("", "norm", 0.0),
    "head": ("", "head", 0.35),
}


def parameter_areas(counts: Mapping[str, int], *, dark: bool = False, height: int = 420) -> go.Figure:
    """A treemap: the area of a part is its share of all parameters. counts: by part, as `sizes.parameters` has them."""
    total = sum(counts.values())
    page = theme.tone(theme.BACKGROUND, dark)
    groups = {
        group: sum(n for part, n in counts.items() if _PARTS[part][0] == group)
        for group in dict.fromkeys(group for group, *_ in _PARTS.values() if group)
    }
    parts = {part: n for part, n in counts.items() if n}
    nodes = [(part, _PARTS[part][0], n) for part, n in parts.items()] + [(g, "", n) for g, n in groups.items()]
    colours = [
        theme.blend(theme.kind_colour(_PARTS[part][1], dark), page, _PARTS[part][2]) if part in _PARTS else page
        for part, *_ in nodes
    ]
    areas = {
        "type": "treemap",
        "ids": [part for part, *_ in nodes],
        "labels": [t(f"sizes.part.{part}") for part, *_ in nodes],
        "parents": [group for _, group, _ in nodes],
        "values": np.array([n for *_, n in nodes], dtype=np.float64),
        "branchvalues": "total",
        "text": [f"{numbers.count(n)} · {numbers.percent(n / total)}" for *_, n in nodes],
        "texttemplate": "<b>%{label}</b><br>%{text}",
        "customdata": [f"{numbers.exact(n)} · {numbers.percent(n / total)}" for *_, n in nodes],
        "hovertemplate": "<b>%{label}</b><br>%{customdata}<extra></extra>",
        "marker": {"colors": colours, "line": {"width": 2, "color": page}, "pad": {"t": 22, "l": 2, "r": 2, "b": 2}},
        "textfont": {"family": theme.SANS, "size": 13, "color": [ink(colour) for colour in colours]},
        "pathbar": {"visible": False},
        "tiling": {"packing": "squarify", "squarifyratio": 1.6},
        "root": {"color": "rgba(0,0,0,0)"},
    }
    largest = max(parts, key=parts.get)
    layout = {
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "meta": {
            "alt": t(
                "sizes.parts.alt",
                total=numbers.exact(total),
                part=t(f"sizes.part.{largest}"),
                share=numbers.percent(parts[largest] / total),
            )
        },
    }
    return figure([areas], layout, dark)


@dataclass(frozen=True)
class Growth:
    """One line: values over the contexts. kind: its colour; strong: the one looked at; dash: a what-if."""

    name: str
    values: Sequence[int]
    kind: Kind
    strong: bool = False
    dash: bool = False


def growth(
    contexts: Sequence[int],
    lines: Sequence[Growth],
    *,
    at: int,
    written: Callable[[float], str],
    level: tuple[str, float] | None = None,
    name: str,
    dark: bool = False,
    height: int = 378,
    top: int = 118,
) -> go.Figure:
    """Lines over the context on two logarithmic axes: what is flat costs the same for every token, what rises does not.

    at: the context that is chosen, an upright line. written: how an amount is said. level: a name and an amount to
    compare with. name: what is drawn, for the alt text. top: room for the names of the lines, in px.
    """
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": np.asarray(contexts, dtype=np.int32),
            "y": np.asarray(line.values, dtype=np.float64),
            "name": line.name,
            "line": {
                "color": theme.kind_colour(line.kind, dark),
                "width": 3 if line.strong else 1.75,
                "dash": "dot" if line.dash else "solid",
            },
            "customdata": [f"{written(v)} ({numbers.exact(v)})" for v in line.values],
            "hovertemplate": f"%{{x:,}}<br><b>%{{customdata}}</b><extra>{plain(line.name)}</extra>",
        }
        for line in lines
    ]
    values = np.concatenate([np.asarray(line.values, dtype=np.float64) for line in lines])
    values = np.append(values[values > 0], [] if level is None else [level[1]])
    low, high = np.log10(values.min()), np.log10(values.max())
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    step = max(1, len(powers) // 6)
    ticks = [10.0**p for p in powers][::step]
    places = [c for c in contexts if int(np.log2(c)) % max(1, len(contexts) // 6) == 0]
    muted = theme.tone(theme.MUTED, dark)
    shapes = [_line({"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}, theme.tone(theme.ACCENT, dark), "solid")]
    names = []
    if level is not None:
        shapes.append(_line({"xref": "paper", "x0": 0, "x1": 1, "y0": level[1], "y1": level[1]}, muted, "dash"))
        place = {
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "bgcolor": theme.tone(theme.BACKGROUND, dark),
            "y": float(np.log10(level[1])),
            "yanchor": "bottom",
        }
        names.append(place | {"text": plain(level[0]), "showarrow": False, "font": {"color": muted, "size": 12}})
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": top, "b": 8},
        "showlegend": True,
        "legend": {"x": 0, "y": 1.01, "yanchor": "bottom"},
        "shapes": shapes,
        "annotations": names,
        "xaxis": {
            "type": "log",
            "tickvals": places,
            "ticktext": [short_context(c) for c in places],
            "title": {"text": t("sizes.growth.context")},
        },
        "yaxis": {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [written(v) for v in ticks],
            "showgrid": True,
            "gridcolor": theme.blend(theme.tone(theme.BACKGROUND, dark), theme.tone(theme.LINE, dark), 0.6),
        },
        "meta": {"alt": t("sizes.growth.alt", name=name, lines=", ".join(line.name for line in lines))},
    }
    return figure(traces, layout, dark)


def _line(place: dict, colour: str, dash: str) -> dict:
    return {"type": "line", "line": {"color": colour, "width": 1.25, "dash": dash}, **place}


def short_context(n: int) -> str:
    """A power of two as people say it: 512, 4k, 128k, 1M (of 1024)."""
    if n < 1024:
        return str(n)
    return f"{n >> 10}k" if n < 1 << 20 else f"{n >> 20}M"
