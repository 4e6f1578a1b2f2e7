"""Costs from a config: against published numbers, transformers' modules without memory, and real tensors."""

from __future__ import annotations

import pytest
import torch
import transformers
from rigs import PROMPT
from torch.utils.flop_counter import FlopCounterMode

from llama_core import KVCache, run
from llama_core.config import PRESETS, LlamaConfig
from llama_core.sizes import (
    PARTS,
    SHAPES,
    cache_size,
    keys_read,
    parameters,
    sharing,
    token_flops,
    weight_bytes,
)

# As the models' pages and papers give them.
PUBLISHED = {
    "Llama 2 7B": 6_738_415_616,
    "Llama 3 8B": 8_030_261_248,
    "Llama 3 70B": 70_553_706_496,
    "Llama 3.2 1B": 1_235_814_400,
    "Llama 3.2 3B": 3_212_749_824,
    "TinyLlama 1.1B": 1_100_048_384,
    "SmolLM2 135M": 134_515_008,
    "stories15M": 15_191_712,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_published_model_has_its_published_number_of_parameters(name):
    parts = parameters(SHAPES[name])
    assert sum(parts.values()) == SHAPES[name].parameter_count() == PUBLISHED[name]
    assert (parts["head"] == 0) == SHAPES[name].tie_word_embeddings


def test_the_tutorials_size_has_its_number():
    assert sum(parameters(PRESETS["light-0.85M"]).values()) == 846_336


def test_a_tied_table_counted_twice_would_be_another_number():
    parts = parameters(SHAPES["Llama 3.2 1B"])
    assert sum(parts.values()) + parts["embedding"] == 1_498_482_688


SAME = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SAME += ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings")


@pytest.mark.parametrize(
    "config",
    [*SHAPES.values(), PRESETS["tiny"], PRESETS["nano"].with_(attention_bias=True, mlp_bias=True, head_dim=6)],
)
def test_each_part_is_what_the_modules_of_transformers_hold(config):
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{name: getattr(config, name) for name in SAME})
        )
    layers = theirs.model.layers

    def count(*modules) -> int:
        return sum(p.numel() for module in modules for p in module.parameters())

    expected = {
        "embedding": count(theirs.model.embed_tokens),
        **{part: sum(count(getattr(layer.self_attn, f"{part}_proj")) for layer in layers) for part in "qkvo"},
        **{part: sum(count(getattr(layer.mlp, f"{part}_proj")) for layer in layers) for part in ("gate", "up", "down")},
        "norms": sum(count(layer.input_layernorm, layer.post_attention_layernorm) for layer in layers)
        + count(theirs.model.norm),
        "head": 0 if config.tie_word_embeddings else count(theirs.lm_head),
    }
    assert parameters(config) == expected
    assert tuple(expected) == PARTS


def test_norms_of_queries_and_keys_are_norms(ours, make):
    qwen = make.decoder(make.reference("qwen3"))
    assert parameters(qwen.config)["norms"] - parameters(ours.config)["norms"] == 2 * 2 * 8
    assert sum(parameters(qwen.config).values()) == sum(p.numel() for p in qwen.parameters())


def test_bytes_follow_the_type():
    assert weight_bytes(SHAPES["Llama 3 8B"]) == {
        "float32": 32_121_044_992,
        "float16": 16_060_522_496,
        "bfloat16": 16_060_522_496,
    }


# --- KV cache ---


def test_the_cache_of_known_models():
    llama2, llama3 = cache_size(SHAPES["Llama 2 7B"], 4096), cache_size(SHAPES["Llama 3 8B"], 8192)
    assert (llama2.per_token, llama2.total) == (512 * 1024, 2 * 2**30)  # MHA: half a MiB a token
    assert (llama3.per_layer, llama3.per_token, llama3.total) == (4096, 128 * 1024, 2**30)


