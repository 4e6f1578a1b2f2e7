"""What temperature, top-k and top-p keep: against the processors that transformers generates with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from llama_core.sampling import cut, entropy


def theirs(logits, temperature, top_k, top_p):
    steps = [TemperatureLogitsWarper(temperature)]
    steps += [TopKLogitsWarper(top_k)] if top_k else []
    steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    left = LogitsProcessorList(steps)(None, torch.tensor(logits, dtype=torch.float64)[None])
    return torch.softmax(left, dim=-1)[0].numpy()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 7, 5000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_what_is_kept_is_what_transformers_would_draw_from(temperature, top_k, top_p):
    logits = np.random.default_rng(0).normal(scale=3, size=300).astype(np.float32)
    found = cut(logits, temperature, top_k, top_p)
    ours = np.zeros(300)
    ours[found.ids[: found.kept]] = found.after
    np.testing.assert_allclose(ours, theirs(logits, temperature, min(top_k, 300), top_p), atol=1e-12)
    np.testing.assert_allclose(found.before, np.sort(theirs(logits, temperature, 0, 1.0))[::-1], atol=1e-12)
    assert found.share == pytest.approx(found.before[: found.kept].sum())
    assert found.kept <= found.by_k == (min(top_k, 300) or 300)


def test_top_p_counts_out_of_what_top_k_left():
    found = cut(np.log([0.4, 0.3, 0.2, 0.1]), top_k=2, top_p=0.6)
    assert (found.by_k, found.kept) == (2, 2)  # 0.4 of 0.7 is 0.57: not yet 0.6
    assert cut(np.log([0.4, 0.3, 0.2, 0.1]), top_p=0.4).kept == 1
    assert cut(np.log([0.4, 0.3, 0.2, 0.1]), top_p=0.0).kept == 1


def test_without_temperature_the_largest_has_it_all():
    found = cut(np.array([1.0, 3.0, 2.0]), temperature=0)
    assert found.ids.tolist() == [1, 2, 0]
    assert found.before.tolist() == [1.0, 0.0, 0.0]


def test_large_logits_do_not_overflow():
    found = cut(np.array([1e4, -1e4, 1e4 - 1], dtype=np.float32), temperature=0.05)
    assert np.isfinite(found.before).all()
    assert found.before.sum() == pytest.approx(1)


def test_entropy_of_an_even_choice_is_ln_n_and_of_a_sure_one_zero():
    assert entropy(np.full(8, 1 / 8)) == pytest.approx(np.log(8))
    assert entropy(np.array([1.0, 0.0])) == 0
    assert entropy(np.array([0.5, 0.25, 0.25])) == pytest.approx(1.5 * np.log(2))
