"""The links to all pages, each with its question. They carry every choice, so nothing is lost on the way."""

from __future__ import annotations

import streamlit as st

from pages.ui.session import Session
from pages.words import t

PAGES = (
    ("home", "app.py", ":material/home:"),
    ("tokens", "pages/1_Tokens.py", ":material/text_fields:"),
    ("steps", "pages/2_Step_by_step.py", ":material/footprint:"),
    ("rope", "pages/3_RoPE.py", ":material/rotate_right:"),
    ("sharing", "pages/4_Shared_heads.py", ":material/share:"),
    ("attention", "pages/5_Attention.py", ":material/visibility:"),
    ("mlp", "pages/6_MLP.py", ":material/door_open:"),
    ("stream", "pages/7_Residual_stream.py", ":material/stacks:"),
    ("ranges", "pages/8_Activations.py", ":material/grid_on:"),
    ("next", "pages/9_Next_token.py", ":material/arrow_forward:"),
    ("sizes", "pages/10_Sizes.py", ":material/straighten:"),
    ("edit", "pages/11_Edit.py", ":material/edit:"),
    ("write", "pages/12_Generate.py", ":material/edit_note:"),
    ("cache", "pages/13_KV_cache.py", ":material/database:"),
)


def menu(here: Session) -> None:
    """Draw the menu; `here` gives the choices that the links carry."""
    st.html(f'<div class="gl-name">{t("app.name")}</div>')
    choices = here.query()
    with st.container(gap="xxsmall"):
        for key, path, icon in PAGES:
            title, question = t(f"page.{key}.title"), t(f"page.{key}.question")
            st.page_link(path, label=title, icon=icon, help=question, query_params=choices)
