"""Three edits to begin with, chosen by measuring this run: heads that look back, the strongest part, a word."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
import streamlit as st

from llama_core.attribution import Attribution
from llama_core.look import FarLook, farthest_look, looks_of
from llama_core.positions import rows_at
from llama_core.steps import WEIGHTS
from llama_core.trace import Trace
from pages.figures import numbers
from pages.ui.edit_list import add, heads_named, ranges, written
from pages.ui.frame import View
from pages.ui.parts import caption, plain_markdown
from pages.ui.waiting import Tell, keys_of, logit_parts_of, once_slowly
from pages.words import t

CLEAR = 0.3
"""The weight from which a head is said to look at something."""
BLANK = "·"


class Example(NamedTuple):
    """An edit that asks something of this run. why: what was measured."""

    title: str
    why: str
    text: str


def invitation(view: View) -> None:
    """The examples, each with what was measured and a button that adds its edit."""
    (best, _), *_ = view.trace.next_tokens(view.token, 1)
    parts = logit_parts_of(view, best)
    if parts is None:
        return
    name, searching = ("edit.examples", view.token), t("edit.try.searching")
    found = once_slowly(view, name, searching, lambda tell: _examples(view, parts, tell))
    if found is None:
        return
    st.subheader(t({1: "edit.try.one", 2: "edit.try.two"}.get(len(found), "edit.try")), anchor=False)
    for i, (column, example) in enumerate(zip(st.columns(len(found)), found, strict=True)):
        with column.container(border=True, height="stretch", vertical_alignment="distribute"):
            with st.container():
                st.markdown(f"**{plain_markdown(example.title)}**")
                caption(example.why)
            st.button(
                t("edit.try.press"),
                icon=":material/play_arrow:",
                key=f"edit.try.{i}",
                help=plain_markdown(t("edit.quick.help", edit=example.text)),
                on_click=partial(add, view, example.text),
            )


def _examples(view: View, parts: Attribution, tell: Tell) -> list[Example]:
    """parts: of the logit of the most probable token."""
    trace, query = view.trace, view.token
    answer = view.piece(parts.token)
    places = [i for i in range(1, query) if trace.ids[i] == parts.token]
    looking = _looking(view, places, lambda share: tell(share / 2)) if places else []
    found = []
    if looking:
        found.append(_heads_example(view, answer, looking))
    elif (look := _farthest(view, lambda share: tell((1 + share) / 2))) is not None:
        why = t(
            "edit.try.look.why",
            layer=look.at.layer,
            head=look.head,
            query=view.words[look.query],
            key=view.words[look.key],
            weight=numbers.short(look.weight),
        )
        found.append(Example(t("edit.try.look"), why, f"{look.at.layer}.head_out zero h{look.head}"))
    found.append(_part_example(parts, answer))
    erased = [i for i in range(query) if _word(trace, i) == answer.strip(BLANK)] or [min(1, query)]
    which = written(tuple(erased))
    where = t("edit.try.erase.place" if len(erased) == 1 else "edit.try.erase.places", places=ranges(tuple(erased)))
    title = t("edit.try.erase", word=view.words[erased[0]])
    found.append(Example(title, t("edit.try.erase.why", places=where), f"embed zero t{which}"))
    return found


def _word(trace: Trace, i: int) -> str:
    """A token without the space that it begins with: the first word of a text has none."""
    return trace.tokens[i].text.strip(BLANK)


def _farthest(view: View, tell: Tell) -> FarLook | None:
    """Of all tokens: searched once."""
    return view.once("farthest look", lambda: (farthest_look(view.trace, tell),))[0]


def _weights(view: View) -> Iterator[np.ndarray]:
    """Layer by layer those of the chosen token's row, [Hq S]; of a long run up to rounding, by itself."""
    trace, query, seen = view.trace, view.token, keys_of(view)
    rows = repeat({}) if seen is None else rows_at(trace, view.llama, seen, query)
    for layer, row in zip(range(trace.config.num_hidden_layers), rows, strict=False):
        yield row[WEIGHTS] if WEIGHTS in row else looks_of(trace, layer, query)


def _looking(view: View, places: list[int], tell: Tell) -> list[tuple[int, int, float]]:
    """(layer, head, weight) of the heads that put at least CLEAR of their weight on these places together."""
    found, layers = [], view.trace.config.num_hidden_layers
    for layer, rows in enumerate(_weights(view)):
        weights = rows[:, places].sum(axis=1)
        found += [(layer, int(head), float(weights[head])) for head in np.flatnonzero(weights >= CLEAR)]
        tell((layer + 1) / layers)
    return found


def _heads_example(view: View, answer: str, looking: list[tuple[int, int, float]]) -> Example:
    layers: dict[int, list[int]] = {}
    for layer, head, _ in looking:
        layers.setdefault(layer, []).append(head)
    names = heads_named(layers)
    word = "edit.try.answer.one" if len(looking) == 1 else "edit.try.answer.why"
    why = t(
        word,
        heads=names[0].upper() + names[1:],
        answer=answer,
        least=numbers.short(CLEAR, 1),
        weight=numbers.short(looking[0][2]),
        query=view.words[view.token],
    )
    text = "; ".join(f"{layer}.head_out zero h{written(tuple(heads))}" for layer, heads in layers.items())
    return Example(t("edit.try.answer", answer=answer), why, text)


def _part_example(parts: Attribution, answer: str) -> Example:
    part, values = max((("attn_out", parts.attention), ("mlp_out", parts.mlp)), key=lambda each: each[1].max())
    layer = int(values.argmax())
    why = t(
        "edit.try.part.why",
        part=t(f"edit.try.part.{part}"),
        layer=layer,
        answer=answer,
        added=numbers.signed(values[layer]),
        logit=numbers.short(parts.logit),
    )
    return Example(t("edit.try.part"), why, f"{layer}.{part} zero")
