"""Every page on a run that holds nothing but its stream: the same pictures as on one that holds everything."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import plotly.io
import pytest
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest

from llama_core import rebuild, runner
from llama_core.rebuild import ALWAYS, Lately
from llama_core.survey import survey
from pages.figures import numbers
from pages.ui import cache_parts, frame, ranges_parts, waiting
from pages.ui.bar import EndedError
from pages.ui.menu import PAGES
from pages.ui.store import Store
from pages.words import t

ROOT = Path(__file__).parents[1]
HERE = {
    "model": "random",
    "preset": "nano",
    "seed": "77",
    "scheme": "xavier",
    "attention": "explicit",
    "ids": ",".join(str(7 * i * i % 61) for i in range(24)),
    "at": "1.weights",
    "head": "1",
    "token": "17",
}
MORE = {
    "attention": [{"look": "layer"}, {"look": "all"}, {"at": "1.scores"}],
    "steps": [{"at": at} for at in ("0.q_rot", "1.v_shared", "1.masked", "1.act", "logits")],
    "ranges": [{"at": "0.gate"}],
}


@pytest.fixture(autouse=True)
def a_survey_is_there_at_once(monkeypatch):
    streamlit_config.set_option("client.showErrorDetails", "full")
    monkeypatch.setattr(frame, "begin_survey", survey)
    yield
    streamlit_config.set_option("client.showErrorDetails", "none")


def new_store(monkeypatch) -> Store:
    """An empty store for the pages, instead of the server's."""
    own = Store()
    for module in (frame, cache_parts):
        monkeypatch.setattr(module, "store", lambda: own)
    return own


def opened(path: str, query: dict[str, str]) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    if path != "app.py":
        app.switch_page(path)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert [error.message for error in app.exception] == []
    return app


def pictures(path: str, query: dict[str, str]) -> list[dict]:
    charts = opened(path, query).get("plotly_chart")
    return [plotly.io.from_json(chart.proto.spec).to_dict() for chart in charts]


def numbers_in(packed: dict) -> np.ndarray:
    """An array as plotly sends it."""
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])


def alike(one, other, apart: float) -> bool:
    """apart: how far two numbers may be from each other."""
    if isinstance(one, dict) and "bdata" in one:
        return one["dtype"] == other["dtype"] and alike(numbers_in(one), numbers_in(other), apart)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name], apart) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(alike(a, b, apart) for a, b in zip(one, other, strict=True))
    if isinstance(one, (np.ndarray, float)) and np.asarray(one).dtype.kind == "f":
        return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=0, atol=apart, equal_nan=True)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


SLOW = {
    "home": {},
    "attention": {"look": "layer"},
    "sharing": {},
    "next": {},
    "edit": {"edit": "0.head_out zero h1"},
}


@pytest.mark.parametrize(("key", "more"), SLOW.items())
def test_what_takes_long_can_be_stopped_and_begun_again(monkeypatch, key, more):
    new_store(monkeypatch)
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    ended = True

    @contextmanager
    def progress(slot, text):
        if ended:
            raise EndedError(t("run.ended"))
        yield lambda share: None

    monkeypatch.setattr(waiting, "progress", progress)
    app = opened(next(path for name, path, _ in PAGES if name == key), HERE | more)
    assert any(t("run.ended") in element.proto.body for element in app.get("html"))
    charts = len(app.get("plotly_chart"))
    again = next(button for button in app.button if button.label == t("run.again"))
    ended = False
    again.click().run()
    assert [error.message for error in app.exception] == []
    assert not any(t("run.ended") in element.proto.body for element in app.get("html"))
    assert len(app.get("plotly_chart")) > charts


def test_both_parts_of_shared_heads_make_their_layer_again_once(monkeypatch):
    new_store(monkeypatch)
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    made, first_half = [], rebuild.Held._first_half

    def counted(held: rebuild.Held, layer: int) -> None:
        made.append(layer)
        first_half(held, layer)

    monkeypatch.setattr(rebuild.Held, "_first_half", counted)
    opened("pages/4_Shared_heads.py", HERE | {"heads": "8", "kv": "2"})
    assert made == [1]


def test_values_of_a_step_are_counted_layer_by_layer_while_its_page_is_open(monkeypatch):
    new_store(monkeypatch)
    monkeypatch.setattr(ranges_parts, "COUNT", 0)  # a layer in each run of the page
    path = next(path for name, path, _ in PAGES if name == "ranges")
    app = opened(path, HERE)
    layers = app.session_state["glass_llama.session"].shown.trace.config.num_hidden_layers
    charts = len(app.get("plotly_chart"))
    for ready in range(1, layers):
        (bar,) = app.get("progress")
        assert bar.proto.text == t("ranges.spread.counting", ready=ready, total=layers)
        assert len(app.get("plotly_chart")) == charts
        app.run()
    assert not app.get("progress")
    assert len(app.get("plotly_chart")) == charts + 1


@pytest.mark.parametrize(("key", "path"), [(key, path) for key, path, _ in PAGES])
def test_a_page_shows_the_same(monkeypatch, key, path):
    queries = [HERE | more for more in ({}, *MORE.get(key, ()))]
    new_store(monkeypatch)
    held = [pictures(path, query) for query in queries]
    bare = new_store(monkeypatch)
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    monkeypatch.setattr(rebuild, "LATELY", Lately(1 << 14))
    apart = 1e-5 if key == "next" else 0.0  # the parts of a logit are made for its position alone
    for query, shown in zip(queries, held, strict=True):
        assert alike(pictures(path, query), shown, apart), query
    traces = list(bare.traces._things.values())
    assert traces
    assert all({at.step for at in trace.tensors} == ALWAYS for trace in traces)


@pytest.mark.parametrize("hold", [runner.HOLD_LIMIT, 0])
def test_the_sidebar_says_how_much_of_all_tensors_is_held(monkeypatch, hold):
    store = new_store(monkeypatch)
    monkeypatch.setattr(runner, "HOLD_LIMIT", hold)
    said = "".join(element.proto.body for element in opened("pages/1_Tokens.py", HERE).get("html"))
    (trace,) = store.traces._things.values()
    whole = numbers.bytes_(trace.config.capture_bytes(trace.dims["T"]))
    part = t("state.part", bytes=numbers.bytes_(trace.nbytes), whole=whole)
    assert (part in said) == (hold == 0)
