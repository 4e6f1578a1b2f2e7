"""What all figures share: colours, scales, the plotly template, text that cannot act, and `figure`.

Colour carries meaning and the same meaning everywhere, so it is asked for by kind. The
hues are Okabe and Ito's, which stay apart under colour blindness; each has one tone for
a light page and one for a dark page. `BACKGROUND`, `SURFACE` and `TEXT` repeat the theme
in .streamlit/config.toml (a test holds them equal): the neutral end of a scale is the page itself.
"""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from math import ceil, floor, isfinite, log10
from typing import Any

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import Kind

from .colours import KIND_COLOURS, TEXT

SANS = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace'

# (light page, dark page)
BACKGROUND = ("#ffffff", "#14171c")
SURFACE = ("#f4f5f7", "#1d2128")
MUTED = ("#646d78", "#929ba7")
LINE = ("#d9dde2", "#343b45")
ACCENT = ("#0067a8", "#58a6e8")
WARNING = ("#f5e600", "#f0e442")
"""Cells that are NaN or infinite, and nothing else."""

CONFIG: dict[str, object] = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtons": [["toImage"]],
    "scrollZoom": False,
    "doubleClick": False,
    "typesetMath": False,
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "glass-llama"},
}
"""For `st.plotly_chart(fig, theme=None, config=CONFIG)`: of the modebar only the download is left."""

PHONE = 290
"""px that a chart with names on its left leaves to what it shows, on a telephone."""

_LOG_TICKS = 7  # most numbers beside a logarithmic axis
_ACTIVE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"})


@lru_cache(1 << 12)
def plain(text: str, limit: int | None = None) -> str:
    """`text` as plotly must receive it to be drawn letter for letter, cut to `limit` letters.

    Plotly reads tags (<b>, <a href>), entities (&amp;), TeX between dollars and %{fields}.
    Line breaks, which it would turn into blanks, and characters that are invisible or that
    reorder their neighbours are shown as a sign or as their code.
    """
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    return visible(text).translate(_ACTIVE)


