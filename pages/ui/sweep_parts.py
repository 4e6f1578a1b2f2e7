"""Sweeps of the Edit page: one part after another switched off, in the background, and what that does to a token."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core import effect as effects
from llama_core.effect import Sweep
from llama_core.errors import GlassLlamaError
from llama_core.steps import ATTN_OUT, HEAD_OUT, MLP_OUT, At
from llama_core.trace import Trace
from pages.figures import heatmap, numbers
from pages.figures.effect import sweep_bars, sweep_map
from pages.ui.edit_list import head_button, part_button
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, sentence
from pages.ui.session import MEASURES, SWEEPS, bind, run_again, session
from pages.words import t

if TYPE_CHECKING:
    from llama_core.model import Llama

OFFERED = 12
"""Tokens that a sweep offers by name; any other by its id in the URL."""
PATIENCE = 0.4
"""Seconds that the page waits for a sweep before it shows a bar."""
PARTS = {"attn_out": ATTN_OUT, "mlp_out": MLP_OUT}


class _StoppedError(Exception):
    """Raised in a sweep's thread, by its progress, when the person has had enough."""


@dataclass(eq=False)
class Sweeping:
    """One sweep, in a thread of its own, shared by all who ask for the same: not begun, running, stopped, or found."""

    found: Sweep | None = None
    share: float = 0.0
    stopped: bool = False
    trouble: str = ""
    running: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self, llama: Llama, trace: Trace, parts: str, token: int, position: int) -> None:
        """Start, unless it runs already; a short one is complete when this returns."""
        with self.lock:
            if self.running or self.found is not None:
                return
            self.running, self.stopped, self.share, self.trouble = True, False, 0.0, ""
        work = threading.Thread(
            target=self._work, args=(llama, trace, parts, token, position), name="sweep", daemon=True
        )
        work.start()
        work.join(PATIENCE)

    def stop(self) -> None:
        """End it at the next part."""
        self.stopped = True

    def _work(self, *asked: object) -> None:
        try:
            self.found = effects.sweep(*asked, progress=self._tell)
        except _StoppedError:
            pass
        except GlassLlamaError as error:
            self.trouble = str(error)
        finally:
            self.running = False

    def _tell(self, share: float) -> None:
        if self.stopped:
            raise _StoppedError
        self.share = share


def sweeps(view: View) -> None:
    """One part after another switched off, and what that does to a token."""
    st.subheader(t("edit.sweep"), anchor=False)
    caption(" ".join([t("edit.sweep.lead"), *([t("edit.sweep.on_top")] if view.passes.before is not None else [])]))
    token = _answer(view)
    parts, name = session()["sweep"], ("edit.sweep", session()["sweep"], token, view.token)
    here = view.once(name, Sweeping)
    if here.running:
        _watch(view, here)
    elif here.found is None:
        _start(view, here, parts, token)
    else:
        _swept(view, here.found, parts, token)


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

    def named(token: int) -> str:
        return t("edit.sweep.best", token=view.piece(best[0])) if token < 0 else view.piece(token)

    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
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


def _count(view: View, parts: str) -> int:
    config = view.trace.config
    return config.num_hidden_layers * (config.num_attention_heads if parts == "heads" else 1)


def _start(view: View, here: Sweeping, parts: str, token: int) -> None:
    if here.trouble:
        sentence(here.trouble, "error")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            t("edit.sweep.go", n=numbers.exact(_count(view, parts))),
            icon=":material/play_arrow:",
            key="edit.sweep.go",
            on_click=partial(here.begin, view.llama, view.trace, parts, token, view.token),
        )
        if here.stopped:
            caption(t("edit.sweep.stopped"))


def _watch(view: View, here: Sweeping) -> None:
    @st.fragment(run_every=0.4)
    def running() -> None:
        if not here.running:
            run_again()
        text = t("edit.sweep.running", n=numbers.exact(_count(view, session()["sweep"])))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(t("edit.sweep.stop"), icon=":material/stop:", key="edit.sweep.stop", on_click=here.stop)
            st.progress(here.share, text=text)

    running()


def _swept(view: View, found: Sweep, parts: str, token: int) -> None:
    measure = session()["measure"]
    values = getattr(found, measure)
    words = {"measure": t(f"edit.sweep.{measure}"), "token": view.piece(token)}
    name, kind = t("edit.sweep.name", **words), "heads" if parts == "heads" else "layers"
    look = t(f"edit.sweep.look.{kind}", query=view.words[view.token], **words)
    if parts == "heads":
        figure = sweep_map(values, name=name, chosen=(view.layer, view.head), dark=dark())
    else:
        part = PARTS[parts]
        figure = sweep_bars(values, name=name, kind=part.kind, chosen=view.layer, dark=dark())

    def choose(x: float, y: float) -> None:
        if parts == "heads":
            session().choose(at=str(At(round(y), HEAD_OUT)), head=round(x))
        else:
            session().choose(at=str(At(round(x), PARTS[parts])))

    chart(figure, f"edit.sweep.{kind}", [_largest(values), *heatmap.notes(figure)], look, on_pick=choose)
    if parts == "heads":
        head_button(view, "edit.sweep.head")
    else:
        part_button(view, parts, "edit.sweep.part")


def _largest(values: np.ndarray) -> str:
    place = np.unravel_index(int(np.nan_to_num(np.abs(values)).argmax()), values.shape)
    value = numbers.signed(values[place])
    if values[place] == 0:
        return t("edit.sweep.nothing")
    if values.ndim == 2:
        return t("edit.sweep.most.heads", layer=place[0], head=place[1], value=value)
    return t("edit.sweep.most.layers", layer=place[0], value=value)
