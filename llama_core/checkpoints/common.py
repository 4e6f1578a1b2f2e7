"""What every reader hands back, and the checks that all of them share.

A reader looks at names, shapes and formats first and refuses with a sentence; only then does
`Checkpoint.tensors` read the numbers, one tensor at a time, so that loading never holds two copies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config import LlamaConfig
from ..errors import CheckpointError
from ..tokenizer import Tokenizer
from .files import opened, unreadable

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass
class Checkpoint:
    """A model that has been found and checked, but whose numbers are not read yet.

    tensors: (Hugging Face name, tensor in memory of its own) pairs, to be iterated once. source: a plain
    label such as "SmolLM2-135M-Instruct (GGUF, Q4_1)". stored_dtype: as in the file, "Q4_1, Q8_0, F32" when
    mixed. notes: full sentences about what a reader assumed, found at odds, or did not use.
    """

    config: LlamaConfig
    tensors: Iterator[tuple[str, torch.Tensor]]
    tokenizer: Tokenizer | None
    source: str
    stored_dtype: str
    kind: Literal["random", "folder", "gguf"]
    notes: tuple[str, ...] = ()


def check_tensors(
    found: Mapping[str, Shape], config: LlamaConfig, file: str, places: Mapping[str, str] | None = None
) -> None:
    """The file holds exactly the config's parameters in the config's shapes; CheckpointError otherwise.

    places: "k_proj in this shard" by name, where a refusal should not just say the name and `file`.
    """
    if config.num_hidden_layers > len(found):  # first: a bad number here would make the list below endless
        raise CheckpointError(
            f"The config asks for {config.num_hidden_layers} layers, but {file} holds {len(found)} tensors in all. "
            "Usually the config belongs to another model."
        )
    expected = config.parameter_shapes()
    missing = [name for name in expected if name not in found]
    if missing:
        raise CheckpointError(
            f"{file} lacks {listed(missing)} that the config asks for. Usually the file is incomplete or the config "
            "belongs to another model; the loader leaves no weight at random."
        )
    unexpected = [name for name in found if name not in expected]
    if unexpected:
        raise CheckpointError(
            f"{file} holds {listed(unexpected)} that this config has no place for. Usually the model is of another "
            "family, or a switch such as attention_bias or tie_word_embeddings is wrong in the config."
        )
    wrong = [name for name, shape in expected.items() if tuple(found[name]) != shape]
    if wrong:
        name = wrong[0]
        place = (places or {}).get(name, f"{name} in {file}")
        raise CheckpointError(shape_sentence(name, place, found[name], expected[name], config, len(wrong) - 1))


def shape_sentence(name: str, place: str, found: Shape, expected: Shape, config: LlamaConfig, others: int = 0) -> str:
    """Why a tensor does not fit. name: ours, for the config fields behind it; place: what and where it is."""
    fields = ", ".join(f"{field} {getattr(config, field)}" for field in _fields_behind(name))
    more = f" {others} more {'tensors do' if others > 1 else 'tensor does'} not fit either." if others else ""
    return (
        f"{place} has the shape {list(found)}; the config implies {list(expected)} "
        f"({fields}).{more} Usually config and weights come from different models, or a head count is wrong."
    )


def _fields_behind(name: str) -> tuple[str, ...]:
    """The config fields that decide a parameter's shape."""
    if "_norm." in name and "self_attn" in name:
        return ("head_dim",)
    if "self_attn" in name:
        return ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    if "mlp" in name:
        return ("intermediate_size", "hidden_size")
    return ("hidden_size",) if "norm" in name else ("vocab_size", "hidden_size")


def listed(names: Collection[str], most: int = 8, what: str = "tensors") -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(name[:120] for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more {what}"


def formats(stored: Iterable[tuple[str, int]]) -> str:
    """Label for (format, number of values) pairs: "Q4_1, Q8_0, F32", the most used first."""
    totals: Counter[str] = Counter()
    for kind, count in stored:
        totals[kind] += count
    return ", ".join(kind for kind, _ in totals.most_common())


def refuse_stand_in(path: Path, wanted: str) -> None:
    """Refuse, by its first bytes, a file that only stands where a `wanted` file should be, or cannot be opened."""
    with opened(path) as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path.name} is a Git LFS pointer of a few lines, not the weights themselves. "
            "Usually the repository was cloned without git-lfs; run `git lfs pull` there."
        )
    # A safetensors header of 640 bytes starts as a pickle does (80 02); only its ninth byte is the "{" of its JSON.
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and head[8:9] != b"{"
    if pickled or head.startswith(b"PK\x03\x04"):
        raise CheckpointError(
            f"{path.name} is a pickle, not a {wanted} file, whatever its name says. A pickle can run code when it is "
            "loaded, so it is never opened here; convert it to safetensors where you trust it."
        )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; CheckpointError when it holds none, or says one thing twice."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read as JSON: {str(error)[:200]}. "
            "Usually the download is incomplete; fetch it again."
        ) from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path.name} holds {type(raw).__name__}, not a JSON object. Fetch it again.")
    return raw


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What json hands over of an object; ValueError where it says one thing twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"it says {twice[:120]!r} twice")
    return found
