"""The one store of the server: models and traces, shared by all sessions, bounded by bytes.

Loading and running happen outside any cached function and are stored when complete. A model that
several sessions ask for at once is loaded once; a load that fails is forgotten, so it can be tried
again. Traces are read-only, so sharing them is safe. The least recently used goes first, and what was
held only by sessions that have ended.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from llama_core.config import LlamaConfig
from llama_core.errors import GlassLlamaError
from llama_core.settings import MODEL_MIB, TRACE_MIB
from llama_core.steps import At, Step
from llama_core.survey import Survey, survey
from llama_core.trace import Trace
from pages.ui.queue import MOMENT, TURNS, held
from pages.words import t

MODEL_BYTES = MODEL_MIB.bytes
TRACE_BYTES = TRACE_MIB.bytes
MEASURE_BYTES = 256 << 20
GRACE = 60.0
"""Seconds that a session which ended goes on holding what it held."""


class LeftError(GlassLlamaError):
    """Work in the background has ended: the trace that it reads is no longer in the store."""


def _nobody() -> None:
    pass


@dataclass
class Shelf:
    """Things by key, at most `limit` bytes of them (always at least the newest). on_gone: told which key left.

    holder: who asks, or None; a thing that only holders asked for leaves with the last of them.
    grows: whether a thing may have become larger when its size is asked for again.
    """

    limit: int
    size: Callable[[Any], int]
    on_gone: Callable[[Hashable], None] = lambda key: None
    holder: Callable[[], Hashable | None] = _nobody
    grows: Callable[[Any], bool] = lambda thing: True
    _things: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    _holders: dict[Hashable, set[Hashable]] = field(default_factory=dict)
    _sizes: dict[Hashable, int] = field(default_factory=dict)
    _locks: weakref.WeakValueDictionary = field(default_factory=weakref.WeakValueDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable) -> Any | None:
        """The thing, now the most recently used; None when it is not here."""
        holder = self.holder()
        with self._lock:
            if key in self._things:
                self._things.move_to_end(key)
                self._holders[key].add(holder)
            return self._things.get(key)

    def __contains__(self, key: Hashable) -> bool:
        """Whether the thing is here. To look is not to use it."""
        with self._lock:
            return key in self._things

    def get_or_make(self, key: Hashable, make: Callable[[], Any], waiting: Callable[[], object] = _nobody) -> Any:
        """The thing; the first who asks makes it while others wait. What `make` raises reaches that caller.

        waiting: called every moment while another makes it; what it raises ends the wait. When a maker fails or is
        stopped, one of those who wait takes over.
        """
        found = self.get(key)
        if found is not None:
            return found
        with self.alone(key, waiting):
            found = self.get(key)
            if found is None:
                found = make()
                self._put(key, found)
        return found

    @contextmanager
    def alone(self, key: Hashable, waiting: Callable[[], object] = _nobody) -> Iterator[None]:
        """One at a time makes the thing of a key, or makes more of it. waiting: as in `get_or_make`."""
        with self._lock:  # the dictionary forgets a lock that nobody holds or waits for
            lock = self._locks.setdefault(key, threading.Lock())
        with held(lock, waiting):
            yield

    def _put(self, key: Hashable, thing: Any) -> None:
        holder = self.holder()
        with self._lock:
            self._things[key] = thing
            self._holders[key] = {holder}
            self._sizes.pop(key, None)
        self.trim()

    def trim(self) -> None:
        """Keep the limit, where a thing here has grown."""
        gone = []
        with self._lock:
            while len(self._things) > 1 and self.nbytes() > self.limit:
                gone.append(next(iter(self._things)))
                self._forget(gone[-1])
        for each in gone:
            self.on_gone(each)

    def drop(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Let go of what has such a key."""
        with self._lock:
            for key in [key for key in self._things if unwanted(key)]:
                self._forget(key)

    def leave(self, holder: Hashable) -> None:
        """This holder has ended: let go of what nobody else asked for."""
        with self._lock:
            for key, holders in list(self._holders.items()):
                holders.discard(holder)
                if not holders:
                    self._forget(key)

    def _forget(self, key: Hashable) -> None:
        del self._things[key], self._holders[key]
        self._sizes.pop(key, None)

    def nbytes(self) -> int:
        """Bytes of all things here."""
        unknown = [key for key in self._things if key not in self._sizes]
        return sum(self._sizes.values()) + sum(self._weighed(key) for key in unknown)

    def _weighed(self, key: Hashable) -> int:
        """To weigh takes longer than to look up: what no longer grows is weighed once."""
        thing = self._things[key]
        size = self.size(thing)
        if not self.grows(thing):
            self._sizes[key] = size
        return size


