"""What a person has chosen, in this session and in the URL. The only owner of that knowledge.

Choices live under a key of their own, never as a widget's. Widgets are bound to them (`bind`), links
carry them (`query`), and `begin` reads the URL whenever it says something else than what was written
last: that is a link, a reload, or the browser's Back. A value that cannot be becomes the default and
leaves a note.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from llama_core.checkpoints import local_models
from llama_core.checkpoints.hub import is_hub_id
from llama_core.checkpoints.random import SCHEMES
from llama_core.checkpoints.roots import find
from llama_core.config import COMPUTE_DTYPES, ITEM_BYTES, PATHS, PRESETS, LlamaConfig
from llama_core.errors import AddressError, CheckpointError, GlassLlamaError
from llama_core.sizes import SHAPES
from llama_core.steps import At, Step, Walk
from llama_core.turning import KINDS as ROPE_KINDS
from pages.ui.passes import MOST_NEW
from pages.ui.samples import prompt_for
from pages.ui.stops import Entry, read_breaks, read_entries, read_watches, readable
from pages.words import t

IDS = "10,20,30,40,50"
PROMPT_IN_URL = 1500  # characters; a longer prompt stays out of the URL
RANDOM = "random"
CURRENT = "current"  # the Sizes page's word for the model that is loaded
CONTEXTS = tuple(1 << n for n in range(21))
LENS_COLOURS = ("share", "entropy", "rank")
SWEEPS = ("heads", "attn_out", "mlp_out")
MEASURES = ("logit", "log_probability")
RANGES = ("rms", "largest", "outlier", "zeros", "broken")
LAST_LAYER = 4096  # no browser asks for a higher one


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


def _model(text: str) -> str:
    """A model of the list, one at a path inside the allowed folders, or one of the hub, which is here or not."""
    if text in offers():
        return text
    try:
        path = find(text, listed())
    except CheckpointError as error:
        if is_hub_id(text):
            return text
        raise ValueError from error
    return next((name for name, place in listed().items() if place == path), text)


def _address(text: str) -> str:
    try:
        return str(At.parse(text))
    except AddressError as error:
        raise ValueError from error


def _cell(text: str) -> str:
    """An index into a tensor, one number for each axis, as it stands on the page: "4,2,17", or with B "0,4,2,17"."""
    if re.fullmatch(r"[0-9]{1,7}(,[0-9]{1,7}){1,3}", text) is None:
        raise ValueError
    return text


def _window(text: str) -> str:
    """First and last query, first and last key: "10-63,0-40"."""
    found = re.fullmatch(r"([0-9]{1,7})-([0-9]{1,7}),([0-9]{1,7})-([0-9]{1,7})", text)
    if found is None or int(found[1]) > int(found[2]) or int(found[3]) > int(found[4]):
        raise ValueError
    return text


def _read_by(read: Callable[[str], Any]) -> Callable[[str], str]:
    """A text that the core can read, as it was written."""

    def check(text: str) -> str:
        try:
            read(text)
        except GlassLlamaError as error:
            raise ValueError from error
        return text

    return check


def _flag(text: str) -> bool:
    return {"1": True, "0": False}[text]


_listed = threading.local()


def listed() -> Mapping[str, Path]:
    """The models of the box and of the allowed folders.

    A run of a page, which has a thread to itself, sees the folders as they were when it began.
    """
    return getattr(_listed, "models", None) or local_models()


def offers() -> list[str]:
    """The models that can be chosen: the one in the box, those in the allowed folders, then random weights."""
    return [*listed(), RANDOM]


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
WHAT_IF_LIMITS = {
    # The Sizes page: nothing of these sizes is ever allocated, so they may be large.
    "of_layers": (1, 256),
    "of_hidden": (1, 32768),
    "of_heads": (1, 256),
    "of_kv": (1, 256),
    "of_mlp": (1, 131072),
    "of_vocab": (2, 1 << 20),
}
WHAT_IF: Mapping[str, Choice] = {  # None: as in `of`
    **{name: Choice(None, _within(int, *limits)) for name, limits in WHAT_IF_LIMITS.items()},
    "of_tied": Choice(None, _flag),
}
WHAT_IF_FIELDS = {name: FIELDS[name.removeprefix("of_")] for name in WHAT_IF}
CHOICES: Mapping[str, Choice] = {
    "model": Choice(None, _model),  # None: the first offer
    "prompt": Choice(None, str),  # None: the one that suits the model
    "control": Choice(True, _flag),  # a control token typed in the prompt is that one token
    "pairs": Choice(None, _one_of(lambda: ("halves", "neighbours"))),  # None: as the file's names say
    "ids": Choice(IDS, str),
    "at": Choice("embed", _address),
    "head": Choice(0, _within(int, 0, 4096)),
    "token": Choice(None, _within(int, 0, 1 << 24)),  # None: the last
    "edit": Choice("", _read_by(read_entries)),  # what is changed on the way, by stops.py
    "until": Choice(None, _address),  # the run stops here; None: nowhere
    "breaks": Choice("", _read_by(read_breaks)),
    "watch": Choice("", _read_by(read_watches)),
    "after": Choice(None, _address),  # breakpoints and watches count behind this address; None: from the beginning
    "show": Choice("changed", _one_of(lambda: ("changed", "explain", "source", "parameters"))),
    "cell": Choice(None, _cell),  # the cell that is explained; None: the largest of the chosen token
    "look": Choice("head", _one_of(lambda: ("head", "layer", "all"))),  # how much of attention is shown
    "rest": Choice(False, _flag),  # attention without its first key
    "log": Choice(False, _flag),  # logarithmic colours
    "window": Choice(None, _window),  # None: the whole map
    "vector": Choice("query", _one_of(lambda: ("query", "key"))),  # RoPE: which one turns
    "place": Choice(None, _within(int, 0, 1 << 24)),  # to which position; None: its own
    "reads": Choice(None, _within(int, 0, 1 << 24)),  # the position of the key beside the chosen query; None: before it
    "shift": Choice(100, _within(int, 0, 1 << 24)),
    "if_kind": Choice("llama3", _one_of(lambda: ROPE_KINDS)),
    "if_base": Choice(None, _within(float, 1.0, 1e12)),  # None: as in the model
    "if_original": Choice(None, _within(int, 1, 1 << 24)),  # None: as in the model
    "if_factor": Choice(8.0, _within(float, 1.0, 1024.0)),
    "if_low": Choice(None, _within(float, 0.01, 1e4)),  # None: as this kind of scaling has it
    "if_high": Choice(None, _within(float, 0.01, 1e4)),
    "device": Choice("cpu", _one_of(lambda: ("cpu", "cuda"))),
    "dtype": Choice("float32", _one_of(lambda: COMPUTE_DTYPES)),
    "attention": Choice("auto", _one_of(lambda: PATHS)),
    "preset": Choice("tiny", _one_of(lambda: PRESETS)),
    **SIZES,
    "scheme": Choice("normal", _one_of(lambda: SCHEMES)),
    "std": Choice(0.02, _within(float, 0.0, 10.0)),
    "seed": Choice(0, _within(int, 0, 2**31 - 1)),
    "new": Choice(0, _within(int, 0, MOST_NEW)),  # tokens to generate; 0: none
    "greedy": Choice(True, _flag),  # the most probable token, always
    "draw": Choice(0, _within(int, 0, 2**31 - 1)),  # the seed of the draws
    "temperature": Choice(1.0, _within(float, 0.0, 5.0)),
    "top_k": Choice(0, _within(int, 0, 1 << 24)),  # 0: no cut
    "top_p": Choice(1.0, _within(float, 0.0, 1.0)),
    "lens": Choice("share", _one_of(lambda: LENS_COLOURS)),
    "sweep": Choice("heads", _one_of(lambda: SWEEPS)),  # which parts are switched off in turn
    "measure": Choice("logit", _one_of(lambda: MEASURES)),  # and what that is measured on
    "range": Choice("rms", _one_of(lambda: RANGES)),  # what the map of layers and steps shows
    "answer": Choice(-1, _within(int, -1, 1 << 24)),  # a token's id; -1: the most probable
    "against": Choice(-1, _within(int, -1, 1 << 24)),  # -1: none
    "of": Choice(CURRENT, _one_of(lambda: (CURRENT, *SHAPES, *PRESETS))),
    "context": Choice(4096, lambda text: CONTEXTS[CONTEXTS.index(int(text))]),
    "stored": Choice("bfloat16", _one_of(lambda: ITEM_BYTES)),
    **WHAT_IF,
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
    shown: Any = None  # the last run's View, which the frame lets go of when the next begins
    opened: float = 0.0  # when its first run began, by the monotonic clock
    again: bool = False  # the page asks for a run of its own accord
    unseen: bool = False  # the browser may not have drawn this page's widgets yet
    begun: float = 0.0  # when the last run began, by the monotonic clock
    telling: bool = False  # in this run every widget is told its value once more
    going: str = ""  # the script of the page whose link was pressed
    pressed: float = 0.0  # when that was, by the browser's clock, ms
    hub: tuple[str, str] = ("", "")  # "ask" or "fetch", and the hub's model that was meant by it
    follow: bool = False  # the cursor goes where the next run ends
    refused: str = ""  # why an edit that was asked for is not in the list
    files: tuple = ()  # where the model lies that was last asked for, and its files' stamp then
    ended: bool = False  # the person has ended what took long: it rests until something is chosen

    def __getitem__(self, name: str) -> Any:
        value = self.values.get(name, CHOICES[name].default)
        if value is None and name == "model":
            return offers()[0]
        return prompt_for(self["model"]) if value is None and name == "prompt" else value

    def choose(self, **changes: Any) -> None:
        """Take what a widget says; it counts from the next run's beginning."""
        self.values.update(changes)
        self.touched = True
        self.ended = False
        self.notes, self.refused = [], ""

    def leave_for(self, path: str, **changes: Any) -> None:
        """A link to another page was pressed: this run ends at once, and one of that page begins with these choices."""
        if changes:
            self.choose(**changes)
        self.going = path

    def end(self) -> None:
        """End what is loading or running, and let it rest: a press of a button, so never in the URL."""
        self.ended, self.touched = True, True

    def arrive(self, until: At | None) -> None:
        """A run has ended there; the cursor follows it if that was asked for."""
        if self.follow and until is not None:
            self.values["at"] = str(until)
        self.follow = False

    def choose_model(self, model: str) -> None:
        """Another model: a layout forced on the last one's weights is not forced on this one's."""
        self.choose(model=model, pairs=None)

    def try_model(self, text: str) -> None:
        """A model by what was typed: its name, a path, a hub id; what cannot be leaves a note."""
        try:
            self.choose_model(_model(text))
        except ValueError:
            self.touched, self.notes = True, [t("note.no_model", text=text[:60])]

    def refuse(self, why: str) -> None:
        """An edit that cannot be: the list stays, and the page says why."""
        self.refused, self.touched = why, True

    def ask_hub(self, what: str, model: str) -> None:
        """A press of a button: ask the hub about a model, or fetch it. Never by a link, so never in the URL."""
        self.hub, self.touched = (what, model), True

    def choose_preset(self, preset: str) -> None:
        """Another preset: its own sizes replace what was moved by hand."""
        self.choose(preset=preset, **dict.fromkeys(SIZES))

    def forget(self, name: str) -> None:
        """A choice that cannot be with this model: its default again."""
        self.values.pop(name, None)

    def choose_shape(self, of: str) -> None:
        """Another model to look at on the Sizes page: its own sizes replace what was moved by hand."""
        self.choose(of=of, **dict.fromkeys(WHAT_IF))

    def shape(self, current: LlamaConfig) -> LlamaConfig:
        """The config whose sizes are looked at: the loaded one or a preset, with what was moved by hand."""
        config = {CURRENT: current, **SHAPES, **PRESETS}[self["of"]]
        moved = {field: self[name] for name, field in WHAT_IF_FIELDS.items() if self[name] is not None}
        if moved.keys() & {"hidden_size", "num_attention_heads"}:
            moved["head_dim"] = None  # it follows
        return config.with_(**moved)

    def config(self) -> LlamaConfig:
        """The random model's config: the preset with what was moved by hand. ConfigError says what cannot be."""
        moved = {FIELDS[name]: self[name] for name in SIZES if self[name] is not None}
        return PRESETS[self["preset"]].with_(**{"head_dim": None, **moved})

    def edits(self) -> tuple[Entry, ...]:
        """The edits of the list, on and off."""
        return read_entries(self["edit"])

    def sampling(self) -> dict[str, Any]:
        """How the next token is chosen, as `generate` takes it."""
        if self["greedy"]:
            return {"temperature": 0.0}
        return {name: self[name] for name in ("temperature", "top_k", "top_p")} | {"seed": self["draw"]}

    def query(self, **changes: Any) -> dict[str, str]:
        """The URL's query that leads here, with some choices changed: what a link carries."""
        values = {**{name: self[name] for name in CHOICES}, **changes}
        if "prompt" not in {**self.values, **changes}:
            values["prompt"] = prompt_for(values["model"])
        if len(values["prompt"]) > PROMPT_IN_URL:
            values["prompt"] = None
        default = {name: choice.default for name, choice in CHOICES.items()}
        return {
            name: _text(value)
            for name, value in values.items()
            if value is not None and (name in ALWAYS or value != default[name])
        }

    def fit(self, walk: Walk, T: int, heads: int, later: int = 0) -> At:
        """Bring address, token and head into this model's range; the address.

        T: tokens of the prompt; later: generated ones that were read after it.
        """
        at = nearest(walk, At.parse(self["at"]))
        head, token = min(self["head"], heads - 1), self["token"]
        for name, value in (("at", str(at)), ("head", head)):
            if self[name] != value:
                self.notes.append(t("note.clamped", name=name, asked=self[name], used=value))
                self.values[name] = value
        if token is not None and token >= T + later:
            self.notes.append(t("note.token", asked=token, used=T - 1))
            self.values["token"] = None
        return at

    def token(self, T: int, later: int = 0) -> int:
        """The chosen position; the last of the prompt's T when none is chosen."""
        return T - 1 if self["token"] is None else min(self["token"], T + later - 1)


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