def visible(text: str) -> str:
    """`text` with line breaks, and characters that are invisible or reorder their neighbours, as a sign or a code."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(c: str) -> str:
    if c == "\n":
        return "↵"
    if c == "\t":
        return "⇥"
    category = unicodedata.category(c)
    if category == "Cc" or (category == "Cf" and c not in "\u200c\u200d\u00ad") or category in ("Zl", "Zp", "Cs"):
        return f"\\u{ord(c):04x}"  # zero-width joiners stay: words in several scripts need them
    return c


def tone(pair: tuple[str, str], dark: bool) -> str:
    """The half of a (light, dark) pair that this page needs."""
    return pair[1] if dark else pair[0]


def kind_colour(kind: Kind, dark: bool) -> str:
    """The colour of a kind of step, the same on every page."""
    return tone(KIND_COLOURS[kind], dark)


def blend(a: str, b: str, share: float) -> str:
    """`a` with a share of `b`, both "#rrggbb"."""
    pairs = ((int(a[i : i + 2], 16), int(b[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round((1 - share) * x + share * y):02x}" for x, y in pairs)


Scale = list[list[object]]


def diverging(dark: bool) -> Scale:
    """Blue below zero, orange above, and the page itself at zero."""
    middle = tone(BACKGROUND, dark)
    if dark:
        low, high = ("#a8d8ff", "#4593d6", "#25496b"), ("#ffcfa3", "#e0762f", "#66391c")
    else:
        low, high = ("#0a3d6b", "#3a86c0", "#b9d6ea"), ("#7d2c00", "#d9722b", "#f5d0b5")
    return [
        [0.0, low[0]],
        [0.22, low[1]],
        [0.4, low[2]],
        [0.5, middle],
        [0.6, high[2]],
        [0.78, high[1]],
        [1.0, high[0]],
    ]


def sequential(dark: bool, colour: str | None = None) -> Scale:
    """One hue from the page (zero) through `colour` to its strongest tone; blue if not said."""
    page, colour = tone(BACKGROUND, dark), colour or tone(KIND_COLOURS["attention"], dark)
    end = blend(colour, "#ffffff", 0.6) if dark else blend(colour, "#000000", 0.5)
    return [
        [0.0, page],
        [0.1, blend(page, colour, 0.2)],
        [0.35, blend(page, colour, 0.55)],
        [0.7, colour],
        [1.0, end],
    ]


def log_axis(values: Iterable[float]) -> dict[str, object]:
    """Type, range and ticks of a logarithmic axis on which the positive ones of `values` stand.

    At least fivefold from end to end, so that two numbers of 1, 2, 5, 10 are always on it.
    """
    places = [log10(value) for value in values if isfinite(value) and value > 0] or [0.0]
    low, high = min(places), max(places)
    room = max(0.06 * (high - low), (log10(5) + 0.01 - (high - low)) / 2)
    low, high = low - room, high + room
    powers = range(floor(low), ceil(high) + 1)
    ticks = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**n for n in powers for digit in digits if low <= n + log10(digit) <= high]
        if len(ticks) <= _LOG_TICKS:
            break
    ticks = ticks[:: ceil(len(ticks) / _LOG_TICKS)]
    return {"type": "log", "range": [low, high], "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def figure(data: Sequence[dict], layout: dict, dark: bool | None = None, frames: Sequence[dict] = ()) -> Picture:
    """The figure, made once from plain dicts: traces, each with its "type", and a layout.

    dark None: `layout` has its template.
    """
    if dark is not None:
        layout = {"template": template(dark), **layout}
    return Picture(list(data), layout, list(frames))


class Picture(go.Figure):
    """A figure that plotly takes apart only when somebody looks inside; to be sent, it need not be.

    Plotly checks and copies every property when a figure is made, and again when it is written as JSON: three
    quarters of the time that a page of small figures took. A test checks the figures of every kind instead. What is
    given must not be changed afterwards; `taken` gives copies, for another figure that is made out of this one.
    """

    def __init__(self, data: list[dict], layout: dict, frames: list[dict]) -> None:
        self._given = {"data": data, "layout": layout, "frames": frames}

    def __getattr__(self, name: str) -> Any:
        """What is not there yet is plotly's own: it is made now."""
        given = None if name.startswith("__") else self.__dict__.pop("_given", None)
        if given is None:
            raise AttributeError(name)
        super().__init__(*given.values(), _validate=False)
        return getattr(self, name)

    @property
    def layout(self) -> go.Layout:
        """As plotly's; to read it, the traces are left as they are."""
        given = self.__dict__.get("_given")
        if given is None:
            return super().layout
        if isinstance(given["layout"], dict):
            given["layout"] = go.Layout(_remade(given["layout"]), _validate=False)
        return given["layout"]

    def to_dict(self) -> dict:
        """As plotly's: arrays as base64, everything else a copy; but for the template, which is only read."""
        given = self.__dict__.get("_given")
        if given is None:
            return super().to_dict()
        layout = dict(_plain(given["layout"]))
        template = layout.pop("template", None)
        found = {name: _remade(part, _packed) for name, part in (given | {"layout": layout}).items()}
        if template is not None:
            found["layout"]["template"] = template
        return found if found["frames"] else {name: found[name] for name in ("data", "layout")}


def of_layout(picture: go.Figure, name: str) -> Any:
    """`picture.layout[name]`; a figure that plotly has not taken apart stays as it is."""
    given = picture.__dict__.get("_given")
    layout = picture.layout if given is None else given["layout"]
    return layout.get(name) if isinstance(layout, dict) else layout[name]


def meta_of(picture: go.Figure) -> dict[str, Any]:
    """What a page says about the figure: see `pages.figures`."""
    return of_layout(picture, "meta")


