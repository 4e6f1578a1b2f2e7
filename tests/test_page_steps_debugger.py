"""The debugger on the Step-by-step page: where a run stops, how it goes on; a cell, its terms, where they lead."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from test_app import NANO, SMOL, address, alts, bodies, done, go, said, texts, traced, visit

from llama_core import KVCache, explain, load, run, steps
from llama_core.config import PRESETS
from llama_core.explaining import Cell, Explanation
from llama_core.steps import At
from llama_core.trace import Trace, labels
from pages.figures import numbers
from pages.ui import explain_parts
from pages.ui.parts import plain_markdown
from pages.ui.session import Session
from pages.words import t

TINY = {"model": "random"}
IDS = (10, 20, 30, 40, 50)


def data_of(app: AppTest, name: str) -> list[dict]:
    """What the components of this name were given, in the order of the page."""
    found = [element.proto for element in app.get("bidi_component")]
    return [json.loads(proto.json) for proto in found if proto.component_name == f"glass_llama_{name}"]


def press(app: AppTest, label: str) -> AppTest:
    return done(next(button for button in app.button if button.label == plain_markdown(label)).click().run())


def query(app: AppTest) -> dict[str, str]:
    return {name: values[0] if isinstance(values, list) else values for name, values in app.query_params.items()}


def computed(app: AppTest) -> int:
    return data_of(app, "stepper")[0]["computed"]


def status(app: AppTest) -> str:
    return " ".join(texts(app, "gl-stopped"))


# --- where a run stops ---


def test_a_run_stops_where_it_is_told_and_what_follows_is_not_shown():
    walk = traced("nano").walk
    app = visit("steps", **NANO, at="1.gate", until="0.weights")
    n = walk.index(At(0, steps.WEIGHTS)) + 1
    assert computed(app) == n
    assert t("stop.stopped", at="layer 0 weights", n=n, total=len(walk)) in status(app)
    assert said(app) == [
        t("stop.not_computed", until="layer 0 weights", n=f"{walk.index(At(1, steps.GATE)) + 1 - n} steps")
    ]
    assert alts(app) == []
    assert not any('class="gl-numbers"' in body for body in bodies(app))
    app = go(app, **NANO, at="1.gate", until="0.weights", show="parameters")
    assert "model.layers.1.mlp.gate_proj.weight" in "".join(bodies(app))  # what needs no run is there

    app = press(app, t("stop.run_here"))
    assert (query(app)["until"], address(app), said(app)) == ("1.gate", "1.gate", [])
    app = press(app, t("stop.end"))
    assert "until" not in query(app)
    assert computed(app) == len(walk)


def test_the_last_step_is_no_stop_that_leaves_anything():
    app = visit("steps", **NANO, at="logits", until="logits")
    assert t("stop.left.none") in status(app)
    assert t("stop.on") not in [button.label for button in app.button]


def test_a_breakpoint_of_every_layer_stops_in_each_of_them():
    app = press(visit("steps", **NANO, at="1.weights"), t("stop.break.every", step="weights"))
    walk, reached = traced("nano").walk, []
    for _ in range(walk.layers):
        assert t("stop.why.break") in status(app)
        reached.append(address(app))  # the cursor follows
        assert computed(app) == walk.index(At.parse(reached[-1])) + 1
        app = press(app, t("stop.on"))
    assert reached == [f"{layer}.weights" for layer in range(walk.layers)]
    assert computed(app) == len(walk)
    assert t("stop.passed", after=f"layer {walk.layers - 1} weights") in status(app)
    assert address(press(app, t("stop.again"))) == "0.weights"


def test_breakpoints_are_dots_edits_are_marked_and_both_can_be_taken_off():
    app = visit("steps", **NANO, at="0.q", breaks="0.gate,weights", edit="0.gate scale 2; off 1.up zero")
    marks = {"0.gate": "edited breakpoint", "0.weights": "breakpoint", "1.weights": "breakpoint"}
    assert data_of(app, "stepper")[0]["marks"] == marks
    app = press(app, "weights")
    assert query(app)["breaks"] == "0.gate"
    assert computed(app) == traced("nano").walk.index(At(0, steps.GATE)) + 1
    assert "breaks" not in query(press(app, t("stop.break", at="layer 0 gate")))


def test_a_watch_stops_the_run_says_why_and_its_cells_are_ways_there():
    overflow = "0.mlp_out set 3e38 t2 c4,5; 0.resid_out scale 3e38"
    app = visit("steps", **NANO, at="1.q", edit=overflow, watch="notfinite")
    trace = run(load("nano"), IDS, edits=overflow.split("; "), stop_when="notfinite")
    assert trace.until == At(0, steps.RESID_OUT)
    assert t("stop.why.watch", watch="notfinite", text=trace.stopped.text) in status(app)
    assert trace.stopped.cells == ((0, 2, 4), (0, 2, 5))
    app = press(app, "token 2 30, channel 5: ∞")
    assert address(app) == "0.resid_out"
    assert (query(app)["token"], query(app)["cell"], query(app)["show"]) == ("2", "0,2,5", "explain")
    assert "∞" in texts(app, "gl-cell")[0]


def test_a_watch_is_put_together_by_hand():
    app = visit("steps", **NANO, at="0.q")
    app.selectbox(key="stop.kind").set_value("above")
    app = done(app.run())
    app.number_input(key="stop.above.0").set_value(0.01)
    app.selectbox(key="stop.where.above").set_value(t("stop.where.step", step="q"))
    app = press(done(app.run()), t("stop.add"))
    assert query(app)["watch"] == "q above 0.01"
    assert address(app) == "0.q"
    assert "the watch “q above 0.01”. 0.q reaches" in status(app)
    assert t("stop.passed.all") in status(go(app, **NANO, at="0.q", watch="q above 1000"))


def test_stops_are_of_the_prompts_pass_and_say_so():
    app = visit("steps", **TINY, at="1.q", new="3", until="0.weights")
    assert t("note.writing_stops") in said(app)
    assert computed(app) == 13


def test_what_a_person_ends_rests_until_they_choose():
    app = visit("steps", **NANO, at="1.q")
    here = app.session_state["glass_llama.session"]
    here.choose(seed=4711)  # nothing that has been run
    here.end()
    app = done(app.run())
    assert said(app) == [t("run.ended")]
    assert alts(app) == []
    assert said(done(app.run())) == [t("run.ended")]
    app = press(app, t("run.again"))
    assert (said(app), query(app)["seed"]) == ([], "4711")
    assert computed(app) == len(traced("nano").walk)


# --- a cell and its terms ---


def test_every_step_shows_the_terms_of_explain():
    app = visit("steps", **NANO, show="explain", qk_norm="1")
    trace = run(load(PRESETS["nano"].with_(qk_norm=True)), IDS)
    for at in (at for at in trace.walk if at.layer in (None, 1)):
        app = go(app, **NANO, show="explain", qk_norm="1", at=str(at), token="3", head="1")
        values = trace[at]
        index = [{"T": 3, "S": 3, "Hq": 1, "Hkv": 0}.get(axis, 0) for axis in at.step.axes]
        row = np.abs(values[tuple(index[:-1])])
        index[-1] = int(np.where(trace.visible(at)[3], row, -1).argmax() if at.step.causal else row.argmax())
        found = explain(trace, at, index)
        short = [numbers.short(term.value, 4) for term in found.terms]
        (shown, *inner) = data_of(app, "terms")
        assert [line["value"] for line in shown["rows"]] == short, at
        assert [[f["value"] for f in line["factors"]] for line in shown["rows"]] == [
            [numbers.short(factor.value, 4) for factor in term.factors] for term in found.terms
        ]
        if found.rest is not None:
            assert float(shown["rest"]["exact"]) == found.rest.value
        if shown["total"] is not None:
            assert float(shown["total"]["exact"]) == found.total
        assert len(inner) == (found.inner is not None)
        assert numbers.short(found.value, 4) in texts(app, "gl-cell")[0]
        assert any(text.startswith(t("explain.exact")) or "float64" in text for text in texts(app, "gl-caption"))


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"at": "1.masked", "cell": "0,0,2,4"}, "token may look ahead"),
        ({"at": "1.weights", "cell": "0,0,2,4"}, "= 0"),
        ({"at": "1.gate", "edit": "1.gate set 2", "cell": "0,2,4"}, "was edited"),
        ({"at": "1.k_shared", "new": "3", "token": "6", "cell": "0,1,2,3"}, "left in the KV cache"),
        ({"at": "embed", "cell": "0,2,3"}, "row 30 in the embedding table"),
    ],
)
def test_what_is_no_sum_is_said_in_words(asked, wanted):
    page = " ".join(bodies(visit("steps", **(TINY | {"show": "explain", "token": "2"} | asked))))
    assert wanted in page.replace("&nbsp;", " ").replace('<b title="0.0">', "")


@pytest.mark.parametrize(
    "asked",
    [
        {"model": SMOL, "prompt": "The capital of France is", "at": "3.attn_out", "head": "7"},
        {"model": SMOL, "prompt": "The capital of France is", "at": "logits", "dtype": "bfloat16"},
        TINY | {"at": "2.head_out", "dtype": "bfloat16", "new": "4", "token": "7"},
        TINY | {"at": "2.weights", "new": "4", "token": "7"},
        {"at": "3.scores"},
    ],
    ids=["SmolLM2", "bfloat16", "a decode step in bfloat16", "weights of a decode step", "the box"],
)
def test_it_explains_other_models_types_and_passes(asked):
    app = visit("steps", **asked, show="explain")
    assert said(app) == []
    assert data_of(app, "terms")[0]["rows"]
    assert not any("more than the rounding" in text for text in texts(app, "gl-caption"))


def test_a_cell_is_chosen_by_typing_and_stays_with_steps_of_the_same_axes():
    app = visit("steps", **TINY, at="1.q", show="explain", token="1")
    app.number_input(key="explain.Dh").set_value(5)
    app = done(app.run())
    assert query(app)["cell"] == "0,1,0,5"
    app.number_input(key="explain.Hq").set_value(3)
    app = done(app.run())
    assert (query(app)["head"], query(app)["cell"]) == ("3", "0,1,3,5")
    app.number_input(key="explain.T").set_value(4)
    app = done(app.run())
    assert query(app)["token"] == "4"
    assert "token 4 50, head 3, dimension 5" in texts(app, "gl-cell")[0]


# --- where a factor leads ---


class Looking(SimpleNamespace):
    """What explain_parts reads of a View."""

    @property
    def position(self) -> int:
        return self.trace.past + self.token

    @property
    def keys(self) -> list[str]:
        return labels(self.passes.tokens)


def looking(trace: Trace, here: Session) -> Looking:
    tokens = (*trace.tokens[:1] * trace.past, *trace.tokens)
    at, token = At.parse(here["at"]), here["token"]
    token = 0 if token is None else token - trace.past
    return Looking(trace=trace, at=at, head=here["head"], token=token, passes=SimpleNamespace(tokens=tokens))


@pytest.mark.parametrize("past", [0, 3])
def test_every_cell_leads_to_itself(monkeypatch, past):
    model = load("tiny")
    cache = KVCache(model.config)
    if past:
        run(model, IDS[:past], cache=cache)
    trace, here = run(model, IDS[past:], cache=cache), Session()
    monkeypatch.setattr(explain_parts, "session", lambda: here)
    random, followed = np.random.default_rng(0), 0
    for at in trace.walk:
        shape = trace[at].shape
        for index in random.integers(shape, size=(3, len(shape))).tolist():
            here.choose(at=str(at), token=past, head=0)
            for factor in _cells(explain(trace, at, index)):
                view, cell = looking(trace, here), factor.source
                explain_parts.go(view, cell.at, cell.index)
                there = looking(trace, here)
                assert (there.at, explain_parts.cell_of(there)) == (cell.at, cell.index)
                if factor.name != "exp":  # made from the score it leads to
                    assert math.isclose(trace[there.at][explain_parts.cell_of(there)], factor.value)
                followed += 1
    assert followed > 300


def _cells(found: Explanation):
    sums = [found.shown, *([found.inner] if found.inner else [])]
    return (f for shown in sums for term in shown.terms for f in term.factors if isinstance(f.source, Cell))


def test_a_click_on_the_map_is_the_cell_under_it(monkeypatch):
    model, here = load("tiny"), Session()
    cache = KVCache(model.config)
    run(model, IDS[:3], cache=cache)
    trace = run(model, IDS[3:], cache=cache)
    monkeypatch.setattr(explain_parts, "session", lambda: here)
    for at, row, column, wanted, token in [
        ("1.gate", 4, 7, (0, 1, 7), 4),
        ("1.q_rot", 4, 7, (0, 1, 2, 7), 4),
        ("1.k", 3, 7, (0, 0, 0, 7), 3),
        ("1.scores", 4, 1, (0, 2, 1, 1), 4),
        ("1.v_shared", 1, 7, (0, 1, 2, 7), 3),  # of the cache: the pass stays
        ("1.v_shared", 4, 7, (0, 4, 2, 7), 4),
    ]:
        here.choose(at=at, token=3, head=2, cell=None)
        explain_parts.pick(looking(trace, here), row, column)
        assert (explain_parts.cell_of(looking(trace, here)), here["token"]) == (wanted, token), at
        assert here["show"] == "explain"


def test_a_message_that_names_no_cell_changes_nothing(monkeypatch):
    here, view = Session(), looking(traced("nano"), Session())
    monkeypatch.setattr(explain_parts, "session", lambda: here)
    for message in (None, 7, "", "0.q", "0.q 1", "9.q 0,0,0,0", "0.q 0,0,0,x", "nothing 0,0,0"):
        state = {"terms": {"go": message}}
        monkeypatch.setattr(explain_parts.st, "session_state", state)
        explain_parts._followed(view, "terms")
        assert here.values == {}
    monkeypatch.setattr(explain_parts.st, "session_state", {"terms": {"go": "0.q 0,1,1,2"}})
    explain_parts._followed(view, "terms")
    assert (here["at"], here["token"], here["head"], here["cell"]) == ("0.q", 1, 1, "0,1,1,2")
