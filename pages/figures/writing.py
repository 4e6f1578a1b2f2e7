"""How a token was drawn: those that were left side by side, and where the draw fell. HTML; plotly is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDE = 0.04
"""Share of the line from which a part carries its token's text."""


def drawn_line(labels: Sequence[str], shares: Sequence[float], rest: float, point: float, taken: int, alt: str) -> str:
    """A line from 0 to 1: each token's part is as wide as its probability, and a mark where the draw fell.

    rest: what all others have together, at the right end. taken: the part that the mark is in; len(labels) for the
    rest. alt: the picture in words.
    """
    parts = [*zip(labels, shares, strict=True), *([("…", rest)] if rest > 0 else [])]
    cells = "".join(_part(text, share, i == taken) for i, (text, share) in enumerate(parts))
    mark = f'<u style="left: {100 * point:.3f}%" title="{point:.3f}"></u>'
    return f'<div class="gl-draw" role="img" aria-label="{escape(alt, quote=True)}">{cells}{mark}</div>'


def _part(text: str, share: float, taken: bool) -> str:
    here = " class=gl-here" if taken else ""
    shown = escape(text) if share >= _WIDE else ""
    return f'<span style="flex: {share:.6f} 1 0"{here} title="{escape(text, quote=True)}">{shown}</span>'
