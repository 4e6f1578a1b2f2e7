"""The token strip: the prompt's pieces in a line, one of them chosen. One component for all pages.

Texts reach the browser as data and are set as text: nothing in a token acts as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from pages.ui.echo import asset, line, listener
from pages.words import group

_component = st.components.v2.component(
    "glass_llama_token_strip",
    html='<div class="gl-strip" role="listbox" aria-orientation="horizontal"></div>',
    css=asset("token_strip.css"),
    js=asset("echo.js", "token_strip.js"),
)


def token_strip(
    pieces: Sequence[tuple[str, bool]],
    chosen: int,
    *,
    made: int | None = None,
    read: int | None = None,
    on_move: Callable[[int], None] | None = None,
    key: str = "token_strip",
) -> int:
    """Draw the tokens with `chosen` lit; return the position the person chose, or `chosen`.

    pieces: each token as a person reads it, and whether it is a special token. made: the position of the first that
    the model wrote itself; read: how many can be chosen, for the last one written was never read. `chosen` and the
    answer are kept within those (0 when there are none). on_move: called with the new
    position before the script runs; then `chosen` already is the new one.
    """
    heard = line(key)
    n, count = heard.n, len(pieces) if read is None else read
    answer = _within(_read(heard.value, chosen) if heard.fresh else chosen, count)
    result = _component(
        key=key,
        data={
            "pieces": [[text, bool(special)] for text, special in pieces],
            "chosen": answer,
            "made": len(pieces) if made is None else made,
            "read": count,
            "texts": group("strip."),
            "ack": heard.ack(),
        },
        on_chosen_change=listener(key, "chosen", on_move and (lambda value: _tell(value, count, on_move))),
    )
    if heard.hear(result.chosen):
        answer, n = _within(_read(heard.value, answer), count), heard.n
    heard.handed_over(n)
    return answer


def _read(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _within(position: int, count: int) -> int:
    return max(0, min(count - 1, position))


def _tell(value: object, count: int, on_move: Callable[[int], None]) -> None:
    if isinstance(value, int) and not isinstance(value, bool):
        on_move(_within(value, count))
