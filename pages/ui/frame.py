"""The frame of every page: sidebar, token strip, title, the run. `view = open_page("steps").run()`

A View is a finished Trace and where in it the person is. A page only lays out what it reads
there. What cannot be run is said in a sentence, and the page ends there.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import streamlit as st

from llama_core import survey as surveys
from llama_core.checkpoints import build, open_checkpoint
from llama_core.checkpoints.files import stamp
from llama_core.checkpoints.hub import is_hub_id
from llama_core.checkpoints.roots import find
from llama_core.config import LlamaConfig
from llama_core.edits import Edit
from llama_core.errors import AddressError, CheckpointError, GlassLlamaError, RunError
from llama_core.steps import WEIGHTS, At, Step
from llama_core.survey import Survey
from llama_core.tokenizer import parse_ids
from llama_core.trace import Trace, labels
from llama_core.watch import WatchError, watches_of
from pages.figures import numbers, theme
from pages.ui import hub_panel, sidebar
from pages.ui.bar import Bar, EndedError, progress, shared
from pages.ui.echo import ASSETS
from pages.ui.limits import check_model, check_text, check_tokens, check_trace
from pages.ui.links import leave
from pages.ui.parts import dark, sentence
from pages.ui.passes import Growth, Passes
from pages.ui.process import prepare
from pages.ui.queue import LOADS, TURNS
from pages.ui.session import (
    IDS,
    RANDOM,
    Session,
    begin,
    bind,
    bind_layer,
    layer_of,
    listed,
    nearest,
    session,
    write_url,
)
from pages.ui.stops import break_after, fitted, read_breaks, read_watches, resting, write_entries
from pages.ui.store import ModelFacts, begin_survey, facts_of, settle, store, visit
from pages.ui.token_strip import token_strip
from pages.words import t

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from streamlit.delta_generator import DeltaGenerator

    from llama_core.model import Llama

Made = TypeVar("Made")
log = logging.getLogger("glass_llama")
SAID = 60  # letters of an edit that the line under the strip says
BESIDE = 2  # measures that are made at once beside the pages that wait for them
FirstPaint = Callable[[LlamaConfig, Mapping[str, int], bool], None]


@dataclass(frozen=True)
class View:
    """What a page reads. at: the chosen address; layer: its layer, or the first or last for a step of the model.

    trace: the pass in which the chosen token was read, and token: its row there; passes: that one and all others.
    lit: the token's place in the strip: its position, or on the page that writes the last one's, which was never read.
    piece: an id's text; llama: the loaded model, handed on to the measures that need its weights and otherwise
    left alone.
    """

    passes: Passes
    trace: Trace
    model: ModelFacts
    at: At
    layer: int
    head: int
    token: int
    lit: int
    piece: Callable[[int], str] = field(repr=False)
    llama: Llama = field(repr=False)
    key: Hashable = field(repr=False)

    def once(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """A measure of this run: made when it is first asked for, then shared by all pages and sessions."""
        key = (self.key, name)
        first = At(0, WEIGHTS)
        if store().measures.get(key) is not None or first not in self.trace or self.trace.holds(first):
            return store().measures.get_or_make(key, make, waiting=session)
        with st.spinner(t("run.rebuilding"), show_time=False):  # a long run's tensors are made again
            return store().measures.get_or_make(key, make, waiting=session)

    def meanwhile(self, name: Hashable, make: Callable[[], Made]) -> Callable[[], Made]:
        """`once`, begun now in another thread while the page goes on being drawn; what is given back waits for it.

        make: something whose time passes outside Python, and which asks nothing of the session.
        """
        begun = make if self.ready(name) is not None else _beside().submit(make).result
        return partial(self.once, name, begun)

    def ready(self, name: Hashable) -> Any | None:
        """What `once` has made for this run, if anybody has asked for it."""
        return store().measures.get((self.key, name))

    def let_go(self) -> None:
        """Keep sizes and names, but no tensor and no weight: what follows has begun.

        Streamlit keeps the callbacks of every widget that a session ever had, and those keep their view.
        """
        light = {"trace": self.trace.sizes(), "passes": self.passes.sizes(), "llama": None, "piece": str}
        for name, value in light.items():
            object.__setattr__(self, name, value)

    @property
    def gone(self) -> bool:
        """Whether a later run has begun: a click on what is still on the screen of this one comes too late."""
        return self.llama is None

    def survey(self) -> Survey:
        """The small results over all layers: begun in the background when first asked for, read as it fills."""
        found = self.once("survey", lambda: surveys.begin(self.trace))
        return begin_survey(self.trace, self.between(), found)

    def between(self) -> Callable[..., None]:
        """What background work on this run calls between two parts: see `Store.between`."""
        here, trace = store(), self.key[:-1]
        return lambda *_: here.between(trace)

    @property
    def words(self) -> list[str]:
        """The tokens of this pass as a person reads them, one per row."""
        return self.keys[self.trace.past :]

    @property
    def keys(self) -> list[str]:
        """The tokens of all S positions: of this pass, and those that it finds in the cache."""
        return labels(self.passes.tokens[: self.trace.dims["S"]])

    @property
    def position(self) -> int:
        """The place of the chosen token among all of them."""
        return self.trace.past + self.token


@cache
def _beside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(BESIDE, "beside")


def kept(view: View, name: Hashable, make: Callable[[], go.Figure]) -> go.Figure:
    """A picture that is made once for this run and theme, and again a copy of it. name: what it depends on besides."""
    return theme.figure(*view.once((name, dark()), lambda: theme.taken(make())))


@dataclass(frozen=True)
class Page:
    """A page that has begun: its sidebar, title and places stand, nothing has run yet."""

    here: Session
    side: sidebar.Sidebar
    notes: DeltaGenerator
    strip: DeltaGenerator
    picks: DeltaGenerator
    busy: DeltaGenerator  # always there: a place that comes and goes would remount the stepper below it
    remarks: list[str] = field(default_factory=list)  # what this run has to say about the prompt

    def run(
        self,
        first_paint: FirstPaint | None = None,
        *,
        layer: Step | None = None,
        heads: bool = False,
        stops: bool = False,
        writes: bool = False,
        written: Callable[[Growth], None] | None = None,
    ) -> View:
        """Load and run what is chosen, or take it from the store; what cannot be run ends the page with a sentence.

        first_paint: called before the model is loaded, so that something true is on the page at once, with the
        config, the axis numbers, and whether the model is yet to be loaded. layer: the page lets a layer be chosen, and
        this is its step where the address has none; heads: it lets a query head be chosen. stops: the run stops where
        the person wants it to; on other pages it goes to the end. writes: the page is about what the model writes,
        which it does without edits. written: called before the first token and after each; its page can choose the
        last one too, which was never read.
        """
        try:
            model, passes, key = self._model_and_passes(first_paint, stops, writes, written)
        except GlassLlamaError as error:
            with self.busy.container():  # a place that the next run empties first
                sentence(str(error), "note" if isinstance(error, EndedError) else "error")
                if isinstance(error, EndedError):
                    st.button(t("run.again"), icon=":material/play_arrow:", on_click=self.here.choose)
                if isinstance(error, hub_panel.NotHereError):
                    hub_panel.offer(self.here)
            self._say_notes()
            self.side.failed()
            write_url()
            st.stop()
        self.here.arrive(passes.prompt.until)
        T, made = passes.prompt.dims["T"], len(passes.made)
        given, later = (T, made) if written is None else (T + made, 0)
        at = self.here.fit(model.config.walk, given, model.config.num_attention_heads, later)
        lit = self.here.token(T, len(passes.later)) if written is None else self.here.token(given)
        trace, token = passes.at(min(lit, passes.read - 1))
        facts, where = facts_of(model), layer_of(at, trace.walk)
        with self.strip:
            pieces = [(each.text, each.special) for each in passes.tokens]
            read = passes.read if written is None else len(pieces)
            token_strip(pieces, lit, made=T, read=read, on_move=lambda moved: session().choose(token=moved))
            if passes.before is not None and self.here.page != "edit":  # there the list itself says so
                _say_edited(self.here, passes.prompt.edits)
        with self.picks:
            _picks(trace, at, where, layer, heads)
        self._say_notes()
        self.side.done(trace)
        write_url()
        key = (*key, trace.past)
        head, piece = self.here["head"], partial(_piece, model)
        self.here.shown = View(passes, trace, facts, at, where, head, token, lit, piece, model, key)
        visit().view = weakref.ref(self.here.shown)
        return self.here.shown

    def _say_notes(self) -> None:
        with self.notes:
            for note in dict.fromkeys((*self.here.notes, *self.remarks)):
                sentence(note)

    def _model_and_passes(
        self,
        first_paint: FirstPaint | None,
        stops: bool,
        writes: bool,
        written: Callable[[Growth], None] | None,
    ):
        here = self.here
        source, recipe = _source(here, self.busy)
        key = _model_key(here, source, recipe)
        model = store().models.get(key)
        if model is not None:  # whatever becomes of the prompt
            self.side.show(facts_of(model))
        known = open_checkpoint(source, **recipe) if model is None else model
        reader = known.tokenizer
        check_text(here["ids" if reader is None else "prompt"])
        self.side.ask(reader is not None, () if reader is None else reader.control_tokens(here["prompt"]))
        ids = _ids(here, known)
        self.remarks.extend(_remarks(here, known))
        if first_paint is not None:
            first_paint(known.config, known.config.dims(max(1, len(ids))), model is None)
        if model is None:
            check_model(known.config, here["dtype"], known.kind == RANDOM)
            make = partial(_load, known, here["device"], here["dtype"], self.busy)
            model = shared(store().models, key, make, self.busy)
            self.side.show(facts_of(model))
        check_trace(model.config, here["dtype"], len(ids))
        asked = (key, tuple(ids), here["attention"])
        edits = [entry.edit for entry in here.edits() if entry.on]
        stop = self._stop(model) if stops else None
        if writes or (here["new"] and not edits and stop is None):
            if edits:
                self.remarks.append(t("note.edits_rest"))
            return model, *self._written(model, asked, written)
        if here["new"]:
            self.remarks.append(t("note.writing_rests" if edits else "note.writing_stops"))
        return model, *self._edited(model, asked, edits, stop)

    def _written(self, model: Llama, asked: tuple, written: Callable[[Growth], None] | None) -> tuple[Passes, Hashable]:
        """The prompt's pass and those of what the model writes after it."""
        if not self.here["new"]:
            trace = _prompt_run(model, asked, self.busy)
            return Passes(trace, trace.tokens), asked
        sampling = self.here.sampling()
        key = (*asked, *sampling.values())
        growth = store().traces.get_or_make(key, lambda: Growth(model, list(asked[1]), sampling, asked[2]), session)
        return _grown(growth, key, self.here["new"], self.busy, written), key

    def _edited(self, model: Llama, asked: tuple, edits: list[Edit], stop: Stop | None) -> tuple[Passes, Hashable]:
        """The prompt's pass with its edits, as far as it is to go."""
        before, key = None, asked
        if edits:
            before = _prompt_run(model, asked, self.busy)
            if before.fused and any(edit.at.step.causal for edit in edits):  # both of a pair run on one path
                asked = (*asked[:2], "explicit")
                before = _prompt_run(model, asked, self.busy)
                self.remarks.append(t("note.edit_is_explicit"))
            key = (*asked, str(edits))
            make = partial(_edited_run, model, before, edits, self.busy)
            trace = shared(store().traces, key, make, self.busy)
            misfits = resting(edits, trace)
            if misfits and self.here.page != "edit":  # there each row says why
                self.remarks.append(t("edit.rest", edits="; ".join(str(edit)[:SAID] for edit in misfits)))
            if not trace.edits:
                before, key, edits = None, asked, []
        if stop is not None:
            whole = store().traces.get(key)
            key = (*key, stop)
            make = partial(_stopped_run, model, asked, whole, stop, self.busy)
            trace = shared(store().traces, key, make, self.busy)
        elif not edits:
            trace = _prompt_run(model, asked, self.busy)
        return Passes(trace, trace.tokens, before=before), key

    def _stop(self, model: Llama) -> Stop | None:
        """Where the run is to end, by what was set; None when nothing was."""
        here, walk = self.here, model.config.walk
        after = None if here["after"] is None else nearest(walk, At.parse(here["after"]))
        watches = here["watch"]
        try:
            watches_of(read_watches(watches), walk)
        except WatchError as error:
            self.remarks.append(str(error))
            watches = ""
        places = [break_after(read_breaks(here["breaks"]), walk, after)]
        if here["until"] is not None:
            places.append(nearest(walk, At.parse(here["until"])))
        until = min(filter(None, places), key=walk.index, default=None)
        return None if until is None and not watches else Stop(after, until, watches)


