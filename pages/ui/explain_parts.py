"""The tab that explains one cell: what its number is, the terms that make it, and the way back to the token."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np
import streamlit as st

from llama_core import explaining
from llama_core.errors import AddressError
from llama_core.explaining import Explanation, Factor, Sum, Term, Weight
from llama_core.steps import At
from llama_core.trace import describe
from pages.figures import numbers, theme
from pages.ui.echo import asset
from pages.ui.frame import View
from pages.ui.parts import caption, dark, numbers_grid, plain_markdown
from pages.ui.session import CHOICES, here_only, session
from pages.words import group, t

Index = tuple[int, ...]
DIGITS = 4
"""Of every number in an explanation, as in its formula: three would not let a person follow the sum."""

_NAMES = group("explain.name.")
_terms = st.components.v2.component(
    "glass_llama_terms",
    html='<div class="gl-terms"></div>',
    css=asset("terms.css"),
    js=asset("echo.js", "terms.js"),
)


# --- which cell ---


def cell_of(view: View) -> Index:
    """The chosen cell of the step: token and head as they are chosen everywhere, the rest as picked, else the largest.

    The key axis of `k_shared` and `v_shared` follows the token, but for a row of the cache that was picked.
    """
    step = view.at.step
    shared = _shared(view)
    picked = _numbers(session()["cell"])
    if len(picked) != len(step.axes):
        picked = None
    index = [shared.get(axis, 0) for axis in step.axes]
    if step.axes[1] == "S":
        index[1] = picked[1] if picked and picked[1] < view.trace.past else view.position
    # Of maps one head's: of a long run no other is made.
    row = view.trace.head(view.at, view.head)[view.token] if step.causal else view.trace[view.at][tuple(index[:-1])]
    index[-1] = picked[-1] if picked and picked[-1] < len(row) else _largest(view, row)
    return tuple(index)


def cell_on_map(view: View) -> tuple[int, int]:
    """The position of the chosen cell's row in the step's map, and its column."""
    index = cell_of(view)
    return index[1] if view.at.step.axes[1] == "S" else view.position, index[-1]


def _shared(view: View) -> dict[str, int]:
    """What is chosen on every page, by axis."""
    return {"T": view.token, "Hq": view.head, "Hkv": view.head // view.trace.config.group}


def _numbers(cell: str | None) -> Index:
    return () if cell is None else tuple(map(int, cell.split(",")))


def _largest(view: View, row: np.ndarray) -> int:
    sizes = np.nan_to_num(np.abs(row), nan=np.inf)
    if view.at.step.causal:
        sizes = np.where(view.trace.visible(view.at)[view.token], sizes, -1)
    return int(sizes.argmax())


def go(view: View, at: At, index: Sequence[int], **also: Any) -> None:
    """Choose a cell: its step, and the token and head that it belongs to. A row of weights has no last number."""
    past, size = view.trace.past, view.trace.config.group
    chosen: dict[str, Any] = {"at": str(at), "show": "explain", "cell": None} | also
    if at.step.axes != view.at.step.axes:
        chosen["window"] = None
    for axis, i in zip(at.step.axes, index, strict=False):
        if axis == "T" or (axis == "S" and at.step.axes[1] == "S" and i >= past):
            chosen["token"] = i + (past if axis == "T" else 0)
        elif axis == "Hq" or (axis == "Hkv" and view.head // size != i):
            chosen["head"] = i if axis == "Hq" else i * size
    if len(index) == len(at.step.axes):
        chosen["cell"] = ",".join(map(str, index))
    session().choose(**chosen)


def pick(view: View, row: int, column: int) -> None:
    """Choose the cell at a place of the step's map: the position of its row, and its column."""
    index = list(cell_of(view))
    down = view.at.step.axes.index("S" if view.at.step.axes[1] == "S" else "T")
    index[down] = row - (0 if view.at.step.axes[down] == "S" else view.trace.past)
    index[-1] = column
    go(view, view.at, index)


