"""The Next token page on each model: losses, cuts, the lens, parts of a logit; one token and hundreds."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from test_app import NANO, SMOL, alts, bodies, done, said, visit

from llama_core import load, run
from llama_core.checkpoints import local_models
from llama_core.checkpoints.roots import BOX
from pages.words import t

MODELS = [NANO, {"model": SMOL}, *([{"model": BOX}] if BOX in local_models() else [])]
TINY = {"model": "random", "preset": "tiny"}
TIED = {**TINY, "tied": "1", "scheme": "pytorch"}


def complete(app):
    """The page once its lens is: each pass reads on."""
    for _ in range(40):
        if not any("rows are ready" in bar.proto.text for bar in app.get("progress")):
            return app
        done(app.run())
    raise AssertionError("the lens was never complete")


def number(app, label: str) -> float:
    """The exact value of a number on the page."""
    return float(re.search(rf'<dt>{re.escape(label)}</dt><dd title="(.*?)">', "".join(bodies(app)))[1])


@pytest.mark.parametrize("model", MODELS)
def test_the_page_shows_all_four_parts(model):
    app = complete(visit("next", **model))
    assert len(alts(app)) == 5
    assert said(app) == []


def test_the_loss_is_cross_entropy():
    ids = [10, 20, 30, 40, 50]
    logits = torch.tensor(run(load("nano"), ids)["logits"][0])
    expected = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:])).item()
    assert f"mean {expected:.2f}; ln V is {np.log(64):.2f}" in alts(visit("next", **NANO))[0]


def test_parts_sum_to_the_logit_and_the_difference_is_shown():
    app = visit("next", model=SMOL)
    logit, total = number(app, t("next.parts.logit")), number(app, t("next.parts.total"))
    assert number(app, t("next.parts.difference")) == pytest.approx(logit - total)
    assert abs(logit - total) < 1e-4
    parts = [number(app, t(f"next.parts.{part}")) for part in ("embedding", "attention", "mlp")]
    assert sum(parts) == pytest.approx(total)
    assert number(app, t("next.parts.heads.total")) == pytest.approx(parts[1], abs=1e-4)


def test_against_another_token_the_lead_is_the_difference_of_two_logits():
    row = run(load("nano"), [10, 20, 30, 40, 50])["logits"][0, -1]
    alone = visit("next", **NANO, answer="3")
    assert number(alone, t("next.parts.logit")) == pytest.approx(float(row[3]), abs=1e-6)
    app = visit("next", **NANO, answer="3", against="8")
    assert number(app, t("next.parts.lead")) == pytest.approx(float(row[3]) - float(row[8]), abs=1e-6)


def test_cuts_are_those_of_the_link():
    app = visit("next", **NANO, temperature="0.5", top_k="3", top_p="1")
    row = run(load("nano"), [10, 20, 30, 40, 50])["logits"][0, -1].astype(np.float64) / 0.5
    shares = np.sort(np.exp(row) / np.exp(row).sum())[::-1]
    assert number(app, t("next.kept")) == 3
    assert number(app, t("next.cut")) == pytest.approx(shares[3:].sum())
    kept = shares[:3] / shares[:3].sum()
    assert number(app, t("next.entropy")) == pytest.approx(-(kept * np.log(kept)).sum())


def test_a_tied_head_with_large_embeddings_loses_more_than_a_blind_draw_and_the_page_says_so():
    app = complete(visit("next", **TIED))
    (sentence,) = said(app)
    assert "is above ln V = 5.55" in sentence
    assert "about D = 64" in sentence
    mean = float(re.search(r"mean ([\d.]+);", alts(app)[0])[1])
    assert mean > 2 * np.log(256)


def test_one_token_has_no_loss_and_still_an_answer():
    app = complete(visit("next", **NANO, ids="7"))
    assert alts(app)[0] == t("next.loss.none")
    assert len(alts(app)) == 5
    assert said(app) == []


def test_of_three_hundred_tokens_the_lens_shows_the_page_of_the_chosen_one():
    app = complete(visit("next", **TINY, ids=",".join(str(i % 60) for i in range(300)), token="100", lens="rank"))
    assert "Positions 96 to 107 of 300" in "".join(bodies(app))
    assert any("of 4 layers at 12 positions" in alt for alt in alts(app))


def test_the_last_row_of_the_lens_is_the_answer():
    app = complete(visit("next", **NANO, token="4"))
    best = int(run(load("nano"), [10, 20, 30, 40, 50])["logits"][0, 4].argmax())
    assert f"At position 4 the answer {best} leads" in "".join(bodies(app))


@pytest.mark.parametrize("name", ["answer", "against"])
def test_a_token_beyond_the_vocabulary_is_said_and_not_used(name):
    app = visit("next", **NANO, **{name: "64"})
    assert said(app) == [t("next.parts.unknown", last=63, asked=64, used=t(f"next.parts.unknown.{name}"))]
    assert len(alts(app)) == 5
    assert said(done(app.run())) == []  # it is forgotten


def test_bad_values_in_the_link_are_said():
    app = visit("next", **NANO, temperature="-1", top_p="2", top_k="x", lens="loud")
    assert len(said(app)) == 4
