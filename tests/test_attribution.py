"""The parts of a logit: they sum to it, and each is what it is by another way of computing."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import load, run
from llama_core.attribution import attribution
from llama_core.errors import NotComputedError
from llama_core.positions import apart, keys_values, rows_at
from llama_core.steps import At

RIGS = ["gqa", "mha", "tied", "biased", "qwen3", "neighbours", "wide heads", "gelu"]


@pytest.mark.parametrize("ours", RIGS, indirect=True)
def test_the_parts_sum_to_the_logit_and_the_heads_to_their_layer(ours):
    trace = run(ours, PROMPT)
    for position, token in ((0, 3), (3, 60), (4, 7)):
        found = attribution(trace, ours, position, token)
        assert found.logit == trace["logits"][0, position, token]
        assert found.total == pytest.approx(found.logit, abs=2e-5)
        assert found.difference == found.logit - found.total
        assert found.embedding + found.attention.sum() + found.mlp.sum() == pytest.approx(found.logit, abs=2e-5)
        assert found.heads.sum(axis=1) + found.bias == pytest.approx(found.attention, abs=2e-5)
        assert (found.bias != 0).all() == ours.config.out_bias


@pytest.mark.parametrize("ours", ["gqa", "biased"], indirect=True)
def test_each_part_is_what_the_logit_loses_without_it_under_a_frozen_norm(ours):
    trace = run(ours, PROMPT)
    found = attribution(trace, ours, 2, 11)
    norm, head = ours.model.norm.weight.double(), ours.lm_head.weight[11].double()
    stream = torch.tensor(trace["1.resid_out"][0, 2]).double()
    scale = torch.rsqrt(stream.square().mean() + ours.config.rms_norm_eps)

    def logit(x: torch.Tensor) -> float:
        return float((x * scale * norm) @ head)

    def lost(part: np.ndarray | torch.Tensor) -> float:
        return logit(stream) - logit(stream - torch.as_tensor(part).double())

    assert found.scale == pytest.approx(float(scale), rel=1e-12)
    assert found.embedding == pytest.approx(lost(np.array(trace["embed"][0, 2])), abs=1e-9)
    for layer in (0, 1):
        assert found.attention[layer] == pytest.approx(lost(np.array(trace[f"{layer}.attn_out"][0, 2])), abs=1e-9)
        assert found.mlp[layer] == pytest.approx(lost(np.array(trace[f"{layer}.mlp_out"][0, 2])), abs=1e-9)
        o_proj = ours.model.layers[layer].self_attn.o_proj
        for head_number in range(4):
            alone = torch.zeros(4, 8)
            alone[head_number] = torch.tensor(trace[f"{layer}.head_out"][0, 2, head_number])
            written = alone.flatten() @ o_proj.weight.T
            assert found.heads[layer, head_number] == pytest.approx(lost(written), abs=1e-5)


def test_a_lead_is_the_difference_of_two_logits_part_by_part(ours):
    trace = run(ours, PROMPT)
    one, other, lead = (attribution(trace, ours, 4, *ids) for ids in ((7,), (9,), (7, 9)))
    assert lead.logit == pytest.approx(one.logit - other.logit)
    assert lead.total == pytest.approx(lead.logit, abs=2e-5)
    for name in ("embedding", "attention", "mlp", "heads"):
        assert getattr(lead, name) == pytest.approx(getattr(one, name) - getattr(other, name), abs=1e-12)


def test_in_bfloat16_the_difference_shows_the_rounding_of_the_pass(ours):
    trace = run(ours.to(torch.bfloat16), PROMPT)
    found = attribution(trace, ours, 4, 7)
    assert 1e-5 < abs(found.difference) < 0.2


def test_the_real_model():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    trace = run(model, "The capital of France is")
    (best, _), *_ = trace.next_tokens(top=1)
    found = attribution(trace, model, -1, best)
    assert found.heads.shape == (30, 9)
    assert abs(found.difference) < 5e-4
    assert found.heads.sum(axis=1) == pytest.approx(found.attention, abs=5e-4)


def test_a_run_that_stopped_has_no_logit(ours):
    with pytest.raises(NotComputedError):
        attribution(run(ours, PROMPT, until="0.gate"), ours, 4, 7)


# --- of a long run, position by position ---


def rows_and_run(model, ids, position, **how):
    """Each layer's steps at one position, made for it alone, beside what a run that holds everything has there."""
    bare, whole = run(model, ids, hold=0, **how), run(model, ids, **how)
    assert apart(bare)
    assert not apart(whole)
    for layer, row in enumerate(rows_at(bare, model, keys_values(bare), position)):
        for step, made in row.items():
            held = whole[At(layer, step)][0]
            if step.causal:
                held = held[:, position, : position + 1]
            else:
                held = held[: position + 1] if "T" not in step.axes else held[position]
            yield step, made, held


@pytest.mark.parametrize("ours", RIGS, indirect=True)
@pytest.mark.parametrize("position", [0, 2, 4])
def test_a_row_that_is_made_alone_is_the_runs_up_to_rounding(ours, position):
    found = list(rows_and_run(ours, PROMPT, position))
    assert {step for step, *_ in found} == {step for step in ours.config.walk.steps if step.scope == "layer"}
    for step, made, held in found:
        np.testing.assert_allclose(made, held, rtol=1e-5, atol=1e-5, err_msg=step.key)


@pytest.mark.parametrize("name", ["mistral window", "qwen2 window", "llama dynamic", "llama yarn"])
def test_a_row_sees_what_its_query_saw_and_is_turned_as_it_was(make, name):
    ids = [(7 * i * i + 3 * i + 5) % 64 for i in range(32)]
    for step, made, held in rows_and_run(make.decoder(more_rig(name)), ids, 20):
        np.testing.assert_allclose(made, held, rtol=1e-5, atol=1e-5, err_msg=step.key)


def test_of_an_edited_layer_the_runs_own_row_is_taken(ours):
    edits = {"0.weights": "zero h1", "1.mlp_out": "scale 2 t3"}
    for _, made, held in rows_and_run(ours, PROMPT, 3, edits=edits):
        assert np.array_equal(made, held)


@pytest.mark.parametrize("ours", RIGS, indirect=True)
def test_the_parts_of_a_long_run_are_those_of_one_that_is_held(ours):
    bare = run(ours, PROMPT, hold=0)
    seen = keys_values(bare)
    for position, token, against in ((0, 3, None), (3, 60, 7), (-1, 7, None)):
        made = attribution(bare, ours, position, token, against, seen)
        whole = attribution(run(ours, PROMPT), ours, position, token, against)
        for field in fields(made):
            assert getattr(made, field.name) == pytest.approx(getattr(whole, field.name), abs=2e-5), field.name
