"""The fused path gives the explicit one's numbers; what it has no tensor of is made from q_rot and k_rot when asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import MORE_RIGS, PROMPT, more_rig
from transformers import PreTrainedModel

from llama_core import KVCache, run, steps
from llama_core.edits import Edit
from llama_core.effect import effect
from llama_core.errors import RunError
from llama_core.model import Llama
from llama_core.rebuild import ALWAYS, run_bytes
from llama_core.steps import At
from llama_core.trace import Trace

BOUND = 2e-5
LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(48)]
NAMES = ["gqa", "mha", "mqa", "wide heads", "llama3", "biased", "qwen3", *MORE_RIGS]


def reference(make, name: str) -> PreTrainedModel:
    return more_rig(name) if name in MORE_RIGS else make.reference(name)


def apart(one: Trace, other: Trace, at: At) -> float:
    """The largest |difference| of two tensors, over cells that are finite in both."""
    a, b = one[at], other[at]
    assert np.array_equal(np.isfinite(a), np.isfinite(b)), at
    return float(np.abs(np.where(np.isfinite(a), a, 0) - np.where(np.isfinite(b), b, 0)).max())


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.int32)


@pytest.fixture
def ours(make) -> Llama:
    return make.decoder(make.reference("gqa"))


# --- the same numbers ---


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_that_of_the_explicit_path_and_the_logits_are_transformers_own(make, name):
    theirs = reference(make, name)
    ours = make.decoder(theirs)
    for ids in (PROMPT, LONG[: ours.config.max_length]):
        explicit, fused = run(ours, ids), run(ours, ids, path="fused")
        assert max(apart(explicit, fused, at) / max(1, explicit.stat(at).rms) for at in explicit.walk) < BOUND
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits.numpy()
        assert np.abs(fused["logits"] - logits).max() < BOUND


@pytest.mark.parametrize("name", ["gqa", "qwen2 window", "llama dynamic"])
@pytest.mark.parametrize("lengths", [(5, 9), (9, 1), (1, 1), (3, 40)])
def test_behind_cached_positions_too(make, name, lengths):
    ours = make.decoder(reference(make, name))
    first, then = lengths
    caches = KVCache(ours.config), KVCache(ours.config)
    explicit, fused = (
        [run(ours, part, cache=cache, path=path) for part in (LONG[:first], LONG[first : first + then])][1]
        for cache, path in zip(caches, ("explicit", "fused"), strict=True)
    )
    assert fused.past == first
    assert max(apart(explicit, fused, at) for at in explicit.walk) < BOUND


def test_in_bfloat16_it_is_as_near_to_float32_as_the_explicit_path_is(ours):
    exact, half = run(ours, LONG)["logits"], ours.to(torch.bfloat16)
    explicit, fused = (np.abs(run(half, LONG, path=path)["logits"] - exact) for path in ("explicit", "fused"))
    assert fused.mean() < 1.5 * explicit.mean()
    assert fused.max() < 1.5 * explicit.max()


# --- what the pass has, and what is made when asked for ---


def test_maps_are_no_tensors_of_the_pass_and_have_no_statistics_until_asked_for(ours):
    fused, explicit = run(ours, LONG, path="fused"), run(ours, LONG)
    maps = [at for at in fused.walk if at.step.causal]
    assert len(maps) == 6
    assert not any(fused.holds(at) or fused.measured(at) for at in maps)
    assert all(fused.measured(at) for at in fused.walk if at not in maps)
    table = fused.stats
    assert list(table.index) == [str(at) for at in fused.walk]
    assert table.loc[[str(at) for at in maps], "mean"].isna().all()
    assert table.loc[[str(at) for at in maps], "count"].isna().all()
    assert table.loc["1.scores", "shape"] == (1, 4, 48, 48)
    assert table.drop([str(at) for at in maps]).notna().all(axis=None)
    for at in maps:
        found, there = fused.stat(at), explicit.stat(at)
        assert fused.measured(at)
        assert found[3:9] == pytest.approx(there[3:9], rel=1e-4, abs=1e-6), at  # mean to zeros
        assert found[:2] == there[:2]
        assert (found.count, found.masked, found.nan) == (there.count, there.masked, 0)
    assert fused.stats.notna().all(axis=None)
    assert fused.stats["count"].tolist() == explicit.stats["count"].tolist()


def test_maps_are_computed_from_the_turned_queries_and_keys_of_the_pass(ours):
    trace = run(ours, LONG, path="fused")
    for layer in range(2):
        q, k = (trace[At(layer, step)][0].astype(np.float64) for step in (steps.Q_ROT, steps.K_SHARED))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(8)
        assert np.abs(trace[At(layer, steps.SCORES)][0] - scores).max() < 1e-5
        scores[:, np.triu(np.ones((48, 48), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        assert np.abs(trace[At(layer, steps.WEIGHTS)][0] - weights).max() < 1e-6
        for head in range(4):
            for step in (steps.SCORES, steps.MASKED, steps.WEIGHTS):
                at = At(layer, step)
                assert np.array_equal(bits(trace.head(at, head)), bits(trace[at][0, head])), at


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gqa", "qwen3", "qwen2 window"])
def test_what_is_not_held_is_made_again_by_the_same_path(make, name, dtype):
    ours = make.decoder(reference(make, name)).to(dtype)
    edits = {"0.q": "noise 0.5 3", "0.k_shared": "zero h1", "1.head_out": "scale 2 h0"}
    for changes in (None, edits):
        held, bare = (run(ours, LONG, path="fused", edits=changes, hold=hold) for hold in (None, 0))
        assert {at.step for at in bare.tensors} == ALWAYS
        assert all(np.array_equal(bits(bare[at]), bits(held[at])) for at in held.walk)
        assert all(bare.stat(at) == held.stat(at) for at in held.walk)


def test_auto_is_fused_just_where_the_maps_would_not_be_held(ours):
    maps = sum(run(ours, LONG)[at].nbytes for at in ours.config.walk if at.step in (steps.SCORES, steps.WEIGHTS))
    whole = run(ours, LONG, path="auto")
    assert (whole.path, whole.fused) == ("explicit", frozenset())
    tight = run(ours, LONG, path="auto", hold=whole.nbytes - maps)
    assert (tight.path, tight.fused) == ("fused", {0, 1})
    assert tight.nbytes == whole.nbytes - maps


def test_a_fused_run_needs_no_room_for_maps(ours):
    config = ours.config
    growth = [run_bytes(config, 2 * T, fused=True) / run_bytes(config, T, fused=True) for T in (512, 4096)]
    assert growth == pytest.approx([2, 2])
    assert run_bytes(config, 4096) > 3 * run_bytes(config, 4096, fused=True)


# --- which layers ---


@pytest.mark.parametrize(
    "how",
    [
        {"edits": {"1.weights": "zero h1"}},
        {"edits": {"1.scores": "scale 2"}},
        {"stop_when": "1.weights entropy 1e-9"},
        {"until": "1.weights"},
    ],
)
def test_a_layer_whose_maps_are_edited_watched_or_the_last_is_explicit(ours, how):
    trace = run(ours, LONG, path="fused", **how)
    assert (trace.path, trace.fused) == ("fused but for layer 1", {0})
    assert trace.measured("1.scores")
    assert not trace.measured("0.scores")
    assert (trace.path_of("1.head_out") if "1.head_out" in trace.stats.index else "explicit") == "explicit"
    assert [trace.path_of(f"0.{key}") for key in ("q", "weights", "head_out")] == ["fused", "explicit", "fused"]


def test_before_and_after_an_edit_are_on_one_path_so_that_nothing_moves_outside_its_cone(ours):
    before = run(ours, LONG, path="fused")
    after = run(ours, LONG, start=before, edits={"0.head_out": "zero h1 t20"})
    assert after.fused == before.fused
    for at in before.walk:
        if "T" in at.step.axes and at.step is not steps.SCORES:  # which have cells of later keys
            assert np.array_equal(np.take(before[at], range(20), at.step.axes.index("T")),
                                  np.take(after[at], range(20), at.step.axes.index("T"))), at  # fmt: skip
    assert np.abs(after["logits"][0, 20:] - before["logits"][0, 20:]).max() > 0.1
    assert effect(before, after).kl(-1) > 0
    with pytest.raises(RunError, match="ran its attention fused, so an edit of layer 1's maps"):
        run(ours, LONG, start=before, edits={"1.weights": "zero h1"})


@pytest.mark.parametrize("until", [None, "0.act", "1.resid_in", "1.q_rot", "1.head_out"])
def test_going_on_from_a_fused_trace_is_the_uninterrupted_run(ours, until):
    edits = {"1.act": "zero c0-5"}
    whole = run(ours, LONG, path="fused", edits=edits)
    start = run(ours, LONG, path="fused", until=until)
    again = run(ours, LONG, start=start, edits=edits)
    assert again.fused == {0, 1}
    assert all(np.array_equal(bits(again[at]), bits(whole[at])) for at in whole.walk)


def test_a_trace_that_ends_at_a_map_of_a_fused_one_shares_all_before(ours):
    whole = run(ours, LONG, path="fused")
    stopped = run(ours, LONG, start=whole, until="1.weights")
    assert stopped.computed == whole.walk.index(At(1, steps.WEIGHTS)) + 1
    assert np.array_equal(stopped["1.weights"], whole["1.weights"])
    assert stopped.stat("1.weights") == whole.stat("1.weights")


def test_the_first_step_that_is_not_finite_is_found_among_the_maps(ours):
    overflow = Edit.parse("1.q_rot set 3e38")
    trace = run(ours, LONG, path="fused", edits=[overflow])
    assert trace.first_not_finite() == run(ours, LONG, edits=[overflow]).first_not_finite() == At(1, steps.SCORES)


def test_paths_that_there_are_not_are_refused(ours):
    with pytest.raises(RunError, match="no attention path 'flash'"):
        run(ours, PROMPT, path="flash")
    with pytest.raises(RunError, match="A batch runs explicitly"):
        run(ours, [PROMPT, LONG], path="fused")
    assert run(ours, [PROMPT, LONG], path="auto").path == "explicit"
