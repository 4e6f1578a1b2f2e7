"""What a norm does to a tensor, and how the stream grows that it has to tame.

RMSNorm(x) = x * scale * w with scale = 1 / sqrt(mean(x^2) + eps), over the last axis. All sums in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .errors import AddressError
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from .model import Llama


@dataclass(frozen=True, eq=False)
class NormReading:
    """A norm step and what it read. `...` is T, or T H for the norms of queries and keys; N is the width.

    source: the address it reads. before [... N]: what it read; scaled [... N]: before * scale, with rms 1;
    after [... N]: the captured step, scaled * weight. weight [N].
    mean_square, scale [...]: per vector. eps_share [...]: eps / (mean_square + eps), 0 where eps plays no part.
    """

    source: At
    before: np.ndarray
    scaled: np.ndarray
    after: np.ndarray
    weight: np.ndarray
    mean_square: np.ndarray
    scale: np.ndarray
    eps: float
    eps_share: np.ndarray


def read_norm(trace: Trace, model: Llama, at: At) -> NormReading:
    """The numbers inside a norm step: attn_norm, mlp_norm, final_norm, q_norm or k_norm."""
    weight = norm_weight(model, at)
    (source,) = trace.walk.sources(at)
    before, eps = trace[source][0], trace.config.rms_norm_eps
    mean_square = np.mean(before.astype(np.float64) ** 2, axis=-1)
    scale = 1 / np.sqrt(mean_square + eps)
    scaled = (before * scale[..., None]).astype(np.float32)
    return NormReading(source, before, scaled, trace[at][0], weight, mean_square, scale, eps, eps / (mean_square + eps))


def norm_weight(model: Llama, at: At) -> np.ndarray:
    """The learnt weight of a norm step. [N] float32."""
    name = next((weight for weight in at.step.weights if "norm" in weight), None)
    if name is None:
        raise AddressError(f"{at} is no norm: choose attn_norm, mlp_norm or final_norm, for example 0.attn_norm.")
    full = name if at.layer is None else f"model.layers.{at.layer}.{name}"
    return model.get_parameter(full).detach().float().cpu().numpy()


# --- against other norms ---


@dataclass(frozen=True, eq=False)
class Compared:
    """Two ways to normalise the same vectors. cosine, largest [...]: per vector, of the two results.

    ours, other [... N]: the two results, after the weight.
    """

    ours: np.ndarray
    other: np.ndarray
    cosine: np.ndarray
    largest: np.ndarray


def against_layer_norm(reading: NormReading) -> Compared:
    """RMSNorm against LayerNorm without bias: (x - mean) / sqrt(var + eps) * w, the same eps and weight.

    Equal where a vector's mean is 0; the further the mean from 0, the more they differ.
    """
    x = reading.before.astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return _compared(
        x * reading.scale[..., None] * reading.weight, centred / np.sqrt(variance + reading.eps) * reading.weight
    )


def against_bfloat16(reading: NormReading) -> Compared:
    """Statistics in float32, as the model takes them, against a norm that computes all of it in bfloat16.

    Both read the same vectors, rounded to bfloat16, and neither result is rounded at its end: what differs is
    the scale, whose mean of squares keeps 8 bits in bfloat16.
    """
    import torch

    x = torch.tensor(reading.before).bfloat16()
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + reading.eps)
    narrow = torch.rsqrt(x.square().mean(-1, keepdim=True) + reading.eps)
    ours, other = ((wide * s.float()).double().numpy() * reading.weight for s in (scale, narrow))
    return _compared(ours, other)


def _compared(ours: np.ndarray, other: np.ndarray) -> Compared:
    return Compared(ours, other, cosine(ours, other), np.abs(ours - other).max(axis=-1))


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine over the last axis, in float64; NaN where one side is all zero. [... N] -> [...]"""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sizes = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.divide((a * b).sum(axis=-1), sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0)


def rms(x: np.ndarray) -> np.ndarray:
    """Root mean square over the last axis, in float64. [... N] -> [...]"""
    return np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1))


# --- how the stream grows ---


@dataclass(frozen=True, eq=False)
class LayerGrowth:
    """What one layer adds to the stream, per token: each [T] float64. Sizes are rms over the width.

    before, middle, after: the stream entering, after attention, leaving. attention, mlp: what the two add.
    attention_cosine: of attn_out with the stream that it is added to (resid_in); mlp_cosine: of mlp_out with
    resid_mid. Near 1 it makes the stream longer, near -1 shorter, near 0 it writes something new.
    """

    before: np.ndarray
    attention: np.ndarray
    attention_cosine: np.ndarray
    middle: np.ndarray
    mlp: np.ndarray
    mlp_cosine: np.ndarray
    after: np.ndarray

    @property
    def first_ratio(self) -> float:
        """Size of the first token's stream over the median of the others', leaving the layer; NaN when it is alone."""
        return float(self.after[0] / np.median(self.after[1:])) if len(self.after) > 1 else np.nan


def layer_growth(trace: Trace, layer: int) -> LayerGrowth:
    """Sizes and directions of one layer's two additions."""
    x, o, m, y, z = (
        trace[At(layer, step)][0]
        for step in (steps.RESID_IN, steps.ATTN_OUT, steps.RESID_MID, steps.MLP_OUT, steps.RESID_OUT)
    )
    return LayerGrowth(rms(x), rms(o), cosine(o, x), rms(m), rms(y), cosine(y, m), rms(z))


def stream_growth(trace: Trace) -> tuple[LayerGrowth, ...]:
    """`layer_growth` of every layer that the run finished."""
    layers = range(trace.config.num_hidden_layers)
    return tuple(layer_growth(trace, layer) for layer in layers if At(layer, steps.RESID_OUT) in trace)
