"""What a person has chosen: its text in the URL and back, bad values, clamping, and that a link opens no other file."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from llama_core.checkpoints import models_root, roots
from llama_core.checkpoints.roots import BOX
from llama_core.config import PRESETS
from llama_core.errors import GlassLlamaError
from llama_core.steps import At, Walk
from pages.ui import samples
from pages.ui import session as module
from pages.ui.samples import PROMPT, Sample, prompt_for
from pages.ui.session import (
    CHOICES,
    IDS,
    PROMPT_IN_URL,
    RANDOM,
    SIZES,
    Session,
    begin,
    bind,
    layer_of,
    nearest,
    write_url,
)
from pages.words import t

STORY = Sample("a story", "Once upon a time", "what to see", "1.weights", 3, 2)


class Params(dict):
    """st.query_params without a browser."""

    def from_dict(self, values):
        self.clear()
        self.update(values)
        self.written = getattr(self, "written", 0) + 1


@pytest.fixture
def tab(monkeypatch, tmp_path):
    """One browser tab: its URL's query and its session state. The box and two model files are on offer."""
    for name in ("a.gguf", "b c&d=1#%.gguf"):
        (tmp_path / name).touch()
    box = tmp_path / "app" / "assets" / BOX
    box.mkdir(parents=True)
    (box / "config.json").touch()
    monkeypatch.setattr(roots, "_APP", tmp_path / "app")
    monkeypatch.setattr(samples, "samples", lambda: (STORY,))
    (tmp_path / "not offered.txt").touch()
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    monkeypatch.setattr(roots, "hub_cache", lambda: tmp_path / "no cache")
    fake = SimpleNamespace(query_params=Params(), session_state={})
    monkeypatch.setattr(module, "st", fake)
    return fake


def visit(tab, **query) -> Session:
    """A new tab that opens a link."""
    tab.query_params = Params(query)
    tab.session_state.clear()
    return begin()


def chosen(here: Session) -> dict:
    return {name: here[name] for name in CHOICES}


EXAMPLES = {
    "model": (BOX, "a.gguf", "b c&d=1#%.gguf", "org/name", "org/name@v1.0", RANDOM),
    "prompt": ("", " ", "a\r\nb\t", "東京 👍🏽 é", "a=1&b=2#c%20+", "x" * PROMPT_IN_URL, "<b>$x$</b>", "nan"),
    "control": (True, False),
    "pairs": ("halves", "neighbours"),
    "ids": ("", "1", "[1, 2]", "abc", "9" * 30),
    "at": ("embed", "logits", "0.q", "999999.resid_out", "3.q_norm"),
    "head": (0, 1, 4096),
    "token": (0, 7, 1 << 24),
    "edit": ("", "3.head_out zero h2", "off embed noise 0.1 7 t0-3,5; 5.mlp_out scale 0.5", "1.q set 2"),
    "until": ("0.q", "logits"),
    "breaks": ("", "weights", "3.gate,weights", "embed"),
    "watch": ("", "notfinite", "q above 100; 3.weights collapse 0.99"),
    "after": ("0.q", "logits"),
    "show": ("changed", "explain", "source", "parameters"),
    "cell": ("0,0,0", "0,4,2,17", "9999999,9999999,9999999,9999999"),
    "look": ("head", "layer", "all"),
    "rest": (True, False),
    "log": (True, False),
    "window": ("0-0,0-0", "10-63,0-40", "9999999-9999999,0-9999999"),
    "vector": ("query", "key"),
    "place": (0, 7, 1 << 24),
    "reads": (0, 7, 1 << 24),
    "shift": (0, 1, 100, 1 << 24),
    "if_kind": ("none", "linear", "dynamic", "llama3", "yarn"),
    "if_base": (1.0, 10000.0, 1e12),
    "if_original": (1, 8192, 1 << 24),
    "if_factor": (1.0, 1.5, 8.0, 1024.0),
    "if_low": (0.01, 1.0, 1e4),
    "if_high": (0.01, 4.0, 1e4),
    "device": ("cpu", "cuda"),
    "dtype": ("float32", "bfloat16"),
    "attention": ("auto", "explicit", "fused"),
    "preset": tuple(PRESETS),
    "layers": (1, 64),
    "hidden": (1, 4096),
    "heads": (1, 128),
    "kv": (0, 1, 128),
    "head_dim": (1, 5, 512),
    "mlp": (1, 16384),
    "vocab": (2, 65536),
    "theta": (1.0, 10000.0, 123456.789, 1e9, 1 + 1e-12),
    "layout": ("halves", "neighbours"),
    "tied": (True, False),
    "qk_norm": (True, False),
    "scheme": ("normal", "xavier", "pytorch"),
    "std": (0.0, 0.02, 1e-5, 1 / 3, 10.0),
    "seed": (0, 2**31 - 1),
    "new": (0, 1, 256),
    "greedy": (True, False),
    "draw": (0, 2**31 - 1),
    "temperature": (0.0, 0.7, 5.0),
    "top_k": (0, 1, 40, 1 << 24),
    "top_p": (0.0, 0.9, 1.0),
    "lens": ("share", "entropy", "rank"),
    "sweep": ("heads", "attn_out", "mlp_out"),
    "measure": ("logit", "log_probability"),
    "range": ("rms", "largest", "outlier", "zeros", "broken"),
    "answer": (-1, 0, 49151),
    "against": (-1, 0, 49151),
    "of": ("current", "Llama 3 70B", "tiny"),
    "context": (1, 4096, 1 << 20),
    "stored": ("float32", "float16", "bfloat16"),
    "of_layers": (1, 256),
    "of_hidden": (1, 32768),
    "of_heads": (1, 256),
    "of_kv": (1, 256),
    "of_mlp": (1, 131072),
    "of_vocab": (2, 1 << 20),
    "of_tied": (True, False),
}


