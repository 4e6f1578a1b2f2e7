"""Which tokens are near each other in the embedding table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .ranking import largest
from .tokenizer import check_ids

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Llama

BLOCK = 1 << 14
"""Rows of the table that are in float32 at once."""


def nearest_tokens(model: Llama, token: int, n: int = 10) -> list[tuple[int, float]]:
    """The n tokens whose embedding rows have the largest cosine with this token's: (id, cosine), the nearest first.

    Exact, over the whole table, the token itself left out. A row of zeros has no direction and is near nothing.
    """
    check_ids([token], model.config.vocab_size)
    row = _table(model)[token].float()
    products = np.concatenate([(block @ row).cpu().numpy() for block in _blocks(model)]).astype(np.float64)
    sizes = embedding_sizes(model)
    lengths = sizes * sizes[token]
    cosines = np.divide(products, lengths, out=np.full(len(products), np.nan), where=lengths > 0)
    cosines[token] = np.nan
    return [(int(i), float(cosines[i])) for i in largest(cosines, n) if np.isfinite(cosines[i])]


def embedding_sizes(model: Llama) -> np.ndarray:
    """Length (Euclidean norm) of every row of the embedding table. [V] float64."""
    return np.concatenate([block.norm(dim=1).cpu().numpy() for block in _blocks(model)]).astype(np.float64)


def _table(model: Llama) -> Tensor:
    return model.model.embed_tokens.weight.detach()  # V D


def _blocks(model: Llama) -> Iterator[Tensor]:
    return (block.float() for block in _table(model).split(BLOCK))
