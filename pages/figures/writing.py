"""What the model wrote: the line on which a draw fell, in HTML, and how surprising each token was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go

from pages.words import t

from . import numbers, theme
from .loss import loss_bars
from .theme import figure, taken

_WIDE = 0.08
"""Share of the line from which a part carries its token's text."""
_LEAST = 6
"""Width in px below which the part of the taken token does not fall."""


def drawn_line(names: Mapping[int, str], shares: np.ndarray, point: float, taken: int, alt: str) -> str:
    """A line from 0 to 1: each token's part is as wide as its probability, and a mark where the draw fell.

    names: texts of the ranks that have a part of their own, the taken one's among them; those between share a part.
    shares [kept]: probabilities by rank. point: where the draw fell, in 0..1. taken: the rank that the mark is in.
    alt: the picture in words.
    """
    starts = np.concatenate([[0.0], np.cumsum(shares, dtype=np.float64)])
    parts, after = [], 0
    for rank in sorted(names):
        parts += [_others(rank - after, starts[rank] - starts[after])] if rank > after else []
        share = float(shares[rank])
        if rank == taken:
            parts.append(_taken(names[rank], share, point, float(starts[rank])))
        else:
            parts.append(_part(names[rank], share))
        after = rank + 1
    if len(shares) > after:
        parts.append(_others(len(shares) - after, starts[-1] - starts[after]))
    room = ' style="margin-bottom: 26px"' if shares[taken] < _WIDE else ""
    return f'<div class="gl-draw" role="img" aria-label="{escape(alt, quote=True)}"{room}>{"".join(parts)}</div>'


def _part(text: str, share: float) -> str:
    shown = escape(text) if share >= _WIDE else ""
    return f'<span style="flex: {share:.6f} 1 0" title="{escape(text, quote=True)}">{shown}</span>'


def _others(n: int, share: float) -> str:
    return _part(t("write.draw.other" if n == 1 else "write.draw.others", n=numbers.exact(n)), share)


def _taken(text: str, share: float, point: float, start: float) -> str:
    """The part under the mark: never too thin to see, and where its text does not fit, that stands below it."""
    inside = min(max((point - start) / share, 0.0), 1.0) if share else 0.5
    mark = f'<u style="left: {100 * inside:.3f}%" title="{point:.3f}"></u>'
    shown, style = escape(text), f"flex: {share:.6f} 1 0; min-width: {_LEAST}px; position: relative; overflow: visible"
    if share < _WIDE:
        side = "left" if point < 0.5 else "right"  # towards the middle, where there is room
        shown = f'<b style="position: absolute; top: 100%; {side}: 0; margin-top: 3px">{shown}</b>'
        style += "; background: color-mix(in srgb, currentColor 60%, transparent)"
    return f'<span style="{style}" class=gl-here title="{escape(text, quote=True)}">{shown}{mark}</span>'


def surprise_bars(
    each: np.ndarray,
    mean: float,
    even: float,
    labels: Sequence[str],
    *,
    own: int,
    chosen: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """The loss at each position, of the prompt and of what the model wrote.

    each [T - 1], labels [T]. own: the first position after which the model's own token came; T - 1 where none did.
    """
    base = loss_bars(each, mean, even, labels, chosen=chosen, dark=dark, height=280, above=True)
    if own >= len(each):
        return base
    layers, layout = taken(base)
    edge, line = own - 0.5, {"color": theme.tone(theme.MUTED, dark), "width": 1, "dash": "dot"}
    border = {"type": "line", "yref": "paper", "x0": edge, "x1": edge, "y0": 0, "y1": 1, "line": line}
    layout["shapes"] = [*layout["shapes"], border | {"name": t("write.surprise.own"), "showlegend": True}]
    return figure(layers, layout)
