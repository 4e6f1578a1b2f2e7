"""run -> Trace: recorded in order, stopped exactly, read-only, recomputable, and never mixed with another run."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import pytest
import torch
from rigs import PROMPT, family_rig, more_rig
from torch import nn
from torch.overrides import TorchFunctionMode

from llama_core import KVCache, load, run, runner, steps
from llama_core.config import PRESETS
from llama_core.errors import AddressError, GlassLlamaError, NotComputedError, RunError, TokenizerError
from llama_core.look import farthest_look
from llama_core.model import Llama
from llama_core.rebuild import run_bytes
from llama_core.steps import STEPS, At, Walk
from llama_core.tap import Tap, recording
from llama_core.trace import Trace

replayed_rigs = pytest.mark.parametrize("ours", ["gqa", "qwen3", "neighbours", "biased", "llama3"], indirect=True)


def same(one: Trace, other: Trace) -> bool:
    """Every tensor and every statistic is bit for bit the same."""
    return (
        one.ids == other.ids
        and one.step_stats == other.step_stats
        and all(np.array_equal(one[at], other[at]) for at in one.step_stats)
    )


# --- order ---


@replayed_rigs
def test_each_tap_fires_once_per_layer_and_pass_in_the_order_of_the_registry(ours):
    heard = []
    with torch.no_grad(), recording(lambda at, x: heard.append(at)):
        ours(torch.tensor([PROMPT]))
        ours(torch.tensor([PROMPT]))
    expected = [
        *[At(None, s) for s in STEPS if s.key == "embed"],
        *[At(i, s) for i in range(2) for s in STEPS if s.scope == "layer" and (not s.family or ours.config.qk_norm)],
        *[At(None, s) for s in STEPS if s.key in ("final_norm", "logits")],
    ]
    assert heard == expected * 2


def test_each_tap_has_one_hook_of_ours_and_an_address_of_its_own(ours):
    taps = [module for module in ours.modules() if isinstance(module, Tap)]
    assert {tap.at for tap in taps} == set(ours.config.walk)
    assert [len(tap._forward_hooks) for tap in taps] == [1] * len(ours.config.walk)


def test_without_taps_the_model_computes_the_same(ours):
    with torch.no_grad():
        bare = ours(torch.tensor([PROMPT]))
    assert np.array_equal(run(ours, PROMPT)["logits"], bare.numpy())


def test_what_a_recorder_returns_replaces_the_tensor(ours):
    ablated = At(1, steps.MLP_OUT)
    with torch.no_grad(), recording(lambda at, x: torch.zeros_like(x) if at == ablated else None):
        changed = ours(torch.tensor([PROMPT]))
    assert not np.allclose(run(ours, PROMPT)["logits"], changed.numpy(), atol=0.1)


# --- replay: each step again from the steps it reads, in float64, written without looking at model.py ---


class Given:
    """What a replay may use: the arrays that the step reads, the weights of its layer, the sizes."""

    def __init__(self, model: Llama, trace: Trace, at: At) -> None:
        self.c, self.ids, self.at = model.config, list(trace.ids), at
        self.reads = [trace[source].astype(np.float64) for source in trace.walk.sources(at)]
        self.weights = {name: p.double().numpy() for name, p in model.state_dict().items()}

    def w(self, name: str) -> np.ndarray:
        return self.weights[name if self.at.layer is None else f"model.layers.{self.at.layer}.{name}"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = np.einsum("...i,oi->...o", x, self.w(f"{name}.weight"))
        return y + self.w(f"{name}.bias") if f"model.layers.0.{name}.bias" in self.weights else y

    def norm(self, name: str) -> np.ndarray:
        (x,) = self.reads
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.c.rms_norm_eps) * self.w(f"{name}.weight")

    def heads(self, name: str) -> np.ndarray:
        flat = self.linear(name, self.reads[0])
        return flat.reshape(*flat.shape[:2], -1, self.c.head_dim)

    def turned(self) -> np.ndarray:
        (x,) = self.reads
        R = self.c.head_dim // 2
        speed = self.c.rope_theta ** (-np.arange(R) / R)
        if s := self.c.rope_scaling:
            turns = s.original_max_position_embeddings * speed / (2 * np.pi)
            kept = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0, 1)
            speed = speed * (kept + (1 - kept) / s.factor)
        wheel = np.exp(1j * np.arange(x.shape[1])[:, None] * speed)[None, :, None, :]
        if self.c.rope_layout == "neighbours":
            z = (x[..., 0::2] + 1j * x[..., 1::2]) * wheel
            return np.stack((z.real, z.imag), axis=-1).reshape(x.shape)
        z = (x[..., :R] + 1j * x[..., R:]) * wheel
        return np.concatenate((z.real, z.imag), axis=-1)

    def shared(self) -> np.ndarray:
        (x,) = self.reads
        Hq, Hkv = self.c.num_attention_heads, self.c.num_key_value_heads
        return np.stack([x[:, :, head // (Hq // Hkv)] for head in range(Hq)], axis=2)


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def hide_future(x: np.ndarray) -> np.ndarray:
    T, S = x.shape[-2:]
    return np.where(np.arange(S)[None, :] > np.arange(T)[:, None], -np.inf, x)


REPLAY = {
    "embed": lambda g: g.weights["model.embed_tokens.weight"][g.ids][None],
    "resid_in": lambda g: g.reads[0],
    "attn_norm": lambda g: g.norm("input_layernorm"),
    "q": lambda g: g.heads("self_attn.q_proj"),
    "k": lambda g: g.heads("self_attn.k_proj"),
    "v": lambda g: g.heads("self_attn.v_proj"),
    "q_norm": lambda g: g.norm("self_attn.q_norm"),
    "k_norm": lambda g: g.norm("self_attn.k_norm"),
    "q_rot": Given.turned,
    "k_rot": Given.turned,
    "k_shared": Given.shared,
    "v_shared": Given.shared,
    "scores": lambda g: np.einsum("bthd,bshd->bhts", *g.reads) / np.sqrt(g.c.head_dim),
    "masked": lambda g: hide_future(*g.reads),
    "weights": lambda g: softmax(*g.reads),
    "head_out": lambda g: np.einsum("bhts,bshd->bthd", *g.reads),
    "attn_out": lambda g: g.linear("self_attn.o_proj", g.reads[0].reshape(*g.reads[0].shape[:2], -1)),
    "resid_mid": lambda g: g.reads[0] + g.reads[1],
    "mlp_norm": lambda g: g.norm("post_attention_layernorm"),
    "gate": lambda g: g.linear("mlp.gate_proj", *g.reads),
    "up": lambda g: g.linear("mlp.up_proj", *g.reads),
    "act": lambda g: g.reads[0] / (1 + np.exp(-g.reads[0])),
    "gated": lambda g: g.reads[0] * g.reads[1],
    "mlp_out": lambda g: g.linear("mlp.down_proj", *g.reads),
    "resid_out": lambda g: g.reads[0] + g.reads[1],
    "final_norm": lambda g: g.norm("model.norm"),
    "logits": lambda g: g.linear("lm_head", *g.reads),
}


def test_every_step_of_the_registry_has_a_replay():
    assert tuple(REPLAY) == tuple(step.key for step in STEPS)


@replayed_rigs
def test_each_step_is_what_its_formula_makes_of_the_steps_it_reads(ours):
    trace = run(ours, [*PROMPT, 40, 1, 63, 9])
    for at in trace.walk:
        again, captured = REPLAY[at.step.key](Given(ours, trace, at)), trace[at]
        assert again.shape == captured.shape, at
        finite = np.isfinite(again)
        assert np.array_equal(again[~finite], captured[~finite]), at
        scale = np.abs(again[finite]).max()
        assert np.abs(again[finite] - captured[finite]).max() < 1e-5 * scale, at


@replayed_rigs
def test_the_stream_is_the_embedding_plus_all_that_was_added_and_weights_sum_to_one(ours):
    trace = run(ours, PROMPT)
    layers = range(ours.config.num_hidden_layers)
    added = sum(trace[f"{i}.{key}"].astype(np.float64) for i in layers for key in ("attn_out", "mlp_out"))
    np.testing.assert_allclose(trace["embed"] + added, trace["1.resid_out"], atol=1e-5)
    assert np.array_equal(trace["0.resid_in"], trace["embed"])
    assert np.array_equal(trace["1.resid_in"], trace["0.resid_out"])
    for i in layers:
        np.testing.assert_allclose(trace[f"{i}.weights"].sum(-1), 1.0, atol=1e-6)
        assert not trace[f"{i}.weights"][..., ~trace.visible()].any()


@pytest.mark.parametrize(("ours", "kv"), [("gqa", 2), ("mqa", 1), ("mha", 4)], indirect=["ours"])
def test_shapes_are_those_of_the_registry_with_keys_and_values_unshared(ours, kv):
    trace = run(ours, PROMPT)
    sizes = {"B": 1, "T": 5, "S": 5, "D": 32, "Hq": 4, "Hkv": kv, "Dh": 8, "R": 4, "F": 48, "V": 64}
    for at in trace.walk:
        assert trace[at].shape == trace.stat(at).shape == tuple(sizes[a] for a in at.step.axes), at
    assert trace["1.k"].shape == trace["1.v"].shape == (1, 5, kv, 8)
    assert trace["1.weights"].shape == (1, 4, 5, 5)
    assert trace["1.k_shared"].shape == (1, 5, 4, 8)


# --- until ---


@contextmanager
def module_calls(model: Llama):
    """The names of the modules with weights that run inside the block, by hooks of our own."""
    calls, hooks = [], []
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            hooks.append(module.register_forward_pre_hook(lambda m, i, name=name: calls.append(name)))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def module_of(at: At) -> str:
    return at.step.module if at.layer is None else f"model.layers.{at.layer}.{at.step.module}"


@pytest.mark.parametrize("ours", ["gqa", "qwen3"], indirect=True)
def test_a_run_until_any_address_is_the_prefix_of_the_full_run_and_computes_nothing_after_it(ours):
    full = run(ours, PROMPT)
    with_weights = {n for n, m in ours.named_modules() if list(m.parameters(recurse=False))}
    for index, at in enumerate(full.walk):
        with module_calls(ours) as calls:
            stopped = run(ours, PROMPT, until=at)
        ran = [module_of(past) for past in full.walk.order[: index + 1] if module_of(past) in with_weights]
        assert Counter(calls) == Counter(ran), at
        assert (stopped.computed, stopped.until) == (index + 1, at)
        assert list(stopped.step_stats) == list(full.walk.order[: index + 1])
        assert stopped.stats.equals(full.stats.iloc[: index + 1])
        for past in full.walk.order[: index + 1]:
            assert np.array_equal(stopped[past], full[past]), (at, past)
        for later in full.walk.order[index + 1 :]:
            assert later not in stopped
            for ask in (stopped.__getitem__, stopped.stat):
                with pytest.raises(NotComputedError, match=f"step {index + 1} of {len(full.walk)}"):
                    ask(later)


class Operations(TorchFunctionMode):
    """The names of the torch functions that a block calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", ""))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize(("until", "after"), [("0.masked", "softmax"), ("1.gate", "silu"), ("0.v", "cat")])
