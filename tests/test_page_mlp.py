"""The MLP page: its numbers are the run's, for a random and a trained model, one token and hundreds."""

from __future__ import annotations

import pytest
from test_app import NANO, SMOL, alts, bodies, said, texts, visit
from test_page_sharing import rows

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from llama_core.gate import compare_curves, loudest, shut, written
from pages.figures import numbers

TINY = {"model": "random"}


@pytest.mark.parametrize(
    "query",
    [
        NANO,
        NANO | {"ids": "7"},
        TINY | {"ids": ",".join(str(i % 256) for i in range(300))},
        {"model": SMOL, "at": "11.gate", "token": "0"},
        {"model": SMOL, "prompt": "A"},
        {"model": BOX},
    ],
    ids=["nano", "one id", "300 ids", "trained", "one token", "box"],
)
def test_it_opens(query):
    app = visit("mlp", **(query if query["model"] != BOX or BOX in local_models() else TINY))
    assert said(app) == []
    assert len(alts(app)) == 4
    assert "neurons as points" in alts(app)[0]


def test_neurons_curves_and_shares_are_those_of_the_run():
    app = visit("mlp", **TINY, at="2.gate", token="3")
    model = load("tiny")
    trace = run(model, [10, 20, 30, 40, 50])
    found = rows(app)
    told = [row for row in found if len(row) == 8]
    loud = loudest(trace, 2, 3)
    for row, neuron, effect in zip(told, loud, written(model, 2, loud), strict=True):
        measured = (neuron.gate, neuron.act, neuron.up, neuron.gated, effect.size)
        assert row[:6] == [str(neuron.index), *map(numbers.short, measured)]
        assert row[6].split() == [str(token) for token, _ in effect.promoted[:4]]
        assert row[7].split() == [str(token) for token, _ in effect.demoted[:4]]
    curves = [row for row in found if len(row) == 3]
    assert [row[0] for row in curves] == ["SiLU · this model", "ReLU", "GELU", "quick GELU"]
    for row, change in zip(curves, compare_curves(trace, 2, 3), strict=True):
        assert row[1:] == [numbers.short(change.cosine, 5), numbers.short(change.largest)]
    quiet = shut(trace, 2).quiet[3]
    grid = "".join(body for body in bodies(app) if "gl-numbers" in body)
    assert numbers.percent(quiet) in grid
    assert numbers.percent((trace["2.gate"][0, 3] < 0).mean()) in grid


def test_a_layer_that_is_not_there_leaves_a_note():
    app = visit("mlp", **NANO, at="9.gate", token="99")
    assert len(said(app)) == 2
    assert len(alts(app)) == 4


def test_the_curve_is_named():
    assert "SiLU" in " ".join(texts(visit("mlp", **NANO), "gl-lead"))
    assert "hidden_act = silu" in " ".join(texts(visit("mlp", **NANO), "gl-caption"))
