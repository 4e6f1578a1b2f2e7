"""The parts of the Generate page: the text as it grows, how each token was chosen, all steps in a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.lens import loss
from llama_core.sampling import Cut, cut, draw_points, entropy
from llama_core.steps import GATE, LOGITS, RESID_IN, WEIGHTS, At
from llama_core.tokenizer import visible
from llama_core.trace import Trace
from pages.figures import numbers
from pages.figures.sampling import kept_and_cut
from pages.figures.writing import drawn_line, surprise_bars
from pages.ui.frame import View
from pages.ui.limits import new_words
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, table
from pages.ui.passes import MOST_NEW, Growth
from pages.ui.session import bind, session
from pages.ui.token_strip import written_text
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

MORE = 20
"""Tokens that one press asks for."""
BARS = 12
"""Next tokens that are drawn, as bars and along the line of the draw."""
ALL_ROWS = 64
"""Rows up to which the table of all steps stands whole; a longer one scrolls."""
INSIDE = (  # pages that look into the pass, each at the step it is about
    ("steps", "pages/2_Step_by_step.py", RESID_IN, ":material/footprint:"),
    ("attention", "pages/5_Attention.py", WEIGHTS, ":material/visibility:"),
    ("mlp", "pages/6_MLP.py", GATE, ":material/door_open:"),
)


@dataclass(frozen=True)
class Places:
    """Where the text and the buttons under it go."""

    text: DeltaGenerator
    buttons: DeltaGenerator

    def write(self, growth: Growth) -> None:
        """Show the text as far as it is."""
        self.text.html(_growing(growth))


def places() -> Places:
    """The upper half of the page: a place for the text, and beside it how tokens are chosen."""
    st.html(f'<p class="gl-lead">{escape(t("write.lead"))}</p>')
    left, right = st.columns([5, 2], gap="large")
    with right:
        _sampling()
    with left:
        return Places(st.empty(), st.container())


def _sampling() -> None:
    st.segmented_control(
        t("write.how"),
        (True, False),
        format_func=lambda greedy: t("write.greedy" if greedy else "write.drawn"),
        required=True,
        **bind("greedy"),
    )
    if session()["greedy"]:
        caption(t("write.greedy.look"))
        return
    st.slider(t("next.temperature"), 0.0, 5.0, step=0.05, help=t("next.temperature.help"), **bind("temperature"))
    st.slider(t("next.top_p"), 0.0, 1.0, step=0.01, help=t("next.top_p.help"), **bind("top_p"))
    left, right = st.columns(2)
    left.number_input(t("next.top_k"), 0, 1 << 24, help=t("next.top_k.help"), **bind("top_k"))
    right.number_input(t("write.seed"), 0, 2**31 - 1, help=t("write.seed.help"), **bind("draw"))


# --- the text ---


def _growing(growth: Growth) -> str:
    """The prompt and what has been written, in whole characters, as the page then shows it."""
    before = " ".join if growth.ids_only else "".join
    prompt = before(token.text for token in growth.prompt) + (" " if growth.ids_only else "")
    made = growth.text() if growth.ids_only else visible(growth.text())
    return f'<div class="gl-writing"><p><span>{_flowing(prompt)}</span><b>{_flowing(made)}</b></p></div>'


def _flowing(text: str) -> str:
    """HTML of a text whose signs for blanks are quiet, and whose lines end."""
    return re.sub("([·⏎])", lambda sign: "<wbr><i>·</i>" if sign[0] == "·" else "<i>⏎</i><br>", escape(text))


def text(view: View, where: Places) -> None:
    """The prompt and the model's own tokens, shaded by how unsure it was; why it ended; what comes next."""
    passes = view.passes
    apart = "" if view.model.reads_text else " "
    choices = _choices(view)
    with where.text:
        written_text(
            [(token.text + apart, token.special) for token in passes.tokens],
            view.lit,
            made=passes.prompt.dims["T"],
            shades=[0.0] * passes.prompt.dims["T"] + [1 - each.share for each in choices],
            hovers=_hovers(view, choices),
            on_move=lambda moved: session().choose(token=moved),
        )
    with where.buttons:
        _ended(view)
        _more(view)


def _hovers(view: View, choices: list[Choice]) -> list[str]:
    prompt = view.passes.prompt.tokens
    return [t("write.hover.prompt", position=i, token=token.text) for i, token in enumerate(prompt)] + [
        t(
            "write.hover.made",
            position=i,
            token=token.text,
            share=numbers.percent(each.share),
            rank=numbers.exact(each.rank),
        )
        for i, (token, each) in enumerate(zip(view.passes.made, choices, strict=True), start=len(prompt))
    ]


