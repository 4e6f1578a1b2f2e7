"""The Attention page, opened by its URL: its three views on several models, what a click means, what cannot be."""

from __future__ import annotations

import base64
import html
import json
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from rigs import reference_rig
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest
from test_figure_heads import cells
from transformers import MistralConfig, MistralForCausalLM

from llama_core import load, run
from llama_core.checkpoints.roots import BOX
from llama_core.contribution import contribution
from llama_core.heads import head_table, heads_of, without_first
from pages.figures import numbers
from pages.ui import attention_parts
from pages.ui.attention_parts import window
from pages.ui.session import Session
from pages.words import attention as words
from pages.words import t

ROOT = Path(__file__).parents[1]
NANO = {"model": "random", "preset": "nano", "ids": "3,9,3,9,3", "std": "0.3"}
IDS = (3, 9, 3, 9, 3)
SMOL = {"model": "SmolLM2-135M-Instruct.Q4_1.gguf", "prompt": "The capital of France is"}
MODELS = [pytest.param(NANO, id="nano"), pytest.param(SMOL, id="smollm2")]
if (ROOT / "assets" / BOX).is_dir():
    MODELS.append(pytest.param({}, id="box"))
VIEWS = ("head", "layer", "all")


@pytest.fixture(autouse=True)
def _say_what_went_wrong():
    """The app hides details from its users; a failing test should not."""
    streamlit_config.set_option("client.showErrorDetails", "full")
    yield
    streamlit_config.set_option("client.showErrorDetails", "none")


def visit(**query: str) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=120)
    app.switch_page("pages/5_Attention.py")
    for name, value in query.items():
        app.query_params[name] = value
    return done(app.run())


def done(app: AppTest) -> AppTest:
    assert [error.message for error in app.exception] == []
    return app


def bodies(app: AppTest) -> str:
    return html.unescape("".join(element.proto.body for element in app.get("html")))


def said(app: AppTest) -> list[str]:
    return re.findall(r'class="gl-say[^>]*>(.*?)</div>', bodies(app))


def figures(app: AppTest) -> dict[str, go.Figure]:
    """The page's figures by the key they were drawn under, with their arrays as a browser unpacks them."""
    charts = [element.proto for element in app.get("plotly_chart")]
    return {chart.id.split("-")[-1]: go.Figure(json.loads(chart.spec, object_hook=unpacked)) for chart in charts}


def unpacked(value: dict):
    if "bdata" not in value:
        return value
    flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
    return flat.reshape([int(n) for n in str(value.get("shape", flat.size)).split(",")])


def measures(app: AppTest) -> dict[str, str]:
    return dict(re.findall(r'<dt>(.*?)</dt><dd title="(.*?)">', bodies(app)))


@lru_cache
def nano():
    model = load("nano", std=0.3)
    return model, run(model, IDS)


# --- the three views ---


@pytest.mark.parametrize("query", MODELS)
@pytest.mark.parametrize("look", VIEWS)
def test_every_view_opens_on_every_model(query, look):
    app = visit(**query, look=look)
    assert said(app) == []
    assert len(figures(app)) >= {"head": 3, "layer": 3, "all": 1}[look]
    assert all(element.proto.alt for element in app.get("plotly_chart"))
    assert words.EN["attention.opening"] in bodies(app)


@pytest.mark.parametrize("look", VIEWS)
@pytest.mark.parametrize("more", [{}, {"rest": "1"}, {"log": "1"}, {"rest": "1", "log": "1"}])
@pytest.mark.parametrize("ids", ["7", "7,7", ",".join(str(i % 60) for i in range(120))], ids=["1", "2", "120"])
def test_prompts_of_any_length_and_both_options(look, more, ids):
    app = visit(**NANO | {"ids": ids}, look=look, at="1.weights", **more)
    assert said(app) == []


