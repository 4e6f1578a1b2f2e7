"""Small pieces of page that several pages use. Every text from outside is escaped here, once."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import streamlit as st

from llama_core.steps import AXES, Step
from llama_core.survey import Survey
from pages.figures import numbers, theme
from pages.ui.session import here_only, run_again, session
from pages.words import t

if TYPE_CHECKING:
    import plotly.graph_objects as go


def dark() -> bool:
    """Whether the page is shown in the dark theme."""
    return st.context.theme.type == "dark"


def plain_markdown(text: str) -> str:
    """`text` for a Streamlit label that reads Markdown, so that it is shown letter for letter."""
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~$:&-])", r"\\\1", text)


def caption(text: str) -> None:
    """One line under a picture: what to look for."""
    st.html(f'<p class="gl-caption">{escape(text)}</p>')


def sentence(text: str, tone: str = "note") -> None:
    """A sentence set apart. tone: "error" for what could not be done, "note" for what was done otherwise."""
    role = "alert" if tone == "error" else "status"
    st.html(f'<div class="gl-say gl-say-{tone}" role="{role}">{escape(text)}</div>')


CHARTS_LAST = 0.6
"""Seconds that a new tab has for all that comes before the first chart."""


def plot(figure: go.Figure, key: str, **how: Any) -> None:
    """A figure as all pages draw it, with its alt text and nothing else. how: what else `st.plotly_chart` is to know.

    A new tab reads plotly for a second or more, and draws nothing meanwhile: it has a moment for all else before.
    """
    pause = session().opened + CHARTS_LAST - time.monotonic()
    if pause > 0:
        time.sleep(pause)
    st.plotly_chart(figure, theme=None, config=theme.CONFIG, key=key, alt=theme.meta_of(figure)["alt"], **how)


def chart(
    figure: go.Figure,
    key: str,
    notes: Sequence[str] = (),
    look: str = "",
    on_pick: Callable[[float, float], None] | None = None,
) -> None:
    """A figure with its alt text, and one caption of what to look for and what it has to admit.

    on_pick: called with x and y of a point that is clicked, before the script runs again.
    """

    def picked() -> None:
        points = st.session_state[key]["selection"]["points"]
        if points:  # none: a second click took the choice back
            on_pick(points[0]["x"], points[0]["y"])

    plot(figure, key, on_select="ignore" if on_pick is None else here_only(picked), selection_mode="points")
    if look or notes:
        caption(" ".join([look, *notes]).strip())


def shape(step: Step, dims: Mapping[str, int], here: bool = False) -> str:
    """HTML of one name with its shape, the axes spelt out on hover."""
    sizes = "·".join(str(dims[axis]) for axis in step.axes)
    hover = " · ".join(f"{axis} {AXES[axis]} {dims[axis]}" for axis in step.axes)
    return (
        f'<span class="gl-shape{" gl-here" if here else ""}" title="{escape(hover, quote=True)}">'
        f"{escape(step.key)} <b>[{sizes}]</b></span>"
    )


def shape_strip(sources: Iterable[Step], step: Step, dims: Mapping[str, int]) -> None:
    """What goes in and what comes out, in numbers and in letters: `q [1·5·9·64] → q_rot [1·5·9·64]`."""
    inputs = [shape(source, dims) for source in sources]
    arrow = '<span class="gl-arrow">→</span>' if inputs else ""
    letters = f'<span class="gl-muted">{escape(" · ".join(step.axes))}</span>'
    st.html(f'<div class="gl-shapes">{"".join(inputs)}{arrow}{shape(step, dims, here=True)}{letters}</div>')


def numbers_grid(rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Labelled numbers: (label, value, exact value for the hover, small line under it)."""
    cells = "".join(
        f'<div><dt>{escape(label)}</dt><dd title="{escape(exact, quote=True)}">{escape(value)}</dd>'
        f'<dd class="gl-delta">{escape(small) or "&nbsp;"}</dd></div>'
        for label, value, exact, small in rows
    )
    st.html(f'<dl class="gl-numbers">{cells}</dl>')


def table(header: Sequence[str], rows: Iterable[Sequence[str]], chosen: int | None = None) -> None:
    """A small plain table; numbers are in the page's monospaced face. chosen: the row that is lit."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(
        f"<tr{' class=gl-here' if i == chosen else ''}>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>"
        for i, row in enumerate(rows)
    )
    grid = f'<table class="gl-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    st.html(f'<div class="gl-wide">{grid}</div>')


def as_it_fills(found: Survey, draw: Callable[[Survey], None]) -> None:
    """Draw from a survey: at once when it is complete, else again as layers arrive, under a bar."""
    if found.done:
        draw(found)
        return

    @st.fragment(run_every=0.5)
    def filling() -> None:
        if found.done:
            run_again()
        ready, total = len(found.layers), found.total
        st.progress(ready / total, text=t("survey.filling", ready=ready, total=total))
        draw(found)

    filling()


def window(chosen: int, total: int, size: int) -> range:
    """The page of `size` positions that holds the chosen one: choosing within a page moves nothing.

    The last page is as full as the others, so it begins within the one before.
    """
    first = chosen // size * size if chosen < total // size * size else max(0, total - size)
    return range(first, min(first + size, total))


def apart(ids: Iterable[int], piece: Callable[[int], str], none: str) -> Callable[[int], str]:
    """How token ids read as options, each with its number where others read the same; an id below 0 reads as `none`.

    Streamlit finds what was chosen by its text: of equal ones it would always take the last.
    """
    times = Counter([none, *map(piece, set(ids))])
    return lambda i: none if i < 0 else piece(i) if times[piece(i)] == 1 else f"{piece(i)} · {i}"


def count(n: int) -> tuple[str, str]:
    """A count as it is read and exactly: ("134.5 M", "134,515,008")."""
    return numbers.count(n), numbers.exact(n)
