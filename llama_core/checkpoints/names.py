"""What a file calls its tensors, in Hugging Face's words, and which rows of a merged one are whose.

Files differ in names only: with or without the leading `model.`, Meta's own (`layers.0.attention.wq`),
and queries, keys and values (`wqkv`, `qkv_proj`) or gate and up (`gate_up_proj`) stored as one matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..config import LlamaConfig
from ..errors import CheckpointError
from .common import Shape, listed, shape_sentence

_TOP = {
    "tok_embeddings": "model.embed_tokens",
    "embed_tokens": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "lm_head": "lm_head",
}
_META = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention.wqkv": "self_attn.qkv_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}
_MERGED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_LAYER = re.compile(r"(?:model\.)?layers\.(0|[1-9][0-9]*)\.(.+)\.(weight|bias)", re.ASCII)
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

# Ends of names that only quantised checkpoints have, and what they are called.
_PACKS = {
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".SCB": "bitsandbytes 8-bit",
    ".absmax": "bitsandbytes 4-bit",
    ".quant_map": "bitsandbytes 4-bit",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "compressed-tensors or FP8",
    ".weight_scale_inv": "FP8 in blocks",
    "_blocks": "MXFP4",
}


@dataclass(frozen=True)
class Part:
    """Where one parameter lies: a tensor of the files, and the rows of it from start to stop (None: all)."""

    tensor: str
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Placed:
    """parts: by our parameter's name; unused: tensors that are not read, by name; notes: what was assumed."""

    parts: Mapping[str, Part]
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def are_metas(names: Iterable[str]) -> bool:
    """Whether these are Meta's names, whose queries and keys turn neighbouring dimensions."""
    return any(name == "tok_embeddings.weight" or re.match(r"layers\.[0-9]+\.attention\.w", name) for name in names)


def rename(name: str) -> str:
    """Hugging Face's name for a tensor of a file; a name we do not know stays as it is, to be refused."""
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        number, part, kind = layer.groups()
        return f"model.layers.{number}.{_META.get(part, part)}.{kind}"
    stem, dot, kind = name.removeprefix("model.").rpartition(".")
    return f"{_TOP[stem]}{dot}{kind}" if stem in _TOP else name


def place(shapes: Mapping[str, Shape], config: LlamaConfig, file: str) -> Placed:
    """Every parameter's part in the files, by its name; `file` is what a refusal calls them."""
    parts: dict[str, Part] = {}
    unused: list[str] = []
    notes: list[str] = []
    for tensor, shape in shapes.items():
        if tensor.endswith("rotary_emb.inv_freq") or tensor == "rope.freqs":
            unused.append(tensor)
            continue
        for name, part in _split(tensor, shape, config, file):
            if name in parts:
                raise CheckpointError(
                    f"{file} holds {name} twice, as {parts[name].tensor} and as {tensor}. Usually two versions of the "
                    "model were saved into one folder; keep one of them."
                )
            parts[name] = part
    merged = sorted({part.tensor.split(".")[-2] for part in parts.values() if part.rows is not None})
    if merged:
        notes.append(
            f"The matrices {' and '.join(merged)} are split by rows: first the queries', then the keys', then the "
            "values'; first the gate's, then the up projection's. The file does not say so itself."
        )
    if config.tie_word_embeddings and _HEAD in parts:
        head = parts.pop(_HEAD)
        if _EMBEDDING in parts:
            unused.append(head.tensor)
        else:
            parts[_EMBEDDING] = head
            notes.append(f"The tied table is stored once, as {head.tensor}; it serves as the embedding and the head.")
    return Placed(parts, tuple(unused), tuple(notes))


def _split(tensor: str, shape: Shape, config: LlamaConfig, file: str) -> list[tuple[str, Part]]:
    name = rename(tensor)
    before, kind = name.rsplit(".", 1) if "." in name else (name, "")
    home, _, last = before.rpartition(".")
    if last not in _MERGED or not _LAYER.fullmatch(name):
        return [(name, Part(tensor))]
    heads, shared = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    rows = {"q_proj": heads, "k_proj": shared, "v_proj": shared}
    sizes = [rows.get(own, config.intermediate_size) for own in _MERGED[last]]
    expected = (sum(sizes), config.hidden_size) if kind == "weight" else (sum(sizes),)
    if tuple(shape) != expected:
        raise CheckpointError(shape_sentence(name, f"{tensor} in {file}", shape, expected, config))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        (f"{home}.{own}.{kind}", Part(tensor, (start, start + size)))
        for own, start, size in zip(_MERGED[last], starts, sizes, strict=True)
    ]


def refuse_packs(names: Iterable[str], file: str) -> None:
    """CheckpointError when the names show that the weights are packed by a quantiser."""
    for name in names:
        kind = next((kind for end, kind in _PACKS.items() if name.endswith(end)), None)
        if kind is not None or ".quant_state." in name:
            raise CheckpointError(
                f"{file} holds {name[:120]}: the weights are quantised ({kind or 'bitsandbytes 4-bit'}), and of "
                "safetensors we read F32, F16, BF16 and F64 only. Take the unquantised version of the model, or a GGUF."
            )


def unused_note(names: Iterable[str], why: str) -> str:
    """A sentence that lists tensors which are in the files but not read."""
    names = sorted(names)
    return f"Not read, {why}: {listed(names)}."
