"""Where to look first in a trace, chosen by measuring it. numpy only.

Of a prompt of more than LONG tokens the last RECENT queries are searched. Weights that the run does not hold are made
for the search alone, up to rounding; the weight that is told is always the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from . import steps
from .heads import maps_of
from .steps import At
from .trace import Trace

Progress = Callable[[float], None]
"""Told the share of layers that are searched, after each; what it raises ends the search."""
LONG = 512
RECENT = 128


@dataclass(frozen=True)
class FarLook:
    """One head's look at one earlier token: weight of `key` in the row of `query`.

    `stands_out`: the weight is at least twice an even share of what the query may see.
    """

    at: At
    head: int
    query: int
    key: int
    weight: float
    stands_out: bool


def farthest_look(trace: Trace, progress: Progress | None = None) -> FarLook | None:
    """The largest attention weight on a token that is neither the first, the one before, nor the query itself.

    Those three are where most heads rest; None when the prompt has no other pair, or the run no weights.
    """
    T, S, past, first = trace.dims["T"], trace.dims["S"], trace.past, _first(trace)
    far = np.tri(T, S, past - 2, dtype=bool)[first:]
    far[:, 0] = False
    found, most = None, -1.0
    for at, head, weights in _searched(trace, first, progress):
        allowed = far & trace.visible(at)[first:]
        if not allowed.any():
            continue
        weights = np.where(allowed, weights, -1.0)
        more, query, key = (int(i) for i in np.unravel_index(int(weights.argmax()), weights.shape))
        if weights[more, query, key] > most:
            found, most = (at, head + more, first + query, key), weights[more, query, key]
    if found is None:
        return None
    at, head, query, key = found
    weight = _weight(trace, *found)
    return FarLook(at, head, query, key, weight, weight >= 2 / int(trace.visible(at)[query].sum()))


def _first(trace: Trace) -> int:
    """The first query that is searched."""
    T = trace.dims["T"]
    return 0 if T <= LONG else T - RECENT


def _searched(trace: Trace, first: int, progress: Progress | None) -> Iterator[tuple[At, int, np.ndarray]]:
    """The weights of the queries from `first` on, layer by layer: address, first head, [heads queries S]."""
    layers = trace.config.num_hidden_layers
    for layer in range(layers):
        at, head = At(layer, steps.WEIGHTS), 0
        if at not in trace:
            return
        made = first > 0 and not trace.holds(at) and not any(edit.at.step.causal for edit in trace.edits)
        parts = _made(trace, layer, slice(first, None)) if made else (maps[:, first:] for maps in maps_of(trace, at))
        for weights in parts:
            yield at, head, weights
            head += len(weights)
        if progress is not None:
            progress((layer + 1) / layers)


def looks_of(trace: Trace, layer: int, query: int) -> np.ndarray:
    """The weights of one query in all heads of a layer. [Hq S]

    The run's own where they are held; else, up to rounding, made from its turned queries and keys, in a moment.
    """
    at = At(layer, steps.WEIGHTS)
    if trace.holds(at) or any(edit.at.step.causal for edit in trace.edits):
        return np.concatenate([maps[:, query] for maps in maps_of(trace, at)])
    return np.concatenate([rows[:, 0] for rows in _made(trace, layer, slice(query, query + 1))])


def _made(trace: Trace, layer: int, queries: slice) -> Iterator[np.ndarray]:
    """The weights of some queries, a head at a time, from the turned queries and keys: no whole map is made. [1 n S]"""
    q, k = trace[At(layer, steps.Q_ROT)][0, queries], trace[At(layer, steps.K_SHARED)][0]  # n Hq Dh, S Hq Dh
    hidden = ~trace.visible(layer)[queries]
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head].T / np.float32(np.sqrt(q.shape[-1]))
        scores[hidden] = -np.inf
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        yield (powers / powers.sum(axis=1, keepdims=True))[None]


def _weight(trace: Trace, at: At, head: int, query: int, key: int) -> float:
    return float(trace.head(at, head)[query, key])


def stream_sizes(trace: Trace) -> tuple[list[float], list[float]]:
    """rms of resid_out after each computed layer: over all positions, and of position 0 alone."""
    everywhere, first = [], []
    for layer in range(trace.config.num_hidden_layers):
        at = At(layer, steps.RESID_OUT)
        if at not in trace:
            break
        everywhere.append(trace.stat(at).rms)
        first.append(float(np.sqrt(np.mean(np.square(trace[at][0, 0].astype(np.float64))))))
    return everywhere, first


@dataclass(frozen=True)
class ReturningLook:
    """One head's look back at a token that is there again or comes again: weight of `key` in the row of `query`.

    kind: "duplicate" when key is an earlier place of the same token, "induction" when it is the place after one,
    "answer" when it is an earlier place of the token that the model expects next.
    """

    at: At
    head: int
    query: int
    key: int
    weight: float
    kind: Literal["duplicate", "induction", "answer"]


def answer_look(trace: Trace, progress: Progress | None = None) -> ReturningLook | None:
    """The largest weight that the last token puts on an earlier place of the most probable next token.

    Not counted: the first position, the one before and the token itself. None when that token is nowhere else, the
    pass has no logits, or its last token is no query of a map here.
    """
    if At(None, steps.LOGITS) not in trace:
        return None
    query, past = trace.dims["T"] - 1, trace.past
    (answer, _), *_ = trace.next_tokens(top=1)
    places = np.flatnonzero(np.array(trace.ids[: query - 1]) == answer) + past
    places = places[places > 0]
    first, found, most = _first(trace), None, -1.0
    for at, head, weights in _searched(trace, first, progress) if places.size else ():
        keys = places[trace.visible(at)[query, places]]
        if not keys.size:
            continue
        row = np.nan_to_num(weights[:, query - first][:, keys], nan=-1.0)
        more, key = (int(i) for i in np.unravel_index(int(row.argmax()), row.shape))
        if row[more, key] > most:
            found, most = (at, head + more, query, int(keys[key])), row[more, key]
    return None if found is None else ReturningLook(*found, _weight(trace, *found), "answer")


def returning_look(trace: Trace, progress: Progress | None = None) -> ReturningLook | None:
    """The largest weight that a token which occurred before puts on that place, or on what came after it.

    Not counted: occurrences side by side, and looks at the first position, the one before or the query itself,
    where most heads rest whatever the token. Tokens without a letter or digit, which return all the time and say
    little, count only where nothing else returns. None when nothing repeats so, or the run has no weights.
    """
    kinds = _returns(np.array(trace.ids), trace.past)
    spoken = np.array([not token.special and any(map(str.isalnum, token.text)) for token in trace.tokens])
    words = {kind: where & spoken[:, None] & spoken for kind, where in kinds.items()}
    if any(where.any() for where in words.values()):
        kinds = words
    first, found, most, kind_of = _first(trace), None, -1.0, ""
    if not any(where[first:].any() for where in kinds.values()):
        return None
    for at, head, weights in _searched(trace, first, progress):
        seen = trace.visible(at)[first:, trace.past :]
        for kind, where in kinds.items():
            queries, keys = np.nonzero(where[first:] & seen)
            if not queries.size:
                continue
            some = np.nan_to_num(weights[:, queries, keys + trace.past], nan=-1.0)
            more, pair = (int(i) for i in np.unravel_index(int(some.argmax()), some.shape))
            if some[more, pair] > most:
                found = at, head + more, first + int(queries[pair]), int(keys[pair]) + trace.past
                most, kind_of = some[more, pair], kind
    return None if found is None else ReturningLook(*found, _weight(trace, *found), kind_of)


def _returns(ids: np.ndarray, past: int) -> dict[Literal["duplicate", "induction"], np.ndarray]:
    """Which (query, key) pairs of this pass are a return, by kind. Each [T T] bool; the first and previous in none."""
    T = len(ids)
    earlier = (ids[:, None] == ids[None, :]) & np.tri(T, T, -2, dtype=bool)
    after = np.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1]
    counted = np.tri(T, T, -2, dtype=bool)
    counted[:, : 1 if past == 0 else 0] = False
    return {"duplicate": earlier & counted, "induction": after & counted & ~earlier}
