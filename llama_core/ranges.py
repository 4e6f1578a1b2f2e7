"""The ranges of one step over all layers: how its values are spread, and which channels are the largest."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .heads import maps_of
from .ranking import largest
from .steps import At, Step
from .trace import Trace

SAMPLE = 1 << 19
"""Most values of a layer that are counted: of a larger tensor every n-th."""
FEW = 1 << 14
"""Values of a layer from which the usual size is taken."""
SIDE = 60
"""Bins on either side of zero."""


@dataclass(frozen=True, eq=False)
class Spread:
    """How often each size occurs, layer by layer. L layers, N bins that touch each other, NaN and infinity left out.

    Bins are of equal width in asinh(x / unit): even steps below `unit`, equal ratios above it, zero between two bins.
    edges [N + 1]; counts [L N]; counted [L]: values of each layer that were looked at, of all those that a query may
    see; every: 1, or n when only every n-th was.
    """

    layers: tuple[int, ...]
    unit: float
    edges: np.ndarray
    counts: np.ndarray
    counted: np.ndarray
    every: int


def spread(trace: Trace, step: Step) -> Spread:
    """The spread of a layer step over the layers that the run finished.

    unit: the median over layers of the median |x|, which an outlier does not move; where that is 0 (after a ReLU),
    the largest |x|.
    """
    found = Ranges(step)
    found.read(trace)
    return found.spread


@dataclass(eq=False)
class Ranges:
    """`spread` and `largest_channels` of a step, read layer by layer for as long as there is time. Any thread may ask.

    step: of a T x S step no channels. n: channels of each layer. ready: layers that are read, of `total`.
    The trace is handed in at each reading and not kept.
    """

    step: Step
    n: int = 3
    ready: int = field(default=0, init=False)
    total: int = field(default=0, init=False)
    spread: Spread | None = field(default=None, init=False)
    channels: tuple[tuple[Channel, ...], ...] = field(default=(), init=False)
    _samples: list[np.ndarray] = field(default_factory=list, init=False, repr=False)
    _every: int = field(default=1, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def done(self) -> bool:
        """Whether all layers are read: then `spread` is there."""
        return self.spread is not None

    def read(self, trace: Trace, seconds: float = math.inf) -> bool:
        """Read on for about this long, a layer at least; whether all is done."""
        with self._lock:
            end, found = time.monotonic() + seconds, list(_of(trace, self.step))
            self.total = len(found)
            for at in found[self.ready :]:
                self._read(trace, at)
                if time.monotonic() > end:
                    break
            if self.ready == self.total and not self.done:
                self.spread, self._samples = _spread(trace, found, self._samples, self._every), []
            return self.done

    def _read(self, trace: Trace, at: At) -> None:
        if not self.step.causal:
            self.channels = (*self.channels, _furthest(at, trace[at][0], self.n))
        values, gap = sample(trace, at, SAMPLE)
        self._samples.append(values)
        self._every = max(self._every, gap)
        self.ready += 1


def _spread(trace: Trace, found: Sequence[At], samples: Sequence[np.ndarray], every: int) -> Spread:
    largest = max((_reach(trace, at, values) for at, values in zip(found, samples, strict=True)), default=0.0)
    usual = [float(np.median(few)) for few in map(_few, samples) if few.size]
    unit = float(np.median(usual)) if usual else 0.0
    unit = unit or largest or 1.0
    end = np.arcsinh(max(largest, unit) / unit) * (1 + 1e-6)
    counts, counted = [], []
    for values in samples:
        values = values[np.isfinite(values)]
        places = np.clip(np.arcsinh(values / np.float32(unit)), -end, end)
        counts.append(np.histogram(places, 2 * SIDE, (-end, end))[0])
        counted.append(values.size)
    edges = unit * np.sinh(end * np.arange(-SIDE, SIDE + 1) / SIDE)
    return Spread(tuple(at.layer for at in found), unit, edges, np.array(counts), np.array(counted), every)


def _reach(trace: Trace, at: At, values: np.ndarray) -> float:
    """The largest |x| of a step; of the sample where no statistics were taken, as of the maps of a fused layer."""
    if trace.measured(at):
        found = trace.stat(at)
        return max(abs(found.min), abs(found.max)) if found.count else 0.0
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _of(trace: Trace, step: Step) -> Iterator[At]:
    every = (At(layer, step) for layer in range(trace.config.num_hidden_layers))
    return (at for at in every if at in trace)


def sample(trace: Trace, at: At, most: int) -> tuple[np.ndarray, int]:
    """At most so many of a step's values that a query may see, flat, and every how many-th that are.

    The maps of a T x S step are read head by head. Else the gap shares no factor with the number of channels: some
    channels would never be looked at.
    """
    if at.step.causal:
        return _seen(trace, at, most)
    values = trace[at]
    gap, channels = max(1, -(-values.size // most)), math.prod(values.shape[2:])
    while math.gcd(gap, channels) > 1:
        gap += 1
    return values.ravel()[::gap].copy() if gap > 1 else values.ravel(), gap


def _seen(trace: Trace, at: At, most: int) -> tuple[np.ndarray, int]:
    cells = np.flatnonzero(trace.visible(at))
    gap, place, parts = max(1, -(-cells.size * trace.dims["Hq"] // most)), 0, []
    for maps in maps_of(trace, at):
        for one in maps:
            parts.append(one.ravel()[cells[-place % gap :: gap]])
            place += cells.size
    return np.concatenate(parts), gap


def _few(values: np.ndarray) -> np.ndarray:
    """Sizes of some of a sample."""
    sizes = np.abs(values[:: max(1, -(-values.size // FEW))])
    return sizes[np.isfinite(sizes)]


# --- channels ---


@dataclass(frozen=True)
class Channel:
    """One channel of a step in one layer. index: its place on the axes after the position, such as (138,) or (2, 17).

    value: its value of largest size; position: where that is; usual: the median over channels of that size.
    """

    layer: int
    index: tuple[int, ...]
    value: float
    position: int
    usual: float


def largest_channels(trace: Trace, step: Step, n: int = 3) -> tuple[tuple[Channel, ...], ...]:
    """For each layer that the run finished the n channels that reach furthest from zero, the furthest first.

    step: any layer step but those between queries and keys, which have no channels. NaN counts as furthest of all.
    """
    return tuple(_furthest(at, trace[at][0], n) for at in _of(trace, step))


def _furthest(at: At, values: np.ndarray, n: int) -> tuple[Channel, ...]:
    """values: positions first, then channels."""
    flat = values.reshape(len(values), -1)
    sizes = np.abs(flat)
    sizes[np.isnan(sizes)] = np.inf
    reach = sizes.max(axis=0)
    usual = float(np.median(reach))
    best = largest(reach, n)
    return tuple(_channel(at.layer, values, flat, int(i), int(sizes[:, i].argmax()), usual) for i in best)


def _channel(layer: int, values: np.ndarray, flat: np.ndarray, i: int, position: int, usual: float) -> Channel:
    index = tuple(int(k) for k in np.unravel_index(i, values.shape[1:]))
    return Channel(layer, index, float(flat[position, i]), position, usual)
