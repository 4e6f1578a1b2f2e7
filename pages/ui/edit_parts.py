"""The parts of the Edit page: the list of edits, what they change, every part switched off in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import numpy as np
import streamlit as st

from llama_core import effect as effects
from llama_core.attribution import attribution
from llama_core.edits import Edit, axis_of, check
from llama_core.effect import Effect, Sweep
from llama_core.errors import GlassLlamaError
from llama_core.look import farthest_look
from llama_core.steps import ATTN_OUT, HEAD_OUT, MLP_OUT, RESID_IN, RESID_OUT, WEIGHTS, At
from llama_core.tokenizer import parse_ids
from llama_core.trace import Trace
from pages.figures import heatmap, numbers
from pages.figures.effect import Frame, before_after, cone_map, sweep_bars, sweep_map
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, sentence
from pages.ui.session import MEASURES, SWEEPS, bind, bind_stage, run_again, session
from pages.ui.stops import Entry, read_entries, write_entries
from pages.words import t

if TYPE_CHECKING:
    from llama_core.model import Llama

CLEAR = 0.3
"""The weight from which a head is said to look at something."""
BARS = 7
ROWS = 10
OFFERED = 12
"""Tokens that a sweep offers by name; any other by its id in the URL."""
PATIENCE = 0.4  # s that the page waits for a sweep before it shows a bar
BLANK = "·"
PARTS = {"attn_out": ATTN_OUT, "mlp_out": MLP_OUT}
KINDS = ("zero", "scale", "noise", "set", "mean", "patch")


def lead(view: View) -> None:
    """What the page is about, and what rests meanwhile."""
    st.html(f'<p class="gl-lead">{escape(t("edit.lead"))}</p>')
    if view.passes.later:
        sentence(t("edit.written"))


# --- the list ---


def edits(view: View) -> None:
    """The list, or three edits to begin with; and the ways to another one."""
    entries = session().edits()
    if entries:
        _list(view, entries)
    elif not view.trace.past:
        _invitation(view)
    _quick(view)
    if session().refused:
        sentence(session().refused, "error")


def _list(view: View, entries: tuple[Entry, ...]) -> None:
    if any(entry.on for entry in entries) and view.passes.before is None:
        sentence(t("edit.rest"), "error")
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
        if len(entries) > 1:
            st.button(t("edit.clear"), icon=":material/delete_sweep:", type="tertiary", on_click=partial(_put, []))


def _switch(i: int, entries: tuple[Entry, ...]) -> None:
    key, entry = f"edit.on.{i}", entries[i]
    if st.session_state.get(key) != entry.on:
        st.session_state[key] = entry.on

    def switched() -> None:
        turned = replace(entry, on=bool(st.session_state[key]))
        _put([*entries[:i], turned, *entries[i + 1 :]])

    st.toggle(t("edit.act"), key=key, on_change=switched, label_visibility="collapsed")


def _put(entries: Iterable[Entry]) -> None:
    session().choose(edit=write_entries(entries))


def _add(view: View, text: str) -> None:
    """More edits, by their texts, if they can be in this run; what is there already is switched on."""
    try:
        entries = list(session().edits())
        for new in read_entries(text):
            _check(view, new.edit)
            entries = [entry for entry in entries if entry.edit != new.edit] + [new]
        read_entries(write_entries(entries))  # not too many
        _put(entries)
    except GlassLlamaError as error:
        session().refuse(str(error))


def _check(view: View, edit: Edit) -> None:
    """What a run over this prompt would refuse, refused now."""
    prompt = view.passes.prompt
    prompt.walk.index(edit.at)
    if edit.kind == "patch":
        from llama_core import run

        theirs, ours = len(edit.source), prompt.dims["T"]
        if theirs != ours and edit.origins is None:
            raise GlassLlamaError(t("edit.new.map", edit=edit, theirs=theirs, ours=ours))
        edit = edit.bind(run(view.llama, list(edit.source), until=edit.at))
    check(edit, prompt.dims)


def in_words(edit: Edit, view: View) -> str:
    """An edit as a person says it."""
    layer, step = edit.at.layer, edit.at.step
    where = step.key if layer is None else t("edit.where", layer=layer, step=step.key)
    cells = ", ".join(
        t(f"edit.cells.{part}{'' if len(which) == 1 else '.some'}", which=_which(view, part, which))
        for part in ("tokens", "heads", "channels")
        if (which := getattr(edit, part)) is not None
    )
    action = _action(edit, view)
    return (
        t("edit.says", where=where, cells=cells, action=action)
        if cells
        else t("edit.says.all", where=where, action=action)
    )


def _action(edit: Edit, view: View) -> str:
    value = None if edit.value is None else f"{edit.value:g}"
    prompt = ""
    if edit.source is not None:
        prompt = "".join(view.piece(i) for i in edit.source) if view.model.reads_text else _numbers(edit.source)
        prompt = prompt if len(prompt) <= 60 else prompt[:59] + "…"
    if edit.origins is not None:
        return t("edit.patch.origins", origins=_ranges(edit.origins), prompt=prompt)
    return t(f"edit.{edit.kind}", value=value, seed=edit.seed, prompt=prompt)


def _which(view: View, part: str, which: tuple[int, ...]) -> str:
    """Numbers as the grammar writes them; of a single token its text too."""
    text, T = _ranges(which), view.passes.prompt.dims["T"]
    if part == "tokens" and len(which) == 1 and which[0] < T:
        text += f" {view.passes.tokens[which[0]].text}"
    return text


def _ranges(which: tuple[int, ...]) -> str:
    """The same for a sentence."""
    return _numbers(which).replace("-", "–").replace(",", ", ")


def _numbers(which: tuple[int, ...]) -> str:
    return str(Edit.zero(tokens=which)).removeprefix("zero t")


# --- ways to another edit ---


def _quick(view: View) -> None:
    with st.container(horizontal=True, gap="small"):
        _head_button(view, "edit.quick.head")
        for part in PARTS:
            _button(view, t(f"edit.quick.{part}", layer=view.layer), f"{view.layer}.{part} zero", f"edit.quick.{part}")
        with st.popover(t("edit.new"), icon=":material/add:"):
            _form(view)


def _head_button(view: View, key: str) -> None:
    label = t("edit.quick.head", layer=view.layer, head=view.head)
    _button(view, label, f"{view.layer}.head_out zero h{view.head}", key)


def _button(view: View, label: str, text: str, key: str) -> None:
    st.button(label, key=key, help=plain_markdown(t("edit.quick.help", edit=text)), on_click=partial(_add, view, text))


def _form(view: View) -> None:
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
    st.html(f'<span class="gl-mono">{escape(text)}</span>')
    st.button(
        t("edit.new.add"),
        icon=":material/add:",
        key="edit.new.add",
        type="primary",
        on_click=lambda: _add(view, _text(view)),
    )

    def typed() -> None:
        text = st.session_state["edit.new.typed"]
        if text.strip():
            _add(view, text)
            if not session().refused:
                st.session_state["edit.new.typed"] = ""

    st.text_input(
        t("edit.new.typed"),
        placeholder="2.head_out zero h1; 3.mlp_out scale 0.5 t0-3",
        help=t("edit.new.typed.help"),
        key="edit.new.typed",
        on_change=typed,
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
    this = {"tokens": t("edit.new.this.tokens", which=_which(view, "tokens", (view.position,)))}
    this["heads"] = t("edit.new.this.heads", which=_this(view, "heads"))
    names = {"all": t("edit.new.all"), "this": this.get(part, ""), "some": t("edit.new.some")}
    options = [name for name in names if names[name]]
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        st.segmented_control(
            t(f"edit.new.{part}"),
            options,
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
            words.append(_numbers_in_order(_source(view)))
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


def _numbers_in_order(ids: list[int]) -> str:
    return ",".join(map(str, ids))


# --- three edits to begin with, by what this run shows ---


class Example(NamedTuple):
    """An edit that asks something of this run. why: what was measured."""

    title: str
    why: str
    text: str


def _invitation(view: View) -> None:
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
                on_click=partial(_add, view, example.text),
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
    which = _numbers(tuple(erased))
    where = t("edit.try.erase.place" if len(erased) == 1 else "edit.try.erase.places", places=_ranges(tuple(erased)))
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
        weights = trace[At(layer, WEIGHTS)][0, :, query][:, places].sum(axis=1)
        found += [(layer, int(head), float(weights[head])) for head in np.flatnonzero(weights >= CLEAR)]
    return found


def _heads_example(view: View, answer: str, looking: list[tuple[int, int, float]]) -> Example:
    layers: dict[int, list[int]] = {}
    for layer, head, _ in looking:
        layers.setdefault(layer, []).append(head)
    names = ", ".join(
        t(
            "edit.where",
            layer=layer,
            step=t(f"edit.cells.heads{'' if len(heads) == 1 else '.some'}", which=_ranges(tuple(heads))),
        )
        for layer, heads in layers.items()
    )
    word = "edit.try.answer.one" if len(looking) == 1 else "edit.try.answer.why"
    why = t(
        word,
        heads=names[0].upper() + names[1:],
        answer=answer,
        least=numbers.short(CLEAR, 1),
        weight=numbers.short(looking[0][2]),
        query=view.words[view.token],
    )
    text = "; ".join(f"{layer}.head_out zero h{_numbers(tuple(heads))}" for layer, heads in layers.items())
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


# --- the effect ---


def _compared(view: View) -> Effect | None:
    return None if view.passes.before is None else effects.effect(view.passes.before, view.passes.prompt)


def effect(view: View) -> None:
    """Before and after, side by side: where the stream moved, what comes next."""
    found = _compared(view)
    if found is None:
        return
    st.subheader(plain_markdown(t("edit.effect", token=view.words[view.token])), anchor=False)
    stream = view.once("edit.stream", found.stream)
    st.html(f'<p class="gl-lead">{escape(_verdict(view, found))}</p>')
    if found.first is None:
        return
    numbers_grid(_numbers_of(view, found))
    map_, bars = st.columns([7, 5], gap="large")
    with map_:
        _cone(view, stream)
    with bars:
        _bars(view, found)


def _verdict(view: View, found: Effect) -> str:
    if found.first is None:
        return t("edit.effect.none")
    p, q = found.probabilities(view.token)
    best, now = int(p.argmax()), int(q.argmax())
    words = {"token": view.words[view.token], "best": view.piece(best), "now": view.piece(now)}
    shares = {"before": numbers.percent(p[best]), "after": numbers.percent(q[best])}
    return t("edit.effect.same" if best == now else "edit.effect.other", **words, **shares)


def _numbers_of(view: View, found: Effect) -> list[tuple[str, str, str, str]]:
    p, q = found.probabilities(view.token)
    best = int(p.argmax())
    kl, rank = found.kl(view.token), int((q > q[best]).sum()) + 1
    logits = [float(trace["logits"][0, view.token, best]) for trace in (found.before, found.after)]
    moved, walk = logits[1] - logits[0], found.before.walk
    first = t("edit.effect.first.small", n=walk.index(found.first) + 1, total=len(walk))
    token = view.piece(best)
    return [
        (t("edit.effect.was", token=token), numbers.percent(p[best]), repr(float(p[best])), ""),
        (
            t("edit.effect.is", token=token),
            numbers.percent(q[best]),
            repr(float(q[best])),
            t("edit.effect.rank", rank=numbers.exact(rank)),
        ),
        (
            t("edit.effect.logit"),
            numbers.signed(moved),
            repr(moved),
            t("edit.effect.logit.small", before=numbers.short(logits[0]), after=numbers.short(logits[1])),
        ),
        (t("edit.effect.kl"), numbers.short(kl), repr(kl), t("edit.effect.kl.small")),
        (t("edit.effect.first"), str(found.first), str(found.first), first),
    ]


def _cone(view: View, stream: np.ndarray) -> None:
    st.markdown(f"**{t('edit.cone')}**")
    figure = cone_map(stream, tokens=view.words, frames=_frames(view), chosen=view.token, dark=dark())
    pick = figure.layout.meta["pickable"]

    def choose(x: float, y: float) -> None:
        step = view.at.step if view.at.layer is not None else RESID_OUT
        session().choose(at=str(At(round(y), step)), token=round(x))

    look = [t("edit.cone.look"), *([t("edit.cone.pick")] if pick else [])]
    look.append(t("edit.cone.touched", share=numbers.percent(np.count_nonzero(stream) / stream.size)))
    chart(figure, "edit.cone", heatmap.notes(figure), " ".join(look), on_pick=choose if pick else None)


def _frames(view: View) -> list[Frame]:
    """The edits of this run as places on the map: of the embedding and of the model's end there are none."""
    T, found = view.trace.dims["T"], []
    for edit in view.trace.edits:
        if edit.at.layer is not None:
            which = edit.tokens or (0, T - 1)
            found.append((edit.at.layer, min(which), max(which)))
    return found


