"""The parts of the Edit page: the list of edits or what invites to one, and what the edits change."""

from __future__ import annotations

from html import escape
from urllib.parse import urlencode

import numpy as np
import streamlit as st

from llama_core import effect as effects
from llama_core.effect import Effect
from llama_core.steps import RESID_IN, RESID_OUT, At
from pages.figures import heatmap, numbers
from pages.figures.effect import Frame, before_after, cone_map
from pages.figures.theme import meta_of
from pages.ui import edit_list
from pages.ui.edit_examples import invitation
from pages.ui.edit_form import form
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, sentence
from pages.ui.session import session
from pages.ui.waiting import Tell, once_slowly
from pages.words import t

BARS = 7
"""Tokens of each run, before and after, that are drawn."""
ROWS = 10


def lead(view: View) -> None:
    """What the page is about, and what rests meanwhile."""
    st.html(f'<p class="gl-lead">{escape(t("edit.lead"))}</p>')
    if view.passes.later:
        sentence(t("edit.written"))


def edits(view: View) -> None:
    """The list, or three edits to begin with; and the ways to another one."""
    entries = session().edits()
    if entries:
        edit_list.rows(view, entries)
    elif not view.trace.past:
        invitation(view)
    if session().refused:  # above the buttons: the form opens below them
        sentence(session().refused, "error")
    edit_list.ways(view, form)


def _compared(view: View) -> Effect | None:
    return None if view.passes.before is None else effects.effect(view.passes.before, view.passes.prompt)


def effect(view: View) -> None:
    """Before and after, side by side: where the stream moved, what comes next."""
    found = _compared(view)
    if found is None:
        return
    st.subheader(plain_markdown(t("edit.effect", token=view.words[view.token])), anchor=False)
    searched = _first(view, found)
    if searched is None:
        return
    (first,), stream = searched, view.once("edit.stream", found.stream)
    st.html(f'<p class="gl-lead">{escape(_verdict(view, found, first))}</p>')
    if first is None:
        return
    numbers_grid(_numbers_of(view, found, first))
    caption(t("edit.effect.kl.help"))
    map_, bars = st.columns([7, 5], gap="large")
    with map_:
        _cone(view, stream)
    with bars:
        _bars(view, found)


def _first(view: View, found: Effect) -> tuple[At | None] | None:
    """The first address that differs: to find it, cells of both runs are compared. None where that was stopped."""

    def search(tell: Tell) -> tuple[At | None]:
        total = len(found.before.walk)
        for n, (at, largest) in enumerate(found.changes()):
            tell(n / total)
            if largest > 0:
                return (at,)
        return (None,)

    return once_slowly(view, "edit.first", t("edit.effect.searching"), search)


def _verdict(view: View, found: Effect, first: At | None) -> str:
    if first is None:
        return t("edit.effect.none")
    p, q = found.probabilities(view.token)
    best, now = int(p.argmax()), int(q.argmax())
    words = {"token": view.words[view.token], "best": view.piece(best), "now": view.piece(now)}
    shares = {"before": numbers.percent(p[best]), "after": numbers.percent(q[best])}
    return t("edit.effect.same" if best == now else "edit.effect.other", **words, **shares)


def _numbers_of(view: View, found: Effect, at: At) -> list[tuple[str, str, str, str]]:
    p, q = found.probabilities(view.token)
    best = int(p.argmax())
    kl, rank = found.kl(view.token), int((q > q[best]).sum()) + 1
    logits = [float(trace["logits"][0, view.token, best]) for trace in (found.before, found.after)]
    moved, walk = logits[1] - logits[0], found.before.walk
    first = t("edit.effect.first.small", n=walk.index(at) + 1, total=len(walk))
    token = view.piece(best)
    return [
        (t("edit.effect.was", token=token), numbers.percent(p[best]), repr(float(p[best])), ""),
        (
            t("edit.effect.is", token=token),
            numbers.percent(q[best]),
            repr(float(q[best])),
            t("edit.effect.rank", rank=numbers.exact(rank)),
        ),
        (
            t("edit.effect.logit"),
            numbers.signed(moved),
            repr(moved),
            t("edit.effect.logit.small", before=numbers.short(logits[0]), after=numbers.short(logits[1])),
        ),
        (t("edit.effect.kl"), numbers.short(kl), repr(kl), t("edit.effect.kl.small")),
        (t("edit.effect.first"), str(at), str(at), first),
    ]


