"""Lines over the layers: several measures of one thing, the chosen layer marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind

from . import theme
from .theme import figure, plain
from .token_axis import counted


@dataclass(frozen=True)
class Line:
    """One line. values [L], one per layer from layer 0; kind: whose colour it has; dash: plotly's name of a dash."""

    name: str
    values: Sequence[float]
    kind: Kind
    dash: str = "solid"


def layer_lines(
    lines: Sequence[Line],
    *,
    name: str,
    layer_axis: str,
    alt: str,
    layers: int,
    chosen: int | None = None,
    log: bool = False,
    ends: tuple[float, float] | None = None,
    zero: bool = False,
    shares: bool = False,
    height: int = 320,
    dark: bool = False,
) -> go.Figure:
    """Lines over `layers` layers, of which the first may be there already. name: of the y axis.

    log: a logarithmic y axis, without what is not positive; ends: of the y axis; zero: a line at 0;
    shares: write values as percentages.
    """
    text, faint = theme.tone(theme.TEXT, dark), theme.tone(theme.LINE, dark)
    form = ":.3~p" if shares else ":.4~g"
    traces = [
        {
            "type": "scatter",
            "x": np.arange(len(line.values), dtype=np.int32),
            "y": np.asarray(line.values, dtype=np.float32),
            "name": plain(line.name),
            "mode": "lines+markers",
            "line": {"color": theme.kind_colour(line.kind, dark), "width": 2, "dash": line.dash},
            "marker": {"size": 5 if layers <= 40 else 3},
            "hovertemplate": f"<b>%{{y{form}}}</b> {plain(line.name)}<br>{plain(layer_axis)} %{{x}}<extra></extra>",
        }
        for line in lines
    ]
    shapes = []
    if zero:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": faint}})
    if chosen is not None:
        mark = {"color": text, "width": 1, "dash": "dot"}
        shapes.append({"type": "line", "yref": "paper", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "line": mark})
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": shapes,
        "hovermode": "closest",
        "xaxis": {"title": {"text": plain(layer_axis)}, **counted(layers)},
        "yaxis": {
            "title": {"text": plain(name)},
            "showgrid": True,
            "gridcolor": faint,
            "griddash": "dot",
            "nticks": 6,
            **(theme.log_axis(value for line in lines for value in line.values) if log else {}),
            **({"range": list(ends)} if ends else {}),
            **({"tickformat": ".0%"} if shares else {}),
        },
        "meta": {"alt": alt},
    }
    return figure(traces, layout, dark)