def _bars(view: View, found: Effect) -> None:
    st.markdown(f"**{t('edit.bars')}**")
    rows = found.next_tokens(view.token, BARS)
    rows = sorted(rows, key=lambda row: -max(row[1:]))[: BARS + 2]
    ids, before, after = zip(*rows, strict=True)
    chart(
        before_after([view.piece(i) for i in ids], before, after, dark=dark()),
        "edit.bars",
        look=t("edit.bars.look"),
    )


def steps(view: View) -> None:
    """The steps that changed most, each with a link to its tensor. Last on the page: every cell is compared."""
    found = _compared(view)
    if found is None or found.first is None:
        return
    st.subheader(t("edit.steps"), anchor=False)
    busy = st.empty()
    changes = view.once("edit.changes", lambda: _changes(found, busy))
    busy.empty()
    header = "".join(
        f"<th>{escape(t(f'edit.steps.{name}'))}</th>" for name in ("at", "ratio", "largest", "rms", "what")
    )
    body = "".join(_row(at, largest, rms) for at, largest, rms in changes[:ROWS])
    table = f'<table class="gl-table"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>'
    st.html(f'<div class="gl-wide">{table}</div>')
    caption(t("edit.steps.look"))


def _row(at: At, largest: float, rms: float) -> str:
    link = "Step_by_step?" + urlencode(session().query(at=str(at)))
    name = f'<a href="{escape(link, quote=True)}" target="_self">{escape(str(at))}</a>'
    cells = (numbers.short(largest / rms) if rms else "∞", numbers.short(largest), numbers.short(rms))
    what = f'<span class="gl-muted">{escape(at.step.title)}</span>'
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (name, *cells, what)) + "</tr>"


