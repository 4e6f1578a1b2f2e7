"""KV cache: the rows are those of the passes, they fill, and the page says what they cost and that nothing changes."""

from __future__ import annotations

import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from test_app import alts, bodies, component, done, said, texts, visit
from test_page_attention import unpacked

from llama_core import generate, load
from llama_core.generation import compare_cached
from llama_core.kv_cache import KVCache, cache_bytes
from llama_core.sizes import pass_flops
from pages.words import t

IDS = [10, 20, 30, 40]
HERE = {"model": "random", "preset": "nano", "std": "0.3", "ids": "10,20,30,40"}


def figures(app) -> dict[str, go.Figure]:
    charts = [element.proto for element in app.get("plotly_chart")]
    return {chart.id.split("-")[-1]: go.Figure(json.loads(chart.spec, object_hook=unpacked)) for chart in charts}


def number(app, label: str, n: int = 0) -> float:
    found = re.findall(rf'<dt>{re.escape(label)}</dt><dd title="(.*?)">', "".join(bodies(app)))
    return float(found[n].replace(",", ""))


def test_the_rows_are_those_of_the_cache_and_what_is_to_come_is_blank():
    model = load("nano", std=0.3)
    cache = KVCache(model.config)
    list(generate(model, IDS, max_new_tokens=6, cache=cache))
    keys, values = cache.arrays(1, 9)
    app = visit("cache", **HERE, new="6", token="6", at="1.k_shared", head="2")
    kv = 2 // model.config.group
    for name, rows in (("keys", keys), ("values", values)):
        z = figures(app)[f"cache.{name}"].data[0].z
        assert z.shape == (9, model.config.head_dim)
        assert np.array_equal(z[:7], rows[0, :7, kv])
        assert np.isnan(z[7:]).all()


def test_the_slider_is_the_chosen_token():
    app = visit("cache", **HERE, new="6", token="3")
    assert app.slider(key="cache.filled").value == 4
    done(app.slider(key="cache.filled").set_value(8).run())
    assert app.query_params["token"] in ("7", ["7"])
    assert t("cache.look.step", token=app_token(app, 7), last=7, S=8) in "".join(texts(app, "gl-caption"))


def test_what_was_written_is_shown_filled_to_its_last_row():
    app = visit("cache", **HERE, new="6")
    assert app.slider(key="cache.filled").value == app.slider(key="cache.filled").max == 9
    frame = figures(app)["cache.keys"].layout.shapes[-1]
    assert (frame.y0, frame.y1) == (7.5, 8.5)
    assert app.query_params["token"] in ("8", ["8"])


def test_only_a_page_with_a_slider_speaks_of_it():
    for new, there in (("0", False), ("1", False), ("2", True)):
        app = visit("cache", **HERE, new=new)
        assert any(each.key == "cache.filled" for each in app.slider) == there
        assert (t("cache.look.slider") in "".join(texts(app, "gl-caption"))) == there


def app_token(app, place: int) -> str:
    return component(app, "token_strip")["pieces"][place][0]


def test_without_a_text_the_page_shows_the_prompt_and_invites():
    app = visit("cache", **HERE)
    assert t("cache.prompt_only") in texts(app, "gl-lead")
    assert not any(each.key == "cache.filled" for each in app.slider)
    done(app.button(key="cache.write").click().run())
    assert app.query_params["new"] in ("20", ["20"])
    assert app.slider(key="cache.filled").max == 23


def test_bytes_and_operations_are_the_cores():
    config = load("nano").config
    app = visit("cache", **HERE, new="6", token="6")
    sizes = cache_bytes(config, 7, "float32")
    assert number(app, t("cache.bytes.now")) == sizes.now
    assert number(app, t("cache.bytes.full")) == sizes.full
    assert number(app, t("cache.bytes.mha")) == sizes.mha_full
    assert number(app, t("cache.with")) == sum(pass_flops(config, 1, 6).values())
    assert number(app, t("cache.without")) == sum(pass_flops(config, 7).values())


def test_a_small_model_is_compared_at_once():
    model = load("nano", std=0.3)
    ids = IDS + [token for token, _ in generate(model, IDS, max_new_tokens=5)]
    app = visit("cache", **HERE, new="6")
    drawn = figures(app)["cache.differences"].data[0].y
    assert drawn == pytest.approx(compare_cached(model, ids).differences, abs=1e-7)
    assert said(app) == []
    begins = [t(f"cache.same.{kind}").split("{")[0] for kind in ("exact", "rounding")]
    assert any(text.startswith(tuple(begins)) for text in texts(app, "gl-lead"))


@pytest.mark.parametrize("kind", ["exact", "rounding", "dynamic", "unexplained"])
def test_each_outcome_is_explained(kind):
    assert len(t(f"cache.same.{kind}", largest="1", bound="2", dtype="float32", context="16")) > 40


@pytest.mark.parametrize("kv", ["1", "4"])
def test_any_sharing_has_its_page(kv):
    app = visit("cache", **HERE, kv=kv, new="3", token="5", head="3")
    assert ("saved by sharing" in "".join(bodies(app))) == (kv == "1")
    assert len(alts(app)) == 4
