"""The parts of the page about RoPE: arrows, frequencies, layouts, what-if, proof."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core import steps
from llama_core.errors import ConfigError
from llama_core.steps import At
from llama_core.turning import (
    KINDS,
    LAYOUTS,
    Turned,
    Turning,
    WhatIf,
    angles,
    from_pairs,
    layout_difference,
    members,
    moved_score,
    original_context,
    shift_proof,
    turn,
    turned,
    turning_of,
    what_if,
)
from pages.figures import arrows as planes
from pages.figures import heatmap, numbers
from pages.figures import turning as figures
from pages.ui.frame import View, kept
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, sentence, table
from pages.ui.session import bind, session
from pages.ui.turn import turning_arrows
from pages.words import t

if TYPE_CHECKING:
    import plotly.graph_objects as go

TABLE_ROWS = 128
"""Positions in the table of angles: enough for the fast pairs to swing and the slow ones to stand still."""


def _say(text: str) -> None:
    st.html(f'<p class="gl-lead">{escape(text)}</p>')


def introduction() -> None:
    """Two sentences for whoever has never met RoPE."""
    _say(t("rope.lead"))


def _turning(view: View) -> Turning:
    return turning_of(view.trace.config, view.trace.dims["S"])


def _place(view: View) -> int:
    """The position that vectors are turned to: the chosen one, or the token's own."""
    place = session()["place"]
    return view.position if place is None else place


def _turned(view: View) -> Turned:
    where = (view.layer, view.head, session()["vector"], view.token, _place(view))
    return view.once(("turned", *where), lambda: turned(view.trace, *where))


def _end(view: View) -> int:
    """The last position of the context, or of the prompt where that is longer."""
    return max(view.trace.config.max_length, view.trace.dims["S"]) - 1


def _held(name: str, most: int) -> int | None:
    """A choice brought into this run's range, before a widget is bound to it."""
    asked = session()[name]
    if asked is not None and asked > most:
        session().values[name] = most
        sentence(t("note.clamped", name=name, asked=asked, used=most))
    return session()[name]


def _places(end: int, *more: int | None) -> list[int]:
    """0, 1, 2 … then ever larger steps up to `end`: what a slider offers, so that near and far are in reach."""
    return sorted({*_usual_places(end), *(place for place in more if place is not None)})


@cache
def _usual_places(end: int) -> tuple[int, ...]:
    near = range(min(end, 64) + 1)
    far = np.geomspace(64, end, 1 + int(8 * np.log2(end / 64))).round().astype(int).tolist() if end > 64 else []
    return (*near, *far)


# --- arrows ---


def arrows(view: View) -> None:
    """The chosen vector, pair by pair, before and after its turn; the position can be moved."""
    trace, own = view.trace, view.position
    chosen = _held("place", _end(view))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.segmented_control(
            t("rope.vector"),
            ("query", "key"),
            format_func=lambda name: t(f"rope.vector.{name}"),
            required=True,
            **bind("vector"),
        )
        st.select_slider(
            t("rope.place"),
            _places(_end(view), own, chosen),
            format_func=lambda n: t("rope.own", own=n) if n == own else numbers.exact(n),
            help=t("rope.place.help"),
            **bind("place", own),
        )
    vector, place = session()["vector"], _place(view)
    found = _turned(view)
    head = view.head if vector == "query" else view.head // trace.config.group
    shown = numbers.exact(place)
    name = t(f"rope.arrows.name.{vector}", head=head, layer=view.layer, token=view.words[view.token], position=shown)
    picture = planes.arrows(
        found.before,
        found.after,
        found.angle,
        members(len(found.angle), _turning(view).layout),
        kind=vector,
        dark=dark(),
        name=name,
    )
    pairs, drawn = len(found.angle), len(planes.shown_pairs(len(found.angle)))
    look = t("rope.arrows.look" if place else "rope.arrows.look.origin", position=shown)
    turning_arrows(picture, "arrows")
    caption(" ".join([look, *([t("rope.arrows.thinned", shown=drawn, pairs=pairs)] if drawn < pairs else [])]))
    _arrow_numbers(view, found, own)


