"""A model's folder: config.json (or Meta's params.json), safetensors in one file or in shards, tokenizer.json.

Nothing in the folder is executed: no pickle is opened, no code is imported, and no name or link leads out
of it. All headers are read and checked against the config before a number is. Weights keep the precision
they are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import LlamaConfig, config_from_dict, config_notes, read_raw, stored_dtype_of
from ..errors import CheckpointError
from ..tokenizer import Tokenizer
from .common import Checkpoint, Shape, check_tensors, formats, listed, read_object, refuse_stand_in
from .files import Stamp, check_unchanged, opened, stamp
from .meta import config_from_params
from .names import Part, Placed, are_metas, place, refuse_packs, unused_note
from .roots import WEIGHTS, file_in, is_file_in
from .safetensors_file import DTYPES, Stored, read_header, read_tensor

if TYPE_CHECKING:
    import torch

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_TIED_HEADS = ("lm_head.weight", "output.weight")


def folder_checkpoint(path: Path, rope_layout: str | None = None) -> Checkpoint:
    """The model in a folder; a GlassLlamaError says what in it cannot be used.

    rope_layout: which dimensions RoPE turns together, "halves" or "neighbours"; None: as the tensors'
    names tell, Meta's meaning neighbours.
    """
    folder = Path(path)
    before = stamp(folder)
    config_file = _config_file(folder)
    raw = read_raw(config_file)
    if config_file.name == "config.json":
        config, notes = config_from_dict(raw), config_notes(raw)
        files = _weights(folder)
    else:
        files = _weights(folder)
        config, notes = config_from_params(raw, files.shapes())
    refuse_packs(files.stored, files.label)
    placed = place(files.shapes(), config, files.label)
    config, layout_notes = _layout(config, files, rope_layout)
    _check(placed, files, config)
    kinds = formats((files.stored[part.tensor].kind, _count(part, files)) for part in placed.parts.values())
    tokenizer, said = _tokenizer(folder, config)
    return Checkpoint(
        config=config,
        tensors=_read(folder, before, {name: placed.parts[name] for name in config.parameter_shapes()}, files.stored),
        tokenizer=tokenizer,
        source=f"{_label(folder)} (folder, {kinds})",
        stored_dtype=kinds,
        kind="folder",
        notes=(
            *notes,
            *layout_notes,
            *_dtype_note(raw, config_file.name, kinds),
            *files.notes,
            *placed.notes,
            *_unused_notes(placed, files.stored),
            *said,
        ),
    )


# --- which files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    """All tensors that the folder's weights hold, by their names there. label: what the files are called."""

    stored: Mapping[str, Stored]
    label: str
    notes: tuple[str, ...] = ()

    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self.stored.items()}


def _config_file(folder: Path) -> Path:
    for name in ("config.json", "params.json"):
        if is_file_in(folder, name):
            path = file_in(folder, name)
            refuse_stand_in(path, "JSON")
            return path
    raise CheckpointError(
        f"{folder.name} holds no config.json, and no params.json either. A model's folder has one of them and "
        f"{WEIGHTS[0]} side by side; usually the path points one folder too high or too low."
    )


def _weights(folder: Path) -> _Files:
    for name in WEIGHTS:
        if is_file_in(folder, f"{name}.index.json"):
            return _sharded(folder, name)
        if is_file_in(folder, name):
            if name == WEIGHTS[2] and is_file_in(folder, "consolidated.01.safetensors"):
                raise CheckpointError(
                    f"{folder.name} holds its weights cut for several devices (consolidated.00, consolidated.01, ...): "
                    "each file has a slice of every tensor. We read whole tensors; take the Hugging Face version."
                )
            return _Files(_header(folder / name), name)
    raise CheckpointError(_no_weights(folder))


def _no_weights(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        return (
            f"{folder.name} holds its weights only as {pickles[0]}, a pickle. A pickle can run code when it is loaded, "
            "so it is never opened here; convert to safetensors where you trust it (`save_pretrained` writes it)."
        )
    if "adapter_model.safetensors" in names:
        return (
            f"{folder.name} holds an adapter (adapter_model.safetensors), which is a change to a model, not a model. "
            "Merge it into its base model (`merge_and_unload` of peft) and save that."
        )
    others = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    found = f" It holds {listed(others, what='files')}; give a .gguf by its own path." if others else ""
    return (
        f"{folder.name} holds no {WEIGHTS[0]}, and no {WEIGHTS[0]}.index.json with its shards.{found} "
        "Usually only part of the model was downloaded; fetch these files too."
    )


def _sharded(folder: Path, weights: str) -> _Files:
    """The tensors that the index lists, and nothing else of the folder."""
    index = file_in(folder, f"{weights}.index.json")
    refuse_stand_in(index, "JSON")
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(
            f"{index.name} has no weight_map that gives every tensor's shard by name. Usually the download is "
            "incomplete; fetch it again."
        )
    paths = {shard: file_in(folder, shard) for shard in dict.fromkeys(shards.values())}  # before any is opened
    missing = [shard for shard in paths if not is_file_in(folder, shard)]
    if missing:
        raise CheckpointError(
            f"{folder.name} lacks {listed(missing, what='shards')} of the {len(paths)} shards that {index.name} names. "
            "Usually the download stopped early; fetch them too. No weight is left at random."
        )
    headers = {shard: _header(path) for shard, path in paths.items()}
    for name, shard in shards.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{index.name} says that {name[:120]} lies in {shard}, but that shard does not hold it. "
                "Usually index and shards come from different versions of the model; fetch them together."
            )
    notes = []
    beside = {name for shard, header in headers.items() for name in header if shards.get(name) != shard}
    if beside:
        notes.append(unused_note(beside, f"because {index.name} does not list them there"))
    if is_file_in(folder, weights):
        notes.append(f"{weights} lies beside {index.name} and is not read: the index and its shards are.")
    stored = {name: headers[shard][name] for name, shard in shards.items()}
    return _Files(stored, index.name, tuple(notes))


