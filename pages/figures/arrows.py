"""RoPE's turn as a drawing: each pair of a vector is an arrow in a plane of its own. `assets/arrows.js` plays it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Literal

import numpy as np

from pages.words import t

from . import numbers, theme

SHOWN = 32
"""Most planes in one drawing; of more pairs every second, third … is drawn."""

_PLANE, _TALL = 118, 140  # px: width of a plane, height of one with its label
_SMALLEST = 0.62  # of the largest circle's radius: a shorter arrow could not be read
_WEDGE = 0.62  # of the circle's radius


def shown_pairs(R: int) -> np.ndarray:
    """The pairs that `arrows` draws: all, or an even choice from the fastest on."""
    return np.arange(0, R, -(-R // SHOWN))


def arrows(
    before: np.ndarray,
    after: np.ndarray,
    angle: np.ndarray,
    dims: np.ndarray,
    *,
    kind: Literal["query", "key"],
    dark: bool = False,
    columns: int = 8,
    name: str = "",
) -> str:
    """HTML: under a title each arrow before (pale) and after (strong) its turn, and a button that plays it.

    before, after: [R 2]; angle: [R] radians, not reduced; dims: [R 2], the two dimensions of each pair. The area
    of a circle stands for the length of its pair, with a smallest size. The wedge is the turn modulo a full one.
    A pair that is not finite has an empty circle.
    """
    before, after = (np.asarray(each, dtype=np.float64) for each in (before, after))  # a length may be beyond float32
    pairs = shown_pairs(len(before))
    columns = min(columns, max(4, len(pairs)))
    sizes, turned = np.hypot(*before[pairs].T), np.hypot(*after[pairs].T)
    there = np.isfinite(before[pairs]).all(axis=1)
    shares = np.where(there, sizes, 0) / (sizes[there].max(initial=0) or 1.0)
    radii = 0.46 * _PLANE * np.sqrt(np.clip(shares, _SMALLEST**2, 1.0))
    starts = np.where(there, np.arctan2(before[pairs, 1], before[pairs, 0]), 0)
    each = zip(*(part.tolist() for part in (pairs, radii, starts, there, sizes, turned)), strict=True)
    planes = "".join(
        _plane(
            radius,
            start if seen else None,
            float(angle[r]),
            r,
            t(
                "rope.arrow.hover",
                pair=r,
                a=dims[r, 0],
                b=dims[r, 1],
                before=_point(before[r]),
                after=_point(after[r]),
                angle=numbers.short(angle[r]),
                turns=numbers.short(angle[r] / (2 * np.pi)),
                size=numbers.short(size),
                now=numbers.short(now),
            ),
        )
        for r, radius, start, seen, size, now in each
    )
    alt = t(
        "rope.arrow.alt",
        name=name,
        shown=len(pairs),
        pairs=len(before),
        first=degrees(angle[0]),
        last=degrees(angle[pairs[-1]]),
    )
    play = f'<button type="button" class="gl-play">{escape(t("rope.play"))}</button>' if np.any(angle[pairs]) else ""
    room = f"max-width:{_PLANE * columns}px"
    return (
        f'<div class="gl-head" style="{room}"><span>{escape(name)}</span>{play}</div>'
        f'<div class="gl-arrows" role="img" aria-label="{escape(alt, quote=True)}" '
        f'style="{room};--columns:{columns};{_colours(kind, dark)}">{planes}</div>'
    )


def _plane(radius: float, start: float | None, angle: float, pair: int, hover: str) -> str:
    """One circle with its two arrows. start, angle: radians; the browser plays from one to their sum."""
    inside, moves = "", ""
    if start is not None:
        tip = min(0.13 * _PLANE, 0.55 * radius)
        neck, half = radius - tip, 0.45 * tip
        arrow = f'<path d="M0 0H{neck:.1f}"/><path d="M{radius:.1f} 0L{neck:.1f} {half:.1f}V{-half:.1f}Z"/>'
        moves = f' data-start="{start:.6g}" data-angle="{angle!r}" data-radius="{_WEDGE * radius:.1f}"'
        inside = (
            f'<g class="gl-pale" transform="rotate({-math.degrees(start):.2f})">{arrow}</g>'
            f'<path class="gl-wedge" d="{wedge(start, angle, _WEDGE * radius)}"/>'
            f'<g class="gl-strong" transform="rotate({-math.degrees(start + angle) % 360:.2f})">{arrow}</g>'
        )
    return (
        f'<svg class="gl-plane" viewBox="{-_PLANE / 2:g} {-_PLANE / 2:g} {_PLANE} {_TALL}" data-pair="{pair}"{moves} '
        f'data-hover="{escape(hover, quote=True)}"><circle r="{radius:.1f}"/>{inside}'
        f'<text y="{0.62 * _PLANE:.0f}">{pair} · {degrees(angle)}</text></svg>'
    )


def wedge(start: float, angle: float, radius: float) -> str:
    """The path of a slice from `start` on, as far as `angle` without its whole turns: -pi to pi radians."""
    turn = _wrapped(angle)
    first, last = (f"{radius * math.cos(a):.1f} {-radius * math.sin(a):.1f}" for a in (start, start + turn))
    return f"M0 0L{first}A{radius:.1f} {radius:.1f} 0 0 {int(turn < 0)} {last}Z"


def degrees(radians: float) -> str:
    """An angle as it is drawn: whole turns left out, -180° to 180°."""
    found = math.degrees(_wrapped(radians))
    if 0 < abs(found) < 0.1:
        return "< 0.1°"
    return f"{found:.{0 if abs(found) >= 9.95 else 1}f}°".replace("-0°", "0°").replace("0.0°", "0°")


def _wrapped(radians: float) -> float:
    return (float(radians) + math.pi) % (2 * math.pi) - math.pi


def _point(v: Sequence[float]) -> str:
    return f"({numbers.short(v[0])}, {numbers.short(v[1])})"


def _colours(kind: Literal["query", "key"], dark: bool) -> str:
    colour, page = theme.kind_colour(kind, dark), theme.tone(theme.BACKGROUND, dark)
    found = {
        "strong": theme.blend(colour, "#ffffff" if dark else "#000000", 0.25),
        "pale": theme.blend(page, colour, 0.5),
        "wedge": theme.blend(page, colour, 0.28),
        "ring": theme.tone(theme.LINE, dark),
        "label": theme.tone(theme.MUTED, dark),
    }
    return ";".join(f"--{name}:{tone}" for name, tone in found.items())