@dataclass
class Store:
    """models: by (source, device, dtype); traces: by (a model's key, ids, ...); measures: by (a trace's key, name).

    A trace keeps the weights that computed it, so a model that goes takes its traces along, and what was measured.
    Traces and measures are held by the sessions that asked for them; models stay, one copy for all.
    """

    models: Shelf = field(default_factory=lambda: Shelf(MODEL_BYTES, lambda model: model.nbytes()))
    traces: Shelf = field(default_factory=lambda: Shelf(TRACE_BYTES, lambda trace: trace.nbytes, holder=visit))
    measures: Shelf = field(default_factory=lambda: Shelf(MEASURE_BYTES, weigh, holder=visit, grows=_fills))

    def __post_init__(self) -> None:
        self.models.on_gone = self._without

    def drop_models(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Let go of the models with such a key, and of what they computed."""
        self.models.drop(unwanted)
        self.traces.drop(lambda key: unwanted(key[0]))
        self.measures.drop(lambda key: unwanted(key[0][0]))

    def leave(self, holder: Hashable) -> None:
        """A session has ended: what nobody else holds goes."""
        self.traces.leave(holder)
        self.measures.leave(holder)

    def between(self, trace: Hashable) -> None:
        """Between the parts of background work on the trace of this key: people's own work goes first.

        LeftError when the trace has left meanwhile.
        """
        TURNS.give_way()
        if trace not in self.traces:
            raise LeftError(t("run.left"))

    def _without(self, model: Hashable) -> None:
        self.traces.drop(lambda key: key[0] == model)
        self.measures.drop(lambda key: key[0][0] == model)


def _fills(measure: Any) -> bool:
    """Whether a measure comes in parts, as a survey does, and has not got them all."""
    return getattr(measure, "done", True) is False


def weigh(thing: Any) -> int:
    """Bytes of the arrays, tables and texts in a measure, whatever records and lists they stand in."""
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if hasattr(type(thing), "memory_usage"):  # a table; pandas itself takes a third of a second to load
        return int(thing.memory_usage(deep=True).sum())
    if isinstance(thing, str):
        return 64 + len(thing)
    if isinstance(thing, (At, Step)):  # of the registry: nobody's own
        return 0
    if is_dataclass(thing):
        return 64 + sum(weigh(getattr(thing, each.name)) for each in fields(thing))
    if isinstance(thing, Mapping):
        return 64 + sum(weigh(each) for each in thing.values())
    return 64 + sum(map(weigh, thing)) if isinstance(thing, (list, tuple)) else 64


@st.cache_resource(show_spinner=False)
def store() -> Store:
    """The server's store."""
    return Store()


@dataclass(eq=False)
class Visit:
    """A browser tab for as long as it is connected. view: a weak reference to what it shows; script: what runs it."""

    view: Callable[[], Any] = _nobody
    script: threading.Thread = field(default_factory=threading.current_thread)

    def end(self) -> None:
        """The tab has gone. A reload is another session a moment later, and still finds what this one holds."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # collected as garbage, on any thread and under any lock: the limits let go of the rest
            return
        loop.call_later(GRACE, store().leave, self)
        loop.call_later(MOMENT, self._let_go_view, loop)

    def _let_go_view(self, loop: asyncio.AbstractEventLoop) -> None:
        """Streamlit keeps the session for some minutes, and with it the view; its script may not have ended yet."""
        view = self.view()
        if self.script.is_alive():
            loop.call_later(MOMENT, self._let_go_view, loop)
        elif view is not None:
            view.let_go()


_of_thread = threading.local()


@st.cache_resource(scope="session", on_release=Visit.end, show_spinner=False)
def _visit() -> Visit:
    return Visit()


def visit() -> Visit | None:
    """The visit of the session whose script runs on this thread; None on any other thread."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return None
    st.session_state.get("visit")  # a Streamlit call: the script of a tab that has gone ends here, without a new visit
    found = getattr(_of_thread, "visit", None)
    if found is None:  # a thread that runs scripts runs those of one tab
        found = _of_thread.visit = _visit()
        found.script = threading.current_thread()
    return found


_filling: set[Survey] = set()
_filling_lock = threading.Lock()


def begin_survey(trace: Trace, between: Callable[[float], object], into: Survey, patience: float = 0.2) -> Survey:
    """Fill a survey in a thread of its own, unless one does already; a short one is complete when this returns.

    between: `progress` of the core's survey. Where LeftError ends the thread, a later call goes on.
    """
    with _filling_lock:
        if into.done or into in _filling:
            return into
        _filling.add(into)
    thread = threading.Thread(target=_fill, args=(trace, between, into), name="survey", daemon=True)
    thread.start()
    thread.join(patience)
    return into


def _fill(trace: Trace, between: Callable[[float], object], into: Survey) -> None:
    try:
        with suppress(LeftError):
            survey(trace, between, into)
    finally:
        with _filling_lock:
            _filling.discard(into)


def settle() -> None:
    """Streamlit collects garbage after every rerun; what is loaded for good need not be walked each time."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class ModelFacts:
    """What pages say about the loaded model. label, kind, stored_dtype, notes: of its weights' file."""

    config: LlamaConfig
    label: str
    kind: str
    stored_dtype: str
    nbytes: int
    device: str
    dtype: str
    reads_text: bool
    notes: tuple[str, ...] = ()


def facts_of(model) -> ModelFacts:
    """What pages say about a model, without handing them the model."""
    from llama_core.stats import dtype_name  # torch is there once a model is

    origin = model.origin
    return ModelFacts(
        model.config,
        origin.label,
        origin.kind,
        origin.stored_dtype,
        model.nbytes(),
        str(model.device),
        dtype_name(model.dtype),
        model.tokenizer is not None,
        origin.notes,
    )
