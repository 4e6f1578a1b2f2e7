"""What each attention head does, as numbers from its captured weights. numpy only.

Weights are [Hq T S]: row t is the query at position past + t. A query that sees only itself has no choice,
so no measure counts it (without a cache that is query 0). Every measure is a mean over the counted queries
that can see the cell it asks about, and NaN where there is none: on a prompt of one token all are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .config import LlamaConfig
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """The measures of the heads of one layer, each [Hq] float64.

    entropy: -sum(a ln a) of a query's weights, in nats; 0 looks at one token, ln n evenly at n.
    spread: entropy / ln(number of visible keys), 0..1, so that early and late queries compare.
    first: weight on the token at position 0 (a sink when it is large). previous: on the position before.
    itself: on the query's own position.
    duplicate: weight on the latest earlier position with the same id, over the queries that have one.
    induction: weight on the position *after* the latest earlier one with the same id that has a successor
    before the query: what came next last time. Only ids of this pass are known; cached ones take no part.
    distance: mean number of positions back, each key counted by its weight.
    """

    entropy: np.ndarray
    spread: np.ndarray
    first: np.ndarray
    previous: np.ndarray
    itself: np.ndarray
    duplicate: np.ndarray
    induction: np.ndarray
    distance: np.ndarray


Progress = Callable[[float], None]
"""Told the share of heads that are read, now and then; what it raises ends the reading."""
CELLS = 1 << 22
"""Most cells of maps that are read at once: the heads of a short prompt together, those of a long one one by one."""
TOGETHER = 1 << 24
"""Most cells of maps that are compared with each other at once."""
MEASURES = tuple(field.name for field in fields(HeadMeasures))
"""The names of the measures, in the order of the table's columns."""


def measure_heads(weights: np.ndarray, ids: Sequence[int], visible: np.ndarray) -> HeadMeasures:
    """The measures of weights [Hq T S]. ids: of the T queries; visible: [T S] bool."""
    seen = visible.sum(axis=1)
    counted = _as_slice(np.flatnonzero(seen > 1))
    rows = weights[:, counted]
    entropies = entropy(rows)
    own = visible.shape[1] - len(ids) + np.arange(len(ids))
    back = np.subtract.outer(own[counted], np.arange(visible.shape[1]), dtype=np.float32)
    looks = {name: _weight_on(weights, keys, visible, seen) for name, keys in looked_for(ids, visible).items()}
    return HeadMeasures(
        entropy=_mean(entropies),
        spread=_mean(entropies / np.log(seen[counted])),
        distance=_mean(np.einsum("hts,ts->ht", rows, back)),
        **looks,
    )


def entropy(weights: np.ndarray) -> np.ndarray:
    """-sum over keys of a ln a, in nats; a weight of 0 adds nothing. [... S] -> [...] float64."""
    parts = np.log(np.maximum(weights, np.finfo(np.float32).tiny), dtype=np.float32)
    parts *= weights
    return -parts.sum(axis=-1, dtype=np.float64)


def _as_slice(places: np.ndarray) -> np.ndarray | slice:
    """Ascending places without a gap as a slice: what is taken there is a view, not a copy."""
    whole = places.size and places[-1] - places[0] == places.size - 1
    return slice(int(places[0]), int(places[-1]) + 1) if whole else places


def looked_for(ids: Sequence[int], visible: np.ndarray) -> dict[str, np.ndarray]:
    """Which key each measure asks about, per query; -1 where there is none. Each [T]."""
    T, S = visible.shape
    past = S - T
    own = past + np.arange(T)
    duplicate, induction = np.full(T, -1), np.full(T, -1)
    latest: dict[int, int] = {}  # the last place of each id before the query
    earlier: dict[int, int] = {}  # the same, with at least one position between
    for t, token in enumerate(ids):
        if t >= 1:
            latest[ids[t - 1]] = t - 1
        if t >= 2:
            earlier[ids[t - 2]] = t - 2
        if token in latest:
            duplicate[t] = past + latest[token]
        if token in earlier:
            induction[t] = past + earlier[token] + 1
    return {
        "first": np.zeros(T, dtype=int),
        "previous": own - 1,
        "itself": own,
        "duplicate": duplicate,
        "induction": induction,
    }


def _weight_on(weights: np.ndarray, keys: np.ndarray, visible: np.ndarray, seen: np.ndarray) -> np.ndarray:
    queries = np.arange(len(keys))
    asked = (keys >= 0) & visible[queries, keys] & (seen > 1)
    return _mean(weights[:, queries[asked], keys[asked]])


def _mean(values: np.ndarray) -> np.ndarray:
    """[Hq n] -> [Hq]; NaN without a value to take the mean of."""
    return values.mean(axis=1, dtype=np.float64) if values.shape[1] else np.full(len(values), np.nan)