def open_page(page: str) -> Page:
    """Begin the page with this key in the table of words."""
    prepare()
    title, question = t(f"page.{page}.title"), t(f"page.{page}.question")
    st.set_page_config(page_title=f"{title} · Glass Llama", page_icon=ASSETS / "icon.png", layout="wide")
    here = begin(page)
    leave(here)  # not before the icon is named: of a run that does not, Streamlit takes it away
    st.html(ASSETS / "app.css")
    if here.shown is not None:
        here.shown.let_go()
        here.shown = None
    side = sidebar.draw(here)
    notes, strip = st.container(), st.container()
    picks = st.container(horizontal=True, vertical_alignment="bottom")
    picks.html(f'<div class="gl-title"><h1>{escape(title)}</h1><span>{escape(question)}</span></div>')
    return Page(here, side, notes, strip, picks, st.empty())


def _say_edited(here: Session, acting: Sequence[Edit]) -> None:
    """Under the strip, on every page: that the numbers are those of an edited run, and the ways out of it."""
    texts = [str(edit)[:SAID] for edit in acting]
    shown = " · ".join(texts[:3]) + (" " + t("edit.on.more", n=len(texts) - 3) if len(texts) > 3 else "")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="gl-edited"):
        st.html(f'<span class="gl-kind">{t("edit.on")}</span> <span class="gl-mono">{escape(shown)}</span>')
        st.button(
            t("edit.on.off"),
            icon=":material/toggle_off:",
            type="tertiary",
            on_click=lambda: here.choose(edit=write_entries(replace(entry, on=False) for entry in here.edits())),
        )
        st.page_link("pages/11_Edit.py", label=t("edit.on.all"), query_params=here.query())


