"""The survey: pooled maps keep their maxima, layers appear one by one, what stops it leaves what is ready."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rigs import PROMPT

from llama_core import KVCache, load, run
from llama_core.gate import shut
from llama_core.heads import head_table
from llama_core.norms import layer_growth
from llama_core.survey import begin, blocks, survey


@pytest.fixture(scope="module")
def trace():
    return run(load("tiny"), np.random.default_rng(0).integers(0, 256, 150).tolist())


def test_a_cell_is_the_largest_weight_of_its_block(trace):
    found = survey(trace)
    weights = trace["2.weights"][0]
    maps = found.layers[2].maps
    assert maps.shape == (8, 50, 50)
    assert maps.dtype == np.uint8
    for i, (a, b) in enumerate(found.rows):
        for j, (c, d) in enumerate(found.columns):
            block = weights[:, a:b, c:d].max(axis=(1, 2))
            assert np.abs(maps[:, i, j] / 255 - block).max() <= 0.5 / 255 + 1e-6
            assert found.layers[2].hidden[i, j] == (c > b - 1)
    assert (maps.max(axis=(1, 2)) == np.rint(255 * weights.max(axis=(1, 2)))).all()


def test_without_its_first_key_a_row_is_brought_back_to_one(trace):
    found, weights = survey(trace), trace["2.weights"][0].astype(np.float64)
    rest = weights[:, 1:, 1:] / weights[:, 1:, 1:].sum(axis=2, keepdims=True)
    for i, (a, b) in enumerate(found.rows):
        for j, (c, d) in enumerate(found.columns):
            block = rest[:, max(a - 1, 0) : b - 1, max(c - 1, 0) : d - 1].max(axis=(1, 2))
            assert np.abs(found.layers[2].rest[:, i, j] / 255 - block).max() <= 0.5 / 255 + 1e-6


def test_a_short_prompt_is_not_pooled(ours):
    found = survey(run(ours, PROMPT))
    assert found.layers[1].maps.shape == (4, 5, 5)
    assert found.rows.tolist() == [[i, i + 1] for i in range(5)]
    assert np.array_equal(found.layers[1].hidden, ~np.tri(5, dtype=bool))


def test_with_cached_positions_a_map_is_wider_than_high():
    model = load("tiny")
    cache = KVCache(model.config)
    run(model, [1] * 70, cache=cache)
    short = run(model, [2] * 10, cache=cache)
    found = survey(short)
    assert found.layers[0].maps.shape == (8, 10, 40)
    blocks = short["0.weights"][0].reshape(8, 10, 40, 2).max(axis=3)
    assert np.abs(found.layers[0].maps / 255 - blocks).max() <= 0.5 / 255 + 1e-6
    assert found.layers[0].hidden[0].tolist() == [False] * 36 + [True] * 4  # query 70 sees keys 0 to 70


@pytest.mark.parametrize(
    ("n", "count", "last"), [(1, 1, [0, 1]), (64, 64, [63, 64]), (65, 33, [64, 65]), (500, 63, [496, 500])]
)
def test_blocks_cover_every_place_once(n, count, last):
    found = blocks(n)
    assert len(found) == count <= 64
    assert found[-1].tolist() == last
    assert [i for a, b in found for i in range(a, b)] == list(range(n))


def test_each_layer_has_the_measures_of_its_own(trace):
    found = survey(trace)
    assert found.head_table().equals(head_table(trace))
    for one in found.layers:
        assert np.array_equal(one.growth.mlp_cosine, layer_growth(trace, one.layer).mlp_cosine)
        assert one.shut.quiet_share == shut(trace, one.layer).quiet_share
    assert found.done


def test_layers_appear_one_by_one_for_whoever_looks(trace):
    found, seen = begin(trace), []

    def look(share: float) -> None:
        def read() -> None:
            seen.append((len(found.layers), len(found.head_table()), found.done, share))

        reader = threading.Thread(target=read)
        reader.start()
        reader.join()

    assert (found.layers, found.total, found.done) == ((), 4, False)
    assert survey(trace, look, into=found) is found
    assert seen == [(1, 8, False, 0.25), (2, 16, False, 0.5), (3, 24, False, 0.75), (4, 32, True, 1.0)]


def test_what_progress_raises_ends_it_and_it_can_go_on(trace):
    found = begin(trace)

    class Stop(BaseException):
        pass

    def stop(share: float) -> None:
        if share >= 0.5:
            raise Stop

    with pytest.raises(Stop):
        survey(trace, stop, into=found)
    kept = found.layers
    assert [one.layer for one in kept] == [0, 1]
    survey(trace, into=found)
    assert found.layers[:2] == kept
    assert [one.layer for one in found.layers] == [0, 1, 2, 3]


def test_a_run_that_stopped_is_surveyed_as_far_as_it_went(ours):
    found = survey(run(ours, PROMPT, until="1.gate"))
    assert (found.total, len(found.layers), found.done) == (1, 1, True)


def test_it_is_small_and_holds_no_tensor_of_the_run(trace):
    found = survey(trace)
    assert found.nbytes < 4 * (2 * 8 * 50 * 50 + 50 * 50 + 8 * 8 * 8 + 9 * 150 * 8 + 100)
    held = [one.maps for one in found.layers] + [one.growth.after for one in found.layers]
    assert not any(np.shares_memory(array, trace[at]) for array in held for at in trace.tensors)


def test_weights_that_are_no_number_are_drawn_as_nothing(ours):
    ours.model.layers[1].self_attn.q_proj.weight.data[0] = np.nan
    found = survey(run(ours, PROMPT))
    assert (found.layers[1].maps[0] == 0).all()
    assert (found.layers[1].rest[0] == 0).all()
    assert np.isnan(found.layers[1].heads.entropy[0])


def test_the_real_models_survey_is_two_megabytes():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    found = survey(run(model, list(range(1000, 1128))))
    assert found.layers[0].maps.shape == (9, 64, 64)
    assert len(found.head_table()) == 270
    assert 2_200_000 < found.nbytes < 2_900_000
