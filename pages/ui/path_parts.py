"""Which path attention took, on every page that shows its numbers; and the two paths beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.errors import GlassLlamaError
from llama_core.paths import SECONDS, Costs, Difference, costs_by_length, difference, lengths, measure, unmeasured
from llama_core.steps import HEAD_OUT, LOGITS, RESID_OUT, At
from llama_core.trace import Trace
from pages.figures import numbers
from pages.figures.paths import apart_lines, cost_lines
from pages.ui.background import Background
from pages.ui.bar import progress
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, sentence
from pages.ui.session import run_again, session
from pages.words import t

if TYPE_CHECKING:
    from llama_core.model import Llama


# --- which path made a number ---


def maps_were_made(view: View) -> None:
    """Of a pass that had no maps: that those on the page were made after it."""
    if view.trace.fused:
        shown, own = session()["look"], view.layer not in view.trace.fused
        caption(t("paths.own", layer=view.layer) if own and shown != "all" else t("paths.made"))


def of_step(view: View) -> str:
    """How the chosen step of a pass with fused layers came about; "" where the whole pass was explicit."""
    trace, at = view.trace, view.at
    if not trace.fused:
        return ""
    if at.step.causal or at.step is HEAD_OUT:
        if at.layer not in trace.fused:
            return t("paths.stats.explicit", layer=at.layer)
        return t("paths.stats.head_out") if at.step is HEAD_OUT else t("paths.stats.made", step=at.step.key)
    return t("paths.stats.same", step=at.step.key)


def measured(view: View, *asked: At) -> bool:
    """Whether the statistics of these addresses are there; where not, a sentence says so beside a button that makes
    them, and once that is pressed they are."""
    trace = view.trace
    coming = [at for at in asked if not trace.measured(at)]
    if not coming:
        return True
    place = st.empty()
    named = ", ".join(map(str, coming))
    with place.container(horizontal=True, vertical_alignment="center"):
        sentence(t("paths.stats.not_yet", at=named))
        key = f"paths.stats.{named}"
        pressed = st.button(t("paths.stats.compute"), icon=":material/calculate:", key=key, on_click=session().choose)
    if not pressed:
        return False
    with progress(place, t("paths.stats.computing", at=named)) as tell:
        for done, at in enumerate(coming):
            trace.stat(at)
            tell((done + 1) / len(coming))
    place.empty()
    return True


def missing(view: View) -> None:
    """Which statistics of the run are not there yet, and a button that makes them all, under a bar that can stop."""
    found = unmeasured(view.trace)
    if not found:
        return
    place = st.empty()
    words = {"steps": ", ".join(dict.fromkeys(at.step.key for at in found)), "layers": len({at.layer for at in found})}
    with place.container(horizontal=True, vertical_alignment="center"):
        sentence(t("paths.missing" if words["layers"] > 1 else "paths.missing.one", **words))
        asked = st.button(
            t("paths.missing.compute"), icon=":material/calculate:", key="paths.missing", on_click=session().choose
        )
    if asked:
        with progress(place, t("paths.missing.computing")) as tell:
            measure(view.trace, tell)
        run_again()


# --- the two beside each other ---


def two_paths(view: View) -> None:
    """What the two are, which one this pass took; when asked for, how far apart they are and what each costs."""
    st.subheader(t("paths"), anchor=False)
    caption(t("paths.lead"))
    caption(_was(view.trace))
    compared, timed = view.once("paths.compared", Comparison), view.once("paths.timed", lambda: _timing(view))
    running = timed.running
    with st.container(horizontal=True, gap="small"):
        asked = compared.found is None and st.button(
            t("paths.compare"), icon=":material/compare_arrows:", key="paths.compare", on_click=session().choose
        )
        if not running and not timed.found:
            _offer(view, timed)
    if asked:
        _compare(view, compared)
    if compared.found is not None:
        _compared(view, compared.found)
    if running:
        _watch(timed)
    else:
        _timed(view, timed)


def _was(trace: Trace) -> str:
    if trace.path in ("explicit", "fused"):
        return t(f"paths.was.{trace.path}")
    return t("paths.was.some", path=trace.path)


@dataclass
class Comparison:
    """The difference of the two paths on a run; None until somebody asked."""

    found: Difference | None = None


def _compare(view: View, into: Comparison) -> None:
    trace, place = view.passes.prompt, st.empty()
    try:
        with progress(place, t("paths.comparing", tokens=numbers.exact(trace.dims["T"]))) as tell:
            into.found = difference(view.llama, trace, tell)
    except GlassLlamaError as error:
        sentence(str(error), "error")
        return
    run_again()  # without the button


def _compared(view: View, found: Difference) -> None:
    wide, narrow = st.columns([8, 5], gap="medium")
    steps = {HEAD_OUT: found.head_out, RESID_OUT: found.resid_out}
    with wide:
        figure = apart_lines(
            [(step, each.largest, each.rms) for step, each in steps.items()], chosen=view.layer, dark=dark()
        )
        same = any((each.largest == 0).any() for each in steps.values())
        chart(figure, "paths.apart", [t("paths.apart.same")] if same else [], t("paths.apart.look"))
    with narrow, st.container(key="gl-narrow-paths"):
        numbers_grid(
            (t("paths.apart", step=step.key), numbers.short(each.largest.max()), repr(float(each.largest.max())), small)
            for step, each, small in (
                *((step, each, _worst(each.shares)) for step, each in steps.items()),
                (LOGITS, found.logits, t("paths.apart.share.logits", share=numbers.short(found.logits.shares))),
            )
        )
        _judged(view, found)


def _worst(shares: np.ndarray) -> str:
    return t("paths.apart.share", share=numbers.short(shares.max()), layer=int(shares.argmax()))


def _judged(view: View, found: Difference) -> None:
    """Whether rounding explains the difference, and what it changes in the answer."""
    dtype, share = view.passes.prompt.dtype, found.largest_share
    words = {"dtype": dtype, "bound": f"{found.bound:g}", "share": numbers.short(share)}
    if share <= found.bound:
        caption(" ".join([t("paths.within", **words), *([t("paths.within.bfloat16")] if dtype == "bfloat16" else [])]))
    else:
        sentence(t("paths.beyond", **words), "error")
    explicit, fused = found.next_tokens
    n, differ = len(explicit), int(np.count_nonzero(explicit != fused))
    place = min(view.position, n - 1)
    token, ids = view.keys[place], (int(explicit[place]), int(fused[place]))
    if ids[0] == ids[1]:
        said = t("paths.next", token=token, next=view.piece(ids[0]))
    else:
        said = t("paths.next.other", token=token, explicit=view.piece(ids[0]), fused=view.piece(ids[1]))
    all_ = t("paths.next.some", differ=numbers.exact(differ), n=numbers.exact(n)) if differ else ""
    caption(" ".join([said, all_ or t("paths.next.all", n=numbers.exact(n))]))


# --- what they cost ---


class _StopTiming(Exception):  # noqa: N818 - no error: the person has stopped it
    """Ends the passes."""


@dataclass(eq=False)
class Timing(Background):
    """Both paths timed at one length after another, shared by all who ask for the same.

    lengths: all that would be timed, the shortest first; found: those that were.
    """

    lengths: tuple[int, ...]
    found: list[Costs] = field(default_factory=list)

    def begin(self, llama: Llama, ids: Sequence[int], between: Callable[[], object]) -> None:
        """Begin anew, unless it runs; a short one is complete when this returns. between: called before each pass."""

        def before() -> None:
            between()
            if self.stopped:
                raise _StopTiming

        def work() -> None:
            self.found = []
            with suppress(_StopTiming):
                for costs in costs_by_length(llama, ids, between=before):
                    self.found.append(costs)

        self._start("paths", work)


def _timing(view: View) -> Timing:
    return Timing(lengths(view.trace.config, view.passes.prompt.dims["T"]))


def _offer(view: View, here: Timing) -> None:
    st.button(
        t("paths.time.again" if here.found else "paths.time"),
        icon=":material/timer:",
        key="paths.time",
        on_click=lambda: view.gone or here.begin(view.llama, view.passes.prompt.ids, view.between()),
    )


def _watch(here: Timing) -> None:
    """A bar alone: a browser that draws on the same machine would be timed as well."""

    @st.fragment(run_every=0.5)
    def running() -> None:
        if not here.running:
            run_again()
        done, n = len(here.found), len(here.lengths)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(t("paths.time.stop"), icon=":material/stop:", key="paths.time.stop", on_click=here.stop)
            st.progress(done / n, text=t("paths.time.on", done=done, n=n))

    running()


def _timed(view: View, here: Timing) -> None:
    if here.trouble:
        sentence(here.trouble, "error")
    _drawn(view, here)
    if here.stopped:
        caption(t("paths.time.stopped"))
    elif here.found and len(here.found) < len(here.lengths):
        caption(t("paths.time.ended", seconds=numbers.duration(SECONDS)))
    if here.found:
        _offer(view, here)


def _drawn(view: View, here: Timing) -> None:
    """Time and memory side by side, as far as they are there."""
    found, own = tuple(here.found), view.passes.prompt.dims["T"]
    if not found:
        return
    caption(_in_words(found[-1]))
    T = [each.T for each in found]
    sides = (("seconds", numbers.duration), ("bytes", numbers.bytes_))
    for place, (what, written) in zip(st.columns(2, gap="medium"), sides, strict=True):
        both = [
            [each.seconds if what == "seconds" else each.nbytes for each in (costs.explicit, costs.fused)]
            for costs in found
        ]
        explicit, fused = zip(*both, strict=True)
        name = t(f"paths.{what}")
        figure = cost_lines(T, explicit, fused, name=name, written=written, here=own if own in T else None, dark=dark())
        with place:
            st.markdown(f"**{name}**")
            chart(figure, f"paths.{what}", look=t(f"paths.{what}.look"))


def _in_words(last: Costs) -> str:
    """The longest prompt that was timed, in numbers."""
    memory = {"bytes": numbers.bytes_(last.explicit.nbytes), "fewer": numbers.bytes_(last.fused.nbytes)}
    words = {"T": numbers.exact(last.T), "fused": numbers.duration(last.fused.seconds), **memory}
    if last.explicit.seconds is None:
        return t("paths.cost.room", **words)
    same = last.explicit.nbytes == last.fused.nbytes
    return t("paths.cost.equal" if same else "paths.cost.at", **words, explicit=numbers.duration(last.explicit.seconds))
