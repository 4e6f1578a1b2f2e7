"""The parts of the Activations page: the map of layers and steps, one step over all layers, channels, the table."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from llama_core.paths import unmeasured
from llama_core.ranges import Channel, Ranges, Spread
from llama_core.steps import RESID_OUT, STEPS, At, Step
from llama_core.trace import StepStats, Trace, describe
from pages.figures import heatmap, numbers
from pages.figures.log_map import log_map
from pages.figures.paths import not_yet
from pages.figures.spread import spread_map
from pages.figures.theme import meta_of
from pages.ui import path_parts
from pages.ui.frame import View
from pages.ui.menu import SCRIPTS
from pages.ui.parts import caption, chart, dark, numbers_grid, sentence, table
from pages.ui.session import RANGES, bind, bind_stage, here_only, run_again, session
from pages.words import t

if TYPE_CHECKING:
    import pandas as pd

STEPS_PAGE = SCRIPTS["steps"]
CHANNELS = 3
COUNT = 0.05
"""Seconds that the page's own run counts; of a long prompt the rest is counted while its page is looked at."""
SHARED = 8
"""Rows of the table of channels that several layers share."""


def lead() -> None:
    """What the page is about."""
    st.html(f'<p class="gl-lead">{escape(t("ranges.lead"))}</p>')


def broken(trace: Trace) -> None:
    """The first step with NaN or infinity, by name."""
    at = trace.first_not_finite()
    if at is not None:
        found = trace.stat(at)
        counts = {"nan": numbers.exact(found.nan), "inf": numbers.exact(found.inf), "dtype": found.dtype}
        sentence(t("ranges.broken.first", at=at, where=describe(at), **counts), "error")


# --- the map ---


def measure(stats: StepStats, name: str) -> float:
    """One of RANGES: rms, largest |x|, largest |x| / rms, share of zeros, cells that are NaN or infinite."""
    largest = max(abs(stats.min), abs(stats.max))
    if name == "outlier":
        return largest / stats.rms if stats.rms else 0.0
    return {"rms": stats.rms, "largest": largest, "zeros": stats.zeros, "broken": float(stats.nan + stats.inf)}[name]


def layer_steps(view: View) -> list[Step]:
    """The steps that a layer of this model has, in order."""
    return [step for step in STEPS if step.scope == "layer" and view.trace.walk.has(step)]


def picture(view: View) -> None:
    """Layers to the right, steps down, and the chosen measure as colour."""
    st.segmented_control(
        t("ranges.measure"),
        RANGES,
        format_func=lambda name: t(f"ranges.{name}"),
        label_visibility="collapsed",
        required=True,
        **bind("range"),
    )
    name, shown = session()["range"], layer_steps(view)
    values = _values(view, shown, name)
    chosen = (shown.index(view.at.step), view.at.layer) if view.at.step in shown else None
    common = {
        "rows": [step.key for step in shown],
        "row_axis": t("ranges.step"),
        "col_axis": t("ranges.layer"),
        "name": t(f"ranges.{name}.name"),
        "height": 19 * len(shown) + 116,
        "chosen": chosen,
        "dark": dark(),
    }
    notes: list[str] = []
    coming = _not_yet(view, shown)
    if name in ("zeros", "broken"):
        figure = heatmap.value_map(
            values, signed=False, masked=coming, zmax=float(np.nanmax(values, initial=0.0)) or 1.0, **common
        )
        figure = heatmap.pick_layer(figure)
        if coming is None and not np.nan_to_num(values).any():
            notes.append(t(f"ranges.{name}.none"))
    else:
        figure = log_map(values, pick=True, masked=coming, **common)
    if coming is not None:
        figure = not_yet(figure)
    figure = heatmap.name_rows(figure, [step.key for step in shown])
    meta_of(figure)["alt"] = t("ranges.map.alt", name=t(f"ranges.{name}"), steps=len(shown), layers=values.shape[1])
    chart(
        figure,
        "ranges",
        [*notes, *heatmap.notes(figure)],
        t(f"ranges.{name}.look") + " " + t("ranges.map.click"),
        on_pick=lambda x, y: session().choose(at=str(At(round(x), shown[round(y)]))),
    )
    path_parts.missing(view)
    _chosen(view)