def _picks(trace: Trace, at: At, layer: int, step: Step | None, heads: bool) -> None:
    """Beside the title: which layer, which head."""
    if step is not None:
        here = at.step if at.layer is not None else step
        st.number_input(t("pick.layer"), 0, trace.walk.layers - 1, width=136, **bind_layer(layer, here))
    if heads:
        st.number_input(t("pick.head"), 0, trace.config.num_attention_heads - 1, width=136, **bind("head"))


def _piece(model, token_id: int) -> str:
    return str(token_id) if model.tokenizer is None else model.tokenizer.piece(token_id)


def _source(here: Session, busy: DeltaGenerator) -> tuple[LlamaConfig | Path, dict[str, Any]]:
    """What to open, and how: the random model's config, or a place on the disk."""
    name = here["model"]
    if name == RANDOM:
        return here.config(), {each: here[each] for each in ("seed", "scheme", "std")}
    try:
        place = find(name, listed())
    except CheckpointError:
        if not is_hub_id(name):
            raise
        with Bar(busy, t("hub.downloading", model=name)) as bar:  # computes nothing, so it takes no turn
            bar.check()
            place = hub_panel.fetch(here, name, bar.tell)
    return place, {"rope_layout": here["pairs"] if place.is_dir() else None}


def _model_key(here: Session, source: LlamaConfig | Path, recipe: Mapping[str, Any]) -> tuple:
    """What names a model in the store: where it lies, its files as they are now, and how it is read.

    Files that changed since this session saw them last leave a note, and the models of the old ones leave the store.
    """
    files = () if isinstance(source, LlamaConfig) else stamp(source)
    if here.files[:1] == (source,) and here.files != (source, files):
        here.notes.append(t("note.replaced", model=here["model"]))
        store().drop_models(lambda model: model[0] == source and model[1] != files)
    here.files = (source, files)
    return (source, files, *recipe.values(), here["device"], here["dtype"])


