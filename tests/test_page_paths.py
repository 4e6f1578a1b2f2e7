"""Which path made a number, on the pages that show it; the two paths beside each other; what is not computed yet."""

from __future__ import annotations

import threading
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
from hovers import said_at
from test_app import alts, bodies, done, said, shown_numbers, texts, visit
from torch.nn import functional

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from llama_core.errors import RunError
from llama_core.model import Llama
from llama_core.paths import Cost, Costs, difference
from llama_core.rebuild import Held
from llama_core.steps import HEAD_OUT, RESID_OUT, At
from pages.figures import numbers
from pages.figures.log_map import log_map
from pages.figures.paths import apart_lines, cost_lines, not_yet
from pages.ui import background, path_parts, ranges_parts
from pages.ui.path_parts import Timing
from pages.words import t

NANO = {"model": "random", "preset": "nano", "std": "0.3", "scheme": "normal"}
FUSED = NANO | {"attention": "fused"}


def ids(seed: int) -> list[int]:
    """A prompt of its own for each test, so that none finds what another has measured."""
    return [(seed + 7 * i * i) % 61 for i in range(12)]


def asked(seed: int) -> dict[str, str]:
    return {"ids": ",".join(map(str, ids(seed)))}


@lru_cache
def nano() -> Llama:
    return load("nano", scheme="normal", std=0.3)


def press(app, key: str):
    return done(app.button(key=key).click().run())


def keys(app) -> set[str]:
    return {button.key for button in app.button if button.key}


@pytest.fixture
def made(monkeypatch) -> list[At]:
    """The addresses whose statistics are made after a pass."""
    found, right = [], Held.stats

    def stats(self, at):
        found.append(at)
        return right(self, at)

    monkeypatch.setattr(Held, "stats", stats)
    return found


# --- the two beside each other ---


def test_the_page_says_which_path_made_its_maps():
    explicit, fused = visit("attention", **NANO, **asked(1)), visit("attention", **FUSED, **asked(1))
    assert t("paths.was.explicit") in texts(explicit, "gl-caption")
    assert not {t("paths.made"), t("paths.own", layer=0)} & set(texts(explicit, "gl-caption"))
    assert {t("paths.was.fused"), t("paths.made")} <= set(texts(fused, "gl-caption"))
    mixed = visit("attention", **FUSED, **asked(1), edit="0.q zero h1", look="all")
    assert t("paths.made") in texts(mixed, "gl-caption")


def test_a_layer_that_ran_explicitly_says_so(monkeypatch):
    said_now = []
    monkeypatch.setattr(path_parts, "caption", said_now.append)
    look = {"look": "head"}
    monkeypatch.setattr(path_parts, "session", lambda: look)
    trace = run(nano(), ids(2), path="fused", edits={"1.weights": "zero h1"})
    for layer in (0, 1):
        path_parts.maps_were_made(SimpleNamespace(trace=trace, layer=layer))
    look["look"] = "all"
    path_parts.maps_were_made(SimpleNamespace(trace=trace, layer=1))
    assert said_now == [t("paths.made"), t("paths.own", layer=1), t("paths.made")]
    assert path_parts._was(trace) == t("paths.was.some", path="fused but for layer 1")
    lines = [path_parts.of_step(SimpleNamespace(trace=trace, at=At.parse(at))) for at in ("1.weights", "0.weights")]
    assert lines == [t("paths.stats.explicit", layer=1), t("paths.stats.made", step="weights")]


@pytest.mark.parametrize("path", ["explicit", "fused"])
def test_the_other_path_runs_when_it_is_asked_for_and_not_before(monkeypatch, path):
    passes = []

    def counted(*args):
        passes.append(args)
        return difference(*args)

    monkeypatch.setattr(path_parts, "difference", counted)
    app = visit("attention", **NANO, **asked(3), attention=path)
    before = len(alts(app))
    assert passes == []
    press(app, "paths.compare")
    assert len(passes) == 1
    right = difference(nano(), run(nano(), ids(3), path=path))
    assert right.head_out.largest.max() > 0
    shown = "".join(bodies(app))
    for distance in (right.head_out, right.resid_out, right.logits):
        assert f'title="{float(distance.largest.max())!r}">{numbers.short(distance.largest.max())}<' in shown
    assert len(alts(app)) == before + 1
    assert alts(app)[-1].startswith("Largest differences between the two paths in 2 layers: head_out at most")
    expected = f"At every one of {numbers.exact(12)} positions they expect the same token."
    assert any(expected in text for text in texts(app, "gl-caption"))
    assert said(app) == []
    assert "paths.compare" not in keys(app)
    done(app.run())
    assert len(passes) == 1


