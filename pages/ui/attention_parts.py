"""The parts of the Attention page. Each reads the View and draws; the order is the page's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import ceil, isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from llama_core.contribution import Contribution, contribution
from llama_core.heads import MEASURES, heads_of, maps_of, nearest_heads, table_of, without_first
from llama_core.steps import MASKED, SCORES, WEIGHTS, At, Step
from llama_core.survey import LayerSurvey, Survey, blocks, pool_largest
from pages.figures import heatmap, numbers, theme
from pages.figures.head_map import head_map
from pages.figures.head_tiles import Plan, frame_tile, head_tiles, header_all, plan_all, plan_layer, row_of, side_for
from pages.figures.looks import looks
from pages.ui.frame import View, kept
from pages.ui.parts import as_it_fills, caption, dark, numbers_grid, plain_markdown, plot
from pages.ui.session import bind, bind_stage, here_only, session
from pages.ui.waiting import Tell, once_slowly
from pages.words import t

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

STAGES = {step.key: step for step in (SCORES, MASKED, WEIGHTS)}
BARS = 8
HEADS = 12
ALIKE = 6


def opening() -> None:
    """What attention is, in two sentences."""
    caption(t("attention.opening"))


def controls(view: View) -> str:
    """How much is shown, which stage, and how weights are drawn. "head", "layer" or "all"."""
    shown = session()["look"]
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.segmented_control(
            t("attention.look"),
            ("head", "layer", "all"),
            format_func=lambda name: t(f"attention.look.{name}"),
            label_visibility="collapsed",
            required=True,
            **bind("look"),
        )
        if shown == "head":
            st.segmented_control(
                t("attention.stage"),
                list(STAGES),
                label_visibility="collapsed",
                required=True,
                **bind_stage(view.layer, _stage(view), STAGES),
            )
        off = shown == "head" and _stage(view) is not WEIGHTS
        st.toggle(t("attention.rest"), help=t("attention.rest.help"), disabled=off, **bind("rest"))
        st.toggle(t("attention.log"), help=t("attention.log.help"), disabled=off, **bind("log"))
    return shown


def _stage(view: View) -> Step:
    return view.at.step if view.at.step in STAGES.values() else WEIGHTS


def _head_name(view: View, head: int) -> str:
    return f"Q{head} → KV{head // view.trace.config.group}"


# --- one head ---


def one_head(view: View) -> None:
    """The map, and beside it the chosen token: where it looks, who looks at it."""
    wide, narrow = st.columns([8, 5], gap="medium")
    with wide:
        _map(view)
    with narrow:
        _where(view)
        _who(view)


def _map(view: View) -> None:
    trace, stage, words = view.trace, _stage(view), view.words
    cells = trace.head(At(view.layer, stage), view.head)
    visible = trace.visible(view.layer)
    rest = session()["rest"] and stage is WEIGHTS
    if rest:
        cells = without_first(cells)
    masked = np.zeros_like(visible) if stage is SCORES else ~visible | (np.isnan(cells) & rest)
    (q0, q1), (k0, k1) = window(session()["window"], trace.dims["T"], trace.dims["S"])
    k0 = max(k0, 1) if rest else k0
    if k0 > k1:
        caption(t("attention.nothing"))
        return
    name = t(
        "attention.name.rest" if rest else "attention.name",
        layer=view.layer,
        head=_head_name(view, view.head),
        stage=stage.key,
    )
    keys = view.keys
    figure = head_map(
        cells[q0 : q1 + 1, k0 : k1 + 1],
        masked=masked[q0 : q1 + 1, k0 : k1 + 1],
        queries=words[q0 : q1 + 1],
        keys=keys[k0 : k1 + 1],
        query_start=trace.past + q0,
        key_start=k0,
        name=name,
        token=trace.past + view.token,
        kind=stage.key,
        log=session()["log"],
        dark=dark(),
    )
    small = theme.of_layout(figure, "dragmode") != "select"
    column = "" if view.token == trace.dims["T"] - 1 else t("attention.weights.column")
    look = t(f"attention.{stage.key}.look", width=trace.config.head_dim, token=words[view.token], column=column)
    how = t("attention.pick.cell" if small else "attention.pick.box")
    if session()["window"] is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(
                t("attention.window.close"),
                icon=":material/zoom_out_map:",
                type="tertiary",
                on_click=lambda: session().choose(window=None),
            )
            caption(t("attention.window", q0=q0, q1=q1, k0=k0, k1=k1))
    _pickable(
        figure,
        "attention.map",
        partial(_cell_picked, T=trace.dims["T"], S=trace.dims["S"]),
        [look, how, *heatmap.notes(figure)],
        640,
    )
    _formula(view)


def _formula(view: View) -> None:
    """The softmax of the chosen row at its strongest key, with this run's numbers."""
    weights, masked = (view.trace.head(At(view.layer, step), view.head)[view.token] for step in (WEIGHTS, MASKED))
    seen = np.flatnonzero(view.trace.visible(view.layer)[view.token])
    if not np.isfinite(masked[seen]).all():
        return
    key = int(seen[np.argmax(weights[seen])])
    whole = float(np.logaddexp.reduce(masked[seen].astype(np.float64)))
    query = view.token + view.trace.past
    score, weight = numbers.short(masked[key]), numbers.short(weights[key])
    st.latex(
        rf"\small a_{{{query},{key}}}=\frac{{e^{{s_{{{query},{key}}}}}}}{{\sum_j e^{{s_{{{query},j}}}}}}"
        rf"=e^{{{score}\,-\,{numbers.short(whole) if whole >= 0 else f'({numbers.short(whole)})'}}}={weight}"
        rf",\quad s=\frac{{q\cdot k}}{{\sqrt{{{view.trace.config.head_dim}}}}},"
        rf"\;\ln\sum_j e^{{s_{{{query},j}}}}={numbers.short(whole)}"
    )


