"""A drawing of ours as the browser's own element: one that did not change is neither read nor made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import streamlit as st

from pages.figures.decoder_map import MAP_CSS
from pages.ui.echo import asset
from pages.ui.links import linked

_component = st.components.v2.component(
    "glass_llama_drawing",
    html='<div class="gl-drawing"></div>',
    css=":host { display: block; } .gl-drawing { color: var(--st-text-color); }" + MAP_CSS,
    js=asset("mounting.js", "links.js", "drawing.js"),
)


def drawing(
    html: str, key: str, choices: Mapping[str, str] | None = None, on_press: Callable[[str], None] = lambda step: None
) -> None:
    """Draw SVG or HTML that pages/figures made, in which every text is escaped.

    choices: what its links carry besides their own query. on_press: called with the key of the step whose link was
    pressed. A browser can send anything, so it may be the key of no step.
    """
    linked(_component, key, {"html": html, "query": urlencode(choices or {})}, on_press)