def _arrow_numbers(view: View, found, own: int) -> None:
    before, after = (float(np.linalg.norm(arrow)) for arrow in (found.before, found.after))
    factor, last = _turning(view).factor, len(found.angle) - 1
    grown = (
        t("rope.number.after.same") if factor == 1 else t("rope.number.after.grown", factor=numbers.short(factor, 4))
    )
    numbers_grid(
        [
            (t("rope.number.before"), numbers.short(before, 5), repr(before), ""),
            (t("rope.number.after"), numbers.short(after, 5), repr(after), grown),
            _angle(t("rope.number.fast"), found.angle[0]),
            *([_angle(t("rope.number.slow", pair=last), found.angle[last])] if last else []),
            (
                t("rope.number.difference"),
                numbers.short(found.difference),
                repr(found.difference),
                t("rope.number.difference.small", own=own),
            ),
        ]
    )
    (source,) = view.trace.walk.sources(At(view.layer, steps.Q_ROT))
    if source.step is not steps.Q:
        caption(t("rope.read.norm", step=source.step.key if session()["vector"] == "query" else steps.K_NORM.key))
    if factor != 1:
        caption(t("rope.yarn", factor=numbers.short(factor, 4), square=numbers.short(factor**2, 4)))
    if view.trace.dtype != "float32":
        caption(t("rope.bfloat16", dtype=view.trace.dtype))


def _angle(label: str, angle: float) -> tuple[str, str, str, str]:
    turns = t("rope.number.turns", turns=numbers.short(angle / (2 * np.pi)))
    return label, turns, repr(float(angle)), t("rope.number.radians", radians=numbers.short(angle))


# --- frequencies ---


def frequencies(view: View) -> None:
    """The wavelength of each pair beside the lengths that matter, and the table of angles."""
    trace, turning = view.trace, _turning(view)
    lengths, context = turning.wavelengths, trace.config.max_length
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader(t("rope.wheel.title"), anchor=False)
        figure = kept(view, "rope.wavelengths", lambda: figures.wavelengths(lengths, _marks(trace), dark=dark()))
        longest = max(context, trace.dims["S"])
        look = t(
            "rope.wheel.look",
            full=int((lengths <= longest).sum()),
            still=int((lengths > 8 * longest).sum()),
            pairs=len(lengths),
        )
        chart(figure, "wavelengths", look=look)
    with right:
        st.subheader(t("rope.table.title"), anchor=False)
        rows, chosen = min(TABLE_ROWS, _end(view) + 1), _place(view)

        def made() -> go.Figure:
            return figures.angle_table(angles(np.arange(rows), turning.frequencies), chosen=chosen, dark=dark())

        figure = kept(view, ("rope.table", chosen), made)
        chart(figure, "table", heatmap.notes(figure), t("rope.table.look", rows=rows))


def _marks(trace) -> dict[str, float]:
    config, original = trace.config, original_context(trace.config)
    marks = {t("rope.mark.prompt"): trace.dims["S"], t("rope.mark.context"): config.max_length}
    return marks | ({t("rope.mark.original"): original} if original != config.max_length else {})


# --- layouts ---


