"""The parts of the decoder, each against numbers worked out by hand, and the KV cache against the full pass."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import KVCache, run
from llama_core.config import ACTIVATION_NAMES, PRESETS, LlamaConfig
from llama_core.errors import RunError
from llama_core.model import ACTIVATIONS, MLP, Llama, RMSNorm, share_heads, visible_cells
from llama_core.trace import SHARED, visible_keys

BOUND = 2e-5
WIDE = LlamaConfig(
    vocab_size=16,
    hidden_size=32,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=8,
    num_key_value_heads=2,
    attention_bias=True,
)


def drawn(config: LlamaConfig, seed: int = 0) -> Llama:
    torch.manual_seed(seed)
    return Llama(config).requires_grad_(False).eval()


# --- grouped-query attention ---


def test_heads_are_shared_in_groups_of_neighbours_not_in_turn():
    x = torch.arange(2.0)[None, None, :, None].expand(1, 3, 2, 4)
    assert share_heads(x, 4)[0, 0, :, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert share_heads(x, 4).shape == (1, 3, 8, 4)
    assert torch.equal(share_heads(x, 1), x)


def test_query_heads_0_to_3_carry_key_value_head_0_and_4_to_7_carry_head_1():
    model = drawn(WIDE)
    values = model.model.layers[0].self_attn.v_proj
    values.weight.zero_()
    values.bias.copy_(torch.tensor([0.0] * 4 + [1.0] * 4))
    out = run(model, [1, 2, 3, 4, 5])["0.head_out"]
    assert not out[:, :, :4].any()
    np.testing.assert_allclose(out[:, :, 4:], 1.0, rtol=1e-6)


def test_two_query_heads_with_the_same_weights_in_one_group_have_the_same_map():
    model = drawn(WIDE)
    queries, Dh = model.model.layers[0].self_attn.q_proj, WIDE.head_dim
    for head in (1, 4):  # head 1 shares key head 0 with head 0; head 4 does not
        queries.weight[head * Dh : (head + 1) * Dh] = queries.weight[:Dh]
        queries.bias[head * Dh : (head + 1) * Dh] = queries.bias[:Dh]
    weights = run(model, [1, 2, 3, 4, 5])["0.weights"][0]
    assert np.array_equal(weights[0], weights[1])
    assert not np.allclose(weights[0], weights[4])


# --- norm ---


@pytest.mark.parametrize(("eps", "right"), [(1e-5, 0.301511), (1e-6, 0.707107)])
def test_rms_norm_takes_the_eps_it_is_given(eps, right):
    out = RMSNorm(8, eps)(torch.full((1, 1, 8), 0.001))
    assert out.tolist() == [[pytest.approx([right] * 8, abs=1e-6)]]


def test_rms_norm_subtracts_no_mean_and_scales_each_channel():
    x = np.array([3.0, 4.0, 12.0, -84.0])
    norm = RMSNorm(4, 1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
        found = norm(torch.tensor(x).float())
    right = x / math.sqrt((x**2).mean()) * [1.0, 2.0, 0.5, -1.0]
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-6)


def test_rms_norm_measures_in_float32_whatever_the_input():
    x = torch.cat((torch.tensor([256.0]), torch.ones(4095)))[None].to(torch.float16)
    out = RMSNorm(4096, 1e-6).half()(x * 100)  # 25600² is beyond float16
    assert out.dtype == torch.float16
    assert out[0, 1].item() == pytest.approx(1 / math.sqrt((256**2 + 4095) / 4096), rel=2e-3)


# --- MLP ---


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x: float) -> float:
    return x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


CURVES = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_each_curve_is_its_formula(name):
    points = [-8.0, -1.2785, -1.0, -0.1, 0.0, 0.5, 1.0, 3.0]
    found = ACTIVATIONS[name](torch.tensor(points)).tolist()
    assert found == pytest.approx([CURVES[name](x) for x in points], abs=1e-6)


def test_the_names_in_the_config_are_the_curves_we_have():
    assert tuple(ACTIVATIONS) == ACTIVATION_NAMES == tuple(CURVES)


@pytest.mark.parametrize(("name", "at_one", "at_minus_one"), [
    ("silu", 0.731059, -0.268941),
    ("gelu", 0.841345, -0.158655),
])  # fmt: skip
def test_published_values_of_the_curves(name, at_one, at_minus_one):
    assert ACTIVATIONS[name](torch.tensor([1.0, -1.0])).tolist() == pytest.approx([at_one, at_minus_one], abs=1e-6)


def test_silu_reaches_down_to_minus_0_278():
    assert ACTIVATIONS["silu"](torch.linspace(-10, 10, 100001)).min().item() == pytest.approx(-0.278465, abs=1e-6)


def test_the_mlp_is_down_of_act_of_gate_times_up():
    mlp = MLP(PRESETS["nano"].with_(mlp_bias=True), 0).requires_grad_(False)
    x = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(0))
    w = {name: p.double().numpy() for name, p in mlp.named_parameters()}
    gate = x.double().numpy() @ w["gate_proj.weight"].T + w["gate_proj.bias"]
    up = x.double().numpy() @ w["up_proj.weight"].T + w["up_proj.bias"]
    right = (gate / (1 + np.exp(-gate)) * up) @ w["down_proj.weight"].T + w["down_proj.bias"]
    np.testing.assert_allclose(mlp(x).numpy(), right, atol=1e-6)


# --- the mask ---


@pytest.mark.parametrize(("T", "past"), [(1, 0), (3, 0), (1, 4), (2, 3)])
def test_a_query_sees_itself_and_all_before_it(T, past):
    seen = visible_cells(T, past + T).tolist()
    assert seen == [[key <= past + query for key in range(past + T)] for query in range(T)]


@pytest.mark.parametrize(("T", "past", "window"), [(6, 0, 3), (6, 0, 1), (2, 5, 3), (1, 9, 4), (3, 0, 8), (4, 2, 6)])
def test_a_window_hides_what_lies_further_back(T, past, window):
    seen = visible_cells(T, past + T, window=window)
    places = [(past + query, key) for query in range(T) for key in range(past + T)]
    right = [key <= place and key > place - window for place, key in places]
    assert seen.flatten().tolist() == right
    assert np.array_equal(visible_keys(T, past + T, window), seen.numpy())


def test_a_window_of_three_shows_one_two_three_three_three_three_keys():
    assert visible_cells(6, 6, window=3).sum(-1).tolist() == [1, 2, 3, 3, 3, 3]


def test_a_mask_is_shared_where_it_is_not_large():
    assert visible_cells(5, 7) is visible_cells(5, 7)
    assert visible_keys(5, 7) is visible_keys(5, 7)
    with pytest.raises(ValueError, match="read-only"):
        visible_keys(5, 7)[0, 0] = False
    large = SHARED // 1024 + 1
    assert visible_keys(1024, large) is not visible_keys(1024, large)
    assert visible_cells(1024, large) is not visible_cells(1024, large)


def test_a_later_token_changes_nothing_before_it(ours):
    one, other = run(ours, PROMPT), run(ours, [*PROMPT[:4], 60])
    for at in one.walk:
        first = tuple(slice(4) if axis in "TS" else slice(None) for axis in at.step.axes)
        assert np.array_equal(one[at][first], other[at][first]), at
    assert not np.array_equal(one["logits"][:, 4], other["logits"][:, 4])


# --- weights ---


def test_a_tied_head_is_the_embedding_itself():
    model = Llama(PRESETS["tiny"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.nbytes() == 4 * PRESETS["tiny"].parameter_count()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "qk_norm": True, "head_dim": 6},
        {"attention_bias": True, "attention_out_bias": False},
        {"attention_out_bias": True},
    ],
)
def test_the_model_has_exactly_the_parameters_that_the_config_lists(changes):
    config = PRESETS["nano"].with_(**changes)
    found = {name: tuple(p.shape) for name, p in Llama(config).named_parameters()}
    assert found == config.parameter_shapes()


# --- KV cache ---

CHUNKS = {"4+1": [4, 1], "2+3": [2, 3], "five single": [1] * 5, "1+4": [1, 4]}
any_chunks = pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
cached_rigs = pytest.mark.parametrize("ours", ["gqa", "mqa", "llama3", "biased", "qwen3", "neighbours"], indirect=True)


def in_chunks(model: Llama, ids: list[int], sizes: list[int], cache: KVCache) -> list:
    places = np.cumsum([0, *sizes])
    return [run(model, ids[start:end], cache=cache) for start, end in pairwise(places)]


@cached_rigs
@any_chunks
def test_chunks_through_the_cache_give_every_step_of_the_full_pass(ours, sizes):
    full = run(ours, PROMPT)
    cache, past = KVCache(ours.config), 0
    for trace in in_chunks(ours, PROMPT, sizes, cache):
        T, S = trace.dims["T"], past + trace.dims["T"]
        assert (trace.past, trace.dims["S"]) == (past, S)
        for at in trace.walk:
            rows = {"T": slice(past, S), "S": slice(0, S)}
            right = full[at][tuple(rows.get(axis, slice(None)) for axis in at.step.axes)]
            assert trace[at].shape == trace.stat(at).shape == right.shape, at
            np.testing.assert_allclose(trace[at], right, rtol=0, atol=BOUND, err_msg=str(at))
        past += T
    assert cache.length == 5


@any_chunks
@pytest.mark.parametrize("name", ["mistral window", "qwen2 window", "qwen3 window"])
def test_chunks_through_the_cache_see_the_same_window(make, name, sizes):
    ours = make.decoder(more_rig(name))
    full, past = run(ours, PROMPT), 0
    for trace in in_chunks(ours, PROMPT, sizes, KVCache(ours.config)):
        S = past + trace.dims["T"]
        for layer in (0, 1):
            at = f"{layer}.weights"
            assert np.array_equal(trace.visible(at), full.visible(at)[past:S, :S])
            np.testing.assert_allclose(trace[at], full[at][:, :, past:S, :S], atol=BOUND)
            assert trace.stat(at).count == 4 * trace.visible(at).sum()
        np.testing.assert_allclose(trace["logits"], full["logits"][:, past:S], atol=BOUND)
        past = S


def test_a_decode_step_has_one_row_of_attention_the_last_of_the_full_map(ours):
    full = run(ours, PROMPT)
    _, decode = in_chunks(ours, PROMPT, [4, 1], KVCache(ours.config))
    assert decode["1.weights"].shape == (1, 4, 1, 5)
    np.testing.assert_allclose(decode["1.weights"][0, :, 0], full["1.weights"][0, :, 4], atol=BOUND)
    assert decode["1.k"].shape == (1, 1, 2, 8)
    assert decode["1.k_shared"].shape == (1, 5, 4, 8)


def test_each_generated_token_has_its_own_trace(ours):
    cache = KVCache(ours.config)
    traces = [run(ours, PROMPT[:4], cache=cache)]
    for _ in range(2):
        traces.append(run(ours, [traces[-1].next_tokens(top=1)[0][0]], cache=cache))
    assert [trace["0.weights"].shape for trace in traces] == [(1, 4, 4, 4), (1, 4, 1, 5), (1, 4, 1, 6)]


def test_a_chunk_masks_inside_itself(ours):
    _, chunk = in_chunks(ours, PROMPT, [2, 3], KVCache(ours.config))
    hidden = ~chunk.visible()
    assert hidden.tolist() == [[False] * 3 + [True] * 2, [False] * 4 + [True], [False] * 5]
    assert not chunk["1.weights"][..., hidden].any()
    assert (chunk["1.weights"][..., ~hidden] > 0).all()
    assert chunk.stat("1.masked").masked == 4 * 3


def test_the_cache_keeps_one_row_per_key_value_head(ours):
    cache = KVCache(ours.config)
    trace = run(ours, PROMPT, cache=cache)
    keys, values = cache.read(1, 5)
    assert keys.shape == values.shape == (1, 5, 2, 8)
    assert np.array_equal(keys.numpy(), trace["1.k_rot"])
    assert np.array_equal(values.numpy(), trace["1.v"])
    assert cache.nbytes() == 2 * 2 * 4 * 5 * 2 * 8


def test_growth_leaves_what_was_read_before_unchanged(ours):
    cache = KVCache(ours.config, capacity=2)
    first = run(ours, PROMPT[:2], cache=cache)
    views = cache.read(0, 2)
    copies = [view.clone() for view in views]
    shared = first["0.k_shared"].copy()
    second = run(ours, PROMPT[2:], cache=cache)
    later = second["1.v_shared"].copy()
    for id in PROMPT * 5:
        run(ours, [id], cache=cache)
    assert cache.length == 30
    for view, copy, now in zip(views, copies, cache.read(0, 2), strict=True):
        assert torch.equal(view, copy)
        assert torch.equal(now, copy)
        assert now.data_ptr() != view.data_ptr(), "the buffer did not grow: the test shows nothing"
    assert np.array_equal(first["0.k_shared"], shared)
    assert np.array_equal(second["1.v_shared"], later)


def test_rows_that_were_not_written_cannot_be_read(ours):
    cache = KVCache(ours.config)
    with pytest.raises(RunError, match="holds 0 positions"):
        cache.read(0, 1)
    run(ours, PROMPT, cache=cache)
    with pytest.raises(RunError, match=r"holds 5 positions of layer 0; 6 were asked for"):
        cache.read(0, 6)


def test_a_pass_that_raises_leaves_the_cache_as_it_was(ours):
    cache, clean = KVCache(ours.config), KVCache(ours.config)
    for each in (cache, clean):
        run(ours, PROMPT[:3], cache=each)

    def refuse(*_):
        raise ValueError("from a foreign hook")

    hook = ours.model.layers[1].mlp.up_proj.register_forward_hook(refuse)
    with pytest.raises(ValueError, match="foreign"):
        run(ours, [60, 61], cache=cache)
    hook.remove()
    assert cache.length == 3
    again, right = run(ours, PROMPT[3:], cache=cache), run(ours, PROMPT[3:], cache=clean)
    assert all(np.array_equal(again[at], right[at]) for at in right.walk)


def test_a_stopped_pass_adds_nothing_to_the_cache(ours):
    cache = KVCache(ours.config)
    run(ours, PROMPT[:3], cache=cache)
    stopped = run(ours, PROMPT[3:], cache=cache, until="1.weights")
    full = run(ours, PROMPT)
    assert cache.length == 3
    np.testing.assert_allclose(stopped["1.weights"], full["1.weights"][:, :, 3:], atol=BOUND)
    run(ours, PROMPT[3:], cache=cache)
    np.testing.assert_allclose(stopped["1.k_shared"], full["1.k_shared"], atol=BOUND)


def test_bfloat16_through_the_cache_chooses_the_same_tokens(make):
    model = make.decoder(make.reference("gqa")).to(torch.bfloat16)
    full = run(model, PROMPT)["logits"]
    parts = np.concatenate([t["logits"] for t in in_chunks(model, PROMPT, [2, 3], KVCache(model.config))], axis=1)
    assert np.array_equal(parts.argmax(-1), full.argmax(-1))
    np.testing.assert_allclose(parts, full, atol=0.25)