@pytest.mark.parametrize("look", VIEWS)
def test_three_hundred_tokens_send_little(look):
    ids = ",".join(str(i * i % 250) for i in range(300))
    app = visit(model="random", preset="tiny", ids=ids, look=look, at="1.weights")
    assert said(app) == []
    assert sum(len(element.proto.spec) for element in app.get("plotly_chart")) < 1_200_000


@pytest.mark.parametrize("stage", ["scores", "masked", "weights"])
def test_the_map_is_the_stage_of_the_run(stage):
    figure = figures(visit(**NANO, at=f"1.{stage}", head="2"))["attention.map"]
    cells = nano()[1][f"1.{stage}"][0, 2]
    seen = np.ones_like(cells, dtype=bool) if stage == "scores" else np.tri(5, dtype=bool)
    z = np.array(figure.data[0].z)
    assert z[seen] == pytest.approx(cells[seen])
    assert np.isnan(z[~seen]).all()
    assert figure.layout.annotations[0].text == f"layer 1 · Q2 → KV0 · {stage}"


def test_without_the_first_key_rows_sum_to_one_again_and_the_title_says_so():
    figure = figures(visit(**NANO, at="1.weights", head="1", rest="1"))["attention.map"]
    expected = without_first(nano()[1]["1.weights"][0, 1])[:, 1:]
    z = np.array(figure.data[0].z)
    assert z.shape == (5, 4)
    assert np.array_equal(np.isnan(z), ~np.tri(5, 4, -1, dtype=bool))
    assert z[~np.isnan(z)] == pytest.approx(expected[~np.isnan(z)])
    assert np.nansum(z, axis=1)[1:] == pytest.approx(1)
    assert "without key 0, rows sum to 1 again" in figure.layout.annotations[0].text
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 3, 4]


def test_the_options_say_nothing_about_scores():
    app = visit(**NANO, at="1.scores", rest="1", log="1")
    assert app.toggle(key="choice.rest").disabled
    assert app.toggle(key="choice.log").disabled
    assert np.array(figures(app)["attention.map"].data[0].z).shape == (5, 5)


def test_bars_are_the_row_of_the_chosen_token_and_what_it_moves():
    model, trace = nano()
    figure = figures(visit(**NANO, at="1.weights", head="1", token="3"))["attention.where"]
    found = contribution(trace, model, 1, 3)
    order = np.argsort(-trace["1.weights"][0, 1, 3, :4], kind="stable")
    weights, lengths = figure.data
    assert list(weights.customdata) == order.tolist()
    assert list(weights.x) == pytest.approx(trace["1.weights"][0, 1, 3, order])
    assert list(lengths.x) == pytest.approx(found.heads[1, order])


def test_the_length_of_what_the_head_adds_is_said():
    model, trace = nano()
    app = visit(**NANO, at="1.weights", head="1", token="3")
    out = model.model.layers[1].self_attn.o_proj.weight.detach().numpy()
    width = trace.config.head_dim
    added = trace["1.head_out"][0, 3, 1] @ out[:, width : 2 * width].T
    assert f"length {numbers.short(np.linalg.norm(added))};" in bodies(app)


def test_who_looks_is_the_column_of_the_chosen_token():
    figure = figures(visit(**NANO, at="1.weights", head="1", token="1"))["attention.who"]
    column = nano()[1]["1.weights"][0, 1, 1:, 1]
    order = np.argsort(-column, kind="stable")
    assert list(figure.data[0].customdata) == (order + 1).tolist()
    assert list(figure.data[0].x) == pytest.approx(column[order])


def test_the_softmax_of_the_strongest_key_is_written_with_this_runs_numbers():
    trace = nano()[1]
    app = visit(**NANO, at="1.weights", head="1", token="3")
    row = trace["1.scores"][0, 1, 3, :4].astype(np.float64)
    key = int(row.argmax())
    text = app.latex[0].value
    assert f"a_{{3,{key}}}" in text
    assert f"={numbers.short(trace['1.weights'][0, 1, 3, key])}" in text
    assert numbers.short(np.log(np.exp(row).sum())) in text


