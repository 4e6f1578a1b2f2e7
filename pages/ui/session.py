"""What a person has chosen, in this session and in the URL. The only owner of that knowledge.

Choices live under a key of their own, never as a widget's. Widgets are bound to them (`bind`), links
carry them (`query`), and `begin` reads the URL whenever it says something else than what was written
last: that is a link, a reload, or the browser's Back. A value that cannot be becomes the default and
leaves a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import streamlit as st

from llama_core.checkpoints import local_models
from llama_core.checkpoints.random import SCHEMES
from llama_core.config import COMPUTE_DTYPES, PRESETS, LlamaConfig
from llama_core.errors import AddressError
from llama_core.steps import At, Walk
from pages.words import t

PROMPT = "The capital of France is"
IDS = "10,20,30,40,50"
PROMPT_IN_URL = 1500  # characters; a longer prompt stays out of the URL
RANDOM = "random"


def _within(kind: type, low: float, high: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if not (text.isascii() and low <= value <= high):
            raise ValueError
        return value

    return read


def _one_of(options: Callable[[], Any]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in options():
            raise ValueError
        return text

    return read


def _address(text: str) -> str:
    try:
        return str(At.parse(text))
    except AddressError as error:
        raise ValueError from error


def _flag(text: str) -> bool:
    return {"1": True, "0": False}[text]


def offers() -> list[str]:
    """The models that can be chosen: those in the models folder, then random weights."""
    return [*local_models(), RANDOM]


@dataclass(frozen=True)
class Choice:
    """One thing that can be chosen. read: from its text in the URL, ValueError or KeyError when it cannot be."""

    default: Any
    read: Callable[[str], Any]


SIZES: Mapping[str, Choice] = {
    # None: as in the preset. The names are the URL's; FIELDS gives the config's.
    "layers": Choice(None, _within(int, 1, 64)),
    "hidden": Choice(None, _within(int, 1, 4096)),
    "heads": Choice(None, _within(int, 1, 128)),
    "kv": Choice(None, _within(int, 0, 128)),
    "head_dim": Choice(None, _within(int, 1, 512)),
    "mlp": Choice(None, _within(int, 1, 16384)),
    "vocab": Choice(None, _within(int, 2, 65536)),
    "theta": Choice(None, _within(float, 1.0, 1e9)),
    "layout": Choice(None, _one_of(lambda: ("halves", "neighbours"))),
    "tied": Choice(None, _flag),
    "qk_norm": Choice(None, _flag),
}
FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp": "intermediate_size",
    "vocab": "vocab_size",
    "theta": "rope_theta",
    "layout": "rope_layout",
    "tied": "tie_word_embeddings",
    "qk_norm": "qk_norm",
}
CHOICES: Mapping[str, Choice] = {
    "model": Choice(None, _one_of(offers)),  # None: the first offer
    "prompt": Choice(PROMPT, str),
    "ids": Choice(IDS, str),
    "at": Choice("embed", _address),
    "head": Choice(0, _within(int, 0, 4096)),
    "token": Choice(None, _within(int, 0, 1 << 24)),  # None: the last
    "show": Choice("changed", _one_of(lambda: ("changed", "source", "parameters"))),
    "device": Choice("cpu", _one_of(lambda: ("cpu", "cuda"))),
    "dtype": Choice("float32", _one_of(lambda: COMPUTE_DTYPES)),
    "preset": Choice("tiny", _one_of(lambda: PRESETS)),
    **SIZES,
    "scheme": Choice("normal", _one_of(lambda: SCHEMES)),
    "std": Choice(0.02, _within(float, 0.0, 10.0)),
    "seed": Choice(0, _within(int, 0, 2**31 - 1)),
}
ALWAYS = ("model", "prompt", "at")  # written even when they are the default: a copied link means what it shows


@dataclass
class Session:
    """The choices of one browser tab."""

    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] | None = None  # the URL's query as we last saw or wrote it
    touched: bool = False  # a widget has spoken since the last run: its word is newer than the URL
    notes: list[str] = field(default_factory=list)
    page: str = ""

    def __getitem__(self, name: str) -> Any:
        value = self.values.get(name, CHOICES[name].default)
        return offers()[0] if name == "model" and value is None else value

    def choose(self, **changes: Any) -> None:
        """Take what a widget says; it counts from the next run's beginning."""
        self.values.update(changes)
        self.touched = True
        self.notes = []

    def choose_preset(self, preset: str) -> None:
        """Another preset: its own sizes replace what was moved by hand."""
        self.choose(preset=preset, **dict.fromkeys(SIZES))

    def config(self) -> LlamaConfig:
        """The random model's config: the preset with what was moved by hand. ConfigError says what cannot be."""
        moved = {FIELDS[name]: self[name] for name in SIZES if self[name] is not None}
        return PRESETS[self["preset"]].with_(**{"head_dim": None, **moved})

    def query(self, **changes: Any) -> dict[str, str]:
        """The URL's query that leads here, with some choices changed: what a link carries."""
        values = {**{name: self[name] for name in CHOICES}, **changes}
        if len(values["prompt"]) > PROMPT_IN_URL:
            values["prompt"] = None
        default = {name: choice.default for name, choice in CHOICES.items()}
        return {
            name: _text(value)
            for name, value in values.items()
            if value is not None and (name in ALWAYS or value != default[name])
        }

    def fit(self, walk: Walk, T: int, heads: int) -> At:
        """Bring address, token and head into this model's range; the address."""
        at = nearest(walk, At.parse(self["at"]))
        head, token = min(self["head"], heads - 1), self["token"]
        for name, value in (("at", str(at)), ("head", head)):
            if self[name] != value:
                self.notes.append(t("note.clamped", name=name, asked=self[name], used=value))
                self.values[name] = value
        if token is not None and token >= T:
            self.notes.append(t("note.token", asked=token, used=T - 1))
            self.values["token"] = None
        return at

    def token(self, T: int) -> int:
        """The chosen position, the last one when none is chosen."""
        return T - 1 if self["token"] is None else min(self["token"], T - 1)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def nearest(walk: Walk, at: At) -> At:
    """The address in this walk nearest to `at`: the last layer for one beyond it, what an absent step reads."""
    step = at.step
    while not walk.has(step):
        step = step.reads[0]
    return At(None if at.layer is None else min(at.layer, walk.layers - 1), step)


