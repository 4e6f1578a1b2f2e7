"""A GGUF file of the Llama family, read without copying it: header first, then one tensor at a time.

The header is read here rather than by `gguf.GGUFReader`, which takes ten seconds for a vocabulary of
fifty thousand. Quantised tensors come out as float32. GGUF stores the query and key rows of Llama
in neighbouring pairs; they come out in Hugging Face's order, so `rope_layout` is always "halves".
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Stored

from ..config import Llama3Scaling, LlamaConfig
from ..errors import CheckpointError
from ..tokenizer import Tokenizer
from .common import Checkpoint, check_tensors, formats, refuse_stand_in

if TYPE_CHECKING:
    import torch


def gguf_checkpoint(path: Path) -> Checkpoint:
    """The model in a .gguf file; a GlassLlamaError says what in it cannot be used."""
    path = Path(path)
    data = _mapped(path)
    fields, stored = _Header(data, path.name).read()
    family = str(fields.get("general.architecture"))
    if family not in FAMILIES:
        raise CheckpointError(
            f"{path.name} holds a model of the architecture {family!r}. We compute {', '.join(FAMILIES)}; "
            "other families differ in places that would give wrong numbers without an error."
        )
    factors = stored.pop("rope_freqs.weight", None)
    config = _config(fields, stored, family, path.name)
    if factors is not None:
        config = config.with_(rope_scaling=_scaling(_values(data, factors).double().numpy(), config, path.name))
    named = {_hf_name(name): tensor for name, tensor in stored.items()}
    check_tensors({name: tensor.shape for name, tensor in named.items()}, config, path.name)
    label = formats((tensor.kind.name, math.prod(tensor.shape)) for tensor in stored.values())
    return Checkpoint(
        config=config,
        tensors=_read(data, named, config, permuted=FAMILIES[family]),
        tokenizer=_tokenizer(fields),
        source=_source(path, label),
        stored_dtype=label,
        kind="gguf",
    )


# --- the file's bytes ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """Where one tensor lies: shape outermost first, its format, and its bytes from `start`."""

    shape: tuple[int, ...]
    kind: Stored
    start: int
    size: int


_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_AXES = 4


def _mapped(path: Path) -> mmap.mmap:
    try:
        refuse_stand_in(path, "GGUF")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path.name} cannot be opened: {error}. Usually the path is wrong, or the download left an empty file."
        ) from error


class _Header:
    """Reads the metadata and the table of tensors; never trusts a count or a length."""

    def __init__(self, data: mmap.mmap, file: str) -> None:
        self.data, self.file, self.at = data, file, 0

    def read(self) -> tuple[dict[str, Any], dict[str, _Tensor]]:
        """(metadata, tensors by GGUF name)."""
        if self._take(4) != b"GGUF":
            raise CheckpointError(
                f"{self.file} does not start with the letters GGUF, so it is no GGUF file. "
                "Usually a web page or another format was saved under this name; fetch it again."
            )
        version = self._number("<I")
        if version not in (2, 3):
            raise CheckpointError(
                f"{self.file} is GGUF version {version}; we read 2 and 3 in little-endian order. "
                "Convert it again with a current converter."
            )
        tensors, keys = self._count(24), self._count(13)  # 24, 13: the fewest bytes that one of each takes
        fields: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            fields[key] = self._value(self._number("<I"))
        return fields, self._table(tensors, fields.get("general.alignment", 32))

    def _table(self, count: int, alignment: int) -> dict[str, _Tensor]:
        rows = [self._row() for _ in range(count)]
        if not isinstance(alignment, int) or alignment < 1:
            raise self._broken(f"its alignment is {alignment!r}")
        base = -(-self.at // alignment) * alignment
        tensors = {name: self._placed(name, shape, kind, base + offset) for name, shape, kind, offset in rows}
        if len(tensors) != len(rows):
            raise self._broken("two tensors have the same name")
        return tensors

    def _row(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._string(), self._number("<I")
        if not 1 <= axes <= _MAX_AXES:
            raise self._broken(f"the tensor {name[:60]!r} has {axes} axes")
        shape = tuple(self._number("<Q") for _ in range(axes))[::-1]
        return name, shape, self._number("<I"), self._number("<Q")

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> _Tensor:
        try:
            stored = Stored(kind)
            block, size = gguf.GGML_QUANT_SIZES[stored]
        except (ValueError, KeyError):
            raise self._broken(f"the tensor {name[:60]!r} is stored in the unknown format {kind}") from None
        if shape[-1] % block:
            raise self._broken(f"the tensor {name[:60]!r} has rows of {shape[-1]}, no multiple of {block}")
        size = math.prod(shape) // block * size
        if start + size > len(self.data):
            raise CheckpointError(
                f"{self.file} is cut short: the tensor {name[:60]!r} ends at byte {start + size:,}, but the file has "
                f"{len(self.data):,}. Usually the download stopped early; fetch it again."
            )
        return _Tensor(shape, stored, start, size)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise self._broken(f"a value has the unknown type {kind}")
        item = self._number("<I")
        if item == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if item not in _NUMBERS:
            raise self._broken(f"a list holds values of the type {item}")
        form = _NUMBERS[item]
        count = self._count(struct.calcsize(form))
        return list(struct.unpack(f"<{count}{form[1]}", self._take(count * struct.calcsize(form))))

    def _string(self) -> str:
        raw = self._take(self._count(1))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._broken(f"the text {raw[:40]!r} is not UTF-8") from None

    def _count(self, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each; refused when the file cannot hold them."""
        count = self._number("<Q")
        if count * smallest > len(self.data) - self.at:
            raise self._broken(f"it announces {count:,} entries, more than its {len(self.data):,} bytes can hold")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise self._broken(f"its header goes on after its last byte, {len(self.data):,}")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def _broken(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file} cannot be read as GGUF: {what}. Usually the file is incomplete or damaged; fetch it again."
        )


