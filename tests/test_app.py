"""Every page, opened by its URL without a browser: what it shows, and that what cannot be is said in a sentence."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
from rigs import reference_rig, save_folder
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest

from llama_core import load, run
from llama_core.config import PRESETS
from llama_core.errors import CheckpointError
from llama_core.steps import STEPS, At
from pages.ui import hub_panel
from pages.ui.menu import SCRIPTS as PATHS
from pages.words import t

ROOT = Path(__file__).parents[1]
NANO = {"model": "random", "preset": "nano"}
SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"  # make model fetches it; without it these tests fail, and should
NASTY = (
    "<script>alert(1)</script><img src=x onerror=alert(1)><b>B</b> *a* _b_ $x$ :red[r] [l](javascript:alert(1)) "
    "\"' & </span>"
)


@pytest.fixture(autouse=True)
def _say_what_went_wrong():
    """The app hides details from its users; a failing test should not."""
    streamlit_config.set_option("client.showErrorDetails", "full")
    yield
    streamlit_config.set_option("client.showErrorDetails", "none")


def visit(page: str, **query: str) -> AppTest:
    """A new tab that opens a link to this page."""
    app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    if page != "home":
        app.switch_page(PATHS[page])
    return go(app, **query)


def component(app: AppTest, key: str) -> dict:
    """What the page's browser component with this key is handed."""
    (found,) = [each.proto for each in app.get("bidi_component") if key in each.proto.id]
    return json.loads(found.json)


def go(app: AppTest, **query: str) -> AppTest:
    """The same tab, another query."""
    app.query_params.clear()
    for name, value in query.items():
        app.query_params[name] = value
    return done(app.run())


def done(app: AppTest) -> AppTest:
    assert [error.message for error in app.exception] == []
    return app


def bodies(app: AppTest) -> list[str]:
    return [element.proto.body for element in app.get("html")]


def texts(app: AppTest, css: str) -> list[str]:
    """Text of the pieces of HTML that have this class, as it is read."""
    return [html.unescape(re.sub("<[^>]*>", "", body)) for body in bodies(app) if f'class="{css}' in body]


def said(app: AppTest) -> list[str]:
    return texts(app, "gl-say")


def address(app: AppTest) -> str:
    return re.search("<h2><code>(.*?)</code>", "".join(bodies(app)))[1].replace(" · ", ".")


def shown_numbers(app: AppTest) -> dict[str, str]:
    """Label -> exact value, of the first grid of numbers on the page."""
    grid = next(body for body in bodies(app) if "gl-numbers" in body and t("stats.rms") in body)
    return dict(re.findall(r'<dt>(.*?)</dt><dd title="(.*?)">', grid))


def alts(app: AppTest) -> list[str]:
    return [element.proto.alt for element in app.get("plotly_chart")]


@lru_cache
def traced(preset: str, dtype: str = "float32", ids: tuple[int, ...] = (10, 20, 30, 40, 50)):
    return run(load(preset, dtype=dtype), ids)


def in_turn(values: Sequence) -> list[tuple]:
    """(page, value): every page with a third of the values, every value on a third of the pages."""
    return [(page, value) for i, page in enumerate(PATHS) for j, value in enumerate(values) if (i + j) % 3 == 0]


# --- every page, every step -----------------------------------------------------------------------


ASKED = {"edit": {"edit": "0.attn_out zero"}}  # what a page has its pictures of


@pytest.mark.parametrize("page", PATHS)
@pytest.mark.parametrize("query", [NANO, NANO | {"qk_norm": "1"}, {"model": "random"}], ids=["nano", "qk_norm", "tiny"])
def test_every_page_opens(page, query):
    app = visit(page, **query, **ASKED.get(page, {}))
    assert said(app) == []
    assert len(alts(app)) >= 2
    assert all(alts(app))


@pytest.mark.parametrize(("model", "size"), [(None, "853.1 k"), (SMOL, "134.5 M")], ids=["box", "SmolLM2"])
@pytest.mark.parametrize("page", PATHS)
def test_every_page_opens_on_a_trained_model(page, model, size):
    app = visit(page, **({"model": model} if model else {}), **ASKED.get(page, {}))
    assert said(app) == []
    assert len(alts(app)) >= 2
    assert size in "".join(texts(app, "gl-card"))


def test_every_step_of_the_registry_opens():
    app = visit("steps", **NANO, qk_norm="1")
    for step in STEPS:
        at = str(At(1 if step.scope == "layer" else None, step))
        go(app, **NANO, qk_norm="1", at=at, head="2")
        assert address(app) == at
        assert said(app) == []
        assert html.escape(step.why) in "".join(bodies(app))


