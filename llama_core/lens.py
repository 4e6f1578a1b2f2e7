"""What each layer would say if the model stopped there, and the loss of what it does say.

The lens puts a layer's stream through the final norm, once, and through the head. It is computed with the
model's own modules in the shape of the model's own call, so at the last layer it is the logits, bit for bit.
Logits of all positions and the whole vocabulary are large: they are made for one layer, read, and dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .ranking import largest
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from .model import Llama


@dataclass(frozen=True, eq=False)
class Reading:
    """What the stream says after one layer, at each position. layer: None is the embedding.

    ids, shares: [T k] the most probable next tokens and their probabilities, the best first.
    entropy: [T] of all probabilities, in nats. answer_rank, answer_share: [T] place (1 is best) and probability
    of the token that the last layer favours at this position. came_rank, came_share: [T - 1] the same of the
    token that really came next; nothing came after the last position.
    """

    layer: int | None
    ids: np.ndarray
    shares: np.ndarray
    entropy: np.ndarray
    answer_rank: np.ndarray
    answer_share: np.ndarray
    came_rank: np.ndarray
    came_share: np.ndarray


def lens(trace: Trace, model: Llama, top: int = 5) -> Iterator[Reading]:
    """Readings of the embedding, then of every layer, one at a time: L + 1 of them.

    Each costs one pass through the head over all positions. Stop iterating to stop computing.
    """
    for layer in [None, *range(trace.config.num_hidden_layers)]:
        yield lens_layer(trace, model, layer, top)


def lens_layer(trace: Trace, model: Llama, layer: int | None, top: int = 5, positions: range | None = None) -> Reading:
    """The reading after one layer (None: of the embedding).

    positions: those alone, counted in the reading from 0; a moment where a long prompt takes seconds. They are read up
    to rounding then: fewer rows than the model's own go through the head.
    """
    whole = range(trace.dims["T"]) if positions is None else positions
    answers = trace["logits"][0, whole.start : whole.stop].argmax(axis=-1)
    ids = trace.ids[whole.start : whole.stop + 1]
    return _read(layer, lens_logits(trace, model, layer, positions), answers, ids, top)


def lens_logits(trace: Trace, model: Llama, layer: int | None, positions: range | None = None) -> np.ndarray:
    """final norm, then head, of resid_out (None: of embed). [T V] float32, or of some positions."""
    import torch

    at = At(None, steps.EMBED) if layer is None else At(layer, steps.RESID_OUT)
    rows = trace[at] if positions is None else trace[at][:, positions.start : positions.stop]
    stream = torch.tensor(rows, dtype=model.dtype, device=model.device)  # B T D: the model's own shape
    with torch.no_grad():
        return model.lm_head(model.model.norm(stream))[0].float().cpu().numpy()


def _read(layer: int | None, logits: np.ndarray, answers: np.ndarray, ids: tuple[int, ...], top: int) -> Reading:
    """ids: of these positions, and of the one that came after them where there was one."""
    T, V = logits.shape
    top, came = min(top, V), len(ids) - 1
    best, shares = np.zeros((T, top), dtype=np.int64), np.zeros((T, top))
    spread, ranks, chances = np.zeros(T), np.zeros((T, 2), dtype=np.int64), np.zeros((T, 2))
    for t, row in enumerate(logits):
        shifted = row - row.max()
        powers = np.exp(shifted)  # float32; sums are taken in float64
        total = powers.sum(dtype=np.float64)
        best[t] = largest(row, top)
        shares[t] = powers[best[t]] / total
        spread[t] = math.log(total) - np.einsum("v,v->", powers, shifted, dtype=np.float64) / total
        wanted = [answers[t], ids[t + 1] if t < came else answers[t]]
        ranks[t] = [1 + np.count_nonzero(row > row[token]) for token in wanted]
        chances[t] = powers[wanted] / total
    return Reading(layer, best, shares, spread, ranks[:, 0], chances[:, 0], ranks[:came, 1], chances[:came, 1])


@dataclass(frozen=True, eq=False)
class Loss:
    """each: [T - 1] -ln p of the token that came after positions 0 .. T - 2, in nats; mean: of these, NaN for T = 1.

    even: ln V, the loss of a model that finds every token equally likely.
    """

    each: np.ndarray
    mean: float
    even: float


def loss(trace: Trace) -> Loss:
    """ln(sum of e^l) - l[came] at each position: the largest logit is taken out first, sums are taken in float64."""
    logits = trace["logits"][0]
    each = np.zeros(len(logits) - 1)
    for t, came in enumerate(trace.ids[1:]):
        row = logits[t]
        top = row.max()
        each[t] = np.log(np.exp(row - top).sum(dtype=np.float64)) - (float(row[came]) - float(top))
    return Loss(each, float(each.mean()) if each.size else math.nan, math.log(trace.config.vocab_size))
