"""The links to all pages, each with its question. They carry every choice, so nothing is lost on the way.

They are one component: as fourteen of Streamlit's own links they were the dearest part of the frame.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import PurePath
from urllib.parse import urlencode

import streamlit as st

from pages.ui.echo import asset
from pages.ui.links import linked
from pages.ui.session import Session, session
from pages.words import t

PAGES = (
    ("home", "app.py", "home"),
    ("tokens", "pages/1_Tokens.py", "text_fields"),
    ("steps", "pages/2_Step_by_step.py", "footprint"),
    ("rope", "pages/3_RoPE.py", "rotate_right"),
    ("sharing", "pages/4_Shared_heads.py", "share"),
    ("attention", "pages/5_Attention.py", "visibility"),
    ("mlp", "pages/6_MLP.py", "door_open"),
    ("stream", "pages/7_Residual_stream.py", "stacks"),
    ("ranges", "pages/8_Activations.py", "grid_on"),
    ("next", "pages/9_Next_token.py", "arrow_forward"),
    ("sizes", "pages/10_Sizes.py", "straighten"),
    ("edit", "pages/11_Edit.py", "edit"),
    ("write", "pages/12_Generate.py", "edit_note"),
    ("cache", "pages/13_KV_cache.py", "database"),
)
"""Key in the table of words, script, name of its icon (Material Symbols)."""
SCRIPTS = {key: path for key, path, _ in PAGES}

_component = st.components.v2.component(
    "glass_llama_menu",
    html=f'<div class="gl-name">{escape(t("app.name"))}</div><nav class="gl-menu"></nav>',
    css=asset("menu.css"),
    js=asset("mounting.js", "links.js", "menu.js"),
)


def menu(here: Session) -> None:
    """Draw the menu; `here` gives the choices that the links carry."""
    data = {"label": t("menu.label"), "pages": _entries(), "here": here.page, "query": urlencode(here.query())}
    data["heard"] = here.pressed
    linked(_component, "menu", data, _followed)


@cache
def _entries() -> tuple[tuple[str, ...], ...]:
    """Key, address, icon, title and question of each page."""
    return tuple(
        (key, address(path), icon, t(f"page.{key}.title"), t(f"page.{key}.question")) for key, path, icon in PAGES
    )  # of a list Streamlit would ask pandas whether it is a table


def address(path: str) -> str:
    """What Streamlit calls a page's script in the URL: "pages/3_RoPE.py" is "RoPE", the first page is ""."""
    return "" if path == "app.py" else re.sub(r"^\d+_", "", PurePath(path).stem)


def _followed(name: str) -> None:
    if name in SCRIPTS:
        session().leave_for(SCRIPTS[name])
