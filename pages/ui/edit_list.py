"""The list of edits: its rows, what an edit is called, and how another one comes in or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from html import escape

import streamlit as st

from llama_core.edits import Edit
from llama_core.errors import GlassLlamaError
from pages.ui.frame import View
from pages.ui.parts import plain_markdown, sentence
from pages.ui.session import here_only, session
from pages.ui.stops import Entry, fitted, read_entries, resting, write_entries
from pages.words import t

PARTS = ("attn_out", "mlp_out")
"""The steps that are a layer's attention and its MLP."""


def rows(view: View, entries: tuple[Entry, ...]) -> None:
    """The edits one below the other, each with a switch and a way out; one that does not fit says why."""
    misfits = resting((entry.edit for entry in entries if entry.on), view.passes.prompt)
    st.html('<style>[class*="st-key-gl-edit-"] { flex-wrap: nowrap }</style>')
    with st.container(gap="xxsmall"):
        for i, entry in enumerate(entries):
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"gl-edit-{i}"):
                _switch(i, entries)
                quiet = "" if entry.on else ' class="gl-muted"'
                st.html(
                    f"<div{quiet}>{escape(in_words(entry.edit, view))} "
                    f'<span class="gl-mono gl-muted">{escape(str(entry.edit)[:120])}</span></div>'
                )
                st.button(
                    "",
                    icon=":material/close:",
                    type="tertiary",
                    key=f"edit.remove.{i}",
                    help=plain_markdown(t("edit.remove", edit=entry.edit)[:160]),
                    on_click=partial(_put, [*entries[:i], *entries[i + 1 :]]),
                )
            if entry.edit in misfits:
                sentence(t("edit.misfit", why=_why_not(view, entry.edit)), "error")
        if len(entries) > 1:
            st.button(t("edit.clear"), icon=":material/delete_sweep:", type="tertiary", on_click=partial(_put, []))


def _switch(i: int, entries: tuple[Entry, ...]) -> None:
    key, entry = f"edit.on.{i}", entries[i]
    if st.session_state.get(key) != entry.on:
        st.session_state[key] = entry.on

    def switched() -> None:
        turned = replace(entry, on=bool(st.session_state[key]))
        _put([*entries[:i], turned, *entries[i + 1 :]])

    st.toggle(t("edit.act"), key=key, on_change=here_only(switched), label_visibility="collapsed")


def _put(entries: Iterable[Entry]) -> None:
    session().choose(edit=write_entries(entries))


def add(view: View, text: str) -> None:
    """More edits, by their texts; what is there already is switched on. What cannot be is said, and the list stays."""
    try:
        entries, asked = list(session().edits()), read_entries(text)
        if asked and all(new in entries for new in asked):
            raise GlassLlamaError(t("edit.there" if len(asked) == 1 else "edit.there.all", edit=asked[0].edit))
        for new in asked:
            _check(view, new.edit)
            entries = [entry for entry in entries if entry.edit != new.edit] + [new]
        read_entries(write_entries(entries))  # not too many
        _put(entries)
    except GlassLlamaError as error:
        session().refuse(str(error))


def _check(view: View, edit: Edit) -> None:
    """What a run over this prompt would refuse, refused now."""
    from llama_core import run

    fitted(edit, view.passes.prompt, lambda ids: run(view.llama, ids, until=edit.at))


def _why_not(view: View, edit: Edit) -> str:
    """Why an edit rests that is on."""

    def asked() -> str:
        try:
            _check(view, edit)
        except GlassLlamaError as error:
            return str(error)
        return ""

    return view.once(("edit.misfit", str(edit)), asked)


def in_words(edit: Edit, view: View) -> str:
    """An edit as a person says it."""
    layer, step = edit.at.layer, edit.at.step
    where = step.key if layer is None else t("edit.where", layer=layer, step=step.key)
    cells = ", ".join(
        t(f"edit.cells.{part}{'' if len(which) == 1 else '.some'}", which=named(view, part, which))
        for part in ("tokens", "heads", "channels")
        if (which := getattr(edit, part)) is not None
    )
    return t("edit.says" if cells else "edit.says.all", where=where, cells=cells, action=_action(edit, view))


def _action(edit: Edit, view: View) -> str:
    value = None if edit.value is None else f"{edit.value:g}"
    prompt = ""
    if edit.source is not None:
        prompt = "".join(view.piece(i) for i in edit.source) if view.model.reads_text else written(edit.source)
        prompt = prompt if len(prompt) <= 60 else prompt[:59] + "…"
    if edit.origins is not None:
        return t("edit.patch.origins", origins=ranges(edit.origins), prompt=prompt)
    return t(f"edit.{edit.kind}", value=value, seed=edit.seed, prompt=prompt)


def named(view: View, part: str, which: tuple[int, ...]) -> str:
    """The numbers of tokens, heads or channels for a sentence; of a single token its text too."""
    text, T = ranges(which), view.passes.prompt.dims["T"]
    if part == "tokens" and len(which) == 1 and which[0] < T:
        text += f" {view.passes.tokens[which[0]].text}"
    return text


def heads_named(layers: Mapping[int, Iterable[int]]) -> str:
    """Heads of several layers, for a sentence: "layer 2 · heads 0–1, layer 5 · head 3"."""
    found = []
    for layer, heads in layers.items():
        which = tuple(heads)
        word = t(f"edit.cells.heads{'' if len(which) == 1 else '.some'}", which=ranges(which))
        found.append(t("edit.where", layer=layer, step=word))
    return ", ".join(found)


def ranges(which: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "0–2, 5", for a sentence."""
    return written(which).replace("-", "–").replace(",", ", ")


def written(which: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "0-2,5", as the grammar has it."""
    return str(Edit("patch", source=which)).removeprefix("patch ")  # where numbers may come again


# --- ways to another edit ---


def ways(view: View, form: Callable[[View], None]) -> None:
    """What can be added with one press, and the form for everything else, behind a button."""
    with st.container(horizontal=True, gap="small"):
        head_button(view, view.layer, view.head, "edit.quick.head")
        for part in PARTS:
            part_button(view, part, view.layer, f"edit.quick.{part}")
        with st.popover(t("edit.new"), icon=":material/add:"):
            form(view)


def part_button(view: View, part: str, layer: int, key: str) -> None:
    """One press drops a layer's attention or MLP."""
    _button(view, t(f"edit.quick.{part}", layer=layer), f"{layer}.{part} zero", key)


def head_button(view: View, layer: int, head: int, key: str) -> None:
    """One press silences a head."""
    _button(view, t("edit.quick.head", layer=layer, head=head), f"{layer}.head_out zero h{head}", key)


def _button(view: View, label: str, text: str, key: str) -> None:
    st.button(label, key=key, on_click=partial(add, view, text))
