"""The page about the residual stream and the norms: growth, the outlier, what is inside a norm."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from test_app import NANO, SMOL, alts, bodies, done, said, texts, visit
from test_page_sharing import rows

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from pages.figures import numbers
from pages.words import t

TINY = {"model": "random"}


def filled(app: AppTest) -> AppTest:
    """The page once the survey of its run is complete."""
    for thread in threading.enumerate():
        if thread.name == "survey":
            thread.join()
    return done(app.run())


@pytest.mark.parametrize(
    "query",
    [
        NANO,
        NANO | {"qk_norm": "1", "at": "1.q_norm", "head": "1"},
        NANO | {"qk_norm": "1", "at": "1.k_norm", "head": "1"},
        NANO | {"at": "final_norm"},
        NANO | {"ids": "7"},
        TINY | {"ids": ",".join(str(i % 256) for i in range(300))},
        NANO | {"std": "0"},
        {"model": SMOL, "prompt": "A"},
        {"model": BOX},
    ],
    ids=["nano", "q_norm", "k_norm", "final_norm", "one id", "300 ids", "all zero", "one token", "box"],
)
def test_it_opens(query):
    app = filled(visit("stream", **(query if query["model"] != BOX or BOX in local_models() else TINY)))
    assert said(app) == []
    assert len(alts(app)) == 7
    assert all(alts(app))


def test_the_first_token_of_the_trained_model_is_called_an_outlier():
    lead = " ".join(texts(filled(visit("stream", model=SMOL)), "gl-lead"))
    assert "in layer 11 its stream has size 946" in lead
    assert "outlier" not in " ".join(texts(filled(visit("stream", **TINY)), "gl-lead"))


def test_the_numbers_of_a_norm_are_the_runs():
    app = visit("stream", **TINY, at="2.mlp_norm", token="3")
    trace = run(load("tiny"), [10, 20, 30, 40, 50])
    x, eps = trace["2.resid_mid"][0, 3].astype(np.float64), trace.config.rms_norm_eps
    square = float(np.mean(x**2))
    grid = "".join(body for body in bodies(app) if "gl-numbers" in body)
    shown = (numbers.short(square), numbers.short((square + eps) ** -0.5), numbers.percent(eps / (square + eps)))
    assert all(f">{text}<" in grid for text in (*shown, numbers.short(x.mean())))
    found = {row[0]: row[1:] for row in rows(app) if len(row) == 3}
    assert found["0"][0] == numbers.short(square**-0.5)
    assert found["0.001"][0] == numbers.short((square + 1e-3) ** -0.5)
    assert found[t("stream.eps.own", eps=f"{eps:g}")][1] == "–"
    layer_norm = (x - x.mean()) / np.sqrt(x.var() + eps)
    rms_norm = x / np.sqrt(square + eps)
    here = [row for row in rows(app) if row and row[0] == t("stream.others.here", token="40", position=3)]
    assert here[0][2] == numbers.short(np.abs(layer_norm - rms_norm).max())


def test_the_norms_on_offer_are_those_of_the_model():
    which = visit("stream", **NANO).segmented_control[0]
    assert which.options == ["attn_norm", "mlp_norm", "final_norm"]
    assert "q_norm" in visit("stream", **NANO, qk_norm="1").segmented_control[0].options


def test_choosing_a_norm_chooses_its_address():
    app = visit("stream", **NANO, at="1.attn_norm")
    done(app.segmented_control[0].set_value("mlp_norm").run())
    assert app.query_params["at"] == "1.mlp_norm"
    done(app.segmented_control[0].set_value("final_norm").run())
    assert app.query_params["at"] == "final_norm"


def test_what_is_not_in_this_model_leaves_a_note():
    app = visit("stream", **NANO, at="9.q_norm", token="99")
    assert len(said(app)) == 2
