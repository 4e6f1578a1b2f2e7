"""Every step of ours is what transformers computes (eager, float32), on rigs where each mistake would show."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from unittest import mock

import numpy as np
import pytest
import torch
from rigs import PROMPT, reference_rig, save_folder, save_gguf
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from llama_core import load, model, run, steps

BOUND = 2e-5
RIGS = (
    *("gqa", "mha", "mqa", "tied", "wide heads", "narrow heads", "llama3", "theta 500000", "biased"),
    *("gelu", "gelu tanh", "relu", "small std", "small std, eps 1e-5", "qwen3"),
)
LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(48)]  # beyond the 32 original positions of the llama3 rig
every_rig = pytest.mark.parametrize("pair", RIGS, indirect=True)
some_rigs = pytest.mark.parametrize("pair", ["gqa", "llama3", "biased", "qwen3"], indirect=True)
both_prompts = pytest.mark.parametrize("ids", [PROMPT, LONG], ids=["T=5", "T=48"])


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
        self.theirs, self.found, self.layer = theirs, {}, -1
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
        self.found[address] = x.unflatten(-1, (-1, self.theirs.config.head_dim)) if key in PER_HEAD else x

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
        home = modeling_qwen3 if self.theirs.config.model_type == "qwen3" else modeling_llama
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
def test_every_step_is_what_transformers_computes_there(pair):
    theirs, trace = Reference(pair.theirs, PROMPT).found, run(pair.ours, PROMPT)
    for at in trace.walk:
        if at.step is steps.SCORES:
            theirs[str(at)] = theirs[f"{at.layer}.masked"]
            assert off(np.where(trace.visible(), trace[at], -np.inf), theirs[str(at)]) < BOUND, at
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
@pytest.mark.parametrize("name", ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
def test_each_bias_is_used(pair, name):
    before = run(pair.ours, PROMPT)["logits"]
    for path, parameter in pair.ours.named_parameters():
        if path.endswith(f"{name}.bias"):
            parameter.zero_()
    assert np.abs(run(pair.ours, PROMPT)["logits"] - before).max() > 0.1


def test_the_rig_through_gguf_and_through_a_folder_gives_the_same_logits(tmp_path):
    theirs = reference_rig()
    folder = run(load(save_folder(theirs, tmp_path / "rig")), PROMPT)
    from_gguf = run(load(save_gguf(theirs, tmp_path / "rig.gguf")), PROMPT)
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
    "no mask": (0.1, mock.patch.object(model, "visible_cells", lambda T, S, device=None: torch.ones(T, S).bool())),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_rig_sees(mistake, make):
    theirs = make.reference("gqa")
    right = Reference(theirs, PROMPT).logits
    least, patch = MISTAKES[mistake]
    with patch, torch.no_grad():
        wrong = make.decoder(theirs)(torch.tensor([PROMPT]))
    assert (wrong - right).abs().max() > least


def test_positions_counted_from_one_are_seen_in_q_rot_though_not_in_the_logits(pair):
    # Only differences of positions reach the scores: against the logits alone this mistake is invisible.
    reference, table = Reference(pair.theirs, PROMPT), pair.ours.rope.forward
    with mock.patch.object(pair.ours.rope, "forward", lambda start, T: table(start + 1, T)):
        trace = run(pair.ours, PROMPT)
    assert off(trace["logits"], reference.logits) < BOUND
    assert off(trace["0.q_rot"], reference.found["0.q_rot"]) > 0.1
