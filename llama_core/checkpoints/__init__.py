"""One door to every kind of weights: `load(source)`.

A reader per format (random, Hugging Face folder, GGUF) gives a Checkpoint: config, tensors one by
one under Hugging Face names, tokenizer. This file turns any of them into a model. torch and the
readers are imported when they are needed: a config can be shown before torch is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import COMPUTE_DTYPES, PRESETS, LlamaConfig
from ..errors import CheckpointError
from .common import Checkpoint

if TYPE_CHECKING:
    from ..model import Llama

Progress = Callable[[float], None]
"""Told the share that is done, 0..1; what it raises ends the work and leaves nothing behind."""


def load(
    source: str | Path | LlamaConfig,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    scheme: str = "normal",
    std: float = 0.02,
) -> Llama:
    """A model ready to run, with `.config` and `.tokenizer`.

    source: a LlamaConfig or the name of a preset (random weights from `seed`, `scheme` and `std`),
    the name of a model in the models folder, a Hugging Face folder, or a .gguf file.
    device: "cpu" or "cuda"; dtype: "float32" or "bfloat16". Raises CheckpointError or ConfigError.
    """
    check_place(device, dtype)
    return build(open_checkpoint(source, seed=seed, scheme=scheme, std=std), device, dtype)


def open_checkpoint(
    source: str | Path | LlamaConfig, *, seed: int = 0, scheme: str = "normal", std: float = 0.02
) -> Checkpoint:
    """The right reader for `source`; its tensors are not read yet."""
    if isinstance(source, str) and source in PRESETS:
        source = PRESETS[source]
    if isinstance(source, LlamaConfig):
        from .random import random_checkpoint

        return random_checkpoint(source, seed=seed, scheme=scheme, std=std)
    path = local_models().get(str(source), Path(source))
    if path.is_dir():
        from .folder import folder_checkpoint

        return folder_checkpoint(path)
    if path.suffix == ".gguf" and path.is_file():
        from .gguf_file import gguf_checkpoint

        return gguf_checkpoint(path)
    names = ", ".join([*PRESETS, *local_models()])
    raise CheckpointError(
        f"There is no model {str(source)!r}. Give a Hugging Face folder, a .gguf file, or one of: {names}."
    )


def build(
    checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32", progress: Progress | None = None
) -> Llama:
    """A model from a checkpoint. Tensors are converted one by one, so two full copies never exist."""
    import torch

    from ..model import Llama, Origin

    check_place(device, dtype)
    origin = Origin(checkpoint.source, checkpoint.kind, checkpoint.stored_dtype)
    with torch.device("meta"):
        model = Llama(checkpoint.config, checkpoint.tokenizer, origin)
    total = len(checkpoint.config.parameter_shapes())
    weights = {}
    for name, tensor in checkpoint.tensors:
        weights[name] = tensor.to(device=device, dtype=getattr(torch, dtype))
        if progress is not None:
            progress(min(1.0, len(weights) / total))
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.rope.to(device)
    return model.requires_grad_(False).eval()


def check_place(device: str, dtype: str) -> None:
    """CheckpointError when this machine has no such device or we do not compute in that dtype."""
    if device not in devices():
        import torch

        raise CheckpointError(
            f"The device {device!r} is not here: PyTorch {torch.__version__} sees {', '.join(devices())} "
            "on this machine."
        )
    if dtype not in COMPUTE_DTYPES:
        raise CheckpointError(f"We compute in {' or '.join(COMPUTE_DTYPES)}, not in {dtype!r}.")


def devices() -> tuple[str, ...]:
    """The devices that PyTorch can use here."""
    import torch

    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def models_root() -> Path:
    """The folder whose models are offered: GLASS_LLAMA_MODELS, or `models` beside the app."""
    return Path(os.environ.get("GLASS_LLAMA_MODELS") or Path(__file__).parents[2] / "models")


def local_models() -> dict[str, Path]:
    """What lies in the models folder, by name: .gguf files and folders with a config.json."""
    root = models_root()
    found = sorted(root.glob("*.gguf")) + sorted(p.parent for p in root.glob("*/config.json"))
    return {path.name: path for path in found}
