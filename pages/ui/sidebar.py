"""The sidebar, the same on every page: pages, model, prompt, sizes of the random model, run, state."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import streamlit as st

from llama_core.checkpoints import devices
from llama_core.checkpoints.random import SCHEMES
from llama_core.checkpoints.roots import BOX
from llama_core.config import COMPUTE_DTYPES, PATHS, PRESETS
from llama_core.errors import ConfigError
from llama_core.settings import complaints
from llama_core.trace import Trace
from pages.figures import numbers
from pages.ui.limits import held_words
from pages.ui.menu import menu
from pages.ui.model_parts import about, open_other
from pages.ui.parts import count, plain_markdown, sentence
from pages.ui.session import FIELDS, PROMPT_IN_URL, RANDOM, Session, bind, offers, session
from pages.ui.store import ModelFacts
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator


@dataclass
class Sidebar:
    """The places that are filled as it becomes known what goes there."""

    here: Session
    card: DeltaGenerator
    about: DeltaGenerator
    prompt: DeltaGenerator
    run: DeltaGenerator
    state: DeltaGenerator
    asked: bool = False

    def ask(self, reads_text: bool, control: Sequence[str] = ()) -> None:
        """The field for the prompt: text for a model with a tokenizer, token ids for one without.

        control: the control tokens that the prompt spells out; they can be read as such or as text.
        """
        self.asked = True
        with self.prompt:
            if not reads_text:
                st.text_input(t("side.ids"), **bind("ids"), help=t("side.ids.help"))
                return
            st.text_area(t("side.prompt"), **bind("prompt"), height=88, help=t("side.prompt.help"))
            if control:
                st.toggle(
                    plain_markdown(t("side.control", token=control[0])), **bind("control"), help=t("side.control.help")
                )
            if len(self.here["prompt"]) > PROMPT_IN_URL:
                st.html(f'<div class="gl-card gl-muted">{t("note.long_prompt")}</div>')

    def show(self, model: ModelFacts) -> None:
        """Fill in the model's card."""
        parameters, exact = count(model.config.parameter_count())
        c, types = model.config, {"stored": model.stored_dtype, "computed": model.dtype}
        self.card.html(
            f'<div class="gl-card">{escape(model.label)}<br>'
            f'<b title="{exact}">{parameters}</b> {t("card.parameters")} · <b>{numbers.bytes_(model.nbytes)}</b><br>'
            f"<b>{c.num_hidden_layers}</b> {t('card.layers')} · "
            f"<b>{c.num_attention_heads}/{c.num_key_value_heads}</b> {t('card.heads')}<br>"
            f'<span class="gl-muted" title="{escape(t("card.stored.help", **types))}">'
            f"{escape(t('card.stored', **types))}</span>"
            "</div>"
        )
        with self.about:
            about(model)

    def done(self, trace: Trace) -> None:
        """Say what the run took."""
        T = trace.dims["T"]
        lines = (
            (t("state.tokens", n=T) if T > 1 else t("state.tokens.one")) + " · " + numbers.duration(trace.seconds),
            _held(trace) + f" · {trace.dtype}",
            f"{trace.device} · {t('state.path', path=trace.path)}",
            *([] if trace.whole else [held_words()]),
        )
        self._end(lines)

    def failed(self) -> None:
        """The run did not happen: its place is said to be empty, the choice of device stays."""
        if not self.asked:
            self.ask(reads_text=self.here["model"] != RANDOM)
        self._end([t("state.none")])

    def _end(self, lines: Iterable[str]) -> None:
        """Where and how it is computed, and what came of it."""
        with self.run:
            here = devices() if "torch" in sys.modules else ("cpu",)
            offered = tuple(dict.fromkeys((*here, session()["device"])))  # a link may ask for what is not here
            with st.container(horizontal=True):
                st.selectbox(t("side.device"), offered, width=80, **bind("device"), help=t("side.device.help"))
                st.selectbox(t("side.dtype"), COMPUTE_DTYPES, **bind("dtype"), help=t("side.dtype.help"))
            st.selectbox(
                t("side.attention"),
                PATHS,
                format_func=lambda path: t(f"side.attention.{path}"),
                **bind("attention"),
                help=t("side.attention.help"),
            )
            if here == ("cpu",):
                st.html(f'<div class="gl-card gl-muted">{t("side.no_gpu")}</div>')
        self.state.html(f'<div class="gl-state">{"<br>".join(escape(line) for line in lines)}</div>')