def place_of(view: View, at: At, index: Sequence[int]) -> str:
    """A cell in words: "token 3 ·France, head 2, dimension 17"."""
    return ", ".join(_place(view, axis, i) for axis, i in zip(at.step.axes, index, strict=False) if axis != "B")


def _place(view: View, axis: str, i: int) -> str:
    name = t(f"explain.axis.{axis}")
    if axis not in ("T", "S"):
        return t("explain.place", axis=name, n=i)
    position = i + (view.trace.past if axis == "T" else 0)
    return t("explain.place.token", axis=name, n=position, text=view.keys[position])


def explanation(view: View) -> Explanation:
    """The chosen cell's."""
    index = cell_of(view)
    return view.once(("explain", view.at, index), lambda: explaining.explain(view.trace, view.at, index))


def formula(view: View) -> str:
    """LaTeX: the step's formula with the numbers of the chosen cell."""
    found = explanation(view)
    name = str(found.at).replace("_", r"\_")
    numbers_in = found.formula.partition(" = ")[2] if found.kind in _COPIES else found.formula
    sign = "=" if found.kind in _COPIES else r":\quad"
    return rf"\texttt{{{name}}}\,[{', '.join(map(str, found.index[1:]))}]{sign} {numbers_in}"


_COPIES = ("row", "copy", "shared", "cached")
"""Kinds whose number stood elsewhere before: its formula would say a = a."""


def picked(view: View) -> None:
    """Beside the map: the chosen cell and its number, and where it is explained."""
    found = explanation(view)
    place = place_of(view, found.at, found.index)
    st.html(f'<p class="gl-picked">{escape(place)}<b>{escape(_short(found.value))}</b></p>')
    caption(t("explain.below" if session()["show"] == "explain" else "explain.tab"))


# --- the tab ---


def explain(view: View) -> None:
    """One cell, in numbers."""
    found = explanation(view)
    _ask(view, found)
    _headline(view, found)
    _words(view, found)
    if found.terms and found.kind != "cached":
        _table(view, found.shown, "terms", _short(found.total))
        caption(" ".join([*_verdict(view, found), *_parameters(found), *_links(found)]))
    if found.quantities and found.kind != "projection":  # its row stands beside its weights
        numbers_grid(map(_quantity, found.quantities.items()))
    if found.inner is not None:
        title = t(f"explain.inner.{found.kind}", total=_short(found.inner.total))
        with st.expander(plain_markdown(title)):
            _table(view, found.inner, "terms.inner", _short(found.inner.total))


def _ask(view: View, found: Explanation) -> None:
    """The index, one number for each axis: typed here, or set by a click on the map."""
    dims = view.trace.dims
    with st.container(horizontal=True, gap="small", key="gl-index"):
        for place, (axis, i) in enumerate(zip(view.at.step.axes, found.index, strict=True)):
            if axis == "B":
                continue
            past = view.trace.past if axis == "T" else 0
            last = view.passes.read - 1 if axis == "T" else dims[axis] - 1
            key = f"explain.{axis}"
            if st.session_state.get(key) != i + past:
                st.session_state[key] = i + past
            label = t("explain.ask", axis=t(f"explain.axis.{axis}"), letter=axis)
            typed = here_only(partial(_typed, view, place, key))
            st.number_input(label, 0, last, key=key, on_change=typed, width=108)


def _typed(view: View, place: int, key: str) -> None:
    value = st.session_state[key]
    if not isinstance(value, int):
        return
    axis, index = view.at.step.axes[place], list(cell_of(view))
    if axis == "T":  # a position, perhaps of another pass
        session().choose(token=value)
        return
    index[place] = value
    go(view, view.at, index)


def _headline(view: View, found: Explanation) -> None:
    place = t("explain.at", place=place_of(view, found.at, found.index))
    value = _short(found.value)
    st.html(
        f'<p class="gl-cell"><code>{escape(str(found.at))}</code> {escape(place)} '
        f'<span>=&nbsp;<b title="{found.value!r}">{escape(value)}</b></span></p>'
    )


