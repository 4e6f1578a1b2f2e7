"""The links to all pages, each with its question. They carry every choice, so nothing is lost on the way."""

from __future__ import annotations

import streamlit as st

from pages.ui.session import Session
from pages.words import t

PAGES = (
    ("home", "app.py", ":material/home:"),
    ("steps", "pages/2_Step_by_step.py", ":material/footprint:"),
)


def menu(here: Session) -> None:
    """Draw the menu; `here` gives the choices that the links carry."""
    st.html(f'<div class="gl-name">{t("app.name")}</div>')
    for key, path, icon in PAGES:
        st.page_link(
            path, label=t(f"page.{key}.title"), icon=icon, help=t(f"page.{key}.question"), query_params=here.query()
        )
