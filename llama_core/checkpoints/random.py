"""Random weights for any config: reproducible whatever the global seed, in three known recipes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..config import LlamaConfig
from ..errors import CheckpointError
from .common import Checkpoint

if TYPE_CHECKING:
    import torch

SCHEMES: Mapping[str, str] = {
    "normal": "Linears and embedding from N(0, std), as Llama is initialised before training.",
    "xavier": "Linears uniform in ±√(6 / (in + out)), embedding from N(0, std); a tied head keeps the embedding's.",
    "pytorch": "PyTorch's defaults: linears uniform in ±1/√in, embedding from N(0, 1).",
}
"""Recipe names and what they do; norm weights are 1 and biases 0 in all of them."""


def random_checkpoint(config: LlamaConfig, seed: int = 0, scheme: str = "normal", std: float = 0.02) -> Checkpoint:
    """Weights drawn for `config`; equal arguments give equal numbers. `pytorch` does not use `std`."""
    if scheme not in SCHEMES:
        raise CheckpointError(
            f"There is no recipe {scheme!r} for random weights. The recipes are {', '.join(SCHEMES)}."
        )
    if not 0 <= seed < 2**63:
        raise CheckpointError(f"The seed is {seed}; it must be a whole number from 0 to 2^63 - 1, for example 0.")
    if not (math.isfinite(std) and std >= 0):
        raise CheckpointError(f"The standard deviation is {std}; it must be a number from 0 up, for example 0.02.")
    scale = "" if scheme == "pytorch" else f", std {std:g}"
    return Checkpoint(
        config=config,
        tensors=_draw(config, seed, scheme, std),
        tokenizer=None,
        source=f"Random weights ({scheme}{scale}, seed {seed})",
        stored_dtype="F32",
        kind="random",
    )


def _draw(config: LlamaConfig, seed: int, scheme: str, std: float) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, shape in config.parameter_shapes().items():
        tensor = torch.empty(shape)
        if name.endswith(".bias"):
            yield name, tensor.zero_()
        elif len(shape) == 1:
            yield name, tensor.fill_(1.0)
        elif scheme == "normal" or name == "model.embed_tokens.weight":
            yield name, tensor.normal_(0.0, 1.0 if scheme == "pytorch" else std, generator=generator)
        else:
            rows, columns = shape
            bound = math.sqrt(6 / (rows + columns)) if scheme == "xavier" else 1 / math.sqrt(columns)
            yield name, tensor.uniform_(-bound, bound, generator=generator)
