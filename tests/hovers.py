"""What the unseen points over a map say when they are pointed at, read as plotly would write it."""

from __future__ import annotations

import re

import plotly.graph_objects as go


def said_at(figure: go.Figure) -> dict[tuple[float, float], str]:
    """The bold words of each point's hover, by (row, column)."""
    said = {}
    for layer in figure.data:
        if layer.type != "scatter":
            continue
        (says,) = re.findall("<b>(.*?)</b>", layer.hovertemplate)
        for i, place in enumerate(zip(layer.y, layer.x, strict=True)):
            assert place not in said
            said[place] = says.replace(
                "%{customdata:.4~g}", "" if layer.customdata is None else f"{layer.customdata[i]:.4g}"
            )
    return said