@pytest.mark.parametrize(
    "at", ["embed", "0.resid_in", "1.q_rot", "1.k_shared", "0.scores", "1.masked", "1.weights", "logits"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_numbers_on_the_page_are_those_of_the_run(at, dtype):
    stat = traced("nano", dtype).stat(at)
    shown = shown_numbers(visit("steps", **NANO, at=at, dtype=dtype))
    for name in ("mean", "std", "rms", "min", "max", "zeros"):
        assert shown[t(f"stats.{name}")] == repr(getattr(stat, name)), name
    for name in ("nan", "inf", "masked", "count"):
        assert shown[t(f"stats.{name}")] == str(getattr(stat, name)), name


@pytest.mark.parametrize("page", PATHS)
def test_bfloat16_is_computed_and_said(page):
    app = visit(page, **NANO, dtype="bfloat16")
    assert said(app) == []
    assert "bfloat16" in "".join(texts(app, "gl-state"))
    assert "bfloat16" in "".join(texts(app, "gl-card"))


def test_a_deep_link_lands_on_its_step_head_and_token():
    app = visit("steps", **NANO, at="1.weights", head="1", token="2")
    assert address(app) == "1.weights"
    assert app.number_input(key="choice.head").value == 1
    assert any("Q1 → KV0" in alt for alt in alts(app))


@pytest.mark.parametrize("page", PATHS)
def test_one_token_is_enough(page):
    app = visit(page, **NANO, ids="7", at="1.weights")
    assert said(app) == []
    if page == "steps":
        assert shown_numbers(app)[t("stats.masked")] == "0"


def test_weights_of_zero_leave_no_traceback():
    """std 0: every activation is zero, so ratios and cosines have no value."""
    app = visit("steps", **NANO, std="0", at="1.attn_out")
    go(app, **NANO, std="0", at="1.resid_mid")
    go(app, **NANO, std="0", at="logits")
    visit("home", **NANO, std="0")


# --- what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "wrong"),
    in_turn(
        [
            ({"hidden": "1024", "heads": "12"}, ("1024", "12", "8 or 16")),
            ({"heads": "6", "kv": "4"}, ("6", "4", "3 or 6")),
            ({"head_dim": "5"}, ("head_dim is 5", "even")),
            ({"kv": "0"}, ("num_key_value_heads", "0", "at least 1")),
            ({"kv": "8"}, ("num_key_value_heads 8", "num_attention_heads 4")),
            ({"hidden": "5"}, ("hidden_size 5",)),
        ]
    ),
)
def test_sizes_that_cannot_be_are_a_sentence(page, wrong):
    sizes, words = wrong
    app = visit(page, **NANO, **sizes)
    assert said(app)
    for word in words:
        assert word in said(app)[-1]
    assert t("state.none") in texts(app, "gl-state")
    assert app.selectbox(key="choice.preset").value == "nano", "the way out is on the page"


@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": "33"},
        {"hidden": "1032"},
        {"heads": "64", "hidden": "128"},
        {"heads": "1", "hidden": "1024"},
        {"head_dim": "512", "hidden": "8"},
        {"hidden": "2", "heads": "1"},
    ],
)
def test_sizes_beyond_the_sliders_open(sizes):
    query = NANO | {"kv": "1"} | sizes
    app = visit("steps", **query)
    assert said(app) == []
    assert {name: app.query_params[name] for name in query} == query


def test_weights_that_would_not_fit_in_memory_are_refused():
    app = visit("steps", model="random", layers="64", hidden="4096", heads="32", kv="8", mlp="16384", vocab="65536")
    assert "GB" in said(app)[-1]


@pytest.mark.parametrize(
    ("page", "ids"),
    in_turn(["", "   ", "64", "-1", "abc", "1,,x", "1.5", "٣", "9" * 40, "<b>1</b>", NASTY]),
)
def test_ids_that_cannot_be_are_a_sentence(page, ids):
    app = visit(page, **NANO, ids=ids)
    assert len(said(app)) == 1
    assert "id" in said(app)[0]
    assert alts(app) == []


def test_too_many_ids_are_a_sentence():
    assert "128" in said(visit("steps", **NANO, ids=",".join(["1"] * 129)))[0]
    assert said(visit("steps", **NANO, ids=",".join(["1"] * 128), at="1.weights")) == []


