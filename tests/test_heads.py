"""The measures of heads: hand-made patterns with known answers, and loops over the captured weights."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from rigs import PROMPT

import llama_core.model
from llama_core import KVCache, load, run
from llama_core.heads import (
    MEASURES,
    alike,
    entropy,
    group_likeness,
    head_table,
    heads_of,
    measure_heads,
    nearest_heads,
    tiled_difference,
    without_first,
)

IDS = [4, 7, 9, 4, 7, 9]


def one_head(looks: list[int], S: int | None = None) -> np.ndarray:
    """A map [1 T S] whose query t puts all its weight on key looks[t]."""
    weights = np.zeros((1, len(looks), S or len(looks)), dtype=np.float32)
    weights[0, np.arange(len(looks)), looks] = 1
    return weights


def even(T: int) -> np.ndarray:
    return (np.tri(T) / np.arange(1, T + 1)[:, None])[None].astype(np.float32)


def causal(T: int, S: int | None = None) -> np.ndarray:
    S = S or T
    return np.tri(T, S, S - T, dtype=bool)


def measured(weights, ids, visible=None) -> dict[str, float]:
    visible = causal(*weights.shape[1:]) if visible is None else visible
    measures = measure_heads(weights, ids, visible)
    return {name: getattr(measures, name)[0] for name in MEASURES}


# --- patterns with known answers ---


def test_an_even_map_has_the_entropy_of_as_many_equal_choices():
    found = measured(even(5), [1, 2, 3, 4, 5])
    assert found["entropy"] == pytest.approx(np.mean([math.log(n) for n in (2, 3, 4, 5)]))
    assert found["spread"] == pytest.approx(1)
    assert (
        found["first"] == found["itself"] == found["previous"] == pytest.approx(np.mean([1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    )
    assert found["distance"] == pytest.approx(np.mean([0.5, 1, 1.5, 2]))


def test_a_head_that_looks_at_one_token_has_no_entropy():
    found = measured(one_head([0, 0, 1, 2, 3]), [1, 2, 3, 4, 5])
    assert (found["entropy"], found["spread"], found["previous"], found["itself"]) == (0, 0, 1, 0)
    assert found["distance"] == 1
    assert found["first"] == 1 / 4  # query 1 alone: its previous token is the first


def test_query_0_which_can_only_see_itself_counts_for_nothing():
    found = measured(one_head([0, 1, 2]), [1, 2, 3])
    assert (found["first"], found["itself"]) == (0, 1)


def test_an_induction_head_looks_behind_the_last_occurrence_and_only_repeats_count():
    found = measured(one_head([0, 0, 0, 1, 2, 3]), IDS)  # 3 -> 1, 4 -> 2, 5 -> 3: what came after the first 4, 7, 9
    assert (found["induction"], found["duplicate"]) == (1, 0)
    assert measured(one_head([0, 0, 0, 1, 2, 2]), IDS)["induction"] == pytest.approx(2 / 3)


def test_a_duplicate_head_looks_at_the_same_token():
    found = measured(one_head([0, 0, 0, 0, 1, 2]), IDS)
    assert (found["induction"], found["duplicate"]) == (0, 1)


def test_without_a_repeat_there_is_nothing_to_score():
    found = measured(even(4), [1, 2, 3, 4])
    assert math.isnan(found["induction"])
    assert math.isnan(found["duplicate"])


def test_a_token_right_behind_its_twin_has_no_successor_to_look_at():
    found = measured(one_head([0, 0]), [3, 3])
    assert found["duplicate"] == 1
    assert math.isnan(found["induction"])
    found = measured(one_head([0, 0, 1]), [3, 3, 3])  # the last one: the first 3 has a successor, at 1
    assert found["induction"] == 1


def test_of_several_occurrences_the_latest_counts():
    found = measured(one_head([0, 0, 0, 0, 3]), [5, 6, 5, 8, 5])
    assert found["induction"] == pytest.approx(0.5)  # query 2 looks at 0, not 1; query 4 at 3, behind the second 5
    assert found["duplicate"] == pytest.approx(0.5)  # query 2 looks at the first 5; query 4 does not look at 2


def test_on_an_exact_repeat_the_score_is_the_mean_of_the_shifted_diagonal(ours):
    half = [5, 9, 3, 7, 1, 2]
    trace = run(ours, half * 2)
    n = len(half)
    older = [trace["1.weights"][0][:, t, t - n + 1] for t in range(n, 2 * n)]
    assert heads_of(trace, 1).induction == pytest.approx(np.mean(older, axis=0), rel=1e-6)


def test_one_token_has_no_measure(ours):
    table = head_table(run(ours, [5]))
    assert len(table) == 8
    assert table[list(MEASURES)].isna().all(axis=None)


def test_behind_a_window_nothing_is_asked():
    near = causal(6) & ~np.tri(6, 6, -3, dtype=bool)  # three keys each
    looks = one_head([0, 0, 0, 1, 2, 3])
    found = measured(looks, IDS, near)
    assert found["induction"] == 1  # two back is still seen
    assert math.isnan(found["duplicate"])  # three back is not
    assert found["first"] == 1  # queries 1 and 2: the others no longer see it


def test_with_cached_positions_keys_and_distances_count_from_the_first(ours):
    cache = KVCache(ours.config)
    run(ours, [5, 9, 3], cache=cache)
    trace = run(ours, [7, 9, 7, 9], cache=cache)
    weights = trace["0.weights"][0]  # Hq 4 7
    found = heads_of(trace, 0)
    assert found.first == pytest.approx(weights[:, :, 0].mean(axis=1))
    assert found.itself == pytest.approx(np.stack([weights[:, t, 3 + t] for t in range(4)]).mean(axis=0))
    assert found.induction == pytest.approx((weights[:, 2, 4] + weights[:, 3, 5]) / 2)  # ids of this pass only
    assert found.distance == pytest.approx(
        np.mean([weights[:, t] @ (3 + t - np.arange(7)) for t in range(4)], axis=0), rel=1e-5
    )


# --- against what we did not write ---


@pytest.mark.parametrize("ours", ["gqa", "qwen3"], indirect=True)
def test_entropy_is_that_of_torch(ours):
    weights = run(ours, PROMPT)["1.weights"][0]
    theirs = torch.distributions.Categorical(torch.tensor(weights, dtype=torch.float64)).entropy()
    assert entropy(weights) == pytest.approx(theirs.numpy(), abs=1e-6)
    assert heads_of(run(ours, PROMPT), 1).entropy == pytest.approx(theirs[:, 1:].mean(1).numpy(), abs=1e-6)


def test_the_table_has_a_row_for_each_head_that_was_computed(ours):
    table = head_table(run(ours, PROMPT))
    assert table[["layer", "head", "kv"]].to_numpy().tolist() == [
        [layer, head, head // 2] for layer in range(2) for head in range(4)
    ]
    assert list(table.columns) == ["layer", "head", "kv", *MEASURES]
    assert table["entropy"].to_numpy()[4:] == pytest.approx(heads_of(run(ours, PROMPT), 1).entropy)
    assert len(head_table(run(ours, PROMPT, until="1.scores"))) == 4


def test_a_copied_head_is_the_nearest_and_its_map_the_same(ours):
    q = ours.model.layers[0].self_attn.q_proj.weight
    q.data[8:16] = q.data[0:8]  # query head 1 asks what head 0 asks, of the same keys
    trace = run(ours, [*PROMPT, *PROMPT])
    found = nearest_heads(head_table(trace), 0, 0, n=3)
    assert (found.iloc[0]["layer"], found.iloc[0]["head"]) == (0, 1)
    assert found.iloc[0]["apart"] == pytest.approx(0, abs=1e-5)
    assert found["apart"].is_monotonic_increasing
    assert len(found) == 3
    assert alike(trace["0.weights"][0], trace.visible(0))[0, 1] == pytest.approx(1, abs=1e-6)


def test_heads_are_compared_in_spreads_of_each_measure():
    table = pd.DataFrame(
        {name: [np.nan] * 3 for name in MEASURES} | {"layer": [0] * 3, "head": [0, 1, 2], "kv": [0] * 3}
    )
    table["entropy"], table["distance"] = [0.0, 1.0, 0.0], [0.0, 0.0, 100.0]
    assert nearest_heads(table, 0, 0)["apart"].to_numpy() == pytest.approx([1 / np.std([0, 1, 0])] * 2)
    assert len(nearest_heads(table.assign(entropy=1.0, distance=np.nan), 0, 0)) == 0


@pytest.mark.parametrize("ours", ["gqa", "mha", "mqa"], indirect=True)
def test_likeness_is_the_mean_cosine_of_pairs(ours):
    trace = run(ours, PROMPT)
    maps = torch.tensor(trace["1.weights"][0][:, 1:], dtype=torch.float64).flatten(1)
    kv = [head // trace.config.group for head in range(4)]
    pairs = {True: [], False: []}
    for a in range(4):
        for b in range(a):
            pairs[kv[a] == kv[b]].append(float(torch.cosine_similarity(maps[a], maps[b], dim=0)))
    found = group_likeness(trace, 1)
    for mean, cosines in ((found.within, pairs[True]), (found.across, pairs[False])):
        assert mean == pytest.approx(np.mean(cosines) if cosines else np.nan, abs=1e-6, nan_ok=True)
    assert math.isnan(found.within) == (trace.config.group == 1)
    assert np.diagonal(found.cosines) == pytest.approx(1)


@pytest.mark.parametrize("ours", ["gqa", "qwen3", "biased", "neighbours"], indirect=True)
def test_tiled_sharing_differs_by_what_a_tiled_model_computes(ours, monkeypatch):
    trace = run(ours, PROMPT)
    found = tiled_difference(trace, 0)
    monkeypatch.setattr(llama_core.model, "share_heads", lambda x, group: x.repeat(1, 1, group, 1))
    tiled = run(ours, PROMPT, until="0.head_out")["0.head_out"]
    apart = np.abs(tiled - trace["0.head_out"]).max(axis=(0, 1, 3))
    assert found.each == pytest.approx(apart, abs=1e-5)
    assert found.largest == pytest.approx(apart.max(), abs=1e-5)
    assert found.largest > 0.1 > found.rounding * 1e4


@pytest.mark.parametrize("ours", ["mha", "mqa"], indirect=True)
def test_without_groups_tiled_is_grouped(ours):
    found = tiled_difference(run(ours, PROMPT), 1)
    assert (found.largest, found.each.tolist()) == (0, [0] * 4)
    assert found.rounding < 1e-5 < found.rms


def test_hiding_the_first_column_leaves_rows_that_sum_to_1():
    hidden = without_first(even(4))
    assert np.isnan(hidden[0, :, 0]).all()
    assert np.isnan(hidden[0, 0]).all()
    assert hidden[0, 3, 1:] == pytest.approx([1 / 3] * 3)
    assert np.nansum(hidden[0, 1:], axis=1) == pytest.approx(1)


def test_the_real_model_has_sinks_and_an_induction_head():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    ids = model.tokenizer.encode(" harbour glass seven winter lamp stone")
    table = head_table(run(model, ids * 2))
    assert len(table) == 270
    assert table["induction"].max() > 0.5  # random ids would give 1 / visible, below 0.1
    assert table["first"].max() > 0.9
    assert ((table["spread"] >= 0) & (table["spread"] <= 1)).all()
