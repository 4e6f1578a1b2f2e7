"""Rotary position embedding: the frequencies, the table of angles, and the turn itself.

Everything about angles is float32, whatever the model computes in: in bfloat16 the positions
256 and 257 are the same number. The table is built once, when the model is built.

Which two dimensions form a pair is a property of the stored weights: the two halves
(r, r + Dh/2) in Hugging Face files, neighbours (2r, 2r + 1) in Meta's. Mixing them is the
commonest porting bug, and both run without an error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .config import Llama3Scaling, LlamaConfig


def inverse_frequencies(config: LlamaConfig) -> Tensor:
    """Turn per position of each pair, in radians: theta^(-2r/Dh), scaled if the config says so. [R] float32."""
    exponents = torch.arange(0, config.head_dim, 2, device="cpu").float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else scale_llama3(frequencies, config.rope_scaling)


def scale_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's stretching by wavelength 2 pi / f. [R] -> [R], float32.

    Pairs that turn often within the original context keep their speed, pairs that turn less than
    `low_freq_factor` times are divided by `factor`, those between get a linear blend of both.
    """
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)  # within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)  # 0: divided, 1: kept
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies


TABLE_ROWS = 1 << 17


class RotaryTable(nn.Module):
    """cos and sin of position x frequency. [P R] float32, for the positions the config allows.

    Positions beyond TABLE_ROWS, which few models have, are computed when they are asked for.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.inv_freq = inverse_frequencies(config)
        self.cos, self.sin = self._turn(0, min(config.max_position_embeddings, TABLE_ROWS))

    def _apply(self, fn, recurse: bool = True):
        # Plain attributes, not buffers: model.to(bfloat16) must not round the angles. Devices do follow.
        device = fn(torch.empty(0)).device
        self.inv_freq, self.cos, self.sin = (t.to(device) for t in (self.inv_freq, self.cos, self.sin))
        return super()._apply(fn, recurse)

    def forward(self, start: int, T: int) -> tuple[Tensor, Tensor]:
        """cos and sin for the positions start .. start + T - 1. Each [T R]."""
        if start + T > len(self.cos):
            return self._turn(start, T)
        return self.cos[start : start + T], self.sin[start : start + T]

    def _turn(self, start: int, T: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + T, device=self.inv_freq.device).float()
        angles = positions[:, None] * self.inv_freq[None, :]
        return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor], layout: str) -> Tensor:
    """Turn each pair of dimensions by its position's angle. [B T H Dh] -> [B T H Dh], x's own dtype.

    turn: cos and sin, each [T R]; layout: "halves" pairs (r, r + R), "neighbours" pairs (2r, 2r + 1).
    """
    cos, sin = (t[:, None, :] for t in turn)  # one angle for all heads
    if layout == "halves":
        a, b = x.float().chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return turned.to(x.dtype)
