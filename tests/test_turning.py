"""RoPE to look at: turned here as the run turned it, as transformers does; the score knows the distance alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig, save_folder
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from llama_core import KVCache, load, run
from llama_core.config import PRESETS
from llama_core.errors import ConfigError
from llama_core.scaling import DynamicScaling, LinearScaling, Llama3Scaling, YarnScaling
from llama_core.steps import K_ROT, Q_ROT, SCORES, At
from llama_core.turning import (
    KINDS,
    LAYOUTS,
    Turning,
    angles,
    from_pairs,
    layout_difference,
    members,
    moved_score,
    original_context,
    place_scores,
    shift_proof,
    to_pairs,
    turn,
    turned,
    turning_of,
    vectors,
    what_if,
)

TINY = PRESETS["tiny"]
IDS = [10, 20, 30, 40, 50, 60]
MODELS = {
    "halves": TINY,
    "neighbours": TINY.with_(rope_layout="neighbours"),
    "qk_norm": TINY.with_(qk_norm=True),
    "mha": TINY.with_(num_key_value_heads=8),
    "linear": TINY.with_(rope_scaling=LinearScaling(4.0)),
    "dynamic": TINY.with_(rope_scaling=DynamicScaling(4.0), max_position_embeddings=4),
    "llama3": TINY.with_(rope_scaling=Llama3Scaling(8.0, original_max_position_embeddings=64)),
    "yarn": TINY.with_(rope_scaling=YarnScaling(4.0, 64)),
    "window": TINY.with_(sliding_window=3),
}


def trace_of(name: str):
    return run(load(MODELS[name], seed=1, std=0.3), IDS)


# --- one vector ---


def test_a_small_vector_by_hand_in_both_layouts():
    turning = Turning(np.array([1, 0.01], np.float32), 1.0, "halves")
    x = np.array([1.0, 2.0, 3.0, 4.0])
    halves = turn(x, 1, turning, np.float64)
    np.testing.assert_allclose(halves, [-1.98411, 1.95990, 2.46238, 4.01980], atol=5e-6)
    neighbours = turn(x, 1, turning.with_layout("neighbours"), np.float64)
    np.testing.assert_allclose(neighbours, [-1.14264, 1.92208, 2.95985, 4.02980], atol=5e-6)
    for turned_one in (halves, neighbours):
        assert np.linalg.norm(turned_one) == pytest.approx(math.sqrt(30))
    np.testing.assert_array_equal(turn(x, 0, turning, np.float64), x)


def test_halves_turn_as_in_transformers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 1, 5, 8)).astype(np.float32)
    frequencies = (10000.0 ** (-np.arange(0, 8, 2) / 8)).astype(np.float32)
    positions = np.array([0, 1, 7, 300, 4096])
    table = torch.from_numpy(np.tile(angles(positions, frequencies), 2))[None]
    want, _ = apply_rotary_pos_emb(torch.from_numpy(x), torch.from_numpy(x), table.cos(), table.sin())
    got = turn(x[0, 0], positions, Turning(frequencies, 1.0, "halves"))
    np.testing.assert_allclose(got, want[0, 0].numpy(), atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_vector_is_its_pairs_and_back(layout):
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(from_pairs(to_pairs(x, layout), layout), x)


def test_which_dimensions_form_a_pair():
    assert members(3, "halves").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert members(3, "neighbours").tolist() == [[0, 1], [2, 3], [4, 5]]


def test_angles_are_float32_as_in_the_model():
    turning = turning_of(TINY.with_(head_dim=8))  # pair 1 turns by 0.1
    assert turning.frequencies.dtype == np.float32
    assert math.cos(float(angles(4096, turning.frequencies)[1])) == pytest.approx(0.36891, abs=1e-3)


# --- against the run ---


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("which", ["query", "key"])
def test_at_its_own_position_a_vector_is_the_captured_one(name, which):
    trace = trace_of(name)
    for token in range(len(IDS)):
        found = turned(trace, 2, 5, which, token)
        assert found.difference < 2e-6
        step, head = (Q_ROT, 5) if which == "query" else (K_ROT, 5 // trace.config.group)
        captured = trace[At(2, step)][0, token, head]
        np.testing.assert_allclose(from_pairs(found.after, trace.config.rope_layout), captured, atol=2e-6)


def test_another_position_shows_and_the_difference_is_still_that_of_its_own():
    trace = trace_of("halves")
    here, moved = turned(trace, 0, 0, "query", 3), turned(trace, 0, 0, "query", 3, 40)
    assert here.difference == moved.difference
    np.testing.assert_array_equal(here.before, moved.before)
    assert np.abs(here.after - moved.after).max() > 0.1
    np.testing.assert_allclose(moved.angle[0], 40)


def test_what_is_turned_is_the_normed_vector_where_there_is_one():
    trace = trace_of("qk_norm")
    before, after = vectors(trace, 1, 3, "key")
    np.testing.assert_array_equal(before, trace["1.k_norm"][0, :, 0])
    np.testing.assert_array_equal(after, trace["1.k_rot"][0, :, 0])


def test_yarn_grows_the_arrows():
    trace = trace_of("yarn")
    found = turned(trace, 0, 0, "query", 4)
    factor = turning_of(trace.config).factor
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    np.testing.assert_allclose(np.linalg.norm(found.after), factor * np.linalg.norm(found.before), rtol=1e-6)


def test_after_a_cache_a_token_stands_where_it_stands():
    model = load(TINY, seed=1, std=0.3)
    cache = KVCache(TINY)
    run(model, IDS[:4], cache=cache)
    trace = run(model, IDS[4:], cache=cache)
    assert trace.past == 4
    found = turned(trace, 1, 2, "query", 1)
    assert found.difference < 2e-6
    np.testing.assert_allclose(from_pairs(found.after, "halves"), trace["1.q_rot"][0, 1, 2], atol=2e-6)
    assert found.angle[0] == 5
    assert layout_difference(trace, 1, 2, 1).keys.tolist() == [4, 5]
    assert layout_difference(trace, 1, 2, 1).captured < 1e-5
    proof = shift_proof(trace, 1, 2, 1, 0)
    assert proof.score == pytest.approx(proof.captured, abs=1e-5)


# --- the wrong layout ---


@pytest.mark.parametrize("name", MODELS)
def test_scores_with_the_own_layout_are_the_captured_ones(name):
    trace = trace_of(name)
    found = layout_difference(trace, 1, 6, 5)
    np.testing.assert_allclose(found.own, trace[At(1, SCORES)][0, 6, 5, found.keys], atol=1e-5)
    assert found.captured < 1e-5
    assert found.keys.tolist() == ([3, 4, 5] if name == "window" else list(range(6)))


def test_the_other_layout_gives_the_scores_of_a_model_that_is_read_wrongly():
    right = load(TINY, seed=1, std=0.3)
    wrong = load(TINY.with_(rope_layout="neighbours"), seed=1, std=0.3)  # the same weights
    found = layout_difference(run(right, IDS), 0, 1, 5)  # layer 0: what goes in is still the same
    want = run(wrong, IDS)["0.scores"][0, 1, 5]
    np.testing.assert_allclose(found.other, want, atol=1e-5)
    assert found.largest == pytest.approx(np.abs(found.own - want).max(), abs=1e-5)
    assert found.largest > 0.05


def test_at_position_0_both_layouts_agree():
    found = layout_difference(run(load(TINY), [7]), 0, 0, 0)
    assert found.largest < 1e-6


# --- only the distance counts ---


@pytest.mark.parametrize("name", MODELS)
def test_moving_both_on_keeps_the_score(name):
    trace = trace_of(name)
    proof = shift_proof(trace, 2, 3, 4, 1)
    size = float(np.abs(proof.table).max())
    assert proof.score == pytest.approx(proof.captured, abs=1e-5)
    assert proof.exact < 1e-12 * max(1, size)
    assert 0 < proof.largest < 1e-4 * max(1, size)
    assert proof.shifts[0] == 0
    assert proof.shifts[-1] == max(trace.config.max_length, 6) - 1 - 4
    if proof.shifts[-1] > 10:
        assert moved_score(trace, 2, 3, 4, 1, 10) == pytest.approx(proof.score, abs=1e-4 * max(1, size))


def test_moving_only_one_changes_the_score():
    trace = trace_of("halves")
    turning = turning_of(trace.config)
    q, k = vectors(trace, 0, 0, "query")[0][4], vectors(trace, 0, 0, "key")[0][1]
    here, there = place_scores(q, k, np.array([4, 9]), np.array([1, 1]), turning)
    assert abs(here - there) > 0.01


def test_the_table_is_one_colour_along_each_diagonal():
    table = shift_proof(trace_of("neighbours"), 0, 0, 4, 1).table
    assert table.shape == (48, 48)
    for offset in range(-47, 48):
        diagonal = np.diagonal(table, offset)
        assert np.ptp(diagonal) < 1e-4
    assert np.ptp(table[:, 0]) > 0.1


def test_the_score_over_distance_is_the_same_near_and_far():
    proof = shift_proof(trace_of("halves"), 0, 0, 4, 1)
    assert proof.start == 511 - 255
    np.testing.assert_allclose(proof.along, proof.far, atol=1e-4)
    np.testing.assert_allclose(proof.along[:48], proof.table[:, 0], atol=1e-6)


def test_a_context_as_long_as_the_prompt_has_no_shift():
    trace = run(load(TINY.with_(max_position_embeddings=6)), IDS)
    proof = shift_proof(trace, 0, 0, 5, 4)
    assert proof.shifts.tolist() == [0]
    assert proof.largest == 0


# --- base and scaling ---


def frequencies(theta: float, width: int) -> np.ndarray:
    return theta ** (-np.arange(0, width, 2) / width)


def test_linear_and_dynamic_by_hand():
    config = TINY.with_(head_dim=8)
    linear = what_if(config, "linear", base=10000.0, factor=4.0, original=16)
    np.testing.assert_allclose(linear.changed, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)
    assert (linear.kept, linear.blended, linear.divided) == (0, 0, 4)
    dynamic = what_if(config, "dynamic", base=10000.0, factor=2.0, original=16)  # a pass of 32
    np.testing.assert_allclose(dynamic.changed, [1, 0.069336, 0.0048075, 0.00033333], rtol=1e-4)
    assert (dynamic.length, dynamic.kept, dynamic.blended, dynamic.divided) == (32, 1, 2, 1)


def test_llama3_bands():
    config = TINY.with_(head_dim=64)
    found = what_if(config, "llama3", base=500000.0, factor=32.0, original=8192)
    assert (found.kept, found.blended, found.divided) == (15, 3, 14)
    np.testing.assert_allclose(found.changed[15:18], [1.290548e-3, 4.295568e-4, 9.708288e-5], rtol=1e-5)
    assert found.changed[-1] == pytest.approx(9.418307e-8, rel=1e-5)
    wide = what_if(TINY.with_(head_dim=128), "llama3", base=500000.0, factor=8.0, original=8192)
    assert (wide.kept, wide.blended, wide.divided) == (29, 6, 29)


def test_yarn_from_the_formula():
    found = what_if(TINY.with_(head_dim=64), "yarn", base=10000.0, factor=8.0, original=4096)
    plain = frequencies(10000.0, 64)

    def pair_that_turns(times: float) -> float:
        return 64 * math.log(4096 / (times * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = math.floor(pair_that_turns(32)), math.ceil(pair_that_turns(1))
    share = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found.changed, plain / 8 * share + plain * (1 - share), rtol=1e-5)
    assert found.factor == pytest.approx(0.1 * math.log(8) + 1)
    assert (found.kept, found.divided) == (low + 1, 32 - high)


def test_moved_ends_of_the_bands_count():
    config, same = TINY.with_(head_dim=64), {"base": 10000.0, "factor": 8.0, "original": 512}
    turns = 512 * frequencies(10000.0, 64) / (2 * math.pi)
    for kind in ("llama3", "yarn"):
        found = what_if(config, kind, **same, low=2.0, high=16.0)
        usual = what_if(config, kind, **same)
        assert found.divided > usual.divided
        if kind == "llama3":
            assert (found.kept, found.divided) == ((turns >= 16).sum(), (turns <= 2).sum())


@pytest.mark.parametrize("name", ["llama linear", "llama dynamic", "llama llama3", "llama yarn"])
def test_the_models_own_scaling_is_that_of_transformers(name, tmp_path):
    rig = more_rig(name)
    config = load(save_folder(rig, tmp_path)).config
    want = rig.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(turning_of(config).frequencies, want, rtol=1e-6)
    assert turning_of(config).factor == pytest.approx(rig.model.rotary_emb.attention_scaling)
    scaling = config.rope_scaling
    again = what_if(
        config, scaling.kind, base=config.rope_theta, factor=scaling.factor, original=original_context(config)
    )
    if scaling.kind != "dynamic":  # there the what-if is a pass of the full length
        defaults = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_slow": 1.0, "beta_fast": 32.0}
        assert all(getattr(scaling, name, value) == value for name, value in defaults.items())
        np.testing.assert_allclose(again.changed, want, rtol=1e-6)


def test_none_is_plain_and_a_longer_base_slows_all_but_the_first():
    found = what_if(TINY, "none", base=1e6, factor=8.0, original=512)
    np.testing.assert_array_equal(found.changed, found.plain)
    np.testing.assert_allclose(found.plain, frequencies(1e6, TINY.head_dim), rtol=1e-6)
    assert found.plain[0] == found.own[0] == 1
    assert (found.plain[1:] < found.own[1:]).all()
    assert (found.length, found.kept) == (512, TINY.head_dim // 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_one_changes_nothing(kind):
    found = what_if(TINY, kind, base=10000.0, factor=1.0, original=512)
    np.testing.assert_allclose(found.changed, found.plain, rtol=1e-6)
    assert (found.kept, found.blended, found.divided) == (TINY.head_dim // 2, 0, 0)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="low_freq_factor"):
        what_if(TINY, "llama3", base=10000.0, factor=8.0, original=512, low=8.0, high=4.0)
    with pytest.raises(ConfigError, match="rope_theta"):
        what_if(TINY, "yarn", base=1.0, factor=8.0, original=512)


def test_a_prompt_of_one_token():
    trace = run(load("tiny"), PROMPT[:1])
    assert turned(trace, 0, 0, "key", 0).difference == 0
    proof = shift_proof(trace, 0, 0, 0, 0)
    assert proof.exact < 1e-12