def test_a_stopped_run_calls_no_later_function(ours, until, after):
    counts = []
    for stop in (until, None):
        with Operations() as operations:
            run(ours, PROMPT, until=stop)
        counts.append(operations.names.count(after))
    earlier = At.parse(until).layer
    assert counts[1] > counts[0] == earlier * counts[1] / 2


def test_the_sentence_of_a_stopped_run_names_where_it_stopped_and_what_to_do(ours):
    stopped = run(ours, PROMPT, until="1.scores")
    with pytest.raises(NotComputedError) as refused:
        stopped["logits"]
    for part in ("logits was not computed", "layer 1 scores", "step 33 of 47", "logits is step 47", "without until"):
        assert part in str(refused.value)


@pytest.mark.parametrize("until", ["2.q", "0.q_norm", "q", "0.logits", "embed ", "", At(2, steps.Q)])
def test_an_address_that_the_model_lacks_is_refused_before_anything_runs(ours, until):
    with module_calls(ours) as calls, pytest.raises(AddressError):
        run(ours, PROMPT, until=until)
    assert calls == []


# --- what a trace is ---


def test_arrays_refuse_writes(ours):
    trace = run(ours, PROMPT)
    for at in trace.walk:
        before = trace[at].copy()
        with pytest.raises(ValueError, match="read-only"):
            trace[at][...] = 0
        with pytest.raises(ValueError, match="read-only"):
            np.add(trace[at], 1, out=trace[at])
        assert np.array_equal(trace[at], before), at


