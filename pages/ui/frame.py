"""The frame of every page: sidebar, token strip, title, the run. `view = open_page("steps").run()`

A View is a finished Trace and where in it the person is. A page only lays out what it reads
there. What cannot be run is said in a sentence, and the page ends there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import streamlit as st

from llama_core.checkpoints import build, open_checkpoint
from llama_core.config import ITEM_BYTES, LlamaConfig
from llama_core.errors import ConfigError, GlassLlamaError
from llama_core.steps import At
from llama_core.tokenizer import parse_ids
from llama_core.trace import Trace
from pages.figures import numbers
from pages.ui import sidebar
from pages.ui.echo import ASSETS, asset
from pages.ui.parts import plain_markdown, sentence
from pages.ui.session import RANDOM, Session, begin, session, write_url
from pages.ui.store import MODEL_BYTES, ModelFacts, facts_of, settle, store
from pages.ui.token_strip import token_strip
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

log = logging.getLogger("glass_llama")
FirstPaint = Callable[[LlamaConfig, Mapping[str, int]], None]


@dataclass(frozen=True)
class View:
    """What a page reads. at: the chosen address; token: the chosen position; piece: an id's text."""

    trace: Trace
    model: ModelFacts
    at: At
    head: int
    token: int
    piece: Callable[[int], str] = field(repr=False)


@dataclass(frozen=True)
class Page:
    """A page that has begun: its sidebar, title and places stand, nothing has run yet."""

    here: Session
    side: sidebar.Sidebar
    notes: DeltaGenerator
    strip: DeltaGenerator
    busy: DeltaGenerator  # always there: a place that comes and goes would remount the stepper below it

    def run(self, first_paint: FirstPaint | None = None) -> View:
        """Load and run what is chosen, or take it from the store; what cannot be run ends the page with a sentence.

        first_paint: called with the config and the axis numbers before the model is loaded, so that
        something true is on the page at once.
        """
        try:
            model, facts, trace = self._model_and_trace(first_paint)
        except GlassLlamaError as error:
            with self.busy:  # a place that the next run empties first
                sentence(str(error), "error")
            self._say_notes()
            self.side.failed()
            write_url()
            st.stop()
        at = self.here.fit(trace.walk, trace.dims["T"], trace.config.num_attention_heads)
        token = self.here.token(trace.dims["T"])
        with self.strip:
            pieces = [(each.text, each.special) for each in trace.tokens]
            token_strip(pieces, token, on_move=lambda position: session().choose(token=position))
        self._say_notes()
        self.side.done(trace)
        write_url()
        return View(trace, facts, at, self.here["head"], token, lambda i: _piece(model, i))

    def _say_notes(self) -> None:
        with self.notes:
            for note in dict.fromkeys(self.here.notes):
                sentence(note)

    def _model_and_trace(self, first_paint: FirstPaint | None):
        here = self.here
        source = here.config() if here["model"] == RANDOM else here["model"]
        recipe = {name: here[name] for name in ("seed", "scheme", "std")} if here["model"] == RANDOM else {}
        key = (source, *recipe.values(), here["device"], here["dtype"])
        model = store().models.get(key)
        known = open_checkpoint(source, **recipe) if model is None else model
        self.side.ask(reads_text=known.tokenizer is not None)
        ids = _ids(here, known)
        if first_paint is not None:
            first_paint(known.config, known.config.dims(max(1, len(ids))))
        if model is None:
            _check_random_size(known, here["dtype"])
            model = store().models.get_or_make(key, lambda: _load(known, here["device"], here["dtype"], self.busy))
        facts = facts_of(model)
        self.side.show(facts)
        trace = store().traces.get_or_make((key, tuple(ids)), lambda: _run(model, ids, self.busy))
        return model, facts, trace


def open_page(page: str) -> Page:
    """Begin the page with this key in the table of words."""
    title, question = t(f"page.{page}.title"), t(f"page.{page}.question")
    st.set_page_config(page_title=f"{title} · Glass Llama", page_icon=ASSETS / "icon.png", layout="wide")
    st.html(f"<style>{asset('app.css')}</style>")
    here = begin(page)
    side = sidebar.draw(here)
    notes, strip = st.container(), st.container()
    st.html(f'<div class="gl-title"><h1>{escape(title)}</h1><span>{escape(question)}</span></div>')
    return Page(here, side, notes, strip, st.empty())


def _piece(model, token_id: int) -> str:
    return str(token_id) if model.tokenizer is None else model.tokenizer.pieces([token_id])[0].text


def _check_random_size(checkpoint, dtype: str) -> None:
    needed = ITEM_BYTES[dtype] * checkpoint.config.parameter_count()
    if checkpoint.kind == RANDOM and needed > MODEL_BYTES:
        raise ConfigError(t("run.too_large", needed=numbers.bytes_(needed), limit=numbers.bytes_(MODEL_BYTES)))


def _ids(here: Session, source) -> list[int]:
    """Token ids of the chosen prompt. source: whatever has a config and a tokenizer."""
    if source.tokenizer is None:
        return parse_ids(here["ids"], source.config.vocab_size)
    return source.tokenizer.encode(here["prompt"])


def _load(checkpoint, device: str, dtype: str, busy: DeltaGenerator):
    with _progress(busy, t("run.loading", model=checkpoint.source)) as tell:
        model = build(checkpoint, device, dtype, tell)
    settle()
    log.info("loaded %s on %s as %s", checkpoint.source, device, dtype)
    return model


def _run(model, ids: list[int], busy: DeltaGenerator) -> Trace:
    from llama_core import run

    with _progress(busy, t("run.running", tokens=len(ids))) as tell:
        return run(model, ids, progress=tell)


class _progress:  # noqa: N801 - used as a function
    """A bar that appears only when the work takes longer than a moment, and goes when it ends."""

    def __init__(self, slot: DeltaGenerator, text: str, patience: float = 0.4) -> None:
        self.text, self.slot, self.since = text, slot, time.monotonic() + patience

    def __enter__(self) -> Callable[[float], None]:
        return self.tell

    def tell(self, share: float) -> None:
        # A Streamlit call, so a person who changes their mind ends the work here.
        if time.monotonic() > self.since:
            self.slot.progress(share, text=plain_markdown(self.text))
            self.since = time.monotonic() + 0.1

    def __exit__(self, *_: object) -> None:
        self.slot.empty()
