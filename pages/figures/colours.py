"""The colour of each kind of step, the same on every page, and what can be read on it. No plotly: drawings use it too.

The hues are Okabe and Ito's, which stay apart under colour blindness; each has one tone for a light
page and one for a dark page.
"""

from __future__ import annotations

from llama_core.steps import Kind

TEXT = ("#1c2128", "#e3e7ec")
KIND_COLOURS: dict[Kind, tuple[str, str]] = {
    "residual": ("#636b75", "#848e99"),
    "norm": ("#d99100", "#e9a825"),
    "query": ("#5bb4e8", "#86cdf7"),
    "key": ("#00936b", "#1fb98c"),
    "value": ("#cc6fa7", "#eaa3cd"),
    "attention": ("#0060a0", "#3a86d0"),
    "mlp": ("#c94f00", "#ee7433"),
    "head": TEXT,
}


def ink(colour: str) -> str:
    """Black or white, whichever stands out more on a colour "#rrggbb" (WCAG's relative luminance)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return "#000000" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 else "#ffffff"
