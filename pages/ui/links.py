"""Links of a browser component that lead to another page of this session. The other end is `assets/links.js`.

A press is a state, not a trigger: one that crosses the change of page arrives with the old page, for whose component
Streamlit calls nobody. It is then found when that page draws the component again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from pages.ui.session import Session, session


def linked(component: Callable, key: str, data: Mapping[str, Any], on_press: Callable[[str], None]) -> None:
    """Draw a component and hear its links. on_press: called once for each press with what the link leads to.

    A browser can send anything, so that may be any text. Where it has chosen a page, this run ends.
    """

    def hear(state: object) -> None:
        to, at = (state.get("to"), state.get("at")) if isinstance(state, Mapping) else (None, None)
        if isinstance(to, str) and isinstance(at, (int, float)) and at > session().pressed:
            session().pressed = at
            on_press(to)

    result = component(key=key, data=dict(data), on_go_change=lambda: hear((st.session_state.get(key) or {}).get("go")))
    hear(result.go)
    leave(session())


def leave(here: Session) -> None:
    """Go to the page that a link has chosen, if one has: the run ends here, and one of that page begins."""
    path, here.going = here.going, ""
    if path:
        st.switch_page(path, query_params=here.query())
