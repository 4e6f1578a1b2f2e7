"""The parts of the KV cache page: its rows, its bytes, what it saves, and that it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.sizes import pass_flops
from llama_core.steps import K_SHARED, V_SHARED, At
from pages.figures import heatmap, numbers
from pages.figures.cache import cached_differences, filling_map
from pages.figures.costs import Growth, growth
from pages.ui.frame import View
from pages.ui.parts import caption, chart, dark, numbers_grid, plain_markdown, sentence, table
from pages.ui.session import CONTEXTS, here_only, run_again, session
from pages.ui.store import store
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from llama_core.generation import CacheCheck

MORE = 20
"""Tokens that the invitation writes."""
AT_ONCE = 2 * 10**9
"""Operations up to which the comparison is made without a press."""


# --- the rows ---


def content(view: View) -> None:
    """The cache of one layer and one key/value head: a row for each position that was read."""
    if view.passes.later and session()["token"] is None:  # what was written is what this page is about
        session().choose(token=view.passes.read - 1)
        run_again()
    _say(t("cache.lead"))
    if not view.passes.made:
        _invite()
    elif view.passes.later:
        _slider(view)
    last = [*view.passes][-1]
    config, filled = view.trace.config, view.trace.dims["S"]
    kv = view.head // config.group
    labels = [token.text for token in view.passes.tokens[: view.passes.read]]
    columns = st.columns(2, gap="medium")
    for column, step, what in zip(columns, (K_SHARED, V_SHARED), ("keys", "values"), strict=True):
        rows = last[At(view.layer, step)][0, :, view.head]
        with column:
            figure = filling_map(
                rows,
                filled,
                labels=labels,
                name=t(f"cache.{what}", layer=view.layer, kv=kv),
                new=view.trace.dims["T"],
                end=_end(rows),
                dark=dark(),
            )
            chart(figure, f"cache.{what}", heatmap.notes(figure))
    caption(_said(view, kv))


def _end(rows: np.ndarray) -> float | None:
    """One scale while the map fills: nearly all cells within it; None where some are no numbers."""
    sizes = np.abs(rows[np.isfinite(rows)])
    return float(np.percentile(sizes, 99.5)) if sizes.size else None


def _invite() -> None:
    left, right = st.columns([3, 1], vertical_alignment="center")
    with left:
        _say(t("cache.prompt_only"))
    right.button(
        t("cache.write", n=MORE),
        key="cache.write",
        icon=":material/edit:",
        type="primary",
        on_click=lambda: session().choose(new=MORE, token=None),
    )


def _slider(view: View) -> None:
    """How far it is filled: after the prompt's pass, then one row more with each."""
    first, read, key = view.passes.prompt.dims["T"], view.passes.read, "cache.filled"
    st.session_state[key] = view.trace.dims["S"]

    def moved() -> None:
        session().choose(token=int(st.session_state[key]) - 1)

    st.slider(t("cache.filled"), first, read, key=key, on_change=here_only(moved), help=t("cache.filled.help"))


def _said(view: View, kv: int) -> str:
    trace = view.trace
    T, S, config = trace.dims["T"], trace.dims["S"], trace.config
    said = [
        t("cache.look.chunk" if trace.past == 0 else "cache.look.step", T=T, S=S, token=view.words[-1], last=S - 1),
        t("cache.look"),
    ]
    if view.passes.later:
        said.append(t("cache.look.slider"))
    if config.group > 1:
        said.append(t("cache.look.group", kv=kv, first=kv * config.group, last=(kv + 1) * config.group - 1))
    window = config.window(view.layer, S)
    if window is not None:
        said.append(t("cache.look.window", window=window))
    return " ".join(said)


# --- the bytes ---


def bytes_kept(view: View) -> None:
    """What it takes now and for the whole context, and what sharing heads saves."""
    from llama_core.kv_cache import cache_bytes

    st.subheader(t("cache.bytes"), anchor=False)
    config, S = view.trace.config, view.trace.dims["S"]
    found = cache_bytes(config, S, view.trace.dtype)
    one = cache_bytes(config, 1, view.trace.dtype).now
    rows = [
        _bytes(t("cache.bytes.one"), one, t("cache.bytes.one.small", layers=config.num_hidden_layers)),
        _bytes(t("cache.bytes.now"), found.now, t("cache.bytes.now.small", n=numbers.exact(S))),
        _bytes(t("cache.bytes.full"), found.full, t("cache.bytes.now.small", n=numbers.exact(config.max_length))),
    ]
    if config.group > 1:
        small = t("cache.bytes.mha.small", heads=config.num_attention_heads)
        rows.append(_bytes(t("cache.bytes.mha"), found.mha_full, small))
        saved = 1 - found.full / found.mha_full
        rows.append(
            (t("cache.bytes.saved"), numbers.percent(saved), repr(saved), t("cache.bytes.saved.small", n=config.group))
        )
    numbers_grid(rows)
    caption(
        t(
            "cache.bytes.look",
            kv=config.num_key_value_heads,
            width=config.head_dim,
            layers=config.num_hidden_layers,
            dtype=view.trace.dtype,
        )
    )


