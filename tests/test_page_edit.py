"""The Edit page, opened by its URL and worked by its widgets: the list, the effect, the sweeps, other sessions."""

from __future__ import annotations

import base64
import json
from functools import lru_cache

import numpy as np
import plotly.graph_objects as go
import pytest
from test_app import NANO, SMOL, alts, bodies, done, said, texts, visit
from test_app import go as open_link

from llama_core import load, run, runner
from llama_core.checkpoints.roots import BOX
from llama_core.effect import sweep
from llama_core.steps import At
from pages.figures import numbers
from pages.ui.sweep_parts import Sweeping
from pages.words import t

IDS = (10, 20, 30, 40, 50)
MODELS = [
    pytest.param(NANO, id="nano"),
    pytest.param({"model": BOX}, id="box"),
    pytest.param({"model": SMOL}, id="smol"),
]


@lru_cache
def nano(edits: str = ""):
    """A run of its own from the first layer on, by nothing that the page has made."""
    return run(load("nano"), IDS, edits=edits or None)


def softmax(logits) -> np.ndarray:
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return shares / shares.sum()


def figures(app) -> dict[str, go.Figure]:
    charts = [element.proto for element in app.get("plotly_chart")]
    return {chart.id.split("-")[-1]: go.Figure(json.loads(chart.spec, object_hook=unpacked)) for chart in charts}


def unpacked(value: dict):
    if "bdata" not in value:
        return value
    flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
    return flat.reshape([int(n) for n in str(value.get("shape", flat.size)).split(",")])


def edit(**query: str):
    return visit("edit", **{**NANO, **query})


def in_url(app) -> str:
    return "".join(app.query_params.get("edit", [""]))


def press(app, key: str):
    return done(app.button(key=key).click().run())


def choose(app, part: str, name: str):
    """Press one of a row of buttons of the form."""
    return done(app.get("button_group")[groups(app).index(f"edit.new.{part}")].set_value(name).run())


def groups(app) -> list[str]:
    return [element.proto.id.split("-")[-1] for element in app.get("button_group")]


def swept(app) -> go.Figure:
    """The map of a sweep, once its thread has ended."""
    for _ in range(50):
        found = [figure for key, figure in figures(app).items() if key.startswith("edit.sweep")]
        if found:
            return found[0]
        done(app.run())
    raise AssertionError("the sweep never ended")


# --- nothing is edited yet ---


@pytest.mark.parametrize("model", MODELS)
def test_without_edits_the_page_offers_three_that_it_has_measured(model):
    app = visit("edit", **model)
    assert said(app) == []
    assert texts(app, "gl-lead") == [t("edit.lead")]
    for i in range(3):
        tried = press(visit("edit", **model), f"edit.try.{i}")
        assert said(tried) == []
        assert in_url(tried)
        assert len(alts(tried)) == 2


def test_in_the_box_silencing_the_heads_that_look_back_changes_the_answer():
    app = press(visit("edit", model=BOX), "edit.try.0")
    assert in_url(app) == "2.head_out zero h0-1"
    model = load(BOX)
    trace = run(model, app.text_area(key="choice.prompt").value, edits=in_url(app))
    now = model.tokenizer.pieces([trace.next_tokens()[0][0]])[0].text
    assert now != "·Mia"
    assert t("edit.effect.other", best="·Mia", token="·to", now=now) in texts(app, "gl-lead")


