"""The parts of the Step-by-step page that stop a run: where it is to end, why it did, and how it goes on."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st

from llama_core.steps import WEIGHTS, At, Step
from llama_core.trace import describe
from llama_core.watch import Watch
from pages.figures import numbers
from pages.ui.explain_parts import go, place_of
from pages.ui.frame import View
from pages.ui.parts import caption, plain_markdown
from pages.ui.session import nearest, session
from pages.ui.stops import read_breaks, read_watches
from pages.words import t

_BOUNDS: dict[str, tuple[tuple[str, float], ...]] = {
    # kind -> the words of each number it takes, and what it begins with
    "notfinite": (),
    "above": (("stop.bound.above", 100.0),),
    "std": (("stop.bound.std", 0.0), ("stop.bound.std.high", 100.0)),
    "entropy": (("stop.bound.entropy", 0.1),),
    "collapse": (("stop.bound.collapse", 0.99),),
}


def marks(view: View) -> dict[str, str]:
    """Address -> "edited", "breakpoint" or both, as the stepper draws them."""
    breaks, edited = read_breaks(session()["breaks"]), {edit.at for edit in view.trace.edits}
    found = {}
    for at in view.trace.walk.order:
        words = ["edited"] * (at in edited) + ["breakpoint"] * (str(at) in breaks or at.step.key in breaks)
        if words:
            found[str(at)] = " ".join(words)
    return found


# --- what is set ---


def controls(view: View) -> None:
    """Behind one button: run to here, breakpoints, watches."""
    with st.container(horizontal=True, horizontal_alignment="right"):
        panel = st.popover(t("stop.title"), icon=":material/front_hand:", key="stops", type="tertiary")
    with panel:
        st.button(
            plain_markdown(t("stop.here", at=describe(view.at))),
            icon=":material/keyboard_tab:",
            on_click=partial(_run_to, view),
            width="stretch",
        )
        caption(t("stop.only"))
        _breaks(view)
        _watches(view)


def _breaks(view: View) -> None:
    st.markdown(f"**{plain_markdown(t('stop.breaks'))}**")
    set_, here = read_breaks(session()["breaks"]), [str(view.at)]
    labels = [t("stop.break", at=describe(view.at))]
    if view.at.layer is not None:
        here.append(view.at.step.key)
        labels.append(t("stop.break.every", step=view.at.step.key))
    with st.container(gap=None):
        for place, label in zip(here, labels, strict=True):
            # Buttons: the browser would send a checkbox that was set while the panel is closed back as it was.
            icon = "check_box" if place in set_ else "check_box_outline_blank"
            st.button(
                plain_markdown(label),
                icon=f":material/{icon}:",
                type="tertiary",
                key=f"stop.break.{place}",
                on_click=partial(_toggle, view, place),
            )
    _removable([place for place in set_ if place not in here], partial(_toggle, view), "break")


def _watches(view: View) -> None:
    st.markdown(f"**{plain_markdown(t('stop.watches'))}**")
    _removable([str(watch) for watch in read_watches(session()["watch"])], _unwatch, "watch")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="gl-watch"):
        kind = st.selectbox(
            t("stop.kind"), list(_BOUNDS), format_func=lambda kind: t(f"stop.kind.{kind}"), key="stop.kind", width=150
        )
        bounds = [
            st.number_input(
                t(words),
                0.0,
                1.0 if kind == "collapse" else None,
                begin,
                key=f"stop.{kind}.{i}",
                width=130,
                format="%g",
            )
            for i, (words, begin) in enumerate(_BOUNDS[kind])
        ]
        places = _places(view, kind)
        where = places[st.selectbox(t("stop.where"), list(places), key=f"stop.where.{kind}", width=190)]
        st.button(
            t("stop.add"),
            icon=":material/add:",
            on_click=partial(_watch, view, Watch(kind, tuple(sorted(bounds)), where)),
        )


def _places(view: View, kind: str) -> dict[str, At | Step | None]:
    """Where a watch of this kind can look, by its name: everywhere it may, a step of every layer, one address."""
    if kind in ("entropy", "collapse"):
        at = At(view.layer, WEIGHTS)
        return {t("stop.where.weights"): None, describe(at): at}
    step = {} if view.at.layer is None else {t("stop.where.step", step=view.at.step.key): view.at.step}
    return {t("stop.where.all"): None, **step, describe(view.at): view.at}


def _removable(things: list[str], remove, name: str) -> None:
    """A line of what is set; pressing one takes it off."""
    if not things:
        return
    with st.container(horizontal=True, gap="xsmall"):
        for thing in things:
            st.button(
                plain_markdown(thing),
                icon=":material/close:",
                key=f"stop.{name}.{thing}",
                help=plain_markdown(t("stop.remove", what=thing)),
                on_click=partial(remove, thing),
            )


# --- what a press of a button means ---


def _run_to(view: View) -> None:
    """Until the cursor; what lies between it and where the run stands now may stop it on the way."""
    trace = view.passes.prompt
    ahead = trace.until is not None and view.at not in trace
    session().choose(until=str(view.at), **({"after": str(trace.until)} if ahead else {}))
    session().follow = True


def _fresh(view: View) -> dict[str, None]:
    """What is set when the run has ended counts from its beginning; when it stands somewhere, from there."""
    return {"after": None} if view.passes.prompt.until is None else {}


def _toggle(view: View, place: str) -> None:
    breaks = list(read_breaks(session()["breaks"]))
    if place in breaks:
        breaks.remove(place)
        session().choose(breaks=",".join(breaks))
    else:
        session().choose(breaks=",".join([*breaks, place]), **_fresh(view))
    session().follow = True


def _watch(view: View, watch: Watch) -> None:
    texts = dict.fromkeys([*map(str, read_watches(session()["watch"])), str(watch)])
    session().choose(watch="; ".join(texts), **_fresh(view))
    session().follow = True


def _unwatch(text: str) -> None:
    left = [str(watch) for watch in read_watches(session()["watch"]) if str(watch) != text]
    session().choose(watch="; ".join(left))


def _run_on(until: At) -> None:
    session().choose(after=str(until), until=None)
    session().follow = True


def _to_the_end() -> None:
    session().choose(after=None, until=None, breaks="", watch="")


def _from_the_beginning() -> None:
    session().choose(after=None)
    session().follow = True


# --- where it stands ---


def status(view: View) -> None:
    """One line: where the run stopped and why, what is left, how it goes on. Nothing where nothing is set."""
    here, trace = session(), view.passes.prompt
    if not any((here["until"], here["breaks"], here["watch"])):
        return
    with st.container(key="gl-stopped", horizontal=True, vertical_alignment="center", gap="small"):
        if trace.until is None:
            _passed(view)
        else:
            _stopped(view)
        st.button(
            t("stop.end"), icon=":material/last_page:", type="tertiary", help=t("stop.end.help"), on_click=_to_the_end
        )


def _passed(view: View) -> None:
    after = session()["after"]
    if after is None:
        st.html(f'<p class="gl-stopped">{escape(t("stop.passed.all"))}</p>', width="content")
        return
    text = t("stop.passed", after=describe(nearest(view.trace.walk, At.parse(after))))
    st.html(f'<p class="gl-stopped">{escape(text)}</p>', width="content")
    st.button(
        t("stop.again"),
        icon=":material/first_page:",
        type="tertiary",
        help=t("stop.again.help"),
        on_click=_from_the_beginning,
    )


def _stopped(view: View) -> None:
    trace = view.passes.prompt
    total, n = len(trace.walk), trace.computed
    where = t("stop.stopped", at=describe(trace.until), n=n, total=total)
    left = t("stop.left.none" if n == total else "stop.left.one" if n == total - 1 else "stop.left", n=total - n)
    st.html(
        f'<p class="gl-stopped"><b>{escape(where)}</b>: {escape(_why(view))} '
        f'<span class="gl-muted">{escape(left)}</span></p>',
        width="stretch" if trace.stopped else "content",
    )
    _cells(view)
    if n < total:
        st.button(
            t("stop.on"),
            icon=":material/play_arrow:",
            help=t("stop.on.help"),
            on_click=partial(_run_on, trace.until),
        )


def _why(view: View) -> str:
    trace = view.passes.prompt
    if trace.stopped is not None:
        return t("stop.why.watch", watch=trace.stopped.watch, text=trace.stopped.text)
    breaks = read_breaks(session()["breaks"])
    at_break = str(trace.until) in breaks or trace.until.step.key in breaks
    return t("stop.why.break" if at_break else "stop.why.until")


def _cells(view: View) -> None:
    """The first cells that met a watch, each a way to that cell."""
    stopped = view.passes.prompt.stopped
    if stopped is None or not stopped.cells:
        return
    with (
        st.popover(t("stop.cells"), icon=":material/grid_on:", key="stop.cells", type="tertiary"),
        st.container(gap=None),
    ):
        for cell, value in zip(stopped.cells, stopped.values, strict=True):
            name = f"{place_of(view, stopped.at, cell)}: {numbers.short(value)}"
            st.button(
                plain_markdown(name),
                type="tertiary",
                icon=":material/arrow_forward:",
                key=f"stop.cell.{'.'.join(map(str, cell))}",
                on_click=partial(go, view, stopped.at, cell),
            )


def not_computed(view: View) -> None:
    """In place of the picture: the run has not come so far, and the way there."""
    walk, until = view.trace.walk, view.trace.until
    n = walk.index(view.at) - walk.index(until)
    steps = t("stop.steps.one") if n == 1 else t("stop.steps", n=n)
    with st.container(key="gl-not-computed", horizontal=True, vertical_alignment="center"):
        text = t("stop.not_computed", until=describe(until), n=steps)
        st.html(f'<div class="gl-say gl-say-note" role="status">{escape(text)}</div>', width="content")
        st.button(
            t("stop.run_here"), icon=":material/keyboard_tab:", key="stop.run_here", on_click=partial(_run_to, view)
        )