def test_the_numbers_of_a_head_are_its_measures():
    shown = measures(visit(**NANO, at="1.weights", head="1"))
    found = heads_of(nano()[1], 1)
    for name in ("entropy", "first", "previous", "itself", "duplicate", "induction", "distance"):
        assert shown[t(f"attention.{name}")] == repr(float(getattr(found, name)[1])), name


def test_without_a_repeat_that_is_said_not_guessed():
    app = visit(**NANO | {"ids": "1,2,3,4"}, at="1.weights")
    assert measures(app)[t("attention.induction")] == "nan"
    assert bodies(app).count(t("attention.no_repeat")) == 2
    table = visit(**NANO | {"ids": "1,2,3,4"}, look="all")
    assert t("attention.no_repeat.table") in bodies(table)
    assert "induction" not in table.dataframe[0].value.columns


def test_the_table_holds_all_heads_or_those_of_the_layer():
    everything = visit(**NANO, look="all").dataframe[0].value
    assert everything.equals(head_table(nano()[1]))
    one = visit(**NANO, look="layer", at="1.weights").dataframe[0].value
    assert one["layer"].unique().tolist() == [1]
    assert one["entropy"].tolist() == everything[everything["layer"] == 1]["entropy"].tolist()


@pytest.mark.parametrize("look", VIEWS)
def test_the_chosen_head_is_framed_and_every_tile_has_its_place(look):
    found = figures(visit(**NANO, look=look, at="1.weights", head="2"))
    figure = found[{"head": "attention.alike", "layer": "attention.layer", "all": "attention.all"}[look]]
    assert len(figure.data[1].x) == {"head": 6, "layer": 4, "all": 8}[look]
    frames = [s for s in figure.layout.shapes if s.line.width == 2.5]
    assert len(frames) == (0 if look == "head" else 1)


# --- a sliding window ---


def test_what_a_sliding_window_hides_is_blank_in_every_view(monkeypatch, tmp_path):
    sizes = reference_rig().config.to_dict()
    kept = {name: sizes[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    config = MistralConfig(**kept, num_attention_heads=4, num_key_value_heads=2, sliding_window=3)
    MistralForCausalLM(config).save_pretrained(tmp_path / "window")
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    query = {"model": "window", "ids": "5,9,9,3,7", "at": "1.weights"}
    hidden = ~(np.tri(5, dtype=bool) & ~np.tri(5, k=-3, dtype=bool))
    one = visit(**query)
    assert said(one) == []
    assert np.array_equal(np.isnan(np.array(figures(one)["attention.map"].data[0].z)), hidden)
    for look, key in (("layer", "attention.layer"), ("all", "attention.all")):
        assert np.array_equal(cells(figures(visit(**query, look=look))[key], 0) == 1, hidden), look


# --- choices ---


@pytest.mark.parametrize("name", ["look", "rest", "log", "window"])
def test_a_wrong_value_is_said_and_the_page_opens(name):
    app = visit(**NANO, **{name: "<b>"})
    assert len(said(app)) == 1
    assert len(figures(app)) >= 3


@pytest.mark.parametrize(
    ("text", "rows", "cols"),
    [
        (None, (0, 9), (0, 19)),
        ("2-5,3-7", (2, 5), (3, 7)),
        ("2-500,3-700", (2, 9), (3, 19)),
        ("10-12,0-3", (0, 9), (0, 19)),
        ("0-3,20-22", (0, 9), (0, 19)),
    ],
)
def test_a_part_of_the_map_is_brought_into_range(text, rows, cols):
    assert window(text, 10, 20) == (rows, cols)


def test_a_part_of_the_map_is_shown_at_its_positions():
    app = visit(**NANO, at="1.weights", head="1", window="2-4,1-3")
    heat = figures(app)["attention.map"].data[0]
    assert np.array(heat.z)[1:] == pytest.approx(nano()[1]["1.weights"][0, 1, 3:5, 1:4])
    assert (list(heat.x), list(heat.y)) == ([1, 2, 3], [2, 3, 4])
    next(button for button in app.button if button.label == t("attention.window.close")).click()
    assert np.array(figures(done(app.run()))["attention.map"].data[0].z).shape == (5, 5)


def test_a_stage_that_is_chosen_is_the_address():
    app = visit(**NANO, at="1.q", look="head")
    app.button_group(key="choice.stage").set_value("masked")
    assert done(app.run()).query_params["at"] in ("1.masked", ["1.masked"])


@pytest.fixture
def chosen(monkeypatch):
    here = Session()
    monkeypatch.setattr(attention_parts, "session", lambda: here)
    return here


def test_a_click_on_a_cell_chooses_its_query(chosen):
    attention_parts._cell_picked({"box": [], "points": [{"x": 1, "y": 7}]}, T=5, S=9)
    assert chosen["token"] == 7  # a position among all of them, cached ones too


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        ([9.6, 20.4], [40.4, 29.6], "30-40,10-20"),
        ([-5, 300], [-5, 300], "0-99,0-99"),
        ([5.1, 5.3], [1, 9], None),
    ],
)
def test_a_box_is_the_cells_it_touches(chosen, x, y, text):
    attention_parts._cell_picked({"box": [{"x": x, "y": y}], "points": []}, T=100, S=100)
    assert chosen["window"] == text


