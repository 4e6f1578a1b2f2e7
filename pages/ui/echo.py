"""The line between Python and a browser component that moves first and tells afterwards.

The component sends {"value", "n", "by"}: what the person chose, how many choices it has counted, and
which mounted component counts. Python answers every run with the last (by, n) it has heard. The
browser takes a value from Python only when nothing newer of its own is on the way, so an answer that
lags behind quick presses never pulls the choice back. See `assets/echo.js` for the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

ASSETS = Path(__file__).parents[2] / "assets"


@dataclass
class Line:
    """What was last heard from one component, kept in the session under the component's key."""

    by: str = ""
    n: int = 0
    value: Any = None
    fresh: bool = False  # heard, and not yet handed to the page

    def hear(self, state: object) -> bool:
        """Take a state from the browser; False when it is malformed, was heard before, or is older."""
        by, n = (state.get("by"), state.get("n")) if isinstance(state, dict) else (None, None)
        if not (isinstance(by, str) and isinstance(n, int)) or (by == self.by and n <= self.n):
            return False
        self.by, self.n, self.value, self.fresh = by, n, state.get("value"), True
        return True

    def handed_over(self, n: int) -> None:
        """The page has message n; a newer one, heard meanwhile, stays fresh."""
        if self.n == n:
            self.fresh = False

    def ack(self) -> dict[str, Any]:
        """The answer to the browser: up to where it was heard."""
        return {"by": self.by, "n": self.n}


def line(key: str) -> Line:
    """The line of the component with this key in this session."""
    return st.session_state.setdefault(f"_line.{key}", Line())


def listener(key: str, name: str, then: Callable[[Any], None] | None = None) -> Callable[[], None]:
    """A callback for `on_<name>_change`: it hears the new state before the script runs."""

    def hear() -> None:
        state = st.session_state.get(key) or {}
        heard = line(key)
        if heard.hear(state.get(name)) and then is not None:
            heard.fresh = False
            then(heard.value)

    return hear


@cache
def asset(*names: str) -> str:
    """The text of files in assets/, one after the other."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)
