"""What an edit changed, against numpy over both runs; and sweeps, against one run after another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import KVCache, run, steps
from llama_core.edits import Edit
from llama_core.effect import effect, sweep
from llama_core.errors import GlassLlamaError, NotComputedError, RunError
from llama_core.steps import At


def shares(logits: np.ndarray) -> np.ndarray:
    return torch.tensor(logits).double().softmax(-1).numpy()


def test_nothing_changed_is_nowhere_and_exactly_0(ours):
    before = run(ours, PROMPT)
    for after in (run(ours, PROMPT), run(ours, PROMPT, start=before), run(ours, PROMPT, edits="0.up scale 1")):
        change = effect(before, after)
        assert change.first is None
        assert not change.stream().any()
        assert change.kl() == 0.0
        assert {largest for _, largest in change.changes()} == {0.0}


@pytest.mark.parametrize("resumed", [True, False])
def test_the_first_address_and_the_largest_change_of_each(ours, resumed):
    before = run(ours, PROMPT)
    after = run(ours, PROMPT, start=before if resumed else None, edits="1.up scale 2 t3 c7")
    change = effect(before, after)
    assert change.first == At(1, steps.UP)
    found = dict(change.changes())
    assert list(found) == list(before.walk)
    for at in before.walk:
        with np.errstate(invalid="ignore"):
            right = np.abs(np.where(before[at] == after[at], 0, after[at].astype(np.float64) - before[at])).max()
        assert found[at] == right == change.largest(str(at)), at
    assert found[At(1, steps.MASKED)] == 0.0
    assert change.largest("1.up") == abs(before["1.up"][0, 3, 7])


def test_the_stream_map_is_the_causal_cone(ours):
    before = run(ours, PROMPT)
    after = run(ours, PROMPT, start=before, edits="1.k_rot scale 2 t2")
    moved = effect(before, after).stream()
    assert moved.shape == (2, 5)
    assert not moved[0].any()
    assert not moved[1, :2].any()
    assert moved[1, 2:].all()
    a, b = (trace["1.resid_out"][0].astype(np.float64) for trace in (before, after))
    right = np.sqrt(((b - a) ** 2).sum(-1) / (a**2).sum(-1))
    np.testing.assert_allclose(moved[1], right, rtol=1e-12)


def test_what_was_not_computed_has_no_answer(ours):
    before = run(ours, PROMPT)
    change = effect(before, run(ours, PROMPT, edits="0.up zero", until="1.q"))
    assert np.isnan(change.stream()[1]).all()
    assert change.stream()[0].all()
    assert len(list(change.changes())) == before.walk.index(At(1, steps.Q)) + 1
    with pytest.raises(NotComputedError):
        change.largest("logits")
    with pytest.raises(NotComputedError):
        change.kl()


def test_what_is_no_longer_finite_is_an_infinite_change(ours):
    ours = ours.to(torch.float16)
    before = run(ours, PROMPT)
    change = effect(before, run(ours, PROMPT, start=before, edits="0.mlp_out set 70000 t1 c0"))
    assert change.largest("0.mlp_out") == change.largest("0.resid_out") == np.inf
    assert change.first == At(0, steps.MLP_OUT)
    assert change.stream()[0].tolist() == [0, np.inf, 0, 0, 0]
    assert np.isnan(change.kl())
    assert effect(change.after, change.after).first is None


def test_probabilities_and_their_divergence(ours):
    before = run(ours, PROMPT)
    change = effect(before, run(ours, PROMPT, start=before, edits="1.head_out zero h0"))
    for position in (-1, 3):
        p, q = (shares(trace["logits"][0, position]) for trace in (before, change.after))
        for found, right in zip(change.probabilities(position), (p, q), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12)
        kl = torch.nn.functional.kl_div(torch.tensor(q).log(), torch.tensor(p), reduction="sum").item()
        assert change.kl(position) == pytest.approx(kl, rel=1e-9)
        rows = change.next_tokens(position, top=3)
        assert {i for i, _, _ in rows} == set(np.argsort(-p)[:3]) | set(np.argsort(-q)[:3])
        assert all(row == (row[0], pytest.approx(p[row[0]]), pytest.approx(q[row[0]])) for row in rows)
        assert [b for _, b, _ in rows] == sorted((b for _, b, _ in rows), reverse=True)


def test_a_vector_added_to_all_of_the_head_moves_logits_and_no_probability(ours):
    before = run(ours, PROMPT)
    with torch.no_grad():
        ours.lm_head.weight.add_(torch.linspace(-1, 1, 32))
    change = effect(before, run(ours, PROMPT))
    assert change.first == At(None, steps.LOGITS)
    assert change.largest("logits") > 0.5
    assert change.kl() < 1e-6


def test_runs_of_other_sizes_are_not_compared(ours, make):
    one = run(ours, PROMPT)
    for other in (run(ours, PROMPT[:3]), run(make.decoder(make.reference("qwen3")), PROMPT)):
        with pytest.raises(RunError, match="their sizes differ"):
            effect(one, other)


# --- sweeps ---

PARTS = {"heads": steps.HEAD_OUT, "attn_out": steps.ATTN_OUT, "mlp_out": steps.MLP_OUT}


@pytest.mark.parametrize("name", ["gqa", "qwen2 window"])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("edits", [None, "0.up scale 2; 1.head_out scale 3 h1"])
def test_a_sweep_is_one_run_after_another(make, name, parts, edits):
    ours = make.decoder(make.reference("gqa") if name == "gqa" else more_rig(name))
    trace, told = run(ours, PROMPT, edits=edits), []
    found = sweep(ours, trace, parts, token_id=11, position=3, progress=told.append)
    heads = range(4) if parts == "heads" else [None]
    right = np.zeros((2, 2, len(heads)))
    for layer in range(2):
        for column, head in enumerate(heads):
            edit = Edit.zero(At(layer, PARTS[parts]), heads=None if head is None else [head])
            after = run(ours, PROMPT, edits=[*trace.edits, edit])["logits"][0, 3]
            before = trace["logits"][0, 3]
            right[0, layer, column] = float(after[11]) - float(before[11])
            right[1, layer, column] = np.log(shares(after)[11] / shares(before)[11])
    shape = (2, 4) if parts == "heads" else (2,)
    assert found.logit.shape == found.log_probability.shape == shape
    assert np.array_equal(found.logit, right[0].reshape(shape))
    np.testing.assert_allclose(found.log_probability, right[1].reshape(shape), atol=1e-9)
    assert found.logit.all()
    assert told == [(i + 1) / found.logit.size for i in range(found.logit.size)]


def test_a_sweep_behind_cached_positions_leaves_the_cache(ours):
    cache = KVCache(ours.config)
    run(ours, PROMPT[:3], cache=cache)
    trace = run(ours, PROMPT[3:], cache=cache)
    rows = [array.copy() for array in cache.arrays(1)]
    found = sweep(ours, trace, "heads", token_id=11)
    after = run(ours, PROMPT[3:], start=trace, edits="0.head_out zero h2")
    assert found.logit[0, 2] == float(after["logits"][0, -1, 11]) - float(trace["logits"][0, -1, 11])
    assert cache.length == 5
    assert all(map(np.array_equal, rows, cache.arrays(1)))


class Stop(BaseException):
    pass


def test_what_progress_raises_ends_a_sweep(ours):
    trace, seen = run(ours, PROMPT), []

    def refuse(share: float) -> None:
        seen.append(share)
        if share == 3 / 8:
            raise Stop

    with pytest.raises(Stop):
        sweep(ours, trace, "heads", 11, progress=refuse)
    assert len(seen) == 3
    assert np.array_equal(run(ours, PROMPT)["logits"], trace["logits"])


@pytest.mark.parametrize(
    ("parts", "token", "position", "says"),
    [
        ("neurons", 1, 0, "no sweep over 'neurons'"),
        ("heads", 64, 0, "vocabulary of 64"),
        ("heads", -1, 0, "vocabulary of 64"),
        ("heads", 1, 5, "no position 5"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(ours, parts, token, position, says):
    with pytest.raises(GlassLlamaError, match=says):
        sweep(ours, run(ours, PROMPT), parts, token, position)
    with pytest.raises(NotComputedError):
        sweep(ours, run(ours, PROMPT, until="1.q"), "heads", 1)
