"""The two paths of attention beside each other: their difference as numpy has it, a broken one seen, their costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig
from torch.nn import functional

from llama_core import KVCache, paths, run, runner, steps
from llama_core.config import PRESETS
from llama_core.errors import NotComputedError, RunError
from llama_core.model import Llama
from llama_core.paths import BOUNDS, Costs, costs_by_length, difference, lengths, measure, unmeasured
from llama_core.rebuild import run_bytes
from llama_core.steps import At

LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(48)]


@pytest.fixture
def ours(make) -> Llama:
    return make.decoder(make.reference("gqa"))


# --- how far apart ---


@pytest.mark.parametrize("edits", [None, {"0.q": "noise 0.5 3", "1.up": "scale 2"}])
@pytest.mark.parametrize("hold", [None, 0])
@pytest.mark.parametrize("first", ["explicit", "fused"])
def test_the_difference_is_that_of_two_runs_cell_by_cell(ours, first, hold, edits):
    explicit, fused = (run(ours, LONG, path=path, edits=edits) for path in ("explicit", "fused"))
    told = []
    found = difference(ours, run(ours, LONG, path=first, hold=hold, edits=edits), told.append)
    for step, distance in ((steps.HEAD_OUT, found.head_out), (steps.RESID_OUT, found.resid_out)):
        ats = [At(layer, step) for layer in range(2)]
        right = [np.abs(explicit[at].astype(np.float64) - fused[at]).max() for at in ats]
        np.testing.assert_allclose(distance.largest, right, rtol=1e-6)
        sizes = [np.sqrt(np.mean(explicit[at].astype(np.float64) ** 2)) for at in ats]
        np.testing.assert_allclose(distance.rms, sizes, rtol=1e-4)
        np.testing.assert_allclose(distance.shares, np.divide(right, sizes), rtol=1e-4)
    assert found.logits.largest == np.abs(explicit["logits"] - fused["logits"]).max() > 0
    assert np.array_equal(found.next_tokens, [trace["logits"][0].argmax(-1) for trace in (explicit, fused)])
    assert found.layers == (0, 1)
    assert found.largest_share < found.bound == BOUNDS["float32"]
    assert told == [0.5, 1.0]


def test_both_paths_expect_the_next_tokens_that_transformers_does(make):
    for name in ("gqa", "qwen3", "llama dynamic", "qwen2 window"):
        theirs = more_rig(name) if " " in name else make.reference(name)
        ours = make.decoder(theirs)
        with torch.no_grad():
            right = theirs(torch.tensor([LONG])).logits[0].argmax(-1).numpy()
        assert np.array_equal(difference(ours, run(ours, LONG)).next_tokens, [right, right]), name


MISTAKES = {
    "no mask": {"attn_mask": None, "is_causal": False},
    "another scale": {"scale": 1.0},
    "a scale of the whole width": {"scale": 32**-0.5},
    "no dropout but one cell in ten": {"dropout_p": 0.1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_path_that_is_broken_is_further_away_than_rounding_goes(ours, monkeypatch, mistake, dtype):
    ours, right = ours.to(dtype), functional.scaled_dot_product_attention
    trace = run(ours, LONG)
    assert difference(ours, trace).largest_share < BOUNDS[trace.dtype]

    def wrong(q, k, v, attn_mask=None, **how):
        how |= {"attn_mask": attn_mask} | MISTAKES[mistake]
        return right(q, k, v, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", wrong)
    assert difference(ours, trace).largest_share > BOUNDS[trace.dtype]


@pytest.mark.parametrize("first", ["explicit", "fused"])
def test_next_tokens_come_explicit_first_whichever_the_trace_is(ours, monkeypatch, first):
    right = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *x, **how: right(*x, **how).roll(1, 2))
    best = [run(ours, LONG, path=path)["logits"][0].argmax(-1) for path in ("explicit", "fused")]
    assert not np.array_equal(*best)
    assert np.array_equal(difference(ours, run(ours, LONG, path=first)).next_tokens, best)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_cell_that_is_finite_on_one_path_alone_is_infinitely_far(ours, monkeypatch, value):
    trace, right = run(ours, LONG), functional.scaled_dot_product_attention

    def broken(*args, **how):
        out = right(*args, **how)
        out[0, 1, 5, 2] = value
        return out

    monkeypatch.setattr(functional, "scaled_dot_product_attention", broken)
    found = difference(ours, trace)
    assert found.head_out.largest.tolist() == [np.inf, np.inf]
    assert found.largest_share == np.inf


def test_large_tensors_are_compared_some_positions_at_a_time(ours, monkeypatch):
    trace = run(ours, LONG)
    whole = difference(ours, trace)
    monkeypatch.setattr(paths, "CELLS", 100)
    parts = difference(ours, trace)
    assert np.array_equal(parts.resid_out.largest, whole.resid_out.largest)
    assert parts.logits.largest == whole.logits.largest


def test_a_layer_whose_maps_are_edited_is_explicit_in_both(ours):
    found = difference(ours, run(ours, LONG, edits={"0.weights": "zero h1"}))
    assert found.layers == (1,)
    assert found.head_out.largest[0] == found.resid_out.largest[0] == 0.0
    assert found.head_out.shares[0] == 0.0
    assert 0 < found.head_out.largest[1] < 1e-5
    mixed = run(ours, LONG, path="fused", edits={"0.weights": "zero h1"})
    assert difference(ours, mixed).layers == (1,)


def test_what_cannot_be_compared_is_refused(ours, make, monkeypatch):
    with pytest.raises(RunError, match="The maps of every layer are edited"):
        difference(ours, run(ours, LONG, edits={"0.weights": "scale 2", "1.scores": "scale 2"}))
    with pytest.raises(NotComputedError, match="logits was not computed"):
        difference(ours, run(ours, LONG, until="1.act"))
    with pytest.raises(RunError, match="computed by another model"):
        difference(make.decoder(make.reference("mha")), run(ours, LONG))
    cache = KVCache(ours.config)
    run(ours, LONG[:5], cache=cache)
    with pytest.raises(RunError, match="has 5 cached positions"):
        difference(ours, run(ours, LONG[5:], cache=cache))
    fused = run(ours, LONG, path="fused")
    monkeypatch.setattr(runner, "SMALL", 0)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: needed // 2)
    with pytest.raises(RunError, match="a run may take half of the memory that is free"):
        difference(ours, fused)


# --- what they cost ---


def test_lengths_double_as_far_as_the_model_goes(ours):
    far = ours.config.with_(max_position_embeddings=100_000)
    assert lengths(far, 5) == (5, 64, 128, 256, 512, 1024, 2048)
    assert lengths(far, 512) == (64, 128, 256, 512, 1024, 2048)
    assert lengths(far, 3000) == (64, 128, 256, 512, 1024, 2048, 3000)
    assert lengths(far.with_(max_position_embeddings=300), 7) == (7, 64, 128, 256)
    assert lengths(far.with_(max_position_embeddings=20), 7) == (7, 20)


FAR = Llama(PRESETS["nano"].with_(max_position_embeddings=1 << 16))


@pytest.fixture
def passes(monkeypatch) -> list[tuple[int, bool]]:
    """Every pass that is timed, as (T, fused). It takes T squared µs, and half of that where it is fused."""
    made = []

    def seconds(model, prompt, fused):
        made.append((prompt.shape[1], bool(fused)))
        return prompt.shape[1] ** 2 * (0.5e-6 if fused else 1e-6)

    monkeypatch.setattr(paths, "_seconds", seconds)
    return made


def test_both_paths_are_timed_in_turn_and_bytes_are_those_of_a_run(passes):
    seen = []
    found = list(costs_by_length(FAR, [1, 2, 3], seconds=1000, between=lambda: seen.append(len(passes))))
    assert [each.T for each in found] == [3, 64, 128, 256, 512, 1024, 2048]
    assert [fused for _, fused in passes] == [False, True] * (len(passes) // 2)
    assert [T for T, _ in passes] == [3] * 2 + [T for each in found for T in [each.T] * 10]
    assert seen == list(range(len(passes)))
    for T, explicit, fused in found:
        assert (explicit.seconds, fused.seconds) == pytest.approx((T**2 * 1e-6, T**2 * 0.5e-6))
        assert (explicit.nbytes, fused.nbytes) == tuple(run_bytes(FAR.config, T, fused=way) for way in (False, True))


def test_no_length_begins_that_would_not_end_in_time(passes):
    found = list(costs_by_length(FAR, [1, 2, 3], seconds=6))
    assert [each.T for each in found] == [3, 64, 128, 256, 512, 1024]  # 3.0 s are left, and 2,048 would take 6.3 s
    assert sum(T**2 * (0.5e-6 if fused else 1e-6) for T, fused in passes) < 6
    assert sum(T == 1024 for T, _ in passes) == 2  # once each: 1.6 s of 0.5
    assert [each.T for each in costs_by_length(FAR, [1] * 40, seconds=0)] == [40]


def test_a_few_tokens_take_as_long_as_many_more_and_foretell_nothing(monkeypatch):
    monkeypatch.setattr(paths, "_seconds", lambda model, prompt, fused: max(0.25, prompt.shape[1] / 400))
    assert [each.T for each in costs_by_length(FAR, [1, 2, 3], seconds=6)] == [3, 64, 128, 256]


def test_what_does_not_fit_in_memory_has_no_time(passes, monkeypatch):
    def lacks(model, T, past, fused):
        return 1 if (256 if fused else 128) < T else None

    monkeypatch.setattr(runner, "lacks_room", lacks)
    found = list(costs_by_length(FAR, [1, 2, 3]))
    assert [(each.T, each.explicit.seconds is None, each.fused.seconds is None) for each in found] == [
        (3, False, False),
        (64, False, False),
        (128, False, False),
        (256, True, False),
    ]
    assert found[-1].explicit.nbytes > found[-1].fused.nbytes


def test_a_timed_pass_is_a_plain_one_over_the_prompt_again_and_again(ours, monkeypatch):
    ran, real = [], Llama.forward

    def forward(self, ids, *args, **how):
        ran.append((ids[0].tolist(), list(how["fused"]), torch.is_grad_enabled()))
        return real(self, ids, *args, **how)

    monkeypatch.setattr(Llama, "forward", forward)
    short = list(itertools.islice(costs_by_length(ours, PROMPT), 2))
    assert [each.T for each in short] == [5, 64]
    assert all(isinstance(each, Costs) and each.explicit.seconds > 0 and each.fused.seconds > 0 for each in short)
    assert [(list(PROMPT), [], False), (list(PROMPT), [0, 1], False)] == ran[:2]
    assert ran[-1] == ((PROMPT * 13)[:64], [0, 1], False)
    with pytest.raises(RunError, match="no token to time"):
        next(costs_by_length(ours, []))


# --- statistics that a fused pass has not ---


def test_missing_statistics_are_made_one_by_one_and_those_that_are_there_stay(ours):
    trace, explicit = run(ours, LONG, path="fused"), run(ours, LONG)
    maps = [at for at in trace.walk if at.step.causal]
    assert unmeasured(explicit) == ()
    assert list(unmeasured(trace)) == maps

    class Ended(Exception):  # noqa: N818
        pass

    def end_at_half(share: float) -> None:
        if share == 0.5:
            raise Ended

    with pytest.raises(Ended):
        measure(trace, end_at_half)
    assert list(unmeasured(trace)) == maps[3:]
    told = []
    measure(trace, told.append)
    assert unmeasured(trace) == ()
    assert told == pytest.approx([1 / 3, 2 / 3, 1])
    assert trace.stat("1.weights").mean == pytest.approx(explicit.stat("1.weights").mean, rel=1e-5)
    assert unmeasured(run(ours, LONG, path="fused", until="1.q_rot")) == tuple(maps[:3])