def _changes(found: Effect, busy) -> list[tuple[At, float, float]]:
    """(address, largest difference, rms before) of what differs, the largest by its own size first.

    Without the steps that only repeat another one's cells.
    """
    changed, total = [], len(found.before.walk)
    for n, (at, largest) in enumerate(found.changes()):
        if n % 25 == 0:  # a Streamlit call, so another choice ends the work here
            busy.progress(n / total, text=t("edit.steps.filling", n=numbers.exact(total)))
        if largest > 0 and not at.step.derived and at.step is not RESID_IN:
            changed.append((at, largest, found.before.stat(at).rms))
    return sorted(changed, key=lambda each: -(each[1] / each[2] if each[2] else np.inf))


# --- sweeps ---


class _StoppedError(Exception):
    """Raised in a sweep's thread, by its progress, when the person has had enough."""


@dataclass(eq=False)
class Sweeping:
    """One sweep, in a thread of its own, shared by all who ask for the same: not begun, running, stopped, or found."""

    found: Sweep | None = None
    share: float = 0.0
    stopped: bool = False
    trouble: str = ""
    running: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self, llama: Llama, trace: Trace, parts: str, token: int, position: int) -> None:
        """Start, unless it runs already; a short one is complete when this returns."""
        with self.lock:
            if self.running or self.found is not None:
                return
            self.running, self.stopped, self.share, self.trouble = True, False, 0.0, ""
        work = threading.Thread(
            target=self._work, args=(llama, trace, parts, token, position), name="sweep", daemon=True
        )
        work.start()
        work.join(PATIENCE)

    def stop(self) -> None:
        """End it at the next part."""
        self.stopped = True

    def _work(self, *asked: object) -> None:
        try:
            self.found = effects.sweep(*asked, progress=self._tell)
        except _StoppedError:
            pass
        except GlassLlamaError as error:
            self.trouble = str(error)
        finally:
            self.running = False

    def _tell(self, share: float) -> None:
        if self.stopped:
            raise _StoppedError
        self.share = share


