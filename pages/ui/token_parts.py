"""The parts of the Tokens page: the rows that go in, the pieces one by one, and what is near the chosen one."""

from __future__ import annotations

import re
from collections import Counter
from html import escape

import numpy as np
import streamlit as st

from llama_core.embedding import embedding_sizes, nearest_tokens
from llama_core.steps import EMBED, At
from llama_core.trace import Token
from pages.figures import heatmap, numbers
from pages.figures.embedding import embedding_rows, near_tokens
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, table, window
from pages.words import t

ROWS = 24
"""Positions in one picture: more could not carry their pieces and ids."""
NEAR = 10


def lead() -> None:
    """What the page is about."""
    st.html(f'<p class="gl-lead">{escape(t("tokens.lead"))}</p>')


def columns():
    """The two columns under the picture."""
    return st.columns([1, 1], gap="large")


def read(view: View) -> tuple[Token, ...]:
    """All tokens that went in: the prompt's, and those of the model's own that it read again."""
    return view.passes.tokens[: view.passes.read]


def picture(view: View) -> None:
    """Piece, id and embedding row of each position: one page of them where there are many."""
    tokens = read(view)
    T = len(tokens)
    shown = window(view.position, T, ROWS)
    rows = np.concatenate([trace[At(None, EMBED)][0] for trace in view.passes])
    figure = embedding_rows(
        rows[shown.start : shown.stop],
        [tokens[i].text for i in shown] if view.model.reads_text else [""] * len(shown),
        [tokens[i].id for i in shown],
        start=shown.start,
        chosen=view.position,
        dark=dark(),
    )
    said = heatmap.notes(figure)
    if len(shown) < T:
        said.append(t("tokens.window", first=shown.start, last=shown.stop - 1, total=numbers.exact(T)))
    chart(figure, "rows", said, t("tokens.rows.look" if view.model.reads_text else "tokens.rows.ids"))


def chosen(view: View) -> None:
    """The chosen token in numbers."""
    token, config = view.trace.tokens[view.token], view.trace.config
    places = [i for i, other in enumerate(read(view)) if other.id == token.id]
    sizes = view.once("embedding sizes", lambda: embedding_sizes(view.llama))
    st.subheader(plain_markdown(t("tokens.chosen", piece=token.text, position=view.position)), anchor=False)
    listed = ", ".join(map(str, places[:3])) + (" …" if len(places) > 3 else "")
    length = float(sizes[token.id])
    V, D = numbers.exact(config.vocab_size), numbers.exact(config.hidden_size)
    numbers_grid(
        [
            (t("tokens.id"), str(token.id), str(token.id), t("tokens.of", n=V)),
            (t("tokens.times"), str(len(places)), ", ".join(map(str, places)), t("tokens.at", places=listed)),
            (
                t("tokens.length"),
                numbers.short(length),
                repr(length),
                t("tokens.length.small", mean=numbers.short(sizes.mean())),
            ),
            (t("tokens.width"), D, D, ""),
            (t("tokens.table"), f"{V}·{D}", f"{V} × {D}", numbers.count(config.vocab_size * config.hidden_size)),
        ]
    )


def every_piece(view: View) -> None:
    """A row per position: piece, id, bytes of what is no whole character, kind, repeats, length of its row."""
    tokens = read(view)
    T = len(tokens)
    shown = window(view.position, T, ROWS)
    sizes = view.once("embedding sizes", lambda: embedding_sizes(view.llama))
    count = Counter(token.id for token in tokens)
    spelt = spellings(view)
    rows = []
    for i in shown:
        token = tokens[i]
        kind, text = spelt[i]
        times = f"{count[token.id]}×" if count[token.id] > 1 else ""
        length = numbers.short(float(sizes[token.id]))
        rows.append((str(i), token.text, str(token.id), t(f"tokens.kind.{kind}"), text, times, length))
    st.subheader(t("tokens.every"), anchor=False)
    header = [t(f"tokens.{name}") for name in ("position", "piece", "id", "kind", "bytes", "repeats", "length")]
    table(header, rows)
    said = [t("tokens.every.look")]
    if len(shown) < T:
        said.append(t("tokens.window", first=shown.start, last=shown.stop - 1, total=numbers.exact(T)))
    caption(" ".join(said))


def spellings(view: View) -> list[tuple[str, str]]:
    """Per position: what kind of piece it is, and its bytes where it is only a part of a character."""
    reader, ids = view.llama.tokenizer, [token.id for token in read(view)]
    if reader is None:
        return [("id", "")] * len(ids)
    return [
        ("special", "")
        if piece.special
        else ("text", "")
        if piece.whole
        else ("part", hex_of(reader.decode([piece.id])))
        for piece in reader.pieces(ids)
    ]


def hex_of(text: str) -> str:
    """Bytes of a decoded piece, in which a byte of no whole character reads ‹E6›: "20 E6 9D"."""
    parts = re.split("‹([0-9A-F]{2})›", text)  # text, byte, text, byte ..., text
    return " ".join(
        each if i % 2 else each.encode("utf-8", "replace").hex(" ").upper() for i, each in enumerate(parts) if each
    )


def nearest(view: View) -> None:
    """Which tokens' rows point the same way as the chosen one's."""
    token, config = view.trace.tokens[view.token], view.trace.config
    near = view.once(("nearest", token.id), lambda: nearest_tokens(view.llama, token.id, NEAR))
    figure = near_tokens([view.piece(i) for i, _ in near], [cosine for _, cosine in near], dark=dark(), rows=NEAR)
    said = []
    if view.model.kind == "random":
        usual = numbers.short(1 / np.sqrt(config.hidden_size))
        others = numbers.exact(config.vocab_size - 1)
        said.append(t("tokens.near.random", width=numbers.exact(config.hidden_size), usual=usual, n=others))
    chart(figure, "near", said, t("tokens.near.look", piece=token.text))