@pytest.mark.parametrize("page", PATHS)
def test_an_empty_prompt_is_a_sentence(page):
    assert "empty" in said(visit(page, model=SMOL, prompt=""))[0]


@pytest.mark.parametrize("page", PATHS)
def test_wrong_values_in_the_url_are_said(page):
    app = visit(page, **NANO, at="9.nothing", head="-1", dtype="float8", prompt="p")
    assert said(app) == [
        t("note.bad_value", name=name, value=value)
        for name, value in (("at", "9.nothing"), ("head", "-1"), ("dtype", "float8"))
    ]


def test_what_this_model_does_not_have_is_said_and_the_nearest_shown():
    app = visit("steps", **NANO, at="9.q_norm", head="77", token="99")
    assert address(app) == "1.q"
    assert said(app) == [
        t("note.clamped", name="at", asked="9.q_norm", used="1.q"),
        t("note.clamped", name="head", asked=77, used=3),
        t("note.token", asked=99, used=4),
    ]
    assert (app.query_params["at"], app.query_params["head"]) == ("1.q", "3")


def test_no_gpu_is_a_sentence(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    app = visit("steps", **NANO, device="cuda")
    assert "cuda" in said(app)[0]
    app.selectbox(key="choice.device").set_value("cpu")
    assert said(done(app.run())) == []


# --- choosing ------------------------------------------------------------------------------------------


def test_choices_stay_from_page_to_page():
    app = visit("steps", **NANO, at="1.weights")
    app.text_input(key="choice.ids").set_value("1,2,3")
    app.number_input(key="choice.head").set_value(2)
    done(app.run())
    for path in (PATHS["home"], PATHS["steps"]):
        done(app.switch_page(path).run())
        assert app.text_input(key="choice.ids").value == "1,2,3"
    assert app.number_input(key="choice.head").value == 2
    assert address(app) == "1.weights"
    assert dict(app.query_params) == NANO | {
        "prompt": app.query_params["prompt"],
        "ids": "1,2,3",
        "at": "1.weights",
        "head": "2",
    }


def test_a_slider_changes_the_model_and_another_preset_takes_it_back():
    app = visit("steps", **NANO, at="1.mlp_norm")
    app.slider(key="choice.hidden").set_value(32)
    done(app.run())
    assert "mlp_norm [1·5·32]" in "".join(texts(app, "gl-shapes"))
    assert app.query_params["hidden"] == "32"
    app.selectbox(key="choice.preset").set_value("tiny")
    done(app.run())
    assert "mlp_norm [1·5·64]" in "".join(texts(app, "gl-shapes"))
    assert "hidden" not in app.query_params


def test_a_smaller_model_takes_the_nearest_step():
    app = visit("steps", model="random", at="3.weights", head="7")
    app.selectbox(key="choice.preset").set_value("nano")
    done(app.run())
    assert address(app) == "1.weights"
    assert app.number_input(key="choice.head").value == 3
    assert len(said(app)) == 2


def test_a_bad_size_can_be_put_right_on_the_page():
    app = visit("steps", **NANO, heads="6", kv="4")
    assert said(app)
    app.slider(key="choice.kv").set_value(3)
    app.slider(key="choice.hidden").set_value(24)
    assert said(done(app.run())) == []


# --- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PATHS)
def test_without_any_model_random_weights_run_and_the_way_to_one_is_said(page, monkeypatch, tmp_path):
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    app = visit(page)
    assert said(app) == []
    assert t("side.get_model") in texts(app, "gl-card")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"\x00" * 4096, b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_a_damaged_file_is_a_sentence(monkeypatch, tmp_path, content):
    name = "<b>*x* $y$.gguf"
    (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    app = visit("steps", model=name)
    assert name in said(app)[0]
    app.selectbox(key="choice.model").set_value("random")
    assert said(done(app.run())) == []


def test_a_model_without_a_tokenizer_is_asked_by_ids(monkeypatch, tmp_path):
    import json

    from safetensors.torch import save_file

    model, config = load("nano"), PRESETS["nano"]
    folder = tmp_path / "mine"
    folder.mkdir()
    kept = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    kept |= {"num_key_value_heads", "head_dim", "max_position_embeddings"}
    sizes = {name: value for name, value in config.to_dict().items() if name in kept}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    save_file({name: p.contiguous() for name, p in model.state_dict().items()}, folder / "model.safetensors")
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    app = visit("steps", model="mine", ids="1,2,3", at="0.q")
    assert said(app) == []
    assert "q [1·3·4·4]" in "".join(texts(app, "gl-shapes"))
    assert app.text_input(key="choice.ids").value == "1,2,3"


# --- letter for letter ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PATHS)
@pytest.mark.parametrize("at", ["embed", "1.weights", "logits"])
def test_a_prompt_of_markup_stays_text(page, at):
    app = visit(page, model=SMOL, prompt=NASTY, at=at)
    assert said(app) == []
    for body in bodies(app):
        for tag in ("<script", "<img", "<b>B", "<a "):
            assert tag not in body
    for kind in ("markdown", "caption", "subheader", "header", "title"):
        for element in app.get(kind):
            assert "alert(1)" not in element.value
    assert app.text_area(key="choice.prompt").value == NASTY


@pytest.mark.parametrize(
    "prompt", ["a", " ", "\n\n\t", "東京 👍🏽 é", "the cat saw the cat", "<|im_start|>", "\u202e abc", "{x} %s {0}"]
)
def test_any_prompt_opens(prompt):
    app = visit("steps", model=SMOL, prompt=prompt, at="1.weights")
    assert said(app) == []
    assert "�" not in "".join(alts(app))
    visit("home", model=SMOL, prompt=prompt)


# --- models of the hub, control tokens ----------------------------------------------------------------


def test_a_link_to_a_model_of_the_hub_asks_and_fetches_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr(hub_panel, "plan", lambda model: asked.append(model) or {"model.safetensors": 2_000_000})
    app = visit("steps", model="org/name")
    assert said(app) == [t("hub.not_here", model="org/name")]
    assert asked == []
    (button,) = [each for each in app.button if each.label == t("hub.ask")]
    done(button.click().run())
    assert asked == ["org/name"]
    assert any(each.label == t("hub.download", bytes="2.0 MB") for each in app.button)


def test_a_press_downloads_a_model_of_the_hub_and_opens_it(monkeypatch, tmp_path):
    folder = save_folder(reference_rig(), tmp_path / "rig")
    monkeypatch.setattr(hub_panel, "plan", lambda model: {"model.safetensors": 2_000_000})
    monkeypatch.setattr(hub_panel, "download", lambda model, tell, check: tell(1.0) or folder)
    app = visit("steps", model="org/name")
    for label in (t("hub.ask"), t("hub.download", bytes="2.0 MB")):
        (button,) = [each for each in app.button if each.label == label]
        done(button.click().run())
    assert said(app) == []
    assert address(app) == "embed"


def test_a_download_that_fails_is_a_sentence_and_can_be_tried_again(monkeypatch):
    def fails(model, tell, check):
        raise CheckpointError("The hub says no.")

    monkeypatch.setattr(hub_panel, "plan", lambda model: {"model.safetensors": 1})
    monkeypatch.setattr(hub_panel, "download", fails)
    app = visit("steps", model="org/name")
    for label in (t("hub.ask"), t("hub.download", bytes="1 B")):
        (button,) = [each for each in app.button if each.label == label]
        done(button.click().run())
    assert said(app) == ["The hub says no."]
    assert any(each.label == t("hub.download", bytes="1 B") for each in app.button)


def test_a_hub_that_does_not_answer_can_be_asked_again_and_is_not_by_itself(monkeypatch):
    asked = []

    def offline(model):
        asked.append(model)
        raise CheckpointError("The hub cannot be reached.")

    monkeypatch.setattr(hub_panel, "plan", offline)
    app = visit("steps", model="org/name")
    for times in (1, 2):
        (button,) = [each for each in app.button if each.label == t("hub.ask")]
        done(button.click().run())
        assert "The hub cannot be reached." in said(app)
        assert len(asked) == times
    done(app.run())
    assert len(asked) == 2


def test_a_typed_control_token_is_read_as_one_or_as_text():
    app = visit("steps", model=SMOL, prompt="a<|im_end|>b")
    assert t("state.tokens", n=3) in "".join(texts(app, "gl-state"))
    app.toggle(key="choice.control").set_value(False)
    done(app.run())
    assert t("state.tokens", n=3) not in "".join(texts(app, "gl-state"))
    go(app, model=SMOL, prompt="a b")
    assert not [each for each in app.toggle if each.key == "choice.control"]


def test_a_prompt_that_is_too_long_leaves_the_models_card():
    whole = {text for text in texts(visit("tokens"), "gl-card") if t("card.parameters") in text}
    app = visit("tokens", prompt="word " * 600)
    assert whole == {text for text in texts(app, "gl-card") if t("card.parameters") in text}
    assert len(whole) == 1
    assert any("was built for 256 positions" in text for text in said(app))
