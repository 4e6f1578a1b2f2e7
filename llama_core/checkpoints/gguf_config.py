"""A GGUF file's metadata as a LlamaConfig: sizes, switches, and what llama.cpp does to RoPE.

llama.cpp is what these files are made for, so a key means what llama.cpp reads in it. A key that
changes the numbers in a way we do not compute is refused by name, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import LinearScaling, Llama3Scaling, LlamaConfig, RopeScaling, YarnScaling
from ..errors import CheckpointError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Family:
    """What an architecture's name alone says.

    permuted: query and key rows stand in neighbouring pairs. yarn_keys: it reads yarn's own keys.
    """

    permuted: bool = False
    qk_norm: bool = False
    yarn_keys: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family(permuted=True),  # Mistral and SmolLM2 too: llama.cpp converts them to this name
    "mistral3": Family(permuted=True, yarn_keys=True),
    "qwen2": Family(),
    "qwen3": Family(qk_norm=True),
}
"""Architectures that we compute."""

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
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.temperature_scale": (0.0,),
    "use_parallel_residual": (False,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
}
# What llama.cpp assumes where yarn's own keys are absent. Most architectures never look at the keys.
_YARN: Mapping[str, float] = {
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
_CHECKED = (
    "vocab_size",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",  # only says that the model was trained further at the longer context
    "rope.scale_linear",
    "tensor_data_layout",  # the rows' order, which the architecture's name says as well
    "pooling_type",  # how an embedding of a whole text is made from the last hidden states
)


def family_of(fields: Mapping[str, Any], file: str) -> Family:
    """The architecture's record; CheckpointError names it when we do not compute it."""
    name = fields.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"{file} holds a model of the architecture {str(name)[:60]!r}. We compute {', '.join(FAMILIES)}; "
            "other families differ in places that would give wrong numbers without an error."
        )
    return FAMILIES[name]


def config_of(
    fields: Mapping[str, Any], shapes: Shapes, factors: np.ndarray | None, file: str
) -> tuple[LlamaConfig, tuple[str, ...]]:
    """(config, notes) from metadata, the tensors' shapes by GGUF name, and rope_freqs.weight if the file has it."""
    family, name = family_of(fields, file), fields["general.architecture"]
    own = {key.removeprefix(f"{name}."): _as_written(v) for key, v in fields.items() if key.startswith(f"{name}.")}
    _check_keys(own, family, name, file)
    absent = [f"{name}.{key}" for key in _REQUIRED if key not in own]
    absent += [] if "token_embd.weight" in shapes else ["token_embd.weight"]
    if absent:
        raise CheckpointError(f"{file} lacks {', '.join(absent)}. Usually it is one part of a split file, or no model.")
    _check_sizes(own, shapes, file)
    bias, out_bias = "blk.0.attn_q.bias" in shapes, "blk.0.attn_output.bias" in shapes
    config = LlamaConfig(
        vocab_size=shapes["token_embd.weight"][0],
        tie_word_embeddings="output.weight" not in shapes,
        attention_bias=bias,
        attention_out_bias=None if out_bias == bias else out_bias,
        mlp_bias="blk.0.ffn_gate.bias" in shapes,
        qk_norm=family.qk_norm,
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=fields.get("tokenizer.ggml.eos_token_id"),
        **{field: own[key] for key, field in (_REQUIRED | _OPTIONAL).items() if key in own},
    )
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key, config.head_dim) != config.head_dim:
            raise CheckpointError(
                f"{file} sets {name}.{key} to {own[key]}, but a head is {config.head_dim} wide. "
                "We rotate whole heads, and values as wide as keys."
            )
    return config.with_(rope_scaling=_scaling(own, factors, config, file)), _notes(own, name)


def _check_keys(own: Mapping[str, Any], family: Family, name: str, file: str) -> None:
    for key, value in own.items():
        known = key in (*_REQUIRED, *_OPTIONAL, *_CHECKED) or value in _ONLY.get(key, ())
        if not known and not (key in _YARN and (family.yarn_keys or value == _YARN[key])):
            raise CheckpointError(f"{file} sets {name}.{key} to {str(value)[:60]!r}, which we do not compute.")