def _words(view: View, found: Explanation) -> None:
    """What happened, in a sentence; for a row of the cache also the way to the pass that made it."""
    st.html(f'<p class="gl-what">{escape(_what(view, found))}</p>')
    if found.kind == "cached":
        position = found.index[1]
        st.button(
            plain_markdown(t("explain.cached.open", token=view.keys[position])),
            icon=":material/arrow_back:",
            on_click=lambda: session().choose(token=position),
        )
    if found.edited:
        st.html(
            '<div class="gl-say gl-say-note" role="status">'
            f"{escape(t('explain.edited', value=_short(found.value), total=_short(found.total)))}</div>"
        )


def _what(view: View, found: Explanation) -> str:
    kind, index, config, given = found.kind, found.index, view.trace.config, found.quantities
    if kind == "row":
        return t("explain.row", d=index[-1], id=given["id"], token=view.words[index[1]])
    if kind == "copy":
        return t("explain.copy", source=describe(view.trace.walk.sources(found.at)[0]))
    if kind == "shared" and config.group == 1:
        return t("explain.shared.own")
    if kind == "shared":
        return t("explain.shared", group=config.group, head=given["query head"], kv=given["key/value head"])
    if kind == "cached":
        return t("explain.cached", token=_token(view, index[1]))
    if kind == "projection":
        return t("explain.projection", n=numbers.exact(_count(found.shown)))
    if kind == "rotation":
        said = {name: _short(given[name]) for name in ("angle", "frequency")}
        return t("explain.rotation", position=given["position"], **said)
    if kind in ("future", "window"):
        key, query = (_token(view, given[f"{name} position"]) for name in ("key", "query"))
        return t(f"explain.{kind}", key=key, query=query, **({"window": given["window"]} if kind == "window" else {}))
    if kind in ("softmax", "mixture"):
        return t(f"explain.{kind}", keys=given["keys"])
    return t(f"explain.{kind}", width=config.head_dim)


def _token(view: View, position: int) -> str:
    return f"{position} {view.keys[position]}"


def _count(shown: Sum) -> int:
    return len(shown.terms) + (0 if shown.rest is None else shown.rest.count)


def _verdict(view: View, found: Explanation) -> list[str]:
    """How well the terms meet the cell. An edited cell has had its sentence."""
    if found.edited and not found.adds_up:
        return []
    if found.difference == 0:
        return [t("explain.exact")]
    said = {
        "difference": numbers.short(abs(found.difference), 2),
        "bound": numbers.short(found.bound, 2),
        "dtype": view.trace.dtype,
    }
    if found.adds_up:
        return [t("explain.adds_up", **said)]
    return [t("explain.apart", total=_short(found.total), value=_short(found.value), **said)]


def _parameters(found: Explanation) -> list[str]:
    """The weights that took part, by their Hugging Face names."""
    sources = [f.source for term in found.terms for f in term.factors if isinstance(f.source, Weight)]
    names = {}
    for source in sources:
        if len(source.index) == 2 and found.kind == "projection":
            names[t("explain.weight.row", row=source.index[0], name=source.name)] = None
        else:
            names[t("explain.weight.cell", name=source.name, index=list(source.index))] = None
    return [t("explain.weights", names=", ".join(names))] if names else []


def _links(found: Explanation) -> list[str]:
    cells = any(isinstance(f.source, explaining.Cell) for term in found.terms for f in term.factors)
    return [t("explain.links")] if cells else []


def _quantity(item: tuple[str, float]) -> tuple[str, str, str, str]:
    name, value = item
    shown = numbers.exact(value) if isinstance(value, int) else _short(value)
    return t(f"explain.quantity.{name}"), shown, repr(value), ""


def _short(x: float) -> str:
    return numbers.short(x, DIGITS)


# --- the table of terms ---


