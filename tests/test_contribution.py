"""What each source token contributes, against sums that are known and vectors made one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT

from llama_core import KVCache, load, run
from llama_core.contribution import contribution

QUERY = 3


def vectors(trace, model, layer: int, query: int) -> np.ndarray:
    """What o_proj makes of one head and one source alone. [Hq S D], by calling the module for each."""
    weights, values = trace[f"{layer}.weights"][0], trace[f"{layer}.v_shared"][0]
    Hq, S = weights.shape[0], weights.shape[2]
    o_proj = model.model.layers[layer].self_attn.o_proj
    found = []
    for h in range(Hq):
        for s in range(S):
            alone = torch.zeros(Hq, values.shape[-1])
            alone[h] = torch.tensor(weights[h, query, s] * values[s, h])
            bias = 0 if o_proj.bias is None else o_proj.bias
            found.append((o_proj(alone.flatten()) - bias).numpy())
    return np.array(found).reshape(Hq, S, -1)


@pytest.mark.parametrize("ours", ["gqa", "biased", "qwen3", "wide heads", "mqa"], indirect=True)
def test_lengths_are_those_of_the_vectors_and_these_sum_to_attn_out(ours):
    trace = run(ours, PROMPT)
    found, parts = contribution(trace, ours, 1, QUERY), vectors(trace, ours, 1, QUERY)
    seen = slice(0, QUERY + 1)
    assert found.heads[:, seen] == pytest.approx(np.linalg.norm(parts, axis=-1)[:, seen], abs=2e-5)
    assert found.tokens[seen] == pytest.approx(np.linalg.norm(parts.sum(axis=0), axis=-1)[seen], abs=2e-5)
    assert found.written == pytest.approx(np.linalg.norm(parts.sum(axis=1), axis=-1), abs=2e-5)
    bias = ours.model.layers[1].self_attn.o_proj.bias
    out = trace["1.attn_out"][0, QUERY] - (0 if bias is None else bias.numpy())
    assert parts.sum(axis=(0, 1)) == pytest.approx(out, abs=2e-5)
    assert np.array_equal(found.weights[:, seen], trace["1.weights"][0, :, QUERY, seen])


def test_what_the_query_cannot_see_is_blank(ours):
    found = contribution(run(ours, PROMPT), ours, 0, 1)
    for array in (found.weights, found.heads, found.tokens[None]):
        assert np.isnan(array[:, 2:]).all()
        assert np.isfinite(array[:, :2]).all()


def test_cached_sources_count(ours):
    whole = contribution(run(ours, PROMPT), ours, 1, 4)
    cache = KVCache(ours.config)
    run(ours, PROMPT[:4], cache=cache)
    last = contribution(run(ours, PROMPT[4:], cache=cache), ours, 1, 0)
    assert last.tokens == pytest.approx(whole.tokens, abs=2e-5)
    assert last.heads == pytest.approx(whole.heads, abs=2e-5)


def test_in_the_real_model_the_first_token_gets_weight_but_adds_little():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    trace = run(model, "The capital of France is")
    shares = []
    for layer in range(12, 28):
        found = contribution(trace, model, layer, 4)
        shares.append((found.weights[:, 0].mean(), found.heads[:, 0].sum() / found.heads.sum()))
    weight, added = np.mean(shares, axis=0)
    assert weight > 0.5
    assert added < 0.75 * weight
