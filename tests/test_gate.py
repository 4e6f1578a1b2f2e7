"""The gate: known values of the curves, and what neurons write against the layer's own output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT

from llama_core import load, run
from llama_core.gate import compare_curves, curves, loudest, shut, through_head, written


def test_the_curves_have_their_known_values():
    found = {name: values.tolist() for name, values in curves(np.array([1.0, -1.0, 0.0])).items()}
    assert found["SiLU"] == pytest.approx([0.731059, -0.268941, 0], abs=1e-6)
    assert found["ReLU"] == [1, 0, 0]
    assert found["GELU"] == pytest.approx([0.841345, -0.158655, 0], abs=1e-6)
    assert found["quick GELU"] == pytest.approx([0.845796, -0.154204, 0], abs=1e-6)


@pytest.mark.parametrize(("ours", "name"), [("gqa", "SiLU"), ("relu", "ReLU"), ("gelu", "GELU")], indirect=["ours"])
def test_the_models_own_curve_is_the_one_that_changes_nothing(ours, name):
    trace = run(ours, PROMPT)
    for position in (None, 2):
        found = {change.name: change for change in compare_curves(trace, 1, position)}
        assert found[name].largest < 1e-5
        assert found[name].cosine == pytest.approx(1, abs=1e-9)
        assert min(change.largest for other, change in found.items() if other != name) > 1e-3


def test_a_position_alone_is_compared_alone(ours):
    trace = run(ours, PROMPT)
    gate, up, gated = (trace[f"0.{key}"][0, 2].astype(np.float64) for key in ("gate", "up", "gated"))
    product = np.maximum(gate, 0) * up
    found = next(change for change in compare_curves(trace, 0, 2) if change.name == "ReLU")
    assert found.largest == pytest.approx(np.abs(product - gated).max())
    assert found.cosine == pytest.approx(product @ gated / np.linalg.norm(product) / np.linalg.norm(gated))


@pytest.mark.parametrize("ours", ["gqa", "relu"], indirect=True)
def test_shares_of_shut_neurons_are_counted_cell_by_cell(ours):
    trace = run(ours, PROMPT)
    found = shut(trace, 1)
    gate, act = trace["1.gate"][0], trace["1.act"][0]
    top = max(abs(float(a)) for a in act.ravel())
    quiet = [[abs(float(a)) <= 0.01 * top for a in row] for row in act]
    assert found.limit == pytest.approx(0.01 * top)
    assert found.quiet == pytest.approx([sum(row) / 48 for row in quiet])
    assert found.negative == pytest.approx([sum(g < 0 for g in row) / 48 for row in gate])
    assert found.quiet_share == pytest.approx(np.mean(quiet))
    assert found.negative_share == pytest.approx((gate < 0).mean())


@pytest.mark.parametrize("ours", ["gqa", "biased", "tied"], indirect=True)
def test_what_all_neurons_write_is_what_the_mlp_writes(ours):
    trace = run(ours, PROMPT)
    whole = np.zeros(64)
    for effect in written(ours, 1, loudest(trace, 1, 3, n=48), tokens=64):
        for token, value in effect.promoted:
            whole[token] += value
    mlp = ours.model.layers[1].mlp
    out = torch.tensor(trace["1.mlp_out"][0, 3]) - (0 if mlp.down_proj.bias is None else mlp.down_proj.bias)
    assert whole == pytest.approx((ours.lm_head.weight @ (out * ours.model.norm.weight)).numpy(), abs=1e-4)


def test_a_neuron_is_told_with_its_numbers_and_the_largest_comes_first(ours):
    trace = run(ours, PROMPT)
    gated = trace["0.gated"][0, 4]
    found = loudest(trace, 0, 4, n=3)
    assert [neuron.index for neuron in found] == np.argsort(-np.abs(gated))[:3].tolist()
    first = found[0]
    for key in ("gate", "act", "up", "gated"):
        assert getattr(first, key) == trace[f"0.{key}"][0, 4, first.index]
    column = ours.model.layers[0].mlp.down_proj.weight[:, first.index].numpy() * gated[first.index]
    effect = (column * ours.model.norm.weight.numpy()) @ ours.lm_head.weight.numpy().T
    told = written(ours, 0, found, tokens=2)[0]
    assert told.size == pytest.approx(np.linalg.norm(column), rel=1e-5)
    assert [token for token, _ in told.promoted] == np.argsort(-effect)[:2].tolist()
    assert [token for token, _ in told.demoted] == np.argsort(effect)[:2].tolist()
    assert [value for _, value in told.demoted] == pytest.approx(np.sort(effect)[:2].tolist(), rel=1e-4)


def test_a_head_read_in_blocks_is_the_head(ours):
    x = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    for model in (ours, ours.to(torch.bfloat16)):
        whole = (torch.tensor(x) * model.model.norm.weight.float()) @ model.lm_head.weight.float().T
        found = through_head(model, x, block=7)
        assert found.dtype == np.float32
        assert found == pytest.approx(whole.numpy(), abs=1e-5)


def test_in_the_real_model_most_gates_are_below_zero():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    trace = run(model, "The capital of France is")
    shares = [shut(trace, layer) for layer in range(30)]
    assert np.mean([one.negative_share for one in shares]) > 0.5
    assert len(written(model, 29, loudest(trace, 29, -1))) == 8
