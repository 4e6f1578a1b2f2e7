"""The form for one more edit: piece by piece, or written in the grammar. Both end in the same text."""

from __future__ import annotations

from html import escape

import streamlit as st

from llama_core.edits import axis_of
from llama_core.errors import GlassLlamaError
from llama_core.tokenizer import parse_ids
from pages.figures import numbers
from pages.ui.edit_list import add, named
from pages.ui.frame import View
from pages.ui.parts import caption, plain_markdown, sentence
from pages.ui.session import bind_stage, here_only, session
from pages.words import t

SHOWN = 90
"""Letters of the written edit that the form shows: the ids of another prompt may be many."""
KINDS = ("zero", "scale", "noise", "set", "mean", "patch")


def form(view: View) -> None:
    """An edit piece by piece; what the pieces say is written out below them, as it could be typed."""
    walk, at = view.trace.walk, view.at
    steps = {place.step.key: place.step for place in walk}
    st.selectbox(
        t("edit.new.step"),
        list(steps),
        format_func=lambda key: f"{key} · {steps[key].title}",
        **bind_stage(view.layer, at.step, steps),
    )
    caption(t("edit.new.at", at=at))
    kind = st.segmented_control(
        t("edit.new.kind"),
        KINDS,
        default="zero",
        format_func=lambda kind: t(f"edit.new.kind.{kind}"),
        key="edit.new.kind",
        required=True,
    )
    caption(t(f"edit.new.kind.{kind}.help"))
    _values(view, kind)
    for part in ("tokens", "heads", "channels"):
        if axis_of(at.step, part) is not None:
            _cells(view, part)
    text = _text(view)
    st.html(f'<span class="gl-mono">{escape(text if len(text) <= SHOWN else text[:SHOWN] + "…")}</span>')
    st.button(
        t("edit.new.add"),
        icon=":material/add:",
        key="edit.new.add",
        type="primary",
        on_click=lambda: add(view, _text(view)),
    )

    def typed() -> None:
        text = st.session_state["edit.new.typed"]
        if text.strip():
            add(view, text)
            if not session().refused:
                st.session_state["edit.new.typed"] = ""

    st.text_input(
        t("edit.new.typed"),
        placeholder="2.head_out zero h1; 3.mlp_out scale 0.5 t0-3",
        help=t("edit.new.typed.help"),
        key="edit.new.typed",
        on_change=here_only(typed),
    )


def _values(view: View, kind: str) -> None:
    if kind in ("scale", "noise", "set"):
        left, right = st.columns(2)
        start = {"scale": 0.5, "noise": 0.1, "set": 1.0}[kind]
        left.number_input(t(f"edit.new.value.{kind}"), value=start, format="%g", key=f"edit.new.value.{kind}")
        if kind == "noise":
            right.number_input(t("edit.new.seed"), 0, 2**31 - 1, key="edit.new.seed")
    if kind == "patch":
        reads = view.model.reads_text
        word = session()["prompt" if reads else "ids"]
        st.text_area(t("edit.new.prompt" if reads else "edit.new.ids"), value=word, key="edit.new.prompt", height=68)
        _map_of_positions(view)


def _map_of_positions(view: View) -> None:
    try:
        theirs, ours = len(_source(view)), view.passes.prompt.dims["T"]
    except GlassLlamaError as error:
        sentence(str(error), "error")
        return
    if theirs == ours:
        caption(t("edit.new.prompt.same", n=numbers.exact(ours)))
        return
    caption(t("edit.new.prompt.other", theirs=numbers.exact(theirs), ours=numbers.exact(ours)))
    least = min(theirs, ours)
    left, right = st.columns(2)
    left.text_input(t("edit.new.onto"), value=f"0-{least - 1}", key="edit.new.onto")
    right.text_input(t("edit.new.from"), value=f"0-{least - 1}", key="edit.new.from")


def _source(view: View) -> list[int]:
    """Token ids of the other prompt."""
    text = st.session_state.get("edit.new.prompt", "")
    if not view.model.reads_text:
        return parse_ids(text, view.trace.config.vocab_size)
    return view.llama.tokenizer.encode(text, special=session()["control"])


def _cells(view: View, part: str) -> None:
    """All cells along an axis, only those of the chosen token or head, or some by their numbers."""
    if part == "tokens" and _mapped(view):
        return
    names = {"all": t("edit.new.all"), "some": t("edit.new.some")}
    if part != "channels":
        this = named(view, part, (_this(view, part),))
        names = {"all": names["all"], "this": t(f"edit.new.this.{part}", which=this), "some": names["some"]}
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        st.segmented_control(
            t(f"edit.new.{part}"),
            list(names),
            default="this" if part == "heads" else "all",
            format_func=lambda name: plain_markdown(names[name]),
            key=f"edit.new.{part}",
            required=True,
        )
    if st.session_state[f"edit.new.{part}"] == "some":
        label = t("edit.new.some.which", part=t(f"edit.new.{part}"))
        right.text_input(label, value="0", key=f"edit.new.{part}.some")


def _this(view: View, part: str) -> int:
    if part == "tokens":
        return min(view.position, view.passes.prompt.dims["T"] - 1)
    return view.head if "Hq" in view.at.step.axes else view.head // view.trace.config.group


def _mapped(view: View) -> bool:
    """Whether the patch that is asked for needs a map of positions."""
    if st.session_state.get("edit.new.kind") != "patch":
        return False
    try:
        return len(_source(view)) != view.passes.prompt.dims["T"]
    except GlassLlamaError:
        return False


def _text(view: View) -> str:
    """What the form says, in the grammar."""
    said = st.session_state
    kind = said.get("edit.new.kind") or "zero"
    words = [str(view.at), kind]
    if f"edit.new.value.{kind}" in said:
        words.append(repr(float(said[f"edit.new.value.{kind}"])).removesuffix(".0").replace("e+", "e"))
    if kind == "noise":
        words.append(str(said["edit.new.seed"]))
    if kind == "patch":
        try:
            words.append(",".join(map(str, _source(view))))
        except GlassLlamaError:
            return " ".join(words)
        if _mapped(view):
            words += [f"t{_tight(said['edit.new.onto'])}", f"f{_tight(said['edit.new.from'])}"]
    for letter, part in (("t", "tokens"), ("h", "heads"), ("c", "channels")):
        if axis_of(view.at.step, part) is None or (part == "tokens" and _mapped(view)):
            continue
        which = said.get(f"edit.new.{part}", "all")
        if which == "this":
            words.append(f"{letter}{_this(view, part)}")
        elif which == "some":
            words.append(letter + _tight(said.get(f"edit.new.{part}.some", "0")))
    return " ".join(words)


def _tight(text: str) -> str:
    return "".join(text.split())