def layouts(view: View) -> None:
    """The same vector under both layouts, and what the wrong one does to this query's scores."""
    st.subheader(t("rope.pairs.title"), anchor=False)
    trace, place, R = view.trace, _place(view), view.trace.dims["R"]
    found = _turned(view)
    before = from_pairs(found.before, _turning(view).layout)
    limit = float(np.percentile(np.abs(before), 97)) or 1.0
    for column, layout in zip(st.columns(2, gap="medium"), LAYOUTS, strict=True):
        used = layout == trace.config.rope_layout
        title = t(f"rope.pairs.{layout}", R=R)
        figure = figures.pairing(
            before,
            turn(before, place, _turning(view).with_layout(layout)),
            members(R, layout),
            limit=limit,
            dark=dark(),
            name=f"{title} · {t('rope.pairs.used' if used else 'rope.pairs.not_used')}",
        )
        step = -(-R // figures.ARCS)
        look = t(
            "rope.pairs.look",
            title=title,
            position=numbers.exact(place),
            drawn=t("rope.pairs.drawn", step=step) if step > 1 else "",
        )
        with column:
            chart(figure, f"layout.{layout}", look=look)
    _wrong_layout(view)
    _by_hand()


def _wrong_layout(view: View) -> None:
    where = (view.layer, view.head, view.token)
    found = view.once(("layout", *where), lambda: layout_difference(view.trace, *where))
    if view.trace.dims["R"] == 1:
        _say(t("rope.pairs.say.one"))
        return
    layout = t(f"rope.pairs.as.{view.trace.config.rope_layout}", R=view.trace.dims["R"])
    if view.trace.past + view.token == 0:
        _say(t("rope.pairs.say.origin", layout=layout))
        return
    _say(
        t(
            "rope.pairs.say",
            token=view.words[view.token],
            largest=numbers.short(found.largest),
            reach=numbers.short(float(np.abs(found.own).max())),
            layout=layout,
        )
    )


def _by_hand() -> None:
    caption(t("rope.hand"))
    table((t("rope.hand.layout"), t("rope.hand.dims"), "0", "1", "2", "3"), _turned_by_hand())


@cache
def _turned_by_hand() -> tuple[tuple[str, ...], ...]:
    """(1, 2, 3, 4) turned to position 1 in each layout: the same for every model."""
    frequencies = np.array([1, 10000**-0.5], dtype=np.float32)
    rows = []
    for layout in LAYOUTS:
        values = turn(np.arange(1.0, 5.0), 1, Turning(frequencies, 1.0, layout), np.float64)
        pairs = " ".join(f"({a}, {b})" for a, b in members(2, layout))
        rows.append((t(f"rope.pairs.{layout}", R=2), pairs, *(f"{value:.5f}" for value in values)))
    return tuple(rows)


# --- what if ---

BASES = (100.0, 1000.0, 5000.0, 10000.0, 50000.0, 1e5, 5e5, 1e6, 5e6, 1e7)
FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
CONTEXTS = tuple(2**n for n in range(6, 18))
TURNS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
ENDS = {"llama3": (1.0, 4.0), "yarn": (1.0, 32.0)}
"""Turns within the context of training where each kind begins to blend and ends, unless moved."""


def what_if_scaling(view: View) -> None:
    """Frequencies under another base and scaling, beside the model's own."""
    st.subheader(t("rope.if.title"), anchor=False)
    config, here = view.trace.config, session()
    kind = here["if_kind"]
    _what_if_controls(config)
    base, original = (here[name] or own for name, own in _own(config).items())
    low, high = (
        here[name] or end for name, end in zip(("if_low", "if_high"), ENDS.get(kind, (None,) * 2), strict=True)
    )
    try:
        found = what_if(config, kind, base=base, factor=here["if_factor"], original=original, low=low, high=high)
    except ConfigError as error:
        sentence(str(error), "error")
        return
    caption(_what_if_says(kind, found, original, here["if_factor"]))
    asked = (kind, base, original, here["if_factor"], low, high)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        curves = partial(_what_if_curves, view, kind, base, original, found)
        chart(kept(view, ("rope.if.curves", *asked), curves), "what_if", look=t("rope.if.look"))
    with right:
        slower = partial(figures.slower, found.plain / found.changed, dark=dark())
        chart(kept(view, ("rope.if.slower", *asked), slower), "slower", look=t("rope.if.stretch.look"))


def _what_if_curves(view: View, kind: str, base: float, original: int, found: WhatIf) -> go.Figure:
    config = view.trace.config
    own_kind = "none" if config.rope_scaling is None else config.rope_scaling.kind
    stretched = {t("rope.mark.stretched"): found.length} if found.length != original else {}
    return figures.wavelengths(
        _turning(view).wavelengths,
        {t("rope.mark.original"): original} | stretched,
        others={
            t("rope.if.plain", base=_number(base)): 2 * np.pi / found.plain,
            t("rope.if.changed", kind=t(f"rope.if.kind.{kind}"), base=_number(base)): 2 * np.pi / found.changed,
        },
        name=t("rope.if.own", base=_number(config.rope_theta), kind=t(f"rope.if.kind.{own_kind}")),
        dark=dark(),
    )


def _own(config) -> dict[str, float]:
    return {"if_base": config.rope_theta, "if_original": original_context(config)}


def _number(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) else f"{x:g}"


def _offered(name: str, usual: Iterable[float], own: float | None) -> list[float]:
    return sorted({*usual, *(value for value in (own, session()[name]) if value is not None)})


def _what_if_controls(config) -> None:
    kind = session()["if_kind"]
    st.segmented_control(
        t("rope.if.kind"), KINDS, format_func=lambda k: t(f"rope.if.kind.{k}"), required=True, **bind("if_kind")
    )
    own = _own(config)

    def slider(name: str, label: str, usual: Iterable[float], value: float | None, **more) -> None:
        st.select_slider(label, _offered(name, usual, value), format_func=_number, **bind(name, value), **more)

    with st.container(horizontal=True):
        slider("if_base", t("rope.if.base"), BASES, own["if_base"], help=t("rope.if.base.help"))
        slider("if_original", t("rope.if.original"), CONTEXTS, own["if_original"])
        if kind == "none":
            return
        slider("if_factor", t("rope.if.factor"), FACTORS, None, help=t("rope.if.factor.help"))
        for name, end in zip(("if_low", "if_high"), ENDS.get(kind, ()), strict=False):
            slider(name, t(f"rope.{name.replace('_', '.')}.{kind}"), TURNS, end)


def _what_if_says(kind: str, found, original: int, factor: float) -> str:
    return t(
        f"rope.if.{kind}.say",
        factor=_number(factor),
        length=numbers.exact(found.length),
        original=numbers.exact(original),
        pairs=len(found.changed),
        kept=found.kept,
        blended=found.blended,
        divided=found.divided,
        grown=numbers.short(found.factor, 4),
        square=numbers.short(found.factor**2, 4),
    )


# --- the proof ---


def proof(view: View) -> None:
    """A query and a key of this run, moved on together: their score stays."""
    st.subheader(t("rope.proof.title"), anchor=False)
    trace, words = view.trace, view.words
    key = _held("reads", trace.dims["T"] - 1)
    key = max(0, view.token - 1) if key is None else key
    where = (view.layer, view.head, view.token, key)
    found = view.once(("shift", *where), lambda: shift_proof(trace, *where))
    m, n = trace.past + view.token, trace.past + key
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.selectbox(
            t("rope.key"),
            range(trace.dims["T"]),
            format_func=lambda i: f"{trace.past + i} · {plain_markdown(words[i])}",
            width=200,
            **bind("reads", key),
        )
        shift = _shift(view, max(m, n))
    left, right = st.columns(2, gap="medium")
    with left:
        figure = heatmap.value_map(
            found.table,
            rows=None,
            row_axis=t("rope.proof.row"),
            col_axis=t("rope.proof.column"),
            percentile=100,
            square=True,
            dark=dark(),
            name=t("rope.proof.table"),
            height=380,
            chosen=(m, n) if max(m, n) < len(found.table) else None,
        )
        look = t("rope.proof.table.look", query=f"{words[view.token]} {m}", key=f"{words[key]} {n}")
        chart(figure, "stripes", heatmap.notes(figure), look)
    with right:
        curves = {t("rope.distance.from", start=0): found.along}
        if found.start:
            curves[t("rope.distance.from", start=numbers.exact(found.start))] = found.far
        here = (m - n, found.score) if 0 <= m - n < len(found.distances) else None
        figure = figures.along_distance(found.distances, curves, chosen=here, dark=dark(), height=380)
        chart(figure, "distance", look=t("rope.distance.look" if found.start else "rope.distance.look.one"))
    _proof_numbers(view, found, m, n, shift)


def _shift(view: View, last: int) -> int:
    """The slider of the shift, unless the context has no room for one."""
    most = _end(view) - last
    shift = min(session()["shift"], most)
    if most > 0:
        session().values["shift"] = shift  # a shorter context than the link's: the nearest that fits
        st.select_slider(
            t("rope.shift"),
            _places(most, shift),
            format_func=numbers.exact,
            help=t("rope.shift.help"),
            **bind("shift"),
        )
    return shift


def _proof_numbers(view: View, found, m: int, n: int, shift: int) -> None:
    moved = moved_score(view.trace, view.layer, view.head, view.token, n - view.trace.past, shift)
    numbers_grid(
        [
            (
                t("rope.number.captured"),
                numbers.short(found.captured, 6),
                repr(found.captured),
                t("rope.number.captured.small", difference=numbers.signed(found.score - found.captured)),
            ),
            (t("rope.number.score", m=m, n=n), numbers.short(found.score, 6), repr(found.score), ""),
            (
                t("rope.number.moved", m=numbers.exact(m + shift), n=numbers.exact(n + shift)),
                numbers.short(moved, 6),
                repr(moved),
                t("rope.number.moved.small", difference=numbers.signed(moved - found.score)),
            ),
            (
                t("rope.number.largest", n=len(found.shifts)),
                numbers.short(found.largest),
                repr(found.largest),
                t("rope.number.largest.small"),
            ),
            (
                t("rope.number.exact"),
                numbers.short(found.exact),
                repr(found.exact),
                t("rope.number.exact.small"),
            ),
        ]
    )
    caption(t("rope.proof.say", Dh=view.trace.dims["Dh"]))
    if getattr(view.trace.config.rope_scaling, "kind", "") == "dynamic":
        caption(t("rope.proof.dynamic"))
