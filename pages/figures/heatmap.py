"""Maps: numbers as colour, one cell per number, or per block of numbers where there are too many.

Positions are numbers on numeric axes (tokens repeat, so their texts are only tick texts),
row 0 is at the top. Three things that look alike elsewhere stay apart: a masked cell is
absent (NaN in the map itself, the tinted ground shows), a zero has the colour of the page,
and a NaN or infinity is a marked cell of its own. What a caption must say (limits, clipping,
pooling) stands in `fig.layout.meta`, and `notes(fig)` says it in words.

Cost: never more than `limit`² float32 cells are sent: 1.4 MB of base64 at 512, up to 1.9 MB
as JSON, because plotly writes each of its slashes as six letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .pooling import LIMIT, Axis, pool, pool_mask
from .theme import empty, figure, plain, taken

PICKABLE = 4096
"""Most cells of a map on which single cells can be picked; larger ones offer a box."""

_BAR_WIDTH = 150  # px, the legend above the map
_TOP, _NAME = 46, 18  # px, where it stands, and the line above it
_ROW_LABEL, _COL_LABEL = 15, 16  # px a row's label needs; most column labels at the width of a telephone
_NARROW = 220  # px, the width of a map on a telephone
_FLAGS = (("NaN", np.isnan), ("∞", np.isposinf), ("-∞", np.isneginf))


def value_map(
    values: np.ndarray,
    *,
    rows: Sequence[str] | None,
    row_axis: str,
    col_axis: str,
    cols: Sequence[str] | None = None,
    signed: bool = True,
    masked: np.ndarray | None = None,
    zmax: float | None = None,
    percentile: float = 99.5,
    dark: bool = False,
    colour: str | None = None,
    name: str = "",
    unit: str = "",
    square: bool = False,
    chosen: tuple[int, int | None] | None = None,
    row_start: int = 0,
    col_start: int = 0,
    height: int | None = None,
    limit: int = LIMIT,
    lowest: float = 1.0,
) -> go.Figure:
    """A map of a 2-D array, one label per row (and per column, where `cols` says so).

    signed: a diverging scale centred on zero, else one hue from zero up. Its end is `zmax`,
    or the `percentile` of the sizes when single values would drown the rest, or the largest.
    masked: cells that are absent. name: what is shown, for the alt text and beside the legend.
    chosen: the (row, column) position to outline, (row, None) for a whole row. row_start, col_start: the position of
    index 0, for a window into a larger map or queries that follow a past. lowest: the share of its height that labels
    of rows have room in, for a map that a page shows lower where it is narrow.
    """
    values = np.asarray(values)
    _check(values, rows, cols, masked)
    if values.size == 0:
        return empty(t("figures.map.empty"), dark=dark, height=height or 160)
    z, row_bins, col_bins = pool(values, limit, masked)
    y = Axis(row_axis, rows, row_bins, row_start)
    x = Axis(col_axis, cols, col_bins, col_start)
    hidden = None if masked is None else pool_mask(masked, row_bins, col_bins)
    flags = {text: where(z) if hidden is None else where(z) & ~hidden for text, where in _FLAGS}
    flags = {text: cells for text, cells in flags.items() if cells.any()}
    z[~np.isfinite(z)] = np.nan
    end, clipped, largest = _limit(z, percentile, zmax)
    height = height or int(np.clip(len(y.bins) * 30, 60, 400)) + 96 + (_NAME if name else 0)

    scale = theme.diverging(dark) if signed else theme.sequential(dark, colour)
    heat = _layer(z, x.places, y.places, scale, _hover(x, y, "%{z:.4~g}"), zmin=-end if signed else 0.0, zmax=end)
    heat |= {"hoverongaps": False, "colorbar": _legend(end, signed, clipped > 0, unit), **_inside(z)}
    layers = [heat, *(_flag(cells, text, x, y, dark) for text, cells in flags.items())]
    if hidden is not None and hidden.any():
        layers.append(_ground(x, y, dark))
    top = _TOP + (_NAME if name else 0)
    # The hairline round the map does more than frame: plotly draws the seen axes only if something lies on them.
    frame = _box(x.range, y.range, theme.tone(theme.LINE, dark), 1)
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": top, "b": 8},
        "shapes": [frame] if chosen is None else [frame, _outline(chosen, x, dark)],
        **_axes(x, y, int(lowest * (height - top - 40)), square),
    }
    if name:
        layout["annotations"] = [_heading(name)]
    visible = z[~np.isnan(z)]
    layout["meta"] = {
        "rows": values.shape[0],
        "cols": values.shape[1],
        "signed": signed,
        "limit": float(end),
        "clipped": clipped,
        "largest": largest,
        "pooled": x.pooled or y.pooled,
        "pool": [int(y.bins[0, 1]), int(x.bins[0, 1])],
        "masked": 0 if masked is None else int(np.count_nonzero(masked)),
        "flagged": sum(int(np.count_nonzero(cells)) for cells in flags.values()),
        "alt": t(
            "figures.map.alt",
            name=name or t("figures.map.values"),
            rows=numbers.exact(values.shape[0]),
            row_axis=row_axis,
            cols=numbers.exact(values.shape[1]),
            col_axis=col_axis,
            low=numbers.short(visible.min() if visible.size else None),
            high=numbers.short(visible.max() if visible.size else None),
        ),
    }
    return figure(layers, layout, dark)


def attention_map(
    weights: np.ndarray,
    *,
    masked: np.ndarray | None,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    q_head: int | None = None,
    kv_head: int | None = None,
    name: str | None = None,
    kind: Literal["weights", "scores", "masked"] = "weights",
    dark: bool = False,
    chosen: tuple[int, int | None] | None = None,
    query_start: int = 0,
    key_start: int = 0,
    height: int = 440,
    limit: int = LIMIT,
    lowest: float = 1.0,
) -> go.Figure:
    """Queries down, keys to the right, one head. Weights run from 0 to 1 on one hue; scores have a sign.

    kind "masked" is the scores with the future hidden: its hidden cells must be in `masked`.
    query_start: the position of the first query, when earlier keys come from a cache. name: instead of the heads.
    """
    heads = "" if q_head is None else f"Q{q_head}" + ("" if kv_head is None else f" → KV{kv_head}")
    n, m = np.shape(weights)
    return value_map(
        weights,
        rows=query_labels,
        row_axis=t("figures.map.query"),
        col_axis=t("figures.map.key"),
        cols=key_labels,
        signed=kind != "weights",
        masked=masked,
        zmax=1.0 if kind == "weights" else None,
        dark=dark,
        name=heads if name is None else name,
        square=max(n, m) <= 3 * min(n, m),
        chosen=chosen,
        row_start=query_start,
        col_start=key_start,
        height=strip_height(n, m, height),
        limit=limit,
        lowest=lowest,
    )


def strip_height(rows: int, cols: int, height: int) -> int:
    """How tall a map is, `height` unless it is a strip: one query of a generated token needs no more to be read."""
    return height if cols <= 3 * rows else min(height, 210 + 40 * rows)


def name_rows(fig: go.Figure, names: Sequence[str]) -> go.Figure:
    """The same map with rows that are called so and nothing more: no number, no name of their axis."""
    layers, layout = taken(fig)
    label_rows(layout, list(map(plain, names)))
    layout["yaxis"]["title"] = {"text": ""}
    return figure(layers, layout)


def label_rows(layout: dict, texts: Sequence[str]) -> None:
    """Give the rows of a map these labels as they stand, beside it and in the hover. layout: of the map, changed."""
    for axis in ("yaxis", "yaxis2"):
        layout[axis] |= {"tickvals": list(range(len(texts))), "ticktext": texts}


def pick_layer(fig: go.Figure) -> go.Figure:
    """The same map with an invisible point over every cell: a click is then reported as x (column) and y (row).

    Plotly's heatmaps report no clicks to Streamlit. What a point says is its cell's; those of numbers, of masked cells
    and of each mark are traces of their own. Above `PICKABLE` cells a box is drawn instead (`dragmode="select"`): its
    x and y ranges are the window to show.
    """
    layers, layout = taken(fig)
    heat = layers[0]
    z = heat["z"]
    if z.size > PICKABLE or layout["meta"]["pooled"]:
        return figure(layers, layout | {"dragmode": "select", "clickmode": "none"})
    blank = np.isnan(z)
    number = ~blank
    points = [_points(heat, number, "%{customdata:.4~g}", customdata=z[number])]
    for flag in layers[1:]:
        if flag["name"] != "masked":
            flagged = ~np.isnan(flag["z"])
            blank &= ~flagged
            points.append(_points(heat, flagged, flag["name"], name=flag["name"]))
    if blank.any():
        points.append(_points(heat, blank, t("figures.map.masked"), name="masked"))
    clicks = {"hoverdistance": -1, "clickmode": "event+select"}
    return figure([*layers, *points], layout | clicks)


def _points(heat: dict, cells: np.ndarray, says: str, **more) -> dict:
    """Unseen points over these cells of a map, which a click can hit. heat: the map's trace; cells: as its z."""
    rows, cols = np.nonzero(cells)
    unseen = {"marker": {"opacity": 0}}
    return {
        "type": "scatter",
        "x": np.asarray(heat["x"])[cols],
        "y": np.asarray(heat["y"])[rows],
        "xaxis": "x2",
        "yaxis": "y2",
        "mode": "markers",
        "marker": {"opacity": 0, "size": 12},
        "selected": unseen,
        "unselected": unseen,
        "hovertemplate": heat["hovertemplate"].replace("%{z:.4~g}", says),
        "name": "",
        **more,
    }