def _ended(view: View) -> None:
    """Why there are no more tokens, and what the shades mean."""
    passes = view.passes
    if not passes.made:
        caption(t("write.none"))
        return
    said = t(
        f"write.ended.{passes.ended}",
        n=len(passes.made),
        token=passes.tokens[-1].text,
        context=numbers.exact(passes.prompt.config.max_length),
    )
    reached = [new_words()] if len(passes.made) == MOST_NEW else []
    caption(" ".join([said, *reached, t("write.look")]))


def _more(view: View) -> None:
    """Buttons: the first tokens, one more, more, another text, from the prompt again."""
    made, here = len(view.passes.made), session()
    over = made >= MOST_NEW or view.passes.ended not in ("", "length")
    most = min(MORE, MOST_NEW - made)
    names = ("write.first", "write.one") if not made else ("write.more", "write.one")
    asked = [(names[0], made + most, ":material/edit:"), (names[1], made + 1, ":material/keyboard_arrow_right:")]
    with st.container(horizontal=True):
        for name, new, icon in asked:
            st.button(
                t(name, n=most),
                key=name,
                icon=icon,
                type="primary" if name == "write.first" else "secondary",
                disabled=over,
                on_click=lambda new=new: here.choose(new=new, token=None),
            )
        if made and not here["greedy"]:
            st.button(
                t("write.again"),
                key="write.again",
                icon=":material/casino:",
                on_click=lambda: here.choose(draw=here["draw"] + 1, token=None),
            )
        if made:
            st.button(
                t("write.clear"),
                key="write.clear",
                icon=":material/undo:",
                on_click=lambda: here.choose(new=0, token=None),
            )


# --- how a token was chosen ---


@dataclass(frozen=True)
class Choice:
    """One token among all others at its place: the model's own probability and rank, before temperature and cuts.

    entropy: of all those probabilities, in nats.
    """

    share: float
    rank: int
    entropy: float


def _choice(trace: Trace, row: int, token: int) -> Choice:
    plain = cut(trace[At(None, LOGITS)][0, row])
    place = int(np.flatnonzero(plain.ids == token)[0])
    return Choice(float(plain.before[place]), place + 1, entropy(plain.before))


def _choices(view: View) -> list[Choice]:
    """Of each token that the model wrote."""
    passes = view.passes
    return view.once(
        ("written", len(passes.made)),
        lambda: [_choice(trace, -1, token.id) for trace, token in zip(passes, passes.made, strict=False)],
    )


def chosen(view: View) -> None:
    """What else the chosen token could have been, and how it was chosen."""
    tokens, place = view.passes.tokens, view.lit
    made = place >= view.passes.prompt.dims["T"]
    drawn = made and session().sampling()["temperature"] > 0
    heading = "write.chosen" if made else "write.read"
    st.subheader(plain_markdown(t(heading, token=tokens[place].text, position=place)), anchor=False)
    if place == 0:
        caption(t("write.first_token"))
        return
    trace, row = view.passes.at(place - 1)
    caption(t(f"{heading}.by", token=tokens[place - 1].text, position=place - 1))
    found = _cut(view, place, drawn)
    rank = int(np.flatnonzero(found.ids == tokens[place].id)[0])
    left, right = st.columns([2, 5], gap="large")
    with right:
        _bars(view, found, rank, drawn)
        if drawn:
            _draw(view, found, rank, place)
    with left:
        with st.container(key="gl-narrow-choice"):
            numbers_grid(_numbers(view, _choice(trace, row, tokens[place].id), found, rank, drawn))
        caption(_how(view, place, made))
        _inside(view, place)


def _cut(view: View, place: int, drawn: bool) -> Cut:
    """The tokens that it was chosen from. What was not drawn is shown among the model's own probabilities."""
    trace, row = view.passes.at(place - 1)
    how = session().sampling()
    how.pop("seed", None)
    return cut(trace[At(None, LOGITS)][0, row], **(how if drawn else {}))


def _bars(view: View, found: Cut, rank: int, drawn: bool) -> None:
    V = len(found.ids)
    n = min(BARS, V)
    figure = kept_and_cut(
        [view.piece(int(i)) for i in found.ids[:n]],
        found.before[:n],
        found.after,
        by_k=found.by_k if found.by_k < V else None,
        taken=rank,
        dark=dark(),
    )
    notes = (
        [] if rank < n else [t("write.beyond", token=view.piece(int(found.ids[rank])), rank=numbers.exact(rank + 1))]
    )
    cuts = [] if drawn else [t("write.bars.uncut")]
    chart(figure, "write.bars", [*cuts, *notes], t("write.bars.look"))


