"""What a Llama costs: parameters, bytes, KV cache, arithmetic. From its config: nothing is allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .config import ITEM_BYTES, LlamaConfig
from .scaling import Llama3Scaling

# --- parameters ---

PARTS = ("embedding", "q", "k", "v", "o", "gate", "up", "down", "norms", "head")
"""Where a parameter can belong, in the order of a forward pass. Biases belong to their projection."""


def parameters(config: LlamaConfig) -> dict[str, int]:
    """Number of parameters of each of PARTS, over all layers. A tied head is the embedding's: 0 of its own."""
    counts = dict.fromkeys(PARTS, 0)
    for name, shape in config.parameter_shapes().items():
        counts[_part(name)] += math.prod(shape)
    return counts


def _part(name: str) -> str:
    """ "model.layers.0.self_attn.q_proj.bias" -> "q"."""
    module = name.split(".")[-2]
    if "norm" in module:
        return "norms"
    return {"embed_tokens": "embedding", "lm_head": "head"}.get(module) or module.removesuffix("_proj")


def weight_bytes(config: LlamaConfig) -> dict[str, int]:
    """Bytes of all weights by the type that stores them."""
    return {dtype: config.weight_bytes(dtype) for dtype in ITEM_BYTES}


# --- KV cache ---


@dataclass(frozen=True)
class CacheSize:
    """Bytes of keys and values. per_layer: of one token in one layer; per_token: in all layers; total: of the context.

    kept: positions that each layer has to keep: the context, or its sliding window where that is shorter, as older
    keys are never read again. (The app's own cache keeps all rows, so that a trace can go back.)
    """

    per_layer: int
    per_token: int
    kept: tuple[int, ...]
    total: int


def cache_size(config: LlamaConfig, context: int, dtype: str = "bfloat16") -> CacheSize:
    """2 (key and value) x Hkv x Dh x bytes of one number, times layers, times positions."""
    per_layer = 2 * config.num_key_value_heads * config.head_dim * ITEM_BYTES[dtype]
    kept = keys_read(config, context)
    return CacheSize(per_layer, per_layer * config.num_hidden_layers, kept, per_layer * sum(kept))


def keys_read(config: LlamaConfig, context: int) -> tuple[int, ...]:
    """How many keys the last of `context` tokens reads in each layer: all, or the sliding window's width."""
    return tuple(config.window(layer, context) or context for layer in range(config.num_hidden_layers))


@dataclass(frozen=True)
class Sharing:
    """One way to share key/value heads. own: it is the model's. saved: share of MHA's cache that it saves, 0..1."""

    name: str
    kv_heads: int
    own: bool
    parameters: int
    cache: CacheSize
    saved: float


def sharing(config: LlamaConfig, context: int, dtype: str = "bfloat16") -> tuple[Sharing, ...]:
    """MHA, GQA and MQA side by side for this model, all else the same.

    GQA is the model's own number of key/value heads where that is between the two; else the divisor of Hq
    nearest to Hq / 4, where one is between them.
    """
    heads, own = config.num_attention_heads, config.num_key_value_heads
    between = [n for n in range(2, heads) if heads % n == 0]
    grouped = own if 1 < own < heads else min(between, key=lambda n: (abs(n - heads / 4), n), default=None)
    kinds = {"MHA": heads, "GQA": grouped, "MQA": 1}
    if heads == 1:
        kinds = {"MHA": 1}  # one head: MQA is the same
    return tuple(
        Sharing(
            name,
            kv,
            kv == own,
            (changed := config.with_(num_key_value_heads=kv)).parameter_count(),
            cache_size(changed, context, dtype),
            1 - kv / heads,
        )
        for name, kv in kinds.items()
        if kv is not None
    )


# --- arithmetic ---


def token_flops(config: LlamaConfig, S: int) -> dict[str, int]:
    """Operations for one token that reads S keys, itself among them, by part; a multiply-add counts as 2.

    A matrix costs 2 per weight whatever S is. Only `scores` (q . k) and `mix` (weights times values) grow with S:
    2 Hq Dh each per key and layer, up to the sliding window. Left out as small: norms, RoPE, softmax, the
    activation, additions, biases; looking up the embedding is no arithmetic.
    """
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    Hq, Hkv, Dh = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    keys = sum(keys_read(config, S))
    multiply_adds = {
        "q": L * D * Hq * Dh,
        "k": L * D * Hkv * Dh,
        "v": L * D * Hkv * Dh,
        "scores": Hq * Dh * keys,
        "mix": Hq * Dh * keys,
        "o": L * Hq * Dh * D,
        "gate": L * D * F,
        "up": L * D * F,
        "down": L * F * D,
        "head": D * config.vocab_size,
    }
    return {part: 2 * count for part, count in multiply_adds.items()}


def pass_flops(config: LlamaConfig, T: int, past: int = 0) -> dict[str, int]:
    """Operations of one pass over T tokens behind `past` cached ones, by part: `token_flops` of each of them, added.

    A step of generation with a cache is a pass of 1 behind S - 1; without one it is a pass of all S. Cells that a
    query may not see are not counted, though the explicit path computes them before it masks them.
    """
    one = token_flops(config, 1)  # each layer reads one key
    keys = _keys_seen(config, past + T) - _keys_seen(config, past)
    per_key = {part: one[part] // config.num_hidden_layers * keys for part in ("scores", "mix")}
    return {part: T * count for part, count in one.items()} | per_key


def _keys_seen(config: LlamaConfig, S: int) -> int:
    """Keys that the first S tokens read, each its own included, over all layers."""
    widths = [config.window(layer, S) or S for layer in range(config.num_hidden_layers)]
    return sum(width * (width + 1) // 2 + (S - width) * width for width in widths)


# --- shapes by name ---

_LLAMA3 = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}
_LLAMA32 = _LLAMA3 | {
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "rope_scaling": Llama3Scaling(factor=32.0),
    "tie_word_embeddings": True,
}

SHAPES: Mapping[str, LlamaConfig] = {
    # meta-llama/Llama-2-7b-hf, config.json
    "Llama 2 7B": LlamaConfig(max_position_embeddings=4096, rms_norm_eps=1e-5),
    # meta-llama/Meta-Llama-3-8B, config.json
    "Llama 3 8B": LlamaConfig(intermediate_size=14336, **_LLAMA3),
    # meta-llama/Meta-Llama-3-70B, config.json
    "Llama 3 70B": LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, **_LLAMA3
    ),
    # meta-llama/Llama-3.2-1B, config.json
    "Llama 3.2 1B": LlamaConfig(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, **_LLAMA32),
    # meta-llama/Llama-3.2-3B, config.json
    "Llama 3.2 3B": LlamaConfig(hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, **_LLAMA32),
    # TinyLlama/TinyLlama-1.1B-Chat-v1.0, config.json
    "TinyLlama 1.1B": LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_key_value_heads=4, rms_norm_eps=1e-5
    ),
    # HuggingFaceTB/SmolLM2-135M-Instruct, config.json
    "SmolLM2 135M": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    ),
    # karpathy/llama2.c, the 15M row of its table of TinyStories models
    "stories15M": LlamaConfig(
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_layout="neighbours",
        tie_word_embeddings=True,
    ),
}
"""Published sizes by name, to look at. `config.PRESETS` has those to run with random weights."""
