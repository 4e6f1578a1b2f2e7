"""The parts of a logit: they sum to it, and each is what it is by another way of computing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT

from llama_core import load, run
from llama_core.attribution import attribution
from llama_core.errors import NotComputedError

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
