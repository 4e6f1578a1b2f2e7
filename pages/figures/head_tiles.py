"""The maps of many heads as one picture: tiles of one image of bytes, each a head that can be picked.

As subplots they would be ten times as large to send. Two bytes are kept for what is no weight: the gap
between tiles, and cells whose queries may see none of their keys. The image is a PNG with a palette.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from . import theme
from .head_map import DECADES, log_bar, log_scale, logarithm
from .theme import figure, plain, taken

_LEGEND = 32

CELLS = 400_000
"""Most cells of all tiles together."""

_GAP, _GROUP = 0.07, 0.1  # widths of a tile: between tiles, more between groups
_BLOCK, _TITLE, _LINE = 34, 24, 19  # px: for a layer's number beside a block, a line above a tile, one of a header
_GONE, _HIDDEN, _LEAST = 0, 1, 2  # bytes: no cell; one that is masked; a weight of zero (255 is a weight of one)


@dataclass(frozen=True)
class Header:
    """Names of rows (x, y, text), columns (x, text) and groups of columns (from, to, text), in tiles."""

    rows: list[tuple[float, float, str]]
    cols: list[tuple[float, str]]
    groups: list[tuple[float, float, str]]

    def texts(self, dark: bool) -> list[dict]:
        middle = {"xanchor": "center"}
        return [
            *(_text(x, y, text, dark) | {"xanchor": "right", "yanchor": "middle"} for x, y, text in self.rows),
            *(_text(x, 0, text, dark) | middle for x, text in self.cols),
            *(_text((a + b) / 2, 0, text, dark) | middle | {"yshift": _LINE} for a, b, text in self.groups),
        ]


@dataclass(frozen=True)
class Plan:
    """Where tiles stand. places: (row, column) of each; rows, cols: the space before each row and column, in tiles.

    tile: px that a tile is wide where there is room.
    """

    places: list[tuple[int, int]]
    rows: list[float]
    cols: list[float]
    tile: float

    @property
    def wide(self) -> float:
        return len(self.cols) + sum(self.cols)

    @property
    def tall(self) -> float:
        return len(self.rows) + sum(self.rows)


def plan_layer(heads: int, group: int, width: float = 620, height: float = 600) -> Plan:
    """The heads of one layer, group by group, as large as fits into so many px."""
    best: Plan | None = None
    for across in range(1, heads + 1):
        if group > 1 and across % group and group % across:
            continue  # a group would begin anywhere
        down = ceil(heads / across)
        tile = max(8.0, min(width / (across * (1 + _GAP)), height / down - _TITLE))
        if best is None or tile > best.tile:
            cols = [_GAP + (_GROUP if group > 1 and c and c % group == 0 else 0) for c in range(across)]
            best = Plan([divmod(h, across) for h in range(heads)], [_TITLE / tile] * down, cols, tile)
    assert best is not None
    return best


def plan_all(layers: int, heads: int, group: int, width: float = 1000, height: float = 800) -> Plan:
    """Layers down, heads to the right, in as few blocks side by side as keep it within the height.

    Tiles become no narrower than 24 px for that: a picture of many heads is rather taller.
    """
    found: Plan | None = None
    for blocks in range(1, layers + 1):
        down, across = ceil(layers / blocks), blocks * heads
        steps = [_GAP + (_GROUP if group > 1 and c % heads and c % heads % group == 0 else 0) for c in range(across)]
        tile = min((width - blocks * _BLOCK) / (across + sum(steps)), 110.0)
        if found is not None and tile < 24:
            break
        cols = [step + (_BLOCK / tile if c % heads == 0 else 0) for c, step in enumerate(steps)]
        places = [(layer % down, layer // down * heads + head) for layer in range(layers) for head in range(heads)]
        found = Plan(places, [_GAP] * down, cols, max(tile, 8.0))
        if found.tall * tile <= height:
            break
    assert found is not None
    return found


def row_of(tiles: int, width: float = 1000, tile: float = 160) -> Plan:
    """So many tiles in one row, with a line above each."""
    tile = min(tile, width / (tiles * (1 + _GAP)))
    return Plan([(0, i) for i in range(tiles)], [_TITLE / tile], [_GAP] * tiles, tile)


def side_for(tiles: int) -> int:
    """Most rows and columns of one tile among so many."""
    return max(8, min(160, isqrt(CELLS // max(tiles, 1))))


def head_tiles(
    maps: np.ndarray,
    hidden: np.ndarray,
    plan: Plan,
    *,
    hovers: Sequence[str],
    alt: str,
    titles: Sequence[str] = (),
    header: Header | None = None,
    log: bool = False,
    dark: bool = False,
) -> go.Figure:
    """One picture of maps [n h w] uint8 (255 is a weight of 1), each where the plan puts it.

    hidden: cells that are blank, [h w] or [n h w] bool. titles: a line above each tile; header: names of rows and
    columns instead. hovers: plotly's markup, its texts from outside already plain.
    A click reports the tile as `point_index`.
    """
    maps, hidden = _reduced(maps, np.broadcast_to(hidden, maps.shape), side_for(len(maps)))
    _, h, w = maps.shape
    down, across = (n * ceil(plan.tile / n) for n in (h, w))  # pixels of a tile: gaps are whole ones
    corners = _corners(plan)
    heat = {
        "type": "image",
        "source": _png(_mosaic(_bytes(maps, hidden, log), corners, down, across), _scale(log, dark)),
        "x0": 0.5 / across,  # the middle of the first pixel
        "y0": 0.5 / down,
        "dx": 1 / across,
        "dy": 1 / down,
        "hoverinfo": "skip",
    }
    frames = [_frame(x, y, theme.tone(theme.LINE, dark), 1) for x, y in corners]
    texts = [_text(x, y, plain(text, 24), dark) for (x, y), text in zip(corners, titles, strict=False)]
    top = _LEGEND if header is None else _LEGEND + 2 * _LINE
    if header is not None:
        texts += header.texts(dark)
        frames += [_line(x0, x1, dark) for x0, x1, _ in header.groups]
    axis = {"visible": False, "constrain": "domain"}
    layout = {
        "height": ceil(plan.tall * plan.tile) + top + 6,
        "margin": {"l": 4, "r": 4, "t": top, "b": 2},
        "xaxis": axis | {"range": [0, plan.wide], "constraintoward": "left"},
        "yaxis": axis | {"range": [plan.tall, 0], "constraintoward": "top", "scaleanchor": "x", "scaleratio": 1},
        "shapes": frames,
        "annotations": texts,
        "hoverdistance": -1,
        "clickmode": "event+select",
        "meta": {"alt": alt, "side": [h, w]},
    }
    return figure([heat, _points(corners, hovers, log, dark)], layout, dark)


def frame_tile(picture: go.Figure, plan: Plan, tile: int, dark: bool = False) -> go.Figure:
    """The same picture with a frame round one of its tiles."""
    layers, layout = taken(picture)
    frame = _frame(*_corners(plan)[tile], theme.tone(theme.TEXT, dark), 2.5)
    return figure(layers, layout | {"shapes": [*layout["shapes"], frame]})


def _corners(plan: Plan) -> list[tuple[float, float]]:
    """Where each tile begins, to the right and down."""
    xs, ys = _starts(plan.cols), _starts(plan.rows)
    return [(xs[col], ys[row]) for row, col in plan.places]


def _mosaic(tiles: np.ndarray, corners: Sequence[tuple[float, float]], down: int, across: int) -> np.ndarray:
    """All tiles in one array of bytes, each `down` by `across`, at the pixel that is nearest to its corner."""
    _, h, w = tiles.shape
    fine = tiles.repeat(down // h, axis=1).repeat(across // w, axis=2)
    places = [(round(y * down), round(x * across)) for x, y in corners]
    tall, wide = (max(ends) for ends in zip(*places, strict=True))
    whole = np.full((tall + down, wide + across), _GONE, dtype=np.uint8)
    for tile, (row, col) in zip(fine, places, strict=True):
        whole[row : row + down, col : col + across] = tile
    return whole


def _png(whole: np.ndarray, scale: theme.Scale) -> str:
    """The array as an image in the colours of the scale, as the address of itself."""
    places, colours = (
        [place for place, _ in scale],
        [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in scale],
    )
    palette = np.stack([np.interp(np.arange(256) / 255, places, part) for part in zip(*colours, strict=True)], axis=1)
    image = Image.fromarray(whole, "P")
    image.putpalette(np.rint(palette).astype(np.uint8).tobytes())
    with io.BytesIO() as file:
        image.save(file, "PNG", transparency=_GONE, compress_level=3)  # a tenth larger than 6, twice as fast
        return "data:image/png;base64," + b64encode(file.getvalue()).decode("ascii")


def _reduced(maps: np.ndarray, hidden: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of equal size, each its largest weight, until no more than `side` a side."""
    step = max(ceil(n / side) for n in maps.shape[1:])
    if step == 1:
        return maps, hidden
    down, across = (np.arange(0, n, step) for n in maps.shape[1:])
    maps = np.maximum.reduceat(np.maximum.reduceat(maps, down, axis=1), across, axis=2)
    return maps, np.logical_and.reduceat(np.logical_and.reduceat(hidden, down, axis=1), across, axis=2)


