"""RoPE's arrows as the browser's own element, which plays their turn by itself."""

from __future__ import annotations

import streamlit as st

from pages.ui.echo import asset

_component = st.components.v2.component(
    "glass_llama_arrows",
    html='<div class="gl-turn"></div>',
    css=asset("arrows.css"),
    js=asset("mounting.js", "arrows.js"),
)


def turning_arrows(html: str, key: str) -> None:
    """Draw what `pages.figures.arrows.arrows` made."""
    _component(key=key, data={"html": html})
