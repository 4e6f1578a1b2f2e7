"""Keys and values of earlier positions. An argument of the forward pass, never stored on the model.

Append-only: a committed row never changes, and growth makes a new buffer, so a reader that holds
(cache, length) keeps seeing what it saw. Only the unshared heads are kept: that is what GQA saves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .config import ITEM_BYTES, LlamaConfig
from .errors import AddressError, RunError


@dataclass(frozen=True)
class CacheBytes:
    """What the cache of one prompt takes. now: its positions so far; full: all that the model has.

    mha_now, mha_full: the same with a key/value head of its own for each query head.
    """

    now: int
    full: int
    mha_now: int
    mha_full: int


def cache_bytes(config: LlamaConfig, length: int, dtype: str) -> CacheBytes:
    """Bytes of `length` positions and of the whole context, all rows kept: 2 x Hkv x Dh x item x layers each."""
    per_position = 2 * config.num_key_value_heads * config.head_dim * ITEM_BYTES[dtype] * config.num_hidden_layers
    now, full = length * per_position, config.max_length * per_position
    return CacheBytes(now, full, now * config.group, full * config.group)


class KVCache:
    """Keys (rotated) and values of every layer. Each buffer is [B capacity Hkv Dh].

    `length` positions are valid. A forward pass writes its T rows behind them layer by layer and
    commits them at its end: one that raises half way leaves `length` as it was. Keys keep the angles that the
    pass turned them by: with dynamic RoPE scaling, a later pass that ends beyond the context turns by others.
    """

    def __init__(self, config: LlamaConfig, capacity: int = 64) -> None:
        self.config = config
        self.length = 0
        self._capacity = capacity
        self._buffers: list[tuple[Tensor, Tensor] | None] = [None] * config.num_hidden_layers

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [B T Hkv Dh] behind the valid rows; all rows so far, [B S Hkv Dh] each."""
        end = self.length + k.shape[1]
        buffers = self._with_room(layer, k, end)
        for buffer, new in zip(buffers, (k, v), strict=True):
            buffer[:, self.length : end] = new
        return tuple(buffer[:, :end] for buffer in buffers)

    def commit(self, T: int) -> None:
        """The T rows that every layer has written are valid from now on."""
        self.length += T

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `length` positions. [B length Hkv Dh] each."""
        buffers = self._buffers[layer]
        if buffers is None or length > self.length:
            raise RunError(f"The KV cache holds {self.length} positions of layer {layer}; {length} were asked for.")
        return tuple(buffer[:, :length] for buffer in buffers)

    def arrays(self, layer: int, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Keys (rotated) and values of the first `length` positions, all without one, as float32 that refuses writes.

        [B length Hkv Dh] each. AddressError for a layer that this model lacks, RunError for more than is held.
        """
        if not 0 <= layer < self.config.num_hidden_layers:
            raise AddressError(
                f"There is no layer {layer}: this model has {self.config.num_hidden_layers}, "
                f"0 to {self.config.num_hidden_layers - 1}."
            )
        arrays = [rows.float().cpu().numpy() for rows in self.read(layer, self.length if length is None else length)]
        for array in arrays:
            array.flags.writeable = False
        return tuple(arrays)

    def rows(self) -> Tensor | None:
        """The keys of layer 0 as they are stored; None before the first pass."""
        return None if self._buffers[0] is None else self._buffers[0][0]

    def nbytes(self) -> int:
        """Bytes of the valid rows over all layers."""
        return sum(b[:, : self.length].nbytes for pair in self._buffers if pair is not None for b in pair)

    def _with_room(self, layer: int, like: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        old = self._buffers[layer]
        if old is not None and old[0].shape[1] >= rows:
            return old
        B, _, H, Dh = like.shape
        self._capacity = max(self._capacity, 1 << (rows - 1).bit_length())
        new = tuple(like.new_zeros(B, self._capacity, H, Dh) for _ in range(2))
        if old is not None:
            for target, source in zip(new, old, strict=True):
                target[:, : self.length] = source[:, : self.length]
        self._buffers[layer] = new
        return new