def _ids(here: Session, source) -> list[int]:
    """Token ids of the chosen prompt, as many as a page runs. source: whatever has a config and a tokenizer."""
    if source.tokenizer is not None:
        ids = source.tokenizer.encode(here["prompt"], special=here["control"])
    elif here["ids"] == IDS:  # nobody chose them: a vocabulary that is smaller takes others
        ids = [i % source.config.vocab_size for i in map(int, IDS.split(","))]
    else:
        ids = parse_ids(here["ids"], source.config.vocab_size)
    check_tokens(len(ids), source.config)
    return ids


def _remarks(here: Session, source) -> list[str]:
    """What a person should know about how this prompt was read."""
    reader = source.tokenizer
    return [t("note.bos")] if reader is not None and here["control"] and reader.bos_typed(here["prompt"]) else []


def _load(checkpoint, device: str, dtype: str, busy: DeltaGenerator):
    size = numbers.bytes_(checkpoint.config.weight_bytes(dtype))
    with progress(busy, t("run.loading", model=checkpoint.source, bytes=size), LOADS) as tell:
        model = build(checkpoint, device, dtype, tell)
    settle()
    log.info("loaded %s on %s as %s", checkpoint.source, device, dtype)
    return model


class Stop(NamedTuple):
    """Where a run is to end: at `until`, or where a watch is met behind `after`."""

    after: At | None
    until: At | None
    watch: str


