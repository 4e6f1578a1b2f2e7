"""Every step of ours is what transformers computes (eager, float32), on rigs where each mistake would show."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from copy import deepcopy
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from gguf_rigs import write_gguf
from rigs import MORE_RIGS, PROMPT, WINDOWS, YARN, more_rig, reference_rig, save_folder
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from llama_core import KVCache, load, model, rope, run, steps
from llama_core.model import Llama

BOUND = 2e-5
RIGS = (
    *("gqa", "mha", "mqa", "tied", "wide heads", "narrow heads", "llama3", "theta 500000", "biased"),
    *("gelu", "gelu tanh", "relu", "small std", "small std, eps 1e-5", "qwen3"),
    *MORE_RIGS,
)
LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(48)]  # beyond the 16 or 32 original positions of scaled rigs
every_rig = pytest.mark.parametrize("pair", RIGS, indirect=True)
some_rigs = pytest.mark.parametrize("pair", ["gqa", "llama3", "biased", "qwen3"], indirect=True)
both_prompts = pytest.mark.parametrize("ids", [PROMPT, LONG], ids=["T=5", "T=48"])


class Pair(NamedTuple):
    """The same weights twice: in transformers, and in our decoder."""

    theirs: PreTrainedModel
    ours: Llama


@pytest.fixture
def pair(request, make) -> Pair:
    """The rig named by an indirect parameter, "gqa" without one."""
    name = getattr(request, "param", "gqa")
    theirs = more_rig(name) if name in MORE_RIGS else make.reference(name)
    return Pair(theirs, make.decoder(theirs))


# --- what transformers computes, by our addresses ---

OUTPUTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.act_fn": "act",
    "mlp.down_proj": "mlp_out",
    "": "resid_out",
}
INPUTS = {
    "": "resid_in",
    "self_attn.o_proj": "head_out",
    "post_attention_layernorm": "resid_mid",
    "mlp.down_proj": "gated",
}
PER_HEAD = ("q", "k", "v", "head_out")


class Reference:
    """One eager forward of transformers, with hooks on its modules and spies on its functions."""

    def __init__(self, theirs: PreTrainedModel, ids: list[int]) -> None:
        theirs = deepcopy(theirs)  # with dynamic scaling, transformers' rotary module remembers its longest pass
        self.theirs, self.found, self.layer = theirs, {}, -1
        self.head_dim = theirs.model.layers[0].self_attn.head_dim
        with ExitStack() as stack, torch.no_grad():
            for hook in self._hooks():
                stack.callback(hook.remove)
            for spy in self._spies():
                stack.enter_context(spy)
            output = theirs(torch.tensor([ids]), output_hidden_states=True, output_attentions=True, use_cache=False)
        self.logits = output.logits
        self.hidden_states, self.attentions = output.hidden_states, output.attentions
        self.found["logits"] = output.logits

    def keep(self, key: str, x: torch.Tensor) -> None:
        address = f"{self.layer}.{key}"
        assert address not in self.found, address
        self.found[address] = x.unflatten(-1, (-1, self.head_dim)) if key in PER_HEAD else x

    def _hooks(self):
        decoder = self.theirs.model
        yield decoder.embed_tokens.register_forward_hook(lambda m, i, out: self.found.update(embed=out))
        yield decoder.norm.register_forward_hook(lambda m, i, out: self.found.update(final_norm=out))
        for layer in decoder.layers:
            yield layer.register_forward_pre_hook(lambda m, i: setattr(self, "layer", self.layer + 1))
            for path, key in INPUTS.items():
                hook = layer.get_submodule(path).register_forward_pre_hook
                yield hook(lambda m, i, key=key: self.keep(key, i[0]))
            for path, key in OUTPUTS.items():
                if path and not _has(layer, path):
                    continue
                hook = layer.get_submodule(path).register_forward_hook
                yield hook(lambda m, i, out, key=key: self.keep(key, out))

    def _spies(self):
        home = sys.modules[type(self.theirs).__module__]  # the family's own modeling file
        turn, share, softmax = home.apply_rotary_pos_emb, home.repeat_kv, nn.functional.softmax
        shared = iter(["k_shared", "v_shared"] * len(self.theirs.model.layers))

        def rotary(*given, **named):
            q, k = turn(*given, **named)
            self.keep("q_rot", q.transpose(1, 2))
            self.keep("k_rot", k.transpose(1, 2))
            return q, k

        def repeat(x, times):
            self.keep(next(shared), share(x, times).transpose(1, 2))
            return share(x, times)

        def soften(x, *given, **named):
            self.keep("masked", x.masked_fill(x < -1e30, float("-inf")))
            out = softmax(x, *given, **named)
            self.keep("weights", out)
            return out

        yield mock.patch.object(home, "apply_rotary_pos_emb", rotary)
        yield mock.patch.object(home, "repeat_kv", repeat)
        yield mock.patch.object(nn.functional, "softmax", soften)


def _has(module: nn.Module, path: str) -> bool:
    return path in dict(module.named_modules())


def off(found: np.ndarray, expected: torch.Tensor) -> float:
    """Largest absolute difference; infinite cells must be the same ones."""
    expected = expected.detach().float().numpy()
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite])
    return float(np.abs(found[finite] - expected[finite]).max())


# --- facts ---


@every_rig
@both_prompts
def test_the_logits_are_those_of_transformers(pair, ids):
    assert off(run(pair.ours, ids)["logits"], Reference(pair.theirs, ids).logits) < BOUND


@every_rig
@both_prompts
def test_every_step_is_what_transformers_computes_there(pair, ids):
    theirs, trace = Reference(pair.theirs, ids).found, run(pair.ours, ids)
    for at in trace.walk:
        if at.step is steps.SCORES:
            theirs[str(at)] = theirs[f"{at.layer}.masked"]
            assert off(np.where(trace.visible(at), trace[at], -np.inf), theirs[str(at)]) < BOUND, at
        else:
            assert off(trace[at], theirs[str(at)]) < BOUND, at
    assert {str(at) for at in trace.walk} == theirs.keys()


@some_rigs
def test_hidden_states_and_attentions_are_those_that_transformers_returns(pair):
    reference, trace = Reference(pair.theirs, LONG), run(pair.ours, LONG)
    layers = len(pair.theirs.model.layers)
    assert len(reference.hidden_states) == layers + 1
    assert len(reference.attentions) == layers
    for layer in range(layers):
        assert off(trace[f"{layer}.resid_in"], reference.hidden_states[layer]) < BOUND
        assert off(trace[f"{layer}.weights"], reference.attentions[layer]) < BOUND
        assert off(trace[f"{layer}.mlp_out"], reference.found[f"{layer}.mlp_out"]) < BOUND
    assert off(trace["final_norm"], reference.hidden_states[layers]) < BOUND


def test_a_prompt_of_one_token_agrees_too(pair):
    trace = run(pair.ours, [9])
    assert off(trace["logits"], Reference(pair.theirs, [9]).logits) < BOUND
    assert trace["1.weights"].tolist() == [[[[1.0]]] * 4]
    assert trace.stat("1.weights").std == 0


@pytest.mark.parametrize("pair", ["gqa", "llama3", "biased", "qwen3"], indirect=True)
@both_prompts
def test_neighbours_layout_with_permuted_rows_gives_the_same_logits(pair, make, ids):
    moved = make.neighbours(pair.ours)
    order = np.arange(moved.config.head_dim).reshape(2, -1).T.reshape(-1)  # 0 R 1 R+1 ...
    reference, trace = Reference(pair.theirs, ids), run(moved, ids)
    assert off(trace["logits"], reference.logits) < BOUND
    for key in ("q_rot", "k_rot"):
        assert off(trace[f"1.{key}"], reference.found[f"1.{key}"][..., order]) < BOUND


@every_rig
def test_the_logits_are_near_those_of_transformers_in_float64(pair):
    exact = Reference(deepcopy(pair.theirs).double(), PROMPT).logits
    assert off(run(pair.ours, PROMPT)["logits"], exact) < BOUND


def test_the_same_rows_under_the_other_layout_are_far_off(pair, make):
    wrong = make.decoder(pair.theirs, rope_layout="neighbours")
    assert off(run(wrong, PROMPT)["logits"], Reference(pair.theirs, PROMPT).logits) > 1


@pytest.mark.parametrize("pair", ["small std", "small std, eps 1e-5"], indirect=True)
def test_the_other_eps_is_seen_at_the_usual_std(pair, make):
    other = {1e-6: 1e-5, 1e-5: 1e-6}[pair.ours.config.rms_norm_eps]
    wrong = make.decoder(pair.theirs, rms_norm_eps=other)
    assert off(run(wrong, PROMPT)["logits"], Reference(pair.theirs, PROMPT).logits) > 1e-3


@pytest.mark.parametrize("pair", ["biased"], indirect=True)
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
def test_each_of_seven_biases_is_used(pair, name):
    before = run(pair.ours, PROMPT)["logits"]
    assert sum(path.endswith("bias") for path, _ in pair.ours.named_parameters()) == 7 * 2
    for path, parameter in pair.ours.named_parameters():
        if path.endswith(f"{name}.bias"):
            parameter.zero_()
    assert np.abs(run(pair.ours, PROMPT)["logits"] - before).max() > 0.1


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_each_bias_of_qwen2_is_used(make, name):
    ours = make.decoder(more_rig("qwen2 default"))
    before = run(ours, PROMPT)
    biases = {path: p for path, p in ours.named_parameters() if path.endswith("bias")}
    assert len(biases) == 3 * ours.config.num_hidden_layers
    for path, parameter in biases.items():
        if path.endswith(f"{name}.bias"):
            parameter.zero_()
    after = run(ours, PROMPT)
    assert np.abs(after[f"0.{name[0]}"] - before[f"0.{name[0]}"]).max() > 1
    assert np.abs(after["logits"] - before["logits"]).max() > 0.1


# --- what is particular to a type of RoPE ---


@pytest.mark.parametrize("change", [change for change in YARN if change != "plain"])
def test_each_option_of_yarn_changes_the_logits(make, change):
    plain, changed = (run(make.decoder(more_rig(f"yarn, {name}")), LONG)["logits"] for name in ("plain", change))
    assert np.abs(changed - plain).max() > 0.1


def test_one_mscale_alone_changes_nothing(make):
    theirs = deepcopy(more_rig("yarn, plain"))
    theirs.config.rope_parameters["mscale"] = 0.7
    with_one, without = (run(make.decoder(t), LONG)["logits"] for t in (theirs, more_rig("yarn, plain")))
    assert np.array_equal(with_one, without)


@pytest.mark.parametrize("pair", ["llama dynamic", "qwen3 dynamic"], indirect=True)
def test_a_long_prompt_leaves_nothing_behind_in_dynamic_scaling(pair):
    prompts = [LONG[:8], LONG, LONG[:20], LONG[:8]]  # 8 is within the 16 original positions, 20 and 48 are beyond
    traces = [run(pair.ours, ids) for ids in prompts]
    for ids, trace in zip(prompts, traces, strict=True):
        assert off(trace["logits"], Reference(pair.theirs, ids).logits) < BOUND
    assert all(np.array_equal(traces[0][at], traces[3][at]) for at in traces[0].walk)
    assert not np.allclose(traces[1]["0.q_rot"][:, :20], traces[2]["0.q_rot"], atol=0.01)


@pytest.mark.parametrize("name", ["llama dynamic", "qwen2 yarn", "mistral window", "qwen2 window", "qwen3 window"])
def test_chunks_through_the_cache_are_those_of_transformers(make, name):
    theirs = deepcopy(more_rig(name))
    ours = make.decoder(theirs)
    mine, yours = KVCache(ours.config), DynamicCache(config=theirs.config)
    for ids in (LONG[:10], LONG[10:11], LONG[11:30], LONG[30:31]):  # dynamic scaling: over its 16 positions on the way
        with torch.no_grad():
            expected = theirs(torch.tensor([ids]), cache=yours).logits
        assert off(run(ours, ids, cache=mine)["logits"], expected) < BOUND


def test_beyond_its_context_dynamic_scaling_with_a_cache_keeps_old_angles(make):
    ours = make.decoder(more_rig("llama dynamic"))
    cache = KVCache(ours.config)
    first = run(ours, LONG[:12], cache=cache)
    second = run(ours, LONG[12:], cache=cache)
    full = run(ours, LONG)
    assert np.array_equal(second["0.k_shared"][:, :12, 0], first["0.k_rot"][:, :, 0])
    assert np.array_equal(second["0.k_rot"], full["0.k_rot"][:, 12:])
    assert np.abs(second["logits"] - full["logits"][:, 12:]).max() > 0.1


# --- sliding windows ---

LAYERS_WITH_A_WINDOW = {"mistral": (0, 1), "qwen2": (1,), "qwen3": (0,)}


@pytest.mark.parametrize("family", WINDOWS)
def test_a_window_of_three_shows_each_query_itself_and_the_two_keys_before_it(make, family):
    ours = make.decoder(more_rig(f"{family} window"))
    trace = run(ours, LONG[:6])
    for layer in (0, 1):
        right = [1, 2, 3, 3, 3, 3] if layer in LAYERS_WITH_A_WINDOW[family] else [1, 2, 3, 4, 5, 6]
        for key in ("masked", "weights", "scores"):
            at = f"{layer}.{key}"
            assert trace.visible(at).sum(-1).tolist() == trace.visible(layer).sum(-1).tolist() == right
            assert trace.stat(at).count == 4 * sum(right)
            assert trace.stat(at).masked == 4 * (36 - sum(right))
        shown = trace[f"{layer}.weights"][0] > 0
        assert shown.sum(-1).tolist() == [right] * 4
        assert np.isfinite(trace[f"{layer}.masked"][0]).sum(-1).tolist() == [right] * 4


def test_the_rig_through_gguf_and_through_a_folder_gives_the_same_logits(tmp_path):
    theirs = reference_rig()
    folder = run(load(save_folder(theirs, tmp_path / "rig")), PROMPT)
    from_gguf = run(load(write_gguf(theirs, tmp_path / "rig.gguf")), PROMPT)
    assert off(folder["logits"], Reference(theirs, PROMPT).logits) < BOUND
    assert np.array_equal(folder["logits"], from_gguf["logits"])


# --- bfloat16: rounding is allowed, and bounded ---

BF16_ERROR = 0.05
"""Rms error of bfloat16 logits as a share of their rms; eight bits of mantissa and two layers gave 0.017 to 0.032."""
CLEAR = 0.5
"""A lead of the first logit over the second that such rounding does not overturn."""


@pytest.mark.parametrize("pair", ["gqa", "mha", "tied", "llama3", "biased", "qwen3"], indirect=True)
def test_bfloat16_is_as_near_as_that_of_transformers_and_chooses_the_same_token_where_the_choice_is_clear(pair):
    exact = Reference(pair.theirs, LONG).logits[0].numpy()
    rounded = run(pair.ours.to(torch.bfloat16), LONG)["logits"][0]
    theirs = Reference(deepcopy(pair.theirs).to(torch.bfloat16), LONG).logits[0].float().numpy()
    error = rms(rounded - exact)
    assert 1e-3 * rms(exact) < error < BF16_ERROR * rms(exact)  # the lower end: it did compute in bfloat16
    assert error < 1.5 * rms(theirs - exact)
    second, first = np.sort(exact, axis=-1)[:, -2:].T
    clear = first - second > CLEAR
    assert clear.sum() >= 20
    assert np.array_equal(rounded.argmax(-1)[clear], exact.argmax(-1)[clear])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


# --- the rig sees each mistake: least logit error that it must cause ---


def _swapped_mlp(self, x):
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def _lost_residual(self, x, turn, visible, cache):
    x = self.self_attn(self.input_layernorm(x), turn, visible, cache)
    return x + self.mlp(self.post_attention_layernorm(x))


def _centred_norm(self, x):
    centred = x - x.mean(-1, keepdim=True)
    return self.weight * centred * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def _turned_back(x, turn, layout, right=model.rotate):
    return right(x, (turn[0], -turn[1]), layout)


def _keys_unturned(x, turn, layout, right=model.rotate):
    return x if x.shape[2] == 2 else right(x, turn, layout)  # two heads: the keys


MISTAKES = {
    "no RoPE": (1, mock.patch.object(model, "rotate", lambda x, turn, layout: x)),
    "keys not turned": (1, mock.patch.object(model, "rotate", _keys_unturned)),
    "turned backwards": (1, mock.patch.object(model, "rotate", _turned_back)),
    "KV heads tiled": (1, mock.patch.object(model, "share_heads", lambda x, group: x.repeat(1, 1, group, 1))),
    "gate and up swapped": (1, mock.patch.object(model.MLP, "forward", _swapped_mlp)),
    "residual skipped": (1, mock.patch.object(model.DecoderLayer, "forward", _lost_residual)),
    "GELU": (0.1, mock.patch.dict(model.ACTIVATIONS, silu=nn.functional.gelu)),
    "LayerNorm": (0.1, mock.patch.object(model.RMSNorm, "forward", _centred_norm)),
    "no mask": (0.1, mock.patch.object(model, "visible_cells", lambda T, S, *_: torch.ones(T, S).bool())),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_rig_sees(mistake, make):
    theirs = make.reference("gqa")
    right = Reference(theirs, PROMPT).logits
    least, patch = MISTAKES[mistake]
    with patch, torch.no_grad():
        wrong = make.decoder(theirs)(torch.tensor([PROMPT]))
    assert (wrong - right).abs().max() > least


def _wide(T, S, device=None, window=None, right=model.visible_cells):
    return right(T, S, device, window and window + 1)


def _no_window(T, S, device=None, window=None, right=model.visible_cells):
    return right(T, S, device)


def _once(config, length=None, right=rope.inverse_frequencies):
    return right(config)


MORE_MISTAKES = {
    "one key too many": ("mistral window", mock.patch.object(model, "visible_cells", _wide)),
    "window ignored": ("qwen2 window", mock.patch.object(model, "visible_cells", _no_window)),
    "dynamic frequencies computed once": ("llama dynamic", mock.patch.object(rope, "inverse_frequencies", _once)),
    "attention factor left out": ("llama yarn", mock.patch.object(rope, "attention_factor", return_value=1.0)),
}


@pytest.mark.parametrize("mistake", MORE_MISTAKES)
def test_the_other_rigs_see(mistake, make):
    name, patch = MORE_MISTAKES[mistake]
    right = Reference(more_rig(name), LONG).logits
    with patch, torch.no_grad():
        wrong = make.decoder(more_rig(name))(torch.tensor([LONG]))
    assert (wrong - right).abs().max() > 0.1


def test_positions_counted_from_one_are_seen_in_q_rot_though_not_in_the_logits(pair):
    # Only differences of positions reach the scores: against the logits alone this mistake is invisible.
    reference, table = Reference(pair.theirs, PROMPT), pair.ours.rope.forward
    with mock.patch.object(pair.ours.rope, "forward", lambda start, T: table(start + 1, T)):
        trace = run(pair.ours, PROMPT)
    assert off(trace["logits"], reference.logits) < BOUND
    assert off(trace["0.q_rot"], reference.found["0.q_rot"]) > 0.1
