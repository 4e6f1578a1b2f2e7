"""A trace that holds nearly nothing gives the numbers of one that holds everything: bit for bit, whatever the run."""

from __future__ import annotations

import gc
import threading
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from rigs import MORE_RIGS, PROMPT, more_rig

from llama_core import KVCache, LlamaConfig, explain, generate, load, look, rebuild, run, runner, steps
from llama_core.attribution import attribution
from llama_core.change import change
from llama_core.contribution import contribution
from llama_core.edits import Edit
from llama_core.effect import effect, sweep
from llama_core.errors import AddressError, NotComputedError
from llama_core.gate import compare_curves, loudest
from llama_core.heads import group_likeness, head_table, tiled_difference
from llama_core.lens import lens, loss
from llama_core.look import answer_look, farthest_look, returning_look, stream_sizes
from llama_core.model import Llama
from llama_core.norms import read_norm
from llama_core.ranges import largest_channels, spread
from llama_core.rebuild import ALWAYS, Held, Lately, held_bytes, kept_steps, run_bytes
from llama_core.steps import At
from llama_core.survey import survey
from llama_core.trace import Trace
from llama_core.turning import layout_difference, shift_proof, turned

LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(32)]
EDITS = {
    "0.resid_in": "scale 1.5",  # held as it was edited: not once more
    "0.q": "noise 0.5 3",
    "0.k_shared": "zero h1",
    "1.scores": "scale 2 h0-1",
    "1.masked": "noise 0.1 1",
    "1.act": "zero c0-5",
    "logits": "scale 0.5",
}


def rig(make, name: str) -> Llama:
    if name == "neighbours":
        return make.neighbours(make.decoder(make.reference("gqa")))
    return make.decoder(more_rig(name) if name in MORE_RIGS else make.reference(name))


@pytest.fixture(autouse=True)
def lately(monkeypatch) -> Lately:
    """A place for rebuilt tensors of each test's own."""
    own = Lately(1 << 20)
    monkeypatch.setattr(rebuild, "LATELY", own)
    return own


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.int32)


def same(one: Trace, other: Trace) -> bool:
    """Every statistic, every tensor and every head, with the sign of zero and of NaN."""
    assert one.step_stats == other.step_stats
    assert list(one.step_stats) == list(other.step_stats)
    for at in other.step_stats:
        assert np.array_equal(bits(one[at]), bits(other[at])), at
        for head in range(other.dims["Hq"] if at.step.causal else 0):
            assert np.array_equal(bits(one.head(at, head)), bits(other[at][0, head])), (at, head)
    return True