def _bytes(maps: np.ndarray, hidden: np.ndarray, log: bool) -> np.ndarray:
    table = np.arange(256, dtype=np.float32) / 255  # a byte's weight
    shares = logarithm(table) / DECADES if log else table
    levels = (_LEAST + np.rint(shares * (255 - _LEAST))).astype(np.uint8)
    return np.where(hidden, np.uint8(_HIDDEN), levels[maps])


def _starts(gaps: Sequence[float]) -> list[float]:
    """Where each tile, which is 1 wide, begins: a gap, which may be nothing, before each."""
    return [sum(gaps[: i + 1]) + i for i in range(len(gaps))]


def _scale(log: bool, dark: bool) -> theme.Scale:
    page, ground = theme.tone(theme.BACKGROUND, dark), theme.tone(theme.SURFACE, dark)
    first, second = (_HIDDEN - 0.5) / 255, (_LEAST - 0.5) / 255
    start, shades = _LEAST / 255, log_scale(dark) if log else theme.sequential(dark)
    weights = [[start + (1 - start) * place, colour] for place, colour in shades]
    return [[0, page], [first, page], [first, ground], [second, ground], [second, page], *weights]


def _points(corners: Sequence[tuple[float, float]], hovers: Sequence[str], log: bool, dark: bool) -> dict:
    """An invisible point in the middle of each tile: it answers hover and click, and carries the legend."""
    bar = {
        "orientation": "h",
        "lenmode": "pixels",
        "len": 150,
        "x": 0,
        "xanchor": "left",
        "xpad": 4,
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "ypad": 4,
        "thickness": 7,
        "outlinewidth": 0,
        "ticks": "",
        "tickvals": [0, 1],
        "ticktext": ["0", "1"],
        "tickfont": {"family": theme.MONO, "size": 11, "color": theme.tone(theme.MUTED, dark)},
    } | (log_bar() if log else {})
    return {
        "type": "scatter",
        "x": np.array([x + 0.5 for x, _ in corners], dtype=np.float32),
        "y": np.array([y + 0.5 for _, y in corners], dtype=np.float32),
        "mode": "markers",
        "marker": {
            "opacity": 0,
            "size": 12,
            "color": np.zeros(len(corners), dtype=np.float32),
            "cmin": 0,
            "cmax": DECADES if log else 1,
            "colorscale": log_scale(dark) if log else theme.sequential(dark),
            "showscale": True,
            "colorbar": bar,
        },
        "selected": {"marker": {"opacity": 0}},
        "unselected": {"marker": {"opacity": 0}},
        "hovertext": list(hovers),
        "hovertemplate": "%{hovertext}<extra></extra>",
        "name": "",
    }


