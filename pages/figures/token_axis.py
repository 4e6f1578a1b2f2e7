"""The tokens of a prompt along an axis: numbers are positions, texts only say what stands there."""

from __future__ import annotations

from collections.abc import Sequence

from .pooling import Axis, bins
from .theme import plain


def across(
    labels: Sequence[str], came: Sequence[str] = (), *, room: int = 18, letters: int = 10, start: int = 0
) -> dict[str, object]:
    """Tick properties of an x axis whose places are positions: a text under each position, thinned where too many.

    came: what came after each, written under it where there is room. room: most labels; letters: most letters of each.
    start: the position of the first.
    """
    axis = Axis("", labels, bins(len(labels), max(len(labels), 1)), start)
    places, indices = axis.ticks(room)
    longest = max(min(len(labels[i]), letters) for i in indices)
    flat = len(indices) * (longest * 7 + 14) <= 900
    if flat:
        after = [f"<br>→ {plain(came[i], letters)}" if i < len(came) else "" for i in indices]
        texts = [f"{start + i}<br>{axis.text(i, letters)}{more}" for i, more in zip(indices, after, strict=True)]
    else:
        texts = [f"{axis.text(i, letters)} {start + i}" for i in indices]
    return {"tickvals": places, "ticktext": texts, "tickangle": 0 if flat else -60}