def _run(model, ids: list[int], busy: DeltaGenerator, **how: Any) -> Trace:
    from llama_core import run

    with progress(busy, t("run.running", tokens=len(ids))) as tell:
        return run(model, ids, progress=tell, **how)


def _prompt_run(model, asked: tuple, busy: DeltaGenerator) -> Trace:
    """The prompt's whole pass, shared by all pages and sessions. asked: the model's key, the ids, attention's path."""
    return shared(store().traces, asked, partial(_run, model, list(asked[1]), busy, path=asked[2]), busy)


def _edited_run(model, before: Trace, edits: list[Edit], busy: DeltaGenerator) -> Trace:
    """The same prompt, from the first layer on that an edit changes, without the edits that do not fit it."""
    fitting = []
    for edit in edits:
        with suppress(AddressError, RunError):  # the list stays, and can be mended
            fitting.append(fitted(edit, before, lambda ids: _run(model, ids, busy, path="auto")))
    return _run(model, list(before.ids), busy, start=before, edits=fitting)


def _stopped_run(model, asked: tuple, whole: Trace | None, stop: Stop, busy: DeltaGenerator) -> Trace:
    """A run that ends at `stop`. whole: the same run to its end, where it is there; its edits are this one's."""
    _, ids, path = asked
    ids, watches, start = list(ids), read_watches(stop.watch), whole
    if watches:  # a watch judges only what is computed: from `after` on, all of it
        start = None if stop.after is None else _run(model, ids, busy, start=whole, until=stop.after, path=path)
    edits = whole.edits if start is None and whole is not None else None
    return _run(model, ids, busy, start=start, edits=edits, until=stop.until, stop_when=watches, path=path)


def _grown(
    growth: Growth, key: Hashable, new: int, busy: DeltaGenerator, written: Callable[[Growth], None] | None
) -> Passes:
    """The passes of so many tokens: those that are there, and more where they are missing. key: of the growth."""
    if growth.has(new):
        return growth.passes(new)

    def end() -> None:
        """What is written stays; what is not was not asked for."""
        here = session()
        here.choose(new=growth.there) if growth.there else here.end()

    def grow(there: int) -> None:
        nonlocal shown
        bar.tell(there / new)
        if there > shown:
            shown = there
            pass_on()
            if written is not None:
                written(growth)

    shown = -1
    with Bar(busy, t("run.generating", tokens=new), end) as bar, store().traces.alone(key, bar.shared):
        bar.check()
        with TURNS.turn(bar.queued) as pass_on:
            passes = growth.passes(new, grow)
    store().traces.trim()  # it has grown since it was put there
    return passes
