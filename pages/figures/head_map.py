"""One head's map with the chosen token marked, and its weights on a logarithmic scale where they are asked for so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from . import theme
from .heatmap import attention_map, pick_layer, strip_height
from .theme import figure, taken

DECADES = 3
"""A logarithmic scale runs from 10^-DECADES to 1; what is less has the colour of the page."""

_BESIDE = 4.5  # px from the middle of a narrow row or column to the lines of its outline

_LOWEST = 0.75  # at 0.56 of its height, on a telephone, names of rows that have 20 px otherwise still stand apart

SIDE = 400
"""Most rows and columns of the map that is sent: 0.85 MB of base64."""


def head_map(
    cells: np.ndarray,
    *,
    masked: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    name: str,
    token: int,
    kind: Literal["weights", "scores", "masked"] = "weights",
    query_start: int = 0,
    key_start: int = 0,
    log: bool = False,
    dark: bool = False,
    height: int = 680,
    limit: int = SIDE,
) -> go.Figure:
    """Queries down, keys to the right, one head or a window of it; single cells can be picked where there is room.

    cells [T S]; masked: cells that are absent. token: the chosen position; its row (where it looks) and its column
    (who looks at it) are outlined. query_start, key_start: positions of the first row and column. log: for weights.
    """
    rows, cols = cells.shape
    height = strip_height(rows, cols, height)
    drawn = attention_map(
        cells,
        masked=masked,
        query_labels=queries,
        key_labels=keys,
        name=name,
        kind=kind,
        query_start=query_start,
        key_start=key_start,
        height=height,
        limit=limit,
        lowest=_LOWEST,
        dark=dark,
    )
    picked = pick_layer(drawn)
    marks = _cross(token, (query_start, query_start + rows), (key_start, key_start + cols), height - 170, dark)
    layers, layout = taken(picked)
    layout["shapes"] = [*layout.get("shapes", ()), *marks]
    if log and kind == "weights":
        layers[0] |= _logarithmic(layers[0], dark)
    return figure(layers, layout)


def _logarithmic(heat: dict, dark: bool) -> dict:
    """What changes in a heatmap of weights when its colours become logarithmic; the hover keeps the weight itself."""
    weights = np.asarray(heat["z"], dtype=np.float32)
    bar = heat["colorbar"] | log_bar()
    return {
        "colorscale": log_scale(dark),
        "z": logarithm(weights),
        "zmin": 0,
        "zmax": DECADES,
        "customdata": weights,
        "hovertemplate": heat["hovertemplate"].replace("%{z:.4~g}", "%{customdata:.4~g}"),
        "colorbar": bar,
    }


def logarithm(weights: np.ndarray) -> np.ndarray:
    """Decades above 10^-DECADES: 0 for what is at most that, DECADES for 1. NaN stays NaN."""
    least = np.float32(10.0**-DECADES)
    return np.log10(np.maximum(weights, least) / least).astype(np.float32)


def log_scale(dark: bool) -> theme.Scale:
    """The sequential scale with its light end drawn out: of three decades most cells lie in the lower two."""
    return [[place**0.6, colour] for place, colour in theme.sequential(dark)]


def log_bar() -> dict:
    """What a legend of logarithms has else: wider, one number per decade."""
    texts = [f"{'≤ ' if n == DECADES else ''}{10.0**-n:g}" for n in range(DECADES, -1, -1)]
    return {"len": 220, "xpad": 26, "tickangle": 0, "tickvals": list(range(DECADES + 1)), "ticktext": texts}


def _cross(token: int, rows: tuple[int, int], cols: tuple[int, int], room: int, dark: bool) -> list[dict]:
    """The token's row up to itself, and its column from itself on; of each the part that lies in the map.

    Where cells are narrower than two lines (room: px of the map), the lines stand beside them, not on them.
    """
    line = {"color": theme.tone(theme.TEXT, dark), "width": 1.5}
    dotted = line | {"width": 1, "dash": "dot"}
    rect = {"type": "rect", "xref": "x", "yref": "y"}
    tall, wide = (max(0.5, _BESIDE * (ends[1] - ends[0]) / room) for ends in (rows, cols))
    found = []
    if rows[0] <= token < rows[1] and token >= cols[0]:
        ends = {"x0": cols[0] - 0.5, "x1": min(token + 1, cols[1]) - 0.5, "y0": token - tall, "y1": token + tall}
        found.append(rect | ends | {"line": line})
    if cols[0] <= token < cols[1] and token < rows[1] - 1:
        ends = {"x0": token - wide, "x1": token + wide, "y0": max(token + 1, rows[0]) - 0.5, "y1": rows[1] - 0.5}
        found.append(rect | ends | {"line": dotted})
    return found