def to_come(layers: list[dict], text: str) -> list[dict]:
    """The traces of a map whose blank cells are not masked, but still to come: their hovers say `text`."""
    masked = t("figures.map.masked")

    def said(layer: dict) -> dict:
        return layer | {"hovertemplate": layer["hovertemplate"].replace(masked, text)}

    return [said(layer) if layer.get("name") == "masked" else layer for layer in layers]


def notes(fig: go.Figure) -> list[str]:
    """What the caption of this map has to admit: pooling, clipping, masked and marked cells. Plain text."""
    meta = theme.meta_of(fig) or {}
    found = []
    if meta.get("pooled"):
        rows, cols = meta["pool"]
        found.append(t("figures.map.pooled", rows=rows, cols=numbers.exact(cols)))
    if meta.get("clipped"):
        found.append(
            t(
                "figures.map.clipped",
                limit=("±" if meta["signed"] else "") + numbers.short(meta["limit"]),
                n=numbers.exact(meta["clipped"]),
                largest=numbers.short(meta["largest"]),
            )
        )
    if meta.get("masked"):
        found.append(t("figures.map.blank"))
    if meta.get("flagged"):
        found.append(t("figures.map.flagged", n=numbers.exact(meta["flagged"])))
    return found


def _check(values, rows, cols, masked) -> None:
    if values.ndim != 2:
        raise ValueError(f"A map needs rows and columns, but the array has shape {values.shape}.")
    for labels, size, name in ((rows, values.shape[0], "rows"), (cols, values.shape[1], "cols")):
        if labels is not None and len(labels) != size:
            raise ValueError(f"{len(labels)} labels for {size} {name}: there must be one for each position.")
    if masked is not None and masked.shape != values.shape:
        raise ValueError(f"The mask has shape {masked.shape}, the values have {values.shape}.")


