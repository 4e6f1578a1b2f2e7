"""The parts of the Next token page: losses, probabilities and their cuts, the lens, the parts of a logit."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import cache
from html import escape

import numpy as np
import streamlit as st

from llama_core import lens as lenses
from llama_core.attribution import Attribution
from llama_core.lens import Reading
from llama_core.sampling import Cut, cut, entropy
from llama_core.steps import LOGITS, WEIGHTS, At
from pages.figures import heatmap, numbers
from pages.figures.attribution import logit_parts
from pages.figures.lens import hover_of, lens_map
from pages.figures.loss import loss_bars
from pages.figures.sampling import kept_and_cut
from pages.figures.theme import meta_of
from pages.ui.frame import View
from pages.ui.parts import apart, caption, chart, dark, numbers_grid, plain_markdown, sentence, window
from pages.ui.session import LENS_COLOURS, bind, run_again, session
from pages.ui.waiting import logit_parts_of
from pages.words import t

BARS = 14
"""Next tokens that are drawn."""
COLUMNS = 12
"""Positions of the lens in one picture: more could not carry a token in each cell."""
WHOLE = 1 << 24
"""Logits of a layer up to which its lens is read at all positions; of longer prompts, at those that are drawn."""
OFFERED = 12
"""Tokens that can be chosen by name; any other by its id in the URL."""


def lead() -> None:
    """What the page is about."""
    st.html(f'<p class="gl-lead">{escape(t("next.lead"))}</p>')


def place():
    """A place for what is drawn later."""
    return st.container()


def _choose_position(x: float, y: float) -> None:
    session().choose(token=round(x))


# --- the loss ---


def surprise(view: View) -> None:
    """The loss at each position, its mean, and ln V; of a generated token's pass only where to find it."""
    if view.trace.past:
        caption(t("next.loss.step", token=view.words[view.token]))
        return
    found = view.once("loss", lambda: lenses.loss(view.trace))
    figure = loss_bars(found.each, found.mean, found.even, view.words, chosen=view.token, dark=dark())
    if not len(found.each):
        chart(figure, "loss")
        return
    with st.container(key="gl-broad-loss"):
        chart(figure, "loss", on_pick=_choose_position)
    came = [t("next.loss.look.came")] if meta_of(figure)["came"] else []
    caption(" ".join([*came, t("next.loss.look")]))
    if found.mean > found.even + 0.1:
        sentence(_worse(view, found))


def _worse(view: View, found: lenses.Loss) -> str:
    config = view.trace.config
    said = t(
        "next.loss.worse",
        mean=numbers.short(found.mean),
        even=numbers.short(found.even),
        spread=numbers.short(view.trace.stat(At(None, LOGITS)).std),
    )
    if view.model.kind == "random" and config.tie_word_embeddings:
        D = config.hidden_size
        said += " " + t("next.loss.tied", width=numbers.exact(D), root=numbers.short(np.sqrt(D)))
    return said


# --- probabilities ---


def probabilities(view: View) -> None:
    """What may come next, and what temperature, top-k and top-p leave of it."""
    st.subheader(plain_markdown(t("next.after", token=view.words[view.token])), anchor=False)
    here, V = session(), view.trace.config.vocab_size
    controls, picture = st.columns([2, 5], gap="large")
    with controls:
        st.slider(t("next.temperature"), 0.0, 5.0, step=0.05, help=t("next.temperature.help"), **bind("temperature"))
        st.number_input(t("next.top_k"), 0, 1 << 24, help=t("next.top_k.help"), **bind("top_k"))
        st.slider(t("next.top_p"), 0.0, 1.0, step=0.01, help=t("next.top_p.help"), **bind("top_p"))
        logits = view.trace[At(None, LOGITS)][0, view.token]
        found = cut(logits, here["temperature"], here["top_k"], here["top_p"])
        with st.container(key="gl-narrow-cut"):
            numbers_grid(_cut_numbers(view, found))
    n = min(BARS, V)
    usual = None
    if here["temperature"] != 1:
        plain = cut(logits)
        shares = np.empty(V)
        shares[plain.ids] = plain.before
        usual = shares[found.ids[:n]]
    with picture:
        figure = kept_and_cut(
            [view.piece(int(i)) for i in found.ids[:n]],
            found.before[:n],
            found.after,
            untouched=usual,
            by_k=found.by_k if found.by_k < V else None,
            dark=dark(),
        )
        more = []
        if found.kept > n:
            rest = numbers.percent(float(found.after[n:].sum()))
            more = [t("next.cut.more", n=numbers.exact(found.kept - n), share=rest)]
        chart(figure, "next", more, t("next.cut.look"))