def test_a_path_that_computes_something_else_is_named(monkeypatch):
    right = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda q, k, v, mask=None, **how: right(q, k, v, scale=3.0)
    )
    app = press(visit("attention", **NANO, **asked(4)), "paths.compare")
    assert len(said(app)) == 1
    assert "more than rounding explains: in float32 it may reach 0.001 × rms" in said(app)[0]


def test_what_cannot_be_compared_is_said_in_a_sentence(monkeypatch):
    def refuse(*args):
        raise RunError("No <b>room</b> for it.")

    monkeypatch.setattr(path_parts, "difference", refuse)
    app = press(visit("attention", **NANO, **asked(5)), "paths.compare")
    assert said(app) == ["No <b>room</b> for it."]
    assert "paths.compare" in keys(app)


@pytest.mark.skipif(BOX not in local_models(), reason="The box model is not built.")
@pytest.mark.parametrize("look", ["head", "layer", "all"])
def test_the_box_model_fused(look):
    app = visit("attention", attention="fused", look=look, prompt=f"Mia saw a {look}.")
    assert said(app) == []
    press(app, "paths.compare")
    assert said(app) == []
    assert any("That is rounding" in text for text in texts(app, "gl-caption"))


# --- what they cost ---

COSTS = [
    Costs(12, Cost(0.002, 3_000_000), Cost(0.001, 1_000_000)),
    Costs(64, Cost(0.016, 48_000_000), Cost(0.004, 4_000_000)),
    Costs(128, Cost(None, 192_000_000), Cost(0.008, 8_000_000)),
]


def test_both_paths_are_timed_when_that_is_asked_for(monkeypatch):
    begun = []

    def fake(llama, prompt, between):
        begun.append(list(prompt))
        return iter(COSTS)

    monkeypatch.setattr(path_parts, "costs_by_length", fake)
    app = visit("attention", **FUSED, **asked(6))
    before = len(alts(app))
    assert begun == []
    press(app, "paths.time")
    assert begun == [ids(6)]
    assert len(alts(app)) == before + 2
    assert alts(app)[-2:] == [
        "Seconds of one pass (log), from 12 to 128 tokens; at the last — explicitly, 8.0 ms fused.",
        "Memory of one pass (log), from 12 to 128 tokens; at the last 192 MB explicitly, 8.0 MB fused.",
    ]
    captions = texts(app, "gl-caption")
    assert any("Over 128 tokens the explicit path, 192 MB at once, does not fit" in text for text in captions)
    press(app, "paths.time")
    assert len(begun) == 2


def test_the_longest_prompt_is_said_in_words():
    T, explicit, fused = COSTS[1]
    assert path_parts._in_words(Costs(T, explicit, fused)).endswith("needs 48 MB at once against 4.0 MB.")
    same = path_parts._in_words(Costs(T, explicit, fused._replace(nbytes=explicit.nbytes)))
    assert "takes 16 ms explicitly and 4.0 ms fused. Both need 48 MB at once: the logits" in same


def test_timing_ends_at_the_next_pass_and_keeps_what_is_done(monkeypatch):
    reached, begun = threading.Event(), []

    def fake(llama, prompt, between):
        begun.append(prompt)
        yield COSTS[0]
        while True:
            reached.set()
            between()

    monkeypatch.setattr(path_parts, "costs_by_length", fake)
    monkeypatch.setattr(background, "PATIENCE", 0)
    here = Timing((12, 64, 128))
    here.begin(None, [1], lambda: None)
    assert reached.wait(10)
    assert here.running
    here.begin(None, [1], lambda: None)  # it runs already
    assert len(begun) == 1
    here.stop()
    work = next((one for one in threading.enumerate() if one.name == "paths"), None)
    if work is not None:
        work.join(10)
    assert not here.running
    assert here.found == COSTS[:1]
    assert here.trouble == ""


def test_what_ends_timing_is_said(monkeypatch):
    def fake(llama, prompt, between):
        yield COSTS[0]
        raise RunError("It has gone.")

    monkeypatch.setattr(path_parts, "costs_by_length", fake)
    monkeypatch.setattr(background, "PATIENCE", 10)
    app = press(visit("attention", **FUSED, **asked(7)), "paths.time")
    assert said(app) == ["It has gone."]
    assert len(alts(app)) > 2


def test_lines_of_cost_have_the_numbers_and_a_gap_where_there_is_none():
    figure = cost_lines(
        [each.T for each in COSTS],
        [each.explicit.seconds for each in COSTS],
        [each.fused.seconds for each in COSTS],
        name="time",
        written=numbers.duration,
        here=64,
    )
    go.Figure(figure.to_dict())  # plotly's own check
    explicit, fused = figure.data
    np.testing.assert_array_equal(explicit.y, [0.002, 0.016, np.nan])
    np.testing.assert_array_equal(fused.y, [0.001, 0.004, 0.008])
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert [shape.x0 for shape in figure.layout.shapes] == [64]
    assert list(fused.customdata) == ["1.0 ms", "4.0 ms", "8.0 ms"]
    close = cost_lines([50, 64, 128], [1, 2, 3], [1, 1, 1], name="time", written=str)
    assert list(close.layout.xaxis.ticktext) == ["", "64", "128"]


