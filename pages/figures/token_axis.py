"""Whole things along an axis: layers, channels, the tokens of a prompt. Numbers are positions, texts what is there."""

from __future__ import annotations

from collections.abc import Sequence

from .pooling import Axis, bins
from .theme import plain


def counted(n: int, *, start: int = 0, room: int = 16) -> dict[str, object]:
    """Range and ticks of an axis of n whole things, the first of which is number `start`. room: most ticks."""
    axis = Axis("", None, bins(n), start)
    return {"range": axis.range, "tickvals": axis.ticks(room)[0], "tickformat": "d"}


def across(
    labels: Sequence[str], came: Sequence[str] = (), *, room: int = 18, letters: int = 10, start: int = 0
) -> dict[str, object]:
    """Tick properties of an x axis whose places are positions: a text under each position, aslant and thinned where
    there are too many.

    came: what came after each, written under it where there is room. room: most labels; letters: most letters of each.
    start: the position of the first.
    """
    axis = Axis("", labels, bins(len(labels), max(len(labels), 1)), start)
    places, indices = axis.ticks(room)
    longest = max(min(len(labels[i]), letters) for i in indices)
    flat = len(indices) == len(labels) and len(indices) * (longest * 7 + 14) <= 900
    if flat:
        after = [f"<br>→ {plain(came[i], letters)}" if i < len(came) else "" for i in indices]
        texts = [f"{start + i}<br>{axis.text(i, letters)}{more}" for i, more in zip(indices, after, strict=True)]
    else:
        texts = [f"{axis.text(i, letters)} {start + i}" for i in indices]
    angle = {"autotickangles": [0, -60]} if flat else {"tickangle": -60}  # upright where there is room after all
    return {"tickvals": places, "ticktext": texts, **angle}
