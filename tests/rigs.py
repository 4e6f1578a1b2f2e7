"""Models to compare ours with, made by transformers and written by `gguf`, not by our own code.

The reference rig is drawn so that a mistake shows: at the usual initializer_range of 0.02 a decoder
without any RoPE is within 0.0011 of the right logits; at 0.3 with redrawn norms it is off by 4.8.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

PROMPT = [5, 9, 9, 3, 7]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
CORPUS = ["the harbour wakes slowly in winter and the boats leave before dawn", "one two three four five"]


def reference_rig(**changes) -> LlamaForCausalLM:
    """transformers' LlamaForCausalLM of the reference sizes: seed 0, then every norm weight drawn from 0.5..1.5."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | changes, attn_implementation="eager")).eval()
    return redraw_norms(model)


def redraw_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Every norm weight drawn from 0.5..1.5, seed 1: left at 1, a norm applied twice would not show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return model


FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPE = {
    "default": {"rope_parameters": {"rope_type": "default"}},
    "linear": {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
    "llama3": {
        "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 32}
    },
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
}
"""Config changes by type of RoPE. The original context, where there is one, is 16 or 32 positions."""

YARN = {
    "plain": {},
    "attention_factor": {"attention_factor": 1.3},
    "mscale": {"mscale": 0.7, "mscale_all_dim": 1.1},
    "betas": {"beta_fast": 4.0, "beta_slow": 0.5},
    "not truncated": {"truncate": False},
    "truncate null": {"truncate": None},
    "ramp of one point": {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "factor from the lengths": {"factor": None},
    "original from max_position_embeddings": {"original_max_position_embeddings": "absent"},
}
"""Changes to a yarn record with factor 4 and 32 original positions of 64."""

WINDOWS = {
    "mistral": {"sliding_window": 3},
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
}
"""A window of 3 in every layer; from layer 1 on; in layer 0 alone."""


def family_rig(family: str, **changes) -> PreTrainedModel:
    """transformers' model of a family in the reference sizes; norms redrawn, biases drawn from N(0, 1).

    Head width 16: every kind of scaling then has pairs that it keeps, changes a little and divides.
    """
    torch.manual_seed(0)
    sizes = SIZES | {"head_dim": 16, "sliding_window": None, "attention_bias": family == "qwen3"}
    config = AutoConfig.for_model(family, **sizes | deepcopy(changes))  # transformers writes into what it is given
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=generator)
    return redraw_norms(model)


def yarn_rig(change: str) -> PreTrainedModel:
    """The llama rig with one of the YARN changes. theta 100: the ramp then lies over several of the 8 pairs."""
    rope = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
    rope |= YARN[change]
    return family_rig("llama", rope_parameters={key: value for key, value in rope.items() if value != "absent"})


def _built() -> dict[str, Callable[[], PreTrainedModel]]:
    rigs = {f"{family} {rope}": partial(family_rig, family, **ROPE[rope]) for family in FAMILIES for rope in ROPE}
    rigs |= {f"yarn, {change}": partial(yarn_rig, change) for change in YARN}
    return rigs | {f"{family} window": partial(family_rig, family, **window) for family, window in WINDOWS.items()}


MORE_RIGS = _built()
"""Each family with each type of RoPE, the options of YaRN, and sliding windows."""


def more_rig(name: str) -> PreTrainedModel:
    """One of MORE_RIGS, built once; each caller has a copy, for dynamic scaling remembers the longest pass."""
    return deepcopy(_built(name))


@lru_cache
def _built(name: str) -> PreTrainedModel:
    return MORE_RIGS[name]()


def byte_tokenizer(vocab_size: int = 256, special: tuple[str, ...] = ()) -> Tokenizer:
    """Byte-level BPE: the 256 bytes, and merges up to `vocab_size` learnt from two sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def save_folder(model: LlamaForCausalLM, folder: Path, tokenizer: Tokenizer | None = None) -> Path:
    """The model as transformers saves it, with a tokenizer.json where one is given."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def gguf_order(rows: int, heads: int) -> list[int]:
    """Which Hugging Face row stands at each place of a GGUF's q or k: of every head, the two of a pair side by side."""
    half = rows // heads // 2
    return [head * 2 * half + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