@pytest.mark.parametrize("ours", ["gqa", "mqa", "wide heads"], indirect=True)
def test_it_is_what_the_app_keeps_for_the_tokens_of_a_run(ours):
    cache = KVCache(ours.config)
    run(ours, PROMPT, cache=cache)
    kept = sum(t.nbytes for layer in range(2) for t in cache.read(layer, len(PROMPT)))
    found = cache_size(ours.config, len(PROMPT), "float32")
    assert found.total == kept
    assert found.per_token * 5 == kept


def test_a_sliding_window_bounds_what_its_layers_keep():
    config = PRESETS["tiny"].with_(sliding_window=3, full_layers=(1,))
    found = cache_size(config, 10)
    assert keys_read(config, 10) == found.kept == (3, 10, 3, 3)
    assert found.total == found.per_layer * 19
    assert cache_size(config, 2).kept == (2, 2, 2, 2)


def test_ways_of_sharing_side_by_side():
    mha, gqa, mqa = sharing(SHAPES["SmolLM2 135M"], 1000, "float32")
    assert [(s.name, s.kv_heads, s.own) for s in (mha, gqa, mqa)] == [
        ("MHA", 9, False),
        ("GQA", 3, True),
        ("MQA", 1, False),
    ]
    assert gqa.cache == cache_size(SHAPES["SmolLM2 135M"], 1000, "float32")
    assert (gqa.saved, mqa.saved) == pytest.approx((2 / 3, 8 / 9))
    assert mha.cache.total == 3 * gqa.cache.total == 9 * mqa.cache.total
    assert gqa.parameters == 134_515_008
    assert mha.parameters - gqa.parameters == 30 * 2 * 6 * 64 * 576  # k and v for six heads more


@pytest.mark.parametrize(
    ("heads", "kv", "expected"),
    [(32, 32, {"MHA": 32, "GQA": 8, "MQA": 1}), (4, 1, {"MHA": 4, "GQA": 2, "MQA": 1}), (3, 1, {"MHA": 3, "MQA": 1})],
)
def test_a_model_without_groups_is_shown_a_grouped_one_where_there_can_be_one(heads, kv, expected):
    config = LlamaConfig(hidden_size=heads * 8, num_attention_heads=heads, num_key_value_heads=kv)
    found = sharing(config, 10)
    assert {s.name: s.kv_heads for s in found} == expected
    assert [s.kv_heads for s in found if s.own] == [kv]


def test_a_single_head_shares_with_nobody():
    (only,) = sharing(LlamaConfig(hidden_size=8, num_attention_heads=1), 10)
    assert (only.name, only.own, only.saved) == ("MHA", True, 0)


# --- arithmetic ---


@pytest.mark.parametrize("pair", ["gqa", "mha", "tied", "wide heads"], indirect=True)
def test_operations_are_those_that_torch_counts_in_both_models(pair):
    for model in pair:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.tensor([PROMPT]))
        # Every query of the pass meets every key, the masked ones too.
        assert counter.get_total_flops() == 5 * sum(token_flops(pair.ours.config, 5).values())


def test_only_scores_and_mix_grow_with_the_context():
    short, long = token_flops(SHAPES["Llama 3 8B"], 100), token_flops(SHAPES["Llama 3 8B"], 200)
    assert {part for part in short if short[part] != long[part]} == {"scores", "mix"}
    assert long["mix"] == 2 * short["mix"] == 2 * 2 * 32 * 32 * 128 * 100
    matrices = sum(short.values()) - short["scores"] - short["mix"]
    assert matrices == 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)  # 2 a weight, but for embedding and norms


def test_a_window_ends_the_growth():
    config = PRESETS["tiny"].with_(sliding_window=16)
    assert token_flops(config, 16) == token_flops(config, 400)


# --- a capture ---


@pytest.mark.parametrize("ours", ["gqa", "qwen3"], indirect=True)
def test_a_capture_holds_what_a_trace_holds(ours):
    trace, found = run(ours, PROMPT), ours.config.capture_by_step(len(PROMPT))
    held = dict.fromkeys(found, 0)
    for at in trace.tensors:
        held[at.step.key] += trace[at].nbytes
    assert held == found
    assert trace.nbytes == sum(found.values()) - found["resid_in"]  # the tensor of the layer before, held once