def sweeps(view: View) -> None:
    """One part after another switched off, and what that does to a token."""
    st.subheader(t("edit.sweep"), anchor=False)
    caption(" ".join([t("edit.sweep.lead"), *([t("edit.sweep.on_top")] if view.passes.before is not None else [])]))
    token = _answer(view)
    parts, name = session()["sweep"], ("edit.sweep", session()["sweep"], token, view.token)
    here = view.once(name, Sweeping)
    if here.running:
        _watch(view, here)
    elif here.found is None:
        _start(view, here, parts, token)
    else:
        _swept(view, here.found, parts, token)


def _answer(view: View) -> int:
    """What is switched off, which token is read, and how; the token."""
    V, asked = view.trace.config.vocab_size, session()["answer"]
    if asked >= V:
        sentence(t("edit.sweep.unknown", last=numbers.exact(V - 1), asked=asked))
        session().forget("answer")
        asked = -1
    before = view.trace if view.passes.before is None else view.passes.before
    best = [i for i, _ in before.next_tokens(view.token, OFFERED)]
    now = [i for i, _ in view.trace.next_tokens(view.token, 3)]
    offered = list(dict.fromkeys([*best, *now, *([asked] if asked >= 0 else [])]))

    def named(token: int) -> str:
        return t("edit.sweep.best", token=view.piece(best[0])) if token < 0 else view.piece(token)

    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        for choice, options, word in (("sweep", SWEEPS, "parts"), ("measure", MEASURES, "measure")):
            st.segmented_control(
                t(f"edit.sweep.{word}"),
                options,
                format_func=lambda name: t(f"edit.sweep.{name}"),
                required=True,
                **bind(choice),
            )
        st.selectbox(t("edit.sweep.answer"), [-1, *offered], format_func=named, width=260, **bind("answer"))
    return best[0] if asked < 0 else asked