NAMES = ["gqa", "mha", "mqa", "biased", "qwen3", "neighbours", "llama3", "wide heads", "qwen2 window", "mistral window"]
NAMES += ["llama yarn", "llama dynamic", "qwen3 linear"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_the_one_that_the_run_had(make, name, dtype):
    ours = rig(make, name).to(dtype)
    held = run(ours, LONG)
    bare = run(ours, LONG, hold=0)
    assert {at.step for at in bare.tensors} == ALWAYS
    assert bare.nbytes < held.nbytes / 5
    assert same(bare, held)


@pytest.mark.parametrize("name", ["gqa", "qwen3", "qwen2 window", "llama dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_with_a_past_and_edits_and_after_the_cache_has_grown(make, name, dtype):
    ours = rig(make, name).to(dtype)
    one, other = KVCache(ours.config), KVCache(ours.config)
    run(ours, PROMPT, cache=one)
    run(ours, PROMPT, cache=other, hold=0)
    held = run(ours, LONG[:9], cache=one, edits=EDITS)
    bare = run(ours, LONG[:9], cache=other, edits=EDITS, hold=0)
    run(ours, LONG[9:], cache=other)  # rows behind those that the trace saw
    assert bare.past == 5
    assert same(bare, held)
    assert other.length == 5 + len(LONG)  # a rebuild writes no row


@pytest.mark.parametrize("at", [None, *map(str, EDITS)])
def test_edits_are_made_again(ours, at):
    edits = EDITS if at is None else {at: EDITS[at]}
    assert same(run(ours, LONG, edits=edits, hold=0), run(ours, LONG, edits=edits))


def test_a_patch_reads_a_trace_that_holds_nothing(ours):
    other = run(ours, LONG[::-1], hold=0)
    places = [At(0, steps.ATTN_OUT), At(1, steps.WEIGHTS)]
    held, bare = (
        run(ours, LONG, edits={at: Edit.patch(source) for at in places}, hold=hold)
        for source, hold in ((run(ours, LONG[::-1]), None), (other, 0))
    )
    assert all(np.array_equal(bits(bare[at]), bits(held[at])) for at in held.walk)


def test_as_much_is_held_as_the_budget_allows(ours):
    config, T = ours.config, len(LONG)
    every = frozenset(step for step in config.walk.steps if not step.derived)
    wanted = [every, frozenset(step for step in every if not step.causal), ALWAYS | {steps.LOGITS}, ALWAYS]
    needed = [held_bytes(config, kept, T) for kept in wanted]
    assert all(more > less for more, less in pairwise(needed))
    for kept, bytes_ in zip(wanted, needed, strict=True):
        assert kept_steps(config, bytes_, T) == kept
        trace = run(ours, LONG, hold=bytes_)
        assert {at.step for at in trace.tensors} == kept
        assert trace.nbytes == bytes_  # the estimate before the run is what it holds
        assert same(trace, run(ours, LONG))
    assert kept_steps(config, needed[1] - 1, T) == wanted[2]
    assert needed[0] <= config.capture_bytes(T)


@pytest.mark.parametrize("keys", [("masked",), ("k_shared", "v_shared"), ("masked", "k_shared", "v_shared")])
def test_edited_steps_that_are_held_besides_count_too(keys):
    """An edited step that shows another again is a tensor of its own: masked is as large as scores."""
    model, ids = load("nano"), [(7 * i + 3) % 64 for i in range(64)]
    edits = {f"{layer}.{key}": "scale 0.5" for layer in (0, 1) for key in keys}
    whole = run(model, ids, edits=edits)
    for hold in (whole.nbytes, model.config.capture_bytes(len(ids)), whole.nbytes // 3):
        trace = run(model, ids, edits=edits, hold=hold)
        assert trace.nbytes <= hold
        assert (trace.nbytes == whole.nbytes) == (hold >= whole.nbytes)
        assert all(np.array_equal(bits(trace[at]), bits(whole[at])) for at in whole.walk)


def test_without_a_word_the_setting_holds(ours, monkeypatch):
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    assert {at.step for at in run(ours, PROMPT).tensors} == ALWAYS
    assert {at.step for at in run(ours, [PROMPT, LONG]).tensors} == ALWAYS
    assert len(run(ours, PROMPT, hold=1 << 20).tensors) > 30


# --- stopped, resumed, batches, generation ---


@pytest.mark.parametrize(
    "until", ["embed", "0.resid_in", "0.k_rot", "0.weights", "1.gate", "1.resid_out", "final_norm"]
)
def test_a_stopped_run_is_never_rebuilt_beyond_its_end(ours, until):
    bare = run(ours, LONG, until=until, hold=0)
    assert same(bare, run(ours, LONG, until=until))
    later = ours.config.walk.order[bare.computed]
    with pytest.raises(NotComputedError, match="was not computed: the run stopped at"):
        bare[later]
    with pytest.raises(KeyError):
        bare.tensors[later]


def test_a_watch_stops_a_run_that_holds_nothing(ours):
    held, bare = (run(ours, LONG, stop_when="1.gate above 0.5", hold=hold) for hold in (None, 0))
    assert bare.stopped == held.stopped
    assert same(bare, held)


@pytest.mark.parametrize("before", [0, None])
@pytest.mark.parametrize("after", [0, None])
def test_going_on_from_a_trace_whatever_the_two_hold(ours, before, after):
    whole = run(ours, LONG, edits={"1.act": "zero c0-5"})
    for until in (None, "0.act", "1.resid_in", "1.weights"):
        start = run(ours, LONG, until=until, hold=before)
        assert same(run(ours, LONG, start=start, edits={"1.act": "zero c0-5"}, hold=after), whole), until
    assert same(run(ours, LONG, start=start, hold=after), run(ours, LONG))


def test_going_on_with_a_past(ours):
    cache = KVCache(ours.config)
    run(ours, PROMPT, cache=cache)
    start = run(ours, LONG[:9], cache=cache, until="1.gate", hold=0)
    fresh, again = KVCache(ours.config), KVCache(ours.config)
    run(ours, PROMPT, cache=fresh)
    whole = run(ours, LONG[:9], cache=fresh)
    assert same(run(ours, LONG[:9], start=start, cache=again, hold=0), whole)
    assert all(np.array_equal(a, b) for a, b in zip(again.arrays(1), fresh.arrays(1), strict=True))


def test_rows_of_a_batch_and_what_goes_on_from_them(make):
    ours = rig(make, "qwen2 window")
    prompts = [PROMPT, LONG, LONG[9:20]]
    held, bare = run(ours, prompts), run(ours, prompts, hold=0)
    assert all(np.array_equal(bits(bare[at]), bits(held[at])) for at in held.step_stats)
    with pytest.raises(AddressError, match="3 prompts: say which is meant"):
        bare.head("0.weights", 0)
    for b in range(3):
        assert same(bare.row(b), held.row(b))
    edits = {"1.mlp_out": "scale 2"}
    ids = prompts[2]
    start, after = held.row(2), run(ours, ids, start=bare.row(2), edits=edits, hold=0)
    whole = run(ours, ids, start=start, edits=edits)
    assert same(after, whole)
    further = {**edits, "0.k": "zero h0"}  # what lies before is the batch's, what comes after has its own shape
    again = run(ours, ids, start=after, edits=further, hold=0)
    assert same(again, run(ours, ids, start=whole, edits=further))


def test_generation(ours, monkeypatch):
    def traces():
        return list(generate(ours, LONG[:7], max_new_tokens=4, stop=()))

    held = traces()
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    for (token, trace), (other, before) in zip(traces(), held, strict=True):
        assert token == other
        assert same(trace, before)


# --- measures ---


def values(x) -> list[np.ndarray]:
    """All arrays and numbers in a measure."""
    if hasattr(x, "__dataclass_fields__"):
        return [each for name in x.__dataclass_fields__ for each in values(getattr(x, name))]
    if isinstance(x, dict):
        return [each for value in x.values() for each in values(value)]
    if isinstance(x, (list, tuple)):
        return [each for value in x for each in values(value)]
    if hasattr(x, "to_numpy"):
        return [x.to_numpy()]
    return [np.asarray(x)] if isinstance(x, (np.ndarray, int, float, str)) else [np.array(repr(x))]


MEASURES = {
    "heads": lambda trace, ours: head_table(trace),
    "alike": lambda trace, ours: group_likeness(trace, 1),
    "tiled": lambda trace, ours: tiled_difference(trace, 1),
    "far": lambda trace, ours: farthest_look(trace),
    "returning": lambda trace, ours: returning_look(trace),
    "answer": lambda trace, ours: answer_look(trace),
    "sizes": lambda trace, ours: stream_sizes(trace),
    "contribution": lambda trace, ours: contribution(trace, ours, 1, 20),
    "norm": lambda trace, ours: read_norm(trace, ours, At(1, steps.MLP_NORM)),
    "neurons": lambda trace, ours: loudest(trace, 1, 20),
    "curves": lambda trace, ours: compare_curves(trace, 1),
    "spread": lambda trace, ours: [spread(trace, step) for step in (steps.WEIGHTS, steps.GATE)],
    "channels": lambda trace, ours: largest_channels(trace, steps.MLP_OUT),
    "lens": lambda trace, ours: list(lens(trace, ours)),
    "loss": lambda trace, ours: loss(trace),
    "attribution": lambda trace, ours: attribution(trace, ours, 20, 3),
    "turned": lambda trace, ours: turned(trace, 1, 2, "key", 20),
    "layouts": lambda trace, ours: layout_difference(trace, 1, 2, 20),
    "shift": lambda trace, ours: shift_proof(trace, 1, 2, 20, 3),
    "change": lambda trace, ours: change(trace, At(1, steps.MASKED), At(1, steps.WEIGHTS)),
    "explain": lambda trace, ours: [explain(trace, at, (0,) * len(at.step.axes)) for at in trace.walk],
    "survey": lambda trace, ours: survey(trace).layers,
    "sweep": lambda trace, ours: sweep(ours, trace, "heads", 3),
    "effect": lambda trace, ours: list(effect(trace, run(ours, LONG, start=trace, edits=EDITS)).changes()),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measures_say_the_same(ours, name, lately):
    held, bare = run(ours, LONG), run(ours, LONG, hold=0)
    ours_, theirs = (values(MEASURES[name](trace, ours)) for trace in (bare, held))
    assert len(theirs) > 0
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(ours_, theirs, strict=True))


WHOLE = {"alike", "change", "survey", "effect", "spread"}
"""Measures that need all heads at once, or the rest of the layer besides."""


@pytest.mark.parametrize("name", sorted(MEASURES.keys() - WHOLE))
def test_a_measure_of_single_heads_builds_no_map_of_all(ours, name, monkeypatch):
    bare = run(ours, LONG, hold=0)
    asked: list[At] = []
    layer = Held._layer
    monkeypatch.setattr(Held, "_layer", lambda self, at: asked.append(at) or layer(self, at))
    MEASURES[name](bare, ours)
    assert not [at for at in asked if at.step.causal]


@pytest.fixture
def long_runs() -> tuple[Trace, Trace]:
    config = LlamaConfig(64, 32, 48, 2, 4, 2, max_position_embeddings=640)
    ids = [(11 * i * i + 5 * i) % 61 for i in range(600)]
    return tuple(run(load(config, seed=3, std=0.3), ids, hold=hold) for hold in (None, 0))


def test_of_a_long_prompt_the_last_queries_are_searched_and_the_weight_is_the_runs_own(long_runs):
    held, bare = long_runs
    assert look.LONG < 600
    for search in (farthest_look, returning_look, answer_look):
        assert search(bare) == search(held)
    found = farthest_look(bare)
    weights = np.concatenate([held[At(layer, steps.WEIGHTS)][:, :, -look.RECENT :] for layer in range(2)])
    far = np.tri(600, 600, -2, dtype=bool)[-look.RECENT :]
    far[:, 0] = False
    assert found.weight == np.where(far, weights, 0).max() == held[found.at][0, found.head, found.query, found.key]


def test_the_looks_of_one_query(long_runs):
    held, bare = long_runs
    want = held["1.weights"][0, :, 400]
    assert np.array_equal(look.looks_of(held, 1, 400), want)
    np.testing.assert_allclose(look.looks_of(bare, 1, 400), want, atol=1e-6)


def test_an_edited_map_is_searched_as_it_was_edited(long_runs):
    held, _ = long_runs
    ours = load(held.config, seed=3, std=0.3)
    edits = {"0.weights": "zero h0-2", "1.scores": "scale 0.1"}
    traces = [run(ours, held.ids, edits=edits, hold=hold) for hold in (None, 0)]
    assert farthest_look(traces[0]) == farthest_look(traces[1])
    assert np.array_equal(*(look.looks_of(trace, 1, 400) for trace in traces))


# --- what is kept of it ---


class Layers:
    """How many layers run inside the block."""

    def __init__(self, model: Llama) -> None:
        self.count, self._model = 0, model

    def __enter__(self) -> Layers:
        self._hooks = [each.register_forward_pre_hook(self._add) for each in self._model.model.layers]
        return self

    def __exit__(self, *_) -> None:
        for hook in self._hooks:
            hook.remove()

    def _add(self, *_) -> None:
        self.count += 1


def test_a_layer_is_run_once_for_all_its_steps_and_the_front_of_it_for_one_head(ours, lately):
    bare = run(ours, LONG, hold=0)
    with Layers(ours) as layers:
        for step in (steps.SCORES, steps.WEIGHTS, steps.MASKED, steps.GATE, steps.UP, steps.Q):
            bare[At(1, step)]
        assert layers.count == 1
    bare = run(ours, LONG, hold=0)
    with Layers(ours) as layers:
        for head in range(4):
            bare.head("0.weights", head)
            bare.head("0.weights", head)
        assert layers.count == 1
    kept = {key for key in bare.tensors.lately if isinstance(key, At)}
    assert {at.step.key for at in kept} == {"attn_norm", "q", "k", "v", "q_rot", "k_rot"}


def test_what_is_kept_stays_within_its_bytes_and_the_least_used_goes_first(ours, monkeypatch):
    gate = run(ours, LONG)["0.gate"].nbytes
    small = Lately(3 * gate)
    monkeypatch.setattr(rebuild, "LATELY", small)
    bare = run(ours, LONG, hold=0)
    for at in bare.walk:
        bare[at]
        assert small.nbytes() <= 3 * gate
    assert sum(x.nbytes for x in bare.tensors.lately.values()) == small.nbytes()
    assert At(None, steps.LOGITS) in bare.tensors.lately
    owner, other = run(ours, [1], hold=0).tensors, run(ours, [2], hold=0).tensors
    x = torch.zeros(gate // 4)
    for key in "abc":
        small.put(owner, {key: x})
    small.get(owner, "a")
    small.put(other, {"d": x})
    assert (set(owner.lately), set(other.lately)) == ({"a", "c"}, {"d"})
    small.put(other, {"e": torch.zeros(gate)})
    assert (set(owner.lately), set(other.lately)) == ({"a", "c"}, {"d"})  # too large to be kept: nothing goes for it


def test_a_trace_that_goes_takes_what_was_rebuilt_along(ours, lately):
    bare = run(ours, LONG, hold=0)
    bare["1.gate"]
    assert lately.nbytes() > 0
    del bare
    gc.collect()
    assert lately.nbytes() == 0


def test_nothing_is_kept_where_there_is_no_room(ours, monkeypatch):
    monkeypatch.setattr(rebuild, "LATELY", Lately(0))
    assert same(run(ours, LONG[:8], hold=0), run(ours, LONG[:8]))
    assert same(run(ours, [PROMPT, LONG[:8]], hold=0).row(0), run(ours, [PROMPT, LONG[:8]]).row(0))


def test_threads_read_right_numbers_within_the_bound(ours, monkeypatch):
    small = Lately(run(ours, LONG)["0.weights"].nbytes * 3)
    monkeypatch.setattr(rebuild, "LATELY", small)
    held = [run(ours, ids) for ids in (LONG, LONG[::-1])]
    bare = [run(ours, ids, hold=0) for ids in (LONG, LONG[::-1])]
    wrong: list[object] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(60):
                one, at = random.integers(2), held[0].walk.order[random.integers(len(held[0].walk))]
                if not np.array_equal(bits(bare[one][at]), bits(held[one][at])):
                    wrong.append(at)
                if at.step.causal and not np.array_equal(bare[one].head(at, 2), held[one][at][0, 2]):
                    wrong.append((at, 2))
                if small.nbytes() > small.limit:
                    wrong.append(small.nbytes())
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(x.nbytes for each in bare for x in each.tensors.lately.values()) == small.nbytes()


def test_arrays_refuse_writes_and_a_head_must_be_there(ours):
    bare = run(ours, LONG, hold=0)
    for array in (bare["0.gate"], bare.head("0.weights", 1), run(ours, LONG).head("0.weights", 1)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AddressError, match="no query head 4"):
        bare.head("0.weights", 4)
    with pytest.raises(AddressError, match="ask for scores, masked or weights"):
        bare.head("0.q_rot", 0)


def test_of_a_trace_from_elsewhere_a_head_is_a_part_of_all(ours):
    held = run(ours, LONG)
    other = Trace(ours.config, held.tokens, held.walk, held.step_stats, {at: held[at] for at in held.walk}, held.dims)
    assert np.array_equal(other.head("0.weights", 2), held["0.weights"][0, 2])


def test_a_longer_prompt_needs_more_room_and_at_the_end_the_map_rules(ours):
    config = ours.config
    sizes = [run_bytes(config, T) for T in (8, 16, 32, 64)]
    assert all(more > less for less, more in pairwise(sizes))
    assert run_bytes(config, 32, batch=2) == 2 * run_bytes(config, 32)
    assert run_bytes(config, 1, 31) > 4 * 4 * 4 * 32  # four maps of one row, for each of four heads


# --- these tests see a mistake ---


def test_a_rebuild_that_forgets_an_edit_or_makes_one_twice_is_seen(ours, monkeypatch):
    held = run(ours, LONG, edits=EDITS)
    bare = run(ours, LONG, edits=EDITS, hold=0)
    bare.tensors._edits = {}
    with pytest.raises(AssertionError):
        same(bare, held)
    bare = run(ours, LONG, edits=EDITS, hold=0)
    before = At(0, steps.RESID_IN)
    bare.tensors._tensors[before] = rebuild.edited(
        bare.tensors.tensor(before), bare.tensors._edits[before], ours.config
    )
    with pytest.raises(AssertionError):
        same(bare, held)


def test_a_head_of_another_group_is_seen(ours, monkeypatch):
    held, bare = run(ours, LONG), run(ours, LONG, hold=0)
    monkeypatch.setattr(rebuild, "share_heads", lambda x, group: x.repeat(1, 1, group, 1))
    assert not np.array_equal(bare.head("0.weights", 1), held["0.weights"][0, 1])


def test_weights_of_another_model_are_seen(ours):
    held, bare = run(ours, LONG), run(ours, LONG, hold=0)
    other = deepcopy(ours)
    other.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    bare.tensors.model = other
    assert not np.array_equal(bare["1.up"], held["1.up"])
