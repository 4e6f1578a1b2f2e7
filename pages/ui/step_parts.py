"""The parts that show one step of one layer. Each reads the View and draws; the order is the page's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.change import change, difference
from llama_core.ranges import sample
from llama_core.source import Excerpt, excerpts
from llama_core.steps import AXES, LOGITS, At
from llama_core.trace import StepStats, describe
from pages.figures import heatmap, numbers, theme
from pages.figures import histogram as histograms
from pages.figures.next_token import next_tokens
from pages.figures.tensor_map import has_heads, tensor_map
from pages.ui import explain_parts, path_parts, stop_parts
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, plot, shape_strip, table
from pages.ui.session import bind, here_only, session
from pages.words import t

if TYPE_CHECKING:
    import plotly.graph_objects as go

COUNTED = 1 << 20
"""Most values of a step that its histogram counts."""


def heading(view: View) -> None:
    """Address, title, the two sentences, shapes in and out."""
    step = view.at.step
    where = escape(str(view.at).replace(".", " · "))
    st.html(f'<div class="gl-step"><h2><code>{where}</code> — {escape(step.title)}</h2><p>{escape(step.why)}</p></div>')
    shape_strip([at.step for at in view.trace.walk.sources(view.at)], step, view.trace.dims)


def formula(view: View) -> None:
    """The formula, and this run's numbers for its letters."""
    with st.container(key="gl-formula", gap="xxsmall"):
        st.latex(view.at.step.formula)
        st.latex(r"\small " + letters(view))
        if _shows_cell(view):
            st.latex(r"\small " + explain_parts.formula(view))


def letters(view: View) -> str:
    """LaTeX: what each letter of the step's formula and shapes is in this run."""
    step, config, dims = view.at.step, view.trace.config, view.trace.dims
    axes = {axis for at in (view.at, *view.trace.walk.sources(view.at)) for axis in at.step.axes} - {"B"}
    parts = [f"{_LATEX.get(axis, axis)}={dims[axis]}" for axis in AXES if axis in axes]
    if r"\varepsilon" in step.formula:
        parts.append(rf"\varepsilon={_power(config.rms_norm_eps)}")
    if r"\theta" in step.formula:
        parts.append(rf"\theta_r={config.rope_theta:g}^{{-2r/{config.head_dim}}}")
    if re.search(r"\bg\b", step.formula) and "H_q/H_{kv}" in step.formula:
        parts.append(f"g={config.group}")
    return r",\; ".join(parts)


_LATEX = {"Hq": "H_q", "Hkv": "H_{kv}", "Dh": "D_h"}


def _power(x: float) -> str:
    mantissa, exponent = f"{x:e}".split("e")
    mantissa = f"{float(mantissa):g}"
    ten = f"10^{{{int(exponent)}}}"
    return ten if mantissa == "1" else rf"{mantissa}\cdot {ten}"


def picture(view: View) -> None:
    """The tensor as a map with token labels, and how its values are spread."""
    step, trace = view.at.step, view.trace
    if view.at not in trace:
        stop_parts.not_computed(view)
        return
    values = trace.head(view.at, view.head) if step.causal else trace[view.at]
    visible = trace.visible(view.at) if step.causal else None
    wide, narrow = st.columns([5, 2], gap="small")
    with narrow:
        if has_heads(step):
            st.number_input(t("steps.head"), 0, trace.dims["Hq"] - 1, **bind("head"))
        spread, every = view.once(("histogram", view.at, dark()), lambda: _histogram(view))
        notes = histograms.notes(spread) + ([t("look.histogram.some", every=every)] if every > 1 else [])
        chart(spread, "histogram", notes, t("look.histogram.heads" if has_heads(step) else "look.histogram"))
        if _shows_cell(view):
            explain_parts.picked(view)
    with wide:
        _map(view, values, visible)
    if step is LOGITS:
        _next(view)


def _histogram(view: View) -> tuple[go.Figure, int]:
    """How all values of the step are spread, and every how many-th of them was counted."""
    values, every = sample(view.trace, view.at, COUNTED)
    return histograms.histogram(values, kind=view.at.step.kind, dark=dark(), bins=40), every