@pytest.mark.parametrize("ids", ["7", "7,7", ",".join(str(i % 60) for i in range(120))], ids=["1", "2", "120"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prompts_of_any_length_and_both_types(ids, dtype):
    app = press(edit(ids=ids, dtype=dtype), "edit.try.0")
    assert said(app) == []
    assert len(alts(app)) == 2


def test_beside_what_the_model_has_written_the_page_says_what_rests():
    app = edit(new="3", token="6")
    assert said(app) == [t("edit.written")]
    assert t("note.writing_rests") in said(press(app, "edit.quick.attn_out"))


# --- the list ---


def test_an_edit_is_added_switched_off_and_removed():
    app = press(edit(at="1.q", head="2"), "edit.quick.head")
    assert in_url(app) == "1.head_out zero h2"
    assert "edit.cone" in figures(app)
    app = press(app, "edit.quick.mlp_out")
    assert in_url(app) == "1.head_out zero h2; 1.mlp_out zero"
    app = done(app.toggle(key="edit.on.0").set_value(False).run())
    assert in_url(app) == "off 1.head_out zero h2; 1.mlp_out zero"
    app = press(app, "edit.remove.1")
    assert in_url(app) == "off 1.head_out zero h2"
    assert figures(app) == {}
    app = press(app, "edit.quick.head")  # what is there is switched on, not doubled
    assert in_url(app) == "1.head_out zero h2"
    assert in_url(press(app, "edit.remove.0")) == ""


def test_the_list_follows_the_url():
    app = edit(edit="1.attn_out zero")
    assert app.toggle(key="edit.on.0").value
    app = open_link(app, **NANO, edit="off 1.attn_out zero; 0.q scale 2")
    assert [app.toggle(key=f"edit.on.{i}").value for i in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("kind", "numbers", "expected"),
    [
        ("zero", {}, "1.head_out zero h2"),
        ("scale", {"edit.new.value.scale": 0.25}, "1.head_out scale 0.25 h2"),
        ("noise", {"edit.new.value.noise": 0.5, "edit.new.seed": 7}, "1.head_out noise 0.5 7 h2"),
        ("set", {"edit.new.value.set": -3.0}, "1.head_out set -3 h2"),
        ("mean", {}, "1.head_out mean h2"),
    ],
)
def test_the_form_writes_what_its_pieces_say(kind, numbers, expected):
    app = edit(at="1.head_out", head="2")
    app = choose(app, "kind", kind)
    for key, value in numbers.items():
        app.number_input(key=key).set_value(value)
    assert in_url(press(done(app.run()), "edit.new.add")) == expected


def test_the_form_takes_some_tokens_and_channels():
    app = edit(at="0.mlp_out", token="3")
    app = choose(choose(app, "tokens", "this"), "channels", "some")
    app.text_input(key="edit.new.channels.some").set_value("0-3, 5")
    assert in_url(press(done(app.run()), "edit.new.add")) == "0.mlp_out zero t3 c0-3,5"


def test_a_patch_takes_another_prompt_of_the_same_length():
    app = choose(edit(at="1.resid_in"), "kind", "patch")
    app.text_area(key="edit.new.prompt").set_value("1,2,3,4,5")
    app = press(done(app.run()), "edit.new.add")
    assert in_url(app) == "1.resid_in patch 1-5"
    assert said(app) == []
    other = run(load("nano"), [1, 2, 3, 4, 5])
    row = next(figure for key, figure in figures(app).items() if key == "edit.bars")
    assert max(row.data[1].x) == pytest.approx(softmax(other["logits"][0, -1]).max(), rel=1e-5)


def test_a_patch_from_another_length_asks_for_a_map_of_positions():
    app = choose(edit(at="1.resid_in"), "kind", "patch")
    app.text_area(key="edit.new.prompt").set_value("1,2,3")
    app = done(app.run())
    assert t("edit.new.prompt.other", theirs=3, ours=5) in "".join(bodies(app))
    app.text_input(key="edit.new.onto").set_value("3-4")
    app.text_input(key="edit.new.from").set_value("0-1")
    assert in_url(press(done(app.run()), "edit.new.add")) == "1.resid_in patch 1-3 t3-4 f0-1"
    typed = done(edit().text_input(key="edit.new.typed").set_value("1.resid_in patch 1-3").run())
    assert said(typed) == [t("edit.new.map", edit="1.resid_in patch 1-3", theirs=3, ours=5)]


def test_edits_can_be_written():
    app = done(edit().text_input(key="edit.new.typed").set_value("1.q zero h0; off 0.mlp_out scale 0.5").run())
    assert in_url(app) == "1.q zero h0; off 0.mlp_out scale 0.5"
    assert app.text_input(key="edit.new.typed").value == ""


BAD = {
    "1.q zero h9": "there is no head 9",
    "9.q zero": "There is no layer 9",
    "1.q": "is not an edit",
    "1.q scale": "is not complete",
    "1.attn_out zero h0": "attn_out has no heads",
    "1.q zero x3": "names no cells",
    "1.q patch 99,1,1,1,1": "99",
    "zero": "has no address",
    "; ".join(f"1.q set {n}" for n in range(32)): "at most 32",
    "<img src=x onerror=alert(1)>": "<img",
}


def test_an_edit_that_cannot_be_gets_a_sentence_and_the_list_stays():
    app = edit(edit="1.attn_out zero")
    for text, sentence in BAD.items():
        app = done(app.text_input(key="edit.new.typed").set_value(text).run())
        assert in_url(app) == "1.attn_out zero"
        (found,) = said(app)
        assert sentence in found
        assert "edit.cone" in figures(app)
    assert "<img" not in "".join(bodies(app))
    assert said(press(app, "edit.quick.head")) == []


@pytest.mark.parametrize("bad", ["9.attn_out zero", "1.q zero h9", "1.q zero t77", "1.resid_in patch 1-3"])
def test_an_edit_that_does_not_fit_rests_and_its_row_says_why(bad):
    app = edit(edit=f"{bad}; 0.q scale 2")
    assert in_url(app) == f"{bad}; 0.q scale 2"
    (why,) = said(app)
    assert why.startswith(t("edit.misfit", why=""))
    shown = figures(app)["edit.bars"].data[1]
    ids = [int(text) for text in shown.customdata]
    assert list(shown.x) == pytest.approx(softmax(nano("0.q scale 2")["logits"][0, -1])[ids], rel=1e-5)
    app = press(app, "edit.remove.0")
    assert (in_url(app), said(app)) == ("0.q scale 2", [])
    assert said(visit("attention", **NANO, edit=f"{bad}; 0.q scale 2")) == [t("edit.rest", edits=bad)]


def test_when_no_edit_fits_nothing_is_compared():
    app = edit(edit="1.q zero h9")
    assert [why.startswith(t("edit.misfit", why="")) for why in said(app)] == [True]
    assert figures(app) == {}
    other = visit("attention", **NANO, edit="1.q zero h9")
    assert not [text for text in texts(other, "gl-kind") if t("edit.on") in text]


def test_of_a_link_the_edits_that_can_be_read_are_kept():
    app = edit(edit="0.embed2 zero; 1.q zero")
    (note,) = said(app)
    assert "“0.embed2 zero”" in note
    assert [toggle.key for toggle in app.toggle if toggle.key.startswith("edit.on")] == ["edit.on.0"]
    assert "edit.cone" in figures(app)


def test_what_is_in_the_list_and_acts_is_said_and_not_added():
    app = press(edit(at="1.q", head="2", edit="1.head_out zero h2"), "edit.quick.head")
    assert said(app) == [t("edit.there", edit="1.head_out zero h2")]
    assert in_url(app) == "1.head_out zero h2"


# --- the effect ---


def test_outside_the_cone_the_map_is_exactly_zero_and_inside_it_is_not():
    figure = figures(edit(edit="1.head_out zero h2 t2"))["edit.cone"]
    shares = np.array(figure.data[0].customdata)
    inside = np.zeros((2, 5), dtype=bool)
    inside[1, 2:] = True
    inside[1, 3:] = False  # the last layer: what changes after its attention stays with its own token
    assert np.array_equal(shares != 0, inside)
    figure = figures(edit(edit="0.head_out zero h2 t2"))["edit.cone"]
    shares = np.array(figure.data[0].customdata)
    assert np.array_equal(shares[0] != 0, np.arange(5) == 2)
    assert np.array_equal(shares[1] != 0, np.arange(5) >= 2)
    before, after = nano()["1.resid_out"][0], nano("0.head_out zero h2 t2")["1.resid_out"][0]
    expected = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
    assert shares[1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ("1.attn_out zero", ["touched", "blank", "above", "frames"]),
        ("0.attn_out zero", ["touched", "frames"]),
        ("0.attn_out zero t2", ["touched", "blank", "left", "frames"]),
        ("1.attn_out zero t2", ["touched", "blank", "both", "frames"]),
        ("embed zero t2", ["touched", "blank", "left", "frame"]),
        ("logits zero", ["none", "frame"]),
    ],
)
def test_the_caption_names_what_this_map_shows(edits, words):
    app = edit(edit=edits)
    shares = np.array(figures(app)["edit.cone"].data[0].customdata)
    (shown,) = (text for text in texts(app, "gl-caption") if text.endswith(t("edit.cone.pick")))
    share = numbers.percent(np.count_nonzero(shares) / shares.size)
    assert shown == " ".join(t(f"edit.cone.{word}", share=share) for word in [*words, "pick"])


def test_probabilities_are_those_of_two_runs_of_their_own():
    figure = figures(edit(edit="0.mlp_out set 2; 1.attn_out zero", token="3"))["edit.bars"]
    p, q = (softmax(nano(e)["logits"][0, 3]) for e in ("", "0.mlp_out set 2; 1.attn_out zero"))
    before, after = figure.data
    ids = [int(text) for text in before.customdata]
    assert list(before.x) == pytest.approx(p[ids], rel=1e-5)
    assert list(after.x) == pytest.approx(q[ids], rel=1e-5)
    assert {int(p.argmax()), int(q.argmax())} <= set(ids)


def test_an_edit_that_changes_nothing_says_so():
    app = edit(edit="1.attn_out scale 1")
    assert t("edit.effect.none") in texts(app, "gl-lead")
    assert figures(app) == {}


def test_the_steps_that_changed_most_lead_to_their_tensors():
    app = edit(edit="1.mlp_out zero")
    table = next(body for body in bodies(app) if "gl-table" in body and "|Δ| / rms" in body)
    assert "Step_by_step?" in table
    assert "at=1.mlp_out" in table
    assert "edit=1.mlp_out" in table
    assert "at=0." not in table  # nothing above the edit differs


@pytest.mark.parametrize("page", ["steps", "attention", "stream", "home"])
def test_every_other_page_says_that_the_run_is_edited(page):
    app = visit(page, **NANO, edit="1.attn_out zero; off 0.q zero")
    (line,) = [text for text in texts(app, "gl-kind") if t("edit.on") in text]
    assert "1.attn_out zero" in line
    assert "0.q" not in line
    app = done(next(b for b in app.button if b.label == t("edit.on.off")).click().run())
    assert in_url(app) == "off 1.attn_out zero; off 0.q zero"
    assert not [text for text in texts(app, "gl-kind") if t("edit.on") in text]


def test_two_sessions_with_different_edits_do_not_see_each_other():
    one, other, none = edit(edit="1.attn_out zero"), edit(edit="0.mlp_out zero"), edit()
    first, second = (figures(done(app.run()))["edit.bars"].data[1] for app in (one, other))
    for shown, edits in ((first, "1.attn_out zero"), (second, "0.mlp_out zero")):
        ids = [int(text) for text in shown.customdata]
        assert list(shown.x) == pytest.approx(softmax(nano(edits)["logits"][0, -1])[ids], rel=1e-5)
    assert figures(done(none.run())) == {}
    assert in_url(none) == ""


# --- sweeps ---


@pytest.mark.parametrize("measure", ["logit", "log_probability"])
def test_a_sweep_of_heads_is_a_loop_over_runs(measure):
    app = edit(measure=measure, token="3")
    if "edit.sweep.go" in [button.key for button in app.button]:  # one sweep gives both measures, and is kept
        app = press(app, "edit.sweep.go")
    figure = swept(app)
    before = nano()["logits"][0, 3].astype(np.float64)
    best = int(before.argmax())
    expected = np.zeros((2, 4))
    for layer in range(2):
        for head in range(4):
            after = nano(f"{layer}.head_out zero h{head}")["logits"][0, 3].astype(np.float64)
            expected[layer, head] = after[best] - before[best]
            if measure == "log_probability":
                expected[layer, head] = np.log(softmax(after)[best]) - np.log(softmax(before)[best])
    assert np.array(figure.data[0].z) == pytest.approx(expected, abs=1e-5)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("part", ["attn_out", "mlp_out"])
def test_a_sweep_of_layers_keeps_the_edits_that_are_on(part):
    figure = swept(press(edit(sweep=part, answer="7", edit="0.q scale 3"), "edit.sweep.go"))
    before = nano("0.q scale 3")["logits"][0, -1]
    expected = [nano(f"0.q scale 3; {layer}.{part} zero")["logits"][0, -1, 7] - before[7] for layer in range(2)]
    assert list(figure.data[0].y) == pytest.approx(expected, abs=1e-5)


def test_a_finished_sweep_is_kept_and_another_choice_asks_again():
    app = edit(ids="3,9,3,9,3")
    swept(press(app, "edit.sweep.go"))
    assert "edit.sweep.heads" in figures(edit(ids="3,9,3,9,3"))  # another session
    assert "edit.sweep.go" in [button.key for button in edit(ids="3,9,3,9,3", sweep="mlp_out").button]


@pytest.fixture
def quick(monkeypatch) -> list:
    """Whoever begins a sweep stops it after three parts, the first time; the sweeps that began."""
    begun, begin, logits = [], Sweeping.begin, runner.edited_logits

    def beginning(here, *asked):
        begun.append(here)
        begin(here, *asked)

    def stopping(*asked):
        begun[0].stopped = begun[0].done == 2
        return logits(*asked)

    monkeypatch.setattr(Sweeping, "begin", beginning)
    monkeypatch.setattr(runner, "edited_logits", stopping)
    return begun


def test_a_stopped_sweep_keeps_what_is_done_and_goes_on(quick):
    model = load("nano")
    trace, here = run(model, IDS), Sweeping((2, 4))
    here.begin(model, trace, "heads", 3, -1)
    assert (here.done, here.running, here.stopped) == (3, False, True)
    assert np.array_equal(np.isnan(here.logit), here.missing)
    begun = here.logit.copy()
    here.begin(model, trace, "heads", 3, -1)
    assert (here.done, here.stopped) == (8, False)
    assert np.array_equal(here.logit.ravel()[:3], begun.ravel()[:3])
    quick[0] = Sweeping((1,))  # the core's own is not stopped
    whole = sweep(model, trace, "heads", 3)
    assert np.array_equal(here.logit, whole.logit)
    assert np.array_equal(here.log_probability, whole.log_probability)


def test_a_stopped_sweep_is_drawn_as_far_as_it_went_and_goes_on(quick):
    app = press(edit(ids="5,4,3,2,1,7"), "edit.sweep.go")
    assert app.button(key="edit.sweep.go").label == t("edit.sweep.on")
    assert t("edit.sweep.stopped", done=3, n=8) in texts(app, "gl-caption")
    assert np.isnan(np.array(swept(app).data[0].z, dtype=float)).sum() == 5
    app = press(app, "edit.sweep.go")
    assert len(quick) == 2
    assert not np.isnan(np.array(swept(app).data[0].z, dtype=float)).any()


def test_a_token_beyond_the_vocabulary_is_said_and_not_used():
    app = edit(answer="64")
    assert said(app) == [t("edit.sweep.unknown", last=63, asked=64)]
    assert said(done(app.run())) == []


def test_the_largest_head_can_be_silenced_below_the_map_and_the_chosen_one():
    app = edit(ids="9,8,7")
    values = np.array(swept(press(app, "edit.sweep.go")).data[0].z)
    layer, head = np.unravel_index(np.abs(values).argmax(), values.shape)
    app = done(app.run())
    assert "edit.sweep.chosen" not in [button.key for button in app.button]
    app = press(app, "edit.sweep.most")
    assert in_url(app) == f"{layer}.head_out zero h{head}"
    app = press(app, "edit.sweep.go")
    swept(app)
    silent = t("edit.sweep.silent", parts=f"layer {layer} · head {head}")
    assert any(silent in text for text in texts(done(app.run()), "gl-caption"))
    other = next(place for place in np.ndindex(values.shape) if place[0] == 1 and place != (layer, head))
    app = edit(ids="9,8,7", at="1.head_out", head=str(other[1]))
    app = press(app, "edit.sweep.chosen")
    assert in_url(app) == f"1.head_out zero h{other[1]}"
    assert str(At.parse("1.head_out")) in "".join(app.query_params["at"])
