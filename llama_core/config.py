"""LlamaConfig: the sizes and switches of one decoder, checked at birth. No torch here.

Field names are Hugging Face's, so a config.json reads straight in. A refusal names the rule,
both numbers and a value that would work. `dims()` turns a config and a prompt length into
numbers for the axis letters of `steps.AXES`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError
from .steps import Walk

ACTIVATION_NAMES = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
LARGEST = 1 << 24  # no size of a Llama is larger; a damaged file often says so
COMPUTE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Llama3Scaling:
    """RoPE frequencies stretched as Llama 3.1 does: slow pairs divided, fast pairs kept, a blend between.

    All four are plain numbers; `original_max_position_embeddings` is in tokens.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if not self.factor >= 1.0:
            raise ConfigError(f"rope_scaling: factor is {self.factor}; it must be at least 1, for example 8.")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"rope_scaling: low_freq_factor {self.low_freq_factor} must be above 0 and below "
                f"high_freq_factor {self.high_freq_factor}, for example 1 and 4."
            )
        if self.original_max_position_embeddings < 1:
            raise ConfigError("rope_scaling: original_max_position_embeddings must be at least 1, for example 8192.")


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and switches of a Llama-family decoder, in Hugging Face's names.

    Raises ConfigError when they cannot go together. Defaults follow transformers' LlamaConfig
    (rms_norm_eps 1e-6, rope_theta 10000), because that is what an absent key means.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None  # None: as many as query heads (MHA)
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rope_layout: Literal["halves", "neighbours"] = "halves"  # which dimensions form a pair
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm on each query and key vector (Qwen3)
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        problems = list(self._problems())
        if problems:
            raise ConfigError(" ".join(problems))
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)

    def _problems(self):
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.type.startswith("int")}
        optional = ("head_dim", "bos_token_id", "eos_token_id")
        for name, size in sizes.items():
            if size is None and name in optional:
                continue
            if not isinstance(size, int) or isinstance(size, bool):
                yield f"{name} is {size!r}; it must be a whole number."
                return
            if not 1 <= size <= LARGEST and not name.endswith("token_id"):
                yield f"{name} is {size}; it must be at least 1 and at most {LARGEST}."
                return
        heads, kv, hidden = self.num_attention_heads, self.num_key_value_heads, self.hidden_size
        if self.head_dim is None and hidden % heads:
            counts = _near(heads, hidden, lambda n: hidden % (2 * n) == 0 and (kv == heads or n % kv == 0))
            even = 2 * heads * max(1, round(hidden / heads / 2))
            yield (
                f"hidden_size {hidden} cannot be shared by num_attention_heads {heads}: {hidden} / {heads} = "
                f"{hidden / heads:.2f} is no whole head width. "
                f"{counts + ' would work, so would' if counts else 'Possible is'} hidden_size {even}, "
                "or a head_dim of its own."
            )
        if kv > heads:
            yield f"num_key_value_heads {kv} is more than num_attention_heads {heads}; 1 to {heads} is possible."
        elif heads % kv:
            yield (
                f"num_attention_heads {heads} cannot be split into num_key_value_heads {kv} equal groups. "
                f"{_near(kv, heads, lambda n: heads % n == 0)} would work."
            )
        width = self.head_dim or (hidden // heads if hidden % heads == 0 else None)
        if width is not None and width % 2:
            yield f"head_dim is {width}; RoPE turns pairs of dimensions, so it must be even: {width + 1} would work."
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                yield f"{name} is {value!r}; it must be a number above 0."
        if self.hidden_act not in ACTIVATION_NAMES:
            yield f"hidden_act is {self.hidden_act!r}; we can compute {', '.join(ACTIVATION_NAMES)}."
        if self.rope_layout not in ("halves", "neighbours"):
            yield f"rope_layout is {self.rope_layout!r}; it is 'halves' or 'neighbours'."

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def walk(self) -> Walk:
        """The steps of this model in execution order."""
        return _walk(self.num_hidden_layers, frozenset({"qk_norm"} if self.qk_norm else ()))

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by its Hugging Face name. A tied head is not listed twice."""
        D, F, V = self.hidden_size, self.intermediate_size, self.vocab_size
        Hq, Hkv, Dh = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, D)}
        for layer in range(self.num_hidden_layers):
            at = f"model.layers.{layer}."
            shapes[at + "input_layernorm.weight"] = (D,)
            for name, rows, columns in (
                ("q_proj", Hq * Dh, D),
                ("k_proj", Hkv * Dh, D),
                ("v_proj", Hkv * Dh, D),
                ("o_proj", D, Hq * Dh),
            ):
                shapes[f"{at}self_attn.{name}.weight"] = (rows, columns)
                if self.attention_bias:
                    shapes[f"{at}self_attn.{name}.bias"] = (rows,)
            if self.qk_norm:
                shapes[at + "self_attn.q_norm.weight"] = (Dh,)
                shapes[at + "self_attn.k_norm.weight"] = (Dh,)
            shapes[at + "post_attention_layernorm.weight"] = (D,)
            for name, rows, columns in (("gate_proj", F, D), ("up_proj", F, D), ("down_proj", D, F)):
                shapes[f"{at}mlp.{name}.weight"] = (rows, columns)
                if self.mlp_bias:
                    shapes[f"{at}mlp.{name}.bias"] = (rows,)
        shapes["model.norm.weight"] = (D,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (V, D)
        return shapes

    def parameter_count(self) -> int:
        """Number of different parameters: a tied table counts once."""
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    def dims(self, T: int, past: int = 0, batch: int = 1) -> dict[str, int]:
        """Numbers for the axis letters at T query positions after `past` cached ones."""
        return {
            "B": batch,
            "T": T,
            "S": past + T,
            "D": self.hidden_size,
            "Hq": self.num_attention_heads,
            "Hkv": self.num_key_value_heads,
            "Dh": self.head_dim,
            "R": self.head_dim // 2,
            "F": self.intermediate_size,
            "V": self.vocab_size,
        }

    def capture_bytes(self, T: int, past: int = 0, dtype: str = "float32") -> int:
        """Bytes that a trace of T positions holds: every step but the derived ones."""
        dims = self.dims(T, past)
        cells = {step.key: math.prod(dims[a] for a in step.axes) for step in self.walk.steps if not step.derived}
        return ITEM_BYTES[dtype] * sum(cells.get(at.step.key, 0) for at in self.walk)

    def with_(self, **changes: Any) -> LlamaConfig:
        """A changed copy, checked again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a label or a file."""
        return asdict(self)


@lru_cache(maxsize=32)
def _walk(layers: int, families: frozenset[str]) -> Walk:
    return Walk(layers, families)


def _near(near: int, most: int, works: Callable[[int], bool]) -> str:
    """The numbers up to `most` on either side of `near` that work, as "8 or 16"; empty when none does."""
    below = next((n for n in range(near - 1, 0, -1) if works(n)), None)
    above = next((n for n in range(near + 1, most + 1) if works(n)), None)
    return " or ".join(str(n) for n in (below, above) if n is not None)


# --- reading a Hugging Face config.json -------------------------------------------------

# What an absent key means in each family, where that is not LlamaConfig's own default.
_QWEN3 = {"qk_norm": True, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
_FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": _QWEN3 | {"head_dim": 128, "max_position_embeddings": 32768},
}
_SIZES = tuple(
    f.name for f in fields(LlamaConfig) if f.name not in ("rope_scaling", "rope_layout", "qk_norm", "rope_theta")
)
# Keys that change the numbers but that we do not compute: refused unless they are switched off.
_OFF = {"sliding_window": (None, 0), "use_sliding_window": (None, False), "partial_rotary_factor": (None, 1, 1.0)}


def read_config(path: Path) -> LlamaConfig:
    """LlamaConfig from a Hugging Face config.json; ConfigError says what in it we cannot honour."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read as JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path.name} holds {type(raw).__name__}, not the object that a Hugging Face config is.")
    return config_from_dict(raw)