def _map(view: View, values: np.ndarray, visible: np.ndarray | None) -> None:
    """The tensor as a map whose cells can be picked; a large one lets a part be chosen first.

    values: all axes of the step, or of a T x S one the chosen head's map.
    """
    step, trace = view.at.step, view.trace
    rows, columns = trace.dims["S" if step.axes[1] == "S" else "T"], values.shape[-1]
    part = _part(rows, columns)
    figure = tensor_map(
        step,
        values,
        labels=view.words,
        keys=view.keys,
        dims=trace.dims,
        head=view.head,
        cell=explain_parts.cell_on_map(view) if _shows_cell(view) else (view.position, None),
        visible=visible,
        dark=dark(),
        part=part,
    )
    figure = heatmap.pick_layer(figure)
    plot(figure, "map", on_select=here_only(partial(_picked, view, columns)), selection_mode=("points", "box"))
    how = t("steps.pick.box" if theme.of_layout(figure, "dragmode") == "select" else "steps.pick")
    caption(" ".join([step.look, how, *heatmap.notes(figure)]))
    if part is not None:
        _whole_map(part, 0 if step.axes[1] == "S" else trace.past)


def _part(rows: int, columns: int) -> tuple[range, range] | None:
    """The chosen part of the map; None for all of it, also where the part lies outside."""
    text = session()["window"]
    if text is None:
        return None
    (r0, r1), (c0, c1) = (tuple(map(int, side.split("-"))) for side in text.split(","))
    down, across = range(r0, min(r1 + 1, rows)), range(c0, min(c1 + 1, columns))
    return (down, across) if down and across else None


def _whole_map(part: tuple[range, range], start: int) -> None:
    down, across = part
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            t("steps.part.close"),
            icon=":material/zoom_out_map:",
            type="tertiary",
            on_click=lambda: session().choose(window=None),
        )
        caption(t("steps.part", r0=start + down[0], r1=start + down[-1], c0=across[0], c1=across[-1]))


def _picked(view: View, columns: int) -> None:
    """A point is a cell to explain; a box is the part of the map to show."""
    chosen, start = st.session_state["map"]["selection"], 0 if view.at.step.axes[1] == "S" else view.trace.past
    if chosen["box"]:
        r0, r1 = _touched(chosen["box"][0]["y"], start, view.trace.dims["S"] - 1)
        c0, c1 = _touched(chosen["box"][0]["x"], 0, columns - 1)
        if r0 <= r1 and c0 <= c1:
            session().choose(window=f"{r0 - start}-{r1 - start},{c0}-{c1}")
    elif chosen["points"] and not view.gone:
        explain_parts.pick(view, int(chosen["points"][0]["y"]), int(chosen["points"][0]["x"]))


def _touched(ends: Sequence[float], first: int, last: int) -> tuple[int, int]:
    """The first and last cell that a side of a box touches."""
    return max(round(min(ends)), first), min(round(max(ends)), last)


def _shows_cell(view: View) -> bool:
    """Whether one cell is looked at: it was picked, or is explained."""
    return view.at in view.trace and (session()["cell"] is not None or session()["show"] == "explain")


def move(view: View, at: At) -> None:
    """Go to another step; a cell and a part of the map stay chosen where the step has the same axes."""
    same = at.step.axes == view.at.step.axes
    session().choose(at=str(at), **({} if same else {"cell": None, "window": None}))


def _next(view: View) -> None:
    best = view.trace.next_tokens(view.token)
    st.html(next_tokens([view.piece(i) for i, _ in best], [p for _, p in best]))
    caption(t("look.next", token=view.trace.tokens[view.token].text))


def statistics(view: View) -> None:
    """The numbers of the step, each with its difference to the first step it reads."""
    if view.at not in view.trace:
        return
    sources = view.trace.walk.sources(view.at)
    if not view.trace.measured(view.at) and not path_parts.measured(view, *sources, view.at):
        return
    now, there = view.trace.stat(view.at), bool(sources) and view.trace.measured(sources[0])
    before = view.trace.stat(sources[0]) if there else None
    rows = [_measure(name, now, before) for name in ("mean", "std", "rms", "min", "max")]
    rows.append((t("stats.zeros"), numbers.percent(now.zeros), repr(now.zeros), ""))
    rows += [
        (t(f"stats.{name}"), numbers.exact(getattr(now, name)), str(getattr(now, name)), "")
        for name in ("nan", "inf", "masked", "count")
    ]
    numbers_grid(rows)
    delta = t("stats.delta" if there else "paths.stats.source", source=describe(sources[0])) if sources else ""
    caption(" ".join([t("stats.over", delta=delta).strip(), path_parts.of_step(view)]).strip())


