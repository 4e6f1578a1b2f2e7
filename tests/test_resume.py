"""A run that goes on from a trace is the run from the beginning: bit for bit, and what is the same is shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import KVCache, run, steps
from llama_core.edits import Edit
from llama_core.errors import NotComputedError, RunError
from llama_core.model import Llama
from llama_core.steps import At
from llama_core.trace import Trace


@pytest.fixture(params=["gqa", "qwen2 window", "qwen3 dynamic"])
def rig(request, make) -> Llama:
    return make.decoder(make.reference("gqa") if request.param == "gqa" else more_rig(request.param))


def same(one: Trace, other: Trace) -> bool:
    """Every tensor, with the sign of zero, and every statistic."""
    return (
        list(one.step_stats) == list(other.step_stats)
        and one.step_stats == other.step_stats
        and (one.ids, one.dims, one.until, one.edits) == (other.ids, other.dims, other.until, other.edits)
        and all(np.array_equal(one[at].view(np.int32), other[at].view(np.int32)) for at in one.step_stats)
    )


def first_of(at: At) -> At:
    """Where a run begins again to compute `at`: the layer's input, embed, or final_norm."""
    if at.layer is not None:
        return At(at.layer, steps.RESID_IN)
    return At(None, steps.EMBED) if at.step is steps.EMBED else At(None, steps.FINAL_NORM)


class Calls:
    """The layers that a block computes, by the norm that each begins with."""

    def __init__(self, model: Llama) -> None:
        self.layers, self.hooks = [], []
        for i, layer in enumerate(model.model.layers):
            self.hooks.append(layer.input_layernorm.register_forward_pre_hook(lambda m, x, i=i: self.layers.append(i)))

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_) -> None:
        for hook in self.hooks:
            hook.remove()


def test_going_on_from_any_address_is_the_uninterrupted_run(rig):
    full = run(rig, PROMPT)
    for at in rig.config.walk:
        stopped = run(rig, PROMPT, until=at)
        assert same(run(rig, PROMPT, start=stopped), full), at


def test_until_and_resume_compose_step_by_step(rig):
    full = run(rig, PROMPT)
    trace = run(rig, PROMPT, until="embed")
    for index, at in enumerate(rig.config.walk):
        trace = run(rig, PROMPT, start=trace, until=at)
        assert trace.computed == index + 1
        assert same(trace, run(rig, PROMPT, until=at)), at
        later = rig.config.walk.order[index + 1 :]
        if later:
            with pytest.raises(NotComputedError):
                trace[later[0]]
    assert all(np.array_equal(trace[at], full[at]) for at in full.walk)


def test_a_shorter_until_takes_what_is_there_and_computes_nothing(ours):
    full = run(ours, PROMPT)
    with Calls(ours) as calls:
        for at in ours.config.walk:
            assert same(run(ours, PROMPT, start=full, until=at), run(ours, PROMPT, until=at)), at
        calls.layers.clear()
        for at in (None, "logits", "1.q", "0.k_shared"):
            assert run(ours, PROMPT, start=full, until=at).seconds < 60
    assert calls.layers == []


@pytest.mark.parametrize("text", ["scale 2 t1 c0", "zero t2", "noise 0.3 1 t1-2"])
def test_an_edit_at_any_address_is_the_run_from_the_beginning_with_it(rig, text):
    full = run(rig, PROMPT)
    for at in rig.config.walk:
        edits = {at: text}
        again, right = run(rig, PROMPT, start=full, edits=edits), run(rig, PROMPT, edits=edits)
        assert same(again, right), at
        assert same(run(rig, PROMPT, start=again, edits=()), full), at  # switched off
        assert same(run(rig, PROMPT, start=again), right), at  # no edits given: those of the trace


def test_what_comes_before_is_shared_and_not_computed(ours):
    full = run(ours, PROMPT)
    for at in ours.config.walk:
        begin = first_of(at)
        with Calls(ours) as calls:
            after = run(ours, PROMPT, start=full, edits={at: "scale 2 t1"})
        first = 2 if begin.step is steps.FINAL_NORM else begin.layer or 0
        assert calls.layers == list(range(first, 2)), at
        for each in ours.config.walk.order[: ours.config.walk.index(begin)]:
            assert after.step_stats[each] is full.step_stats[each], (at, each)
            if each in set(full.tensors):
                assert after.tensors.tensor(each) is full.tensors.tensor(each), (at, each)


