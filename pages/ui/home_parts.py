"""The parts of the first page: the map before anything has run, then the run's first pictures and three doors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from html import escape
from typing import TYPE_CHECKING

import streamlit as st

from llama_core.checkpoints.roots import BOX
from llama_core.config import LlamaConfig
from llama_core.errors import AddressError
from llama_core.look import FarLook, ReturningLook, answer_look, farthest_look, returning_look, stream_sizes
from llama_core.steps import AXES, WEIGHTS, At, Walk, find
from llama_core.trace import Trace
from pages.figures import heatmap, numbers, theme
from pages.figures.decoder_map import model_svg
from pages.figures.next_token import next_tokens
from pages.figures.stream import stream_size
from pages.figures.tensor_map import tensor_map
from pages.ui.drawing import drawing
from pages.ui.menu import SCRIPTS, address
from pages.ui.parts import caption, chart, dark, plain_markdown, table
from pages.ui.process import load_torch
from pages.ui.samples import samples
from pages.ui.session import RANDOM, session
from pages.ui.waiting import Tell, once_slowly
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from pages.ui.frame import View

STEPS_PAGE = SCRIPTS["steps"]
STREAM_HEIGHT = 260
MAP_FIRST = 1.0  # seconds for the browser to draw the map, before it reads plotly and does nothing else meanwhile
CLEAR = 0.3  # a weight from which a head is said to find what it looks for


@dataclass(frozen=True)
class Slots:
    """Places of the first page, in the order they stand, so that what is ready first need not come first."""

    lead: DeltaGenerator
    pictures: DeltaGenerator
    doors: DeltaGenerator
    samples: DeltaGenerator
    map: DeltaGenerator
    beside: DeltaGenerator
    stream: DeltaGenerator

    def draw_map(self, config: LlamaConfig, dims: Mapping[str, int], loads: bool) -> None:
        """The decoder from the registry alone: no weights, no torch. loads: the model is yet to be loaded."""
        with self.beside:
            st.subheader(t("home.letters"), anchor=False)
            table(("", "", ""), [(axis, name, str(dims[axis])) for axis, name in AXES.items()])
        with self.map:
            st.subheader(t("home.map"), anchor=False)
            drawn = _map(config.walk, tuple(dims.items()), "dark" if dark() else "light")
            choices = {name: text for name, text in session().query().items() if name != "at"}
            drawing(drawn, "home.map", choices, partial(_go, config.walk))
            caption(t("home.map.look"))
        if loads:  # an empty chart, so that the browser has plotly by the time that there is something to draw
            load_torch().join(MAP_FIRST)
            with self.stream.container():
                st.subheader(t("home.stream"), anchor=False)
                chart(theme.empty(t("home.stream.waits"), dark=dark(), height=STREAM_HEIGHT), "stream.waits")

    def fill(self, view: View) -> None:
        """What the run says: a sentence, two pictures, three doors."""
        prompt = session()["prompt" if view.model.reads_text else "ids"]
        prompt = prompt if len(prompt) <= 120 else prompt[:119] + "…"
        lead = t("home.lead", model=view.model.label, prompt=prompt, steps=len(view.trace.walk))
        self.lead.html(f'<p class="gl-lead">{escape(lead)}</p>')
        with self.pictures:
            look, expects = st.columns([3, 2], gap="large")
        with expects:
            _next(view)
        with self.doors:
            _doors(view)
        if session()["model"] == BOX:
            with self.samples:
                _samples(view)
        with look:
            _look(view)
        with self.stream.container():
            _stream(view)


def slots() -> Slots:
    """Lay out the page below its title."""
    lead, pictures, doors, samples = st.empty(), st.container(), st.container(), st.container()
    left, right = st.columns([1, 1], gap="large")
    return Slots(lead, pictures, doors, samples, left.container(), right.container(), right.empty())


@lru_cache(maxsize=64)
def _map(walk: Walk, dims: tuple[tuple[str, int], ...], tone: str) -> str:
    """The drawing, each of its steps a link to where it is looked at."""
    page = address(STEPS_PAGE)
    return model_svg(walk, dict(dims), href=lambda key: f"./{page}?at={_there(walk, key)}", theme=tone)


def _there(walk: Walk, key: str) -> At:
    """The step with this key, in the middle layer if it has one. AddressError: there is none."""
    step = find(key)
    return At(None if step.scope == "model" else walk.layers // 2, step)


def _go(walk: Walk, key: str) -> None:
    """A step of the map was clicked."""
    with suppress(AddressError):  # a browser can send anything
        session().leave_for(STEPS_PAGE, at=str(_there(walk, key)))


def _look(view: View) -> None:
    st.subheader(t("home.head"), anchor=False)
    looked = once_slowly(view, "first look", t("home.head.searching"), lambda tell: _first_look(view.trace, tell))
    if looked is None:
        return
    found, kind = looked
    if found is None:
        caption(t("home.head.none"))
        return
    figure = tensor_map(
        WEIGHTS,
        view.trace.head(found.at, found.head),
        labels=view.words,
        keys=view.keys,
        dims=view.trace.dims,
        head=found.head,
        visible=view.trace.visible(found.at),
        dark=dark(),
        cell=(found.query, found.key),
    )
    look = t(
        f"home.head.{kind}",
        layer=found.at.layer,
        head=found.head,
        query=view.words[found.query],
        key=view.keys[found.key],
        weight=numbers.short(found.weight),
    )
    chart(figure, "look", heatmap.notes(figure), look)
    st.page_link(
        STEPS_PAGE,
        label=t("home.head.open"),
        icon=":material/arrow_forward:",
        query_params=session().query(at=str(found.at), head=found.head, token=view.trace.past + found.query),
    )


def _first_look(trace: Trace, tell: Tell) -> tuple[FarLook | ReturningLook | None, str]:
    """Where to look first, and in which words: a token that comes again or is there again, if a head clearly looks."""
    for before, look in enumerate((answer_look, returning_look)):
        found = look(trace, lambda share, before=before: tell((before + share) / 3))
        if found is not None and found.weight >= CLEAR:
            return found, found.kind
    far = farthest_look(trace, lambda share: tell((2 + share) / 3))
    return far, "look" if far is not None and far.stands_out else "even"


def _next(view: View) -> None:
    st.subheader(plain_markdown(t("home.next", token=view.trace.tokens[view.token].text)), anchor=False)
    best = view.trace.next_tokens(view.token)
    st.html(next_tokens([view.piece(i) for i, _ in best], [p for _, p in best]))
    caption(t("home.next.look"))


def _stream(view: View) -> None:
    st.subheader(t("home.stream"), anchor=False)
    sizes = view.once("stream sizes", lambda: stream_sizes(view.trace))
    figure = stream_size(*sizes, dark=dark(), height=STREAM_HEIGHT)
    chart(figure, "stream", look=t("home.stream.look"))


def _doors(view: View) -> None:
    step, model, sizes = st.columns(3)
    with step.container(border=True):
        if st.button(t("home.door.step"), icon=":material/footprint:", type="tertiary"):
            st.switch_page(STEPS_PAGE, query_params=session().query(at=str(view.trace.walk.order[0])))
        caption(t("home.door.step.text"))
    with model.container(border=True):
        with st.popover(t("home.door.model"), icon=":material/folder_open:", type="tertiary"):
            st.html(f'<div class="gl-card">{escape(t("home.door.model.how"))}</div>')
        caption(t("home.door.model.text"))
    with sizes.container(border=True):
        st.button(
            t("home.door.sizes"),
            icon=":material/tune:",
            type="tertiary",
            on_click=lambda: session().choose(model=RANDOM),
        )
        caption(t("home.door.sizes.text"))


def _samples(view: View) -> None:
    """Prompts of the model in the box, each with a link to where its mechanism can be seen."""
    st.subheader(t("home.samples"), anchor=False)
    caption(t("home.samples.look", parameters=numbers.count(view.model.config.parameter_count())))
    columns = st.columns(3)
    for i, sample in enumerate(samples()):
        with columns[i % 3].container(border=True):
            st.page_link(
                STEPS_PAGE,
                label=plain_markdown(sample.title),
                icon=":material/visibility:",
                query_params=session().query(prompt=sample.prompt, at=sample.at, head=sample.head, token=sample.token),
            )
            caption(sample.look)
