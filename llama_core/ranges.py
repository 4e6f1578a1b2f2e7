"""The ranges of one step over all layers: how its values are spread, and which channels are the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .steps import At, Step
from .trace import Trace

SAMPLE = 1 << 20
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
    found = list(_of(trace, step))
    finite = [one for one in map(trace.stat, found) if one.count]
    largest = max((max(abs(one.min), abs(one.max)) for one in finite), default=0.0)
    samples, gaps = zip(*(_sample(trace, at) for at in found), strict=True) if found else ((), ())
    usual = [float(np.median(few)) for few in map(_few, samples) if few.size]
    unit = float(np.median(usual)) if usual else 0.0
    unit = unit or largest or 1.0
    end = np.arcsinh(max(largest, unit) / unit) * (1 + 1e-6)
    edges = end * np.arange(-SIDE, SIDE + 1) / SIDE
    counts, counted = [], []
    for values in samples:
        values = values[np.isfinite(values)]
        counts.append(np.histogram(np.clip(np.arcsinh(values / np.float32(unit)), -end, end), edges)[0])
        counted.append(values.size)
    return Spread(
        tuple(at.layer for at in found),
        unit,
        unit * np.sinh(edges),
        np.array(counts),
        np.array(counted),
        max(gaps, default=1),
    )


def _of(trace: Trace, step: Step) -> Iterator[At]:
    every = (At(layer, step) for layer in range(trace.config.num_hidden_layers))
    return (at for at in every if at in trace)


def _sample(trace: Trace, at: At) -> tuple[np.ndarray, int]:
    """Its values that a query may see, at most SAMPLE of them, and every how many-th that are: a layer is read once."""
    values = _seen(trace, at)
    gap = -(-values.size // SAMPLE)
    return values[::gap].copy() if gap > 1 else values, gap


def _few(values: np.ndarray) -> np.ndarray:
    """Sizes of some of a sample."""
    sizes = np.abs(values[:: -(-values.size // FEW)])
    return sizes[np.isfinite(sizes)]


def _seen(trace: Trace, at: At) -> np.ndarray:
    """All values of a step that a query may see, flat."""
    values = trace[at]
    return values[..., trace.visible(at)].ravel() if at.step.causal else values.ravel()


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
    found = []
    for at in _of(trace, step):
        values = trace[at][0]  # positions first, then channels
        flat = values.reshape(len(values), -1)
        sizes = np.abs(flat)
        sizes[np.isnan(sizes)] = np.inf
        reach = sizes.max(axis=0)
        usual = float(np.median(reach))
        best = np.argsort(-reach, kind="stable")[:n]
        found.append(tuple(_channel(at.layer, values, flat, int(i), int(sizes[:, i].argmax()), usual) for i in best))
    return tuple(found)


def _channel(layer: int, values: np.ndarray, flat: np.ndarray, i: int, position: int, usual: float) -> Channel:
    index = tuple(int(k) for k in np.unravel_index(i, values.shape[1:]))
    return Channel(layer, index, float(flat[position, i]), position, usual)
