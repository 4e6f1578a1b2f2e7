"""LlamaConfig: what cannot exist is refused with a value that works; counts and defaults are the published ones."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from rigs import PROMPT, SIZES, reference_rig
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM, Qwen3Config

from llama_core import KVCache, run, steps
from llama_core.config import PRESETS, Llama3Scaling, LlamaConfig, config_from_dict, read_config
from llama_core.errors import ConfigError
from llama_core.model import Llama
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
    ("changes", "says"),
    [
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": math.nan}, "factor is nan"),
        ({"low_freq_factor": 4.0}, "low_freq_factor 4.0 must be above 0 and below"),
        ({"low_freq_factor": 0.0}, "low_freq_factor 0.0"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
    ],
)
def test_scaling_that_cannot_be_computed_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        Llama3Scaling(**changes)


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


def test_an_absent_or_null_key_means_what_transformers_means():
    empty = TransformersConfig()
    assert ours_of({"model_type": "llama"}, SHARED) == {name: getattr(empty, name) for name in SHARED}
    nulls = dict.fromkeys((*SHARED, "rope_theta", "rope_scaling", "rope_parameters"))
    assert config_from_dict({"model_type": "llama"} | nulls) == config_from_dict({"model_type": "llama"})
    assert config_from_dict({"model_type": "llama"}).rope_theta == empty.rope_parameters["rope_theta"]


def test_an_absent_key_of_qwen3_means_what_transformers_means_there():
    empty = Qwen3Config()
    assert ours_of({"model_type": "qwen3"}, SHARED) == {name: getattr(empty, name) for name in SHARED}


def test_a_null_number_of_kv_heads_means_mha_in_every_family():
    for family in ("llama", "qwen3"):
        raw = {"model_type": family, "num_attention_heads": 8, "num_key_value_heads": None}
        assert config_from_dict(raw).num_key_value_heads == 8


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


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "su", "mrope", "LLAMA3", "<b>x</b>"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_scaling_that_we_do_not_compute_is_refused_by_name(kind, spelling, name):
    with pytest.raises(ConfigError, match=re.escape(repr(kind))):
        config_from_dict({"model_type": "llama", name: {spelling: kind, "factor": 4.0}})


@pytest.mark.parametrize("missing", OLD)
def test_llama3_scaling_with_a_missing_number_is_refused_by_its_name(missing):
    for value in ({}, {missing: None}, {missing: "8"}):
        rope = {name: number for name, number in LLAMA3.items() if name != missing} | value
        with pytest.raises(ConfigError, match=f"lacks {missing}"):
            config_from_dict({"model_type": "llama", "rope_scaling": rope})


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma3", "mixtral", "granite", "Llama", "", None, 3])
def test_another_family_is_refused_by_name(family):
    with pytest.raises(ConfigError, match=f"model_type {re.escape(repr(family))}"):
        config_from_dict(theirs() | {"model_type": family})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'"),
        ({"sliding_window": 3}, "sliding_window to 3"),
        ({"sliding_window": 3, "use_sliding_window": True}, "sliding_window to 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor to 0.5"),
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
    [{"sliding_window": None}, {"sliding_window": 0}, {"sliding_window": 4096, "use_sliding_window": False}],
)
def test_a_window_that_is_off_is_none(changes):
    assert config_from_dict(theirs() | changes) == config_from_dict(theirs())


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
    "content", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"model_type": 1}']
)
def test_a_damaged_config_file_is_a_sentence(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError):
        read_config(tmp_path / "config.json")


def test_a_config_file_that_is_not_there_is_a_sentence_without_its_place(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_config(tmp_path / "config.json")
