"""Norms and the growth of the stream, against torch and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rigs import PROMPT
from torch.nn import functional

from llama_core import load, run
from llama_core.config import PRESETS
from llama_core.errors import AddressError
from llama_core.norms import against_bfloat16, against_layer_norm, layer_growth, read_norm, rms, stream_growth
from llama_core.steps import At

NORMS = [
    ("gqa", "0.attn_norm"),
    ("gqa", "1.mlp_norm"),
    ("gqa", "final_norm"),
    ("qwen3", "1.q_norm"),
    ("qwen3", "0.k_norm"),
]


@pytest.mark.parametrize(("ours", "at"), NORMS, indirect=["ours"])
def test_what_is_read_times_scale_and_weight_is_the_step(ours, at):
    trace = run(ours, PROMPT)
    found = read_norm(trace, ours, At.parse(at))
    torchs = torch.nn.functional.rms_norm(torch.tensor(found.before), [found.before.shape[-1]], eps=found.eps)
    assert np.array_equal(found.before, trace[found.source][0])
    assert found.scaled == pytest.approx(torchs.numpy(), abs=1e-5)
    assert found.scaled * found.weight == pytest.approx(found.after, abs=1e-5)
    assert np.array_equal(found.after, trace[at][0])
    assert found.scale == pytest.approx(1 / np.sqrt(found.mean_square + 1e-6))
    assert found.weight.min() >= 0.5 < 1 < found.weight.max()


def reading_of(row: list[float], eps: float = 1e-6):
    """The final norm of a model whose stream is `row`, everything else being 0."""
    config = PRESETS["nano"].with_(hidden_size=len(row), num_attention_heads=1, num_hidden_layers=1, rms_norm_eps=eps)
    model = load(config)
    for parameter in model.parameters():
        parameter.data.zero_()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1)
    model.model.embed_tokens.weight.data[3] = torch.tensor(row)
    return read_norm(run(model, [3]), model, At.parse("final_norm"))


@pytest.mark.parametrize(("eps", "size"), [(1e-5, 0.301511), (1e-6, 0.707107)])
def test_a_small_vector_is_ruled_by_eps(eps, size):
    found = reading_of([0.001] * 8, eps)
    assert found.after[0] == pytest.approx([size] * 8, abs=1e-6)
    assert found.eps_share[0] == pytest.approx(eps / (1e-6 + eps))


def test_layer_norm_is_that_of_torch(ours):
    found = read_norm(run(ours, PROMPT), ours, At.parse("1.attn_norm"))
    compared = against_layer_norm(found)
    x, w = torch.tensor(found.before).double(), torch.tensor(found.weight).double()
    theirs = functional.layer_norm(x, [32], weight=w, eps=found.eps)
    assert compared.other == pytest.approx(theirs.numpy(), abs=1e-10)
    assert compared.ours == pytest.approx(found.after, abs=1e-5)
    assert compared.cosine == pytest.approx(functional.cosine_similarity(theirs, torch.tensor(compared.ours)).numpy())
    assert compared.largest == pytest.approx(np.abs(theirs.numpy() - compared.ours).max(axis=1))
    assert (compared.largest > 1e-3).all()


def test_where_the_mean_is_0_both_norms_agree():
    assert against_layer_norm(reading_of([1.0, -1, 2, -2])).largest[0] < 1e-12
    shifted = against_layer_norm(reading_of([11.0, 9, 12, 8]))
    assert shifted.ours[0] == pytest.approx(np.array([11, 9, 12, 8]) / math.sqrt(410 / 4), abs=1e-6)
    assert shifted.other[0] == pytest.approx(np.array([1, -1, 2, -2]) / math.sqrt(10 / 4), abs=1e-6)


def test_in_bfloat16_the_scale_keeps_eight_bits():
    found = against_bfloat16(reading_of([1.0078125] * 4, eps=1e-9))  # 1 + 2^-7
    # The square 1.01568604 becomes 1.015625, and its root's inverse 0.9922779 becomes 0.9921875.
    assert found.other[0] == pytest.approx([1.0078125 * 0.9921875] * 4, abs=1e-12)
    assert found.ours[0] == pytest.approx([1] * 4, abs=1e-6)
    assert found.largest[0] == pytest.approx(1 - 1.0078125 * 0.9921875, abs=1e-6)


def test_what_is_no_norm_is_refused(ours):
    trace = run(ours, PROMPT)
    for at in ("0.q", "embed", "0.resid_mid"):
        with pytest.raises(AddressError, match="is no norm"):
            read_norm(trace, ours, At.parse(at))


# --- growth ---


@pytest.mark.parametrize("ours", ["gqa", "biased"], indirect=True)
def test_sizes_and_directions_are_those_of_torch(ours):
    trace = run(ours, PROMPT)
    growth = stream_growth(trace)
    assert len(growth) == 2
    for layer, found in enumerate(growth):
        x, o, m, y, z = (
            torch.tensor(trace[f"{layer}.{key}"][0]).double()
            for key in ("resid_in", "attn_out", "resid_mid", "mlp_out", "resid_out")
        )
        for size, tensor in zip(
            (found.before, found.attention, found.middle, found.mlp, found.after), (x, o, m, y, z), strict=True
        ):
            assert size == pytest.approx((tensor.norm(dim=1) / math.sqrt(32)).numpy(), rel=1e-12)
        assert found.attention_cosine == pytest.approx(functional.cosine_similarity(o, x).numpy(), rel=1e-9)
        assert found.mlp_cosine == pytest.approx(functional.cosine_similarity(y, m).numpy(), rel=1e-9)


def test_a_size_is_the_statistic_of_the_trace(ours):
    trace = run(ours, [5])
    assert rms(trace["1.resid_out"][0])[0] == pytest.approx(trace.stat("1.resid_out").rms, rel=1e-6)
    assert math.isnan(layer_growth(trace, 0).first_ratio)


def test_the_first_token_is_held_against_the_median_of_the_others(ours):
    trace = run(ours, [5, 9, 3, 7])  # three others: with the first one counted, the median would be another number
    sizes = np.sqrt((trace["0.resid_out"][0].astype(np.float64) ** 2).mean(axis=1))
    assert layer_growth(trace, 0).first_ratio == pytest.approx(sizes[0] / sorted(sizes[1:])[1])


def test_a_run_that_stopped_shows_the_layers_it_finished(ours):
    assert len(stream_growth(run(ours, PROMPT, until="1.mlp_out"))) == 1


def test_an_addition_of_nothing_has_no_direction(ours):
    ours.model.layers[0].self_attn.o_proj.weight.data.zero_()
    found = layer_growth(run(ours, PROMPT), 0)
    assert np.isnan(found.attention_cosine).all()
    assert (found.attention == 0).all()


def test_the_real_model_has_its_first_token_outlier_from_layer_11():
    growth = stream_growth(run(load("SmolLM2-135M-Instruct.Q4_1.gguf"), "The capital of France is"))
    assert growth[10].first_ratio < 10 < 100 < growth[11].first_ratio
    assert growth[11].after[0] == pytest.approx(946, rel=0.01)
