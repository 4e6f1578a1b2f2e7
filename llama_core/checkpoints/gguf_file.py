"""A GGUF file of the Llama family, never mapped: header first, then one tensor at a time.

Quantised tensors come out as float32, block by block, so that no more than the tensor itself is held.
GGUF stores the query and key rows of Llama in neighbouring pairs; they come out in Hugging Face's
order, so `rope_layout` is always "halves".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Stored

from ..errors import CheckpointError
from ..tokenizer import size_notes
from .common import Checkpoint, check_tensors, formats, listed
from .files import Stamp, check_unchanged, opened, read_into, stamp
from .gguf_config import config_of, family_of
from .gguf_header import StoredTensor, read_header
from .gguf_tokenizer import read_tokenizer

if TYPE_CHECKING:
    import torch


def gguf_checkpoint(path: Path) -> Checkpoint:
    """The model in a .gguf file; a GlassLlamaError says what in it cannot be used."""
    path = Path(path)
    before = stamp(path)
    fields, stored = read_header(path)
    family = family_of(fields, path.name)
    for name, tensor in stored.items():
        _check_format(name, tensor, path.name)
    ignored = [name for name in stored if _IGNORED.fullmatch(name)]
    used = {name: tensor for name, tensor in stored.items() if name not in ignored}
    factors = used.pop("rope_freqs.weight", None)
    config, notes = config_of(
        fields,
        {name: tensor.shape for name, tensor in used.items()},
        None if factors is None else _table(path, factors),
        path.name,
    )
    named = {_hf_name(name): tensor for name, tensor in used.items()}
    check_tensors({name: tensor.shape for name, tensor in named.items()}, config, path.name)
    label = formats((tensor.kind.name, math.prod(tensor.shape)) for tensor in used.values())
    tokenizer, tokenizer_notes = read_tokenizer(fields)
    notes += tokenizer_notes
    if tokenizer is not None:
        notes += size_notes(tokenizer, config.vocab_size)
    if ignored:
        notes += (f"The file also holds {listed(ignored)}, which we compute from the config and do not read.",)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if family.permuted else {}
    return Checkpoint(
        config=config,
        tensors=_read(path, before, named, heads),
        tokenizer=tokenizer,
        source=_source(path, label),
        stored_dtype=label,
        kind="gguf",
        notes=notes,
    )


def _source(path: Path, label: str) -> str:
    """The file's name without the format that quantisers append to it, and the format in brackets."""
    kind = label.split(",")[0]
    return f"{re.sub(rf'[.-]{kind}$', '', path.stem, flags=re.IGNORECASE)} (GGUF, {kind})"


# --- names -----------------------------------------------------------------------------------

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# RoPE's plain frequencies, which early converters wrote and llama.cpp skips.
_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


def _hf_name(name: str) -> str:
    """Hugging Face's name for a GGUF tensor; a name we do not know stays as it is, to be refused."""
    match = re.fullmatch(r"(blk\.(0|[1-9][0-9]{0,6})\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[3] not in _NAMES:
        return name
    layer = f"model.layers.{match[2]}." if match[1] else ""
    return f"{layer}{_NAMES[match[3]]}.{match[4]}"


# --- numbers ---------------------------------------------------------------------------------

_PLAIN = {Stored.F32: np.float32, Stored.F16: np.float16, Stored.BF16: np.uint16, Stored.F64: np.float64}
_BLOCK = 1 << 17  # values unpacked at a time: half a MiB of float32, and a few times that while it is made


def _read(
    path: Path, before: Stamp, named: Mapping[str, StoredTensor], heads: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The numbers, each tensor in memory of its own. At the end the file must be as it was `before`."""
    import torch  # here, so that a header can be read before torch is imported

    for name, tensor in named.items():
        count = heads.get(name.split(".")[-2])
        with opened(path) as file:
            rows = _rows(file, tensor, None if count is None else hf_order(tensor.shape[0], count))
        values = torch.from_numpy(rows)
        if tensor.kind is Stored.BF16:
            values = values.view(torch.bfloat16)
        yield name, values.reshape(tensor.shape)
    check_unchanged(path, before)


def _table(path: Path, factors: StoredTensor) -> np.ndarray:
    with opened(path) as file:
        return _rows(file, factors).reshape(-1)


def hf_order(rows: int, heads: int) -> np.ndarray:
    """Hugging Face's place (the two of a pair half a head apart) for each query or key row of a GGUF (side by side)."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def _rows(file: BinaryIO, tensor: StoredTensor, order: np.ndarray | None = None) -> np.ndarray:
    """The tensor's numbers as rows in memory of their own, each row at its place in `order`.

    float32, or the plain format they are stored in; bfloat16 comes as its bits, which numpy has no type for.
    """
    if tensor.size == 0:
        return np.zeros(tensor.shape, np.float32)
    plain = _PLAIN.get(tensor.kind)
    count = 1 if len(tensor.shape) == 1 and plain is None else tensor.shape[0]
    rows = np.empty((count, math.prod(tensor.shape) // count), plain or np.float32)
    places = np.arange(count) if order is None or count == 1 else order
    raw = np.empty((min(count, max(1, _BLOCK // rows.shape[1])), tensor.size // count), np.uint8)
    for start in range(0, count, len(raw)):
        some = raw[: count - start]
        read_into(file, tensor.start + start * raw.shape[1], some)
        rows[places[start : start + len(raw)]] = (
            some.view(plain) if plain else gguf.quants.dequantize(some, tensor.kind)
        )
    return rows


def _check_format(name: str, tensor: StoredTensor, file: str) -> None:
    if tensor.kind not in _PLAIN and not _unpacks(tensor.kind):
        raise CheckpointError(
            f"The tensor {name[:60]!r} in {file} is stored as {tensor.kind.name}, which we cannot turn into numbers. "
            "Take another quantisation of the model, for example Q8_0 or Q4_K_M."
        )


@cache
def _unpacks(kind: Stored) -> bool:
    """Whether the gguf package turns this format into numbers: asked with one block of zeros."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