def test_there_is_an_example_of_every_choice():
    assert EXAMPLES.keys() == CHOICES.keys()


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_survives_its_text(tab, name):
    for value in EXAMPLES[name]:
        here = visit(tab)
        here.choose(**{name: value})
        text = here.query()
        assert all(isinstance(word, str) for word in text.values())
        copied = visit(tab, **text)
        assert copied.notes == []
        assert chosen(copied) == chosen(here), value
        assert copied.query() == text


def test_all_choices_at_once_survive_a_copied_url(tab):
    rng = random.Random(0)
    for _ in range(200):
        here = visit(tab)
        names = rng.sample(list(CHOICES), rng.randint(1, len(CHOICES)))
        here.choose(**{name: rng.choice(EXAMPLES[name]) for name in names})
        write_url()
        copied = visit(tab, **tab.query_params)
        assert chosen(copied) == chosen(here)
        assert copied.notes == []


BAD = {
    "model": ("no.gguf", "A.GGUF", "not offered.txt", "tiny", "", "a/b/c", "org/..", "org/name.gguf", "../a/b"),
    "control": ("", "2", "yes"),
    "pairs": ("", "auto", "Halves"),
    "at": (
        "",
        "q",
        "0.embed",
        "1.",
        ".q",
        "-1.q",
        "1.nothing",
        "1 .q",
        "1.q_rot\n",
        "1.Q",
        "٣.q",
        "1.q.q",
        "9" * 7 + ".q",
    ),
    "head": ("", "-1", "4097", "1.5", "٣", "one", "1e3", "0x1", "nan"),
    "token": ("", "-1", str((1 << 24) + 1), "inf"),
    "until": ("", "q", "1.nothing"),
    "breaks": ("nothing", "1.nothing", "x.q"),
    "watch": ("often", "q above", "q above x", "collapse 2"),
    "after": ("", "q"),
    "cell": ("", "1", "-1,0,0", "1,2,3,4,5", "0,0,0\n", "0,0,99999999"),
    "vector": ("", "Query", "value"),
    "place": ("", "-1", "1.5", str((1 << 24) + 1)),
    "reads": ("", "-1", "last"),
    "shift": ("", "-1", "1e3"),
    "if_kind": ("", "YaRN", "ntk", "default"),
    "if_base": ("", "0.5", "nan", "1e13"),
    "if_original": ("", "0", "8192.0"),
    "if_factor": ("", "0.5", "inf"),
    "if_low": ("", "0", "nan"),
    "if_high": ("", "0", "-1"),
    "look": ("", "heads", "Layer"),
    "rest": ("", "2", "true"),
    "log": ("", "log10", "-1"),
    "window": ("", "1", "5-4,0-1", "0-1,5-4", "0-1,0-1\n", "-1-2,0-1", "0-1", "٣-٣,0-1", "0-99999999,0-1", "0:1,0:1"),
    "device": ("", "CPU", "cuda:0", "mps"),
    "dtype": ("", "float16", "fp32"),
    "attention": ("", "flash", "Fused"),
    "preset": ("", "huge", "Tiny"),
    "layers": ("0", "65", "9" * 5000),
    "hidden": ("0", "4097"),
    "heads": ("0", "129"),
    "kv": ("-1", "129"),
    "head_dim": ("0", "513"),
    "mlp": ("0", "16385"),
    "vocab": ("1", "65537"),
    "theta": ("", "0.9", "1e10", "nan", "inf", "-inf", "10,000", "ten"),
    "layout": ("", "Halves"),
    "tied": ("", "2", "true", "yes", "-1"),
    "qk_norm": ("", "True"),
    "scheme": ("", "kaiming"),
    "std": ("", "-0.1", "10.1", "NaN", "Infinity"),
    "seed": ("-1", str(2**31), "0.5"),
    "new": ("", "-1", "257", "1e2"),
    "greedy": ("", "yes"),
    "draw": ("-1", str(2**31)),
    "temperature": ("", "-1", "5.1", "nan", "hot"),
    "top_k": ("", "-1", "0.5"),
    "top_p": ("", "-0.1", "1.1", "nan"),
    "sweep": ("", "Heads", "attention"),
    "measure": ("", "logits", "p"),
    "lens": ("", "Share", "probability"),
    "range": ("", "RMS", "max"),
    "answer": ("", "-2", "Paris", "1.5"),
    "against": ("", "-2", "none"),
    "of": ("", "llama 3 8b", "Llama 4"),
    "context": ("", "0", "4095", "-1", str(1 << 21), "long"),
    "stored": ("", "int8", "Float32"),
    "of_layers": ("0", "257"),
    "of_hidden": ("0", "32769"),
    "of_heads": ("0", "257"),
    "of_kv": ("0", "257"),
    "of_mlp": ("0", "131073"),
    "of_vocab": ("1", str((1 << 20) + 1)),
    "of_tied": ("", "2", "yes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_becomes_the_default_and_is_said(tab, name):
    for text in BAD[name]:
        here = visit(tab, **{name: text})
        assert here.values == {}, text
        assert here.notes == [t("note.bad_value", name=name, value=text[:60])]
        assert len(here.notes[0]) < 160


def test_of_a_list_of_edits_what_can_be_read_is_kept_and_the_rest_is_named(tab):
    here = visit(tab, edit="3.q zero; zero; 1.q scale; off 3.head_out zero x2; 99 zero; <b>; 1.k zero h2")
    assert here["edit"] == "3.q zero; 1.k zero h2"
    assert len(here.notes) == 4
    for note, piece in zip(here.notes, ("zero", "1.q scale", "off 3.head_out zero x2"), strict=False):
        assert f"“{piece}”" in note
    assert here.notes[3] == t("edit.unread.more", n=2)
    here = visit(tab, edit="; ".join(f"{n}.q zero" for n in range(34)))
    assert len(here.edits()) == 32
    assert here.notes == [t("edit.unread.most", most=32, n=2)]


def test_a_bad_value_leaves_the_good_ones(tab):
    here = visit(tab, model=RANDOM, preset="huge", layers="x", heads="4", at="1.q")
    assert here.values == {"model": RANDOM, "heads": 4, "at": "1.q"}
    assert len(here.notes) == 2
    assert here["preset"] == "tiny"


def test_the_note_of_a_bad_value_stays_until_something_is_chosen(tab):
    here = visit(tab, at="x")
    write_url()
    assert begin().notes == here.notes != []
    assert tab.query_params == {"at": "x"}
    here.choose(at="0.q")
    assert begin().notes == []
    write_url()
    assert tab.query_params["at"] == "0.q"
    assert begin().notes == []


def test_unknown_names_in_the_url_are_no_choices(tab):
    here = visit(tab, utm_source="x", embed="true", at="0.q", AT="1.q")
    assert here.values == {"at": "0.q"}
    assert here.notes == []


# --- range -------------------------------------------------------------------------------------


def test_a_smaller_model_takes_the_nearest_address_head_and_the_last_token(tab):
    here = visit(tab, at="29.q_norm", head="8", token="40")
    at = here.fit(Walk(2), T=5, heads=4)
    assert str(at) == here["at"] == "1.q"
    assert (here["head"], here.token(5)) == (3, 4)
    assert t("note.clamped", name="at", asked="29.q_norm", used="1.q") in here.notes
    assert t("note.clamped", name="head", asked=8, used=3) in here.notes


def test_what_fits_is_left_alone(tab):
    here = visit(tab, at="1.q", head="3", token="4")
    before = chosen(here)
    here.fit(Walk(2), T=5, heads=4)
    assert chosen(here) == before
    assert here.notes == []


@pytest.mark.parametrize("layers", [1, 2, 30])
@pytest.mark.parametrize("families", [frozenset(), frozenset({"qk_norm"})])
def test_nearest_is_always_in_the_walk(layers, families):
    walk = Walk(layers, families)
    for at in Walk(64, frozenset({"qk_norm"})):
        found = nearest(walk, at)
        assert found in walk
        assert at not in walk or found == at


def test_no_token_chosen_means_the_last(tab):
    here = visit(tab)
    assert [here.token(T) for T in (1, 5, 9)] == [0, 4, 8]


def test_another_preset_drops_what_was_moved_by_hand(tab):
    here = visit(tab, model=RANDOM, layers="3", theta="500", tied="0", qk_norm="1", seed="7", at="1.q")
    assert here.config().num_hidden_layers == 3
    here.choose_preset("nano")
    assert here.config() == PRESETS["nano"]
    assert (here["seed"], here["at"], here["model"]) == (7, "1.q", RANDOM)
    assert not set(SIZES) & set(here.query())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_is_that_preset(tab, preset):
    assert visit(tab, model=RANDOM, preset=preset).config() == PRESETS[preset]


def test_the_widget_of_the_preset_drops_the_sizes_too(tab):
    here = visit(tab, model=RANDOM, layers="3")
    arguments = bind("preset")
    tab.session_state[arguments["key"]] = "nano"
    arguments["on_change"]()
    assert here.config() == PRESETS["nano"]


# --- the URL and the widgets ---------------------------------------------------------------------


def test_a_widgets_word_is_newer_than_the_url(tab):
    here = visit(tab, at="0.q")
    here.choose(at="1.k")
    assert begin()["at"] == "1.k"
    write_url()
    assert tab.query_params == {"model": BOX, "prompt": STORY.prompt, "at": "1.k"}


def test_back_is_a_url_that_we_did_not_write(tab):
    here = visit(tab, at="0.q", head="2")
    write_url()
    first = dict(tab.query_params)
    here.choose(at="1.k", head=1)
    begin()
    write_url()
    tab.query_params = Params(first)
    assert (begin()["at"], here["head"]) == ("0.q", 2)


def test_the_url_is_written_once_and_only_when_it_says_something_else(tab):
    visit(tab)
    for _ in range(3):
        begin()
        write_url()
    assert not hasattr(tab.query_params, "written")
    module.session().choose(at="1.k")
    for _ in range(3):
        begin()
        write_url()
    assert tab.query_params.written == 1


def test_a_long_prompt_stays_out_of_the_url_and_survives(tab):
    long = "x" * (PROMPT_IN_URL + 1)
    here = visit(tab, at="0.q", prompt="short")
    write_url()
    here.choose(prompt=long)
    begin()
    write_url()
    assert "prompt" not in tab.query_params
    assert begin()["prompt"] == long
    here.choose(at="1.k")
    begin()
    write_url()
    assert (begin()["prompt"], tab.query_params["at"]) == (long, "1.k")
    tab.query_params = Params(here.query(at="1.v"))  # a link on the page
    assert (begin()["prompt"], here["at"]) == (long, "1.v")
    tab.query_params = Params(prompt="short", at="0.q")  # Back
    assert begin()["prompt"] == "short"


def test_another_page_shows_what_was_chosen_on_the_last_one(tab):
    visit(tab, head="2")
    key = bind("head")["key"]
    begin("home")  # Streamlit finds the old widget by this key, but gives the new one its default
    assert key not in tab.session_state
    assert tab.session_state[bind("head")["key"]] == 2
    begin("home")
    assert key in tab.session_state


def test_a_widget_shows_what_was_chosen_and_tells_what_it_is_set_to(tab):
    here = visit(tab, model=RANDOM, heads="2")
    assert tab.session_state[bind("heads", 8)["key"]] == 2
    arguments = bind("layers", 4)
    assert tab.session_state[arguments["key"]] == 4
    assert here["layers"] is None, "showing the preset's number is not a choice"
    tab.session_state[arguments["key"]] = 6
    arguments["on_change"]()
    assert (here["layers"], here.touched) == (6, True)


@pytest.mark.parametrize(
    ("name", "sent"),
    [("model", "/etc/passwd"), ("model", "../../x.gguf"), ("preset", "huge"), ("scheme", "x"), ("layers", 10**9)],
)
def test_what_no_widget_offers_is_not_taken_from_the_browser(tab, name, sent):
    here = visit(tab, model=RANDOM)
    before = chosen(here)
    arguments = bind(name, 4 if name == "layers" else None)
    tab.session_state[arguments["key"]] = sent
    arguments["on_change"]()
    assert chosen(here) == before


# --- hostile links ----------------------------------------------------------------------------------

PATHS = (
    "../../etc/passwd",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "/etc/hostname\x00.gguf",
    "a.gguf\x00",
    "a.gguf/",
    "./a.gguf",
    "../models/a.gguf",
    "..",
    ".",
    "~",
    "~/x.gguf",
    "C:\\windows\\win.ini",
    "\\\\host\\share\\a.gguf",
    "file:///etc/passwd",
    "http://127.0.0.1/a.gguf",
    "%2e%2e%2fetc%2fpasswd",
    "*.gguf",
    "a.gguf" + "a" * 5000,
)
STRANGE = (
    "",
    " ",
    "0",
    "-0",
    "+1",
    "1_000",
    "٣",
    "²",
    "１２",
    "1e400",
    "-1e400",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "9" * 5000,
    "-" + "9" * 5000,
    "0." + "0" * 5000 + "1",
    "\x00",
    "\ufffd",
    "\u202e1",
    "None",
    "null",
    "[]",
    "{}",
    "{name}",
    "<script>",
    "' or 1=1",
    "a" * 100_000,
    "👍🏽",
    "1.q\x00",
    "0.q_rot",
)

_opened: list[str] | None = None


def _listen(event: str, arguments: tuple) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


@pytest.fixture
def opened():
    """Names of the files that are opened during a test."""
    global _opened
    if not getattr(_listen, "on", False):
        sys.addaudithook(_listen)
        _listen.on = True
    _opened = []
    yield _opened
    _opened = None


@pytest.mark.parametrize("path", PATHS)
def test_a_link_to_a_path_opens_nothing(tab, opened, path):
    here = visit(tab, model=path)
    inside = path in ("./a.gguf", "a.gguf/")  # other ways to write what is offered
    assert here["model"] == ("a.gguf" if inside else BOX)
    assert len(here.notes) == (not inside)
    assert all(name.startswith(str(models_root())) for name in opened)


def test_no_link_raises_anything_but_a_sentence(tab, opened):
    rng = random.Random(1)
    for _ in range(1500):
        names = rng.sample(list(CHOICES), rng.randint(1, 6))
        here = visit(tab, **{name: rng.choice(STRANGE + PATHS) for name in names})
        for name, value in here.values.items():
            assert CHOICES[name].read(module._text(value)) == value
        for note in here.notes:
            assert len(note) < 400
        walk = Walk(2)
        with suppress(GlassLlamaError):
            walk = here.config().walk
        assert here.fit(walk, T=1, heads=1) in walk
        assert here.token(1) == 0
        assert At.parse(here["at"]) in walk
        write_url()
        copied = visit(tab, **here.query())
        assert chosen(copied) | {"prompt": 0} == chosen(here) | {"prompt": 0}
        assert len(here["prompt"]) > PROMPT_IN_URL or copied["prompt"] == here["prompt"]
    assert opened == []


def test_numbers_are_ascii(tab):
    for name in ("layers", "theta", "std", "seed"):
        assert visit(tab, **{name: "٣"}).values == {}, name


# --- a prompt that suits the model -----------------------------------------------------------------


def test_without_a_prompt_of_ones_own_each_model_has_its_own(tab):
    here = visit(tab)
    assert here["prompt"] == STORY.prompt == prompt_for(BOX)
    here.choose_model("a.gguf")
    assert here["prompt"] == PROMPT
    here.choose(prompt="mine")
    here.choose_model(BOX)
    assert here["prompt"] == "mine"


def test_a_copied_link_carries_the_prompt_that_was_shown_and_another_model_still_brings_its_own(tab):
    copied = visit(tab, **visit(tab, model="a.gguf").query())
    assert tab.query_params["prompt"] == copied["prompt"] == PROMPT
    copied.choose_model(BOX)
    assert copied["prompt"] == STORY.prompt


def test_a_link_to_another_model_carries_that_models_prompt(tab):
    assert visit(tab).query(model="a.gguf")["prompt"] == PROMPT
    assert visit(tab, prompt="mine").query(model="a.gguf")["prompt"] == "mine"


def test_a_forced_pair_layout_ends_with_its_model(tab):
    here = visit(tab, model="a.gguf", pairs="neighbours")
    assert here["pairs"] == "neighbours"
    here.choose_model("b c&d=1#%.gguf")
    assert here["pairs"] is None


# --- another model -----------------------------------------------------------------------------------


def test_a_typed_model_is_opened_or_refused_in_one_sentence(tab, tmp_path):
    here = visit(tab)
    for text, model in (("a.gguf", "a.gguf"), (str(tmp_path / "a.gguf"), "a.gguf"), ("org/name", "org/name")):
        here.try_model(text)
        assert (here["model"], here.notes) == (model, [])
    refusals = set()
    for text in ("/etc/passwd", "/no/such/file", str(tmp_path / "not offered.txt"), str(tmp_path.parent)):
        here.try_model(text)
        assert here["model"] == "org/name"
        refusals.add(here.notes[0].replace(text[:60], ""))
    assert len(refusals) == 1, "the answer does not tell what exists"


def test_nothing_is_asked_of_the_hub_by_a_link(tab):
    assert visit(tab, model="org/name", hub="fetch").hub == ("", "")


def test_the_layer_of_a_step_of_the_model_itself_is_the_nearer_end():
    walk = Walk(4)
    assert [layer_of(At.parse(text), walk) for text in ("embed", "2.q", "final_norm", "logits")] == [0, 2, 3, 3]


def test_ids_have_their_own_default(tab):
    assert visit(tab)["ids"] == IDS


def test_a_link_to_a_cell_goes_to_its_token_and_head(tab):
    tab.query_params = Params({"at": "2.weights", "cell": "3,10,4"})
    here = begin("steps")
    assert (here["cell"], here["head"], here["token"], here.notes) == ("0,3,10,4", 3, 10, [])


def test_a_link_that_says_token_and_head_itself_keeps_them(tab):
    tab.query_params = Params({"at": "2.q", "cell": "0,5,1,7", "token": "2", "head": "4"})
    here = begin("steps")
    assert (here["cell"], here["head"], here["token"]) == ("0,5,1,7", 4, 2)


@pytest.mark.parametrize("cell", ["9,9,9,9", "1,2", "1,0,3,10"])
def test_a_cell_that_no_step_has_is_said(tab, cell):
    tab.query_params = Params({"at": "2.weights", "cell": cell})
    here = begin("steps")
    assert (here["cell"], len(here.notes)) == (None, 1)
