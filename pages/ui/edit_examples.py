"""Three edits to begin with, chosen by measuring this run: heads that look back, the strongest part, a word."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import streamlit as st

from llama_core.attribution import attribution
from llama_core.look import farthest_look, looks_of
from llama_core.trace import Trace
from pages.figures import numbers
from pages.ui.edit_list import add, heads_named, ranges, written
from pages.ui.frame import View
from pages.ui.parts import caption, plain_markdown
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
    found = view.once(("edit.examples", view.token), lambda: _examples(view))
    st.subheader(t({1: "edit.try.one", 2: "edit.try.two"}.get(len(found), "edit.try")), anchor=False)
    for i, (column, example) in enumerate(zip(st.columns(len(found)), found, strict=True)):
        with column.container(border=True, height="stretch"):
            st.markdown(f"**{plain_markdown(example.title)}**")
            caption(example.why)
            st.button(
                t("edit.try.press"),
                icon=":material/play_arrow:",
                key=f"edit.try.{i}",
                help=plain_markdown(t("edit.quick.help", edit=example.text)),
                on_click=partial(add, view, example.text),
            )


def _examples(view: View) -> list[Example]:
    trace, query = view.trace, view.token
    (best, _), *_ = trace.next_tokens(query, 1)
    answer = view.piece(best)
    places = [i for i in range(1, query) if trace.ids[i] == best]
    looking = _looking(trace, query, places) if places else []
    found = []
    if looking:
        found.append(_heads_example(view, answer, looking))
    elif (look := farthest_look(trace)) is not None:
        why = t(
            "edit.try.look.why",
            layer=look.at.layer,
            head=look.head,
            query=view.words[look.query],
            key=view.words[look.key],
            weight=numbers.short(look.weight),
        )
        found.append(Example(t("edit.try.look"), why, f"{look.at.layer}.head_out zero h{look.head}"))
    found.append(_part_example(view, best, answer))
    erased = [i for i in range(query) if _word(trace, i) == answer.strip(BLANK)] or [min(1, query)]
    which = written(tuple(erased))
    where = t("edit.try.erase.place" if len(erased) == 1 else "edit.try.erase.places", places=ranges(tuple(erased)))
    title = t("edit.try.erase", word=view.words[erased[0]])
    found.append(Example(title, t("edit.try.erase.why", places=where), f"embed zero t{which}"))
    return found


def _word(trace: Trace, i: int) -> str:
    """A token without the space that it begins with: the first word of a text has none."""
    return trace.tokens[i].text.strip(BLANK)


def _looking(trace: Trace, query: int, places: list[int]) -> list[tuple[int, int, float]]:
    """(layer, head, weight) of the heads that put at least CLEAR of their weight on these places together."""
    found = []
    for layer in range(trace.config.num_hidden_layers):
        weights = looks_of(trace, layer, query)[:, places].sum(axis=1)
        found += [(layer, int(head), float(weights[head])) for head in np.flatnonzero(weights >= CLEAR)]
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


def _part_example(view: View, best: int, answer: str) -> Example:
    parts = attribution(view.trace, view.llama, view.token, best)
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
