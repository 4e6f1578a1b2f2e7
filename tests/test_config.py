"""LlamaConfig: what cannot exist is refused with a value that works; counts and defaults are the published ones."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from rigs import PROMPT, SIZES, reference_rig
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, Qwen3Config
from transformers import LlamaConfig as TransformersConfig
from transformers.activations import ACT2FN

from llama_core import KVCache, run, steps
from llama_core.config import (
    FAMILIES,
    PRESETS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
    YarnScaling,
    config_from_dict,
    config_notes,
    read_config,
    stored_dtype_of,
)
from llama_core.errors import ConfigError
from llama_core.model import ACTIVATIONS, Llama
from llama_core.steps import At

SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def refusal(**changes) -> str:
    with pytest.raises(ConfigError) as refused:
        LlamaConfig(**SMALL | changes)
    assert str(refused.value).endswith(".")
    return str(refused.value)


# --- sizes that cannot exist ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 1024, "num_attention_heads": 12}, ("hidden_size 1024", "num_attention_heads 12", "8 or 16")),
        ({"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 8}, ("6", "4 equal groups", "3 or 6")),
        ({"head_dim": 5}, ("head_dim is 5", "even", "6 would work")),
        ({"hidden_size": 20}, ("head_dim is 5", "even", "6 would work")),
        ({"num_key_value_heads": 0}, ("num_key_value_heads is 0", "at least 1")),
        ({"num_key_value_heads": -2}, ("num_key_value_heads is -2", "at least 1")),
        ({"num_key_value_heads": 8}, ("8 is more than num_attention_heads 4", "1 to 4")),
        ({"num_attention_heads": 0}, ("num_attention_heads is 0", "at least 1")),
        ({"hidden_size": 0}, ("hidden_size is 0",)),
        ({"vocab_size": 0}, ("vocab_size is 0",)),
        ({"num_hidden_layers": 0}, ("num_hidden_layers is 0",)),
        ({"intermediate_size": 0}, ("intermediate_size is 0",)),
        ({"max_position_embeddings": 0}, ("max_position_embeddings is 0",)),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers is 1000000000", "at most")),
        ({"hidden_size": 16.0}, ("hidden_size is 16.0", "whole number")),
        ({"hidden_size": "16"}, ("hidden_size is '16'", "whole number")),
        ({"hidden_size": None}, ("hidden_size is None", "whole number")),
        ({"num_hidden_layers": True}, ("num_hidden_layers is True", "whole number")),
        ({"head_dim": 0}, ("head_dim is 0",)),
        ({"rms_norm_eps": 0}, ("rms_norm_eps is 0", "above 0")),
        ({"rms_norm_eps": -1e-6}, ("rms_norm_eps",)),
        ({"rms_norm_eps": math.nan}, ("rms_norm_eps is nan",)),
        ({"rms_norm_eps": "1e-6"}, ("rms_norm_eps is '1e-6'",)),
        ({"rope_theta": math.inf}, ("rope_theta is inf",)),
        ({"rope_theta": 0.0}, ("rope_theta is 0.0",)),
        ({"hidden_act": "xyz"}, ("hidden_act is 'xyz'", "silu")),
        ({"hidden_act": "quick_gelu"}, ("hidden_act is 'quick_gelu'", "gelu_pytorch_tanh")),
        ({"rope_layout": "interleaved"}, ("rope_layout is 'interleaved'", "neighbours")),
        ({"rms_norm_eps": True}, ("rms_norm_eps is True", "number")),
        ({"rope_theta": 10**400}, ("rope_theta is 1000", "number")),
        ({"attention_bias": "yes"}, ("attention_bias is 'yes'", "true or false")),
        ({"attention_out_bias": 1}, ("attention_out_bias is 1", "true or false")),
        ({"tie_word_embeddings": []}, ("tie_word_embeddings is []", "true or false")),
        ({"sliding_window": -1}, ("sliding_window is -1", "at least 1")),
        ({"sliding_window": 3, "full_layers": (1,)}, ("full_layers names layers 1 to 1", "0 to 0")),
        ({"full_layers": [0]}, ("full_layers is [0]", "tuple")),
        ({"rope_scaling": {"factor": 2}}, ("rope_scaling is {'factor': 2}", "LinearScaling")),
        ({"rope_scaling": DynamicScaling(2.0), "head_dim": 2}, ("head_dim is 2", "at least 4")),
        ({"rope_scaling": YarnScaling(2.0, 64), "rope_theta": 1}, ("rope_theta is 1", "above 1")),
    ],
)
def test_what_cannot_exist_is_refused_with_both_numbers_and_the_rule(changes, says):
    sentence = refusal(**changes)
    for part in says:
        assert part in sentence, sentence


def test_all_broken_rules_are_named_at_once():
    sentence = refusal(head_dim=5, num_key_value_heads=3, hidden_act="xyz")
    assert all(part in sentence for part in ("head_dim", "num_key_value_heads", "hidden_act"))


def suggestions(sentence: str) -> list[dict]:
    """The changes that a refusal says would work."""
    found = []
    if heads := re.search(r"head width\. (\d+)(?: or (\d+))? would work", sentence):
        found += [{"num_attention_heads": int(n)} for n in heads.groups() if n]
    if hidden := re.search(r"hidden_size (\d+), or a head_dim", sentence):
        found.append({"hidden_size": int(hidden[1])})
    if kv := re.search(r"equal groups\. (\d+)(?: or (\d+))? would work", sentence):
        found += [{"num_key_value_heads": int(n)} for n in kv.groups() if n]
    if width := re.search(r"even: (\d+) would work", sentence):
        found.append({"head_dim": int(width[1])})
    return found


IMPOSSIBLE = {
    "heads 12 of 1024": {"hidden_size": 1024, "num_attention_heads": 12},
    "heads 4 of 6": {"hidden_size": 6, "num_attention_heads": 4},
    "heads 7 of 576": {"hidden_size": 576, "num_attention_heads": 7},
    "heads 20 of 16": {"num_attention_heads": 20},
    "heads 10 of 576, kv 2": {"hidden_size": 576, "num_attention_heads": 10, "num_key_value_heads": 2},
    "heads 4 of 15": {"hidden_size": 15},
    "kv 4 of 6": {"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 8},
    "kv 7 of 9": {"num_attention_heads": 9, "num_key_value_heads": 7, "head_dim": 64},
    "width 5": {"head_dim": 5},
    "width 5 by division": {"hidden_size": 20},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_every_value_that_a_refusal_suggests_works(name):
    sizes = SMALL | IMPOSSIBLE[name]
    changes = suggestions(refusal(**IMPOSSIBLE[name]))
    assert changes
    for change in changes:
        LlamaConfig(**sizes | change)


def test_the_smallest_config_of_all_runs():
    config = LlamaConfig(1, 2, 1, 1, 1)
    assert run(Llama(config), [0])["logits"].shape == (1, 1, 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Llama3Scaling(factor=0.5), "RoPE scaling llama3: factor is 0.5; it must be a number of at least 1"),
        (lambda: Llama3Scaling(factor=math.nan), "factor is nan"),
        (lambda: Llama3Scaling(low_freq_factor=4.0), "low_freq_factor is 4.0; it must be above 0 and below"),
        (lambda: Llama3Scaling(low_freq_factor=0.0), "low_freq_factor is 0.0"),
        (lambda: Llama3Scaling(high_freq_factor="4"), "high_freq_factor is '4'"),
        (lambda: Llama3Scaling(original_max_position_embeddings=0), "original_max_position_embeddings is 0"),
        (lambda: LinearScaling(0.5), "RoPE scaling linear: factor is 0.5"),
        (lambda: LinearScaling(math.inf), "factor is inf"),
        (lambda: DynamicScaling("2"), "RoPE scaling dynamic: factor is '2'"),
        (lambda: YarnScaling(True, 64), "RoPE scaling yarn: factor is True"),
        (lambda: YarnScaling(2.0, 64.5), "original_max_position_embeddings is 64.5"),
        (lambda: YarnScaling(2.0, 64, attention_factor=0.0), "attention_factor is 0.0"),
        (lambda: YarnScaling(2.0, 64, mscale=-1.0), "mscale is -1.0"),
        (
            lambda: YarnScaling(2.0, 64, beta_fast=1.0, beta_slow=2.0),
            "beta_slow is 2.0; it must be above 0 and at most",
        ),
        (lambda: YarnScaling(2.0, 64, truncate="no"), "truncate is 'no'"),
    ],
)
def test_scaling_that_cannot_be_computed_is_refused(make, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        make()


def test_many_heads_that_nothing_divides_are_refused_at_once():
    # A search through all numbers up to 2^24 takes seconds; a damaged file must not.
    assert "no whole head width" in refusal(hidden_size=2**24 - 3, num_attention_heads=2**23 + 1)
    assert "equal groups" in refusal(num_attention_heads=2**24 - 3, num_key_value_heads=2**23 + 1, head_dim=2)


@pytest.mark.parametrize(("name", "curve"), [
    ("swish", "silu"),
    ("gelu_python", "gelu"),
    *((name, "gelu_pytorch_tanh") for name in ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh")),
])  # fmt: skip
def test_other_names_of_a_curve_are_that_curve(name, curve):
    config = LlamaConfig(**SMALL, hidden_act=name)
    assert config == LlamaConfig(**SMALL, hidden_act=curve)
    x = torch.linspace(-8, 8, 4001)
    torch.testing.assert_close(ACTIVATIONS[config.hidden_act](x), ACT2FN[name](x), rtol=0, atol=1e-6)


def test_a_changed_copy_is_checked_again():
    with pytest.raises(ConfigError, match="3 equal groups"):
        PRESETS["tiny"].with_(num_key_value_heads=3)
    assert PRESETS["tiny"].with_(num_key_value_heads=4).group == 2


# --- parameters ---

PUBLISHED = {
    "S3": (PRESETS["light-0.85M"], 846_336),
    "S1 tied": (PRESETS["teaching-83M"], 83_196_672),
    "S1 untied": (PRESETS["teaching-83M"].with_(tie_word_embeddings=False), 90_876_672),
    "stories15M": (LlamaConfig(32000, 288, 768, 6, 6, tie_word_embeddings=True), 15_191_712),
    "stories15M, counted twice": (LlamaConfig(32000, 288, 768, 6, 6), 24_407_712),
    "Llama 3.2 1B": (LlamaConfig(128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True), 1_235_814_400),
    "Llama 3.2 1B, counted twice": (LlamaConfig(128256, 2048, 8192, 16, 32, 8), 1_498_482_688),
    "Llama 3 8B": (LlamaConfig(128256, 4096, 14336, 32, 32, 8), 8_030_261_248),
    "Llama 2 7B": (LlamaConfig(), 6_738_415_616),
    "SmolLM2 135M": (LlamaConfig(49152, 576, 1536, 30, 9, 3, tie_word_embeddings=True), 134_515_008),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameter_count_is_the_published_one(name):
    config, count = PUBLISHED[name]
    assert config.parameter_count() == count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "attention_out_bias": False, "mlp_bias": True}])
def test_the_bytes_of_the_weights_are_those_of_the_model(dtype, changes):
    config = PRESETS["nano"].with_(qk_norm=True, **changes)
    model = Llama(config).to(getattr(torch, dtype))
    assert config.weight_bytes(dtype) == sum(p.nbytes for p in model.parameters()) == model.nbytes()


def test_counting_the_parameters_of_endless_layers_takes_no_time():
    assert LlamaConfig(**SMALL | {"num_hidden_layers": 2**24}).parameter_count() > 2**24


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_shapes_that_transformers_builds(name):
    config = PRESETS[name]
    sizes = {key: value for key, value in config.to_dict().items() if not key.startswith(("rope_", "qk_"))}
    with torch.device("meta"):
        theirs = LlamaForCausalLM(TransformersConfig(**sizes))
    assert {name: tuple(p.shape) for name, p in theirs.named_parameters()} == config.parameter_shapes()


def test_a_config_is_a_value():
    assert LlamaConfig(**SMALL) == LlamaConfig(**SMALL, num_key_value_heads=4, head_dim=4)
    assert len({PRESETS["tiny"], PRESETS["tiny"].with_()}) == 1
    assert json.loads(json.dumps(PRESETS["tiny"].to_dict()))["hidden_size"] == 64


def test_what_means_the_same_is_the_same_value():
    biased = LlamaConfig(**SMALL, attention_bias=True)
    assert LlamaConfig(**SMALL, attention_bias=True, attention_out_bias=True) == biased
    assert LlamaConfig(**SMALL, sliding_window=0) == LlamaConfig(**SMALL)
    qwen2 = biased.with_(attention_out_bias=False)
    assert (biased.out_bias, qwen2.out_bias, LlamaConfig(**SMALL).out_bias) == (True, False, False)
    assert len({biased, qwen2, biased.with_(rope_scaling=YarnScaling(2.0, 64)), qwen2.with_()}) == 3


def test_a_scaling_keeps_its_kind_as_plain_values():
    plain = LlamaConfig(**SMALL, rope_scaling=YarnScaling(2.0, 64)).to_dict()
    assert plain["rope_scaling"]["rope_type"] == "yarn"
    raw = json.loads(json.dumps({"model_type": "llama", "rope_scaling": plain["rope_scaling"]}))
    assert config_from_dict(raw).rope_scaling == YarnScaling(2.0, 64)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 512),
        (LinearScaling(4.0), 2048),
        (DynamicScaling(1.5), 768),
        (YarnScaling(4.0, 512), 2048),
        (YarnScaling(4.0, 64), 512),
        (Llama3Scaling(8.0, original_max_position_embeddings=128), 512),
        (DynamicScaling(1e30), 2**24),
    ],
)
def test_a_run_may_be_as_long_as_the_scaling_was_made_for(scaling, length):
    assert LlamaConfig(**SMALL, max_position_embeddings=512, rope_scaling=scaling).max_length == length


def test_a_window_counts_where_there_are_more_keys_than_it_shows():
    config = LlamaConfig(**SMALL | {"num_hidden_layers": 3}, sliding_window=4, full_layers=(1,))
    assert [config.window(layer, 5) for layer in range(3)] == [4, None, 4]
    assert [config.window(layer, 4) for layer in range(3)] == [None] * 3
    assert LlamaConfig(**SMALL).window(0, 1000) is None


# --- bytes ---


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_what_a_trace_holds_but_for_streams_that_two_addresses_share(past, dtype):
    model = Llama(PRESETS["nano"].with_(qk_norm=True)).to(dtype)
    cache = KVCache(model.config)
    if past:
        run(model, [1] * past, cache=cache)
    trace = run(model, PROMPT, cache=cache)
    estimate = model.config.capture_bytes(len(PROMPT), past, str(dtype).removeprefix("torch."))
    # resid_in is the very tensor of the embedding or of the previous resid_out: estimated, but held once.
    shared = sum(trace[At(i, steps.RESID_IN)].size for i in range(2)) * dtype.itemsize
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _held(trace)}
    assert trace.nbytes == sum(storages.values()) == estimate - shared


def _held(trace) -> list[torch.Tensor]:
    return [trace.tensors.tensor(at) for at in trace.tensors]


def test_a_larger_prompt_is_estimated_without_computing_it():
    config = PUBLISHED["SmolLM2 135M"][0]
    assert config.capture_bytes(256) > 8 * config.capture_bytes(32)  # T x S maps grow with the square
    assert config.capture_bytes(64, dtype="bfloat16") * 2 == config.capture_bytes(64)


def test_dims_give_every_axis_letter_its_number():
    dims = PRESETS["tiny"].dims(5, past=2)
    assert dims == {"B": 1, "T": 5, "S": 7, "D": 64, "Hq": 8, "Hkv": 2, "Dh": 8, "R": 4, "F": 172, "V": 256}
    assert dims.keys() == steps.AXES.keys()


# --- config.json ---


def theirs(**changes) -> dict:
    return TransformersConfig(**SIZES | changes).to_dict()


def ours_of(raw: dict, names: tuple[str, ...]) -> dict:
    config = config_from_dict(raw)
    return {name: getattr(config, name) for name in names}


SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
    *("tie_word_embeddings", "attention_bias"),
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": True, "hidden_act": "gelu"},
        {"head_dim": 12, "num_key_value_heads": 1, "bos_token_id": 3, "eos_token_id": [5, 6]},
    ],
)
def test_a_config_that_transformers_writes_reads_back(changes):
    raw = theirs(**changes)
    assert ours_of(raw, SHARED) == {name: raw[name] for name in SHARED}
    config = config_from_dict(raw)
    assert config.rope_theta == raw["rope_parameters"]["rope_theta"]
    assert (config.bos_token_id, config.eos_token_id) == (
        changes.get("bos_token_id", 1),
        5 if changes.get("head_dim") else 2,
    )
    assert config.other_eos_token_ids == ((6,) if changes.get("head_dim") else ())


def test_an_absent_or_null_key_means_what_transformers_means():
    empty = TransformersConfig()
    assert ours_of({"model_type": "llama"}, SHARED) == {name: getattr(empty, name) for name in SHARED}
    nulls = dict.fromkeys((*SHARED, "rope_theta", "rope_scaling", "rope_parameters"))
    assert config_from_dict({"model_type": "llama"} | nulls) == config_from_dict({"model_type": "llama"})
    assert config_from_dict({"model_type": "llama"}).rope_theta == empty.rope_parameters["rope_theta"]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_key_means_what_transformers_means_in_that_family(family):
    names, empty = [name for name in SHARED if name != "attention_bias"], AutoConfig.for_model(family)
    right = {name: getattr(empty, name, None) for name in names}
    right["head_dim"] = right["head_dim"] or empty.hidden_size // empty.num_attention_heads
    config = config_from_dict({"model_type": family})
    assert {name: getattr(config, name) for name in names} == right
    assert config.sliding_window == (4096 if family == "mistral" else None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"head_dim": 12}, {"attention_bias": True}])
def test_each_family_has_the_parameters_that_transformers_builds(family, changes):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES | changes))
    config = config_from_dict(model.config.to_dict())
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == config.parameter_shapes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head_dim", [{}, {"head_dim": None}])
def test_an_absent_or_null_head_width_is_the_share_of_a_head_but_in_qwen3(family, head_dim):
    config = config_from_dict({"model_type": family, **SIZES} | head_dim)
    assert config.head_dim == (128 if family == "qwen3" else 8)


def test_a_null_number_of_kv_heads_means_mha_in_every_family():
    for family in FAMILIES:
        raw = {"model_type": family, "num_attention_heads": 8, "num_key_value_heads": None}
        assert config_from_dict(raw).num_key_value_heads == 8


def test_biases_are_where_each_family_has_them():
    def biases(family: str, **raw) -> tuple[bool, bool, bool]:
        config = config_from_dict({"model_type": family, **SIZES, "head_dim": 8} | raw)
        return config.attention_bias, config.out_bias, config.mlp_bias

    assert biases("llama") == biases("mistral") == biases("qwen3") == (False, False, False)
    assert biases("llama", attention_bias=True) == biases("qwen3", attention_bias=True) == (True, True, False)
    assert biases("llama", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("qwen2") == biases("qwen2", attention_bias=False) == (True, False, False)


OLD = {name: value for name, value in LLAMA3.items() if name != "rope_type"}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
        {"rope_scaling": OLD | {"type": "llama3"}, "rope_theta": 500000.0},
        {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "rope_parameters": None},
        {"rope_scaling": None, "rope_theta": 500000.0, "rope_parameters": LLAMA3},
        {"rope_scaling": LLAMA3 | {"rope_theta": 500000.0}, "rope_theta": 10000.0},
        {"rope_scaling": LLAMA3 | {"type": "linear"}, "rope_theta": 500000.0},
    ],
)
def test_scaling_is_read_under_both_names_and_in_both_spellings(rope):
    config = config_from_dict({"model_type": "llama"} | rope)
    assert config.rope_scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert config.rope_theta == 500000.0


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
        {"rope_scaling": {"rope_type": "default"}, "rope_parameters": LLAMA3 | {"rope_theta": 20000.0}},
        {"rope_scaling": {}, "rope_parameters": LLAMA3, "rope_theta": 30000.0},
        {"rope_theta": 40000.0},
        {"rope_theta": 40000, "rope_scaling": {"type": "default"}},
    ],
)
def test_where_two_names_disagree_the_one_that_transformers_follows_wins(rope):
    expected = TransformersConfig(**json.loads(json.dumps(rope))).rope_parameters
    config = config_from_dict({"model_type": "llama"} | rope)
    assert config.rope_theta == expected["rope_theta"]
    assert (config.rope_scaling is not None) == (expected["rope_type"] == "llama3")


def scaling_of(rope: dict, **raw):
    return config_from_dict({"model_type": "llama", "rope_scaling": rope} | raw).rope_scaling


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize(
    ("rope", "right"),
    [
        ({"": "linear", "factor": 4}, LinearScaling(4.0)),
        ({"": "dynamic", "factor": 2.0}, DynamicScaling(2.0)),
        ({"": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, YarnScaling(4.0, 512)),
        ({"": "default"}, None),
        ({"": None}, None),
        ({}, None),
    ],
)
def test_each_type_of_scaling_is_read_in_every_spelling(name, spelling, rope, right):
    record = {key or spelling: value for key, value in rope.items()}
    config = config_from_dict({"model_type": "llama", name: record, "rope_theta": 500.0})
    assert (config.rope_scaling, config.rope_theta) == (right, 500.0)


def test_every_field_of_yarn_is_read():
    rope = {"attention_factor": 1.2, "mscale": 0.7, "mscale_all_dim": 1, "beta_fast": 16, "beta_slow": 2}
    rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False}
    assert scaling_of(rope) == YarnScaling(4.0, 512, 1.2, 0.7, 1, 16, 2, False)


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, YarnScaling(4.0, 512)),
        ({"truncate": None}, YarnScaling(4.0, 512, truncate=False)),
        ({"beta_fast": None, "beta_slow": 0}, YarnScaling(4.0, 512)),
        ({"attention_factor": None, "mscale": None}, YarnScaling(4.0, 512)),
        ({"factor": None}, YarnScaling(2048 / 512, 512)),
        ({"finetuned": True}, YarnScaling(4.0, 512)),
    ],
)
def test_null_in_a_yarn_record_is_what_transformers_makes_of_it(changes, right):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert scaling_of(rope | changes) == right


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_an_absent_original_context_is_that_of_the_config_and_one_outside_the_record_wins(kind):
    rope = {"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    sizes = {"max_position_embeddings": 1024}
    assert scaling_of(rope, **sizes).original_max_position_embeddings == 1024
    assert TransformersConfig(**sizes, rope_scaling=rope).rope_parameters["original_max_position_embeddings"] == 1024
    inner = rope | {"original_max_position_embeddings": 512}
    assert scaling_of(inner, **sizes).original_max_position_embeddings == 512
    outer = scaling_of(inner, **sizes, original_max_position_embeddings=256)
    theirs = TransformersConfig(**sizes, rope_scaling=inner, original_max_position_embeddings=256)
    theirs.standardize_rope_params()  # as building the model does
    assert outer.original_max_position_embeddings == theirs.rope_parameters["original_max_position_embeddings"] == 256


@pytest.mark.parametrize("kind", ["longrope", "su", "mrope", "proportional", "LLAMA3", "ntk", "<b>x</b>"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_scaling_that_we_do_not_compute_is_refused_by_name(kind, spelling, name):
    with pytest.raises(ConfigError, match=re.escape(repr(kind))):
        config_from_dict({"model_type": "llama", name: {spelling: kind, "factor": 4.0}})


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "linear", "factor": 2.0, "foo": 1}, "foo of its RoPE to 1"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section of its RoPE to [1, 2]"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor of its RoPE to 0.5"),
        ({"rope_type": "yarn", "factor": 2.0, "short_factor": [1.0]}, "short_factor of its RoPE"),
        ({"rope_type": ["linear"], "factor": 2.0}, "linear"),
        ({"rope_type": "linear"}, "lacks factor"),
        ({"rope_type": "dynamic", "factor": "2"}, "lacks factor"),
        ({"rope_type": "yarn"}, "lacks factor"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": None}, "lacks original_max"),
        ({"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 0}, "lacks factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5"),
        ({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}, "differs between full_att"),
        ({"full_attention": {"rope_theta": 1e4}, "rope_theta": 1e4}, "differs between full_attention, rope_theta"),
    ],
)
def test_a_rope_record_that_we_do_not_compute_is_refused(rope, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        config_from_dict({"model_type": "llama", "rope_parameters": rope})


def test_a_record_for_each_kind_of_layer_is_read_where_all_are_equal():
    one = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    raw = {"model_type": "qwen3", "rope_parameters": {"full_attention": one, "sliding_attention": dict(one)}}
    config = config_from_dict(raw)
    assert (config.rope_scaling, config.rope_theta) == (LinearScaling(2.0), 500.0)
    raw["rope_parameters"]["sliding_attention"] = None
    assert config_from_dict(raw) == config


@pytest.mark.parametrize("missing", OLD)
def test_llama3_scaling_with_a_missing_number_is_refused_by_its_name(missing):
    absent = () if missing == "original_max_position_embeddings" else ({},)
    for value in (*absent, {missing: None}, {missing: "8"}):
        rope = {name: number for name, number in LLAMA3.items() if name != missing} | value
        with pytest.raises(ConfigError, match=f"lacks {missing}"):
            config_from_dict({"model_type": "llama", "rope_scaling": rope})


# --- sliding windows in config.json ---


def window_of(family: str, **raw) -> tuple[int | None, tuple[int, ...]]:
    config = config_from_dict({"model_type": family, **SIZES, "num_hidden_layers": 4, "head_dim": 8} | raw)
    return config.sliding_window, config.full_layers


QWEN = pytest.mark.parametrize("family", ["qwen2", "qwen3"])


def test_the_window_of_mistral_is_in_every_layer():
    assert window_of("mistral", sliding_window=3) == (3, ())
    assert window_of("mistral") == (4096, ())
    assert window_of("mistral", sliding_window=3, layer_types=["sliding_attention"] * 4) == (3, ())


@QWEN
def test_the_window_of_qwen_begins_at_max_window_layers(family):
    on = {"use_sliding_window": True, "sliding_window": 3}
    assert window_of(family, **on, max_window_layers=1) == (3, (0,))
    assert window_of(family, **on, max_window_layers=0) == (3, ())
    assert window_of(family, **on, max_window_layers=4) == window_of(family, **on) == (None, ())
    assert window_of(family, use_sliding_window=True, max_window_layers=2) == (4096, (0, 1))
    assert window_of(family, sliding_window=3, max_window_layers=0) == (None, ())


@QWEN
def test_layer_types_say_which_layers_slide(family):
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    on = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
    assert window_of(family, **on, layer_types=kinds) == (3, (1, 3))
    assert window_of(family, **on, layer_types=["full_attention"] * 4) == (None, ())
    assert window_of(family, layer_types=["full_attention"] * 4) == (None, ())


@pytest.mark.parametrize("off", [None, 0, False])
def test_null_and_0_are_no_window(off):
    assert window_of("llama", sliding_window=off) == (None, ())
    assert window_of("mistral", sliding_window=off) == (None, ())
    assert window_of("qwen2", sliding_window=off, use_sliding_window=True, max_window_layers=0) == (None, ())
    assert window_of("llama", sliding_window=4096, use_sliding_window=False) == (None, ())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "raw",
    [
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 3},
        {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": 5, "use_sliding_window": False, "max_window_layers": 0},
    ],
)
def test_the_layers_that_slide_are_those_of_transformers(family, raw):
    if family in ("llama", "mistral"):
        raw = {"sliding_window": raw["sliding_window"] if family == "mistral" else None}
    theirs = AutoConfig.for_model(family, **SIZES | {"num_hidden_layers": 4, "head_dim": 8} | raw)
    kinds = getattr(theirs, "layer_types", ["sliding_attention" if raw["sliding_window"] else "full_attention"] * 4)
    config = config_from_dict(theirs.to_dict())
    found = ["full_attention" if config.window(layer, 6) is None else "sliding_attention" for layer in range(4)]
    assert found == kinds


@pytest.mark.parametrize(
    ("family", "raw", "says"),
    [
        ("llama", {"sliding_window": 3}, "sliding_window to 3"),
        ("llama", {"sliding_window": 3, "use_sliding_window": True}, "knows no window"),
        ("mistral", {"sliding_window": 3, "use_sliding_window": False}, "only the first of both"),
        ("mistral", {"sliding_window": "3"}, "sliding_window is '3'"),
        ("mistral", {"sliding_window": -3}, "sliding_window is -3"),
        ("mistral", {"sliding_window": 3, "layer_types": ["full_attention"] * 4}, "lets 0 of 4 layers slide"),
        ("llama", {"layer_types": ["sliding_attention"] * 4}, "4 of 4 layers slide"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "switched off"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "3 entries"),
        ("qwen2", {"layer_types": "full"}, "layer_types has 'full'"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ("qwen2", {"layer_types": [["full_attention"]] * 4}, "layer_types names"),
        ("qwen3", {"use_sliding_window": "yes"}, "use_sliding_window is 'yes'"),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": "1"}, "max_window_layers is '1'"),
        (
            "qwen3",
            {"use_sliding_window": True, "max_window_layers": 2**23, "num_hidden_layers": 2**24},
            "max_window_layers is 8388608; it must be at most 4096",
        ),
    ],
)
def test_a_window_that_the_file_leaves_open_is_refused(family, raw, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        window_of(family, **raw)


# --- keys that we do not compute, and keys that nobody knows ---


@pytest.mark.parametrize(
    "family", ["gemma3", "mixtral", "granite", "ministral", "qwen2_moe", "Llama", "", None, 3, ["llama"]]
)
def test_another_family_is_refused_by_name(family):
    with pytest.raises(ConfigError, match=f"model_type {re.escape(repr(family))}.*llama, mistral, qwen2, qwen3"):
        config_from_dict(theirs() | {"model_type": family})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor to 0.5"),
        ({"residual_multiplier": 0.22}, "residual_multiplier to 0.22"),
        ({"logit_scale": 0.0625}, "logit_scale to 0.0625"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping to 50.0"),
        ({"num_local_experts": 8}, "num_local_experts to 8"),
        ({"clip_qkv": 8.0}, "clip_qkv to 8.0"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers to [1, 0]"),
        ({"rope_interleaved": True}, "rope_interleaved to True"),
        ({"qk_norm": True}, "qk_norm to True"),
        ({"qkv_bias": True}, "qkv_bias to True"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised (quantization_config, 'gptq')"),
        ({"compression_config": {"format": "int4"}}, "quantised (compression_config"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"rope_scaling": 4}, "rope_scaling is 4"),
        ({"rope_scaling": ["linear"]}, "rope_scaling is"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_attention_heads": 2.5}, "num_attention_heads is 2.5"),
        ({"rope_theta": "big", "rope_parameters": None}, "rope_theta is 'big'"),
        ({"num_key_value_heads": [2, 2]}, "num_key_value_heads is"),
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_not_dropped(changes, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        config_from_dict(theirs() | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"partial_rotary_factor": 1.0, "attention_multiplier": 1, "logit_scale": None},
        {"num_experts": 0, "rope_interleaved": False, "no_rope_layers": [], "attn_logit_softcapping": None},
        {"quantization_config": None, "pretraining_tp": 2, "attention_dropout": 0.1, "torch_dtype": "bfloat16"},
        {"transformers_version": "4.31.0", "_name_or_path": "x", "id2label": {"0": "a"}, "top_k": 50},
    ],
)
def test_what_is_switched_off_or_changes_no_number_is_read_past_without_a_note(changes):
    raw = theirs() | changes
    assert config_from_dict(raw) == config_from_dict(theirs())
    assert config_notes(raw) == ()


def test_true_where_the_family_is_so_by_its_name_is_no_surprise():
    assert config_from_dict({"model_type": "qwen2", "qkv_bias": True}).attention_bias
    assert config_from_dict({"model_type": "qwen3", "use_qk_norm": True}).qk_norm


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_transformers_writes_gives_no_note(family):
    assert config_notes(AutoConfig.for_model(family).to_dict()) == ()
    assert config_notes(json.loads(AutoConfig.for_model(family).to_json_string())) == ()


def test_a_key_that_nobody_knows_is_noted():
    notes = config_notes(theirs() | {"foo": 3, "bar": None, "baz": False, "long": "x" * 500})
    assert notes[0] == "config.json also says foo = 3, which this app does not know and does not use."
    assert len(notes) == 2
    assert len(notes[1]) < 160


def test_a_key_that_its_family_or_its_type_of_scaling_does_not_use_is_noted():
    assert config_notes({"model_type": "mistral", "attention_bias": True}) == (
        "config.json says attention_bias = True; models of the family mistral have none in transformers, "
        "and neither have they here.",
    )
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": None}
    (note,) = config_notes({"model_type": "llama", "rope_scaling": rope})
    assert note.endswith("original_max_position_embeddings = 64, which RoPE scaling of the type dynamic does not use.")
    assert len(config_notes({"model_type": "llama", "original_max_position_embeddings": 64})) == 1
    rope["rope_type"] = "yarn"
    assert config_notes({"model_type": "llama", "rope_scaling": rope}) == ()


def test_a_theta_that_is_said_twice_is_noted_where_both_differ():
    raw = {"model_type": "llama", "rope_theta": 20000.0, "rope_parameters": {"rope_theta": 30000.0}}
    (note,) = config_notes(raw)
    assert "rope_theta = 20000.0 and, in its record of RoPE, 30000.0" in note
    assert config_from_dict(raw).rope_theta == 30000.0
    assert config_notes(raw | {"rope_theta": 30000.0}) == ()


@pytest.mark.parametrize(
    ("raw", "stated"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "bfloat16"}, "float32"),
        ({"dtype": None, "torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, None),
        ({"dtype": {"": "float16"}}, None),
        ({}, None),
    ],
)
def test_the_stored_type_is_read_under_both_names(raw, stated):
    assert stored_dtype_of(raw) == stated


def test_qwen3_has_normalised_queries_and_keys_and_llama_has_not():
    qwen3 = Qwen3Config(**SIZES, head_dim=8).to_dict()
    assert config_from_dict(qwen3).qk_norm
    assert not config_from_dict(theirs()).qk_norm
    assert "q_norm" in {step.key for step in config_from_dict(qwen3).walk.steps}


def test_a_saved_config_file_reads_as_its_model(tmp_path):
    model = reference_rig(num_key_value_heads=1)
    model.config.save_pretrained(tmp_path)
    assert read_config(tmp_path / "config.json") == config_from_dict(model.config.to_dict())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model_type": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_damaged_config_file_is_a_sentence(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError):
        read_config(tmp_path / "config.json")


def test_a_config_file_that_is_not_there_is_a_sentence_without_its_place(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json cannot be read") as refused:
        read_config(tmp_path / "config.json")
    assert str(tmp_path) not in str(refused.value)