def test_derived_steps_hold_no_memory(ours):
    trace = run(ours, PROMPT)
    derived = {at for at in trace.walk if at.step.derived}
    assert {at.step.key for at in derived} == {"k_shared", "v_shared", "masked"}
    assert set(trace.tensors) == set(trace.walk) - derived
    cells = {at: trace[at].size for at in trace.tensors if at.step is not steps.RESID_IN}
    assert trace.nbytes == 4 * sum(cells.values())


def test_derived_steps_are_what_was_recorded(ours):
    recorded = {}
    with torch.no_grad(), recording(lambda at, x: recorded.update({at: x.clone()})):
        ours(torch.tensor([PROMPT]))
    trace = run(ours, PROMPT)
    for at in trace.walk:
        assert np.array_equal(trace[at], recorded[at].numpy()), at


def test_no_held_tensor_is_written_after_its_tap(ours):
    seen, kept = [], runner.Recorder.__call__

    class Recorder(runner.Recorder):
        def __call__(self, at, x):
            seen.append((at, x, x._version, x.clone()))
            return kept(self, at, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Recorder", Recorder)
        run(ours, PROMPT)
        with_past = KVCache(ours.config)
        run(ours, PROMPT[:3], cache=with_past)
        run(ours, PROMPT[3:], cache=with_past)
    assert len(seen) == 3 * len(ours.config.walk)
    for at, x, version, copy in seen:
        assert x._version == version, at
        assert torch.equal(x, copy), at


def test_no_held_tensor_asks_for_gradients_or_shares_memory_with_a_weight(ours):
    weights = {p.untyped_storage().data_ptr() for p in ours.parameters()}
    trace = run(ours.requires_grad_(True), PROMPT)
    for at in trace.tensors:
        tensor = trace.tensors.tensor(at)
        assert not tensor.requires_grad
        assert not tensor.is_inference()
        assert tensor.untyped_storage().data_ptr() not in weights


def test_a_bfloat16_trace_hands_out_float32_and_says_what_was_computed(ours):
    trace = run(ours.to(torch.bfloat16), PROMPT)
    assert {trace[at].dtype for at in trace.walk} == {np.dtype(np.float32)}
    assert set(trace.stats["dtype"]) == {trace.dtype} == {"bfloat16"}
    for at in trace.walk:
        array = trace[at]
        assert np.array_equal(torch.from_numpy(array.copy()).to(torch.bfloat16).float().numpy(), array), at
    assert trace.nbytes * 2 == run(ours.float(), PROMPT).nbytes


def test_stats_are_one_row_per_address_in_order(ours):
    frame = run(ours, PROMPT).stats
    assert list(frame.index) == [str(at) for at in ours.config.walk]
    assert frame.index.name == "at"
    assert list(frame.columns) == [
        *("shape", "dtype", "count", "mean", "std", "rms", "min", "max", "zeros", "nan", "inf", "masked")
    ]


@pytest.mark.parametrize("past", [0, 2])
def test_stats_are_those_of_the_cells_that_a_query_may_see(ours, past):
    cache = KVCache(ours.config)
    if past:
        run(ours, PROMPT[:past], cache=cache)
    trace = run(ours, PROMPT[past:], cache=cache)
    assert trace.past == past
    for at in trace.walk:
        cells = trace[at].astype(np.float64)
        seen = cells[..., trace.visible()] if at.step.causal else cells
        s = trace.stat(at)
        assert (s.count, s.masked) == (seen.size, cells.size - seen.size), at
        assert (s.min, s.max) == (seen.min(), seen.max()), at
        assert (s.nan, s.inf, s.zeros) == (0, 0, (seen == 0).mean()), at
        rms = np.sqrt((seen**2).mean())
        assert (s.mean, s.std, s.rms) == pytest.approx((seen.mean(), seen.std(), rms), abs=1e-5 * rms), at


def test_next_tokens_are_the_softmax_of_a_row(ours):
    trace = run(ours, PROMPT)
    right = torch.tensor(trace["logits"][0, 2]).double().softmax(-1)
    found = trace.next_tokens(2, top=64)
    assert [i for i, _ in found] == right.argsort(descending=True).tolist()
    assert [p for _, p in found] == pytest.approx(right.sort(descending=True).values.tolist(), rel=1e-12)


def test_a_trace_says_what_was_run(ours):
    trace = run(ours, PROMPT)
    assert trace.ids == tuple(PROMPT)
    assert [token.text for token in trace.tokens] == ["5", "9", "9", "3", "7"]
    assert (trace.config, trace.walk, trace.until, trace.past) == (ours.config, Walk(2), None, 0)
    assert (trace.device, trace.dtype, trace.path) == ("cpu", "float32", "explicit")
    assert trace.seconds > 0


# --- what a query may see, layer by layer ---


def test_a_trace_says_what_each_layer_may_see(make):
    trace = run(make.decoder(more_rig("qwen2 window")), PROMPT)  # a window of 3 from layer 1 on
    causal = np.tri(5, dtype=bool)
    assert np.array_equal(trace.visible("0.weights"), causal)
    assert np.array_equal(trace.visible(0), causal)
    assert np.array_equal(trace.visible("logits"), causal)
    banded = causal & ~np.tri(5, k=-3, dtype=bool)
    for at in (1, "1.scores", At(1, steps.MASKED)):
        assert np.array_equal(trace.visible(at), banded)
    with pytest.raises(AddressError, match="see the last 3 keys only, others all 5"):
        trace.visible()


def test_without_an_address_what_all_layers_may_see(make):
    windowed = make.decoder(more_rig("mistral window"))
    assert run(windowed, PROMPT).visible().sum(-1).tolist() == [1, 2, 3, 3, 3]
    mixed = make.decoder(more_rig("qwen2 window"))
    assert run(mixed, PROMPT[:3]).visible().sum(-1).tolist() == [1, 2, 3]  # as long as the window: no layer hides any
    assert run(mixed, PROMPT, until="0.weights").visible("0.weights").sum() == 15


@pytest.mark.parametrize("name", ["mistral window", "qwen2 window", "qwen3 window"])
def test_stats_of_a_window_are_those_of_the_cells_that_a_query_may_see(make, name):
    ours = make.decoder(more_rig(name))
    trace = run(ours, PROMPT)
    for at in (at for at in trace.walk if at.step.causal):
        seen = trace[at].astype(np.float64)[..., trace.visible(at)]
        s = trace.stat(at)
        assert (s.count, s.masked, s.nan, s.inf) == (seen.size, trace[at].size - seen.size, 0, 0), at
        assert (s.min, s.max) == (seen.min(), seen.max()), at
        assert s.mean == pytest.approx(seen.mean(), abs=1e-6), at
    recorded = {}
    with torch.no_grad(), recording(lambda at, x: recorded.update({at: x})):
        ours(torch.tensor([PROMPT]))
    assert all(np.array_equal(trace[at], recorded[at].numpy()) for at in trace.walk)  # derived ones too


def test_the_farthest_look_stays_within_the_window(make):
    ours = make.decoder(more_rig("mistral window"))
    trace = run(ours, [*PROMPT, 40, 1, 63, 9])
    found = farthest_look(trace)
    assert found.query - found.key == 2  # neither itself nor the one before, and three are seen
    right = max(trace[f"{i}.weights"][0, :, query, query - 2].max() for i in (0, 1) for query in range(3, 9))
    assert found.weight == right


def test_what_stands_out_is_measured_by_what_the_window_shows(make):
    even = make.decoder(family_rig("mistral", sliding_window=4, initializer_range=0.02))
    found = farthest_look(run(even, [*PROMPT, 40, 1, 63, 9]))
    assert 2 / 9 < found.weight < 2 / 4  # a quarter is an even share of four keys, and would be twice one of nine
    assert not found.stands_out
    two = make.decoder(family_rig("mistral", sliding_window=2))
    assert farthest_look(run(two, PROMPT)) is None


# --- what is not finite ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_first_step_that_is_not_finite_is_told_with_its_counts(dtype):
    ours = load(PRESETS["nano"].with_(hidden_act="relu", mlp_bias=True))
    mlp = ours.model.layers[1].mlp
    for part, value in ((mlp.gate_proj, 255.875), (mlp.up_proj, 261.75)):
        part.weight.zero_()
        part.bias.zero_()
        part.bias[3] = value
    trace = run(ours.to(dtype), PROMPT)
    if dtype is torch.bfloat16:
        assert trace.first_not_finite() is None
        assert trace["1.gated"].max() == 67072
        return
    at = At(1, steps.GATED)
    assert trace.first_not_finite() == at  # 66975 is over the 65504 of float16
    assert (trace.stat(at).inf, trace.stat(at).nan, trace.stat(at).count) == (5, 0, 5 * 43)
    assert trace.stat("logits").nan == 5 * 64
    assert run(ours, PROMPT, until="1.act").first_not_finite() is None


# --- nothing of a run stays, nothing of one run reaches another ---


def test_two_threads_never_share_a_capture():
    model = load(PRESETS["nano"], std=0.3)
    prompts = {"three": [1, 2, 3], "seven": [9, 8, 7, 6, 5, 4, 3]}
    serial = {name: run(model, ids) for name, ids in prompts.items()}
    found, wrong, start = Counter(), [], threading.Barrier(2)

    def work(name: str) -> None:
        start.wait()
        for _ in range(100):
            if same(run(model, prompts[name]), serial[name]):
                found[name] += 1
            else:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, wrong) == (Counter(three=100, seven=100), [])


