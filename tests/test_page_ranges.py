"""The Activations page: every step's range as numpy has it, and what is broken by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_app import NANO, SMOL, alts, bodies, done, said, texts, visit
from test_page_sharing import rows

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from llama_core.ranges import Channel
from llama_core.steps import At
from pages.figures import numbers
from pages.ui import ranges_parts
from pages.ui.session import RANGES

TINY = {"model": "random"}


@pytest.mark.parametrize(
    "query",
    [
        NANO | {"qk_norm": "1"},
        NANO | {"ids": "7", "at": "1.weights"},
        TINY | {"ids": ",".join(str(i % 256) for i in range(300)), "at": "0.scores"},
        NANO | {"at": "logits"},
        NANO | {"std": "0", "at": "1.q_rot"},
        {"model": SMOL, "prompt": "A", "range": "outlier"},
        {"model": BOX},
        *(NANO | {"range": name} for name in RANGES),
    ],
    ids=lambda query: ",".join(query.values())[:40],
)
def test_it_opens(query):
    app = visit("ranges", **(query if query["model"] != BOX or BOX in local_models() else TINY))
    assert said(app) == []
    assert len(alts(app)) == 2


def test_the_numbers_of_the_chosen_step_are_the_runs():
    app = visit("ranges", **TINY, at="2.up")
    x = run(load("tiny"), [10, 20, 30, 40, 50])["2.up"].astype(np.float64)
    rms, largest = np.sqrt(np.mean(x**2)), np.abs(x).max()
    grid = "".join(body for body in bodies(app) if "gl-numbers" in body)
    assert all(f">{numbers.short(value)}<" in grid for value in (rms, largest, largest / rms))
    flat = np.abs(x[0]).max(axis=0)
    furthest = next(row for row in rows(app) if len(row) == 4)
    assert furthest[0] == str(flat.argmax())
    assert numbers.short(flat.max()) == furthest[1].removeprefix("-")


def test_the_table_has_every_step_and_its_measures():
    trace = run(load("nano"), [1, 2, 3])
    table = ranges_parts.stats_table(trace).set_index("at")
    assert len(table) == len(trace.walk)
    for at in ("embed", "1.gate", "logits"):
        x = trace[at].astype(np.float64)
        assert table.loc[at, "largest"] == pytest.approx(np.abs(x).max())
        assert table.loc[at, "outlier"] == pytest.approx(np.abs(x).max() / np.sqrt(np.mean(x**2)), rel=1e-5)
    weights = trace["1.weights"][..., np.tri(3, dtype=bool)]
    assert table.loc["1.weights", "largest"] == pytest.approx(weights.max())
    assert table.loc["1.weights", "layer"] == 1


def test_the_first_step_that_is_not_finite_is_named(monkeypatch):
    trace = run(load("nano"), [1, 2, 3])
    stats = dict(trace.step_stats)
    for at, nan in ((At.parse("1.up"), 3), (At.parse("1.gated"), 9)):
        stats[at] = stats[at]._replace(nan=nan, inf=1)
    said_now = []
    monkeypatch.setattr(ranges_parts, "sentence", lambda text, tone: said_now.append(text))
    ranges_parts.broken(trace)
    assert said_now == []
    ranges_parts.broken(replace(trace, step_stats=stats))
    assert "1.up (layer 1 up): 3 NaN and 1 infinite cells" in said_now[0]
    assert ranges_parts.measure(stats[At.parse("1.gated")], "broken") == 10


def test_channels_that_most_layers_share_come_first_and_one_of_a_single_layer_never():
    def one(layer, index, value):
        return Channel(layer, (index,), value, 0, 1.0)

    found = (
        (one(0, 7, 5), one(0, 3, 90)),
        (one(1, 7, -6),),
        (one(2, 7, 1), one(2, 4, 2)),
        (one(4, 7, 1), one(4, 4, 1)),
    )
    shared = ranges_parts.shared_channels(found)
    assert [index for index, _ in shared] == [(7,), (4,)]
    assert ranges_parts.layer_ranges(shared[0][1]) == "0–2, 4"
    assert ranges_parts.shared_channels(found[:1]) == []
    assert ranges_parts.channel_name((2, 17)) == "head 2 · 17"


def test_one_layer_shares_no_channel_and_the_page_says_so():
    app = visit("ranges", model="random", layers="1", at="0.resid_out")
    captions = texts(app, "gl-caption")
    assert captions.count("No channel is among the 3 furthest in more than one layer.") == 1
    assert not any("in several layers" in text for text in captions)


def test_a_click_on_a_row_of_the_table_chooses_its_step(monkeypatch):
    chosen = {}
    state = {"ranges.all": {"selection": {"rows": [1]}}}
    monkeypatch.setattr(ranges_parts, "st", SimpleNamespace(session_state=state))
    monkeypatch.setattr(ranges_parts, "session", lambda: SimpleNamespace(choose=chosen.update))
    ranges_parts._row_chosen(ranges_parts.stats_table(run(load("nano"), [1])))
    assert chosen == {"at": "0.resid_in"}


def test_the_measure_and_the_step_stay_in_the_url():
    app = visit("ranges", **NANO, at="1.up")
    done(app.segmented_control[0].set_value("outlier").run())
    done(app.selectbox(key="choice.stage").set_value("gated").run())
    assert app.query_params["range"] == "outlier"
    assert app.query_params["at"] == "1.gated"


@pytest.mark.parametrize("query", [{"range": "max"}, {"at": "9.up"}])
def test_what_cannot_be_leaves_a_note(query):
    app = visit("ranges", **NANO, **query)
    assert len(said(app)) == 1
    assert len(alts(app)) == 2