def _cut_numbers(view: View, found: Cut) -> list[tuple[str, str, str, str]]:
    V, after, before = view.trace.config.vocab_size, entropy(found.after), entropy(found.before)
    gone = float(found.before[found.kept :].sum())
    return [
        (t("next.kept"), numbers.exact(found.kept), str(found.kept), t("next.kept.of", n=numbers.exact(V))),
        (t("next.cut"), numbers.percent(gone), repr(gone), t("next.cut.small")),
        (t("next.entropy"), numbers.short(after), repr(after), t("next.entropy.small", before=numbers.short(before))),
        (t("next.choices"), numbers.short(np.exp(after)), repr(np.exp(after)), t("next.choices.small")),
        _came(view, found),
    ]


def _came(view: View, found: Cut) -> tuple[str, str, str, str]:
    """The token that came next, in the prompt or as the model went on: where it stands."""
    tokens, after = view.passes.tokens, view.position + 1
    if after >= len(tokens):
        return t("next.came"), "–", t("next.came.none"), t("next.came.none")
    rank = int(np.flatnonzero(found.ids == tokens[after].id)[0])
    share = float(found.before[rank])
    small = t("next.came.rank", rank=numbers.exact(rank + 1), share=numbers.percent(share))
    return t("next.came"), tokens[after].text, repr(share), small


# --- the lens ---


@dataclass(eq=False)
class LensSoFar:
    """Readings of the embedding and then the layers, as far as they have been asked for; `total` there will be.

    positions: those that are read.
    """

    total: int
    positions: range
    readings: list[Reading] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def done(self) -> bool:
        return len(self.readings) == self.total

    def go_on(self, view: View, seconds: float) -> None:
        """Read on for about this long, a layer at least; tabs that share the run share the work."""
        end = time.monotonic() + seconds
        with self.lock:
            while not self.done:
                layer = len(self.readings) - 1
                some = None if len(self.positions) == view.trace.dims["T"] else self.positions
                reading = lenses.lens_layer(view.trace, view.llama, None if layer < 0 else layer, positions=some)
                self.readings.append(reading)
                if time.monotonic() > end:
                    return


def lens(view: View) -> None:
    """What each layer would say. It reads on only while somebody looks: leaving the page ends it."""
    st.subheader(t("next.lens"), anchor=False)
    st.segmented_control(
        t("next.lens.colour"),
        LENS_COLOURS,
        format_func=lambda name: t(f"next.lens.{name}"),
        required=True,
        **bind("lens"),
    )
    positions = _positions(view)
    found = view.once(("lens", positions.start), lambda: LensSoFar(view.trace.config.num_hidden_layers + 1, positions))
    found.go_on(view, 0.15)
    filling, drawn = not found.done, False

    @st.fragment(run_every=0.2 if filling else None)
    def reading() -> None:
        nonlocal drawn
        if drawn:  # not in the page's own run: that should end
            found.go_on(view, 0.5)
        drawn = True
        if session().touched or (filling and found.done):  # a cell was clicked, or the last row is there
            run_again()
        bar = st.empty()  # always there: the map below keeps its place
        if filling:
            ready = len(found.readings)
            bar.progress(ready / found.total, text=t("next.lens.filling", ready=ready, total=found.total))
        _lens(view, found)

    reading()


def _shown(view: View) -> range:
    """The positions in the picture."""
    return window(view.token, view.trace.dims["T"], COLUMNS)


def _positions(view: View) -> range:
    """The positions at which the lens is read: all, or of a long prompt those in the picture."""
    T = view.trace.dims["T"]
    return range(T) if T * view.trace.config.vocab_size <= WHOLE else _shown(view)


