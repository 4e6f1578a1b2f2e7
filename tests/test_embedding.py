"""Neighbours in the embedding table, against torch's cosine over the whole table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import llama_core.embedding
from llama_core import load
from llama_core.embedding import embedding_sizes, nearest_tokens
from llama_core.errors import TokenizerError


@pytest.mark.parametrize("ours", ["gqa", "tied"], indirect=True)
@pytest.mark.parametrize("block", [7, 1 << 14])
def test_the_nearest_tokens_have_the_largest_cosines(ours, block, monkeypatch):
    monkeypatch.setattr(llama_core.embedding, "BLOCK", block)
    table = ours.model.embed_tokens.weight.double()
    cosines = functional.cosine_similarity(table, table[9:10])
    order = [i for i in cosines.argsort(descending=True).tolist() if i != 9][:12]
    found = nearest_tokens(ours, 9, 12)
    assert [token for token, _ in found] == order
    assert [cosine for _, cosine in found] == pytest.approx(cosines[order].tolist(), abs=1e-6)
    assert embedding_sizes(ours) == pytest.approx(table.norm(dim=1).numpy(), rel=1e-6)


def test_a_twin_is_nearest_and_the_token_itself_is_left_out(ours):
    ours.model.embed_tokens.weight.data[40] = 3 * ours.model.embed_tokens.weight.data[9]
    found = nearest_tokens(ours, 9, 100)
    assert found[0] == (40, pytest.approx(1))
    assert len(found) == 63
    assert 9 not in [token for token, _ in found]


def test_a_row_of_zeros_is_near_nothing(ours):
    ours.model.embed_tokens.weight.data[40] = 0
    assert 40 not in [token for token, _ in nearest_tokens(ours, 9, 100)]
    assert nearest_tokens(ours, 40) == []


def test_a_bfloat16_table_is_compared_in_float32(ours):
    found = nearest_tokens(ours.to(torch.bfloat16), 9, 5)
    table = ours.model.embed_tokens.weight.double()
    cosines = functional.cosine_similarity(table, table[9:10])
    assert [cosine for _, cosine in found] == pytest.approx(np.sort(cosines)[::-1][1:6], abs=1e-6)


def test_an_id_that_is_not_there_is_refused(ours):
    with pytest.raises(TokenizerError, match="64"):
        nearest_tokens(ours, 64)


def test_in_the_real_model_words_are_near_their_variants():
    model = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    (france,) = model.tokenizer.encode(" France")
    near = [model.tokenizer.decode([token]) for token, _ in nearest_tokens(model, france, 10)]
    assert "France" in near