def _count(view: View, parts: str) -> int:
    config = view.trace.config
    return config.num_hidden_layers * (config.num_attention_heads if parts == "heads" else 1)


def _start(view: View, here: Sweeping, parts: str, token: int) -> None:
    if here.trouble:
        sentence(here.trouble, "error")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            t("edit.sweep.go", n=numbers.exact(_count(view, parts))),
            icon=":material/play_arrow:",
            key="edit.sweep.go",
            on_click=partial(here.begin, view.llama, view.trace, parts, token, view.token),
        )
        if here.stopped:
            caption(t("edit.sweep.stopped"))


def _watch(view: View, here: Sweeping) -> None:
    @st.fragment(run_every=0.4)
    def running() -> None:
        if not here.running:
            run_again()
        text = t("edit.sweep.running", n=numbers.exact(_count(view, session()["sweep"])))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(t("edit.sweep.stop"), icon=":material/stop:", key="edit.sweep.stop", on_click=here.stop)
            st.progress(here.share, text=text)

    running()


def _swept(view: View, found: Sweep, parts: str, token: int) -> None:
    measure = session()["measure"]
    values = getattr(found, measure)
    words = {"measure": t(f"edit.sweep.{measure}"), "token": view.piece(token)}
    name, kind = t("edit.sweep.name", **words), "heads" if parts == "heads" else "layers"
    look = t(f"edit.sweep.look.{kind}", query=view.words[view.token], **words)
    if parts == "heads":
        figure = sweep_map(values, name=name, chosen=(view.layer, view.head), dark=dark())
    else:
        part = PARTS[parts]
        figure = sweep_bars(values, name=name, kind=part.kind, chosen=view.layer, dark=dark())

    def choose(x: float, y: float) -> None:
        if parts == "heads":
            session().choose(at=str(At(round(y), HEAD_OUT)), head=round(x))
        else:
            session().choose(at=str(At(round(x), PARTS[parts])))

    chart(figure, f"edit.sweep.{kind}", [_largest(values), *heatmap.notes(figure)], look, on_pick=choose)
    if parts == "heads":
        _head_button(view, "edit.sweep.head")
    else:
        text = f"{view.layer}.{parts} zero"
        _button(view, t(f"edit.quick.{parts}", layer=view.layer), text, "edit.sweep.part")


def _largest(values: np.ndarray) -> str:
    place = np.unravel_index(int(np.nan_to_num(np.abs(values)).argmax()), values.shape)
    value = numbers.signed(values[place])
    if values[place] == 0:
        return t("edit.sweep.nothing")
    if values.ndim == 2:
        return t("edit.sweep.most.heads", layer=place[0], head=place[1], value=value)
    return t("edit.sweep.most.layers", layer=place[0], value=value)
