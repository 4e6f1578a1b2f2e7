"""The small results of one run over all its layers, for the pages that show every layer at once.

A survey is filled layer by layer, from the first, and can be read by another thread at any time: a layer appears
when it is complete. It holds no tensor of the run. For 30 layers of 9 heads the maps are 2.2 MB (twice 64 x 64
bytes each), however long the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .config import LlamaConfig
from .gate import Shut, shut
from .heads import HeadMeasures, joined, maps_of, measure_heads, table_of, without_first
from .norms import LayerGrowth, layer_growth
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    import pandas as pd

SIDE = 64
"""Most rows and columns of a map."""


@dataclass(frozen=True, eq=False)
class LayerSurvey:
    """One layer. maps: [Hq h w] uint8, the largest weight of each block times 255, rounded; h and w at most SIDE.

    rest: the same without the first key, each row's other weights brought back to a sum of 1.
    hidden: [h w] bool, cells of the maps whose queries may see none of their keys: blank, not zero.
    """

    layer: int
    maps: np.ndarray
    rest: np.ndarray
    hidden: np.ndarray
    heads: HeadMeasures
    growth: LayerGrowth
    shut: Shut

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        parts = [getattr(part, f.name) for part in (self.heads, self.growth, self.shut) for f in fields(part)]
        return sum(part.nbytes for part in (self.maps, self.rest, self.hidden, *parts) if isinstance(part, np.ndarray))


@dataclass(eq=False)
class Survey:
    """What is ready of the survey of one run.

    rows, columns: [h 2], [w 2] half-open ranges of query rows and key positions that a map's cell stands for.
    total: layers that there will be (those that the run finished); layers: those that are ready, from the first.
    """

    config: LlamaConfig
    rows: np.ndarray
    columns: np.ndarray
    total: int
    layers: tuple[LayerSurvey, ...] = field(default=(), repr=False)
    _table: tuple[tuple[LayerSurvey, ...], pd.DataFrame] | None = field(default=None, init=False, repr=False)

    @property
    def done(self) -> bool:
        """Whether every layer is ready."""
        return len(self.layers) == self.total

    @property
    def nbytes(self) -> int:
        """Bytes of what is ready."""
        return sum(layer.nbytes for layer in self.layers)

    def head_table(self) -> pd.DataFrame:
        """The table of `heads.head_table`, for the layers that are ready. Shared: not to be written to."""
        if self._table is None or self._table[0] is not self.layers:
            self._table = (self.layers, table_of(self.config, [(one.layer, one.heads) for one in self.layers]))
        return self._table[1]


def begin(trace: Trace) -> Survey:
    """The survey of a run with no layer in it yet: hand it to the readers, then fill it."""
    finished = [i for i in range(trace.config.num_hidden_layers) if At(i, steps.RESID_OUT) in trace]
    return Survey(trace.config, blocks(trace.dims["T"]), blocks(trace.dims["S"]), len(finished))


def survey(trace: Trace, progress: Callable[[float], None] | None = None, into: Survey | None = None) -> Survey:
    """Fill a survey of the trace, layer by layer, and return it.

    into: one that was begun on this trace; it goes on with the first layer that is missing. progress: told the
    share of layers that are ready, after each; what it raises ends the survey, and what is ready stays.
    """
    found = begin(trace) if into is None else into
    for layer in range(len(found.layers), found.total):
        one = survey_layer(trace, layer, found.rows, found.columns)
        found.layers = (*found.layers, one)  # a new tuple at once: others are reading the old one
        if progress is not None:
            progress(len(found.layers) / found.total)
    return found


def survey_layer(trace: Trace, layer: int, rows: np.ndarray, columns: np.ndarray) -> LayerSurvey:
    """All that a survey says about one layer. Where it is not held, each half of it runs once before its maps are read.

    Of a long run one map at a time is there, and all that is read of it is read then.
    """
    growth, closed = layer_growth(trace, layer), shut(trace, layer)
    visible, maps, rest, heads = trace.visible(layer), [], [], []
    for weights in maps_of(trace, At(layer, steps.WEIGHTS)):
        maps.append(_small(weights, rows, columns))
        rest.append(_small(without_first(weights), rows, columns))
        heads.append(measure_heads(weights, trace.ids, visible))
    return LayerSurvey(
        layer,
        np.concatenate(maps),
        np.concatenate(rest),
        ~pool_largest(visible, rows, columns),
        joined(heads),
        growth,
        closed,
    )


def _small(weights: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.nan_to_num(pool_largest(weights, rows, columns))).astype(np.uint8)


def blocks(n: int, most: int = SIDE) -> np.ndarray:
    """[k 2] half-open ranges that cut n places into at most `most` blocks of one size (the last may be shorter)."""
    size = -(-n // most)
    starts = np.arange(0, n, size)
    return np.stack([starts, np.minimum(starts + size, n)], axis=1)


def pool_largest(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The largest value of each block, NaN only where a block has nothing else. [... T S] -> [... h w]

    rows, columns: as `blocks` cuts them.
    """
    height = rows[0, 1] - rows[0, 0]
    whole = values.shape[-2] // height * height
    tall = values[..., :whole, :].reshape(*values.shape[:-2], -1, height, values.shape[-1])
    down = np.fmax.reduce(tall, axis=-2)  # whole rows at once: many times faster than `reduceat` over all cells
    if whole < values.shape[-2]:
        down = np.concatenate([down, np.fmax.reduce(values[..., whole:, :], axis=-2, keepdims=True)], axis=-2)
    return np.fmax.reduceat(down, columns[:, 0], axis=-1)
