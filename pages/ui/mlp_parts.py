"""The parts of the MLP page: neurons as points, strips, what neurons write, shut ones by layer, curves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

import numpy as np
import streamlit as st

from llama_core import steps
from llama_core.gate import BAND, Neuron, Shut, Written, compare_curves, curves, loudest, shut, written
from llama_core.steps import At
from llama_core.survey import Survey
from pages.figures import heatmap, numbers
from pages.figures.gate import curve_lines, gate_scatter
from pages.figures.layer_lines import Line, layer_lines
from pages.figures.theme import meta_of
from pages.ui.frame import View
from pages.ui.parts import as_it_fills, caption, chart, dark, numbers_grid, plain_markdown, table
from pages.words import t

CURVES = {"silu": "SiLU", "relu": "ReLU", "gelu": "GELU", "gelu_pytorch_tanh": "GELU"}
"""config.hidden_act -> the curve of `gate.curves` that it is; the tanh form of GELU is within 0.001 of it."""
TOP = 8
TOKENS = 4
STRIPS = (steps.GATE, steps.ACT, steps.UP, steps.GATED)


def lead(view: View) -> None:
    """What the page is about."""
    st.html(f'<p class="gl-lead">{escape(t("mlp.lead", curve=_own(view)))}</p>')


def _own(view: View) -> str:
    return CURVES[view.trace.config.hidden_act]


def _where(view: View) -> dict[str, object]:
    return {"token": view.words[view.token], "position": view.position, "layer": view.layer}


def _shut(view: View) -> Shut:
    return view.once(("shut", view.layer), lambda: shut(view.trace, view.layer))


def neurons(view: View) -> tuple[tuple[Neuron, ...], Callable[[], tuple[Written, ...]]]:
    """The loudest neurons here, and what they write, which is being worked out: called, it is waited for."""
    where = view.layer, view.token
    loud = view.once(("loudest", *where), lambda: loudest(view.trace, *where, TOP))
    return loud, view.meanwhile(("written", *where), partial(written, view.llama, view.layer, loud, TOKENS))


def picture(view: View, loud: tuple[Neuron, ...]) -> None:
    """All neurons of the layer at the chosen token, and the curve that their gates pass."""
    gate, act, up, gated = (view.trace[At(view.layer, step)][0, view.token] for step in STRIPS)
    found = _shut(view)
    end = float(np.abs(gate[np.isfinite(gate)]).max(initial=1.0))
    x = np.linspace(-1.2 * end, 1.2 * end, 801)
    wide, narrow = st.columns([8, 3], gap="medium")
    with wide:
        figure = gate_scatter(
            gate,
            up,
            gated,
            np.abs(act) <= found.limit,
            [one.index for one in loud],
            (x, curves(x)[_own(view)]),
            curve_name=_own(view),
            dark=dark(),
        )
        meta, notes = meta_of(figure), []
        if meta["drawn"] < meta["total"]:
            drawn, total = numbers.exact(meta["drawn"]), numbers.exact(meta["total"])
            notes.append(t("mlp.scatter.some", drawn=drawn, total=total))
        if meta["edge"]:
            notes.append(t("mlp.scatter.edge", n=numbers.exact(meta["edge"])))
        chart(figure, "gate", notes, t("mlp.scatter.look", n=len(loud), curve=_own(view), **_where(view)))
    with narrow:
        _numbers(view, found, gated, loud)


def _numbers(view: View, found: Shut, gated: np.ndarray, loud: tuple[Neuron, ...]) -> None:
    F, quiet, negative = gated.size, float(found.quiet[view.token]), float(found.negative[view.token])
    whole = float(np.square(gated.astype(np.float64)).sum())
    part = sum(one.gated**2 for one in loud) / whole if whole else np.nan
    with st.container(key="gl-narrow-gate"):
        numbers_grid(
            [
                (t("mlp.number.neurons"), numbers.exact(F), str(F), t("mlp.number.neurons.small")),
                (t("mlp.number.quiet"), numbers.percent(quiet), repr(quiet), t("mlp.number.quiet.small")),
                (t("mlp.number.negative"), numbers.percent(negative), repr(negative), t("mlp.number.negative.small")),
                (t("mlp.number.loud", n=len(loud)), numbers.percent(part), repr(part), t("mlp.number.loud.small")),
            ]
        )
    caption(t("mlp.quiet.means", band=numbers.percent(BAND), limit=numbers.short(found.limit)))
    if loud:
        first = loud[0]
        st.html(f'<p class="gl-caption">{escape(t("mlp.formula", neuron=first.index))}</p>')
        st.latex(
            rf"\small \begin{{aligned}} g_{{{first.index}}} &= {numbers.short(first.gate)} \\"
            rf" \mathrm{{{_own(view)}}}(g) &= {numbers.short(first.act)} \\"
            rf" u_{{{first.index}}} &= {numbers.short(first.up)} \\"
            rf" \mathrm{{{_own(view)}}}(g)\cdot u &= {numbers.short(first.gated)} \end{{aligned}}"
        )


def strips(view: View) -> None:
    """gate, the curve, up and their product, one row each."""
    st.subheader(plain_markdown(t("mlp.strips", **_where(view))), anchor=False)
    values = np.stack([view.trace[At(view.layer, step)][0, view.token] for step in STRIPS])
    names = ["gate", f"{_own(view)}(gate)", "up", t("mlp.product")]
    figure = heatmap.value_map(
        values,
        rows=names,
        row_axis=t("mlp.strip"),
        name=t("mlp.strips.name", layer=view.layer),
        col_axis=t("mlp.neuron"),
        height=258,
        dark=dark(),
    )
    figure = heatmap.name_rows(figure, names)
    chart(figure, "strips", heatmap.notes(figure), t("mlp.strips.look"))


def shut_by_layer(view: View) -> None:
    """The share of shut neurons in every layer."""
    st.subheader(t("mlp.layers"), anchor=False)
    as_it_fills(view.survey(), lambda found: _shut_by_layer(view, found))


def _shut_by_layer(view: View, found: Survey) -> None:
    shares = [one.shut for one in found.layers]
    figure = layer_lines(
        [
            Line(t("mlp.layers.quiet"), [one.quiet_share for one in shares], "mlp"),
            Line(t("mlp.layers.here", position=view.position), [one.quiet[view.token] for one in shares], "mlp", "dot"),
            Line(t("mlp.layers.negative"), [one.negative_share for one in shares], "residual"),
        ],
        name=t("mlp.layers.axis"),
        layer_axis=t("pick.layer"),
        alt=t("mlp.layers.alt", n=len(shares)),
        layers=found.total,
        chosen=view.layer,
        ends=(0.0, 1.02),
        shares=True,
        dark=dark(),
    )
    chart(figure, "shut", look=t("mlp.layers.look", band=numbers.percent(BAND)))


def effects(view: View, loud: tuple[Neuron, ...], found: tuple[Written, ...]) -> None:
    """The loudest neurons and what each writes through down_proj."""
    st.subheader(plain_markdown(t("mlp.neurons", **_where(view))), anchor=False)
    header = ("neuron", "gate", "act", "up", "product", "size", "promoted", "demoted")
    rows = [
        (
            str(one.index),
            *(numbers.short(value) for value in (one.gate, one.act, one.up, one.gated, each.size)),
            *("  ".join(view.piece(token) for token, _ in tokens) for tokens in (each.promoted, each.demoted)),
        )
        for one, each in zip(loud, found, strict=True)
    ]
    table([t(f"mlp.neurons.{name}", curve=_own(view)) for name in header], rows)
    plain = "" if view.model.kind != "random" else " " + t("mlp.neurons.random")
    caption(t("mlp.neurons.look") + plain)


def other_curves(view: View) -> None:
    """The same gates through the curves of other models."""
    st.subheader(t("mlp.curves"), anchor=False)
    gate = view.trace[At(view.layer, steps.GATE)][0, view.token]
    changes = view.once(("curves", view.layer, view.token), lambda: compare_curves(view.trace, view.layer, view.token))
    usual = float(np.percentile(np.abs(gate[np.isfinite(gate)]), 99)) if np.isfinite(gate).any() else 1.0
    x = np.linspace(-1, 1, 401) * max(usual, 3.0)
    left, right = st.columns(2, gap="medium")
    with left:
        figure = curve_lines(x, curves(x), _own(view), dark=dark())
        chart(figure, "curves", look=t("mlp.curves.look"))
    with right:
        table(
            [t(f"mlp.curves.{name}") for name in ("name", "cosine", "largest")],
            [
                (
                    t("mlp.curves.own", name=one.name) if one.name == _own(view) else one.name,
                    numbers.short(one.cosine, 5),
                    numbers.short(one.largest),
                )
                for one in changes
            ],
        )
        act, own = view.trace.config.hidden_act, _own(view)
        caption(t("mlp.curves.table", own=own, act=act, token=view.words[view.token], layer=view.layer))
