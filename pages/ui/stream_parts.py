"""The parts of the page about the residual stream: its size, what is added to it, and the norms that tame it."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from llama_core import steps
from llama_core.norms import Compared, NormReading, against_bfloat16, against_layer_norm, read_norm, rms
from llama_core.steps import ATTN_NORM, At, Step
from llama_core.survey import Survey
from pages.figures import heatmap, numbers, theme
from pages.figures.layer_lines import Line, layer_lines
from pages.figures.log_map import log_map
from pages.figures.norms import difference_points, sizes_over_tokens, weight_line
from pages.ui.frame import View
from pages.ui.parts import as_it_fills, caption, chart, dark, numbers_grid, plain_markdown, table
from pages.ui.session import bind_stage, session
from pages.words import t

OUTLIER = 10
"""From this ratio on, the first token's stream is called an outlier."""
NORMS = (steps.ATTN_NORM, steps.MLP_NORM, steps.Q_NORM, steps.K_NORM, steps.FINAL_NORM)
EPSILONS = (0.0, 1e-6, 1e-5, 1e-3)


def lead() -> None:
    """What the page is about."""
    st.html(f'<p class="gl-lead">{escape(t("stream.lead"))}</p>')


def _here(view: View) -> dict[str, object]:
    return {"token": view.words[view.token], "position": view.position}


# --- how it grows ---


def growth(view: View) -> None:
    """The stream's size by layer and token, then what the chosen token is given in each layer."""
    as_it_fills(view.survey(), lambda found: _growth(view, found))


def _growth(view: View, found: Survey) -> None:
    layers = [one.growth for one in found.layers]
    if not layers:
        return
    sizes = np.stack([layers[0].before, *(one.after for one in layers)])
    rows = [t("stream.embed"), *(str(one.layer) for one in found.layers)]
    figure = log_map(
        sizes,
        rows=rows,
        cols=view.words,
        row_axis=t("stream.after"),
        col_axis=t("stream.token"),
        name=t("stream.map.name"),
        colour=theme.kind_colour("residual", dark()),
        pick=True,
        column=view.position,
        col_start=view.trace.past,
        numbered=False,
        height=max(300, 15 * (found.total + 1) + 150),
        dark=dark(),
    )
    click = t("stream.map.click") if theme.meta_of(figure)["pickable"] else ""
    chart(figure, "stream", [click, *heatmap.notes(figure)], t("stream.map.look"), on_pick=_open)
    _outlier(layers)
    _added(view, found)


def _open(x: float, y: float) -> None:
    changes = {"token": round(x)}
    if round(y) >= 1:
        changes["at"] = str(At(round(y) - 1, ATTN_NORM))
    session().choose(**changes)


def _outlier(layers) -> None:
    """The first token's size against the others, where it stands out."""
    with np.errstate(invalid="ignore", divide="ignore"):  # a stream of zeros has no ratio
        ratios = np.array([one.first_ratio for one in layers])
    high = np.flatnonzero(ratios >= OUTLIER)
    if not high.size:
        return
    top = int(np.argmax(np.nan_to_num(ratios)))
    one = layers[top]
    text = t(
        "stream.outlier",
        n=high.size,
        least=OUTLIER,
        first=int(high[0]),
        last=int(high[-1]),
        layer=top,
        size=numbers.short(one.after[0]),
        others=numbers.short(np.median(one.after[1:])),
        ratio=numbers.short(ratios[top]),
    )
    st.html(f'<p class="gl-lead">{escape(text)}</p>')


def _added(view: View, found: Survey) -> None:
    st.subheader(plain_markdown(t("stream.added", **_here(view))), anchor=False)
    at, layers = view.token, [one.growth for one in found.layers]
    shared = {"layer_axis": t("pick.layer"), "layers": found.total, "chosen": view.layer, "dark": dark()}
    left, right = st.columns(2, gap="medium")
    with left:
        figure = layer_lines(
            [
                Line(t("stream.line.stream"), [one.before[at] for one in layers], "residual"),
                Line(t("stream.line.attention"), [one.attention[at] for one in layers], "attention"),
                Line(t("stream.line.mlp"), [one.mlp[at] for one in layers], "mlp"),
            ],
            name="rms",
            alt=t("stream.sizes.alt", **_here(view)),
            log=True,
            **shared,
        )
        chart(figure, "sizes", look=t("stream.sizes.look"))
    with right:
        figure = layer_lines(
            [
                Line(t("stream.line.attention"), [one.attention_cosine[at] for one in layers], "attention"),
                Line(t("stream.line.mlp"), [one.mlp_cosine[at] for one in layers], "mlp"),
            ],
            name=t("stream.cosine"),
            alt=t("stream.cosines.alt", **_here(view)),
            ends=(-1.05, 1.05),
            zero=True,
            **shared,
        )
        chart(figure, "cosines", look=t("stream.cosines.look"))


# --- the norms ---


def _norm(view: View) -> Step:
    return view.at.step if view.at.step in NORMS else ATTN_NORM


