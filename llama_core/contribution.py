"""How much each source token contributes to what attention adds: a large weight on a small value moves little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .attribution import wide
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from .model import Llama


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one query receives from every key in one layer, as lengths of vectors in the stream.

    weights [Hq S]: the attention weights. heads [Hq S]: ||a_hs v_s W_O[h]||, weight times the length of the
    value after its head's slice of o_proj. tokens [S]: ||sum over h of a_hs v_s W_O[h]||, all heads together;
    heads can cancel, so it is at most the sum. Keys that the query cannot see are NaN. written [Hq]: what a head
    writes, ||sum over s of a_hs v_s W_O[h]||; sources can cancel too. o_proj's bias, where there is one, comes
    from no token and is in none of them.
    """

    weights: np.ndarray
    heads: np.ndarray
    tokens: np.ndarray
    written: np.ndarray


def contribution(trace: Trace, model: Llama, layer: int, query: int) -> Contribution:
    """What the query (its row, from 0) receives from each key of one layer. In float64."""
    at, Hq = At(layer, steps.WEIGHTS), trace.config.num_attention_heads
    weights = np.stack([trace.head(at, head)[query] for head in range(Hq)]).astype(np.float64)  # Hq S
    values = trace[At(layer, steps.V_SHARED)][0].astype(np.float64)  # S Hq Dh
    out = wide(model.model.layers[layer].self_attn.o_proj.weight)  # D Hq*Dh
    heads, sums = np.empty_like(weights), np.empty(len(weights))
    for head, columns in enumerate(np.split(out, len(weights), axis=1)):  # D Dh each
        moved = values[:, head]
        squares = np.einsum("sd,sd->s", moved @ (columns.T @ columns), moved)  # ||W v||^2 = v W'W v: S D is not made
        heads[head] = np.abs(weights[head]) * np.sqrt(np.maximum(squares, 0.0))
        sums[head] = np.linalg.norm(columns @ (weights[head] @ moved))
    mixed = weights.T[:, :, None] * values  # S Hq Dh
    tokens = np.linalg.norm(mixed.reshape(len(mixed), -1) @ out.T, axis=1)
    hidden = ~trace.visible(layer)[query]
    weights[:, hidden], heads[:, hidden], tokens[hidden] = np.nan, np.nan, np.nan
    return Contribution(weights, heads, tokens, sums)
