"""A Hugging Face folder: config.json, model.safetensors and, if there is one, tokenizer.json.

Nothing in the folder is executed: no pickle is opened, no code is imported, no link is followed to
the network. Weights keep the precision they are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from ..config import LlamaConfig, read_config
from ..errors import CheckpointError
from ..tokenizer import Tokenizer
from .common import Checkpoint, check_tensors, formats, refuse_stand_in

if TYPE_CHECKING:
    import torch

WEIGHTS = "model.safetensors"
_DTYPES = ("F32", "BF16", "F16", "F64")


def folder_checkpoint(path: Path) -> Checkpoint:
    """The model in a Hugging Face folder; a GlassLlamaError says what in it cannot be used."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder.name} holds no config.json. A Hugging Face folder has config.json and {WEIGHTS} side by side; "
            "usually the path points one folder too high or too low."
        )
    weights = _weights_file(folder)
    config = read_config(folder / "config.json")
    kinds, names = _check(weights, config)
    return Checkpoint(
        config=config,
        tensors=_read(weights, names),
        tokenizer=_tokenizer(folder, config),
        source=f"{folder.resolve().name} (folder, {kinds})",
        stored_dtype=kinds,
        kind="folder",
    )


def _weights_file(folder: Path) -> Path:
    if (folder / f"{WEIGHTS}.index.json").exists():
        raise CheckpointError(
            f"{folder.name} holds its weights in several shards ({WEIGHTS}.index.json). "
            f"We read a single {WEIGHTS}; save the model once more with a larger max_shard_size."
        )
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    if pickles:
        raise CheckpointError(
            f"{folder.name} holds its weights only as {pickles[0]}, a pickle. A pickle can run code when it is loaded, "
            "so it is never opened here; convert to safetensors where you trust it (`save_pretrained` writes it)."
        )
    raise CheckpointError(
        f"{folder.name} holds no {WEIGHTS}. Usually only part of the model was downloaded; fetch that file too."
    )


def _check(weights: Path, config: LlamaConfig) -> tuple[str, list[str]]:
    """Names, shapes and formats from the file's header: the formats as a label, and the names to read."""
    try:
        refuse_stand_in(weights, "safetensors")
        with safe_open(weights, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys() if not _ignored(name, config)}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            kinds = {name: part.get_dtype() for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{weights.name} cannot be read as safetensors: {error}. "
            "Usually the download is incomplete, or another format such as a pickle has this name: fetch it again, "
            "or convert it to safetensors where you trust it."
        ) from error
    check_tensors(shapes, config, weights.name)
    foreign = [name for name, kind in kinds.items() if kind not in _DTYPES]
    if foreign:
        raise CheckpointError(
            f"{foreign[0]} in {weights.name} is stored as {kinds[foreign[0]]}; we read {', '.join(_DTYPES)}. "
            "Usually the model is quantised; take the unquantised version, or its GGUF."
        )
    return formats((kind, math.prod(shapes[name])) for name, kind in kinds.items()), list(config.parameter_shapes())


def _ignored(name: str, config: LlamaConfig) -> bool:
    """Tensors that some files repeat: a tied head, and RoPE's frequencies, which the config gives."""
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith(".rotary_emb.inv_freq")


def _read(weights: Path, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(weights, framework="pt") as file:
        for name in names:
            yield name, file.get_tensor(name)


def _tokenizer(folder: Path, config: LlamaConfig) -> Tokenizer | None:
    path = folder / "tokenizer.json"
    return Tokenizer.from_file(path, config.bos_token_id, config.eos_token_id) if path.is_file() else None