def window(text: str | None, T: int, S: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last query row, first and last key of the part that is shown; the whole map where that is empty."""
    whole = (0, T - 1), (0, S - 1)
    if text is None:
        return whole
    rows, cols = (tuple(map(int, part.split("-"))) for part in text.split(","))
    if rows[0] >= T or cols[0] >= S:
        return whole
    return (rows[0], min(rows[1], T - 1)), (cols[0], min(cols[1], S - 1))


def _where(view: View) -> None:
    """The chosen row as bars: weights, and what they move."""
    trace, token = view.trace, view.token
    found = _contribution(view)
    weights, lengths = found.weights[view.head], found.heads[view.head]
    best = np.argsort(-np.nan_to_num(weights, nan=-1.0), kind="stable")[: min(BARS, np.isfinite(weights).sum())]
    st.markdown(f"**{plain_markdown(t('attention.where', token=view.words[token]))}**")
    figure = looks(
        [view.keys[key] for key in best],
        best.tolist(),
        [
            (t("attention.weight"), weights[best], "attention"),
            (t("attention.moves"), lengths[best], "value"),
        ],
        limits=[1.0, None],
        rows=min(BARS, trace.dims["S"]),
        alt=t("attention.where.alt", place=token + trace.past),
        dark=dark(),
    )
    written, total = float(found.written[view.head]), float(np.nansum(lengths))
    cancel = t("attention.cancel") if written < 0.9 * total else ""
    texts = [
        t("attention.where.look", share=numbers.percent(weights[best].sum())),
        t("attention.sum", written=numbers.short(written), lengths=numbers.short(total), cancel=cancel),
    ]
    _pickable(figure, "attention.where", _bar_picked, texts)


def _who(view: View) -> None:
    """The chosen column as bars."""
    trace, token = view.trace, view.token
    key = token + trace.past
    column = trace.head(At(view.layer, WEIGHTS), view.head)[:, key]
    seeing = np.flatnonzero(trace.visible(view.layer)[:, key])
    best = seeing[np.argsort(-column[seeing], kind="stable")][:BARS]
    st.markdown(f"**{plain_markdown(t('attention.who', token=view.words[token]))}**")
    figure = looks(
        [view.words[row] for row in best],
        (best + trace.past).tolist(),
        [(t("attention.weight"), column[best], "attention")],
        limits=[1.0],
        rows=len(best),
        alt=t("attention.who.alt", place=key),
        dark=dark(),
    )
    last = t("attention.who.last") if token == trace.dims["T"] - 1 else ""
    _pickable(figure, "attention.who", _bar_picked, [t("attention.who.look", none=last)])


def _measured(view: View) -> pd.DataFrame | None:
    """The measures of the layer's heads, a row each; None where the person has stopped it."""
    layer, trace = view.layer, view.trace
    surveyed: Survey | None = view.ready("survey")
    if surveyed is not None and layer in (one.layer for one in surveyed.layers):
        heads = trace.config.num_attention_heads
        return surveyed.head_table().iloc[layer * heads : (layer + 1) * heads].reset_index(drop=True)
    return once_slowly(
        view,
        ("attention.measures", layer),
        t("run.heads", layer=layer),
        lambda tell: table_of(trace.config, [(layer, heads_of(trace, layer, tell))]),
    )


def measures(view: View) -> None:
    """What this head does, in numbers."""
    st.subheader(t("attention.measures"), anchor=False)
    measured = _measured(view)
    if measured is None:
        return
    found = measured.iloc[view.head]
    numbers_grid(_measure(name, found, view.trace.dims["S"] == 1) for name in MEASURES if name != "spread")
    caption(t("attention.measures.look"))


def _measure(name: str, found: pd.Series, alone: bool) -> tuple[str, str, str, str]:
    """One cell of the grid. alone: the prompt has one token, so nothing is measured."""
    value, small = float(found[name]), ""
    if name in ("first", "duplicate", "induction", "distance"):
        small = t(f"attention.{name}.small")
    if name == "entropy":
        small = t("attention.spread.small", share=numbers.percent(found["spread"]))
    shown = numbers.short(value)
    if alone:
        shown, small = t("attention.no_choice"), t("attention.no_choice.small")
    elif np.isnan(value) and np.isfinite(found["entropy"]):
        shown, small = t("attention.no_repeat"), t("attention.no_repeat.small")
    return t(f"attention.{name}"), shown, repr(value), small


def heads_like_this(view: View) -> None:
    """The heads whose measures are nearest, as small maps."""
    st.subheader(t("attention.alike"), anchor=False)
    as_it_fills(view.survey(), lambda found: _alike(view, found))


def _alike(view: View, found: Survey) -> None:
    if not found.layers:
        return
    here = any(one.layer == view.layer for one in found.layers)
    near = nearest_heads(found.head_table(), view.layer, view.head, ALIKE) if here else None
    if near is None or near.empty:
        caption(t("attention.alike.none"))
        return
    heads = list(zip(near["layer"].tolist(), near["head"].tolist(), strict=True))
    make = partial(
        _tiles,
        view,
        found,
        heads,
        row_of(len(heads)),
        alt=t("attention.alike.alt", layer=view.layer, head=_head_name(view, view.head)),
        titles=[f"L{layer} Q{head}" for layer, head in heads],
    )
    _pickable(
        _kept(view, ("attention.alike", view.layer, view.head, *heads), make),
        "attention.alike",
        partial(_tile_picked, heads=heads),
        [t("attention.alike.look")],
        1040,
        72 * len(heads),
    )


# --- one layer, all layers ---


def layer(view: View) -> None:
    """All heads of one layer, and beside them what each does at the chosen token."""
    wide, narrow = st.columns([8, 5], gap="medium")
    with wide:
        _layer_maps(view)
    with narrow:
        _heads_here(view)
        _together(view)


def _layer_maps(view: View) -> None:
    trace, here = view.trace, view.layer
    heads = trace.config.num_attention_heads
    side = side_for(heads)
    rows, columns = blocks(trace.dims["T"], side), blocks(trace.dims["S"], side)
    rest = session()["rest"] and trace.dims["S"] > 1
    measured = _measured(view)
    name, text = ("attention.maps", here, rest), t("run.heads", layer=here)
    maps = once_slowly(view, name, text, lambda tell: _maps(view, here, rest, rows, columns, tell))
    if measured is None or maps is None:
        return
    hidden = ~pool_largest(trace.visible(here), rows, columns)
    if rest:
        hidden[:, 0] |= columns[0, 1] == 1
    plan = plan_layer(heads, trace.config.group)
    make = partial(
        head_tiles,
        maps,
        hidden,
        plan,
        titles=[_head_name(view, head) if plan.tile >= 70 else f"Q{head}" for head in range(heads)],
        hovers=_hovers(view, measured),
        alt=t("attention.layer.alt", n=heads, layer=here),
        log=session()["log"],
        dark=dark(),
    )
    figure = frame_tile(_kept(view, ("attention.layer.tiles", here), make), plan, view.head, dark())
    look = t("attention.layer.look", layer=here)
    notes = _notes(rest, int(rows[0, 1]), int(columns[0, 1]), theme.meta_of(figure)["side"], maps.shape[1:])
    _pickable(
        figure,
        "attention.layer",
        partial(_tile_picked, heads=[(here, n) for n in range(heads)], stay=True),
        [look, *notes],
        640,
        min(620, 72 * len(plan.cols)),
    )


def _maps(view: View, here: int, rest: bool, rows: np.ndarray, columns: np.ndarray, tell: Tell) -> np.ndarray:
    def small(weights: np.ndarray) -> np.ndarray:
        weights = np.nan_to_num(without_first(weights)) if rest else weights
        return np.rint(255 * np.nan_to_num(pool_largest(weights, rows, columns))).astype(np.uint8)

    found: list[np.ndarray] = []
    for weights in maps_of(view.trace, At(here, WEIGHTS)):
        found.append(small(weights))
        tell(sum(map(len, found)) / view.trace.config.num_attention_heads)
    return np.concatenate(found)


def _contribution(view: View) -> Contribution:
    place = view.layer, view.token
    return view.once(("attention.contribution", *place), lambda: contribution(view.trace, view.llama, *place))


def _heads_here(view: View) -> None:
    """What each head looks at most from the chosen token, and how much it writes there."""
    found = _contribution(view)
    heads = np.argsort(-found.written, kind="stable")[:HEADS].tolist()
    keys = [int(np.nanargmax(found.weights[head])) if np.isfinite(found.weights[head]).any() else 0 for head in heads]
    st.markdown(f"**{plain_markdown(t('attention.here', token=view.words[view.token]))}**")
    figure = looks(
        [view.keys[key] for key in keys],
        keys,
        [
            (
                t("attention.weight"),
                [found.weights[head, key] for head, key in zip(heads, keys, strict=True)],
                "attention",
            ),
            (t("attention.writes"), found.written[heads], "value"),
        ],
        limits=[1.0, None],
        prefixes=[f"Q{head}" for head in heads],
        rows=min(HEADS, len(found.written)),
        alt=t("attention.here.alt", layer=view.layer, place=view.token + view.trace.past),
        dark=dark(),
    )
    tiles = [(view.layer, head) for head in heads]
    _pickable(figure, "attention.here", partial(_tile_picked, heads=tiles, stay=True), [t("attention.here.look")])


def _together(view: View) -> None:
    """What the layer's attention adds at the chosen token, by the token that it comes from."""
    lengths = _contribution(view).tokens
    best = np.argsort(-np.nan_to_num(lengths, nan=-1.0), kind="stable")[: min(BARS, np.isfinite(lengths).sum())]
    st.markdown(f"**{plain_markdown(t('attention.together', token=view.words[view.token]))}**")
    figure = looks(
        [view.keys[key] for key in best],
        best.tolist(),
        [(t("attention.moves"), lengths[best], "value")],
        rows=min(BARS, view.trace.dims["S"]),
        alt=t("attention.together.alt", layer=view.layer, place=view.token + view.trace.past),
        dark=dark(),
    )
    _pickable(figure, "attention.together", _bar_picked, [t("attention.together.look")])


def layer_table(view: View) -> None:
    """The measures of the layer's heads."""
    measured = _measured(view)
    if measured is not None:
        _table(view, measured, "attention.table.layer", stay=True)


def all_heads(view: View) -> None:
    """Every head of every layer, small, as far as the survey is."""
    as_it_fills(view.survey(), lambda found: _all(view, found))


def _all(view: View, found: Survey) -> None:
    config = view.trace.config
    n = config.num_attention_heads
    if not found.layers:
        return
    heads = [(one.layer, head) for one in found.layers for head in range(n)]
    plan = plan_all(found.total, n, config.group)
    header = header_all(plan, found.total, n, config.group)
    plan = Plan(plan.places[: len(heads)], plan.rows, plan.cols, plan.tile)
    alt = t("attention.all.alt", heads=len(heads), layers=len(found.layers))
    make = partial(_tiles, view, found, heads, plan, alt=alt, header=header)
    figure = _kept(view, ("attention.all.tiles", len(heads)), make)
    if (view.layer, view.head) in heads:
        figure = frame_tile(figure, plan, heads.index((view.layer, view.head)), dark())
    rest = session()["rest"] and view.trace.dims["S"] > 1
    sizes = found.layers[0].maps.shape[1:]
    notes = _notes(rest, int(found.rows[0, 1]), int(found.columns[0, 1]), theme.meta_of(figure)["side"], sizes)
    _pickable(figure, "attention.all", partial(_tile_picked, heads=heads), [t("attention.all.look"), *notes], 1010, 640)
    _table(view, found.head_table(), "attention.table.all")


def _tiles(view: View, found: Survey, heads: Sequence[tuple[int, int]], plan: Plan, **more: Any) -> go.Figure:
    """Maps of the survey. heads: (layer, head) of each."""
    rest = session()["rest"] and view.trace.dims["S"] > 1
    ready: dict[int, LayerSurvey] = {one.layer: one for one in found.layers}
    maps = np.stack([(ready[layer].rest if rest else ready[layer].maps)[head] for layer, head in heads])
    hidden = np.stack([ready[layer].hidden for layer, _ in heads])
    if rest:
        hidden[:, :, 0] |= found.columns[0, 1] == 1
    table = found.head_table().iloc[[layer * view.trace.config.num_attention_heads + head for layer, head in heads]]
    return head_tiles(maps, hidden, plan, hovers=_hovers(view, table), log=session()["log"], dark=dark(), **more)


def _kept(view: View, name: Hashable, make: Callable[[], go.Figure]) -> go.Figure:
    """A picture of tiles: made once for each way in which tiles are drawn."""
    return kept(view, (name, session()["rest"], session()["log"]), make)


def _hovers(view: View, table: pd.DataFrame) -> list[str]:
    """One text per row of a table of heads: its name and its measures."""
    texts = []
    columns = [table[name].tolist() for name in ("layer", "head", *MEASURES)]
    for layer, head, *measured in zip(*columns, strict=True):
        name = t("attention.tile", layer=layer, head=_head_name(view, head))
        named = zip(MEASURES, measured, strict=True)
        lines = [f"{t(f'attention.{each}')} {numbers.short(value)}" for each, value in named if not isnan(value)]
        texts.append("<br>".join([f"<b>{theme.plain(name)}</b>", *map(theme.plain, lines)]))
    return texts


def _notes(rest: bool, rows: int, cols: int, side: Sequence[int], whole: Sequence[int]) -> list[str]:
    """What the caption of tiles has to admit. rows, cols: of a block; side: cells of a tile, whole: blocks of a map."""
    step = max(ceil(whole[0] / side[0]), ceil(whole[1] / side[1]))
    found = [t("attention.rest.note")] if rest else []
    if rows * step > 1 or cols * step > 1:
        found.append(t("attention.pooled", rows=rows * step, cols=cols * step))
    return [*found, t("attention.blank")] if whole[0] > 1 else found


def _table(view: View, table: pd.DataFrame, key: str, stay: bool = False) -> None:
    """A table of heads that sorts; choosing a row chooses the head."""
    st.subheader(t("attention.table"), anchor=False)
    if view.trace.dims["S"] == 1:
        caption(t("attention.no_choice.table"))
        return
    none = [name for name in ("duplicate", "induction") if table[name].isna().all()]
    shown = table.drop(columns=none)
    share = partial(st.column_config.ProgressColumn, format="%.3f", min_value=0.0, max_value=1.0, width=112)
    number = partial(st.column_config.NumberColumn, format="%.3f", width=72)
    config: dict[str, Any] = {
        name: st.column_config.NumberColumn(t(f"attention.table.{name}"), width=52) for name in ("layer", "head", "kv")
    }
    for name in MEASURES:
        kind = number if name in ("entropy", "distance") else share
        config[name] = kind(t(f"attention.{name}"), help=t(f"attention.{name}.help"))
    st.dataframe(
        shown,
        hide_index=True,
        column_config=config,
        height="content" if len(shown) <= 12 else 423,
        key=key,
        on_select=here_only(lambda: _row_picked(key, table, stay)),
        selection_mode="single-row",
        alt=t("attention.table"),
    )
    caption(" ".join([t("attention.table.look"), *([t("attention.no_repeat.table")] if none else [])]))


# --- what a click means ---


def _pickable(
    figure: go.Figure,
    key: str,
    on_pick: Callable[[dict], None],
    texts: Sequence[str],
    wide: int | None = None,
    least: int = 0,
) -> None:
    """A figure whose clicks choose something, and its caption.

    wide: px at which the figure is as tall as it says; where there is less room it is lower in proportion, and
    narrower than `least` it scrolls.
    """
    name = f"gl-{key.replace('.', '-')}"
    if wide is not None:
        tall = theme.of_layout(figure, "height")
        size = f"aspect-ratio: {wide} / {tall}; max-height: {tall}px; min-width: {least}px"
        st.html(f"<style>.st-key-{name} {{ {size} }} .st-key-{name}-scroll {{ overflow-x: auto }}</style>")
    with st.container(key=f"{name}-scroll"), st.container(key=name):
        height = "content" if wide is None else "stretch"
        plot(figure, key, height=height, on_select=here_only(lambda: on_pick(st.session_state[key]["selection"])))
    caption(" ".join(text for text in texts if text))


def _cell_picked(selection: dict, T: int, S: int) -> None:
    """A point is a cell, and its row is the query; a box is the part of the map to show."""
    past = S - T
    if selection["box"]:
        box = selection["box"][0]
        q0, q1 = _cells(box["y"], past, S - 1)
        k0, k1 = _cells(box["x"], 0, S - 1)
        if q0 < q1 and k0 < k1:
            session().choose(window=f"{q0 - past}-{q1 - past},{k0}-{k1}")
    elif selection["points"]:
        session().choose(token=int(selection["points"][0]["y"]))


def _cells(ends: Sequence[float], first: int, last: int) -> tuple[int, int]:
    """The first and last position that a side of a box touches."""
    return max(round(min(ends)), first), min(round(max(ends)), last)


def _bar_picked(selection: dict) -> None:
    for point in selection["points"][:1]:
        place = point["customdata"]
        session().choose(token=int(place[0] if isinstance(place, list) else place))


def _tile_picked(selection: dict, heads: Sequence[tuple[int, int]], stay: bool = False) -> None:
    for point in selection["points"][:1]:
        _open(*heads[point["point_index"]], stay)


def _row_picked(key: str, table: pd.DataFrame, stay: bool) -> None:
    for row in st.session_state[key]["selection"]["rows"][:1]:
        _open(int(table.iloc[row]["layer"]), int(table.iloc[row]["head"]), stay)


def _open(layer: int, head: int, stay: bool) -> None:
    session().choose(at=str(At(layer, WEIGHTS)), head=head, **({} if stay else {"look": "head"}))