def _check_sizes(own: Mapping[str, Any], shapes: Shapes, file: str) -> None:
    """The sizes in the metadata are numbers that the tensors can back; LlamaConfig checks the rest."""
    width, layers, heads = (own[key] for key in ("embedding_length", "block_count", "attention.head_count"))
    embedding = shapes["token_embd.weight"]
    whole = all(isinstance(size, int) for size in (width, layers, heads))
    if not whole or len(embedding) != 2 or width != embedding[1] or layers > len(shapes) or heads > width:
        raise CheckpointError(
            f"{file} says {str(layers)[:40]} layers of width {str(width)[:40]} with {str(heads)[:40]} heads, but holds "
            f"{len(shapes)} tensors and an embedding of {list(embedding)}. "
            "Usually its metadata is damaged, or differs from layer to layer, which we do not compute."
        )


def _notes(own: Mapping[str, Any], name: str) -> tuple[str, ...]:
    window = own.get("attention.sliding_window")
    if not window:
        return ()
    # Tried with llama.cpp's own library: the logits of a llama and a qwen2 file do not change with this key.
    return (
        f"The file states {name}.attention.sliding_window {str(window)[:40]}. llama.cpp computes this architecture "
        "without a window, and so do we: every token sees all before it.",
    )


def _as_written(value: Any) -> Any:
    """A float32 from the file as the decimal it was written from: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


# --- RoPE ------------------------------------------------------------------------------------


def _scaling(own: Mapping[str, Any], factors: np.ndarray | None, config: LlamaConfig, file: str) -> RopeScaling | None:
    scaling = _named_scaling(own, config, file)
    if factors is None:
        return scaling
    table = llama3_of(factors, config, file)
    if scaling is not None and table is not None:
        raise CheckpointError(
            f"{file} scales RoPE twice: by the rule {scaling.kind!r} in its metadata and by the table "
            "rope_freqs.weight. We compute one of them at a time."
        )
    return table or scaling


def _named_scaling(own: Mapping[str, Any], config: LlamaConfig, file: str) -> RopeScaling | None:
    """The rule that rope.scaling.type names. llama.cpp takes an absent type for "linear", and a factor of 0 for 1."""
    kind = own.get("rope.scaling.type", "linear")
    factor = _number(own, "rope.scaling.factor", _number(own, "rope.scale_linear", 1.0, file), file) or 1.0
    attention = _number(own, "rope.scaling.attn_factor", 1.0, file)
    original = int(_number(own, "rope.scaling.original_context_length", config.max_position_embeddings, file))
    if kind == "yarn":
        return _yarn(own, factor, attention, original, file)
    if kind not in ("linear", "none", ""):
        raise CheckpointError(f"{file} scales RoPE by {str(kind)[:60]!r}. We compute none, linear, yarn and llama3.")
    if attention != 1.0:
        raise CheckpointError(
            f"{file} sets rope.scaling.attn_factor to {attention} without yarn, which we do not compute."
        )
    return None if factor == 1.0 or kind != "linear" else LinearScaling(factor=factor)


def _yarn(own: Mapping[str, Any], factor: float, attention: float, original: int, file: str) -> YarnScaling | None:
    """llama.cpp's yarn in transformers' terms.

    Read in llama.cpp (ggml_rope_yarn_corr_dims, rope_yarn, llama_context) and tried with its library: the ramp runs
    over the same pairs, rounded outwards, as transformers' with truncate; sine and cosine are multiplied by
    attn_factor * (1 + 0.1 ln factor), which is transformers' own attention_factor where attn_factor is 1.
    mistral3 divides that by 1 + 0.1 * yarn_log_multiplier * ln factor.
    """
    fast, slow, log = (_number(own, key, absent, file) for key, absent in _YARN.items())
    if factor == 1.0 and attention == 1.0:
        return None
    if attention != 1.0 or log != 0.0:
        size = attention * (1 + 0.1 * math.log(factor)) / (1 + 0.1 * log * math.log(factor))
    else:
        size = None
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=size,
        beta_fast=fast,
        beta_slow=slow,
    )


def _number(own: Mapping[str, Any], key: str, absent: float, file: str) -> float:
    value = own.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise CheckpointError(f"{file} sets {key} to {str(value)[:60]!r}; it must be a number of at least 0.")
    return float(value)


def llama3_of(factors: np.ndarray, config: LlamaConfig, file: str) -> Llama3Scaling | None:
    """The llama3 rule that divides RoPE's frequencies by exactly these factors, one per pair; None for all ones."""
    factors = np.asarray(factors, dtype=np.float64)
    factors = np.where(np.abs(factors - 1) < 1e-6, 1, factors)  # what float32 makes of a kept pair
    slowest = _turns(config).min()
    if factors.shape == (config.head_dim // 2,) and np.all((factors >= 1) & (factors < 1e9)) and slowest > 1e-12:
        if np.all(factors == 1):
            return None
        for scaling in _candidates(factors, config):
            if np.allclose(factors, _divisors(scaling, config), rtol=1e-5, atol=0):
                return scaling
    raise CheckpointError(
        f"{file} scales RoPE by a table of its own (rope_freqs.weight, {factors.size} values for "
        f"{config.head_dim // 2} pairs). We know tables that the llama3 rule makes, and this is another one."
    )


def _candidates(factors: np.ndarray, config: LlamaConfig) -> Iterator[Llama3Scaling]:
    """Rules that may have made the factors, the published one first.

    The rule looks at low and high only beside the original length, so all three times any number is the same rule:
    low stays 1. A pair that is kept or divided in full says nothing; two that are blended fix the rest.
    """
    top = float(factors.max())
    factor = round(top, 4) if abs(round(top, 4) / top - 1) < 1e-6 else top  # 7.9999995 was 8
    for high, original in ((4.0, 8192), *_solved(factors, config)):
        if high > 1 and 1 <= original < 1e9:
            yield Llama3Scaling(factor, 1.0, high, round(original))


def _solved(factors: np.ndarray, config: LlamaConfig) -> Iterator[tuple[float, float]]:
    """(high, original) that may have made the factors; llama3_of tries them.

    The share that a blended pair keeps is (turns * original - 1) / (high - 1).
    """
    top, turns = float(factors.max()), _turns(config)
    blended = (factors > 1) & (factors < top * (1 - 1e-6))
    share = (1 / factors[blended] - 1 / top) / (1 - 1 / top)
    slow, fast = turns[factors >= top * (1 - 1e-6)].max(), turns[factors == 1]
    if len(share) == 0:
        original = int(1 / slow)
        if len(fast):
            yield float(original * fast.min()), original
        return
    yield 4.0, float(np.median((1 + 3 * share) / turns[blended]))
    if len(share) > 1:
        slope, start = np.polyfit(turns[blended], share, 1)
        if start < 0 < slope:
            yield round(1 - 1 / start, 3), slope / -start
        return
    for original in np.geomspace(1 / turns[blended][0], 1 / slow, 16).astype(int):  # one pair: several lengths fit
        yield float(1 + (original * turns[blended][0] - 1) / share[0]), int(original)


def _divisors(scaling: Llama3Scaling, config: LlamaConfig) -> np.ndarray:
    """What the llama3 rule divides each pair's frequency by."""
    turns = scaling.original_max_position_embeddings * _turns(config)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)  # 1: a fast pair, not divided
    return 1 / ((1 - kept) / scaling.factor + kept)


def _turns(config: LlamaConfig) -> np.ndarray:
    """Full turns of each pair per token."""
    pairs = np.arange(config.head_dim // 2)
    return config.rope_theta ** (-2 * pairs / config.head_dim) / (2 * np.pi)