def config_from_dict(raw: Mapping[str, Any]) -> LlamaConfig:
    """LlamaConfig from the fields of a Hugging Face config.json.

    An absent or null key means what transformers means by it. A key that changes the numbers
    in a way we do not compute is refused by name, never dropped.
    """
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise ConfigError(
            f"The config says model_type {family!r}. We can compute {', '.join(_FAMILIES)}; "
            "other families differ in places that would give wrong numbers without an error."
        )
    for key, off in _OFF.items():
        if raw.get(key) not in off:
            if key == "sliding_window" and raw.get("use_sliding_window") is False:
                continue
            raise ConfigError(f"The config sets {key} to {raw[key]!r}, which we do not compute.")
    given = {name: raw[name] for name in _SIZES if raw.get(name) is not None}
    if "num_key_value_heads" in raw and raw["num_key_value_heads"] is None:
        given["num_key_value_heads"] = None  # null is not absent: it means MHA in every family
    if isinstance(given.get("eos_token_id"), list):
        given["eos_token_id"] = given["eos_token_id"][0] if given["eos_token_id"] else None
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ConfigError(f"rope_scaling is {rope!r}; it must be an object or null.")
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    if theta is not None:
        given["rope_theta"] = theta
    return LlamaConfig(**_FAMILIES[family] | given, rope_scaling=read_scaling(rope))


def read_scaling(rope: Mapping[str, Any]) -> Llama3Scaling | None:
    """The scaling record of `rope_scaling` or `rope_parameters` (`rope_type` or the older `type`)."""
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"The config scales RoPE by {kind!r}. We compute default and llama3.")
    names = [f.name for f in fields(Llama3Scaling)]
    missing = [name for name in names if not isinstance(rope.get(name), (int, float))]
    if missing:
        raise ConfigError(f"rope_scaling of type llama3 lacks {', '.join(missing)}.")
    return Llama3Scaling(**{name: rope[name] for name in names})


# --- presets for random weights ----------------------------------------------------------

PRESETS: Mapping[str, LlamaConfig] = {
    "tiny": LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    ),
    "nano": LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=128,
    ),
    # S3: 846,336 parameters, MHA, untied head, MLP int(128 * 8 / 3).
    "light-0.85M": LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=341,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_layout="neighbours",
    ),
    # S1's teaching size: 83,196,672 parameters tied.
    "teaching-83M": LlamaConfig(
        vocab_size=10000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
}
"""Sizes to start from, by name; each can be changed with `with_`."""