def layer_of(at: At, walk: Walk) -> int:
    """The layer of an address; of a step of the model itself the first or the last, whichever is nearer."""
    if at.layer is not None:
        return at.layer
    return 0 if walk.index(at) == 0 else walk.layers - 1


def session() -> Session:
    """This tab's choices."""
    return st.session_state.setdefault("glass_llama.session", Session())


DRAWN = 2.0
"""Seconds after a run's beginning by which the browser has drawn its widgets."""


def begin(page: str = "") -> Session:
    """Start of every page: the URL's word or the widgets', whichever is newer.

    Widgets are told their values when a page is new. Where the next run follows at once (Back pressed twice), the
    browser may only ever see that one's, which would show their defaults: the values are told again.
    """
    here, first = session(), False
    _listed.models = local_models()
    if here.page == "":
        here.opened = time.monotonic()
    if page != here.page:  # Streamlit finds the key of the last page's widget, but gives this page's its default
        for name in (*CHOICES, "layer", "stage"):
            st.session_state.pop(f"choice.{name}", None)
        here.page, first = page, True
    now = time.monotonic()
    here.telling, here.again = here.again or (here.unseen and not first), False
    here.unseen, here.begun = first or (here.unseen and now - here.begun < DRAWN), now
    found = {name: st.query_params[name] for name in st.query_params}
    if not here.touched and found != here.written:
        long = here["prompt"] if len(here["prompt"]) > PROMPT_IN_URL and "prompt" not in found else None
        here.values, here.notes = _read(found)
        if long is not None:  # it could not be in the URL: its absence there says nothing
            here.values["prompt"] = long
        if page == "steps" and here["cell"] is not None:
            _go_to_cell(here, found)
        here.written = found
        here.ended, here.refused = False, ""
    here.touched = False
    return here