def test_edits_that_stay_are_shared_too_and_their_order_counts(ours):
    base = run(ours, PROMPT, edits="0.q zero h0; 0.k_shared zero h1; 1.up set 3; 1.up scale 2")
    with Calls(ours) as calls:
        more = run(ours, PROMPT, start=base, edits=[*base.edits, "logits zero t0"])
        assert calls.layers == []
        turned = run(ours, PROMPT, start=base, edits="0.q zero h0; 0.k_shared zero h1; 1.up scale 2; 1.up set 3")
        assert calls.layers == [1]
    assert not more["logits"][0, 0].any()
    assert np.array_equal(more["logits"][0, 1:], base["logits"][0, 1:])
    assert more["0.k_shared"][:, :, 1].any() == np.False_
    assert (turned["1.up"] == 3).all()
    assert (base["1.up"] == 6).all()


def test_going_on_past_a_stop_with_other_edits(ours):
    stopped = run(ours, PROMPT, until="1.scores", edits="0.up scale 2")
    for edits in ((), "0.up scale 2; 1.q zero", "1.weights scale 2", "embed zero t0"):
        for until in (None, "0.up", "1.masked"):
            again = run(ours, PROMPT, start=stopped, edits=edits, until=until)
            assert same(again, run(ours, PROMPT, edits=edits, until=until)), (edits, until)


def test_cells_outside_the_causal_cone_differ_by_exactly_0(rig):
    full = run(rig, PROMPT)
    for key in ("resid_in", "k_rot", "k_shared", "v_shared", "scores", "weights", "head_out", "gated"):
        after = run(rig, PROMPT, start=full, edits={f"0.{key}": "scale 3 t2"})
        for at in full.walk:
            moved = after[at] != full[at]
            if at.step.causal:  # scores that no query may see meet the keys of later tokens
                queries = (moved & full.visible(at))[0].any((0, 2))
            else:
                queries = moved[0].reshape(moved.shape[1], -1).any(-1)
            assert not queries[:2].any(), (key, at)
        assert (after["logits"] != full["logits"])[0, 2:].any(), key


def test_bfloat16_goes_on_bit_for_bit(ours):
    ours = ours.to(torch.bfloat16)
    full = run(ours, PROMPT)
    for at in ours.config.walk:
        assert same(run(ours, PROMPT, start=run(ours, PROMPT, until=at)), full), at
        edits = {at: "scale 0.3 t3"}
        assert same(run(ours, PROMPT, start=full, edits=edits), run(ours, PROMPT, edits=edits)), at


# --- with a past ---


def grown(rig: Llama, *parts: list[int], **last) -> tuple[KVCache, Trace]:
    cache = KVCache(rig.config)
    for part in parts[:-1]:
        run(rig, part, cache=cache)
    return cache, run(rig, parts[-1], cache=cache, **last)


def test_with_a_past_it_is_the_run_from_the_beginning_and_the_old_cache_stays(rig):
    cache, full = grown(rig, PROMPT[:3], PROMPT[3:])
    run(rig, [1, 2, 3], cache=cache)  # the cache has gone on meanwhile
    rows = [array for layer in range(2) for array in cache.arrays(layer)]
    before = [array.copy() for array in rows]
    for at in rig.config.walk:
        edits = {at: "scale 2 t1"}
        right_cache, right = grown(rig, PROMPT[:3], PROMPT[3:], edits=edits)
        fresh = KVCache(rig.config)
        for again in (
            run(rig, PROMPT[3:], start=full, edits=edits),
            run(rig, PROMPT[3:], start=full, edits=edits, cache=fresh),
        ):
            assert same(again, right), at
        assert fresh.length == 5
        for layer in range(2):
            for array, other in zip(fresh.arrays(layer), right_cache.arrays(layer), strict=True):
                assert np.array_equal(array, other), (at, layer)
        stopped = grown(rig, PROMPT[:3], PROMPT[3:], until=at)[1]
        assert same(run(rig, PROMPT[3:], start=stopped), full), at
    assert cache.length == 8
    assert all(np.array_equal(array, old) for array, old in zip(rows, before, strict=True))