def _held(trace: Trace) -> str:
    """Bytes that the trace holds; where that is not all, of how many."""
    bytes_ = numbers.bytes_(trace.nbytes)
    if trace.until is not None or trace.whole:
        return t("state.held", bytes=bytes_)
    whole = trace.config.capture_bytes(trace.dims["T"], trace.past, trace.dtype)
    return t("state.part", bytes=bytes_, whole=numbers.bytes_(whole))


def draw(here: Session) -> Sidebar:
    """Draw what can be drawn before the model is there."""
    with st.sidebar:
        menu(here)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall"):
            st.selectbox(
                t("side.model"),
                list(dict.fromkeys((*offers(), here["model"]))),
                format_func=lambda name: t("side.random") if name == RANDOM else name,
                **bind("model"),
            )
            open_other()
        card = st.empty()
        card.html('<div class="gl-card"></div>')  # its height is kept, so that nothing below it jumps
        more = st.container()
        if not set(offers()) - {BOX, RANDOM}:
            st.html(f'<div class="gl-card gl-muted">{t("side.get_model")}</div>')
        for complaint in complaints():
            sentence(complaint, "error")
        if here["model"] == RANDOM:
            with st.popover(t("side.sizes"), icon=":material/tune:", width="stretch"):
                _sizes(here)
            _refusal(here)
        return Sidebar(here, card, more, st.container(), st.container(), st.empty())


def _refusal(here: Session) -> None:
    try:
        here.config()
    except ConfigError as error:
        sentence(str(error), "error")


def _sizes(here: Session) -> None:
    st.selectbox(t("size.preset"), list(PRESETS), **bind("preset"), help=t("size.preset.help"))
    preset = PRESETS[here["preset"]]

    def has(name: str):
        return getattr(preset, FIELDS[name])

    def span(name: str, low: int, high: int) -> tuple[int, int]:  # a link may ask for more than the slider offers
        value = has(name) if here[name] is None else here[name]
        return min(low, value), max(high, value)

    left, right = st.columns(2)
    left.slider(t("size.layers"), *span("layers", 1, 16), help=FIELDS["layers"], **bind("layers", has("layers")))
    right.slider(
        t("size.hidden"), *span("hidden", 8, 1024), step=8, help=FIELDS["hidden"], **bind("hidden", has("hidden"))
    )
    left.slider(t("size.heads"), *span("heads", 1, 32), help=FIELDS["heads"], **bind("heads", has("heads")))
    right.slider(t("size.kv"), *span("kv", 1, 32), help=FIELDS["kv"], **bind("kv", has("kv")))
    left.number_input(t("size.mlp"), 1, 16384, **bind("mlp", has("mlp")))
    right.number_input(t("size.vocab"), 2, 65536, **bind("vocab", has("vocab")))
    auto = _auto_head_dim(here, preset)
    left.number_input(t("size.head_dim"), 1, max(512, auto), **bind("head_dim", auto))
    right.number_input(t("size.theta"), 1.0, 1e9, format="%g", **bind("theta", float(has("theta"))))
    left.selectbox(t("size.layout"), ("halves", "neighbours"), **bind("layout", has("layout")))
    right.selectbox(t("size.scheme"), list(SCHEMES), **bind("scheme"), help=" ".join(SCHEMES.values()))
    left.toggle(t("size.tied"), **bind("tied", has("tied")))
    right.toggle(t("size.qk_norm"), **bind("qk_norm", has("qk_norm")))
    left.number_input(t("size.seed"), 0, 2**31 - 1, **bind("seed"))
    right.number_input(t("size.std"), 0.0, 10.0, step=0.01, format="%.3f", **bind("std"))


def _auto_head_dim(here: Session, preset) -> int:
    hidden = here["hidden"] or preset.hidden_size
    return max(1, hidden // (here["heads"] or preset.num_attention_heads))