# --- metadata -> config ----------------------------------------------------------------------

FAMILIES: Mapping[str, bool] = {"llama": True, "qwen3": False}
"""Architectures we compute, and whether GGUF permutes their query and key rows."""

_REQUIRED = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
# Keys whose value must be one of these, because we compute nothing else. Any other key is refused by name.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none", ""),
    "rope.scaling.factor": (1.0, 0.0),
    "rope.scale_linear": (1.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
}
_CHECKED = ("vocab_size", "attention.value_length", "rope.dimension_count", "tensor_data_layout")


def _config(fields: Mapping[str, Any], stored: Mapping[str, _Tensor], family: str, file: str) -> LlamaConfig:
    own = {key.removeprefix(f"{family}."): value for key, value in fields.items() if key.startswith(f"{family}.")}
    for key, value in own.items():
        if key not in (*_REQUIRED, *_OPTIONAL, *_CHECKED) and value not in _ONLY.get(key, ()):
            raise CheckpointError(f"{file} sets {family}.{key} to {str(value)[:60]!r}, which we do not compute.")
    absent = [f"{family}.{key}" for key in _REQUIRED if key not in own] + ["token_embd.weight"] * (
        "token_embd.weight" not in stored
    )
    if absent:
        raise CheckpointError(f"{file} lacks {', '.join(absent)}. Usually it is one part of a split file, or no model.")
    _check_sizes(own, stored, file)
    given = {name: own[key] for key, name in (_REQUIRED | _OPTIONAL).items() if key in own}
    given["rms_norm_eps"] = _as_written(given["rms_norm_eps"])
    config = LlamaConfig(
        vocab_size=stored["token_embd.weight"].shape[0],
        tie_word_embeddings="output.weight" not in stored,
        attention_bias="blk.0.attn_q.bias" in stored,
        mlp_bias="blk.0.ffn_gate.bias" in stored,
        qk_norm=family == "qwen3",
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=fields.get("tokenizer.ggml.eos_token_id"),
        **given,
    )
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key, config.head_dim) != config.head_dim:
            raise CheckpointError(
                f"{file} sets {family}.{key} to {own[key]}, but a head is {config.head_dim} wide. "
                "We rotate whole heads, and values as wide as keys."
            )
    return config