def _not_yet(view: View, shown: list[Step]) -> np.ndarray | None:
    """Which cells of the map have no statistics yet; None where all have. [steps layers]."""
    found = set(unmeasured(view.trace))
    layers = range(view.trace.config.num_hidden_layers)
    return np.array([[At(layer, step) in found for layer in layers] for step in shown]) if found else None


def _values(view: View, shown: list[Step], name: str) -> np.ndarray:
    values = np.full((len(shown), view.trace.config.num_hidden_layers), np.nan)
    places = {step: i for i, step in enumerate(shown)}
    for at, stats in view.trace.known.items():
        if at.layer is not None:
            values[places[at.step], at.layer] = measure(stats, name)
    return values


def _chosen(view: View) -> None:
    """The chosen step in numbers, and the way to it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.html(f'<div class="gl-mono">{escape(str(view.at))} — {escape(view.at.step.title)}</div>')
        st.page_link(
            STEPS_PAGE,
            label=t("ranges.open"),
            icon=":material/footprint:",
            query_params=session().query(at=str(view.at)),
        )
    if not view.trace.measured(view.at):
        caption(t("paths.missing.chosen"))
        return
    found = view.trace.stat(view.at)
    numbers_grid(_number(name, measure(found, name)) for name in RANGES)


def _number(name: str, value: float) -> tuple[str, str, str, str]:
    written = {"zeros": numbers.percent, "broken": numbers.exact}.get(name, numbers.short)
    return t(f"ranges.{name}"), written(value), repr(value), ""


# --- one step over all layers ---


def over_layers(view: View) -> None:
    """How one step's values are spread in every layer, and its largest channels."""
    st.subheader(t("ranges.spread"), anchor=False)
    offered = {step.key: step for step in layer_steps(view)}
    step = view.at.step if view.at.step.scope == "layer" else RESID_OUT
    st.selectbox(t("ranges.step"), list(offered), width=260, **bind_stage(view.layer, step, offered))
    found = view.once(("ranges", step.key), lambda: Ranges(step, CHANNELS))
    if not found.read(view.trace, COUNT):
        _fill(view, found)
        return
    wide, narrow = st.columns([7, 5], gap="medium")
    with wide:
        _spread(view, step, found.spread)
    with narrow:
        _channels(view, step, found.channels)


def _fill(view: View, found: Ranges) -> None:
    """Count on while somebody looks: leaving the page, or another choice, ends it."""
    drawn = False

    @st.fragment(run_every=0.1)
    def counting() -> None:
        nonlocal drawn
        if drawn and found.read(view.trace, 0.15):  # not in the page's own run: that should end
            run_again()
        drawn = True
        text = t("ranges.spread.counting", ready=found.ready, total=found.total)
        st.progress(found.ready / found.total, text=text)

    counting()


def _spread(view: View, step: Step, found: Spread) -> None:
    figure = spread_map(
        found.counts,
        found.edges,
        found.layers,
        found.unit,
        kind=step.kind,
        name=step.key,
        chosen=view.layer,
        dark=dark(),
    )
    notes = [t("ranges.spread.axis", unit=numbers.short(found.unit))]
    if found.every > 1:
        notes.append(t("ranges.spread.some", every=numbers.exact(found.every)))
    if step.causal:
        notes.append(t("ranges.spread.seen"))
    chart(figure, "spread", notes, t("ranges.spread.look", step=step.key))


def _channels(view: View, step: Step, found: tuple[tuple[Channel, ...], ...]) -> None:
    if step.causal:
        caption(t("ranges.channels.causal"))
        return
    here = next((one for one in found if one and one[0].layer == view.layer), ())
    st.html(f'<p class="gl-caption">{escape(t("ranges.channels.here", layer=view.layer, step=step.key))}</p>')
    header = [t(f"ranges.channels.{name}") for name in ("channel", "value", "usual", "token")]
    table(header, [_channel_row(view, one) for one in here])
    shared = shared_channels(found)
    if not shared:
        caption(t("ranges.channels.alone", n=CHANNELS))
        return
    st.html(f'<p class="gl-caption">{escape(t("ranges.channels.shared", n=CHANNELS))}</p>')
    header = [t(f"ranges.channels.{name}") for name in ("channel", "furthest", "layers")]
    table(
        header,
        [
            (channel_name(index), numbers.short(max((one.value for one in ones), key=abs)), layer_ranges(ones))
            for index, ones in shared[:SHARED]
        ],
    )
    caption(t("ranges.channels.look"))


