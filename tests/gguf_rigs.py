"""Rigs as GGUF files, written by the `gguf` package and laid out as llama.cpp's converter lays them out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Stored
from rigs import gguf_order
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's name for each of our families."""

_TENSORS = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    kind: Stored = Stored.F32,
    architecture: str | None = None,
    tokenizer: Tokenizer | None = None,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """The model as a GGUF file.

    kind: the format of the matrices; norms and biases stay F32. extra: more metadata by key, which may leave the
    architecture out: ".rope.scaling.type". tensors: more tensors by GGUF name.
    """
    config = model.config
    name = architecture or ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    width = _head_dim(model)
    if width * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(width)
        writer.add_value_length(width)
    if ARCHITECTURES[config.model_type] == "llama":
        writer.add_rope_dimension_count(width)
    fields = _rope_fields(model) | (extra or {})
    if tokenizer is not None:
        fields |= tokenizer_fields(tokenizer)
    add_fields(writer, {name + key if key.startswith(".") else key: value for key, value in fields.items()})
    for key, rows in (_gguf_rows(model, name) | _rope_table(model) | (tensors or {})).items():
        if rows.ndim == 2 and kind is not Stored.F32:
            writer.add_tensor(key, packed(rows, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, rows)
    return write(writer, path)


def write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_fields(writer: gguf.GGUFWriter, fields: Mapping[str, Any]) -> None:
    """Metadata by its Python type; what has another one is a list."""
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in fields.items():
        adders.get(type(value), writer.add_array)(key, value)


def _head_dim(model: PreTrainedModel) -> int:
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rope_fields(model: PreTrainedModel) -> dict[str, Any]:
    rope = model.config.rope_parameters
    if rope["rope_type"] not in ("linear", "yarn"):
        return {}
    fields = {".rope.scaling.type": rope["rope_type"], ".rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        fields[".rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return fields


def _rope_table(model: PreTrainedModel) -> dict[str, np.ndarray]:
    if model.config.rope_parameters["rope_type"] != "llama3":
        return {}
    return {"rope_freqs.weight": rope_factors(model.config, _head_dim(model)).astype(np.float32)}


def rope_factors(config: Any, width: int) -> np.ndarray:
    """Plain frequencies divided by transformers' llama3 ones: what llama.cpp stores as rope_freqs.weight."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    theta = config.rope_parameters["rope_theta"]
    return (theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width) / scaled.double()).numpy()


def _gguf_rows(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The model's tensors by GGUF name; where llama.cpp turns neighbours, query and key rows in that order."""
    rows = {}
    for name, key in gguf_names(model).items():
        values = model.state_dict()[name].float().numpy()
        heads = _heads(model, key) if architecture in ("llama", "mistral3") else None
        rows[key] = np.ascontiguousarray(values if heads is None else values[gguf_order(len(values), heads)])
    return rows


def gguf_names(model: PreTrainedModel) -> dict[str, str]:
    """GGUF's name for each of the model's tensors; a tied head is not stored."""
    architecture = _TENSORS.get(model.config.model_type, gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {n: names.get_name(n, try_suffixes=(".weight", ".bias")) for n in model.state_dict() if n not in tied}


def _heads(model: PreTrainedModel, key: str) -> int | None:
    counts = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    return counts.get(key.split(".")[-2])


def packed(rows: np.ndarray, kind: Stored) -> np.ndarray:
    """The rows in a format: packed by the gguf package, or random blocks of it where the package cannot pack."""
    try:
        return gguf.quants.quantize(rows, kind)
    except NotImplementedError:
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        return _random_blocks(kind, rows.size // block).reshape(len(rows), -1)


def _random_blocks(kind: Stored, count: int) -> np.ndarray:
    """Blocks of random bytes whose numbers are finite and below 100: [count, bytes of a block]."""
    random, found = np.random.default_rng(0), []
    while sum(map(len, found)) < count:
        blocks = random.integers(256, size=(count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(gguf.quants.dequantize(blocks, kind)).max(axis=-1)
        found.append(blocks[largest < 100])  # NaN is not below 100
    return np.concatenate(found)[:count]


def unpacked(model: PreTrainedModel, kind: Stored) -> dict[str, torch.Tensor]:
    """What a file in that format holds, by Hugging Face's names: whole matrices, unpacked by the gguf package."""
    rows = _gguf_rows(model, ARCHITECTURES[model.config.model_type])
    state = dict(model.state_dict())
    for name, key in gguf_names(model).items():
        if state[name].dim() == 2:
            values = gguf.quants.dequantize(packed(rows[key], kind), kind).reshape(rows[key].shape)
            if ARCHITECTURES[model.config.model_type] == "llama" and _heads(model, key) is not None:
                values = values[np.argsort(gguf_order(len(values), _heads(model, key)))]
            state[name] = torch.from_numpy(np.ascontiguousarray(values))
    return state


def tokenizer_fields(tokenizer: Tokenizer, pre: str = "gpt-2") -> dict[str, Any]:
    """A byte-level BPE tokenizer as metadata, as llama.cpp's converter writes it."""
    state = json.loads(tokenizer.to_str())
    special = {token["id"] for token in state["added_tokens"]}
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if id in special else 1 for id in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.add_bos_token": False,
    }