def test_lines_of_difference_are_those_of_each_step():
    steps = [(HEAD_OUT, np.array([0.0, 2e-6]), np.array([1.0, 2.0])), (RESID_OUT, np.array([1e-6, 3e-6]), np.ones(2))]
    drawn = apart_lines(steps, chosen=1, dark=True)
    go.Figure(drawn.to_dict())  # plotly's own check
    assert [line.name for line in drawn.data] == ["head_out apart", "head_out rms", "resid_out apart", "resid_out rms"]
    np.testing.assert_allclose(drawn.data[0].y, steps[0][1])
    np.testing.assert_allclose(drawn.data[3].y, [1, 1])
    assert drawn.layout.yaxis.type == "log"


# --- statistics that a fused pass has not ---


def test_statistics_of_a_map_are_made_when_that_is_asked_for(made):
    app = visit("steps", **FUSED, **asked(8), at="1.weights")
    assert made == []
    assert said(app) == [t("paths.stats.not_yet", at="1.masked, 1.weights")]
    assert not any('<dl class="gl-numbers"' in body for body in bodies(app))
    press(app, "paths.stats.1.masked, 1.weights")
    assert [str(at) for at in made] == ["1.masked", "1.weights"]
    assert said(app) == []
    right = run(nano(), ids(8)).stat("1.weights")
    shown = shown_numbers(app)
    for name in ("mean", "std", "rms", "min", "max"):
        assert float(shown[t(f"stats.{name}")]) == pytest.approx(getattr(right, name), rel=1e-4)
    assert shown[t("stats.count")] == str(right.count)
    assert any(t("paths.stats.made", step="weights") in text for text in texts(app, "gl-caption"))
    assert "paths.stats.1.masked, 1.weights" not in keys(app)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("at", "line"),
    [
        ("0.head_out", t("paths.stats.head_out")),
        ("0.up", t("paths.stats.same", step="up")),
        ("logits", t("paths.stats.same", step="logits")),
    ],
)
def test_other_steps_of_a_fused_pass_have_their_statistics_and_say_which_path_made_them(made, at, line):
    app = visit("steps", **FUSED, **asked(9), at=at)
    assert any(line in text for text in texts(app, "gl-caption"))
    assert shown_numbers(app)[t("stats.rms")] == repr(run(nano(), ids(9), path="fused").stat(at).rms)
    assert made == []
    assert said(app) == ([t("paths.stats.not_yet", at="0.weights")] if at == "0.head_out" else [])
    explicit = visit("steps", **NANO, **asked(9), at=at)
    assert said(explicit) == []
    assert not any(line in text for text in texts(explicit, "gl-caption"))


@pytest.mark.parametrize("measure", ["rms", "broken"])
def test_activations_show_what_is_not_computed_yet_and_compute_it_when_asked(made, measure):
    seed = 20 if measure == "rms" else 21
    app = visit("ranges", **FUSED, **asked(seed), range=measure, at="1.weights")
    assert made == []
    assert said(app) == [t("paths.missing", steps="scores, masked, weights", layers=2)]
    assert not any("Yellow cells" in text or "There is none" in text for text in texts(app, "gl-caption"))
    table = app.dataframe[0].value
    assert table[table["made"] == t("paths.not_yet")]["at"].tolist() == [
        f"{layer}.{step}" for layer in (0, 1) for step in ("scores", "masked", "weights")
    ]
    assert table["rms"].isna().sum() == 6
    press(app, "paths.missing")
    assert len(made) == 6
    assert said(app) == []
    assert "paths.missing" not in keys(app)
    table = app.dataframe[0].value
    assert "made" not in table
    assert table["rms"].notna().all()
    right = ranges_parts.stats_table(run(nano(), ids(seed)))
    np.testing.assert_allclose(table["largest"], right["largest"], rtol=1e-4, atol=1e-6)


def test_a_cell_that_is_not_computed_yet_is_neither_masked_nor_nan():
    values, coming = np.array([[1.0, np.nan], [3.0, 4.0]]), np.array([[False, True], [False, False]])
    plain = log_map(values, rows=["a", "b"], row_axis="r", col_axis="c", pick=True, masked=coming)
    figure = not_yet(plain)
    go.Figure(figure.to_dict())  # plotly knows every property
    assert said_at(figure) == {(0, 0): "1", (0, 1): t("paths.not_yet"), (1, 0): "3", (1, 1): "4"}
    assert not any(t("figures.map.masked") in (layer.hovertemplate or "") for layer in figure.data)
    assert (figure.layout.meta["masked"], figure.layout.meta["flagged"]) == (0, 0)
