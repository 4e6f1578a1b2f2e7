"""The two paths of attention: how far apart layer by layer, and time and memory of both over the prompt's length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Step
from pages.words import t

from . import numbers, theme
from .heatmap import to_come
from .layer_lines import Line, layer_lines
from .theme import figure, plain, taken


def apart_lines(
    steps: Sequence[tuple[Step, np.ndarray, np.ndarray]], *, chosen: int | None = None, dark: bool = False
) -> go.Figure:
    """Of each step two lines over the layers, on a log axis: the largest difference, and dotted the step's rms.

    steps: (step, largest [L], rms [L]) each; a difference of 0 has no point. chosen: a layer.
    """
    lines = []
    for step, largest, rms in steps:
        lines.append(Line(t("paths.line.apart", step=step.key), largest, step.kind))
        lines.append(Line(t("paths.line.rms", step=step.key), rms, step.kind, dash="dot"))
    worst = "; ".join(
        t("paths.apart.alt.one", step=step.key, apart=numbers.short(largest.max()), rms=numbers.short(np.median(rms)))
        for step, largest, rms in steps
    )
    layers = len(steps[0][1])
    return layer_lines(
        lines,
        name=t("paths.apart.axis"),
        layer_axis=t("paths.layer"),
        alt=t("paths.apart.alt", layers=layers, steps=worst),
        layers=layers,
        chosen=chosen,
        log=True,
        height=300,
        dark=dark,
    )


def cost_lines(
    lengths: Sequence[int],
    explicit: Sequence[float | None],
    fused: Sequence[float | None],
    *,
    name: str,
    written: Callable[[float], str],
    here: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """What both paths cost over the number of tokens, on two log axes. None: there is no number.

    name: what is drawn; written: how an amount is said; here: the prompt's own length, a dotted line.
    """
    colours = {"explicit": theme.kind_colour("attention", dark), "fused": theme.tone(theme.TEXT, dark)}
    x, drawn = np.asarray(lengths, dtype=np.int32), {"explicit": explicit, "fused": fused}
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": x,
            "y": np.array([np.nan if value is None else value for value in values], dtype=np.float64),
            "name": t(f"paths.{path}"),
            "line": {"color": colours[path], "width": 2},
            "marker": {"size": 7, "symbol": "circle" if path == "explicit" else "diamond"},
            "customdata": ["" if value is None else written(value) for value in values],
            "hovertemplate": f"<b>%{{customdata}}</b> {plain(t(f'paths.{path}'))}<br>"
            f"{plain(t('paths.tokens'))} %{{x:,}}<extra></extra>",
        }
        for path, values in drawn.items()
    ]
    known = {path: [value for value in values if value is not None] for path, values in drawn.items()}
    up, across = theme.log_axis([*known["explicit"], *known["fused"]]), theme.log_axis(lengths)
    line = theme.tone(theme.LINE, dark)
    mark = {"color": theme.tone(theme.MUTED, dark), "width": 1, "dash": "dot"}
    layout = {
        "height": 280,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": []
        if here is None
        else [{"type": "line", "yref": "paper", "x0": here, "x1": here, "y0": 0, "y1": 1, "line": mark}],
        "xaxis": {**across, "tickvals": list(lengths), "ticktext": _apart(lengths), "title": {"text": t("paths.axis")}},
        "yaxis": {
            **up,
            "ticktext": [written(tick) for tick in up["tickvals"]],
            "showgrid": True,
            "gridcolor": line,
            "griddash": "dot",
        },
        "meta": {"alt": _cost_alt(name, lengths, drawn, written)},
    }
    return figure(lines, layout, dark)


def _apart(lengths: Sequence[int]) -> list[str]:
    """The lengths as texts; of two that lie close together on a log axis the first has none."""
    near = [1.5 * one > other for one, other in pairwise(lengths)]
    return ["" if close else str(n) for n, close in zip(lengths, [*near, False], strict=True)]


def _cost_alt(
    name: str, lengths: Sequence[int], drawn: dict[str, Sequence[float | None]], written: Callable[[float], str]
) -> str:
    last = {path: "—" if values[-1] is None else written(values[-1]) for path, values in drawn.items()}
    return t("paths.cost.alt", name=name, first=lengths[0], last=lengths[-1], **last)


def not_yet(picture: go.Figure) -> go.Figure:
    """A map whose masked cells are not masked, but not computed yet: its hovers say so, its caption need not."""
    layers, layout = taken(picture)
    layout["meta"] |= {"masked": 0}
    return figure(to_come(layers, t("paths.not_yet")), layout)
