"""What every reader hands back, and the checks that all of them share.

A reader looks at names, shapes and formats first and refuses with a sentence; only then does
`Checkpoint.tensors` read the numbers, one tensor at a time, so that loading never holds two copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config import LlamaConfig
from ..errors import CheckpointError
from ..tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass
class Checkpoint:
    """A model that has been found and checked, but whose numbers are not read yet.

    tensors: (Hugging Face name, tensor) pairs, to be iterated once. source: a plain label such as
    "SmolLM2-135M-Instruct (GGUF, Q4_1)". stored_dtype: as in the file, "Q4_1, Q8_0, F32" when mixed.
    """

    config: LlamaConfig
    tensors: Iterator[tuple[str, torch.Tensor]]
    tokenizer: Tokenizer | None
    source: str
    stored_dtype: str
    kind: Literal["random", "folder", "gguf"]


def check_tensors(found: Mapping[str, Shape], config: LlamaConfig, file: str) -> None:
    """The file holds exactly the config's parameters in the config's shapes; CheckpointError otherwise."""
    if config.num_hidden_layers > len(found):  # first: a bad number here would make the list below endless
        raise CheckpointError(
            f"The config asks for {config.num_hidden_layers} layers, but {file} holds {len(found)} tensors in all. "
            "Usually the config belongs to another model."
        )
    expected = config.parameter_shapes()
    missing = [name for name in expected if name not in found]
    if missing:
        raise CheckpointError(
            f"{file} lacks {_listed(missing)} that the config asks for. Usually the file is incomplete or the config "
            "belongs to another model; the loader leaves no weight at random."
        )
    unexpected = [name for name in found if name not in expected]
    if unexpected:
        raise CheckpointError(
            f"{file} holds {_listed(unexpected)} that this config has no place for. Usually the model is of another "
            "family, or a switch such as attention_bias or tie_word_embeddings is wrong in the config."
        )
    wrong = [name for name, shape in expected.items() if tuple(found[name]) != shape]
    if wrong:
        raise CheckpointError(_shape_sentence(wrong, found, expected, config, file))


def _shape_sentence(wrong, found, expected, config: LlamaConfig, file: str) -> str:
    name = wrong[0]
    fields = ", ".join(f"{field} {getattr(config, field)}" for field in _fields_behind(name))
    more = f" {len(wrong) - 1} more tensors do not fit either." if len(wrong) > 1 else ""
    return (
        f"{name} in {file} has the shape {list(found[name])}; the config implies {list(expected[name])} "
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


def _listed(names: Collection[str], most: int = 8) -> str:
    shown = ", ".join(list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more tensors"


def formats(stored: Iterable[tuple[str, int]]) -> str:
    """Label for (format, number of values) pairs: "Q4_1, Q8_0, F32", the most used first."""
    totals: Counter[str] = Counter()
    for kind, count in stored:
        totals[kind] += count
    return ", ".join(kind for kind, _ in totals.most_common())


def refuse_stand_in(path: Path, wanted: str) -> None:
    """Refuse, by its first bytes, a file that only stands where a `wanted` file should be."""
    with path.open("rb") as file:
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