def _frame(x: float, y: float, colour: str, width: float) -> dict:
    return {"type": "rect", "x0": x, "x1": x + 1, "y0": y, "y1": y + 1, "line": {"color": colour, "width": width}}


def _line(x0: float, x1: float, dark: bool) -> dict:
    """Over the columns of one group."""
    line = {"color": theme.tone(theme.MUTED, dark), "width": 1}
    ends = {"x0": x0, "x1": x1, "y0": _LINE, "y1": _LINE, "ysizemode": "pixel", "yanchor": 1}
    return {"type": "line", "xref": "x", "yref": "paper", "line": line, **ends}


def _text(x: float, y: float, text: str, dark: bool) -> dict:
    return {
        "x": x,
        "y": y,
        "text": text,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "borderpad": 0,
        "font": {"family": theme.MONO, "size": 11, "color": theme.tone(theme.MUTED, dark)},
    }


def header_all(plan: Plan, layers: int, heads: int, group: int) -> Header:
    """Of a `plan_all`: the number of each layer, query head and key/value head, in each block."""
    xs, ys = _starts(plan.cols), _starts(plan.rows)
    every = ceil(26 / plan.tile)  # where tiles are narrow not every head has room for its number
    firsts = [(layer, plan.places[layer * heads]) for layer in range(layers)]
    rows = [(xs[col] - 0.1, ys[row] + 0.5, str(layer)) for layer, (row, col) in firsts]
    cols = [(x + 0.5, f"Q{i % heads}") for i, x in enumerate(xs) if i % heads % every == 0]
    groups = [(xs[i], xs[i + group - 1] + 1, f"KV{i % heads // group}") for i in range(0, len(xs), group)]
    return Header(rows, cols, groups if group > 1 else [])
