"""A model of the hub that is not on this machine: nothing is asked or fetched before a person says so.

A link may name such a model; it only leads here. One press asks the hub how large it is, a second
one downloads it into the Hugging Face cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from llama_core.checkpoints.hub import download, plan
from llama_core.config import LlamaConfig
from llama_core.errors import CheckpointError, GlassLlamaError
from pages.figures import numbers
from pages.ui.limits import check_model, check_stored
from pages.ui.parts import sentence, table
from pages.ui.session import Session
from pages.words import t


class NotHereError(CheckpointError):
    """The chosen model is the hub's and has to be downloaded first; or that has just failed."""


def fetch(here: Session, model: str, tell: Callable[[float], None]) -> Path:
    """The folder of a hub model, when its download was asked for; NotHereError otherwise.

    A model above this server's limit is refused before its weights are fetched: by its config, or by their size.
    """
    if here.hub != ("fetch", model):
        raise NotHereError(t("hub.not_here", model=model))
    here.hub = ("ask", model)  # whatever happens, it is not begun again by itself
    try:
        return download(model, tell, partial(_check, here["dtype"]))
    except GlassLlamaError as error:
        raise NotHereError(str(error)) from error


def _check(dtype: str, config: LlamaConfig | None, stored: int) -> None:
    if config is None:
        check_stored(stored)
    else:
        check_model(config, dtype)


def offer(here: Session) -> None:
    """The next thing a person can do about the model: ask how large it is, or download it."""
    model = here["model"]
    if here.hub != ("ask", model):
        _ask(here, model)
        return
    try:
        with st.spinner(t("hub.asking")):
            files = plan(model)
    except CheckpointError as error:
        sentence(str(error), "error")
        here.hub = ("", "")  # not asked again by itself
        _ask(here, model)
        return
    table((t("hub.file"), t("hub.size")), [(name, numbers.bytes_(size)) for name, size in files.items()])
    total = numbers.bytes_(sum(files.values()))
    st.button(
        t("hub.download", bytes=total),
        icon=":material/download:",
        type="primary",
        on_click=lambda: here.ask_hub("fetch", model),
    )


def _ask(here: Session, model: str) -> None:
    st.button(t("hub.ask"), icon=":material/travel_explore:", on_click=lambda: here.ask_hub("ask", model))
