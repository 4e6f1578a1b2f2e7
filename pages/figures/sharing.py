"""Who reads which keys: the drawing of groups, their colours, and what sharing changes and saves.

One hue per group of query heads, shades within it; after `len(HUES)` groups the hues come round again,
so neighbours always differ. The drawing is HTML with one SVG per group, which wraps on a narrow screen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .colours import ink
from .heatmap import value_map

# Okabe and Ito's, (light page, dark page), in an order in which neighbours stay apart.
HUES = (
    ("#0072b2", "#4f9fdc"),
    ("#d99100", "#e9a825"),
    ("#00936b", "#1fb98c"),
    ("#cc6fa7", "#eaa3cd"),
    ("#c94f00", "#ee7433"),
    ("#5bb4e8", "#86cdf7"),
    ("#7a6fc0", "#a79cf0"),
)
ACROSS = 8
"""Most query heads in one row of a group."""


def group_colour(kv: int, dark: bool) -> str:
    """The hue of the query heads that read key/value head `kv`."""
    return theme.tone(HUES[kv % len(HUES)], dark)


def head_colour(head: int, group: int, dark: bool) -> str:
    """The shade of one query head within its group's hue."""
    kv, place = divmod(head, group)
    return theme.blend(group_colour(kv, dark), theme.tone(theme.BACKGROUND, dark), 0.5 * place / max(1, group - 1))


# --- the drawing ---

_W, _H, _GAP, _DROP = 44, 26, 5, 40


def drawing(heads: int, kv_heads: int, chosen: int, *, dark: bool = False, room: int = 1040) -> str:
    """HTML: every query head, and a line from it to the key/value head that it reads. chosen: the head to light up.

    room: px across that the drawing may fill. Only numbers go in, so nothing has to be escaped but the words' own.
    """
    group = heads // kv_heads
    wide = (min(group, ACROSS) * (_W + _GAP) + 14) * kv_heads
    scale = min(2.2, max(1.0, room / wide))
    parts = [_group(kv, group, chosen, dark, scale) for kv in range(kv_heads)]
    label = t("sharing.drawing", heads=heads, kv=kv_heads)
    return (
        f'<div role="img" aria-label="{label}" style="display:flex;flex-wrap:wrap;gap:10px 14px;margin-bottom:1.1rem">'
        + "".join(parts)
    ) + "</div>"


def _group(kv: int, group: int, chosen: int, dark: bool, scale: float) -> str:
    across = min(group, ACROSS)
    rows = -(-group // ACROSS)
    width = max(across * (_W + _GAP) - _GAP, 2 * _W + _GAP) + 4
    bottom = 2 + rows * (_H + _GAP) - _GAP
    top, hue = bottom + _DROP, group_colour(kv, dark)
    left = (width - across * (_W + _GAP) + _GAP) / 2
    lit = chosen // group == kv
    boxes, lines = [], []
    for i in range(group):
        head = kv * group + i
        x, y = left + i % across * (_W + _GAP), 2 + i // across * (_H + _GAP)
        here = head == chosen
        boxes.append(_box(x, y, _W, f"Q{head}", head_colour(head, group, dark), here, dark))
        if rows == 1 or i >= group - across:  # in a block of several rows the lowest stand for all
            middle, end = x + _W / 2, width / 2
            lines.append(
                f'<path d="M{middle:.1f} {bottom}C{middle:.1f} {bottom + _DROP / 2} {end:.1f} {bottom + _DROP / 2} '
                f'{end:.1f} {top}" fill="none" stroke="{hue}" stroke-width="{2.6 if here else 1.4}" '
                f'stroke-opacity="{1 if here or not lit else 0.6}"/>'
            )
    half = (width - 4 - _GAP) / 2
    pair = _box(2, top, half, f"K{kv}", hue, lit, dark) + _box(2 + half + _GAP, top, half, f"V{kv}", hue, lit, dark)
    height = top + _H + 2
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width * scale:.0f}" style="max-width:100%;height:auto" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="12">'
        f"{''.join(lines)}{''.join(boxes)}{pair}</svg>"
    )


def _box(x: float, y: float, width: float, text: str, colour: str, lit: bool, dark: bool) -> str:
    frame = theme.tone(theme.TEXT, dark)
    edge = f'stroke="{frame}" stroke-width="2"' if lit else 'stroke="none"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_H}" rx="5" fill="{colour}" {edge}/>'
        f'<text x="{x + width / 2:.1f}" y="{y + 17:.1f}" text-anchor="middle" fill="{ink(colour)}">{text}</text>'
    )


