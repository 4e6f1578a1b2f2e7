"""A map of sizes over decades: logarithmic colours, so that one value of 946 does not hide that the others are 6."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from . import heatmap, numbers, theme
from .theme import figure, plain, taken

_FAINT = 0.12  # where the smallest size begins on the colour scale: the page's own colour is left to zero
_ROOM = 4  # most numbers between the ends of the legend


def log_map(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    row_axis: str,
    col_axis: str,
    cols: Sequence[str] | None = None,
    masked: np.ndarray | None = None,
    name: str = "",
    colour: str | None = None,
    pick: bool = False,
    column: int | None = None,
    col_start: int = 0,
    chosen: tuple[int, int | None] | None = None,
    numbered: bool = True,
    height: int = 420,
    dark: bool = False,
) -> go.Figure:
    """Sizes [R C], none negative, as `heatmap.value_map` draws them, with colours by their logarithm.

    A zero has the colour of the page, masked cells are blank, what is not finite is marked. pick: clicks on single
    cells are reported where there are few enough. column: one to mark between two lines; chosen: a cell or a row to
    outline. col_start: the place of the first column. numbered: row labels have their number behind them.
    """
    values = np.asarray(values, dtype=np.float32)
    drawn = heatmap.value_map(
        values,
        rows=rows,
        cols=cols,
        masked=masked,
        row_axis=row_axis,
        col_axis=col_axis,
        signed=False,
        percentile=100,
        zmax=float(np.max(values, initial=0.0, where=np.isfinite(values))) or 1.0,
        name=name,
        height=height,
        colour=colour,
        chosen=chosen,
        col_start=col_start,
        dark=dark,
    )
    pick = pick and not theme.meta_of(drawn)["pooled"] and values.size <= heatmap.PICKABLE
    drawn = heatmap.pick_layer(drawn) if pick else drawn
    layers, layout = taken(drawn)
    layers[0] |= _logarithmic(layers[0], dark, colour)
    layers[0].pop("texttemplate", None)
    layout["meta"]["pickable"] = pick
    if not numbered:
        heatmap.label_rows(layout, [plain(row, 24) for row in rows])
    if column is not None:
        layout["shapes"] = [*layout.get("shapes", ()), *_column(column, values.shape, dark)]
    return figure(layers, layout)


def _logarithmic(heat: dict, dark: bool, colour: str | None) -> dict:
    sizes = np.asarray(heat["z"], dtype=np.float32)
    positive = sizes[sizes > 0]
    low, high = (float(np.log10(end(positive))) for end in (np.min, np.max)) if positive.size else (0.0, 0.0)
    span = max(high - low, 1e-3)
    least = low - span * _FAINT / (1 - _FAINT)  # here the scale begins, with the colour of the page
    z = np.full(sizes.shape, np.nan, dtype=np.float32)
    np.log10(sizes, out=z, where=sizes > 0)
    z[sizes == 0] = least
    decades = [
        n for n in range(int(np.ceil(low)), int(np.floor(high)) + 1) if low + 0.18 * span < n < high - 0.18 * span
    ]
    inner = decades[:: max(1, -(-len(decades) // _ROOM))]
    places = [low, *inner, high] if span > 0.01 else [high]
    return {
        "z": z,
        "zmin": least,
        "zmax": high,
        "colorscale": theme.sequential(dark, colour),
        "customdata": sizes,
        "hovertemplate": heat["hovertemplate"].replace("%{z:.4~g}", "%{customdata:.4~g}"),
        "colorbar": heat["colorbar"]
        | {
            "len": 240,
            "xpad": 26,
            "tickangle": 0,
            "tickvals": places,
            "ticktext": [f"{10.0**n:g}" if n in inner else numbers.short(10.0**n) for n in places],
        },
    }


def _column(column: int, shape: tuple[int, int], dark: bool) -> list[dict]:
    """A frame round a column; where it is too narrow for a frame, two lines a little apart."""
    wide = max(0.5, shape[1] / 250)
    line = {"color": theme.tone(theme.TEXT, dark), "width": 1.5}
    ends = {"x0": column - wide, "x1": column + wide, "y0": -0.5, "y1": shape[0] - 0.5}
    return [{"type": "rect", "xref": "x", "yref": "y", "line": line, **ends}]
