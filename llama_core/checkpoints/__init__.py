"""One door to every kind of weights: `load(source)`.

A reader per format (random, a model's folder, GGUF) gives a Checkpoint: config, tensors one by
one under Hugging Face names, tokenizer. This file turns any of them into a model. torch and the
readers are imported when they are needed: a config can be shown before torch is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config import COMPUTE_DTYPES, PRESETS, LlamaConfig
from ..errors import CheckpointError
from .common import Checkpoint
from .fits import check_fits, mib
from .roots import local_models, models_root

if TYPE_CHECKING:
    from ..model import Llama

__all__ = ["build", "check_fits", "devices", "load", "local_models", "models_root", "open_checkpoint"]

Progress = Callable[[float], None]
"""Told the share that is done, 0..1; what it raises ends the work and leaves nothing behind."""

Layout = Literal["halves", "neighbours"]


def load(
    source: str | Path | LlamaConfig,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    scheme: str = "normal",
    std: float = 0.02,
    rope_layout: Layout | None = None,
    progress: Progress | None = None,
) -> Llama:
    """A model ready to run, with `.config` and `.tokenizer`.

    source: a LlamaConfig or the name of a preset (random weights from `seed`, `scheme` and `std`); a name
    of `local_models()`; any path to a model's folder or a .gguf file; or a model of the Hugging Face hub,
    `org/name` or `org/name@revision`, which is downloaded into the hub's cache unless it is there.
    Pages, whose words anyone can write, go through `roots.find` instead, which allows no other paths.

    device: "cpu" or "cuda"; dtype: "float32" or "bfloat16". rope_layout: see `open_checkpoint`.
    progress: told 0..1 while a download runs, then 0..1 while the weights are read.
    Raises a GlassLlamaError: a model that cannot be found, read, computed, or fit the memory.
    """
    check_place(device, dtype)
    if isinstance(source, str) and source not in PRESETS and not _exists(_path(source)):
        from .hub import download, is_hub_id

        # `models/typo` is written like a hub id too: beside a folder that is here, a path is meant.
        if is_hub_id(source) and not _exists(Path(source).parent):
            source = download(source, progress)
    checkpoint = open_checkpoint(source, seed=seed, scheme=scheme, std=std, rope_layout=rope_layout)
    return build(checkpoint, device, dtype, progress)


def open_checkpoint(
    source: str | Path | LlamaConfig,
    *,
    seed: int = 0,
    scheme: str = "normal",
    std: float = 0.02,
    rope_layout: Layout | None = None,
) -> Checkpoint:
    """The right reader for `source`; its tensors are not read yet, and no network is asked.

    rope_layout: for a model's folder, which dimensions RoPE turns together; None: as its tensors' names tell
    ("neighbours" for Meta's, "halves" for Hugging Face's). Random weights have it in their config, and a
    GGUF comes out in halves, so there None is the only choice that changes nothing and any other is refused.
    """
    if isinstance(source, str) and source in PRESETS:
        source = PRESETS[source]
    path = None if isinstance(source, LlamaConfig) else _path(source)
    if path is not None and _exists(path, Path.is_dir):
        from .folder import folder_checkpoint

        return folder_checkpoint(path, rope_layout)
    _refuse_layout(source, rope_layout)
    if isinstance(source, LlamaConfig):
        from .random import random_checkpoint

        return random_checkpoint(source, seed=seed, scheme=scheme, std=std)
    if path.suffix == ".gguf" and _exists(path, Path.is_file):
        from .gguf_file import gguf_checkpoint

        return gguf_checkpoint(path)
    names = ", ".join([*PRESETS, *local_models()])
    raise CheckpointError(
        f"There is no model {str(source)[:200]!r}. Give a model's folder, a .gguf file, a hub id such as "
        f"HuggingFaceTB/SmolLM2-135M, or one of: {names}."
    )


def build(
    checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32", progress: Progress | None = None
) -> Llama:
    """A model from a checkpoint, after a look at the memory. Tensors are converted one by one, so two full
    copies never exist. Raises CheckpointError when the weights do not fit, before any is read.
    """
    import torch

    from ..model import Llama, Origin

    check_place(device, dtype)
    needed = check_fits(checkpoint, device, dtype)
    origin = Origin(checkpoint.source, checkpoint.kind, checkpoint.stored_dtype, checkpoint.notes)
    with torch.device("meta"):
        model = Llama(checkpoint.config, checkpoint.tokenizer, origin)
    total, done = checkpoint.config.parameter_count(), 0
    weights = {}
    try:
        for name, tensor in checkpoint.tensors:
            weights[name] = tensor.to(device=device, dtype=getattr(torch, dtype))
            done += math.prod(tensor.shape)
            if progress is not None:
                progress(min(1.0, done / total))
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        raise CheckpointError(
            f"The memory of {device} ran out while the weights were read, which take {mib(needed)} in {dtype}. "
            "Usually another program took it meanwhile; free some, or take a smaller model."
        ) from error
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


def _path(source: str | Path) -> Path:
    """Where a source lies: by its name in the list, or as the path that it is."""
    return local_models().get(str(source), Path(source)) if isinstance(source, str) else Path(source)


def _exists(path: Path, kind: Callable[[Path], bool] = Path.exists) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _refuse_layout(source: str | Path | LlamaConfig, rope_layout: Layout | None) -> None:
    if rope_layout is not None:
        where = "its config" if isinstance(source, LlamaConfig) else "the file: a GGUF's rows come out in halves"
        raise CheckpointError(
            f"rope_layout {rope_layout!r} was asked for, but for this source it follows from {where}. "
            "It can be chosen for a model's folder; leave it out here."
        )