def run_again() -> None:
    """Run the page once more, from inside a fragment.

    The browser may not have drawn the last run's widgets yet: they are told their values again, as in `begin`.
    """
    session().again = True
    st.rerun()


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
        text = found[name]
        if name == "edit":  # what can be read of a list is kept
            text, unread = readable(text)
            notes += unread
        try:
            value = choice.read(text)
        except (ValueError, KeyError):
            notes.append(t("note.bad_value", name=name, value=found[name][:60]))
            continue
        if value != choice.default:
            values[name] = value
    if "prompt" in values and values["prompt"] == prompt_for(values.get("model") or offers()[0]):
        del values["prompt"]  # nothing of one's own: another model brings another
    return values, notes


def _go_to_cell(here: Session, found: Mapping[str, str]) -> None:
    """A link that names a cell and no token or head means those of the cell; one that its step has not is said."""
    axes = At.parse(here["at"]).step.axes
    index = [int(n) for n in here["cell"].split(",")]
    index = [0, *index] if len(index) == len(axes) - 1 else index
    if len(index) != len(axes) or index[0] != 0:
        here.notes.append(t("note.bad_value", name="cell", value=here["cell"]))
        here.forget("cell")
        return
    here.values["cell"] = ",".join(map(str, index))
    named = {"T": "token", "Hq": "head"}
    for axis, i in zip(axes, index, strict=True):
        if axis in named and named[axis] not in found:
            here.values[named[axis]] = i


