"""Every word the screens show, in one table: a second language is a second table.

Each page brings a part of it in a file of its own. Keys are grouped by the part that shows them
("stepper.next"); `t` looks one up and fills its {fields}. A key that is missing is a mistake in the
code, so it raises.
"""

from __future__ import annotations

import functools

from pages.words import (
    attention,
    cache,
    debugger,
    edit,
    limits,
    mlp,
    next_token,
    paths,
    ranges,
    rope,
    shared,
    sharing,
    sizes,
    stream,
    tokens,
    write,
)

_PARTS = (
    shared,
    tokens,
    rope,
    sharing,
    attention,
    paths,
    mlp,
    stream,
    ranges,
    next_token,
    sizes,
    debugger,
    edit,
    write,
    cache,
    limits,
)
EN: dict[str, str] = {key: text for part in _PARTS for key, text in part.EN.items()}


def t(key: str, /, **values: object) -> str:
    """The words for `key`, its {fields} filled from `values`."""
    text = EN[key]
    return text.format(**values) if values else text


@functools.cache
def group(prefix: str) -> dict[str, str]:
    """All words whose key begins with `prefix`, unfilled: what a browser component is handed, and nobody writes to."""
    return {key: text for key, text in EN.items() if key.startswith(prefix)}