def norm(view: View) -> None:
    """One norm from inside: before and after, its weight, and how other norms would differ."""
    st.subheader(t("stream.norm"), anchor=False)
    offered = {step.key: step for step in NORMS if view.trace.walk.has(step)}
    step = _norm(view)
    st.segmented_control(
        t("stream.norm.which"),
        list(offered),
        label_visibility="collapsed",
        required=True,
        **bind_stage(view.layer, step, offered),
    )
    at = At(view.layer if step.scope == "layer" else None, step)
    found = view.once(("norm", at), lambda: read_norm(view.trace, view.llama, at))
    found = _one_head(found, view.head)
    _before_and_after(view, at, found)
    _numbers(view, found)
    _others(view, found)


def _one_head(found: NormReading, head: int) -> NormReading:
    """Norms of queries and keys have a vector per head: the chosen one, or the key head that it reads."""
    if found.before.ndim == 2:
        return found
    head = min(head, found.before.shape[1] - 1)
    cut = {
        name: getattr(found, name)[:, head]
        for name in ("before", "scaled", "after", "mean_square", "scale", "eps_share")
    }
    return NormReading(found.source, weight=found.weight, eps=found.eps, **cut)


def _before_and_after(view: View, at: At, found: NormReading) -> None:
    left, right = st.columns([3, 2], gap="medium")
    with left:
        figure = sizes_over_tokens(
            rms(found.before),
            rms(found.after),
            found.scale,
            view.words,
            chosen=view.position,
            start=view.trace.past,
            dark=dark(),
        )
        chart(figure, "norm", look=t("stream.norm.look", source=found.source, at=at))
    with right:
        figure = weight_line(found.weight, dark=dark())
        same = float(np.ptp(found.weight)) == 0
        chart(figure, "weight", look=t("stream.weight.look.same" if same else "stream.weight.look"))


def _numbers(view: View, found: NormReading) -> None:
    i, eps = view.token, found.eps
    square, scale, mean = float(found.mean_square[i]), float(found.scale[i]), float(found.before[i].mean())
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.latex(
            r"\small \text{scale}=\frac{1}{\sqrt{\frac1N\sum x^2+\varepsilon}}"
            rf"=\frac{{1}}{{\sqrt{{{_tex(square)}+{_tex(eps)}}}}}={_tex(scale)},\quad N={found.weight.size}"
        )
    with right:
        table(
            [t("stream.eps"), t("stream.eps.scale"), t("stream.eps.change")],
            [_eps_row(value, square, scale, eps) for value in sorted({*EPSILONS, eps})],
        )
        caption(t("stream.eps.look", **_here(view)))
    share, most = float(found.eps_share[i]), int(found.eps_share.argmax())
    numbers_grid(
        [
            (
                t("stream.number.square"),
                numbers.short(square),
                repr(square),
                t("stream.number.here", **_here(view)),
            ),
            (t("stream.number.scale"), numbers.short(scale), repr(scale), t("stream.number.scale.small")),
            (t("stream.number.mean"), numbers.short(mean), repr(mean), t("stream.number.mean.small")),
            (t("stream.number.eps"), numbers.percent(share), repr(share), t("stream.number.eps.small")),
            (
                t("stream.number.most"),
                numbers.percent(float(found.eps_share[most])),
                repr(float(found.eps_share[most])),
                t("stream.number.most.small", position=view.trace.past + most),
            ),
        ]
    )


def _eps_row(value: float, square: float, scale: float, own: float) -> tuple[str, str, str]:
    name = t("stream.eps.own", eps=f"{value:g}") if value == own else f"{value:g}"
    with np.errstate(divide="ignore"):
        other = float(1 / np.sqrt(np.float64(square) + value))
    return name, numbers.short(other), "–" if value == own else f"{numbers.signed(100 * (other / scale - 1))} %"


def _tex(x: float) -> str:
    """A number for a formula: 0.0123, or a power of ten."""
    mantissa, _, power = numbers.short(x).partition("e")
    return rf"{mantissa}\cdot 10^{{{int(power)}}}" if power else mantissa


def _others(view: View, found: NormReading) -> None:
    """LayerNorm, and statistics in bfloat16, on the same vectors."""
    st.subheader(plain_markdown(t("stream.others", **_here(view))), anchor=False)
    for column, (name, compare) in zip(
        st.columns(2, gap="medium"), (("layer", against_layer_norm), ("bfloat16", against_bfloat16)), strict=True
    ):
        with column:
            _against(view, name, compare(found))


def _against(view: View, name: str, other: Compared) -> None:
    i = view.token
    figure = difference_points(other.ours[i], other.other[i], name=t(f"stream.{name}.axis"), dark=dark())
    every = theme.meta_of(figure)["every"]
    notes = [t("stream.difference.some", every=every)] if every > 1 else []
    chart(figure, f"norm.{name}", notes, t(f"stream.{name}.look"))
    worst = int(np.argmax(other.largest))
    table(
        ["", t("stream.others.cosine"), t("stream.others.largest")],
        [
            (
                t("stream.others.here", **_here(view)),
                numbers.short(other.cosine[i], 7),
                numbers.short(other.largest[i]),
            ),
            (
                t("stream.others.worst", token=view.words[worst], position=view.trace.past + worst),
                numbers.short(other.cosine[worst], 7),
                numbers.short(other.largest[worst]),
            ),
        ],
    )