def _channel_row(view: View, one: Channel) -> tuple[str, ...]:
    ratio = abs(one.value) / one.usual if one.usual else float("nan")
    times = t("ranges.channels.times", ratio=numbers.short(ratio))
    return channel_name(one.index), numbers.short(one.value), times, f"{view.words[one.position]} {one.position}"


def channel_name(index: tuple[int, ...]) -> str:
    """A channel as it is called: 138, or "head 2 · 17" for a step with heads."""
    return str(index[0]) if len(index) == 1 else t("ranges.channels.head", head=index[0], channel=index[1])


def shared_channels(found: tuple[tuple[Channel, ...], ...]) -> list[tuple[tuple[int, ...], list[Channel]]]:
    """Channels among the furthest of two layers or more: those of most layers first, then those that reach furthest."""
    by_index: dict[tuple[int, ...], list[Channel]] = defaultdict(list)
    for layer in found:
        for one in layer:
            by_index[one.index].append(one)
    several = [(index, ones) for index, ones in by_index.items() if len(ones) > 1]
    return sorted(several, key=lambda pair: (-len(pair[1]), -max(abs(one.value) for one in pair[1])))


def layer_ranges(ones: list[Channel]) -> str:
    """The layers of these channels as a person writes them: 3–5, 9."""
    parts: list[list[int]] = []
    for layer in sorted({one.layer for one in ones}):
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


# --- the table ---


def all_steps(view: View) -> None:
    """Every step that was computed, as a table that sorts; a row that is chosen becomes the chosen step."""
    st.subheader(t("ranges.table"), anchor=False)
    shown = view.once(("ranges.table", len(unmeasured(view.trace))), lambda: stats_table(view.trace))
    small = {name: st.column_config.NumberColumn(t(f"ranges.table.{name}"), format="%.3g") for name in _MEASURES}
    counts = {
        name: st.column_config.NumberColumn(t(f"stats.{name}"), format="localized")
        for name in ("count", "nan", "inf", "masked")
    }
    st.dataframe(
        shown,
        hide_index=True,
        column_config={
            "at": st.column_config.TextColumn(t("ranges.table.at"), pinned=True),
            "layer": st.column_config.NumberColumn(t("ranges.layer"), width=60),
            "step": st.column_config.TextColumn(t("ranges.step")),
            "shape": st.column_config.TextColumn(t("ranges.table.shape")),
            "made": st.column_config.TextColumn(t("paths.missing.column"), width=132),
            "zeros": st.column_config.NumberColumn(t("stats.zeros"), format="percent"),
            **small,
            **counts,
        },
        height=423,
        key="ranges.all",
        on_select=here_only(lambda: _row_chosen(shown)),
        selection_mode="single-row",
        placeholder="",
        alt=t("ranges.table"),
    )
    caption(t("ranges.table.look"))


_MEASURES = ("rms", "largest", "outlier", "mean", "std", "min", "max")


def stats_table(trace: Trace) -> pd.DataFrame:
    """`trace.stats` with the address taken apart and the two measures that follow from it; empty where not computed."""
    table = trace.stats.reset_index()
    order = trace.walk.order[: trace.computed]
    table["layer"] = np.array([np.nan if at.layer is None else at.layer for at in order])
    table["layer"] = table["layer"].astype("Int64")
    table["step"] = [at.step.key for at in order]
    table["shape"] = [numbers.shape(shape) for shape in table["shape"]]
    coming = set(unmeasured(trace))
    for name in ("largest", "outlier"):
        table[name] = [np.nan if at in coming else measure(trace.stat(at), name) for at in order]
    if coming:
        table["made"] = [t("paths.not_yet") if at in coming else "" for at in order]
    front = ["at", "layer", "step", "shape", *(["made"] if coming else [])]
    return table[[*front, *_MEASURES, "zeros", "nan", "inf", "masked", "count", "dtype"]]


def _row_chosen(shown: pd.DataFrame) -> None:
    for row in st.session_state["ranges.all"]["selection"]["rows"][:1]:
        session().choose(at=str(shown["at"].iloc[row]))
