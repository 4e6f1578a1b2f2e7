"""The parts of the Sizes page. All of it follows from a config: no model, no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import streamlit as st

from llama_core.config import ITEM_BYTES, PRESETS, LlamaConfig
from llama_core.errors import ConfigError
from llama_core.settings import HOLD_MIB, TRACE_MIB
from llama_core.sizes import (
    SHAPES,
    cache_size,
    parameters,
    sharing,
    token_flops,
    weight_bytes,
)
from llama_core.steps import SCORES, WEIGHTS
from pages.figures import numbers
from pages.figures.costs import Growth, growth, parameter_areas, short_context
from pages.ui.parts import caption, chart, dark, numbers_grid, sentence, table
from pages.ui.session import CONTEXTS, CURRENT, WHAT_IF_FIELDS, WHAT_IF_LIMITS, bind, session
from pages.words import t

MATRICES = {"projections": ("q", "k", "v", "o"), "mlp": ("gate", "up", "down"), "head": ("head",)}


def draw(current: LlamaConfig, dims: Mapping[str, int]) -> None:
    """The page, for the loaded model's config or what is chosen instead."""
    st.html(f'<p class="gl-lead">{escape(t("sizes.lead"))}</p>')
    _controls(current)
    try:
        config = session().shape(current)
    except ConfigError as error:
        sentence(str(error), "error")
        return
    context, stored = session()["context"], session()["stored"]
    _headline(config, context, stored)
    _areas(config)
    contexts = [c for c in CONTEXTS if 16 <= c <= max(context, config.max_length, 8192)]
    first, second, third = st.columns(3, gap="medium")
    with first:
        _cache(config, contexts, context, stored)
    with second:
        _operations(config, contexts, context)
    with third:
        _capture(config, contexts, context)
    _exact(config, context)