# --- tables ---


def maps_of(trace: Trace, at: At) -> Iterator[np.ndarray]:
    """The maps of a T x S step, the heads in order and only as many at a time as CELLS allows. [some of Hq, T, S] each.

    No more than these need be there: what a long run does not hold is made for them alone.
    """
    Hq = trace.config.num_attention_heads
    some = max(1, CELLS // (trace.dims["T"] * trace.dims["S"]))
    for first in range(0, Hq, some):
        heads = [trace.head(at, head) for head in range(first, min(first + some, Hq))]
        yield np.stack(heads) if len(heads) > 1 else heads[0][None]


def heads_of(trace: Trace, layer: int, progress: Progress | None = None) -> HeadMeasures:
    """The measures of one layer of a trace."""
    visible, parts = trace.visible(layer), []
    for maps in maps_of(trace, At(layer, steps.WEIGHTS)):
        parts.append(measure_heads(maps, trace.ids, visible))
        if progress is not None:
            progress(sum(len(part.entropy) for part in parts) / trace.config.num_attention_heads)
    return joined(parts)


def joined(parts: Sequence[HeadMeasures]) -> HeadMeasures:
    """The measures of some heads and those of the next ones, as one."""
    return HeadMeasures(*map(np.concatenate, zip(*map(_columns, parts), strict=True)))


def _columns(measures: HeadMeasures) -> list[np.ndarray]:
    return [getattr(measures, name) for name in MEASURES]


def head_table(trace: Trace) -> pd.DataFrame:
    """One row per layer and head that the run computed: layer, head, kv (the head it reads), the measures."""
    layers = [i for i in range(trace.config.num_hidden_layers) if At(i, steps.WEIGHTS) in trace]
    return table_of(trace.config, ((layer, heads_of(trace, layer)) for layer in layers))


def table_of(config: LlamaConfig, layers: Iterable[tuple[int, HeadMeasures]]) -> pd.DataFrame:
    """The table of `head_table` from measures that are already there."""
    import pandas as pd

    rows = [
        (layer, head, head // config.group, *map(float, row))
        for layer, measures in layers
        for head, row in enumerate(zip(*_columns(measures), strict=True))
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "kv", *MEASURES])


def nearest_heads(table: pd.DataFrame, layer: int, head: int, n: int = 5) -> pd.DataFrame:
    """The n other heads of a `head_table` whose measures are most like this head's, the nearest first.

    Each measure is brought to mean 0 and spread 1 over all heads; `apart` is the Euclidean distance then.
    A measure that is NaN for some head, or the same for all, takes no part; without any, no head is listed.
    """
    values = np.column_stack([table[name].to_numpy(dtype=np.float64) for name in MEASURES])
    deviation = values.std(axis=0)
    used = deviation > 0  # False for NaN too
    if not used.any():
        return table.head(0).assign(apart=[])
    scaled = (values[:, used] - values[:, used].mean(axis=0)) / deviation[used]
    is_asked = (table["layer"].to_numpy() == layer) & (table["head"].to_numpy() == head)
    apart = np.linalg.norm(scaled - scaled[is_asked], axis=1)
    others = np.flatnonzero(~is_asked)
    nearest = others[np.argsort(apart[others], kind="stable")][:n]
    return table.iloc[nearest].assign(apart=apart[nearest])


# --- maps ---


def without_first(weights: np.ndarray) -> np.ndarray:
    """Weights with the first column hidden (NaN) and each row's rest brought back to a sum of 1. [... T S]

    A row that has nothing beside its first key becomes NaN.
    """
    kept = weights.astype(np.float32)
    rest = kept[..., 1:].sum(axis=-1, keepdims=True, dtype=np.float64)
    kept[..., 0] = np.nan
    if np.isnan(rest).any():
        rest = np.nansum(kept, axis=-1, keepdims=True, dtype=np.float64)
    return np.divide(kept, rest, out=np.full_like(kept, np.nan), where=rest > 0, casting="same_kind")


def alike(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Cosine between the weights maps of every two heads. [Hq T S] -> [Hq Hq] float64.

    Over the queries that see more than one key: the others are equal in every map. NaN where no query is left.
    """
    maps = weights[:, visible.sum(axis=1) > 1].reshape(len(weights), -1)
    return _cosines((maps @ maps.T).astype(np.float64))


def _cosines(products: np.ndarray) -> np.ndarray:
    sizes = np.sqrt(np.diagonal(products))
    with np.errstate(invalid="ignore"):
        return products / np.outer(sizes, sizes)


@dataclass(frozen=True, eq=False)
class GroupLikeness:
    """How alike the maps of one layer's query heads are: cosines [Hq Hq] and their means over pairs.

    within: pairs that share a key/value head (NaN where none do: MHA); across: all other pairs (NaN for MQA).
    """

    cosines: np.ndarray
    within: float
    across: float


def group_likeness(trace: Trace, layer: int, progress: Progress | None = None) -> GroupLikeness:
    """Mean cosine of the weights maps within key/value groups, against across them."""
    cosines = _cosines(_products(trace, layer, progress))
    kv = np.arange(len(cosines)) // trace.config.group
    pairs = np.triu(np.ones(cosines.shape, dtype=bool), 1)
    same = kv[:, None] == kv[None, :]
    within, across = cosines[pairs & same], cosines[pairs & ~same]
    return GroupLikeness(
        cosines, float(within.mean()) if within.size else np.nan, float(across.mean()) if across.size else np.nan
    )


def _products(trace: Trace, layer: int, progress: Progress | None) -> np.ndarray:
    """Of the maps of every two heads. [Hq Hq] float64. Of a long run, two blocks of maps at a time are there."""
    Hq, seen = trace.config.num_attention_heads, trace.visible(layer)
    counted, some = _as_slice(np.flatnonzero(seen.sum(axis=1) > 1)), max(1, TOGETHER // seen.size)
    blocks = [range(first, min(first + some, Hq)) for first in range(0, Hq, some)]

    def maps(heads: range) -> np.ndarray:
        return np.stack([trace.head(At(layer, steps.WEIGHTS), head)[counted].ravel() for head in heads])

    products = np.zeros((Hq, Hq))
    for i, down in enumerate(blocks):
        one = maps(down)
        for across in blocks[i:]:
            found = one @ (one if across is down else maps(across)).T
            products[down.start : down.stop, across.start : across.stop] = found
            products[across.start : across.stop, down.start : down.stop] = found.T
        if progress is not None:
            progress((i + 1) / len(blocks))
    return products


@dataclass(frozen=True, eq=False)
class TiledDifference:
    """head_out as it is, with query head h reading h // group, against tiled sharing, h % Hkv.

    each: [Hq] largest difference of a head's output, over all queries and widths; largest: of all heads.
    rms: of the captured head_out, to compare with. rounding: the largest difference between the captured
    head_out and the grouped one computed here in float64, which is what "the same" looks like. The tiled one is
    computed in float32.
    """

    each: np.ndarray
    largest: float
    rms: float
    rounding: float


def _seen_parts(visible: np.ndarray, size: int = 128) -> list[tuple[slice, slice, np.ndarray]]:
    """Some queries at a time, the keys between the first and the last that any of them sees, and the unseen of these.

    Half of a long map is never seen: it need not be computed.
    """
    parts = []
    for first in range(0, len(visible), size):
        rows = slice(first, first + size)
        seen = np.flatnonzero(visible[rows].any(axis=0))
        keys = slice(int(seen[0]), int(seen[-1]) + 1)
        parts.append((rows, keys, ~visible[rows, keys]))
    return parts


def tiled_difference(trace: Trace, layer: int, progress: Progress | None = None) -> TiledDifference:
    """What changes on this input when key/value heads are tiled (0 1 0 1) instead of grouped (0 0 1 1)."""
    import torch  # on all its threads; whoever only reads a record does without it

    config = trace.config
    q, k, v = (trace[At(layer, step)][0] for step in (steps.Q_ROT, steps.K_SHARED, steps.V_SHARED))
    k, v = k[:, :: config.group], v[:, :: config.group]  # S Hkv Dh: one of each group
    narrow = [torch.from_numpy(each.astype(np.float32)) for each in (q, k, v)]
    wide = [each.double() for each in narrow]  # what the run had is float32 at most
    captured, parts = trace[At(layer, steps.HEAD_OUT)][0], _seen_parts(trace.visible(layer))

    def head_out(values: list[torch.Tensor], head: int, kv: int) -> np.ndarray:
        (q, k, v), found = values, []
        for rows, keys, unseen in parts:
            scores = (q[rows, head] @ k[keys, kv].T).mul_(config.head_dim**-0.5)
            found.append(scores.masked_fill_(torch.from_numpy(unseen), -np.inf).softmax(-1) @ v[keys, kv])
        return torch.cat(found).numpy()  # T Dh

    each, rounding = np.zeros(config.num_attention_heads), 0.0
    for head in range(config.num_attention_heads):
        kv, tiled_kv = head // config.group, head % config.num_key_value_heads
        grouped = head_out(wide, head, kv)
        rounding = max(rounding, float(np.abs(grouped - captured[:, head]).max()))
        if tiled_kv != kv:
            each[head] = np.abs(head_out(narrow, head, tiled_kv) - grouped).max()
        if progress is not None:
            progress((head + 1) / len(each))
    return TiledDifference(each, float(each.max()), trace.stat(At(layer, steps.HEAD_OUT)).rms, rounding)
