"""Where to look first in a trace, chosen by measuring it. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

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
    T, past = trace.dims["T"], trace.past
    allowed = np.tri(T, trace.dims["S"], past - 2, dtype=bool)
    allowed[:, 0] = False
    if not allowed.any():
        return None
    best: FarLook | None = None
    for layer in range(trace.config.num_hidden_layers):
        at = At(layer, steps.WEIGHTS)
        if at not in trace:
            break
        weights = np.where(allowed, trace[at][0], -1.0)
        head, query, key = np.unravel_index(int(weights.argmax()), weights.shape)
        weight = float(weights[head, query, key])
        if best is None or weight > best.weight:
            best = FarLook(at, int(head), int(query), int(key), weight, weight >= 2 / (past + query + 1))
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