def _lens(view: View, found: LensSoFar) -> None:
    readings, T, V = list(found.readings), view.trace.dims["T"], view.trace.config.vocab_size
    shown, start = _shown(view), found.positions.start
    first = shown.start
    piece, colour, words = cache(view.piece), session()["lens"], view.words
    rows = slice(first - start, shown.stop - start)
    names = [_row_name(each.layer, found.total - 2) for each in readings]

    def hovers() -> list[list[str]]:
        answers = view.trace[At(None, LOGITS)][0, first : shown.stop].argmax(axis=1).tolist()
        return [
            [_lens_hover(view, words, each, i, start, answer, piece) for i, answer in zip(shown, answers, strict=True)]
            for each in readings
        ]

    figure = lens_map(
        [[piece(best) for best in each.ids[rows, 0].tolist()] for each in readings],
        np.array([_strength(each, rows, colour, V) for each in readings]),
        view.once(("lens.hovers", first, shown.stop), hovers) if found.done else hovers(),
        rows=names,
        tokens=words[first : shown.stop],
        ends={
            "share": ("0", "1"),
            "entropy": ("0", f"ln V {numbers.short(np.log(V))}"),
            "rank": (t("next.lens.rank.end", n=numbers.exact(V)), t("next.lens.rank.end", n=1)),
        }[colour],
        most=float(np.log(V)) if colour == "entropy" else 1.0,
        name=t(f"next.lens.{colour}.name"),
        start=view.trace.past + first,
        chosen=view.position,
        total=found.total,
        dark=dark(),
    )
    said = []
    if found.done:
        said.append(_settled(view, readings, view.token - start, piece))
    if len(shown) < T:
        said.append(t("next.lens.window", first=first, last=shown.stop - 1, total=numbers.exact(T)))
    with st.container(key="gl-broad-lens"):
        chart(figure, "lens", on_pick=_choose_position)
    caption(" ".join([t("next.lens.look"), *said]))


def _row_name(layer: int | None, last: int) -> str:
    if layer is None:
        return t("next.lens.embed")
    return t("next.lens.last", layer=layer) if layer == last else str(layer)


def _strength(each: Reading, rows: slice, colour: str, V: int) -> np.ndarray:
    """What the colour of a cell says: the best token's probability, the entropy, or 1 for rank 1 down to 0 for V."""
    if colour == "share":
        return each.shares[rows, 0]
    if colour == "entropy":
        return each.entropy[rows]
    return 1 - np.log(each.answer_rank[rows]) / np.log(max(V, 2))


def _lens_hover(view: View, words: list[str], each: Reading, i: int, start: int, answer: int, piece) -> str:
    """Of position i; the reading begins with position `start`."""
    row = i - start
    where = t("next.lens.head.embed") if each.layer is None else t("next.lens.head.layer", layer=each.layer)
    more = [
        t("next.lens.hover.entropy", value=numbers.short(each.entropy[row])),
        t(
            "next.lens.hover.rank",
            token=piece(answer),
            rank=numbers.exact(each.answer_rank[row]),
            share=numbers.percent(each.answer_share[row]),
        ),
    ]
    if i + 1 < len(words):
        came = numbers.percent(each.came_share[row])
        more.append(t("next.lens.hover.came", token=words[i + 1], rank=numbers.exact(each.came_rank[row]), share=came))
    head = t("next.lens.head", layer=where, position=view.trace.past + i, token=words[i])
    best = [piece(int(token)) for token in each.ids[row]]
    return hover_of(head, best, [numbers.percent(share) for share in each.shares[row]], more)


def _settled(view: View, readings: list[Reading], place: int, piece) -> str:
    """When the answer at the chosen position, at a place of the readings, first leads and is not overtaken any more."""
    leads = [each.answer_rank[place] == 1 for each in readings]
    settled = len(leads) - 1
    while settled and leads[settled - 1]:
        settled -= 1

    def row(i: int) -> str:
        return t("next.lens.row.embed") if i == 0 else t("next.lens.row", layer=i - 1)

    first, token = leads.index(True), piece(int(readings[-1].ids[place, 0]))
    word = "next.lens.settled" if first == settled else "next.lens.overtaken"
    return t(word, position=view.position, token=token, first=row(first), settled=row(settled))


