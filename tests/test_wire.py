"""What a long prompt sends to the browser: 2,048 tokens, every page, its defaults and the most that can be chosen."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from llama_core.model import Llama
from llama_core.steps import STEPS, At
from llama_core.survey import survey
from llama_core.trace import Trace
from pages.figures.pooling import LIMIT
from pages.ui import cache_parts, frame
from pages.ui.menu import PAGES
from pages.ui.session import LENS_COLOURS, RANGES
from pages.ui.store import Store

ROOT = Path(__file__).parents[1]
MOST = 5_000_000
"""Bytes that a page may send."""
T = 2048
SMALL = {"hidden": "32", "head_dim": "16", "heads": "2", "kv": "1", "layers": "1", "mlp": "600", "vocab": "600"}
HERE = {
    "model": "random",
    "preset": "teaching-83M",
    "scheme": "xavier",
    "ids": ",".join(str(7 * i * i % 599) for i in range(T)),
    "at": "0.weights",
    "head": "1",
    "token": "1700",
    **SMALL,
}
ADDRESSES = [str(At(None if step.scope == "model" else 0, step)) for step in STEPS if step.family is None]
CHOICES = {
    "steps": [*({"at": at} for at in ADDRESSES), {"show": "explain"}, {"token": "30"}, {"head": "0"}],
    "attention": [{"log": "1"}, {"rest": "1"}, {"at": "0.scores"}, {"look": "layer", "log": "1"}, {"look": "all"}],
    "ranges": [{"range": name} for name in RANGES] + [{"at": "0.gate"}],
    "next": [{"lens": name} for name in LENS_COLOURS] + [{"token": "30"}],
    "stream": [{"at": "0.mlp_norm"}],
    "sizes": [{"context": "131072"}],
    "rope": [{"place": "2000"}],
}


class Visits:
    """Opens pages one after another, as one person does."""

    def __init__(self) -> None:
        self.passes = self.bytes = 0
        self.app: AppTest | None = None
        self.trace: Trace | None = None

    def open(self, path: str, choices: dict[str, str]) -> None:
        """Open a page; `bytes` are what it sent."""
        self.app = AppTest.from_file(ROOT / "app.py", default_timeout=120)
        if path != "app.py":
            self.app.switch_page(path)
        for name, value in (HERE | choices).items():
            self.app.query_params[name] = value
        self.app.run()
        assert [error.message for error in self.app.exception] == []

    def chart(self, key: str) -> go.Figure:
        """A figure of the page; its arrays are packed, as they were sent."""
        (found,) = (each for each in self.app.get("plotly_chart") if each.proto.id.endswith(f"-{key}"))
        return plotly.io.from_json(found.proto.spec)


@contextmanager
def counted(visits: Visits) -> Iterator[None]:
    """Count the passes of a model and the bytes of a page's messages."""
    forward, messages = Llama.forward, LocalScriptRunner.forward_msgs

    def one_pass(self, *given, **more):
        visits.passes += 1
        return forward(self, *given, **more)

    def all_messages(self):
        sent = messages(self)
        visits.bytes = sum(message.ByteSize() for message in sent)
        return sent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Llama, "forward", one_pass)
        patch.setattr(LocalScriptRunner, "forward_msgs", all_messages)
        yield


@pytest.fixture(scope="module")
def visits() -> Iterator[Visits]:
    """A store of their own, in which the prompt has run once."""
    found, own = Visits(), Store()
    streamlit_config.set_option("client.showErrorDetails", "full")
    with pytest.MonkeyPatch.context() as patch, counted(found):
        for module in (frame, cache_parts):
            patch.setattr(module, "store", lambda: own)
        patch.setattr(frame, "begin_survey", survey)
        patch.setattr(cache_parts, "AT_ONCE", 0)  # a comparison token by token is asked for with a button
        found.open("pages/1_Tokens.py", {})
        found.trace = next(iter(own.traces._things.values()))
        assert found.passes == 1
        assert found.trace.dims["T"] == T
        yield found
    streamlit_config.set_option("client.showErrorDetails", "none")


@pytest.mark.parametrize(("key", "path"), [(key, path) for key, path, _ in PAGES])
def test_no_page_sends_more_than_five_megabytes_and_no_choice_runs_the_model_again(visits, key, path):
    for choices in ({}, *CHOICES.get(key, ())):
        visits.open(path, choices)
        assert 10_000 < visits.bytes < MOST, choices
        assert visits.passes == 1, choices


def largest(values: np.ndarray) -> float:
    return float(np.nanmax(np.abs(np.where(np.isfinite(values), values, np.nan))))


def cells(figure: go.Figure) -> np.ndarray:
    """What the map of a figure shows; the layers above it are for its marks and clicks."""
    packed = figure.data[0].z
    shape = tuple(map(int, packed["shape"].split(",")))
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).reshape(shape).astype(np.float64)


@pytest.mark.parametrize("at", ["0.weights", "0.q_rot", "0.gate", "logits"])
def test_the_map_of_a_step_is_pooled_and_its_largest_value_survives(visits, at):
    trace = visits.trace
    visits.open("pages/2_Step_by_step.py", {"at": at})
    shown = cells(visits.chart("map"))
    values = trace.head(at, 1) if trace.resolve(at).step.causal else trace[at][0]
    values = values[:, 1] if values.ndim == 3 else values
    assert max(shown.shape) <= LIMIT == 512
    assert largest(shown) == pytest.approx(largest(values), rel=1e-6)


def test_a_head_is_pooled_on_the_attention_page_too_and_a_part_of_it_has_its_own_cells(visits):
    weights = visits.trace.head("0.weights", 1)
    visits.open("pages/5_Attention.py", {})
    shown = cells(visits.chart("attention.map"))
    assert max(shown.shape) <= LIMIT
    assert largest(shown) == pytest.approx(largest(weights), rel=1e-6)
    visits.open("pages/5_Attention.py", {"window": "1000-1099,400-459"})
    assert cells(visits.chart("attention.map")) == pytest.approx(weights[1000:1100, 400:460], rel=1e-6)