def _limit(z: np.ndarray, percentile: float, zmax: float | None) -> tuple[float, int, float]:
    """(end of the scale, cells beyond it, largest size).

    Neither one value among thousands nor one row a hundred times larger than the others (a first token in
    the residual stream) may hide the rest: the end is a high percentile, at most three times the usual row's.
    """
    sizes = np.abs(z[~np.isnan(z)])
    largest = float(sizes.max()) if sizes.size else 0.0
    if zmax is None:
        usual = float(np.percentile(sizes, percentile, method="lower")) if sizes.size else 0.0
        if len(z) > 2 and usual > 0:
            whole = np.abs(z[~np.isnan(z).any(axis=1)])
            if len(whole) > 2:
                usual = min(usual, 3 * float(np.median(np.percentile(whole, percentile, axis=1))) or usual)
        zmax = usual if 0 < 3 * usual < largest else largest
    end = zmax if zmax > 0 else 1.0
    return end, int(np.count_nonzero(sizes > end * (1 + 1e-6))), largest


def _legend(end: float, signed: bool, clipped: bool, unit: str) -> dict:
    def written(x: float) -> str:
        return numbers.short(x, 2 if 1 <= abs(x) < 10 else 3).removesuffix(".0").removesuffix(".00")

    most, least = ("≥ ", "≤ ") if clipped else ("", "")
    ticks, texts = [0.0, end], ["0", f"{most}{written(end)} {plain(unit)}".rstrip()]
    if signed:
        ticks, texts = [-end, *ticks], [least + written(-end), *texts]
    return {
        "orientation": "h",
        "lenmode": "pixels",
        "len": _BAR_WIDTH,
        "x": 0,
        "xanchor": "left",
        "xpad": 26 if signed else 4,  # the first tick's text must not reach the row labels
        "y": 1,
        "yanchor": "bottom",
        "ypad": 4,
        "tickvals": ticks,
        "ticktext": texts,
    }


def _hover(x: Axis, y: Axis, value: str) -> str:
    return f"<b>{value}</b><br>{plain(y.name)} %{{y}}<br>{plain(x.name)} %{{x}}<extra></extra>"


def _inside(z: np.ndarray) -> dict:
    """Numbers inside the cells of a small map."""
    if z.size == 0 or max(z.shape) > 8:
        return {}
    return {
        "text": [["" if np.isnan(v) else numbers.cell(v) for v in row] for row in z],
        "texttemplate": "%{text}",
        "textfont": {"family": theme.MONO, "size": 11},
    }