def here_only(hear: Callable[[], None]) -> Callable[[], None]:
    """A widget's callback that counts while its page is the one that has begun last.

    A press of a link brings the states of all widgets of its page along. Where it crosses the change to another page,
    Streamlit has forgotten what they were, takes each for changed and calls it.
    """
    page = session().page
    return lambda: hear() if session().page == page else None


def bind(name: str, value: Any = None) -> dict[str, Any]:
    """Arguments that tie a widget to a choice: `st.selectbox("dtype", options, **bind("dtype"))`.

    value: what the widget shows when the choice itself is None (a size as the preset has it).
    """
    key = f"choice.{name}"
    current = session()[name]
    current = value if current is None else current
    if st.session_state.get(key) != current or session().telling:
        st.session_state[key] = current
    return {"key": key, "on_change": here_only(_chooser(name))}


def bind_layer(layer: int, step: Step) -> dict[str, Any]:
    """Arguments that tie a widget to the layer of the chosen address. step: whose address it then is."""
    key = "choice.layer"
    if st.session_state.get(key) != layer or session().telling:
        st.session_state[key] = layer

    def chosen() -> None:
        value = st.session_state.get(key)
        if isinstance(value, int) and 0 <= value <= LAST_LAYER:
            session().choose(at=str(At(value, step)))

    return {"key": key, "on_change": here_only(chosen)}


def bind_stage(layer: int, step: Step, steps: Mapping[str, Step]) -> dict[str, Any]:
    """Arguments that tie a widget of step keys to the step of the chosen address. step: the one that is shown."""
    key = "choice.stage"
    if st.session_state.get(key) != step.key or session().telling:
        st.session_state[key] = step.key

    def chosen() -> None:
        value = st.session_state.get(key)
        if value in steps:
            meant = steps[value]
            session().choose(at=str(At(layer if meant.scope == "layer" else None, meant)))

    return {"key": key, "on_change": here_only(chosen)}


@cache
def _chooser(name: str) -> Callable[[], None]:
    def chosen() -> None:
        try:
            value = CHOICES[name].read(_text(st.session_state[f"choice.{name}"]))
        except (ValueError, KeyError):  # nothing that the widget offers: a browser can send anything
            return
        if name == "preset":
            session().choose_preset(value)
        elif name == "model":
            session().choose_model(value)
        elif name == "of":
            session().choose_shape(value)
        else:
            session().choose(**{name: value})

    return chosen
