"""The page about RoPE: it opens on every model and prompt, its numbers are the run's, what cannot be leaves a note."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from test_app import NANO, NASTY, SMOL, alts, bodies, component, go, said, texts, visit

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from llama_core.turning import layout_difference, moved_score, shift_proof, turned
from pages.figures import numbers
from pages.words import t

LONG = ",".join(str(7 * i % 64) for i in range(120))
MODELS = [NANO, NANO | {"qk_norm": "1", "layout": "neighbours"}, {"model": SMOL}, {"model": BOX}]


def here(query: dict) -> bool:
    return query["model"] != BOX or BOX in local_models()


def grid(app) -> dict[str, str]:
    """Label -> exact value, over all grids of numbers on the page."""
    return {
        html.unescape(label): html.unescape(exact)
        for body in bodies(app)
        for label, exact in re.findall(r'<dt>(.*?)</dt><dd title="(.*?)">', body)
    }


def pictures(app) -> list[str]:
    """What each picture is called to who does not see it: the arrows, then the charts."""
    return [html.unescape(re.search(r'aria-label="(.*?)"', component(app, "arrows")["html"])[1]), *alts(app)]


def captions(app) -> str:
    return " ".join(texts(app, "gl-caption"))


@pytest.mark.parametrize("query", [query for query in MODELS if here(query)], ids=lambda query: query["model"])
def test_it_opens_with_all_its_pictures(query):
    app = visit("rope", **query)
    assert said(app) == []
    assert len(pictures(app)) == 9
    assert all(pictures(app))


@pytest.mark.parametrize(
    "query",
    [
        NANO | {"ids": "7"},
        NANO | {"ids": LONG},
        {"model": SMOL, "prompt": "A"},
        {"model": SMOL, "prompt": "one two " * 150},
    ],
    ids=["one id", "many ids", "one token", "300 tokens"],
)
def test_one_token_and_hundreds(query):
    app = visit("rope", **query)
    assert said(app) == []
    assert len(pictures(app)) == 9


def test_the_numbers_are_those_of_the_run():
    app = visit("rope", model="random", std="0.5", at="2.q_rot", head="5", token="3", reads="1", shift="40", place="9")
    trace = run(load("tiny", std=0.5), [10, 20, 30, 40, 50])
    found, proof = turned(trace, 2, 5, "query", 3, 9), shift_proof(trace, 2, 5, 3, 1)
    shown = grid(app)
    assert shown[t("rope.number.before")] == repr(float(np.linalg.norm(trace["2.q"][0, 3, 5])))
    assert shown[t("rope.number.difference")] == repr(found.difference)
    assert shown[t("rope.number.fast")] == repr(9.0)
    assert shown[t("rope.number.captured")] == repr(float(trace["2.scores"][0, 5, 3, 1]))
    assert shown[t("rope.number.score", m=3, n=1)] == repr(proof.score)
    assert shown[t("rope.number.moved", m=43, n=41)] == repr(moved_score(trace, 2, 5, 3, 1, 40)) != repr(proof.score)
    assert shown[t("rope.number.largest", n=len(proof.shifts))] == repr(proof.largest)
    assert float(shown[t("rope.number.exact")]) < 1e-12
    assert numbers.short(layout_difference(trace, 2, 5, 3).largest) in " ".join(texts(app, "gl-lead"))
    assert "at position 9" in " ".join(pictures(app))


def test_the_key_of_a_group_is_the_one_that_the_head_reads():
    app = visit("rope", model="random", vector="key", head="5")
    assert "key head 1 of" not in pictures(app)[0]
    assert "layer 0, key head 1: 50 at position 4" in pictures(app)[0]


def test_a_vector_by_hand_in_both_layouts():
    table = "".join(body for body in bodies(visit("rope", **NANO)) if "gl-table" in body)
    for value in ("-1.98411", "1.95990", "2.46238", "4.01980", "-1.14264", "1.92208", "2.95985", "4.02980"):
        assert value in table


def test_it_says_which_layout_the_weights_have():
    def lead(app) -> str:
        return " ".join(texts(app, "gl-lead"))

    assert "r with r + 2 (halves)" in lead(visit("rope", **NANO))
    assert "2r with 2r + 1 (neighbours)" in lead(visit("rope", **NANO, layout="neighbours"))
    assert "Position 0 turns nothing" in lead(visit("rope", **NANO, token="0"))


def test_of_one_pair_nothing_is_said_of_another_layout():
    app = visit("rope", **NANO, head_dim="2")
    assert t("rope.pairs.say.one") in texts(app, "gl-lead")
    assert t("rope.number.slow", pair=0) not in [label for label in grid(app) if label != t("rope.number.fast")]


def test_it_says_what_is_turned_where_a_norm_comes_first():
    assert "q_norm" in captions(visit("rope", **NANO, qk_norm="1"))
    assert "k_norm" in captions(visit("rope", **NANO, qk_norm="1", vector="key"))
    assert "norm" not in captions(visit("rope", **NANO))


@pytest.mark.parametrize("kind", ["none", "linear", "dynamic", "llama3", "yarn"])
def test_every_what_if_is_drawn_and_said(kind):
    app = visit("rope", model=SMOL, if_kind=kind, if_base="500000", if_factor="32")
    assert said(app) == []
    assert len(pictures(app)) == 9
    say = t(f"rope.if.{kind}.say").split("{")[0]
    assert say in captions(app)


def test_yarn_says_by_how_much_scores_grow():
    app = visit("rope", model=SMOL, if_kind="yarn", if_factor="16")
    factor = 0.1 * np.log(16) + 1
    assert f"multiplies q and k by {factor:.4g}".rstrip("0") in captions(app)


def test_a_what_if_that_cannot_be_is_a_sentence_and_the_page_goes_on():
    app = visit("rope", **NANO, if_kind="llama3", if_low="8", if_high="4")
    assert "low_freq_factor" in said(app)[0]
    assert len(pictures(app)) == 7


def test_choices_beyond_this_run_are_brought_into_it():
    app = visit("rope", **NANO, reads="99", place="4000", shift="5000")
    assert len(said(app)) == 2
    assert all("nearest" in note for note in said(app))
    assert len(pictures(app)) == 9


@pytest.mark.parametrize("query", [{"place": "x"}, {"vector": "value"}, {"if_kind": "ntk"}, {"if_base": "0"}])
def test_a_link_that_cannot_be_gives_the_default_and_a_note(query):
    app = visit("rope", **NANO, **query)
    assert len(said(app)) == 1
    assert len(pictures(app)) == 9


def test_choices_stay_in_the_url_and_survive_a_copied_link():
    app = visit("rope", **NANO, vector="key", place="20", if_kind="yarn", reads="1")
    assert app.segmented_control(key="choice.vector").value == "key"
    go(app, **{name: app.query_params[name] for name in app.query_params})
    assert app.segmented_control(key="choice.if_kind").value == "yarn"
    assert app.select_slider(key="choice.place").value == 20
    app.segmented_control(key="choice.vector").set_value("query").run()
    assert "vector" not in app.query_params
    assert app.query_params["place"] == "20"


def test_a_changed_what_if_keeps_the_rest():
    app = visit("rope", **NANO)
    app.select_slider(key="choice.if_factor").set_value(32.0).run()
    assert app.query_params["if_factor"] == "32"
    assert said(app) == []


def test_text_from_the_prompt_does_not_act():
    app = visit("rope", model=SMOL, prompt=NASTY, token="2")
    raw = "".join(bodies(app))
    assert "<script" not in raw
    assert "<img" not in raw


def test_bfloat16_says_why_the_difference_is_larger():
    app = visit("rope", **NANO, dtype="bfloat16")
    assert "bfloat16" in captions(app)
    assert said(app) == []