def taken(picture: Picture) -> tuple[list[dict], dict]:
    """Copies of a figure's traces and of its layout, to be changed and made into another; arrays are shared."""
    given = picture.__dict__.get("_given")
    if given is None:
        return [trace.to_plotly_json() for trace in picture.data], picture.layout.to_plotly_json()
    return _remade(given["data"]), _remade(_plain(given["layout"]))


def _plain(part: Any) -> Any:
    return part.to_plotly_json() if isinstance(part, go.Layout) else part


def _remade(value: Any, array: Callable[[np.ndarray], Any] = lambda x: x) -> Any:
    """The same in new dicts and lists, `array` of each array in it."""
    if isinstance(value, dict):
        return {key: _remade(each, array) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [each if type(each) in _SIMPLE else _remade(each, array) for each in value]
    return array(value) if isinstance(value, np.ndarray) else value


_SIMPLE = frozenset((str, int, float, bool, type(None)))


_TYPED = frozenset(("i1", "i2", "i4", "u1", "u2", "u4", "f4", "f8"))
"""Kinds of numbers that plotly reads as bytes."""


def _packed(x: np.ndarray) -> Any:
    """An array as plotly reads it fastest; one of texts, or with nothing in it, as a list."""
    if x.dtype.kind in "iu" and x.size:
        x = x.astype(np.result_type(np.min_scalar_type(x.min()), np.min_scalar_type(x.max())))
    name = x.dtype.str[1:]
    if name not in _TYPED or not x.size:
        return x.tolist()
    found = {"dtype": name, "bdata": b64encode(np.ascontiguousarray(x)).decode("ascii")}
    return found | {"shape": ", ".join(map(str, x.shape))} if x.ndim > 1 else found


def empty(text: str, *, dark: bool = False, height: int = 160) -> go.Figure:
    """A sentence where a figure would be, at the same height, so that nothing jumps."""
    sentence = {
        "text": plain(text),
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "showarrow": False,
        "font": {"color": tone(MUTED, dark)},
    }
    layout = {"height": height, "meta": {"alt": text}, "annotations": [sentence]}
    return figure([], layout | {"xaxis": {"visible": False}, "yaxis": {"visible": False}}, dark)


@cache
def template(dark: bool) -> dict:
    """Transparent paper, quiet axes, monospaced digits; the tensor is the loudest thing. Read it, never write to it."""
    text, muted, line = tone(TEXT, dark), tone(MUTED, dark), tone(LINE, dark)
    axis = {
        "showgrid": False,
        "zeroline": False,
        "showline": False,
        "linecolor": line,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": "rgba(0,0,0,0)",  # unseen: they keep the labels off the map
        "tickfont": {"family": MONO, "size": 11, "color": muted},
        "title": {"font": {"family": SANS, "size": 12, "color": muted}, "standoff": 8},
        "automargin": True,
        "fixedrange": True,
    }
    bar = {
        "thickness": 7,
        "outlinewidth": 0,
        "ticks": "",
        "ticklen": 0,
        "tickfont": {"family": MONO, "size": 11, "color": muted},
        "title": {"font": {"family": SANS, "size": 12, "color": muted}},
    }
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": SANS, "size": 12, "color": text},
            "title": {"font": {"family": SANS, "size": 13, "color": text}, "x": 0, "xref": "paper", "xanchor": "left"},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            # plotly counts from the axis line, and puts the name under the labels only where it would hit one of them
            "xaxis": axis | {"title": axis["title"] | {"standoff": 18}},
            "yaxis": deepcopy(axis),
            "colorway": [tone(pair, dark) for pair in KIND_COLOURS.values()],
            "coloraxis": {"colorbar": bar},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "hoverlabel": {
                "bgcolor": tone(SURFACE, dark),
                "bordercolor": line,
                "font": {"family": MONO, "size": 12, "color": text},
                "align": "left",
                "namelength": -1,
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": line, "activecolor": muted},
        },
        "data": {"heatmap": [{"type": "heatmap", "colorbar": deepcopy(bar)}]},
    }