def session() -> Session:
    """This tab's choices."""
    return st.session_state.setdefault("glass_llama.session", Session())


def begin(page: str = "") -> Session:
    """Start of every page: the URL's word or the widgets', whichever is newer."""
    here = session()
    if page != here.page:  # Streamlit finds the key of the last page's widget, but gives this page's its default
        for name in CHOICES:
            st.session_state.pop(f"choice.{name}", None)
        here.page = page
    found = {name: st.query_params[name] for name in st.query_params}
    if not here.touched and found != here.written:
        long = here["prompt"] if len(here["prompt"]) > PROMPT_IN_URL and "prompt" not in found else None
        here.values, here.notes = _read(found)
        if long is not None:  # it could not be in the URL: its absence there says nothing
            here.values["prompt"] = long
        here.written = found
    here.touched = False
    return here


def write_url() -> None:
    """End of choosing: bring the URL up to date, once, and only where it says something else."""
    here = session()
    now = {name: st.query_params[name] for name in st.query_params}
    want = here.query()
    meant, _ = _read(now)
    if want != now and meant != {k: v for k, v in here.values.items() if v != CHOICES[k].default}:
        st.query_params.from_dict(want)
        now = want
    here.written = now


def _read(found: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    values, notes = {}, []
    for name, choice in CHOICES.items():
        if name not in found:
            continue
        try:
            value = choice.read(found[name])
        except (ValueError, KeyError):
            notes.append(t("note.bad_value", name=name, value=found[name][:60]))
            continue
        if value != choice.default:
            values[name] = value
    return values, notes


def bind(name: str, value: Any = None) -> dict[str, Any]:
    """Arguments that tie a widget to a choice: `st.selectbox("dtype", options, **bind("dtype"))`.

    value: what the widget shows when the choice itself is None (a size as the preset has it).
    """
    key = f"choice.{name}"
    current = session()[name]
    current = value if current is None else current
    if st.session_state.get(key) != current:
        st.session_state[key] = current
    return {"key": key, "on_change": _chooser(name)}


@cache
def _chooser(name: str) -> Callable[[], None]:
    def chosen() -> None:
        try:
            value = CHOICES[name].read(_text(st.session_state[f"choice.{name}"]))
        except (ValueError, KeyError):  # nothing that the widget offers: a browser can send anything
            return
        if name == "preset":
            session().choose_preset(value)
        else:
            session().choose(**{name: value})

    return chosen
