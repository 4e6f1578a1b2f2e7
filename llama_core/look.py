"""Where to look first in a trace, chosen by measuring it. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from . import steps
from .steps import At
from .trace import Trace


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


def farthest_look(trace: Trace) -> FarLook | None:
    """The largest attention weight on a token that is neither the first, the one before, nor the query itself.

    Those three are where most heads rest; None when the prompt has no other pair, or the run no weights.
    """
    T, S, past = trace.dims["T"], trace.dims["S"], trace.past
    far = np.tri(T, S, past - 2, dtype=bool)
    far[:, 0] = False
    best: FarLook | None = None
    for layer in range(trace.config.num_hidden_layers):
        at = At(layer, steps.WEIGHTS)
        if at not in trace:
            break
        seen = trace.visible(at)
        allowed = far & seen
        if not allowed.any():
            continue
        weights = np.where(allowed, trace[at][0], -1.0)
        head, query, key = np.unravel_index(int(weights.argmax()), weights.shape)
        weight = float(weights[head, query, key])
        if best is None or weight > best.weight:
            stands_out = weight >= 2 / int(seen[query].sum())
            best = FarLook(at, int(head), int(query), int(key), weight, stands_out)
    return best


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


def answer_look(trace: Trace) -> ReturningLook | None:
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
    looks = []
    for layer in range(trace.config.num_hidden_layers) if places.size else ():
        at = At(layer, steps.WEIGHTS)
        keys = places[trace.visible(at)[query, places]]
        if keys.size:
            weights = trace[at][0, :, query][:, keys]
            head, key = np.unravel_index(int(np.nan_to_num(weights, nan=-1.0).argmax()), weights.shape)
            looks.append(ReturningLook(at, int(head), query, int(keys[key]), float(weights[head, key]), "answer"))
    return max(looks, key=lambda look: look.weight, default=None)


def returning_look(trace: Trace) -> ReturningLook | None:
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
    best: ReturningLook | None = None
    for layer in range(trace.config.num_hidden_layers):
        at = At(layer, steps.WEIGHTS)
        if at not in trace:
            break
        seen = trace.visible(at)
        pairs = {kind: np.nonzero(where & seen[:, trace.past :]) for kind, where in kinds.items()}
        for kind, (queries, keys) in pairs.items():
            if not queries.size:
                continue
            keys = keys + trace.past
            weights = np.nan_to_num(trace[at][0][:, queries, keys], nan=-1.0)
            head, pair = np.unravel_index(int(weights.argmax()), weights.shape)
            weight = float(weights[head, pair])
            if best is None or weight > best.weight:
                best = ReturningLook(at, int(head), int(queries[pair]), int(keys[pair]), weight, kind)
    return best


def _returns(ids: np.ndarray, past: int) -> dict[Literal["duplicate", "induction"], np.ndarray]:
    """Which (query, key) pairs of this pass are a return, by kind. Each [T T] bool; the first and previous in none."""
    T = len(ids)
    earlier = (ids[:, None] == ids[None, :]) & np.tri(T, T, -2, dtype=bool)
    after = np.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1]
    counted = np.tri(T, T, -2, dtype=bool)
    counted[:, : 1 if past == 0 else 0] = False
    return {"duplicate": earlier & counted, "induction": after & counted & ~earlier}