def _measure(name: str, now: StepStats, before: StepStats | None) -> tuple[str, str, str, str]:
    value = getattr(now, name)
    small = "" if before is None else "Δ " + numbers.signed(value - getattr(before, name))
    return t(f"stats.{name}"), numbers.short(value), repr(value), small


def more(view: View) -> None:
    """What changed, a cell explained, source or parameters: one of them, and it stays chosen from step to step."""
    parts = {
        "changed": changed,
        "explain": explain_parts.explain,
        "source": source,
        "parameters": parameters,
    }
    st.segmented_control(
        t("steps.tab"),
        list(parts),
        format_func=lambda name: t(f"steps.tab.{name}"),
        label_visibility="collapsed",
        required=True,
        **bind("show"),
    )
    shown = session()["show"]
    if view.at not in view.trace and shown in ("changed", "explain"):
        caption(t("stop.no_numbers"))
        return
    parts[shown](view)


def changed(view: View) -> None:
    """Against each step it reads: how alike, how much larger, and where it differs."""
    sources = view.trace.walk.sources(view.at)
    if not sources:
        caption(t("changed.first"))
    for source in sources:
        _changed(view, source)


def _changed(view: View, source: At) -> None:
    trace, at = view.trace, view.at
    if not trace.measured(at):  # the button for it stands with the statistics
        caption(t("paths.stats.changed", source=source))
        return
    if not path_parts.measured(view, source):
        return
    found = view.once(("change", source, at), lambda: change(trace, source, at, cells=False))
    rows = [(t("changed.ratio"), numbers.short(found.ratio), repr(found.ratio), "")]
    if found.cosine is None:
        st.html(f'<p class="gl-caption">{escape(t("changed.other_shape", source=source, at=at))}</p>')
        numbers_grid(rows)
        return
    rows.append((t("changed.cosine"), numbers.short(found.cosine), repr(found.cosine), ""))
    rows.append((t("changed.largest"), numbers.short(found.largest), repr(found.largest), ""))
    rows.append((t("changed.share"), numbers.percent(found.share), repr(found.share), ""))
    st.html(f'<p class="gl-caption">{escape(t("changed.same_shape", source=source, at=at))}</p>')
    numbers_grid(rows)
    figure = tensor_map(
        at.step,
        difference(trace, source, at, view.head),
        labels=view.words,
        keys=view.keys,
        dims=trace.dims,
        head=view.head,
        visible=trace.visible(at) if at.step.causal else None,
        dark=dark(),
        difference=True,
        limit=128,
    )
    chart(figure, f"difference.{source.step.key}", heatmap.notes(figure), t("look.difference"))


def source(view: View) -> None:
    """The very lines that compute the step."""
    for excerpt in excerpts(view.at.step):
        st.html(_code(excerpt))


def _code(excerpt: Excerpt) -> str:
    lines = "".join(
        f'<span class="gl-line{" gl-lit" if n in excerpt.lit else ""}"><i>{n}</i>{escape(text) or " "}</span>'
        for n, text in enumerate(excerpt.lines, excerpt.first)
    )
    return (
        f'<figure class="gl-code"><figcaption>{escape(excerpt.file)} · {escape(excerpt.name)}</figcaption>'
        f"<pre>{lines}</pre></figure>"
    )


def parameters(view: View) -> None:
    """The weights that take part, by their Hugging Face names."""
    config, at = view.trace.config, view.at
    shapes = config.parameter_shapes()
    prefix = "" if at.layer is None else f"model.layers.{at.layer}."
    rows = []
    for name in at.step.weights:
        full = prefix + name
        if full == "lm_head.weight" and config.tie_word_embeddings:
            full = "model.embed_tokens.weight"
        if full in shapes:
            rows.append((full, numbers.shape(shapes[full]), view.model.dtype))
    if rows:
        table((t("parameters.name"), t("parameters.shape"), t("parameters.dtype")), rows)
        if at.step is LOGITS and config.tie_word_embeddings:
            caption(t("parameters.tied"))
    else:
        caption(t("parameters.none"))
    caption(
        t(
            "parameters.alias",
            alias=("" if at.layer is None else f"blocks.{at.layer}.") + at.step.alias,
            module=(prefix + at.step.module).rstrip(".") or "model",
        )
    )
