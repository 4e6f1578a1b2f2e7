"""Where one logit comes from: an exact sum over everything that was added to the stream.

The stream at a position is embed + every attn_out + every mlp_out. With the final norm's scale frozen at the
value it had, what follows is linear, so the logit of a token is a sum with one number for each addition:

    logit_v = sum over parts of  part . (w * scale * W_head[v]),    scale = 1 / sqrt(mean(x^2) + eps)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .positions import KeysValues, rows_at
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Llama


@dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of one logit. embedding: one number; attention, mlp: [L]; all float64.

    heads: [L Hq], what each head adds through its slice of o_proj; bias: [L], what o_proj's bias adds (0 without
    one). heads of a layer + its bias = its attention, up to rounding.
    logit: as the model computed it (its difference to `against`'s, where one was given). total: embedding +
    attention + mlp. difference: logit - total, the rounding of the pass.
    scale: the final norm's at this position.
    """

    position: int
    token: int
    against: int | None
    embedding: float
    attention: np.ndarray
    mlp: np.ndarray
    heads: np.ndarray
    bias: np.ndarray
    logit: float
    total: float
    difference: float
    scale: float


def attribution(
    trace: Trace,
    model: Llama,
    position: int,
    token: int,
    against: int | None = None,
    seen: KeysValues | None = None,
) -> Attribution:
    """Parts of the logit of `token` at a position; with `against`, of its lead over that other token.

    A lead says more than a logit: what raises all logits alike cancels in it.
    seen: `keys_values` of this trace. With them what each layer added is made for this position alone, equal up to
    rounding; without, every tensor that the trace does not hold is made for all positions.
    """
    config = trace.config
    L, Hq, Dh = config.num_hidden_layers, config.num_attention_heads, config.head_dim
    position %= trace.dims["T"]

    def at_position(layer: int | None, step: steps.Step) -> np.ndarray:
        return trace[At(layer, step)][0, position].astype(np.float64)

    stream = at_position(L - 1, steps.RESID_OUT)
    scale = float(1 / np.sqrt(np.mean(stream**2) + config.rms_norm_eps))
    direction = wide(model.lm_head.weight[token])
    logits = at_position(None, steps.LOGITS)
    logit = logits[token]
    if against is not None:
        direction = direction - wide(model.lm_head.weight[against])
        logit = logit - logits[against]
    direction = direction * wide(model.model.norm.weight) * scale  # D

    attention, mlp, bias, heads = np.zeros(L), np.zeros(L), np.zeros(L), np.zeros((L, Hq))
    for layer, (head_out, attn_out, mlp_out) in enumerate(_added(trace, model, position, seen)):
        attention[layer] = attn_out @ direction
        mlp[layer] = mlp_out @ direction
        out = model.model.layers[layer].self_attn.o_proj
        asked = (direction @ wide(out.weight)).reshape(Hq, Dh)  # what the logit asks of each head
        heads[layer] = (head_out * asked).sum(axis=1)
        bias[layer] = 0.0 if out.bias is None else wide(out.bias) @ direction
    embedding = float(at_position(None, steps.EMBED) @ direction)
    total = embedding + float(attention.sum() + mlp.sum())
    return Attribution(
        position,
        token,
        against,
        embedding,
        attention,
        mlp,
        heads,
        bias,
        float(logit),
        total,
        float(logit) - total,
        scale,
    )


def _added(trace: Trace, model: Llama, position: int, seen: KeysValues | None) -> Iterator[tuple[np.ndarray, ...]]:
    """Of each layer head_out [Hq Dh], attn_out [D] and mlp_out [D] at the position, float64."""
    wanted = (steps.HEAD_OUT, steps.ATTN_OUT, steps.MLP_OUT)
    if seen is None:
        layers = range(trace.config.num_hidden_layers)
        rows = ({step: trace[At(layer, step)][0, position] for step in wanted} for layer in layers)
    else:
        rows = rows_at(trace, model, seen, position)
    return (tuple(row[step].astype(np.float64) for step in wanted) for row in rows)


def wide(weight: Tensor) -> np.ndarray:
    """A weight in float64, widened by numpy: a small one is not worth torch's threads."""
    return weight.detach().float().cpu().numpy().astype(np.float64)
