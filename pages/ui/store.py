"""The one store of the server: models and traces, shared by all sessions, bounded by bytes.

Loading and running happen outside any cached function and are stored when complete. A model that
several sessions ask for at once is loaded once; a load that fails is forgotten, so it can be tried
again. Traces are read-only, so sharing them is safe. The least recently used goes first.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from llama_core.config import LlamaConfig
from llama_core.steps import At, Step
from llama_core.survey import Survey, begin, survey
from llama_core.trace import Trace

MODEL_BYTES = int(os.environ.get("GLASS_LLAMA_MODEL_MIB", "4096")) << 20
TRACE_BYTES = int(os.environ.get("GLASS_LLAMA_TRACE_MIB", "2048")) << 20
MEASURE_BYTES = 256 << 20


@dataclass
class Shelf:
    """Things by key, at most `limit` bytes of them (always at least the newest). on_gone: told which key left."""

    limit: int
    size: Callable[[Any], int]
    on_gone: Callable[[Hashable], None] = lambda key: None
    _things: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    _makers: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable) -> Any | None:
        """The thing, now the most recently used; None when it is not here."""
        with self._lock:
            if key in self._things:
                self._things.move_to_end(key)
            return self._things.get(key)

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The thing; the first who asks makes it while others wait. What `make` raises reaches that caller."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            maker = self._makers.setdefault(key, threading.Lock())
        with maker:
            found = self.get(key)
            if found is None:
                found = make()
                self._put(key, found)
        return found

    def _put(self, key: Hashable, thing: Any) -> None:
        with self._lock:
            self._things[key] = thing
            self._makers.pop(key, None)
            gone = []
            while len(self._things) > 1 and self.nbytes() > self.limit:
                gone.append(self._things.popitem(last=False)[0])
        for each in gone:
            self.on_gone(each)

    def drop(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Let go of what has such a key."""
        with self._lock:
            for key in [key for key in self._things if unwanted(key)]:
                del self._things[key]

    def nbytes(self) -> int:
        """Bytes of all things here."""
        return sum(self.size(thing) for thing in self._things.values())


@dataclass
class Store:
    """models: by (source, device, dtype); traces: by (a model's key, ids, ...); measures: by (a trace's key, name).

    A trace keeps the weights that computed it, so a model that goes takes its traces along, and what was measured.
    """

    models: Shelf = field(default_factory=lambda: Shelf(MODEL_BYTES, lambda model: model.nbytes()))
    traces: Shelf = field(default_factory=lambda: Shelf(TRACE_BYTES, lambda trace: trace.nbytes))
    measures: Shelf = field(default_factory=lambda: Shelf(MEASURE_BYTES, weigh))

    def __post_init__(self) -> None:
        self.models.on_gone = self._without

    def _without(self, model: Hashable) -> None:
        self.traces.drop(lambda key: key[0] == model)
        self.measures.drop(lambda key: key[0][0] == model)


def weigh(thing: Any) -> int:
    """Bytes of the arrays and tables in a measure, whatever records and lists they stand in."""
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, pd.DataFrame):
        return int(thing.memory_usage(deep=True).sum())
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


def begin_survey(trace: Trace, patience: float = 0.2) -> Survey:
    """A survey that fills in a thread of its own; a short one is complete when this returns."""
    found = begin(trace)
    thread = threading.Thread(target=survey, args=(trace,), kwargs={"into": found}, name="survey", daemon=True)
    thread.start()
    thread.join(patience)
    return found


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