def test_an_empty_cache_takes_what_a_resumed_run_shares(ours):
    full = run(ours, PROMPT)
    right = KVCache(ours.config)
    run(ours, PROMPT, cache=right)
    for start in (full, run(ours, PROMPT, until="1.q"), run(ours, PROMPT, until="embed")):
        cache = KVCache(ours.config)
        run(ours, PROMPT, start=start, cache=cache)
        assert cache.length == 5
        for layer in range(2):
            assert all(map(np.array_equal, cache.arrays(layer), right.arrays(layer)))
        step = run(ours, [7], cache=cache)
        assert np.abs(step["logits"][0, -1] - run(ours, [*PROMPT, 7])["logits"][0, -1]).max() < 2e-5
    unfinished = KVCache(ours.config)
    run(ours, PROMPT, start=full, cache=unfinished, until="1.q")
    assert unfinished.length == 0


def test_a_step_of_generation_can_be_edited_without_touching_the_next(ours):
    cache = KVCache(ours.config)
    traces = [run(ours, PROMPT[:4], cache=cache)] + [run(ours, [i], cache=cache) for i in (7, 2)]
    assert [t["0.weights"].shape for t in traces] == [(1, 4, 4, 4), (1, 4, 1, 5), (1, 4, 1, 6)]
    last = traces[2]["logits"]
    after = run(ours, [7], start=traces[1], edits="1.head_out zero h1")
    assert not np.array_equal(after["logits"], traces[1]["logits"])
    assert np.array_equal(traces[2]["logits"], last)
    assert np.array_equal(run(ours, [2], start=traces[2], edits="embed scale 1")["logits"], last)


# --- what a run cannot go on from ---


def test_another_prompt_model_or_type_is_refused(ours, make):
    full = run(ours, PROMPT)
    other = make.decoder(make.reference("gqa"))
    filled = KVCache(ours.config)
    run(ours, [1], cache=filled)
    foreign = Trace(full.config, full.tokens, full.walk, full.step_stats, {}, full.dims)
    for model, ids, start, cache, says in (
        (ours, PROMPT[:4], full, None, "it has 5, this prompt 4"),
        (ours, [5, 9, 9, 3, 8], full, None, "of other tokens"),
        (other, PROMPT, full, None, "by another model"),
        (ours, PROMPT, full, filled, "holds 1 positions"),
        (ours, PROMPT, foreign, None, "only from a trace that `run` made"),
    ):
        with Calls(model) as calls, pytest.raises(RunError, match=says):
            run(model, ids, start=start, cache=cache)
        assert calls.layers == []
    ours.to(torch.bfloat16)
    with pytest.raises(RunError, match="in another type"):
        run(ours, PROMPT, start=full)


# --- cancelled ---


class Cancelled(BaseException):
    pass


def test_what_progress_raises_ends_a_run_at_every_half_of_a_layer_and_leaves_nothing(ours):
    full, told = run(ours, PROMPT), []
    run(ours, PROMPT, progress=told.append)
    halves = [At(layer, step) for layer in (0, 1) for step in (steps.ATTN_OUT, steps.RESID_OUT)]
    ends = [(ours.config.walk.index(at) + 1) / 47 for at in halves]
    assert told == ends
    for end in ends:
        cache = KVCache(ours.config)

        def refuse(share, end=end):
            if share == end:
                raise Cancelled

        with pytest.raises(Cancelled):
            run(ours, PROMPT, cache=cache, edits="0.up zero", progress=refuse)
        assert cache.length == 0
        assert torch.is_grad_enabled()
        assert same(run(ours, PROMPT), full)
    told.clear()
    run(ours, PROMPT, start=run(ours, PROMPT, until="1.q"), progress=told.append)
    assert told == ends[2:]


def test_an_edit_of_one_prompt_does_not_reach_a_resumed_other(ours):
    one, other = run(ours, PROMPT), run(ours, [8, 1, 60, 33, 2])
    run(ours, PROMPT, start=one, edits=[Edit.patch(other, "0.resid_out")])
    assert same(run(ours, PROMPT, start=one), run(ours, PROMPT))
    assert same(other, run(ours, [8, 1, 60, 33, 2]))