def _table(view: View, shown: Sum, key: str, total: str) -> None:
    """A sum as a table; its cells are links."""
    data = terms_of(view, shown, total) | {"texts": group("terms."), "colours": _colours()}
    _terms(key=key, data=data, on_go_change=here_only(partial(_followed, view, key)))


def _colours() -> tuple[str, str]:
    """Of terms below and above zero: as on the maps."""
    scale = theme.diverging(dark())
    return scale[1][1], scale[-2][1]


def _followed(view: View, key: str) -> None:
    """A link was pressed: the cell it names, if there is one. A browser can send anything."""
    said = (st.session_state.get(key) or {}).get("go")
    if not isinstance(said, str):
        return
    at, _, cell = said.partition(" ")
    try:
        index = _numbers(CHOICES["cell"].read(cell))
        go(view, view.trace.walk.parse(at), index)
    except (ValueError, AddressError):
        return


def terms_of(view: View, shown: Sum, total: str) -> dict[str, Any]:
    """What the browser draws: the headings of the factors, a row per term, the rest, and the total."""
    columns = max(len(term.factors) for term in shown.terms)
    heads = [_heading(shown.terms, i) for i in range(columns)]
    sizes = [abs(term.value) for term in shown.terms] + ([abs(shown.rest.value)] if shown.rest else [])
    widest = max((size for size in sizes if math.isfinite(size)), default=0.0) or 1.0
    rest = None
    if shown.rest is not None:
        n = shown.rest.count
        label = t("terms.rest.one") if n == 1 else t("terms.rest", n=numbers.exact(n))
        rest = _line(label, shown.rest.value, widest)
    whole = {**_line(t("terms.total"), shown.total, math.inf), "value": total}
    return {
        "heads": heads,
        "rows": [_row(view, term, heads, widest) for term in shown.terms],
        "rest": rest,
        "total": whole if _count(shown) > 1 else None,
    }


def _heading(terms: Sequence[Term], i: int) -> str:
    """The name of a column where all terms have the same there."""
    names = {term.factors[i].name if i < len(term.factors) else None for term in terms}
    return _name(names.pop() or "") if len(names) == 1 else ""


def _name(name: str) -> str:
    return _NAMES.get(f"explain.name.{name}", name.removeprefix("self_attn.").removeprefix("mlp."))


def _row(view: View, term: Term, heads: Sequence[str], widest: float) -> dict[str, Any]:
    factors = [_factor(factor, heads[i], term.label) for i, factor in enumerate(term.factors)]
    return _line(_label(view, term.label), term.value, widest) | {"factors": factors}


def _line(label: str, value: float, widest: float) -> dict[str, Any]:
    share = value / widest if math.isfinite(value) and math.isfinite(widest) else None
    return {"label": label, "value": _short(value), "exact": repr(value), "share": share}


def _label(view: View, label: str) -> str:
    """ "S 3" as "key 3 ·France", "Hq 2, Dh 5" as "head 2, dimension 5"; what is no axis stays."""

    def words(match: re.Match[str]) -> str:
        axis, n = match[1], int(match[2])
        return _place(view, axis, n) if f"explain.axis.{axis}" in _AXES else match[0]

    return re.sub(r"(\w+) (\d+)", words, label)


_AXES: Mapping[str, str] = group("explain.axis.")


def _factor(factor: Factor, heading: str, label: str) -> dict[str, Any]:
    name, source = _name(factor.name), factor.source
    data: dict[str, Any] = {"value": _short(factor.value), "exact": repr(factor.value)}
    if not heading and factor.name != label:
        data["name"] = name
    if isinstance(source, Weight):
        data |= {"index": f"[{', '.join(map(str, source.index))}]", "exact": f"{source} = {factor.value!r}"}
    elif source is not None:
        index = ",".join(map(str, source.index))
        data |= {
            "index": f"[{', '.join(map(str, source.index[1:]))}]",
            "exact": f"{source} = {factor.value!r}",
            "where": str(source),
            "to": f"{source.at} {index}",
        }
    return data
