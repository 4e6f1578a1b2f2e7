"""Rotary position embedding: the frequencies, the table of angles, and the turn itself.

Everything about angles is float32, whatever the model computes in: in bfloat16 the positions
256 and 257 are the same number. The table is built once, when the model is built.

Which two dimensions form a pair is a property of the stored weights: the two halves
(r, r + Dh/2) in Hugging Face files, neighbours (2r, 2r + 1) in Meta's. Mixing them is the
commonest porting bug, and both run without an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .config import LlamaConfig
from .scaling import DynamicScaling, LinearScaling, Llama3Scaling, YarnScaling


def inverse_frequencies(config: LlamaConfig, length: int | None = None) -> Tensor:
    """Turn per position of each pair, in radians: theta^(-2r/Dh), scaled if the config says so. [R] float32.

    length: positions of the pass, cached ones included. Only dynamic scaling asks for it, and only where it is
    above `max_position_embeddings`.
    """
    theta, scaling = config.rope_theta, config.rope_scaling
    exponents = torch.arange(0, config.head_dim, 2, device="cpu").float() / config.head_dim
    if isinstance(scaling, DynamicScaling):
        return 1.0 / (dynamic_theta(config, length) ** exponents)
    if isinstance(scaling, YarnScaling):
        return scale_yarn(theta**exponents, theta, scaling)
    frequencies = 1.0 / (theta**exponents)
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    return scale_llama3(frequencies, scaling) if isinstance(scaling, Llama3Scaling) else frequencies


def dynamic_theta(config: LlamaConfig, length: int | None) -> float | Tensor:
    """The theta that a pass of `length` positions turns by: the config's own up to its context, larger beyond.

    float32 beyond the context, as transformers takes it.
    """
    factor, trained = config.rope_scaling.factor, config.max_position_embeddings
    if length is None or length <= trained:
        return config.rope_theta
    longer = factor * torch.tensor(float(length), dtype=torch.float32, device="cpu") / trained - (factor - 1)
    return config.rope_theta * longer ** (config.head_dim / (config.head_dim - 2))


def scale_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's stretching by wavelength 2 pi / f. [R] -> [R], float32.

    Pairs that turn often within the original context keep their speed, pairs that turn less than
    `low_freq_factor` times are divided by `factor`, those between get a linear blend of both.
    """
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)  # within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)  # 0: divided, 1: kept
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies


def scale_yarn(periods: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """YaRN's stretching by pair number. periods: theta^(2r/Dh). [R] -> frequencies [R], float32.

    Pairs below the ramp keep their speed, pairs above it are divided by `factor`. The ends of the ramp are
    where a pair turns `beta_fast` and `beta_slow` times within the original context.
    """
    Dh = 2 * len(periods)

    def pair_that_turns(times: float) -> float:
        original = scaling.original_max_position_embeddings
        return Dh * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, Dh - 1)  # Dh - 1, not R - 1: so the published code has it
    width = high - low if high != low else 0.001
    kept = 1 - ((torch.arange(len(periods), device="cpu").float() - low) / width).clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def attention_factor(config: LlamaConfig) -> float:
    """What cos and sin are multiplied by: 1 but for YaRN, whose longer context would flatten the softmax.

    Both queries and keys carry it, so the scores grow by its square.
    """
    scaling = config.rope_scaling
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return growth(scaling.mscale) / growth(scaling.mscale_all_dim)
    return growth(1.0)


TABLE_ROWS = 1 << 17


class RotaryTable(nn.Module):
    """cos and sin of position x frequency, times YaRN's factor. [P R] float32, for the positions the config allows.

    Positions beyond TABLE_ROWS, which few models have, are computed when they are asked for; so is a pass that
    ends beyond the context of dynamic scaling, whose angles depend on where it ends. Nothing of such a pass is
    kept: a short one after it has the angles of a short one. Keys in a KV cache keep the angles of the pass that
    stored them, as in transformers; so beyond that context a cached pass differs from a full one.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.inv_freq = inverse_frequencies(config)
        self.factor = attention_factor(config)
        self.dynamic = isinstance(config.rope_scaling, DynamicScaling)
        same = config.max_position_embeddings if self.dynamic else config.max_length
        self.cos, self.sin = self._turn(0, min(same, TABLE_ROWS), self.inv_freq)

    def _apply(self, fn, recurse: bool = True):
        # Plain attributes, not buffers: model.to(bfloat16) must not round the angles. Devices do follow.
        device = fn(torch.empty(0)).device
        self.inv_freq, self.cos, self.sin = (t.to(device) for t in (self.inv_freq, self.cos, self.sin))
        return super()._apply(fn, recurse)

    def forward(self, start: int, T: int) -> tuple[Tensor, Tensor]:
        """cos and sin for the positions start .. start + T - 1. Each [T R]."""
        end = start + T
        if self.dynamic and end > self.config.max_position_embeddings:
            return self._turn(start, T, inverse_frequencies(self.config, end).to(self.inv_freq.device))
        if end > len(self.cos):
            return self._turn(start, T, self.inv_freq)
        return self.cos[start:end], self.sin[start:end]

    def of_batch(self, T: int, pads: Sequence[int]) -> tuple[Tensor, Tensor]:
        """cos and sin of T positions in each row, counted from behind so many pads. Each [B T R].

        Each row turns as its prompt alone would, also where the angles depend on its length. A pad stands still, at
        position 0.
        """
        rows = zip(*(self(0, T - pad) for pad in pads), strict=True)
        return tuple(torch.stack([_behind(pad, t) for pad, t in zip(pads, some, strict=True)]) for some in rows)

    def _turn(self, start: int, T: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + T, device=frequencies.device).float()
        angles = positions[:, None] * frequencies[None, :]
        return angles.cos() * self.factor, angles.sin() * self.factor


def _behind(pad: int, t: Tensor) -> Tensor:
    """Repeat the first row so many times in front."""
    return torch.cat((t[:1].expand(pad, -1), t))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor], layout: str) -> Tensor:
    """Turn each pair of dimensions by its position's angle. [B T H Dh] -> [B T H Dh], x's own dtype.

    turn: cos and sin, each [T R], or [B T R]; layout: "halves" pairs (r, r + R), "neighbours" pairs (2r, 2r + 1).
    """
    cos, sin = (t.unsqueeze(-2) for t in turn)  # one angle for all heads
    if layout == "halves":
        a, b = x.float().chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return turned.to(x.dtype)