def _layer(z: np.ndarray, x: np.ndarray | list, y: np.ndarray, scale: theme.Scale, hover: str, **more) -> dict:
    """One heatmap trace, on the axes whose ticks are the texts of the hover."""
    return {
        "type": "heatmap",
        "z": z,
        "x": x,
        "y": y,
        "xaxis": "x2",
        "yaxis": "y2",
        "colorscale": scale,
        "hovertemplate": hover,
        **more,
    }


def _ground(x: Axis, y: Axis, dark: bool) -> dict:
    """The tinted ground that shows, and answers the hover, where the map is blank: one wide cell a row."""
    return _layer(
        np.zeros((len(y.bins), 1), dtype=np.uint8),
        x.range,
        y.places,
        _flat(theme.tone(theme.SURFACE, dark)),
        f"<b>{t('figures.map.masked')}</b><br>{plain(y.name)} %{{y}}<extra></extra>",
        name="masked",
        showscale=False,
        zorder=-1,
    )


def _flag(cells: np.ndarray, text: str, x: Axis, y: Axis, dark: bool) -> dict:
    z, scale = np.where(cells, np.float32(1), np.float32(np.nan)), _flat(theme.tone(theme.WARNING, dark))
    more = {"name": text, "showscale": False, "hoverongaps": False}
    if max(cells.shape) <= 8:
        more |= {"text": np.where(cells, text, "").tolist(), "texttemplate": "%{text}", "textfont": {"size": 11}}
    return _layer(z, x.places, y.places, scale, _hover(x, y, text), **more)


def _flat(colour: str) -> theme.Scale:
    return [[0, colour], [1, colour]]


def _axes(x: Axis, y: Axis, tall: int, square: bool) -> dict[str, dict]:
    """Two axes a side: the one that is seen, thinned, and one under the map that knows every label for the hover."""
    seen_x = {"title": {"text": plain(x.name)}, "range": x.range, "side": "bottom"}
    if x.labels is not None or x.size <= 10:
        places, indices = x.ticks(_COL_LABEL)
        longest = max((len(x.labels[i]) for i in indices), default=0) if x.labels is not None else 0
        stacked = len(indices) * (min(longest, 10) * 7 + 8) <= _NARROW
        between = "<br>" if stacked else " "
        texts = [
            f"{text}{between}{place:.0f}" if (text := x.text(i, 10)) else f"{place:.0f}"
            for place, i in zip(places, indices, strict=True)
        ]
        angle = 0 if stacked else -45 if len(indices) <= 10 else -90
        seen_x |= {"tickvals": places, "ticktext": texts, "tickangle": angle}
    else:
        seen_x |= {"tickformat": ",d", "nticks": 9}
    places, indices = y.ticks(max(2, tall // _ROW_LABEL))
    texts = [
        f"{text} {place:.0f}" if (text := y.text(i, 14)) else f"{place:.0f}"
        for place, i in zip(places, indices, strict=True)
    ]
    seen_y = {"title": {"text": plain(y.name)}, "range": y.range[::-1], "tickvals": places, "ticktext": texts}
    quiet = {"showticklabels": False, "ticks": "", "showline": False, "automargin": False}
    axes = {
        "xaxis": seen_x,
        "yaxis": seen_y,
        "xaxis2": quiet
        | {"overlaying": "x", "matches": "x", "range": x.range, "tickvals": x.centres, "ticktext": x.hover()},
        "yaxis2": quiet
        | {"overlaying": "y", "matches": "y", "range": y.range[::-1], "tickvals": y.centres, "ticktext": y.hover()},
    }
    if square:
        for name, axis in axes.items():
            axis |= {"constrain": "domain", "constraintoward": "left" if name.startswith("x") else "top"}
        seen_y |= {"scaleanchor": "x", "scaleratio": 1}
    return axes


def _box(across: Sequence[float], down: Sequence[float], colour: str, width: int) -> dict:
    (x0, x1), (y0, y1) = across, down
    line = {"color": colour, "width": width}
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "xref": "x", "yref": "y", "line": line}


def _outline(chosen: tuple[int, int | None], x: Axis, dark: bool) -> dict:
    row, col = chosen
    ends = x.range if col is None else (col - 0.5, col + 0.5)
    return _box(ends, (row - 0.5, row + 0.5), theme.tone(theme.TEXT, dark), 1 if col is None else 2)


def _heading(name: str) -> dict:
    """The line above the legend."""
    return {
        "text": plain(name, 60),
        "x": 0,
        "y": 1,
        "xref": "x domain",
        "yref": "y domain",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": _TOP - 14,
        "showarrow": False,
        "font": {"size": 13},
    }