def _controls(current: LlamaConfig) -> None:
    """Which model, which context, which dtype; its sizes behind a fold."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        names = {CURRENT: t("sizes.of.now")}
        st.selectbox(t("sizes.of"), [CURRENT, *SHAPES, *PRESETS], format_func=lambda n: names.get(n, n), **bind("of"))
        st.select_slider(t("sizes.context"), CONTEXTS, format_func=short_context, **bind("context"))
        st.selectbox(t("sizes.stored"), list(ITEM_BYTES), width=200, **bind("stored"))
    base = {CURRENT: current, **SHAPES, **PRESETS}[session()["of"]]
    moved = any(session()[name] is not None for name in WHAT_IF_FIELDS)
    with st.expander(t("sizes.change"), expanded=moved), st.container(horizontal=True):
        for name, field in WHAT_IF_FIELDS.items():
            label, value = t(f"sizes.{name.removeprefix('of_')}"), getattr(base, field)
            if name == "of_tied":
                st.toggle(label, **bind(name, value))
            else:
                least, most = WHAT_IF_LIMITS[name]
                st.number_input(label, min(least, value), max(most, value), width=130, **bind(name, value))


def _headline(config: LlamaConfig, context: int, stored: str) -> None:
    total = config.parameter_count()
    cache = cache_size(config, context, stored)
    one = sum(token_flops(config, context).values())
    capture = config.capture_bytes(context)
    shape = t(
        "sizes.shape",
        L=config.num_hidden_layers,
        D=numbers.exact(config.hidden_size),
        Hq=config.num_attention_heads,
        Hkv=config.num_key_value_heads,
        Dh=config.head_dim,
        F=numbers.exact(config.intermediate_size),
        V=numbers.exact(config.vocab_size),
    )
    weights = config.weight_bytes(stored)
    numbers_grid(
        [
            (t("sizes.parameters"), numbers.count(total), numbers.exact(total), numbers.exact(total)),
            (t("sizes.weights"), numbers.bytes_(weights), numbers.exact(weights), stored),
            (
                t("sizes.cache"),
                numbers.bytes_(cache.total),
                numbers.exact(cache.total),
                t("sizes.cache.small", bytes=numbers.bytes_(cache.per_token)),
            ),
            (
                t("sizes.operations"),
                numbers.count(one),
                numbers.exact(one),
                t("sizes.at", context=numbers.exact(context)),
            ),
            (t("sizes.capture"), numbers.bytes_(capture), numbers.exact(capture), _capture_small(capture)),
        ]
    )
    caption(shape)


def _capture_small(capture: int) -> str:
    """What the bytes of a capture are of, and how many of them a run holds where that is not all."""
    limit = min(HOLD_MIB.bytes, TRACE_MIB.bytes)
    said = t("sizes.capture.small")
    return said if capture <= limit else f"{said}; {t('sizes.capture.part', limit=numbers.bytes_(limit))}"


def _areas(config: LlamaConfig) -> None:
    counts = parameters(config)
    total = sum(counts.values())
    look, notes = t("sizes.parts.look", total=numbers.exact(total)), []
    if counts["norms"] < total / 200:
        notes.append(t("sizes.parts.norms", norms=numbers.exact(counts["norms"])))
    if config.tie_word_embeddings:
        notes.append(t("sizes.parts.tied"))
    chart(parameter_areas(counts, dark=dark()), "areas", notes, look)


def _cache(config: LlamaConfig, contexts: list[int], context: int, stored: str) -> None:
    st.subheader(t("sizes.cache.title"), anchor=False)
    ways = sharing(config, context, stored)
    lines = []
    for way in ways:
        shared = config.with_(num_key_value_heads=way.kv_heads)
        sizes = [cache_size(shared, c, stored).total for c in contexts]
        kind = {"MHA": "value", "GQA": "key", "MQA": "query"}[way.name]
        lines.append(Growth(_way(way.name, way.kv_heads), sizes, kind, strong=way.own, dash=not way.own))
    weights = config.weight_bytes(stored)
    figure = growth(
        contexts,
        lines,
        at=context,
        written=numbers.bytes_,
        level=(t("sizes.cache.weights", dtype=stored), weights),
        name=t("sizes.cache.title"),
        dark=dark(),
    )
    each = ", ".join(f"{way.name} {numbers.bytes_(way.cache.total)}" for way in ways)
    look = t("sizes.cache.look", dtype=stored, context=numbers.exact(context), each=each)
    own = next(line.values for line in lines if line.strong)
    over = next((c for c, size in zip(contexts, own, strict=True) if size > weights), None)
    notes = [] if over is None else [t("sizes.cache.equal", context=numbers.exact(over))]
    chart(figure, "cache", notes, look)


def _way(name: str, kv: int) -> str:
    return t("sizes.cache.line.one", name=name) if kv == 1 else t("sizes.cache.line", name=name, kv=kv)


def _operations(config: LlamaConfig, contexts: list[int], context: int) -> None:
    st.subheader(t("sizes.flops.title"), anchor=False)
    counts = [token_flops(config, c) for c in contexts]
    matrices = {name: [sum(each[p] for p in parts) for each in counts] for name, parts in MATRICES.items()}
    attention = [each["scores"] + each["mix"] for each in counts]
    lines = [
        Growth(t("sizes.flops.total"), [sum(each.values()) for each in counts], "residual", strong=True),
        Growth(t("sizes.flops.mlp"), matrices["mlp"], "mlp"),
        Growth(t("sizes.flops.projections"), matrices["projections"], "query"),
        Growth(t("sizes.flops.head"), matrices["head"], "head"),
        Growth(t("sizes.flops.attention"), attention, "attention"),
    ]
    figure = growth(contexts, lines, at=context, written=numbers.count, name=t("sizes.flops.title"), dark=dark())
    over = next((c for c, a, each in zip(contexts, attention, counts, strict=True) if 2 * a > sum(each.values())), None)
    notes = [] if over is None else [t("sizes.flops.equal", context=numbers.exact(over))]
    chart(figure, "flops", notes, t("sizes.flops.look"))


def _capture(config: LlamaConfig, contexts: list[int], context: int) -> None:
    st.subheader(t("sizes.capture.title"), anchor=False)
    found = [config.capture_by_step(c) for c in contexts]
    square = [each[SCORES.key] + each[WEIGHTS.key] for each in found]
    totals = [sum(each.values()) for each in found]
    rest = [a - b for a, b in zip(totals, square, strict=True)]
    lines = [
        Growth(t("sizes.flops.total"), totals, "residual", strong=True),
        Growth(t("sizes.capture.square"), square, "attention"),
        Growth(t("sizes.capture.rest"), rest, "norm"),
    ]
    figure = growth(contexts, lines, at=context, written=numbers.bytes_, name=t("sizes.capture.title"), dark=dark())
    chart(figure, "capture", look=t("sizes.capture.look"))


def _exact(config: LlamaConfig, context: int) -> None:
    """The same once more as numbers: by part, and by dtype."""
    st.subheader(t("sizes.table"), anchor=False)
    counts, flops = parameters(config), token_flops(config, context)
    total = sum(counts.values())
    left, right = st.columns([3, 2], gap="large")
    with left:
        rows = [
            (
                t(f"sizes.part.{part}"),
                numbers.exact(counts[part]) if part in counts else "",
                numbers.percent(counts[part] / total) if part in counts else "",
                numbers.exact(flops[part]) if part in flops else "",
            )
            for part in [*counts, "scores", "mix"]
        ]
        rows.append((t("sizes.flops.total"), numbers.exact(total), "", numbers.exact(sum(flops.values()))))
        table((t("sizes.part"), t("sizes.count"), t("sizes.share"), t("sizes.operations")), rows)
    with right:
        sizes = [
            (t("sizes.dtypes", dtype=dtype), numbers.exact(n), numbers.bytes_(n))
            for dtype, n in weight_bytes(config).items()
        ]
        caches = [
            (
                f"{_way(way.name, way.kv_heads)}{t('sizes.own') if way.own else ''}",
                numbers.exact(way.cache.total),
                numbers.bytes_(way.cache.total),
            )
            for way in sharing(config, context, session()["stored"])
        ]
        table((t("sizes.what"), t("sizes.bytes"), ""), [*sizes, *caches])
