"""The real model against figures that transformers measured on the same file (tests/reference)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from llama_core import KVCache, load, run
from llama_core.checkpoints.gguf_file import gguf_checkpoint

REFERENCE = json.loads((Path(__file__).parent / "reference" / "smollm2-135m-q4_1.json").read_text(encoding="utf-8"))
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE = Path(__file__).parent.parent / "models" / NAME


@pytest.fixture(scope="module")
def model():
    return load(NAME)  # make model fetches it; without it this fails, and should


@pytest.fixture(scope="module")
def trace(model):
    return run(model, REFERENCE["prompt"])


def test_the_prompt_becomes_the_reference_ids(trace):
    assert list(trace.ids) == REFERENCE["ids"]
    assert [token.text for token in trace.tokens] == ["The", "·capital", "·of", "·France", "·is"]


def test_the_ten_best_next_tokens_have_the_reference_logits_and_probabilities(trace, model):
    logits = trace["logits"][0, -1]
    for (token, probability), expected in zip(trace.next_tokens(), REFERENCE["top10"], strict=True):
        assert token == expected["id"]
        assert model.tokenizer.decode([token]) == expected["token"]
        assert probability == pytest.approx(expected["prob"], abs=5e-5)
        assert logits[token] == pytest.approx(expected["logit"], abs=5e-4)


def test_the_residual_stream_has_the_reference_size_after_every_layer_and_at_every_position(trace):
    assert trace.stat("embed").rms == pytest.approx(REFERENCE["embed_rms"], rel=1e-5)
    for layer, (size, per_position) in enumerate(
        zip(REFERENCE["residual_rms_after_layer"], REFERENCE["residual_rms_after_layer_per_position"], strict=True)
    ):
        assert trace.stat(f"{layer}.resid_out").rms == pytest.approx(size, rel=5e-5), layer
        stream = trace[f"{layer}.resid_out"][0].astype(np.float64)
        assert np.sqrt((stream**2).mean(-1)) == pytest.approx(np.array(per_position), rel=2e-4), layer
    assert trace.stat("final_norm").rms == pytest.approx(REFERENCE["final_norm_rms"], rel=5e-5)


def test_the_last_logits_have_the_reference_spread(trace):
    logits = trace["logits"][0, -1].astype(np.float64)
    found = (logits.mean(), logits.std(), logits.min(), logits.max())
    assert found == pytest.approx(tuple(REFERENCE["logits_mean_std_min_max_last"]), abs=5e-4)


def test_a_long_text_has_the_reference_loss(model):
    trace = run(model, REFERENCE["text_ids"])
    logits = trace["logits"][0, :-1].astype(np.float64)
    top = logits.max(-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    chosen = logits[np.arange(len(logits)), REFERENCE["text_ids"][1:]]
    assert (log_sum - chosen).mean() == pytest.approx(REFERENCE["text_loss"], abs=5e-5)


def test_greedy_continuation_with_a_cache_gives_the_reference_tokens(model):
    cache = KVCache(model.config)
    ids, new = list(REFERENCE["ids"]), list(REFERENCE["ids"])
    for _ in range(24):
        best = run(model, new, cache=cache).next_tokens(top=1)[0][0]
        ids.append(best)
        new = [best]
    assert ids == REFERENCE["greedy_24_ids"]


@pytest.fixture(scope="module")
def checkpoint():
    found = gguf_checkpoint(FILE)
    return found, dict(found.tensors)


def test_the_file_is_labelled_and_sized_as_published(checkpoint):
    found, tensors = checkpoint
    assert found.source == "SmolLM2-135M-Instruct (GGUF, Q4_1)"
    assert found.stored_dtype == "Q4_1, Q8_0, F32"
    assert found.notes == ()
    assert found.config.parameter_count() == 134_515_008 == sum(tensor.numel() for tensor in tensors.values())
    assert found.config.tie_word_embeddings
    assert (found.config.rms_norm_eps, found.config.rope_theta) == (1e-5, 100000.0)


def test_the_tensors_in_transformers_give_the_reference_logits(checkpoint):
    found, tensors = checkpoint
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    model = LlamaForCausalLM(LlamaConfig(**{name: getattr(found.config, name) for name in names})).eval()
    model.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    with torch.no_grad():
        logits = model(torch.tensor([REFERENCE["ids"]])).logits[0, -1]
    best = logits.topk(10)
    assert best.indices.tolist() == [entry["id"] for entry in REFERENCE["top10"]]
    assert best.values.tolist() == pytest.approx([entry["logit"] for entry in REFERENCE["top10"]], abs=5e-4)
