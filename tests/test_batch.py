"""A batch: each prompt gets its own numbers, pads are seen by none, and every page can show one row."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from rigs import MORE_RIGS, PROMPT, byte_tokenizer, more_rig, reference_rig, save_folder

from llama_core import KVCache, batch, load, model, run, runner, steps
from llama_core.errors import AddressError, RunError, TokenizerError
from llama_core.heads import heads_of
from llama_core.rebuild import run_bytes
from llama_core.steps import At
from llama_core.survey import survey

BOUND = 2e-5
LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(32)]  # beyond the 16 original positions of the scaled rigs
PROMPTS = [PROMPT, LONG, LONG[9:28], [40]]
PADS = (27, 0, 13, 31)


def rig(make, name: str):
    return more_rig(name) if name in MORE_RIGS else make.reference(name)


def off(a: np.ndarray, b: np.ndarray) -> float:
    """Largest absolute difference; infinite cells must be the same ones."""
    assert a.shape == b.shape
    assert np.array_equal(np.isfinite(a), np.isfinite(b))
    return float(np.abs(np.where(np.isfinite(a), a, 0) - np.where(np.isfinite(b), b, 0)).max())


# --- each prompt has its own numbers ---


@pytest.mark.parametrize("name", ["gqa", "mha", "mqa", "biased", "wide heads", "qwen3", "llama3", *MORE_RIGS])
def test_every_step_of_each_row_is_that_of_its_prompt_alone(make, name):
    ours = make.decoder(rig(make, name))  # windows, and every type of RoPE, by each prompt's own length
    both = run(ours, PROMPTS)
    assert both.pads == PADS
    for b, ids in enumerate(PROMPTS):
        alone, row = run(ours, ids), both.row(b)
        assert row.ids == alone.ids
        assert row.tokens == alone.tokens
        assert row.dims == alone.dims
        for at in alone.walk:
            assert off(row[at], alone[at]) < BOUND, (b, at)


@pytest.mark.parametrize("ours", ["neighbours"], indirect=True)
def test_rows_in_the_other_layout_too(ours):
    both = run(ours, PROMPTS)
    assert all(off(both.row(b)["logits"], run(ours, ids)["logits"]) < BOUND for b, ids in enumerate(PROMPTS))


@pytest.mark.parametrize("name", ["gqa", "biased", *(name for name in MORE_RIGS if "dynamic" not in name)])
def test_real_cells_are_those_of_transformers_with_left_padding(make, name):
    # Dynamic scaling: transformers turns a whole batch by its longest prompt, we each prompt by its own length.
    theirs = deepcopy(rig(make, name))
    both = run(make.decoder(theirs), PROMPTS)
    ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(PADS, PROMPTS, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * len(prompt) for pad, prompt in zip(PADS, PROMPTS, strict=True)])
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    with torch.no_grad():
        output = theirs(ids, attention_mask=mask, position_ids=positions, output_attentions=True, use_cache=False)
    for b, pad in enumerate(PADS):
        assert off(both["logits"][b, pad:], output.logits[b, pad:].numpy()) < BOUND
        for layer, weights in enumerate(output.attentions):
            assert off(both[f"{layer}.weights"][b, :, pad:], weights[b, :, pad:].numpy()) < BOUND


def test_prompts_of_equal_length_have_no_pads_and_one_prompt_may_be_a_batch(ours):
    both = run(ours, [PROMPT, PROMPT[::-1]])
    assert both.pads == (0, 0)
    for b, ids in enumerate((PROMPT, PROMPT[::-1])):
        assert off(both.row(b)["logits"], run(ours, ids)["logits"]) < BOUND
    one = run(ours, [PROMPT])
    assert all(np.array_equal(one[at], run(ours, PROMPT)[at]) for at in one.walk)
    assert one.step_stats == run(ours, PROMPT).step_stats


def test_a_short_row_is_not_stretched_by_a_long_one_beside_it(make):
    ours = make.decoder(more_rig("llama dynamic"))
    alone, beside = run(ours, PROMPT), run(ours, [PROMPT, LONG]).row(0)
    assert off(alone["0.q_rot"], beside["0.q_rot"]) < BOUND


# --- pads are pads ---


def test_pads_are_seen_by_none_and_see_nothing(ours):
    both = run(ours, [[5, 9, 9, 3, 7], [0, 0, 5, 9, 9, 3, 7]])  # the second has real tokens of the pads' id
    for layer in (0, 1):
        weights, seen = both[f"{layer}.weights"], both.visible(layer)
        assert seen[0].sum(-1).tolist() == [0, 0, 1, 2, 3, 4, 5]
        assert seen[1].sum(-1).tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert not weights[0, :, :2].any()
        assert not weights[0, :, :, :2].any()
        assert not weights[~np.broadcast_to(seen[:, None], weights.shape)].any()
        np.testing.assert_allclose(weights[0, :, 2:].sum(-1), 1, atol=1e-6)
        assert np.isneginf(both[f"{layer}.masked"][0, :, :2]).all()
    assert off(both["logits"][0, 2:], both["logits"][1, 2:]) > 1  # real tokens of that id do count
    assert [token.pad for token in both.rows[0]] == [True] * 2 + [False] * 5
    assert [token.text for token in both.rows[0]] == ["‹pad›", "‹pad›", "5", "9", "9", "3", "7"]
    assert not any(token.pad for token in both.rows[1])


@pytest.mark.parametrize("name", ["gqa", "biased", "qwen3", "mistral window", "llama dynamic"])
def test_no_cell_of_a_batch_is_nan_pads_included(make, name):
    both = run(make.decoder(rig(make, name)), PROMPTS)
    for at in both.walk:
        assert not np.isnan(both[at]).any(), at
        assert np.isfinite(both[at]).all() or at.step is steps.MASKED, at
    assert both.first_not_finite() is None


@pytest.mark.parametrize("name", ["gqa", "qwen2 window"])
def test_statistics_count_real_cells_only(make, name):
    both = run(make.decoder(rig(make, name)), PROMPTS)
    for at in both.walk:
        cells, rows = both[at].astype(np.float64), [both.row(b) for b in range(4)]
        real = [row[at][..., row.visible(at)] if at.step.causal else row[at].ravel() for row in rows]
        real = np.concatenate([some.ravel() for some in real]).astype(np.float64)
        s = both.stat(at)
        assert (s.shape, s.count, s.masked) == (cells.shape, real.size, cells.size - real.size), at
        assert (s.min, s.max, s.nan, s.inf) == (real.min(), real.max(), 0, 0), at
        rms = np.sqrt((real**2).mean())
        assert (s.mean, s.std, s.rms) == pytest.approx((real.mean(), real.std(), rms), abs=1e-5 * rms), at


def test_the_mask_of_a_batch_is_asked_by_layer_where_a_window_makes_layers_differ(make):
    both = run(make.decoder(more_rig("qwen2 window")), [PROMPT, PROMPT[:2]])
    assert both.visible(0)[1].sum(-1).tolist() == [0, 0, 0, 1, 2]
    assert both.visible("1.weights")[0].sum(-1).tolist() == [1, 2, 3, 3, 3]
    with pytest.raises(AddressError, match="say which layer"):
        both.visible()


# --- one row, as any other trace ---


def test_a_row_is_an_ordinary_trace_for_every_measure(ours):
    both = run(ours, [PROMPT, LONG])
    row, alone = both.row(0), run(ours, PROMPT)
    assert type(row) is type(alone)
    for at in row.walk:
        s, right = row.stat(at), alone.stat(at)
        assert (s.shape, s.count, s.masked) == (right.shape, right.count, right.masked), at
        assert s.rms == pytest.approx(right.rms, abs=BOUND), at
    assert [i for i, _ in row.next_tokens()] == [i for i, _ in alone.next_tokens()]
    assert np.array_equal(row.visible(), alone.visible())
    np.testing.assert_allclose(heads_of(row, 1).entropy, heads_of(alone, 1).entropy, atol=1e-5)
    assert len(survey(row).layers) == len(survey(alone).layers)
    assert not row["0.weights"].flags.writeable


def test_a_row_holds_views_of_the_batch(ours):
    both = run(ours, PROMPTS)
    row = both.row(2)
    assert np.shares_memory(row["1.weights"], both["1.weights"])
    assert sum(both.row(b).nbytes for b in range(4)) < both.nbytes


def test_a_run_may_go_on_from_a_row_with_an_edit(ours):
    row = run(ours, [PROMPT, LONG]).row(0)
    edits = {"1.head_out": "zero h2"}
    resumed = run(ours, PROMPT, start=row, edits=edits)
    assert off(resumed["logits"], run(ours, PROMPT, edits=edits)["logits"]) < BOUND


def test_a_single_prompt_is_its_own_row(ours):
    trace = run(ours, PROMPT)
    assert trace.row(0) is trace
    with pytest.raises(AddressError, match="1 prompt, row 0"):
        trace.row(1)


@pytest.mark.parametrize("until", ["embed", "0.masked", "1.weights", "1.gate"])
def test_a_batch_stops_where_it_is_told(ours, until):
    full, stopped = run(ours, PROMPTS), run(ours, PROMPTS, until=until)
    assert stopped.until == At.parse(until)
    assert list(stopped.step_stats) == list(full.walk.order[: stopped.computed])
    assert all(np.array_equal(stopped[at], full[at]) for at in stopped.step_stats)
    assert stopped.row(3).computed == stopped.computed
    with pytest.raises(AddressError, match="was not computed"):
        stopped.row(3)["logits"]


def test_texts_are_a_batch_too(tmp_path):
    folder = save_folder(reference_rig(vocab_size=256), tmp_path / "rig", byte_tokenizer())
    ours = load(folder)
    both = run(ours, ["a", "b c", [1, 2]])
    assert [both.row(b).ids for b in (0, 1)] == [tuple(ours.tokenizer.encode(text)) for text in ("a", "b c")]
    assert both.row(2).ids == (1, 2)
    assert [token.text for token in both.rows[0]] == ["‹pad›", "‹pad›", "a"]


# --- refusals ---


def test_which_row_is_meant_must_be_said(ours):
    both = run(ours, [PROMPT, LONG])
    with pytest.raises(AddressError, match="2 prompts: say which"):
        both.next_tokens()
    for b in (-1, 2):
        with pytest.raises(AddressError, match="this run has 2 prompts, 0 to 1"):
            both.row(b)


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ([[1], []], "Prompt 1 of the batch: There are no token ids"),
        ([[1], [64]], "Prompt 1 of the batch: Token id 64"),
        (["a", [1]], "Prompt 0 of the batch: This model has no tokenizer"),
        ([[1], [[2]]], "Prompt 1 of the batch: A prompt is text or a list"),
        ([1, [2]], "whole numbers"),
    ],
)
def test_a_prompt_that_cannot_be_run_is_named(ours, prompts, says):
    with pytest.raises(TokenizerError, match=says):
        run(ours, prompts)


@pytest.mark.parametrize("name", ["cache", "edits", "start", "stop_when"])
def test_what_belongs_to_one_prompt_is_refused(ours, name):
    given = {"cache": KVCache(ours.config), "edits": (), "start": run(ours, PROMPT), "stop_when": ()}[name]
    with pytest.raises(RunError, match=f"without {name}.*one by one"):
        run(ours, [PROMPT, LONG], **{name: given})


def test_more_than_the_memory_together_is_refused(ours, monkeypatch):
    monkeypatch.setattr(runner, "SMALL", 0)
    monkeypatch.setattr(runner, "free_for", lambda needed, device: 2 * run_bytes(ours.config, 5, batch=2))
    assert run(ours, [PROMPT] * 2)["logits"].shape == (2, 5, 64)
    with pytest.raises(RunError, match="3 prompts, filled up to 5 tokens each"):
        run(ours, [PROMPT] * 3)
    with pytest.raises(RunError, match="Shorten it by 1 token"):
        run(ours, [PROMPT, [0] * 65])


# --- these tests see a mistake ---


def _from_the_left(self, T, pads):
    return self(0, T)


def _pads_seen(seen, pads):
    return seen[None, None].expand(len(pads), -1, -1, -1)


MISTAKES = {
    "positions counted from the pads": (model.RotaryTable, "of_batch", _from_the_left),
    "pads seen": (model, "visible_in_batch", _pads_seen),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_far_off(ours, monkeypatch, mistake):
    monkeypatch.setattr(*MISTAKES[mistake])
    row, alone = batch.run_batch(ours, [PROMPT, LONG]).row(0), run(ours, PROMPT)
    assert max(off(row[key], alone[key]) for key in ("0.q_rot", "1.resid_out")) > 0.1