def _draw(view: View, found: Cut, rank: int, place: int) -> None:
    """The line on which the draw fell."""
    point = _point(view, place)
    names = {i: view.piece(int(found.ids[i])) for i in (*range(min(BARS, found.kept)), rank)}
    alt = t("write.draw.alt", token=names[rank], point=f"{point:.3f}")
    st.html(drawn_line(names, found.after, point, rank, alt))
    caption(t("write.draw.look"))


def _point(view: View, place: int) -> float:
    """Where the draw of the token at this place fell."""
    n = place - view.passes.prompt.dims["T"] + 1
    return float(draw_points(session()["draw"], n)[-1])


def _numbers(view: View, own: Choice, found: Cut, rank: int, drawn: bool) -> list[tuple[str, str, str, str]]:
    V = numbers.exact(len(found.ids))
    rows = [
        (t("write.share"), numbers.percent(own.share), repr(own.share), t("write.share.small")),
        (t("write.rank"), numbers.exact(own.rank), str(own.rank), t("write.rank.small", n=V)),
        (t("next.entropy"), numbers.short(own.entropy), repr(own.entropy), t("write.entropy.small")),
        (
            t("next.choices"),
            numbers.short(np.exp(own.entropy)),
            repr(float(np.exp(own.entropy))),
            t("next.choices.small"),
        ),
    ]
    if drawn:
        after = float(found.after[rank])
        rows.append((t("write.drawn_with"), numbers.percent(after), repr(after), t("write.drawn_with.small")))
        rows.append((t("next.kept"), numbers.exact(found.kept), str(found.kept), t("next.kept.of", n=V)))
    return rows


def _how(view: View, place: int, made: bool) -> str:
    if not made:
        return t("write.how.prompt")
    if session().sampling()["temperature"] == 0:
        return t("write.how.greedy")
    n = place - view.passes.prompt.dims["T"] + 1
    return t("write.how.drawn", n=n, seed=session()["draw"], point=f"{_point(view, place):.3f}")


def _inside(view: View, place: int) -> None:
    """Links into the pass that chose this token: on the pages it is that of the token before.

    While edits act those pages show another pass, so the links rest.
    """
    edited = any(entry.on for entry in session().edits())
    for page, path, step, icon in INSIDE:
        st.page_link(
            path,
            label=t("write.inside", page=t(f"page.{page}.title")),
            icon=icon,
            query_params=session().query(token=place - 1, at=str(At(view.layer, step))),
            disabled=edited,
        )
    if edited:
        caption(t("write.inside.edited"))


# --- all steps ---


def surprise(view: View) -> None:
    """How far each token was from what the model expected, the prompt's and its own."""
    passes = view.passes
    found = view.once("loss of the prompt", lambda: loss(passes.prompt))
    each = np.concatenate([found.each, [-np.log(each.share) for each in _choices(view)]])
    words = [token.text for token in passes.tokens]
    st.subheader(t("write.surprise"), anchor=False)
    mean = float(each.mean()) if each.size else 0.0
    own = passes.prompt.dims["T"] - 1
    figure = surprise_bars(each, mean, found.even, words, own=own, chosen=view.lit - 1, dark=dark())
    with st.container(key="gl-broad-surprise"):
        chart(figure, "write.surprise", on_pick=lambda x, y: session().choose(token=round(x) + 1))
    said = [t("write.surprise.look")]
    if passes.made:
        said.append(t("write.surprise.look.own", first=own))
    if view.lit:
        said.append(t("write.surprise.look.chosen", token=words[view.lit], position=view.lit))
    caption(" ".join([*said, t("write.surprise.look.click")]))


def steps(view: View) -> None:
    """One row for each token that was written."""
    passes = view.passes
    if not passes.made:
        return
    st.subheader(t("write.steps"), anchor=False)
    first = passes.prompt.dims["T"]
    rows = [
        (
            str(first + i),
            token.text,
            numbers.percent(each.share),
            numbers.exact(each.rank),
            numbers.short(each.entropy),
            f"{trace.dims['T']} × {trace.dims['S']}",
            numbers.duration(trace.seconds),
        )
        for i, (trace, token, each) in enumerate(zip(passes, passes.made, _choices(view), strict=True))
    ]
    names = ("position", "token", "share", "rank", "entropy", "pass", "time")
    long = len(rows) > ALL_ROWS
    with st.container(height=420 if long else "content", border=long):
        table([t(f"write.step.{name}") for name in names], rows, chosen=view.lit - first)
    caption(" ".join([*([t("write.steps.scroll", n=len(rows))] if long else []), t("write.steps.look")]))
