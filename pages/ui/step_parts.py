"""The parts that show one step of one layer. Each reads the View and draws; the order is the page's."""

from __future__ import annotations

import re
from html import escape

import streamlit as st

from llama_core.change import change
from llama_core.source import Excerpt, excerpts
from llama_core.steps import AXES, LOGITS, At
from llama_core.trace import StepStats, describe
from pages.figures import heatmap, numbers
from pages.figures import histogram as histograms
from pages.figures.next_token import next_tokens
from pages.figures.tensor_map import has_heads, tensor_map
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, shape_strip, table
from pages.ui.session import bind, session
from pages.words import t


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
    values = trace[view.at]
    visible = trace.visible(view.at) if step.causal else None
    wide, narrow = st.columns([5, 2], gap="small")
    with narrow:
        if has_heads(step):
            st.number_input(t("steps.head"), 0, trace.dims["Hq"] - 1, **bind("head"))
        counted = values[..., visible] if visible is not None else values
        spread = histograms.histogram(counted.ravel(), kind=step.kind, dark=dark(), bins=40)
        chart(
            spread,
            "histogram",
            histograms.notes(spread),
            t("look.histogram.heads" if has_heads(step) else "look.histogram"),
        )
    with wide:
        figure = tensor_map(
            step,
            values,
            labels=view.words,
            keys=view.keys,
            dims=trace.dims,
            head=view.head,
            cell=None if "T" not in step.axes else (view.token, None),
            visible=visible,
            dark=dark(),
        )
        chart(figure, "map", heatmap.notes(figure), step.look)
    if step is LOGITS:
        _next(view)


def _next(view: View) -> None:
    best = view.trace.next_tokens(view.token)
    figure = next_tokens([view.piece(i) for i, _ in best], [p for _, p in best], dark=dark())
    chart(figure, "next", look=t("look.next", token=view.trace.tokens[view.token].text))


def statistics(view: View) -> None:
    """The numbers of the step, each with its difference to the first step it reads."""
    now = view.trace.stat(view.at)
    sources = view.trace.walk.sources(view.at)
    before = view.trace.stat(sources[0]) if sources else None
    rows = [_measure(name, now, before) for name in ("mean", "std", "rms", "min", "max")]
    rows.append((t("stats.zeros"), numbers.percent(now.zeros), repr(now.zeros), ""))
    rows += [
        (t(f"stats.{name}"), numbers.exact(getattr(now, name)), str(getattr(now, name)), "")
        for name in ("nan", "inf", "masked", "count")
    ]
    numbers_grid(rows)
    caption(t("stats.over", delta=t("stats.delta", source=describe(sources[0])) if sources else "").strip())


def _measure(name: str, now: StepStats, before: StepStats | None) -> tuple[str, str, str, str]:
    value = getattr(now, name)
    small = "" if before is None else "Δ " + numbers.signed(value - getattr(before, name))
    return t(f"stats.{name}"), numbers.short(value), repr(value), small


def more(view: View) -> None:
    """What changed, source or parameters: one of them, and it stays chosen from step to step."""
    parts = {"changed": changed, "source": source, "parameters": parameters}
    st.segmented_control(
        t("steps.tab"),
        list(parts),
        format_func=lambda name: t(f"steps.tab.{name}"),
        label_visibility="collapsed",
        required=True,
        **bind("show"),
    )
    parts[session()["show"]](view)


def changed(view: View) -> None:
    """Against each step it reads: how alike, how much larger, and where it differs."""
    sources = view.trace.walk.sources(view.at)
    if not sources:
        caption(t("changed.first"))
    for source in sources:
        _changed(view, source)


def _changed(view: View, source: At) -> None:
    trace, at = view.trace, view.at
    found = change(trace, source, at)
    rows = [(t("changed.ratio"), numbers.short(found.ratio), repr(found.ratio), "")]
    if found.difference is None:
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
        found.difference,
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
