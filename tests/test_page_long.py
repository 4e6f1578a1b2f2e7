"""Every page on a run that holds nothing but its stream: the same pictures as on one that holds everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.io
import pytest
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest

from llama_core import rebuild, runner
from llama_core.rebuild import ALWAYS, Lately
from llama_core.survey import survey
from pages.ui import cache_parts, frame
from pages.ui.menu import PAGES
from pages.ui.store import Store

ROOT = Path(__file__).parents[1]
HERE = {
    "model": "random",
    "preset": "nano",
    "seed": "77",
    "scheme": "xavier",
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


def pictures(path: str, query: dict[str, str]) -> list[dict]:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    if path != "app.py":
        app.switch_page(path)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert [error.message for error in app.exception] == []
    return [plotly.io.from_json(chart.proto.spec).to_dict() for chart in app.get("plotly_chart")]


def alike(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, (np.ndarray, float)):
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
    return one == other


@pytest.mark.parametrize(("key", "path"), [(key, path) for key, path, _ in PAGES])
def test_a_page_shows_the_same(monkeypatch, key, path):
    queries = [HERE | more for more in ({}, *MORE.get(key, ()))]
    new_store(monkeypatch)
    held = [pictures(path, query) for query in queries]
    bare = new_store(monkeypatch)
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    monkeypatch.setattr(rebuild, "LATELY", Lately(1 << 14))
    for query, shown in zip(queries, held, strict=True):
        assert alike(pictures(path, query), shown), query
    traces = list(bare.traces._things.values())
    assert traces
    assert all({at.step for at in trace.tensors} == ALWAYS for trace in traces)
