"""Measures of a run that take long: under a bar that can be stopped, then kept for all pages and sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import TypeVar

import streamlit as st

from llama_core.attribution import Attribution, attribution
from llama_core.positions import KeysValues, apart, keys_values
from pages.ui.bar import EndedError, progress
from pages.ui.frame import View
from pages.ui.parts import sentence
from pages.ui.session import session
from pages.words import t

_numbers = itertools.count()
Made = TypeVar("Made")
Tell = Callable[[float], None]


def once_slowly(view: View, name: Hashable, text: str, make: Callable[[Tell], Made]) -> Made | None:
    """What `View.once` gives. make: is handed what to tell the share that is done; text: what is done meanwhile.

    None where the person has stopped it: in its place stand a sentence and the way to begin again.
    """
    place = st.empty()

    def under_a_bar() -> Made:
        with progress(place, text) as tell:
            return make(tell)

    try:
        return view.once(name, under_a_bar)
    except EndedError as error:
        with place.container(horizontal=True, vertical_alignment="center"):
            sentence(str(error))
            key = f"run.again.{next(_numbers)}"  # several parts of a page may wait for it
            st.button(t("run.again"), icon=":material/play_arrow:", key=key, on_click=session().choose)
        return None


def keys_of(view: View) -> KeysValues | None:
    """Those that `logit_parts_of` has read of a long run; None where the run has what it needs."""
    return view.ready("keys and values")


def logit_parts_of(view: View, token: int, against: int | None = None) -> Attribution | None:
    """The parts of a logit at the chosen token; None where the person has stopped it.

    Of a long run each layer's keys and values are read once, and then any position is a moment away.
    """
    seen: KeysValues | None = None
    if apart(view.trace):
        seen = once_slowly(view, "keys and values", t("run.keys"), lambda tell: keys_values(view.trace, tell))
        if seen is None:
            return None
    return view.once(
        ("attribution", view.token, token, against),
        lambda: attribution(view.trace, view.llama, view.token, token, against, seen),
    )
