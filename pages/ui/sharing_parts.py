"""The parts of the page about shared heads: drawing, sizes, cost, likeness, grouped against tiled."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import streamlit as st

from llama_core import steps
from llama_core.heads import GroupLikeness, group_likeness, tiled_difference
from llama_core.sizes import sharing as ways_to_share
from llama_core.steps import At
from pages.figures import heatmap, numbers
from pages.figures import sharing as figures
from pages.figures.theme import meta_of
from pages.ui.drawing import drawing
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, table
from pages.ui.waiting import once_slowly
from pages.words import t


def _kind(view: View) -> str:
    """Which of the words fit: ".mha", ".mqa", or "" for groups between."""
    config = view.trace.config
    return ".mha" if config.group == 1 else ".mqa" if config.num_key_value_heads == 1 else ""


def _say(text: str) -> None:
    st.html(f'<p class="gl-lead">{escape(text)}</p>')


def introduction(view: View) -> None:
    """Two sentences that are true of this model."""
    _say(t(f"sharing.lead{_kind(view)}"))


def heads_drawn(view: View) -> None:
    """Query heads, and lines to the key/value heads that they read."""
    config = view.trace.config
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    drawing(figures.drawing(heads, kv, view.head, dark=dark()), "sharing.drawing")
    caption(t(f"sharing.drawing.look{_kind(view)}", group=config.group, head=view.head, kv=view.head // config.group))


def sizes(view: View) -> None:
    """q, k and v as this run has them, with the weights that make them."""
    st.subheader(t("sharing.sizes.title"), anchor=False)
    trace, shapes = view.trace, view.trace.config.parameter_shapes()
    rows = []
    for step in (steps.Q, steps.K, steps.V):
        shape = [trace.dims[axis] for axis in step.axes]
        weight = shapes[f"model.layers.{view.layer}.{step.weights[0]}"]
        rows.append(
            (
                step.key,
                f"{' · '.join(step.axes)} = {numbers.shape(shape)}",
                numbers.exact(shape[-1] * shape[-2]),
                step.weights[0],
                numbers.shape(weight),
                t("sharing.no" if step is steps.Q else "sharing.yes"),
            )
        )
    names = ("step", "shape", "token", "weight", "weight.shape", "cache")
    table([t(f"sharing.sizes.{name}") for name in names], rows)
    config = trace.config
    caption(
        t(
            "sharing.sizes.look" + (".mha" if config.group == 1 else ""),
            heads=config.num_attention_heads,
            kv=config.num_key_value_heads,
            times=config.group,
        )
    )


def cost(view: View) -> None:
    """What MHA, GQA and MQA keep per token and for the whole context of this model."""
    st.subheader(t("sharing.cost.title"), anchor=False)
    config, dtype, T = view.trace.config, view.trace.dtype, view.trace.dims["S"]
    context = max(config.max_length, T)
    ways, prompt = (ways_to_share(config, length, dtype) for length in (context, T))
    names = [t("sharing.cost.own", name=way.name) if way.own else way.name for way in ways]
    own = next(i for i, way in enumerate(ways) if way.own)
    figure = figures.cache_bars(names, [way.cache.total for way in ways], own, dark=dark())
    say = [t("sharing.cost.look", dtype=dtype, context=numbers.exact(context))]
    if ways[own].saved > 0:
        say.append(t("sharing.cost.look.gqa", name=ways[own].name, saved=numbers.percent(ways[own].saved)))
    if min(ways[own].cache.kept) < context:
        say.append(t("sharing.cost.look.window", window=numbers.exact(min(ways[own].cache.kept))))
    chart(figure, "cache", look=" ".join(say))
    header = ("kind", "kv", "layer", "token", "prompt", "context", "saved", "parameters")
    table(
        [t(f"sharing.cost.{name}", context=numbers.exact(context)) for name in header],
        [
            (
                name,
                str(way.kv_heads),
                numbers.bytes_(way.cache.per_layer),
                numbers.bytes_(way.cache.per_token),
                numbers.bytes_(now.cache.total),
                numbers.bytes_(way.cache.total),
                numbers.percent(way.saved),
                numbers.exact(way.parameters),
            )
            for name, way, now in zip(names, ways, prompt, strict=True)
        ],
    )


def likeness(view: View) -> None:
    """How alike the weights of the heads of one group are, against other groups."""
    st.subheader(t("sharing.likeness.title"), anchor=False)
    trace, group = view.trace, view.trace.config.group
    if trace.dims["S"] == 1:
        _say(t("sharing.likeness.one"))
        return
    name, text = ("likeness", view.layer), t("run.heads", layer=view.layer)

    def make(tell: Callable[[float], None]) -> GroupLikeness:
        if not _kind(view):  # a layer that has to be made again is, once for this and for what `tiled` asks of it
            trace[At(view.layer, steps.HEAD_OUT)]
        return group_likeness(trace, view.layer, tell)

    found = once_slowly(view, name, text, make)
    if found is None:
        return
    left, right = st.columns([1, 1], gap="medium", vertical_alignment="center")
    with left:
        figure = figures.likeness(found.cosines, group, chosen=view.head, dark=dark())
        begin = meta_of(figure)["begin"]
        said = [t("sharing.likeness.begin", begin=numbers.short(begin))] if begin else []
        look = t(f"sharing.likeness.look{_kind(view)}", layer=view.layer)
        chart(figure, "likeness", [*said, *heatmap.notes(figure)], look)
    with right:
        _means(found, group)


def _means(found, group: int) -> None:
    heads = len(found.cosines)
    pairs, inside = heads * (heads - 1) // 2, heads * (group - 1) // 2
    rows = [
        _mean(t("sharing.number.within"), found.within, inside),
        _mean(t("sharing.number.across"), found.across, pairs - inside),
    ]
    first, second = np.triu_indices(heads, 1)
    between = found.cosines[first, second]
    for name, choose in (("closest", np.argmax), ("farthest", np.argmin)):
        if pairs:
            i = int(choose(between))
            rows.append((t(f"sharing.number.{name}"), numbers.short(between[i], 4), f"Q{first[i]} · Q{second[i]}"))
    table(("", t("sharing.likeness.name"), ""), rows)


def _mean(label: str, value: float, pairs: int) -> tuple[str, str, str]:
    if not pairs:
        return label, "n/a", t("sharing.number.none")
    return label, numbers.short(value, 4), t("sharing.number.pairs", n=numbers.exact(pairs))


def tiled(view: View) -> None:
    """What the wrong way to share would do to the outputs of this layer's heads."""
    st.subheader(t("sharing.tiled.title"), anchor=False)
    trace, config = view.trace, view.trace.config
    if _kind(view):
        _say(t(f"sharing.tiled{_kind(view)}"))
        return
    name, text = ("tiled", view.layer), t("run.heads", layer=view.layer)
    found = once_slowly(view, name, text, lambda tell: tiled_difference(trace, view.layer, tell))
    if found is None:
        return
    st.html(figures.reading_rows(config.num_attention_heads, config.num_key_value_heads, dark=dark()))
    say = "sharing.tiled.say" if found.largest > 100 * found.rounding else "sharing.tiled.say.equal"
    _say(
        t(
            say,
            largest=numbers.short(found.largest),
            rms=numbers.short(found.rms),
            rounding=numbers.short(found.rounding),
        )
    )
    figure = figures.tiled_bars(found.each, config.group, found.rms, dark=dark())
    order = " ".join(str(head % config.num_key_value_heads) for head in range(min(8, config.num_attention_heads)))
    chart(figure, "tiled", look=t("sharing.tiled.look", order=order))
