"""Sweeps of the Edit page: one part after another switched off, in the background, and what that does to a token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.effect import sweeping
from llama_core.steps import ATTN_OUT, HEAD_OUT, MLP_OUT, At
from llama_core.trace import Trace
from pages.figures import heatmap, numbers
from pages.figures.effect import sweep_bars, sweep_map
from pages.ui.background import Background
from pages.ui.edit_list import head_button, heads_named, part_button
from pages.ui.frame import View
from pages.ui.limits import LimitError, check_sweep
from pages.ui.parts import apart, caption, chart, dark, sentence
from pages.ui.session import MEASURES, SWEEPS, bind, run_again, session
from pages.words import t

if TYPE_CHECKING:
    from llama_core.model import Llama

OFFERED = 12
"""Tokens that a sweep offers by name; any other by its id in the URL."""
PARTS = {"heads": HEAD_OUT, "attn_out": ATTN_OUT, "mlp_out": MLP_OUT}


@dataclass(eq=False)
class Sweeping(Background):
    """One sweep, shared by all who ask for the same.

    shape: [layers Hq] for heads, [layers] otherwise. logit, log_probability: as in the core's Sweep, NaN where it has
    not been yet; parts are done in order, and `done` counts them.
    """

    shape: tuple[int, ...]
    done: int = 0

    def __post_init__(self) -> None:
        self.logit, self.log_probability = np.full((2, *self.shape), np.nan)

    @property
    def total(self) -> int:
        """How many parts there are."""
        return self.logit.size

    @property
    def missing(self) -> np.ndarray:
        """Which parts have not been switched off yet."""
        return (np.arange(self.total) >= self.done).reshape(self.shape)

    def begin(
        self,
        llama: Llama,
        trace: Trace,
        parts: str,
        token: int,
        position: int,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        """Start or go on, unless it runs already; a short one is complete when this returns. parts: as in `sweep`.

        between: called between two parts; a GlassLlamaError from it ends the sweep, as one from a part does.
        """

        def work() -> None:
            for changes in sweeping(llama, trace, parts, token, position, first=self.done):
                self.logit.flat[self.done], self.log_probability.flat[self.done] = changes
                self.done += 1
                if self.stopped:
                    break
                between()

        self._start("sweep", work, ready=lambda: self.done < self.total)


def sweeps(view: View) -> None:
    """One part after another switched off, and what that does to a token."""
    st.subheader(t("edit.sweep"), anchor=False)
    caption(" ".join([t("edit.sweep.lead"), *([t("edit.sweep.on_top")] if view.passes.before is not None else [])]))
    token = _answer(view)
    parts, name = session()["sweep"], ("edit.sweep", session()["sweep"], token, view.token)
    shape = _shape(view, parts)
    try:
        check_sweep(math.prod(shape), layers=shape[0])
    except LimitError as error:
        sentence(str(error), "error")
        return
    here = view.once(name, lambda: Sweeping(shape))
    if here.running:
        _watch(here)
        return
    if here.done < here.total:
        _start(view, here, parts, token)
    if here.done:
        _swept(view, here, parts, token)


def _answer(view: View) -> int:
    """What is switched off, which token is read, and how; the token."""
    V, asked = view.trace.config.vocab_size, session()["answer"]
    if asked >= V:
        sentence(t("edit.sweep.unknown", last=numbers.exact(V - 1), asked=asked))
        session().forget("answer")
        asked = -1
    before = view.trace if view.passes.before is None else view.passes.before
    best = [i for i, _ in before.next_tokens(view.token, OFFERED)]
    now = [i for i, _ in view.trace.next_tokens(view.token, 3)]
    offered = list(dict.fromkeys([*best, *now, *([asked] if asked >= 0 else [])]))

    named = apart(offered, view.piece, t("edit.sweep.best", token=view.piece(best[0])))
    with st.container(horizontal=True, vertical_alignment="top", gap="medium"):
        for choice, options, word in (("sweep", SWEEPS, "parts"), ("measure", MEASURES, "measure")):
            st.segmented_control(
                t(f"edit.sweep.{word}"),
                options,
                format_func=lambda name: t(f"edit.sweep.{name}"),
                required=True,
                **bind(choice),
            )
        st.selectbox(t("edit.sweep.answer"), [-1, *offered], format_func=named, width=260, **bind("answer"))
    return best[0] if asked < 0 else asked


def _shape(view: View, parts: str) -> tuple[int, ...]:
    config = view.trace.config
    return (config.num_hidden_layers, *([config.num_attention_heads] if parts == "heads" else []))


def _start(view: View, here: Sweeping, parts: str, token: int) -> None:
    if here.trouble:
        sentence(here.trouble, "error")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            t("edit.sweep.on") if here.done else t("edit.sweep.go", n=numbers.exact(here.total)),
            icon=":material/play_arrow:",
            key="edit.sweep.go",
            on_click=lambda: view.gone or here.begin(view.llama, view.trace, parts, token, view.token, view.between()),
        )
        if here.stopped:
            caption(t("edit.sweep.stopped", done=numbers.exact(here.done), n=numbers.exact(here.total)))


def _watch(here: Sweeping) -> None:
    @st.fragment(run_every=0.4)
    def running() -> None:
        if not here.running:
            run_again()
        done = here.done
        text = t("edit.sweep.running", done=numbers.exact(done), n=numbers.exact(here.total))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(t("edit.sweep.stop"), icon=":material/stop:", key="edit.sweep.stop", on_click=here.stop)
            st.progress(done / here.total, text=text)

    running()


def _swept(view: View, here: Sweeping, parts: str, token: int) -> None:
    measure, step = session()["measure"], PARTS[parts]
    values = getattr(here, measure)
    words = {"measure": t(f"edit.sweep.{measure}"), "token": view.piece(token)}
    name, kind = t("edit.sweep.name", **words), "heads" if parts == "heads" else "layers"
    look = t(f"edit.sweep.look.{kind}", query=view.words[view.token], **words)
    if parts == "heads":
        chosen = (view.layer, view.head)
        figure = sweep_map(values, missing=here.missing, name=name, chosen=chosen, dark=dark())
    else:
        figure = sweep_bars(values, missing=here.missing, name=name, kind=step.kind, chosen=view.layer, dark=dark())

    def choose(x: float, y: float) -> None:
        if parts == "heads":
            session().choose(at=str(At(round(y), step)), head=round(x))
        else:
            session().choose(at=str(At(round(x), step)))

    largest = _largest(values)
    notes = [_most(values, largest), *_silent(view, parts), *heatmap.notes(figure)]
    chart(figure, f"edit.sweep.{kind}", notes, look, on_pick=choose)
    clicked = (view.layer, *([view.head] if parts == "heads" else []))
    offered = {"most": largest, "chosen": clicked if view.at.step is step and clicked != largest else None}
    with st.container(horizontal=True, gap="small"):
        for word, place in offered.items():
            if place is not None:
                _silence(view, parts, place, f"edit.sweep.{word}")


def _silence(view: View, parts: str, place: tuple[int, ...], key: str) -> None:
    if parts == "heads":
        head_button(view, *place, key)
    else:
        part_button(view, parts, *place, key)


def _largest(values: np.ndarray) -> tuple[int, ...] | None:
    """Where the largest change is; None where there is none."""
    sizes = np.nan_to_num(np.abs(values))
    place = np.unravel_index(int(sizes.argmax()), values.shape)
    return tuple(map(int, place)) if sizes[place] > 0 else None


def _most(values: np.ndarray, place: tuple[int, ...] | None) -> str:
    if place is None:
        return t("edit.sweep.nothing")
    value = numbers.signed(values[place])
    if len(place) == 2:
        return t("edit.sweep.most.heads", layer=place[0], head=place[1], value=value)
    return t("edit.sweep.most.layers", layer=place[0], value=value)


def _silent(view: View, parts: str) -> list[str]:
    """Which parts the run's edits have silenced already, at every token: switched off once more they change nothing."""
    heads, layers = {}, {}
    for edit in view.trace.edits:
        if edit.kind != "zero" or edit.tokens is not None or edit.channels is not None:
            continue
        if edit.at.step is ATTN_OUT or edit.at.step is PARTS[parts]:
            every = range(view.trace.config.num_attention_heads)
            heads.setdefault(edit.at.layer, set()).update(every if edit.heads is None else edit.heads)
        if edit.at.step is PARTS[parts]:
            layers[edit.at.layer] = t("edit.sweep.silent.layer", layer=edit.at.layer)
    if parts == "heads":
        named = heads_named({layer: sorted(heads[layer]) for layer in sorted(heads)})
    else:
        named = ", ".join(layers[layer] for layer in sorted(layers))
    return [t("edit.sweep.silent", parts=named)] if named else []
