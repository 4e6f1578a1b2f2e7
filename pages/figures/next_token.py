"""The most likely next tokens, as bars with their probabilities beside them. HTML: it is there before plotly is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from pages.words import t

from . import numbers
from .theme import visible


def next_tokens(labels: Sequence[str], probabilities: Sequence[float] | np.ndarray, *, top: int = 10) -> str:
    """HTML of horizontal bars, the most likely at the top: labels[i] has probabilities[i]. Two may have the same text.

    Bars are as long as their share of the longest one; its style is `.gl-bars` in assets/app.css. Texts are escaped.
    """
    p = np.asarray(probabilities, dtype=np.float32)
    if p.ndim != 1 or len(labels) != p.size:
        raise ValueError(f"{len(labels)} labels for probabilities of shape {p.shape}: one label each is needed.")
    order = np.argsort(-p, kind="stable")[:top]
    if not order.size:
        return f'<p class="gl-caption">{escape(t("figures.next.none"))}</p>'
    longest = max(float(p[order[0]]), 1e-9)
    rows = "".join(_row(visible(labels[i]), float(p[i]), float(p[i]) / longest) for i in order)
    return f'<ol class="gl-bars" aria-label="{escape(t("figures.next.alt"), quote=True)}">{rows}</ol>'


def _row(label: str, probability: float, length: float) -> str:
    hover = escape(f"{label}: {probability:.4g}", quote=True)
    bar = f'<span style="width:{100 * length:.2f}%"></span>'
    return f'<li title="{hover}"><bdi>{escape(label)}</bdi><div>{bar}{numbers.percent(probability)}</div></li>'
