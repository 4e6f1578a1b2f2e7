"""Watches: a run stops at the first step that meets a condition, and says why, with the cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import KVCache, load, run, steps
from llama_core.config import PRESETS
from llama_core.errors import AddressError, GlassLlamaError, NotComputedError
from llama_core.steps import At
from llama_core.trace import Trace
from llama_core.watch import FEW, Watch, WatchError, judge

TEXTS = [
    "notfinite",
    "q above 100",
    "3.resid_out std 0 50.5",
    "logits above 1e20",
    "entropy 0.1",
    "weights entropy 0.1",
    "3.weights collapse 0.99",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_reads_and_writes_itself(text):
    assert str(Watch.parse(text)) == text
    assert Watch.parse(str(Watch.parse(text))) == Watch.parse(text)


def test_what_is_made_in_code_is_what_its_text_says():
    assert Watch.parse("q above 100") == Watch("above", (100,), steps.Q)
    assert Watch.parse("3.q above 100") == Watch("above", (100,), At(3, steps.Q))
    assert Watch.parse("notfinite") == Watch("notfinite")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a condition"),
        ("3.q", "is not a condition"),
        ("3.q over 5", "is not a condition"),
        ("above", "above takes a bound"),
        ("above x", "is no number"),
        ("above nan", "above takes a bound"),
        ("above -1", "0 or above"),
        ("std 5 1", "the lowest and the highest"),
        ("collapse 1.5", "a share, 0 to 1"),
        ("q entropy 1", "is of attention weights: write weights or 3.weights, not q"),
        ("nowhere above 1", "no step called"),
        ("3.nowhere above 1", "no step called"),
        ("<b>.q above 1", "is not an address"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_with_a_sentence(text, says):
    with pytest.raises(GlassLlamaError, match=says):
        Watch.parse(text)


@pytest.mark.parametrize("stop_when", ["9.q above 1", "q_norm above 1", [3], ["above 1", None]])
def test_a_condition_that_the_model_lacks_is_refused_before_anything_is_computed(ours, stop_when):
    hook = ours.model.embed_tokens.register_forward_hook(lambda *_: pytest.fail("something was computed"))
    with pytest.raises((WatchError, AddressError)):
        run(ours, PROMPT, stop_when=stop_when)
    hook.remove()


# --- each condition against numpy over a full run ---


def entropies(weights: np.ndarray) -> np.ndarray:
    wide = weights.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.nansum(wide * np.log(wide), axis=-1)


def seen(trace: Trace, at: At) -> np.ndarray:
    return trace[at][..., trace.visible(at)] if at.step.causal else trace[at]


MEETS = {
    "above 6": lambda t, at: np.abs(seen(t, at)).max() > 6,
    "scores above 6": lambda t, at: at.step is steps.SCORES and np.abs(seen(t, at)).max() > 6,
    "1.gated above 1.5": lambda t, at: at == At(1, steps.GATED) and np.abs(seen(t, at)).max() > 1.5,
    "std 0.2 5": lambda t, at: not 0.2 <= seen(t, at).std(dtype=np.float64) <= 5,
    "resid_out std 0 3": lambda t, at: at.step is steps.RESID_OUT and seen(t, at).std(dtype=np.float64) > 3,
    "entropy 0.05": lambda t, at: at.step is steps.WEIGHTS and entropies(t[at])[:, :, 1:].min() < 0.05,
    "1.weights entropy 0.5": lambda t, at: at == At(1, steps.WEIGHTS) and entropies(t[at])[:, :, 1:].min() < 0.5,
    "collapse 0.95": lambda t, at: at.step is steps.WEIGHTS and t[at][:, :, 1:].max() >= 0.95,
    "notfinite": lambda t, at: False,
    "above 1e6": lambda t, at: False,
}


@pytest.mark.parametrize("name", ["gqa", "qwen2 window"])
@pytest.mark.parametrize("text", MEETS)
def test_a_run_stops_at_the_first_step_that_meets_a_condition(make, name, text):
    ours = make.decoder(make.reference("gqa") if name == "gqa" else more_rig(name))
    full = run(ours, PROMPT)
    right = next((at for at in full.walk if MEETS[text](full, at)), None)
    trace = run(ours, PROMPT, stop_when=text)
    if right is None:
        assert (trace.stopped, trace.until, trace.computed) == (None, None, len(full.walk))
        return
    assert (trace.stopped.at, trace.until, trace.stopped.watch) == (right, right, Watch.parse(text))
    assert trace.stats.equals(run(ours, PROMPT, until=right).stats)
    assert all(np.array_equal(trace[at], full[at]) for at in trace.step_stats)


def test_the_conditions_meet_something():
    rig = load(PRESETS["nano"], std=0.3)
    for text in ("above 0.1", "std 0 0.1", "entropy 5", "collapse 0"):
        assert run(rig, PROMPT, stop_when=text).stopped is not None, text


def test_the_cells_are_those_that_meet_it_the_worst_first(ours):
    full = run(ours, PROMPT)
    stopped = run(ours, PROMPT, stop_when="1.gate above 2").stopped
    size = np.abs(full["1.gate"])
    assert stopped.count == np.count_nonzero(size > 2) > FEW
    order = np.argsort(-size, axis=None, kind="stable")[:FEW]
    assert [np.ravel_multi_index(cell, size.shape) for cell in stopped.cells] == order.tolist()
    assert stopped.values == tuple(float(full["1.gate"][cell]) for cell in stopped.cells)
    for part in (str(list(stopped.cells[0])), f"{stopped.values[0]:.6g}", f"{stopped.count} cells of 240"):
        assert part in stopped.text


def test_the_rows_are_those_that_see_more_than_one_key(ours):
    full = run(ours, PROMPT)
    shares, entropy = full["0.weights"].max(-1), entropies(full["0.weights"])
    collapsed = run(ours, PROMPT, stop_when="0.weights collapse 0").stopped
    assert collapsed.count == 4 * 4  # the first query sees itself only
    assert all(query > 0 for _, _, query in collapsed.cells)
    assert collapsed.values == tuple(np.sort(shares[:, :, 1:], axis=None)[::-1][:FEW].tolist())
    flat = run(ours, PROMPT, stop_when="0.weights entropy 0.5").stopped
    assert flat.count == np.count_nonzero(entropy[:, :, 1:] < 0.5)
    assert flat.values[0] == pytest.approx(entropy[:, :, 1:].min())
    key = full["0.weights"][collapsed.cells[0]].argmax()
    assert f"to key {key}, at least 0; 16 rows of 16" in collapsed.text


def test_a_share_equal_to_the_bound_meets_it_and_a_window_of_one_key_never_does(make):
    x = np.zeros((1, 1, 2, 2), dtype=np.float32)
    x[..., 0] = 1
    at = At(0, steps.WEIGHTS)
    assert judge(Watch.parse("collapse 1"), at, x, np.tri(2, dtype=bool)).cells == ((0, 0, 1),)
    assert judge(Watch.parse("collapse 1"), at, x, np.eye(2, dtype=bool)) is None
    assert judge(Watch.parse("entropy 1"), at, x, np.eye(2, dtype=bool)) is None


def test_with_a_past_the_first_query_sees_more_than_one_key(ours):
    cache = KVCache(ours.config)
    run(ours, PROMPT[:3], cache=cache)
    stopped = run(ours, PROMPT[3:], cache=cache, stop_when="collapse 0").stopped
    assert stopped.count == 4 * 2
    assert cache.length == 3


def test_several_conditions_are_judged_in_turn_at_each_step(ours):
    first = run(ours, PROMPT, stop_when=["notfinite", "1.q above 0", Watch.parse("0.up above 0")])
    assert (str(first.stopped.watch), str(first.until)) == ("0.up above 0", "0.up")
    both = run(ours, PROMPT, stop_when=["0.up std 0 0", "0.up above 0"]).stopped
    assert (str(both.watch), both.cells, both.count) == ("0.up std 0 0", (), 0)


# --- what is not finite ---


def overflowing(dtype: torch.dtype):
    """255.875 x 261.75 = 66975 in one neuron of layer 1: over the 65504 of float16."""
    ours = load(PRESETS["nano"].with_(hidden_act="relu"))
    edits = "1.gate set 255.875 c3; 1.up set 261.75 c3"
    return ours.to(dtype), edits


def test_float16_overflow_stops_the_run_where_it_happens_and_bfloat16_goes_on():
    half, edits = overflowing(torch.float16)
    trace = run(half, PROMPT, edits=edits, stop_when="notfinite")
    assert trace.stopped.at == At(1, steps.GATED)
    assert trace.stopped.count == 5
    assert trace.stopped.cells == tuple((0, token, 3) for token in range(5))
    assert "holds 5 cells that are not finite (0 NaN, 5 infinite); the first is [0, 0, 3]" in trace.stopped.text
    wide, edits = overflowing(torch.bfloat16)
    whole = run(wide, PROMPT, edits=edits, stop_when="notfinite")
    assert whole.stopped is None
    assert whole["1.gated"].max() == 67072


def test_minus_infinity_of_hidden_cells_is_no_reason_to_stop(ours):
    assert run(ours, PROMPT, stop_when=["masked notfinite", "masked above 1e9"]).stopped is None


# --- going on ---


def test_a_later_address_says_why_it_was_not_computed(ours):
    trace = run(ours, PROMPT, stop_when="1.gate above 2")
    with pytest.raises(NotComputedError) as refused:
        trace["logits"]
    for part in ("stopped at layer 1 gate", "logits is step 47", 'The watch "1.gate above 2"', trace.stopped.text):
        assert part in str(refused.value)


def test_a_resumed_run_judges_what_is_new(ours):
    full, watch = run(ours, PROMPT), "above 4"
    stops, trace = [], run(ours, PROMPT, stop_when=watch)
    while trace.stopped is not None and len(stops) < len(full.walk):
        stops.append(trace.until)
        trace = run(ours, PROMPT, start=trace, stop_when=watch)
    assert stops == [at for at in full.walk if np.abs(seen(full, at)).max() > 4]
    assert len(stops) > 3
    assert trace.step_stats == full.step_stats
    again = run(ours, PROMPT, start=full, stop_when="above 0")
    assert again.stopped is None  # everything is shared, nothing is new
    edited = run(ours, PROMPT, start=full, edits="1.gate set 9", stop_when="above 8")
    assert edited.until == At(1, steps.GATE)
    assert edited.stopped.count == 240


def test_until_and_a_condition_hold_together(ours):
    assert run(ours, PROMPT, until="0.q", stop_when="0.up above 0").stopped is None
    assert run(ours, PROMPT, until="0.up", stop_when="0.up above 0").stopped is not None
    assert run(ours, PROMPT, until="1.q", stop_when="0.up above 0").until == At(0, steps.UP)