def _header(file: Path) -> dict[str, Stored]:
    refuse_stand_in(file, "safetensors")
    return read_header(file)


# --- what they hold against the config -------------------------------------------------------


def _check(placed: Placed, files: _Files, config: LlamaConfig) -> None:
    shapes, places = {}, {}
    for name, part in placed.parts.items():
        tensor = files.stored[part.tensor]
        shapes[name] = tensor.shape if part.rows is None else (part.rows[1] - part.rows[0], *tensor.shape[1:])
        places[name] = f"{part.tensor} in {tensor.file.name}"
        if tensor.kind not in DTYPES:
            raise CheckpointError(
                f"{part.tensor} in {tensor.file.name} is stored as {tensor.kind}; we read {', '.join(DTYPES)}. "
                "Usually the model is quantised; take the unquantised version, or its GGUF."
            )
    check_tensors(shapes, config, files.label, places)


def _count(part: Part, files: _Files) -> int:
    shape = files.stored[part.tensor].shape
    return math.prod(shape) if part.rows is None else (part.rows[1] - part.rows[0]) * math.prod(shape[1:])


def _layout(config: LlamaConfig, files: _Files, wanted: str | None) -> tuple[LlamaConfig, list[str]]:
    metas = are_metas(files.stored)
    by_names = "neighbours" if metas else "halves"
    layout = wanted or by_names
    notes = []
    if wanted is not None and wanted != by_names:
        notes.append(
            f"RoPE turns {layout} as was chosen; by the tensors' names, {'Meta' if metas else 'Hugging Face'}'s, it "
            f"would be {by_names}."
        )
    elif metas:
        notes.append(
            "The tensors have Meta's names, so RoPE turns neighbouring dimensions (0 with 1, 2 with 3), as Meta's code "
            "does. Choose halves if the file's queries and keys were reordered as Hugging Face's are."
        )
    return config.with_(rope_layout=layout), notes


def _dtype_note(raw: Mapping[str, Any], file: str, kinds: str) -> Iterator[str]:
    said = stored_dtype_of(raw)
    if said is not None and said not in [DTYPES[kind] for kind in kinds.split(", ")]:
        yield f"{file} says the weights are {said}, but they are stored as {kinds}: they are read as they are stored."


def _unused_notes(placed: Placed, stored: Mapping[str, Stored]) -> Iterator[str]:
    tables = [name for name in placed.unused if name in _TIED_HEADS]
    angles = [name for name in placed.unused if name not in _TIED_HEADS]
    if angles:
        yield unused_note(angles, "because RoPE's frequencies follow from the config")
    for name in tables:
        same = _are_equal(stored[name], stored[placed.parts["model.embed_tokens.weight"].tensor])
        verdict = "it repeats the embedding" if same else "although its numbers differ from the embedding's"
        yield f"Not read, because the config ties the head to the embedding: {name}; {verdict}."


def _are_equal(one: Stored, other: Stored, rows: int = 4096) -> bool:
    """Whether two tensors hold the same numbers; only `rows` of them are looked at at a time."""
    if one.shape != other.shape or one.kind != other.kind or len(one.shape) != 2:
        return False
    with opened(one.file) as first, opened(other.file) as second:
        places = [(i, min(i + rows, one.shape[0])) for i in range(0, one.shape[0], rows)]
        return all(read_tensor(first, one, some).equal(read_tensor(second, other, some)) for some in places)


def _read(
    folder: Path, before: Stamp, parts: Mapping[str, Part], stored: Mapping[str, Stored]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The numbers, each tensor in memory of its own. At the end the folder must be as it was `before`."""
    for name, part in parts.items():
        tensor = stored[part.tensor]
        with opened(tensor.file) as file:
            values = read_tensor(file, tensor, part.rows)
        yield name, values
    check_unchanged(folder, before)


# --- beside the weights ----------------------------------------------------------------------


def _tokenizer(folder: Path, config: LlamaConfig) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer, None without one that we read, and what there is to say about it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if is_file_in(folder, name):
            refuse_stand_in(folder / name, "JSON")
    return Tokenizer.from_folder(folder, config)


def _label(folder: Path) -> str:
    """The folder's name; of a snapshot in the Hugging Face cache the model's."""
    real = folder.resolve()
    model = real.parents[1].name if len(real.parents) > 1 and real.parent.name == "snapshots" else ""
    return model.removeprefix("models--").replace("--", "/", 1) if model.startswith("models--") else real.name
