"""What explains a trace: the source lines, the change against a step that is read, where to look first."""

import inspect

import numpy as np
import pytest

from llama_core import PRESETS, At, LlamaConfig, load, run, steps
from llama_core import model as decoder
from llama_core import rope as rotary
from llama_core.change import change
from llama_core.look import farthest_look, stream_sizes
from llama_core.source import excerpts

PRESET = "nano"


@pytest.fixture(scope="module")
def trace():
    return run(load(PRESET, seed=3, std=0.3), [5, 9, 9, 3, 7, 9])


def owner(name: str):
    found = decoder
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("step", steps.STEPS, ids=lambda step: step.key)
def test_the_excerpt_of_a_step_is_the_function_that_holds_its_tap(step):
    first = excerpts(step)[0]
    source, start = inspect.getsourcelines(owner(first.name))
    assert first.first == start
    assert [line.strip() for line in first.lines] == [line.strip() for line in source]
    lit = "\n".join(first.lines[n - first.first] for n in sorted(first.lit))
    assert f"tap.{step.key}(" in lit
    assert len(first.lit) <= 2


def test_helpers_named_by_the_registry_are_shown_whole():
    rotate = excerpts(steps.Q_ROT)[1]
    assert "\n".join(rotate.lines) == inspect.getsource(rotary.rotate).rstrip()
    assert "silu" in "\n".join(excerpts(steps.ACT)[1].lines)


def test_a_rotation_changes_direction_but_not_size(trace):
    found = change(trace, At(1, steps.Q), At(1, steps.Q_ROT))
    a, b = trace["1.q"].ravel().astype(float), trace["1.q_rot"].ravel().astype(float)
    assert found.ratio == pytest.approx(1.0, abs=1e-6)
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-9)
    assert found.largest == pytest.approx(np.abs(b - a).max())
    assert 0 < found.share < 1  # position 0 is not turned
    np.testing.assert_allclose(found.difference, trace["1.q_rot"] - trace["1.q"])


def test_only_cells_that_count_the_same_are_compared():
    """As many tokens and numbers a head as heads: every shape is alike."""
    model = load(PRESET, seed=3, std=0.3)
    assert (model.config.num_attention_heads, model.config.head_dim) == (4, 4)
    trace = run(model, [5, 9, 3, 7])
    for source, at in ((steps.Q_ROT, steps.SCORES), (steps.WEIGHTS, steps.HEAD_OUT)):
        assert trace.stat(At(1, source)).shape == trace.stat(At(1, at)).shape
        found = change(trace, At(1, source), At(1, at))
        assert found.ratio > 0
        assert (found.cosine, found.largest, found.share, found.difference) == (None,) * 4
    assert change(trace, At(1, steps.Q), At(1, steps.Q_ROT)).cosine is not None


def test_heads_that_are_shared_one_to_one_are_compared():
    trace = run(load(PRESETS[PRESET].with_(num_key_value_heads=4)), [5, 9, 3, 7, 2])
    assert change(trace, At(1, steps.K_ROT), At(1, steps.K_SHARED)).largest == 0


def test_hidden_cells_take_no_part_in_a_change(trace):
    found = change(trace, At(0, steps.SCORES), At(0, steps.MASKED))
    assert found.largest == 0.0
    assert found.share == 0.0
    assert np.isnan(found.difference[0, 0]).sum() == 15


def test_other_axes_leave_only_the_sizes_to_compare(trace):
    found = change(trace, At(0, steps.ATTN_NORM), At(0, steps.Q))
    assert found.difference is None
    assert found.cosine is None
    assert found.ratio == pytest.approx(trace.stat("0.q").rms / trace.stat("0.attn_norm").rms)


def test_the_far_look_is_the_largest_weight_off_the_three_usual_places(trace):
    found = farthest_look(trace)
    best = max(
        float(trace[At(layer, steps.WEIGHTS)][0, head, query, key])
        for layer in range(2)
        for head in range(4)
        for query in range(6)
        for key in range(1, query - 1)
    )
    assert found.weight == pytest.approx(best)
    assert trace[found.at][0, found.head, found.query, found.key] == np.float32(found.weight)


def test_a_prompt_of_three_tokens_has_no_far_look():
    assert farthest_look(run(load(PRESET), [1, 2, 3])) is None


def test_a_stopped_run_looks_only_at_what_it_computed():
    model = load(PRESET, seed=3, std=0.3)
    stopped = run(model, [5, 9, 9, 3, 7], until="0.resid_out")
    assert farthest_look(stopped).at.layer == 0
    assert len(stream_sizes(stopped)[0]) == 1


def test_stream_sizes_are_the_rms_of_each_layers_end(trace):
    everywhere, first = stream_sizes(trace)
    for layer in range(2):
        stream = trace[f"{layer}.resid_out"][0].astype(float)
        assert everywhere[layer] == pytest.approx(np.sqrt((stream**2).mean()))
        assert first[layer] == pytest.approx(np.sqrt((stream[0] ** 2).mean()))


def test_every_kind_of_model_has_an_excerpt_for_every_step_it_has():
    for config in (LlamaConfig(num_hidden_layers=1), LlamaConfig(num_hidden_layers=1, qk_norm=True)):
        assert all(excerpts(step) for step in config.walk.steps)
