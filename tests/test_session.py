"""What a person has chosen: its text in the URL and back, bad values, clamping, and that a link opens no other file."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from llama_core.checkpoints import models_root
from llama_core.config import PRESETS
from llama_core.errors import GlassLlamaError
from llama_core.steps import At, Walk
from pages.ui import session as module
from pages.ui.session import (
    CHOICES,
    IDS,
    PROMPT,
    PROMPT_IN_URL,
    RANDOM,
    SIZES,
    Session,
    begin,
    bind,
    nearest,
    write_url,
)
from pages.words import t


class Params(dict):
    """st.query_params without a browser."""

    def from_dict(self, values):
        self.clear()
        self.update(values)
        self.written = getattr(self, "written", 0) + 1


@pytest.fixture
def tab(monkeypatch, tmp_path):
    """One browser tab: its URL's query and its session state. Two model files are on offer."""
    for name in ("a.gguf", "b c&d=1#%.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "not offered.txt").touch()
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
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
    "model": ("a.gguf", "b c&d=1#%.gguf", RANDOM),
    "prompt": ("", " ", "a\r\nb\t", "東京 👍🏽 é", "a=1&b=2#c%20+", "x" * PROMPT_IN_URL, "<b>$x$</b>", "nan"),
    "ids": ("", "1", "[1, 2]", "abc", "9" * 30),
    "at": ("embed", "logits", "0.q", "999999.resid_out", "3.q_norm"),
    "head": (0, 1, 4096),
    "token": (0, 7, 1 << 24),
    "show": ("changed", "source", "parameters"),
    "device": ("cpu", "cuda"),
    "dtype": ("float32", "bfloat16"),
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
    "model": ("no.gguf", "A.GGUF", "not offered.txt", "tiny", ""),
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
    "device": ("", "CPU", "cuda:0", "mps"),
    "dtype": ("", "float16", "fp32"),
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
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_becomes_the_default_and_is_said(tab, name):
    for text in BAD[name]:
        here = visit(tab, **{name: text})
        assert here.values == {}, text
        assert here.notes == [t("note.bad_value", name=name, value=text[:60])]
        assert len(here.notes[0]) < 160


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
    assert tab.query_params == {"model": "a.gguf", "prompt": PROMPT, "at": "1.k"}


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
    assert here["model"] == "a.gguf"
    assert len(here.notes) == 1
    assert all(name.startswith(str(models_root())) for name in opened)


def test_no_link_raises_anything_but_a_sentence(tab, opened):
    rng = random.Random(1)
    for _ in range(1500):
        names = rng.sample(list(CHOICES), rng.randint(1, 6))
        here = visit(tab, **{name: rng.choice(STRANGE + PATHS) for name in names})
        for name, value in here.values.items():
            assert CHOICES[name].read(module._text(value)) == value
        for note in here.notes:
            assert len(note) < 200
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


def test_ids_have_their_own_default(tab):
    assert visit(tab)["ids"] == IDS