# --- the parts of a logit ---


def parts_of_the_logit(view: View) -> None:
    """Which part of the model wrote for the chosen token, and which against it."""
    st.subheader(t("next.parts"), anchor=False)
    token, against = _whose(view)
    found = logit_parts_of(view, token, against)
    if found is None:
        return
    name, other = view.piece(token), None if against is None else view.piece(against)
    figure = logit_parts(found.embedding, found.attention, found.mlp, name=name, dark=dark())
    where = t("next.where", position=view.position, token=view.words[view.token])
    look = t("next.parts.look" if other is None else "next.parts.look.against", token=name, other=other, where=where)
    chart(figure, "parts", look=look)
    sums, heads = st.columns([2, 5], gap="large")
    with sums, st.container(key="gl-narrow-sums"):
        numbers_grid(_sums(found))
    with heads:
        _heads(view, found)


def _whose(view: View) -> tuple[int, int | None]:
    """The token whose logit is taken apart, and the one it is compared with."""
    V = view.trace.config.vocab_size
    asked = {name: session()[name] for name in ("answer", "against")}
    for name, token in asked.items():
        if token >= V:
            used = t(f"next.parts.unknown.{name}")
            sentence(t("next.parts.unknown", last=numbers.exact(V - 1), asked=token, used=used))
            asked[name] = -1
            session().forget(name)
    best = [i for i, _ in view.trace.next_tokens(view.token, OFFERED)]
    came = [view.trace.ids[view.token + 1]] if view.token + 1 < view.trace.dims["T"] else []
    offered = list(dict.fromkeys([*best, *came, *(token for token in asked.values() if token >= 0)]))

    left, right, _ = st.columns([2, 2, 3])
    with left:
        first = apart(offered, view.piece, t("next.parts.best", token=view.piece(best[0])))
        st.selectbox(t("next.parts.answer"), [-1, *offered], format_func=first, **bind("answer"))
    with right:
        other = apart(offered, view.piece, t("next.parts.nobody"))
        st.selectbox(t("next.parts.against"), [-1, *offered], format_func=other, **bind("against"))
    token = best[0] if asked["answer"] < 0 else asked["answer"]
    return token, None if asked["against"] in (-1, token) else asked["against"]


def _sums(found: Attribution) -> list[tuple[str, str, str, str]]:
    attention, mlp = float(found.attention.sum()), float(found.mlp.sum())
    name = "logit" if found.against is None else "lead"
    return [
        _number(t(f"next.parts.{name}"), found.logit),
        _number(t("next.parts.total"), found.total),
        _number(t("next.parts.difference"), found.difference, t("next.parts.difference.small")),
        _number(t("next.parts.embedding"), found.embedding),
        _number(t("next.parts.attention"), attention),
        _number(t("next.parts.mlp"), mlp),
        _number(t("next.parts.heads.total"), float(found.heads.sum())),
        _number(t("next.parts.scale"), found.scale),
    ]


def _number(label: str, value: float, small: str = "") -> tuple[str, str, str, str]:
    return label, numbers.short(value, 3 if small else 4), repr(value), small


def _heads(view: View, found: Attribution) -> None:
    figure = heatmap.value_map(
        found.heads,
        rows=None,
        row_axis=t("next.parts.heads.layer"),
        col_axis=t("next.parts.heads.head"),
        name=t("next.parts.heads"),
        chosen=None,
        dark=dark(),
        height=max(15 * len(found.heads), 160) + 110,
    )
    said = heatmap.notes(figure)
    if found.bias.any():
        said.append(t("next.parts.heads.bias", bias=numbers.short(found.bias.sum())))

    def choose(x: float, y: float) -> None:
        session().choose(at=str(At(round(y), WEIGHTS)), head=round(x))

    chart(heatmap.pick_layer(figure), "parts.heads", said, t("next.parts.heads.look"), on_pick=choose)
