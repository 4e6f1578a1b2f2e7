"""The lens and the loss against transformers, torch and the model's own logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rigs import PROMPT

from llama_core import load, run
from llama_core.lens import lens, lens_layer, lens_logits, loss

RIGS = ["gqa", "biased", "tied", "qwen3", "neighbours", "small std"]


@pytest.fixture(scope="module")
def real():
    return load("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.parametrize("ours", RIGS, indirect=True)
@pytest.mark.parametrize("ids", [[5], PROMPT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_the_last_layer_it_is_the_logits_bit_for_bit(ours, ids, dtype):
    ours = ours.to(dtype)
    trace = run(ours, ids)
    assert np.array_equal(lens_logits(trace, ours, 1), trace["logits"][0])


@pytest.mark.parametrize("prompt", ["The", "The capital of France is", "The harbour wakes slowly in winter. " * 12])
def test_in_the_real_model_too(real, prompt):
    trace = run(real, prompt)
    assert np.array_equal(lens_logits(trace, real, 29), trace["logits"][0])
    last = lens_layer(trace, real, 29)
    assert [int(i) for i in last.ids[-1]] == [i for i, _ in trace.next_tokens(top=5)]
    assert last.shares[-1] == pytest.approx([p for _, p in trace.next_tokens(top=5)], rel=1e-5)
    assert (last.answer_rank == 1).all()


@pytest.mark.parametrize("pair", ["gqa", "qwen3", "biased"], indirect=True)
def test_every_layer_says_what_transformers_says_there(pair):
    theirs, ours = pair
    with torch.no_grad():
        states = theirs(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
        expected = [theirs.lm_head(theirs.model.norm(state))[0] for state in states[:-1]]  # the last one is normed
    trace = run(ours, PROMPT)
    for layer, logits in zip([None, 0], expected, strict=True):
        assert np.abs(lens_logits(trace, ours, layer) - logits.numpy()).max() < 2e-5


def test_a_reading_is_what_torch_reads_from_the_same_logits(ours):
    trace = run(ours, PROMPT)
    readings = list(lens(trace, ours, top=4))
    assert [one.layer for one in readings] == [None, 0, 1]
    answers = trace["logits"][0].argmax(-1)
    for one in readings:
        chances = torch.tensor(lens_logits(trace, ours, one.layer)).double().softmax(-1)
        best = chances.topk(4)
        assert one.ids.tolist() == best.indices.tolist()
        assert one.shares == pytest.approx(best.values.numpy(), rel=1e-5)
        assert one.entropy == pytest.approx(torch.distributions.Categorical(chances).entropy().numpy(), abs=1e-5)
        order = chances.argsort(descending=True).tolist()
        assert one.answer_rank.tolist() == [row.index(a) + 1 for row, a in zip(order, answers, strict=True)]
        assert one.came_rank.tolist() == [row.index(a) + 1 for row, a in zip(order, PROMPT[1:], strict=False)]
        assert one.answer_share == pytest.approx(chances[range(5), answers].numpy(), rel=1e-5)
        assert one.came_share == pytest.approx(chances[range(4), PROMPT[1:]].numpy(), rel=1e-5)


def test_one_layer_is_computed_at_a_time(ours):
    calls = []
    ours.lm_head.register_forward_hook(lambda *_: calls.append(1))
    trace = run(ours, PROMPT)
    readings = lens(trace, ours)
    next(readings)
    assert len(calls) == 2  # the run's own, and the embedding's
    assert len(list(readings)) == 2
    assert len(calls) == 4


def test_more_tokens_than_the_vocabulary_has_are_all_of_them(ours):
    assert lens_layer(run(ours, PROMPT), ours, 0, top=1000).ids.shape == (5, 64)


# --- loss ---


@pytest.mark.parametrize("pair", ["gqa", "qwen3", "small std"], indirect=True)
def test_the_loss_is_the_one_of_transformers(pair):
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        theirs = pair.theirs(ids, labels=ids)
    found = loss(run(pair.ours, PROMPT))
    each = torch.nn.functional.cross_entropy(theirs.logits[0, :-1], ids[0, 1:], reduction="none")
    assert found.mean == pytest.approx(float(theirs.loss), abs=2e-5)
    assert found.each == pytest.approx(each.numpy(), abs=2e-5)
    assert found.even == pytest.approx(4.158883, abs=1e-6)  # ln 64


def test_an_untrained_model_starts_near_the_loss_of_knowing_nothing():
    found = loss(run(load("light-0.85M"), list(range(300))))
    assert found.even == pytest.approx(math.log(1000))
    assert found.mean == pytest.approx(found.even, abs=0.1)


def test_huge_logits_do_not_overflow(ours):
    ours.lm_head.weight.data *= 1000
    found = loss(run(ours, PROMPT))
    assert np.isfinite(found.each).all()
    assert found.mean > 100


def test_one_token_has_no_loss(ours):
    found = loss(run(ours, [5]))
    assert len(found.each) == 0
    assert math.isnan(found.mean)
