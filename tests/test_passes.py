"""The passes of a generation: what grows is never made twice, and each token is found in the pass that read it."""

from __future__ import annotations

import numpy as np
import pytest

from llama_core import generate, load
from pages.ui.passes import MOST_NEW, Growth

IDS = [10, 20, 30]
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def model():
    return load("tiny", std=0.3)


@pytest.fixture
def growth(model):
    return Growth(model, IDS, GREEDY)


def test_the_tokens_are_those_that_generate_gives(model, growth):
    passes = growth.passes(4)
    expected = list(generate(model, IDS, max_new_tokens=4))
    assert [token.id for token in passes.tokens] == IDS + [token for token, _ in expected]
    assert [token.id for token in passes.made] == [token for token, _ in expected]
    for mine, (_, theirs) in zip(passes, expected, strict=True):
        assert np.array_equal(mine["logits"], theirs["logits"])


def test_each_token_is_found_in_the_pass_that_read_it(growth):
    passes = growth.passes(4)
    assert passes.read == 6  # 3 of the prompt, 3 of the 4: the last was never read
    for position in range(passes.read):
        trace, row = passes.at(position)
        assert trace.ids[row] == passes.tokens[position].id
        assert trace.past + row == position


def test_asking_for_fewer_or_more_makes_nothing_twice(growth):
    first = list(growth.passes(4))
    assert list(growth.passes(2)) == first[:2]
    assert list(growth.passes(6))[:4] == first
    passes = growth.passes(6)
    assert growth.nbytes == passes.nbytes + passes.read * 2 * 4 * 2 * 8 * 4  # and keys and values of tiny: L, Hkv, Dh


def test_what_ended_half_way_goes_on_as_if_nothing_had_been(model, growth):
    class Enough(BaseException):
        pass

    def stop(there: int) -> None:
        if there == 2:
            raise Enough

    with pytest.raises(Enough):
        growth.passes(5, stop)
    expected = [token for token, _ in generate(model, IDS, max_new_tokens=5)]
    assert [token.id for token in growth.passes(5).made] == expected


def test_it_knows_its_prompt_and_how_far_it_is(growth):
    assert [token.id for token in growth.prompt] == IDS
    assert (growth.there, growth.ids_only) == (0, True)
    growth.passes(3)
    assert growth.there == 3


def test_it_tells_how_many_tokens_are_there(growth):
    told = []
    growth.passes(3, told.append)
    assert sorted(set(told)) == [0, 1, 2, 3]
    assert told == sorted(told)


@pytest.mark.parametrize(("new", "ended"), [(2, "length"), (5, "context"), (MOST_NEW, "context")])
def test_it_says_why_it_ended(new, ended):
    config = load("tiny").config.with_(max_position_embeddings=7)
    passes = Growth(load(config, std=0.3), IDS, GREEDY).passes(new)
    assert (len(passes.made), passes.ended) == (min(new, 5), ended)


def test_what_has_gone_keeps_sizes_and_names_and_no_tensor(growth):
    passes = growth.passes(3)
    light = passes.sizes()
    assert (light.tokens, light.read) == (passes.tokens, passes.read)
    for gone, trace in zip(light, passes, strict=True):
        assert (gone.dims, gone.past, gone.ids, gone.walk) == (trace.dims, trace.past, trace.ids, trace.walk)
        assert (dict(gone.tensors), len(gone.parameters), gone.nbytes) == ({}, 0, 0)