def _check_sizes(own: Mapping[str, Any], stored: Mapping[str, _Tensor], file: str) -> None:
    """The sizes in the metadata are numbers that the tensors can back; LlamaConfig checks the rest."""
    width, layers, heads = (own[key] for key in ("embedding_length", "block_count", "attention.head_count"))
    embedding = stored["token_embd.weight"].shape
    whole = all(isinstance(size, int) for size in (width, layers, heads))
    if not whole or len(embedding) != 2 or width != embedding[1] or layers > len(stored) or heads > width:
        raise CheckpointError(
            f"{file} says {str(layers)[:40]} layers of width {str(width)[:40]} with {str(heads)[:40]} heads, but holds "
            f"{len(stored)} tensors and an embedding of {list(embedding)}. "
            "Usually its metadata is damaged, or differs from layer to layer, which we do not compute."
        )


def _as_written(value: Any) -> Any:
    """A float32 from the file as the decimal it was written from: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _scaling(factors: np.ndarray, config: LlamaConfig, file: str) -> Llama3Scaling | None:
    """The llama3 scaling that gives exactly these divisors of RoPE's frequencies."""
    if factors.shape == (config.head_dim // 2,):
        if np.all(factors == 1):
            return None
        scaling = Llama3Scaling(factor=round(max(1.0, float(factors.max())), 4))
        if np.allclose(factors, _divisors(scaling, config), rtol=1e-5):
            return scaling
    raise CheckpointError(
        f"{file} scales RoPE by a table of its own (rope_freqs.weight, {factors.size} values). "
        "We know the llama3 rule with low 1, high 4 and 8192 original positions, and this is another one."
    )


def _divisors(scaling: Llama3Scaling, config: LlamaConfig) -> np.ndarray:
    """What the llama3 rule divides each frequency by."""
    pairs = np.arange(config.head_dim // 2)
    turns = scaling.original_max_position_embeddings * config.rope_theta ** (-2 * pairs / config.head_dim) / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)  # 1: a fast pair, not divided
    return 1 / ((1 - kept) / scaling.factor + kept)


def _tokenizer(fields: Mapping[str, Any]) -> Tokenizer | None:
    return Tokenizer.from_gguf_fields(fields) if fields.get("tokenizer.ggml.model", "none") != "none" else None


def _source(path: Path, label: str) -> str:
    """The file's name without the format that quantisers append to it, and the format in brackets."""
    kind = label.split(",")[0]
    return f"{re.sub(rf'[.-]{kind}$', '', path.stem, flags=re.IGNORECASE)} (GGUF, {kind})"


# --- tensors ---------------------------------------------------------------------------------

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


def _hf_name(name: str) -> str:
    """Hugging Face's name for a GGUF tensor; a name we do not know stays as it is, to be refused."""
    match = re.fullmatch(r"(blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[3] not in _NAMES:
        return name
    layer = f"model.layers.{int(match[2])}." if match[1] else ""
    return f"{layer}{_NAMES[match[3]]}.{match[4]}"


def _read(
    data: mmap.mmap, named: Mapping[str, _Tensor], config: LlamaConfig, permuted: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if permuted else {}
    for name, tensor in named.items():
        values = _values(data, tensor)
        count = heads.get(name.split(".")[-2])
        yield name, values if count is None else unpermute(values, count)


def unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Query or key rows from GGUF's order (the two of a pair are neighbours) to Hugging Face's (half a head apart)."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _values(data: mmap.mmap, tensor: _Tensor) -> torch.Tensor:
    """The tensor's numbers in memory of their own: float32, or the 16-bit format they are stored in."""
    import torch  # here, so that a header can be read before torch is imported

    raw = np.frombuffer(data, np.uint8, tensor.size, tensor.start)
    if tensor.kind in _PLAIN:
        return torch.from_numpy(raw.copy()).view(getattr(torch, _PLAIN[tensor.kind])).reshape(tensor.shape)
    try:
        values = gguf.quants.dequantize(raw, tensor.kind)
    except NotImplementedError as error:
        raise CheckpointError(
            f"A tensor is stored as {tensor.kind.name}, which we cannot turn into numbers. "
            "Take another quantisation of the model, for example Q8_0 or Q4_1."
        ) from error
    return torch.from_numpy(values).reshape(tensor.shape)


_PLAIN = {Stored.F32: "float32", Stored.F16: "float16", Stored.BF16: "bfloat16"}  # torch names