class Interrupt(BaseException):
    """As Streamlit's rerun and stop are: no Exception."""


def ours_hooks(model: Llama) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, Interrupt])
@pytest.mark.parametrize("where", ["mlp.up_proj", "self_attn.tap.scores", "self_attn"])
def test_a_pass_that_raises_inside_layer_1_leaves_nothing_behind(ours, kind, where):
    clean, hooks = run(ours, PROMPT), ours_hooks(ours)

    def refuse(*_):
        raise kind("from a foreign hook")

    hook = ours.model.layers[1].get_submodule(where).register_forward_hook(refuse)
    with pytest.raises(kind, match="foreign"):
        run(ours, PROMPT)
    assert torch.is_grad_enabled()
    assert ours_hooks(ours) == hooks + 1, "the foreign hook must survive"
    hook.remove()
    assert ours_hooks(ours) == hooks
    with torch.no_grad():
        ours(torch.tensor([[1, 2]]))  # a recorder left behind would refuse these shapes
    heard = []
    for tap in (module for module in ours.modules() if isinstance(module, Tap)):
        tap.register_forward_hook(lambda m, i, o: heard.append(m.at))
    assert same(run(ours, PROMPT), clean)
    assert heard == list(clean.walk)


def test_foreign_hooks_see_and_survive_every_run(ours):
    hooks, heard = ours_hooks(ours), []
    ours.model.layers[1].mlp.register_forward_hook(lambda *_: heard.append("mlp"))
    ours.model.layers[1].self_attn.tap.weights.register_forward_hook(lambda m, i, out: heard.append(out.shape))
    clean = run(ours, PROMPT)
    run(ours, PROMPT, until="0.q")
    with torch.no_grad():
        ours(torch.tensor([PROMPT]))  # nobody records, yet the foreign hooks are called
    assert same(run(ours, PROMPT), clean)
    assert heard == [(1, 4, 5, 5), "mlp"] * 3
    assert ours_hooks(ours) == hooks + 2


