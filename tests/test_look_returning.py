"""The look that returns: hand-made weights with known answers, a plain loop, and the trained model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llama_core import KVCache, load, run
from llama_core.look import ReturningLook, answer_look, returning_look

SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def made(model, ids, weights: dict[str, dict[tuple[int, int, int], float]]):
    """A run on these ids whose weights are set by hand: layer -> (head, query, key) -> weight, 0 elsewhere."""
    trace = run(model, ids)
    tensors = {at: trace[at] for at in trace.walk.order}
    for at in trace.walk.order:
        if at.step.key == "weights":
            tensors[at] = np.zeros_like(trace[at])
            for place, weight in weights.get(str(at), {}).items():
                tensors[at][(0, *place)] = weight
    return replace(trace, tensors=tensors)


def found(look: ReturningLook | None) -> tuple | None:
    return look and (str(look.at), look.head, look.query, look.key, look.kind)


IDS = [5, 9, 3, 7, 9, 3]  # 9 stands at 1 and 4, 3 at 2 and 5


def test_the_earlier_place_of_the_same_token_is_a_duplicate(ours):
    look = returning_look(made(ours, IDS, {"1.weights": {(2, 4, 1): 0.5, (0, 4, 3): 0.9, (0, 4, 0): 0.9}}))
    assert found(look) == ("1.weights", 2, 4, 1, "duplicate")
    assert look.weight == pytest.approx(0.5)


def test_the_place_after_it_is_induction(ours):
    look = returning_look(made(ours, IDS, {"0.weights": {(1, 5, 2): 0.4}, "1.weights": {(3, 4, 2): 0.6}}))
    assert found(look) == ("1.weights", 3, 4, 2, "induction")
    assert look.weight == pytest.approx(0.6)


def test_a_tie_goes_to_the_earlier_layer(ours):
    look = returning_look(made(ours, IDS, {"0.weights": {(1, 5, 2): 0.4}, "1.weights": {(3, 4, 2): 0.4}}))
    assert found(look) == ("0.weights", 1, 5, 2, "duplicate")


def test_what_is_no_word_counts_only_where_no_word_returns(ours):
    trace = made(ours, IDS, {"0.weights": {(1, 4, 1): 0.9, (1, 5, 2): 0.4}})
    tokens = tuple(replace(token, text="." if token.id == 9 else f"word{token.id}") for token in trace.tokens)
    assert found(returning_look(replace(trace, tokens=tokens))) == ("0.weights", 1, 5, 2, "duplicate")
    dots = tuple(replace(token, text=".") for token in trace.tokens)
    assert found(returning_look(replace(trace, tokens=dots))) == ("0.weights", 1, 4, 1, "duplicate")


def test_where_most_heads_rest_is_no_return(ours):
    """Query 3 repeats the first token; query 5 repeats key 3, and key 4 is the one before it."""
    trace = made(ours, [5, 9, 3, 5, 7, 5], {"0.weights": {(0, 3, 0): 1.0, (0, 5, 0): 1.0, (0, 5, 4): 1.0}})
    look = returning_look(trace)
    assert look.weight == 0
    assert look.key not in (0, look.query - 1, look.query)


@pytest.mark.parametrize("ids", [[5], [5, 9, 3], [5, 9, 9, 3], [9, 5, 9], [5, 5]])
def test_nothing_returns(ours, ids):
    assert returning_look(run(ours, ids)) is None


def test_a_run_without_weights_has_none(ours):
    assert returning_look(run(ours, IDS, until="0.scores")) is None


def test_a_plain_loop_finds_the_same():
    rng = np.random.default_rng(1)
    model = load("tiny", std=0.3)
    for _ in range(3):
        ids = rng.integers(0, 9, 20).tolist()
        trace, best = run(model, ids), (-1.0,)
        for layer in range(4):
            weights = trace[f"{layer}.weights"][0]
            for head in range(8):
                for query in range(20):
                    for earlier in range(query - 1):
                        for key in (earlier, earlier + 1):
                            returns = ids[earlier] == ids[query] and 0 < key < query - 1
                            if returns and weights[head, query, key] > best[0]:
                                best = (weights[head, query, key], f"{layer}.weights", head, query, key)
        look = returning_look(trace)
        assert (look.weight, *found(look)[:4]) == best


def test_keys_of_a_cache_have_no_ids_but_count_as_places(ours):
    whole, cache = run(ours, [1, 2, *IDS]), KVCache(ours.config)
    run(ours, [1, 2], cache=cache)
    look = returning_look(run(ours, IDS, cache=cache))
    assert found(look) == found(replace(returning_look(whole), query=look.query))
    assert look.query == returning_look(whole).query - 2


def test_a_window_hides_what_it_hides(ours):
    trace = made(ours, IDS, {"0.weights": {(0, 4, 1): 0.9, (0, 5, 3): 0.2}})
    narrow = replace(trace, config=replace(trace.config, sliding_window=3))
    assert found(returning_look(trace)) == ("0.weights", 0, 4, 1, "duplicate")
    assert found(returning_look(narrow)) == ("0.weights", 0, 5, 3, "induction")


def test_weights_that_are_no_number_are_passed_over(ours):
    look = returning_look(made(ours, IDS, {"0.weights": {(0, 4, 1): np.nan, (1, 4, 2): 0.3}}))
    assert found(look) == ("0.weights", 1, 4, 2, "induction")


def test_the_trained_model_finds_the_name_again():
    trace = run(load(SMOL), "Anna Schmidt lives in Berlin. Every morning Anna Schmidt walks to the river.")
    look = returning_look(trace)
    words = [token.text for token in trace.tokens]
    assert look.weight > 0.5
    assert words[look.query] in words[: look.query - 1]
    assert words[look.query] == words[look.key if look.kind == "duplicate" else look.key - 1]


def expects(trace, token: int):
    """The trace with logits that make a token the most probable next one."""
    tensors = {at: trace[at] for at in trace.walk.order}
    logits = np.zeros_like(trace["logits"])
    logits[0, -1, token] = 9.0
    return replace(trace, tensors=tensors | {trace.resolve("logits"): logits})


def test_the_last_token_looks_at_an_earlier_place_of_what_comes_next(ours):
    weights = {"0.weights": {(1, 5, 1): 0.4, (0, 5, 2): 0.9}, "1.weights": {(3, 5, 1): 0.6, (2, 4, 1): 0.8}}
    look = answer_look(expects(made(ours, [5, 9, 3, 7, 4, 6], weights), 9))
    assert found(look) == ("1.weights", 3, 5, 1, "answer")
    assert look.weight == pytest.approx(0.6)


@pytest.mark.parametrize("token", [5, 4, 6, 8], ids=["first", "the one before", "itself", "nowhere"])
def test_what_comes_next_was_not_there_where_it_would_count(ours, token):
    assert answer_look(expects(made(ours, [5, 9, 3, 7, 4, 6], {}), token)) is None


def test_a_stopped_run_and_a_single_token_have_no_answer(ours):
    assert answer_look(run(ours, IDS, until="1.weights")) is None
    assert answer_look(run(ours, [5])) is None
