"""The tokens, one of them chosen: as the strip on all pages, a line of pieces, and as the text that was written.

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
_text = st.components.v2.component(
    "glass_llama_written_text",
    html='<div class="gl-strip gl-written" role="listbox"></div>',
    css=asset("written_text.css"),
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
    read, made = len(pieces) if read is None else read, len(pieces) if made is None else made
    return _choice(_component, key, chosen, on_move, pieces=pieces, made=made, read=read)


def written_text(
    pieces: Sequence[tuple[str, bool]],
    chosen: int,
    *,
    made: int,
    shades: Sequence[float],
    hovers: Sequence[str],
    on_move: Callable[[int], None] | None = None,
    key: str = "written_text",
) -> int:
    """The same tokens as text that flows, with line breaks. shades: how dark each one's ground is, 0..1; hovers: why.

    made: the position of the first that the model wrote. Every one can be chosen.
    """
    given = {"shades": [round(shade, 3) for shade in shades], "hovers": list(hovers)}
    return _choice(_text, key, chosen, on_move, pieces=pieces, made=made, read=len(pieces), **given)


def _choice(
    component: Callable,
    key: str,
    chosen: int,
    on_move: Callable[[int], None] | None,
    *,
    pieces: Sequence[tuple[str, bool]],
    read: int,
    **given: object,
) -> int:
    """Draw a component and hear it: the position that the person chose, or `chosen`."""
    heard = line(key)
    n, count = heard.n, read
    answer = _within(_read(heard.value, chosen) if heard.fresh else chosen, count)
    result = component(
        key=key,
        data={
            "pieces": [[text, bool(special)] for text, special in pieces],
            "chosen": answer,
            "read": count,
            "texts": group("strip."),
            "ack": heard.ack(),
            **given,
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
