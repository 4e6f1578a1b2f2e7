"""The picture of one step: the right map for its axes, with the prompt's tokens as labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from llama_core.steps import AXES, Step
from pages.words import t

from .heatmap import attention_map, value_map
from .pooling import LIMIT


def has_heads(step: Step) -> bool:
    """Whether a head has to be chosen to see the step as a map."""
    return "Hq" in step.axes or "Hkv" in step.axes


def head_slice(step: Step, values: np.ndarray, head: int, dims: Mapping[str, int]) -> np.ndarray:
    """The 2-D map of one query head, or of the key/value head that it reads. values: [all axes of the step], or it."""
    if values.ndim == 2:
        return values
    row = values[0]
    if "Hkv" in step.axes:
        return row[:, head // (dims["Hq"] // dims["Hkv"])]
    if "Hq" not in step.axes:
        return row
    return row[head] if step.causal else row[:, head]


def head_label(step: Step, head: int, dims: Mapping[str, int]) -> str:
    """ "Q2 → KV1" for what belongs to a query head, "KV1, read by Q3 Q4 Q5" for what a group shares."""
    group = dims["Hq"] // dims["Hkv"]
    kv = head // group
    if "Hkv" in step.axes:
        readers = " ".join(f"Q{h}" for h in range(kv * group, kv * group + group))
        return t("figures.tensor.kv", kv=kv, readers=readers)
    if "Hq" in step.axes:
        return f"Q{head} → KV{kv}"
    return ""


def tensor_map(
    step: Step,
    values: np.ndarray,
    *,
    labels: Sequence[str],
    dims: Mapping[str, int],
    keys: Sequence[str] | None = None,
    head: int = 0,
    cell: tuple[int, int | None] | None = None,
    visible: np.ndarray | None = None,
    dark: bool = False,
    difference: bool = False,
    limit: int = LIMIT,
    part: tuple[range, range] | None = None,
) -> go.Figure:
    """One step as a map: tokens down; keys, or the last axis, to the right.

    values: all axes of the step, or the map of the one head. labels: the tokens of this pass, one per query position.
    keys: those of all S positions, cached ones too; without them these are numbers. visible: which keys a query may see
    [T S]; the rest is masked. cell: the (row, column) to outline, (row, None) for a row; rows are positions, which
    count the past. difference: values are a difference, so weights too have a sign. limit: as in `pool`. part: the rows
    and columns of the map that are shown, None for all.
    """
    cells, past = head_slice(step, values, head, dims), dims["S"] - dims["T"]
    keys = [f"{n}" for n in range(past)] + list(labels) if keys is None else list(keys)
    rows, start = (keys, 0) if "S" in step.axes[:-1] else (list(labels), past)
    down, across = part or tuple(map(range, cells.shape))
    cells, rows, keys = _cut(cells, down, across), rows[down.start : down.stop], keys[across.start : across.stop]
    visible = None if visible is None else _cut(visible, down, across)
    name = head_label(step, head, dims)
    if step.causal and not difference:
        return attention_map(
            cells,
            masked=None if visible is None else ~visible,
            query_labels=rows,
            key_labels=keys,
            q_head=head,
            kv_head=head // (dims["Hq"] // dims["Hkv"]),
            kind=step.key,
            dark=dark,
            query_start=start + down.start,
            key_start=across.start,
            chosen=cell,
            limit=limit,
        )
    last = step.axes[-1]
    return value_map(
        cells,
        rows=rows,
        row_axis=t("figures.map.query") if step.causal else t("figures.tensor.token"),
        col_axis=AXES[last] if last != "S" else t("figures.map.key"),
        cols=keys if last == "S" else None,
        masked=~visible if step.causal and visible is not None else None,
        name=name,
        chosen=cell,
        limit=limit,
        row_start=start + down.start,
        col_start=across.start,
        dark=dark,
        square=last == "S",
        height=_height(len(rows), square=last == "S"),
    )


def _cut(cells: np.ndarray, down: range, across: range) -> np.ndarray:
    return cells[down.start : down.stop, across.start : across.stop]


def _height(rows: int, square: bool) -> int:
    return 440 if square else int(min(max(130 + 26 * rows, 200), 440))