def test_in_a_pass_after_a_cache_a_box_counts_its_own_queries(chosen):
    attention_parts._cell_picked({"box": [{"x": [0, 9], "y": [5, 9]}], "points": []}, T=5, S=10)
    assert chosen["window"] == "0-4,0-9"


def test_a_click_on_a_bar_chooses_its_token(chosen):
    attention_parts._bar_picked({"points": [{"customdata": 3}]})
    assert chosen["token"] == 3
    attention_parts._bar_picked({"points": [{"customdata": [4]}]})
    assert chosen["token"] == 4


def test_a_click_on_a_tile_chooses_its_head_and_opens_it(chosen):
    chosen.choose(look="all")
    attention_parts._tile_picked({"points": [{"point_index": 1}]}, heads=[(0, 1), (2, 3)], stay=True)
    assert (chosen["at"], chosen["head"], chosen["look"]) == ("2.weights", 3, "all")
    attention_parts._tile_picked({"points": [{"point_index": 0}]}, heads=[(0, 1), (2, 3)])
    assert (chosen["at"], chosen["head"], chosen["look"]) == ("0.weights", 1, "head")


def test_nothing_selected_chooses_nothing(chosen):
    for selection in ({"box": [], "points": []},):
        attention_parts._cell_picked(selection, T=5, S=5)
        attention_parts._bar_picked(selection)
        attention_parts._tile_picked(selection, heads=[(0, 0)])
    assert chosen.values == {}


# --- letter for letter ---


@pytest.mark.parametrize("look", VIEWS)
def test_a_prompt_of_markup_stays_text(look):
    nasty = "<script>alert(1)</script><b>B</b> *a* $x$ :red[r] %{y} \"' &"
    app = visit(model=SMOL["model"], prompt=nasty, look=look)
    sent = "".join(element.proto.spec for element in app.get("plotly_chart"))
    assert "<b>B" not in sent
    assert "<script" not in sent
    assert all("$" not in m.value.replace("\\$", "") for m in app.markdown)


def test_every_word_is_used():
    source = (ROOT / "pages/ui/attention_parts.py").read_text(encoding="utf-8")
    parts = {"look.", "table.", "name", "no_repeat", "no_choice"}
    for key in words.EN:
        tail = key.removeprefix("attention.")
        named = tail in source or tail.split(".")[0] in ("scores", "masked", "weights", *attention_parts.MEASURES)
        assert named or any(tail.startswith(part) for part in parts), key