def _cone(view: View, stream: np.ndarray) -> None:
    st.markdown(f"**{t('edit.cone')}**")
    figure = cone_map(stream, tokens=view.words, frames=_frames(view), chosen=view.token, dark=dark())
    pick = meta_of(figure)["pickable"]

    def choose(x: float, y: float) -> None:
        step = view.at.step if view.at.layer is not None else RESID_OUT
        session().choose(at=str(At(round(y), step)), token=round(x))

    look = _cone_look(stream, framed=bool(_frames(view))) + ([t("edit.cone.pick")] if pick else [])
    chart(figure, "edit.cone", heatmap.notes(figure), " ".join(look), on_pick=choose if pick else None)


def _cone_look(stream: np.ndarray, framed: bool) -> list[str]:
    """Sentences about what this map shows: the edges are named that it has. stream [L T]."""
    moved = stream != 0
    if not moved.any():
        return [t("edit.cone.none"), t("edit.cone.frames" if framed else "edit.cone.frame")]
    look = [t("edit.cone.touched", share=numbers.percent(moved.mean()))]
    if not moved.all():
        look.append(t("edit.cone.blank"))
    above, left = not moved[0].any(), not moved[:, 0].any()
    if above or left:
        look.append(t(f"edit.cone.{'both' if above and left else 'above' if above else 'left'}"))
    look.append(t("edit.cone.frames" if framed else "edit.cone.frame"))
    return look


def _frames(view: View) -> list[Frame]:
    """The edits of this run as places on the map: of the embedding and of the model's end there are none."""
    T, found = view.trace.dims["T"], []
    for edit in view.trace.edits:
        if edit.at.layer is not None:
            which = edit.tokens or (0, T - 1)
            found.append((edit.at.layer, min(which), max(which)))
    return found


def _bars(view: View, found: Effect) -> None:
    st.markdown(f"**{t('edit.bars')}**")
    rows = found.next_tokens(view.token, BARS)
    rows = sorted(rows, key=lambda row: -max(row[1:]))[: BARS + 2]
    ids, before, after = zip(*rows, strict=True)
    chart(
        before_after([view.piece(i) for i in ids], before, after, dark=dark()),
        "edit.bars",
        look=t("edit.bars.look"),
    )


def steps(view: View) -> None:
    """The steps that changed most, each with a link to its tensor. Last on the page: every cell is compared."""
    found = _compared(view)
    if found is None or _first(view, found) in (None, (None,)):
        return
    st.subheader(t("edit.steps"), anchor=False)
    filling = t("edit.steps.filling", n=numbers.exact(len(found.before.walk)))
    changes = once_slowly(view, "edit.changes", filling, lambda tell: _changes(found, tell))
    if changes is None:
        return
    header = "".join(
        f"<th>{escape(t(f'edit.steps.{name}'))}</th>" for name in ("at", "ratio", "largest", "rms", "what")
    )
    body = "".join(_row(at, largest, rms) for at, largest, rms in changes[:ROWS])
    table = f'<table class="gl-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'
    st.html(f'<div class="gl-wide">{table}</div>')
    caption(t("edit.steps.look"))


def _row(at: str, largest: float, rms: float) -> str:
    link = "Step_by_step?" + urlencode(session().query(at=at))
    name = f'<a href="{escape(link, quote=True)}" target="_self">{escape(at)}</a>'
    cells = (numbers.short(largest / rms) if rms else "∞", numbers.short(largest), numbers.short(rms))
    what = f'<span class="gl-muted">{escape(At.parse(at).step.title)}</span>'
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (name, *cells, what)) + "</tr>"


def _changes(found: Effect, tell: Tell) -> list[tuple[str, float, float]]:
    """(address as text, largest difference, rms before) of what differs, the largest by its own size first.

    Without the steps that only repeat another one's cells.
    """
    changed, total = [], len(found.before.walk)
    for n, (at, largest) in enumerate(found.changes()):
        tell(n / total)
        if largest > 0 and not at.step.derived and at.step is not RESID_IN:
            changed.append((str(at), largest, found.before.stat(at).rms))
    return sorted(changed, key=lambda each: -(each[1] / each[2] if each[2] else np.inf))