def test_a_run_keeps_nothing_on_the_model(ours):
    def attributes() -> dict:
        return {name: sorted(module.__dict__) for name, module in ours.named_modules()}

    before, weights = attributes(), {n: p.clone() for n, p in ours.state_dict().items()}
    run(ours, PROMPT, cache=KVCache(ours.config))
    assert attributes() == before
    assert all(torch.equal(p, weights[n]) for n, p in ours.state_dict().items())


# --- refusals ---

TOO_LONG = [0] * 65


@pytest.mark.parametrize(
    ("ids", "kind", "says"),
    [
        ([], GlassLlamaError, "empty"),
        ([64], TokenizerError, "id 64 at position 0 is outside this model's vocabulary of 64"),
        ([1, -1], TokenizerError, "id -1 at position 1"),
        ([1 << 70], TokenizerError, "vocabulary of 64"),
        (TOO_LONG, RunError, "Shorten it by 1 token"),
        ("text", TokenizerError, "no tokenizer"),
        ("", TokenizerError, "no tokenizer"),
        ([1.7, 2], TokenizerError, "whole numbers"),
        (["a"], TokenizerError, "no tokenizer"),
        ([None], TokenizerError, "whole numbers"),
        (None, TokenizerError, "whole numbers"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_with_a_sentence_before_anything_is_computed(ours, ids, kind, says):
    with module_calls(ours) as calls, pytest.raises(kind, match=says) as refused:
        run(ours, ids)
    assert isinstance(refused.value, GlassLlamaError)
    assert calls == []


@pytest.mark.parametrize("until", [3, 2.5, object(), ("0", "q")])
def test_an_until_that_is_no_address_is_refused(ours, until):
    with pytest.raises(AddressError, match="is not an address"):
        run(ours, [1, 2], until=until)


def test_a_cache_of_another_model_or_type_is_refused(ours):
    other = KVCache(ours.config.with_(num_hidden_layers=1))
    with pytest.raises(RunError, match="another config"):
        run(ours, [1, 2], cache=other)
    half = KVCache(ours.config)
    run(deepcopy(ours).to(torch.bfloat16), [1, 2], cache=half)
    with pytest.raises(RunError, match="holds bfloat16 on cpu, but the model computes in float32"):
        run(ours, [3], cache=half)
    assert half.length == 2


def test_the_last_position_can_be_run_and_the_next_is_refused_with_a_cache_too(ours):
    cache = KVCache(ours.config)
    run(ours, [1] * 60, cache=cache)
    with pytest.raises(RunError, match="Shorten it by 2 tokens"):
        run(ours, [1] * 6, cache=cache)
    assert cache.length == 60
    assert run(ours, [1] * 4, cache=cache)["0.weights"].shape == (1, 4, 4, 64)


def test_scaled_rope_may_go_beyond_the_context_of_training_and_no_further(make):
    ours = make.decoder(more_rig("llama dynamic"))  # 16 positions, factor 4
    assert run(ours, [1] * 64)["logits"].shape == (1, 64, 64)
    with pytest.raises(RunError, match="built for 64 positions, 16 stretched by dynamic RoPE scaling"):
        run(ours, [1] * 65)


@pytest.mark.parametrize("past", [0, 3])
def test_more_than_the_memory_is_refused_and_the_prompt_that_it_names_fits(ours, monkeypatch, past):
    cache = KVCache(ours.config)
    if past:
        run(ours, [1] * past, cache=cache)
    monkeypatch.setattr(runner, "SMALL", 0)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: 2 * run_bytes(ours.config, 6, past))
    with module_calls(ours) as calls, pytest.raises(RunError, match="At most 6 tokens of this model fit"):
        run(ours, [1] * 7, cache=cache)
    assert calls == []
    assert run(ours, [1] * 6, cache=cache)["logits"].shape == (1, 6, 64)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: None)  # a system that does not say
    assert run(ours, [1] * 7)["logits"].shape == (1, 7, 64)


def test_a_linear_of_a_broken_model_is_seen_by_the_recorder(ours):
    ours.model.layers[0].mlp.gate_proj = nn.Linear(32, 47)
    with pytest.raises(AssertionError, match=r"0\.gate has shape \(1, 5, 47\); the registry says \(1, 5, 48\)"):
        run(ours, PROMPT)