def reading_rows(heads: int, kv_heads: int, *, dark: bool = False) -> str:
    """HTML: for each query head the key/value head it reads, once grouped and once tiled, in the groups' hues."""
    group = heads // kv_heads
    rows = {
        t("sharing.row.query"): [(f"Q{h}", head_colour(h, group, dark)) for h in range(heads)],
        t("sharing.row.grouped"): [(f"KV{h // group}", group_colour(h // group, dark)) for h in range(heads)],
        t("sharing.row.tiled"): [(f"KV{h % kv_heads}", group_colour(h % kv_heads, dark)) for h in range(heads)],
    }
    body = "".join(
        f"<tr><th>{name}</th>"
        + "".join(f'<td style="background:{colour};color:{ink(colour)}">{text}</td>' for text, colour in cells)
        + "</tr>"
        for name, cells in rows.items()
    )
    return f'<div class="gl-wide"><table class="gl-reads">{body}</table></div>'


# --- figures ---


def cache_bars(
    names: Sequence[str], amounts: Sequence[int], own: int, *, dark: bool = False, height: int = 190
) -> go.Figure:
    """Bytes of the KV cache for each way of sharing, the model's own (number `own`) in full colour."""
    colour, page = theme.kind_colour("key", dark), theme.tone(theme.BACKGROUND, dark)
    layers = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [float(amount) for amount in amounts],
            "y": list(range(len(names))),
            "text": [numbers.bytes_(amount) for amount in amounts],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": [colour if i == own else theme.blend(page, colour, 0.4) for i in range(len(names))]},
            "customdata": [numbers.exact(amount) for amount in amounts],
            "hovertemplate": "%{customdata} B<extra></extra>",
        }
    ]
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 4, "b": 4},
        "bargap": 0.35,
        "xaxis": {"visible": False, "range": [0, float(max(amounts)) * 1.28]},
        "yaxis": {
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(len(names))),
            "ticktext": [theme.plain(name) for name in names],
        },
        "meta": {
            "alt": t(
                "sharing.bars.alt",
                bars=", ".join(f"{n} {numbers.bytes_(a)}" for n, a in zip(names, amounts, strict=True)),
            )
        },
    }
    return theme.figure(layers, layout, dark)


def likeness(cosines: np.ndarray, group: int, *, chosen: int | None = None, dark: bool = False) -> go.Figure:
    """Cosine between the weights of every two query heads, the groups framed in their hues. cosines: [Hq Hq]"""
    figure = value_map(
        cosines,
        rows=None,
        row_axis=t("sharing.head"),
        col_axis=t("sharing.head"),
        signed=False,
        zmax=1.0,
        square=True,
        dark=dark,
        height=450,
        name=t("sharing.likeness.name"),
        chosen=None if chosen is None else (chosen, None),
    )
    (heat, *others), layout = theme.taken(figure)
    begin = _begin(cosines)
    heat["zmin"] = begin
    heat["colorbar"] |= {"tickvals": [begin, 1.0], "ticktext": [numbers.short(begin, 1) if begin else "0", "1"]}
    layout["meta"]["begin"] = begin
    layout["shapes"] = list(layout["shapes"]) + [
        {
            "type": "rect",
            "x0": kv * group - 0.5,
            "x1": (kv + 1) * group - 0.5,
            "y0": kv * group - 0.5,
            "y1": (kv + 1) * group - 0.5,
            "xref": "x",
            "yref": "y",
            "line": {"color": group_colour(kv, dark), "width": 3},
        }
        for kv in range(len(cosines) // group)
    ]
    return theme.figure([heat, *others], layout)


def _begin(cosines: np.ndarray) -> float:
    """Where the colours begin: 0, or the tenth below the least cosine where all maps are much alike."""
    least = float(np.nanmin(cosines)) if np.isfinite(cosines).any() else 0.0
    return float(np.floor(10 * least) / 10) if 0.2 < least < 0.9999 else 0.0


def tiled_bars(differences: np.ndarray, group: int, rms: float, *, dark: bool = False, height: int = 300) -> go.Figure:
    """How far each head's output moves when heads are tiled, with the usual size of an output as a line."""
    heads = np.arange(len(differences))
    layers = [
        {
            "type": "bar",
            "x": heads,
            "y": differences.astype(np.float64),
            "marker": {"color": [head_colour(int(h), group, dark) for h in heads]},
            "showlegend": False,
            "hovertemplate": f"{t('sharing.head')} %{{x}}<br>%{{y:.4~g}}<extra></extra>",
        }
    ]
    muted = theme.tone(theme.MUTED, dark)
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "bargap": 0.25,
        "xaxis": {"title": {"text": t("sharing.head")}, "range": [-0.6, len(heads) - 0.4]}
        | ({"dtick": 1} if len(heads) <= 16 else {}),
        "yaxis": {"title": {"text": t("sharing.tiled.axis")}, "rangemode": "tozero"},
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": rms,
                "y1": rms,
                "line": {"color": muted, "width": 1, "dash": "dash"},
                "showlegend": True,
                "name": t("sharing.tiled.rms", rms=numbers.short(rms)),
            }
        ],
        "meta": {
            "alt": t(
                "sharing.tiled.alt",
                heads=len(heads),
                low=numbers.short(differences.min()),
                high=numbers.short(differences.max()),
            )
        },
    }
    return theme.figure(layers, layout, dark)