def _bytes(label: str, n: int, small: str) -> tuple[str, str, str, str]:
    return label, numbers.bytes_(n), numbers.exact(n), small


# --- the operations ---


def operations(view: View) -> None:
    """What one more token costs with the cache, and without."""
    st.subheader(t("cache.operations"), anchor=False)
    config, S = view.trace.config, view.trace.dims["S"]
    contexts = [c for c in CONTEXTS if c <= max(config.max_length, S)]
    ways = {
        "cache.with": [sum(pass_flops(config, 1, c - 1).values()) for c in contexts],
        "cache.without": [sum(pass_flops(config, c).values()) for c in contexts],
    }
    lines = [
        Growth(t("cache.without"), ways["cache.without"], "residual", dash=True),
        Growth(t("cache.with"), ways["cache.with"], "key", strong=True),
    ]
    figure = growth(
        contexts, lines, at=S, written=numbers.count, name=t("cache.operations"), dark=dark(), height=300, top=52
    )
    kept, again = (sum(pass_flops(config, T, S - T).values()) for T in (1, S))
    left, right = st.columns([5, 2], gap="large")
    with left:
        chart(figure, "cache.operations", look=t("cache.operations.look"))
    with right, st.container(key="gl-narrow-operations"):
        numbers_grid(
            [
                (t("cache.with"), numbers.count(kept), numbers.exact(kept), t("cache.operations.small", n=S)),
                (t("cache.without"), numbers.count(again), numbers.exact(again), t("cache.operations.small", n=S)),
                (t("cache.times"), f"{numbers.short(again / kept)} ×", repr(again / kept), t("cache.times.small")),
            ]
        )


# --- the same numbers ---


def same_numbers(view: View) -> None:
    """All that was read, once with a cache and once without: the largest difference, and both times."""
    st.subheader(t("cache.same"), anchor=False)
    ids = [token.id for token in view.passes.tokens[: view.passes.read]]
    key = ((view.key[0], tuple(ids)), "cached")
    found = store().measures.get(key)
    if found is None:
        caption(t("cache.same.say", n=len(ids)))
        place = st.empty()
        cost = len(ids) * sum(pass_flops(view.trace.config, 1, len(ids) - 1).values())
        long = cost > AT_ONCE
        if long and not place.button(t("cache.same.press"), key="cache.press", icon=":material/compare_arrows:"):
            return
        found = store().measures.get_or_make(key, lambda: _compare(view, ids, place, long))
    _check(view, found)


def _compare(view: View, ids: list[int], place: DeltaGenerator, long: bool) -> CacheCheck:
    """The comparison, with a bar; beside a long one a button that ends it, as any press does."""
    from llama_core.generation import compare_cached

    with place.container():
        bar = st.empty()
        if long:
            st.button(t("cache.same.stop"), key="cache.stop", icon=":material/stop:")
        found = compare_cached(view.llama, ids, progress=_teller(bar, len(ids)))
    place.empty()
    return found


def _teller(bar: DeltaGenerator, n: int) -> Callable[[float], None]:
    shown = time.monotonic()

    def tell(share: float) -> None:
        nonlocal shown
        if time.monotonic() > shown + 0.1:
            shown = time.monotonic()
            bar.progress(share, text=plain_markdown(t("cache.same.running", done=round(share * n), n=n)))

    return tell


def _say(text: str) -> None:
    st.html(f'<p class="gl-lead">{escape(text)}</p>')


def _check(view: View, found: CacheCheck) -> None:
    labels = [token.text for token in view.passes.tokens[: view.passes.read]]
    said = t(
        f"cache.same.{found.kind}",
        largest=numbers.short(found.largest),
        bound=numbers.short(found.bound),
        dtype=view.trace.dtype,
        context=numbers.exact(view.trace.config.max_position_embeddings),
    )
    if found.kind == "unexplained":
        sentence(said, "error")
    else:
        _say(said)
    figure = cached_differences(found.differences, found.bound, labels=labels, chosen=view.position, dark=dark())
    with st.container(key="gl-broad-differences"):  # the whole width: in a column it would scroll on any screen
        chart(figure, "cache.differences", on_pick=lambda x, y: session().choose(token=round(x)))
    caption(t("cache.difference.look"))
    table(
        ("", t("cache.with"), t("cache.without")),
        [
            (t("cache.table.read"), "1", numbers.exact(len(labels))),
            (t("cache.table.operations"), numbers.count(found.cached_flops), numbers.count(found.full_flops)),
            (t("cache.table.time"), numbers.duration(found.cached_seconds), numbers.duration(found.full_seconds)),
        ],
    )
    caption(t("cache.table.look"))
