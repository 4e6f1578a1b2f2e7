"""RoPE, to look at: captured vectors turned to any position, and what base and scaling do to the frequencies.

numpy; the frequencies are the model's own (`rope.inverse_frequencies`), so that a vector turned here to the
position where it stands is the one that the run captured. A pair is two numbers (a, b) of a vector, drawn as
an arrow in a plane; pair r turns by `frequencies[r]` radians per position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from . import steps
from .config import SCALINGS, LlamaConfig
from .steps import At
from .trace import Trace

Layout = Literal["halves", "neighbours"]
LAYOUTS: tuple[Layout, ...] = ("halves", "neighbours")
KINDS = ("none", *SCALINGS)
"""The scalings that `what_if` knows; "none" is plain RoPE."""


@dataclass(frozen=True, eq=False)
class Turning:
    """How one run turns its vectors.

    frequencies: [R] float32, radians per position; factor: what YaRN multiplies both sides by, else 1.
    """

    frequencies: np.ndarray
    factor: float
    layout: Layout

    @property
    def wavelengths(self) -> np.ndarray:
        """Positions that each pair needs for a full turn. [R] float64."""
        return 2 * np.pi / self.frequencies.astype(np.float64)

    def with_layout(self, layout: Layout) -> Turning:
        """The same angles on other pairs."""
        return Turning(self.frequencies, self.factor, layout)


@lru_cache(maxsize=256)
def turning_of(config: LlamaConfig, length: int | None = None) -> Turning:
    """The turning of a pass of `length` positions; only dynamic scaling asks how long it is."""
    from .rope import attention_factor, inverse_frequencies  # torch, which a record must not need

    frequencies = inverse_frequencies(config, length).numpy()
    frequencies.flags.writeable = False
    return Turning(frequencies, attention_factor(config), config.rope_layout)


# --- turning a vector ---


def to_pairs(x: np.ndarray, layout: Layout) -> np.ndarray:
    """The arrows of a vector. [... Dh] -> [... R 2]: (r, r + R) for halves, (2r, 2r + 1) for neighbours."""
    R = x.shape[-1] // 2
    return np.stack((x[..., :R], x[..., R:]), axis=-1) if layout == "halves" else x.reshape(*x.shape[:-1], R, 2)


def from_pairs(pairs: np.ndarray, layout: Layout) -> np.ndarray:
    """The vector of these arrows. [... R 2] -> [... Dh]"""
    flat = pairs.swapaxes(-1, -2) if layout == "halves" else pairs
    return flat.reshape(*pairs.shape[:-2], -1)


def members(R: int, layout: Layout) -> np.ndarray:
    """Which two dimensions form each pair. [R 2] int"""
    return to_pairs(np.arange(2 * R), layout)


def angles(positions: np.ndarray | int, frequencies: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """Position times frequency, in radians. [...] and [R] -> [... R]; float32 as in the model, or float64."""
    return np.asarray(positions, dtype)[..., None] * frequencies.astype(dtype)


def turn(x: np.ndarray, positions: np.ndarray | int, turning: Turning, dtype: type = np.float32) -> np.ndarray:
    """Vectors [... Dh] turned to `positions` [...], which may be one for all. [... Dh] `dtype`.

    float32 does what the model does; float64 shows what is left when rounding is not in the way.
    """
    angle = angles(positions, turning.frequencies, dtype)
    cos, sin = np.cos(angle) * dtype(turning.factor), np.sin(angle) * dtype(turning.factor)
    pairs = to_pairs(x.astype(dtype), turning.layout)
    a, b = pairs[..., 0], pairs[..., 1]
    return from_pairs(np.stack((a * cos - b * sin, b * cos + a * sin), axis=-1), turning.layout)


@dataclass(frozen=True, eq=False)
class Turned:
    """One captured vector at some position. before, after: [R 2] arrows; angle: [R] radians, float64.

    difference: the largest one between the vector turned here to where it stands and the captured turned one.
    """

    before: np.ndarray
    after: np.ndarray
    angle: np.ndarray
    difference: float


def vectors(trace: Trace, layer: int, head: int, which: Literal["query", "key"]) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of one query head, or of the key head it reads, before and after their turn. Each [T Dh].

    What is turned is q_norm and k_norm where the model has them.
    """
    step = steps.Q_ROT if which == "query" else steps.K_ROT
    (source,) = trace.walk.sources(At(layer, step))
    head = head if which == "query" else head // trace.config.group
    return trace[source][0][:, head], trace[At(layer, step)][0][:, head]


def turned(
    trace: Trace, layer: int, head: int, which: Literal["query", "key"], token: int, position: int | None = None
) -> Turned:
    """A token's query or key at `position`, by default where it stands."""
    turning = turning_of(trace.config, trace.dims["S"])
    before, captured = (each[token] for each in vectors(trace, layer, head, which))
    own = trace.past + token
    position = own if position is None else position
    after = turn(before, position, turning)
    return Turned(
        to_pairs(before, turning.layout),
        to_pairs(after, turning.layout),
        angles(position, turning.frequencies, np.float64),
        float(np.abs(turn(before, own, turning) - captured).max()),
    )


# --- the wrong layout ---


@dataclass(frozen=True, eq=False)
class LayoutDifference:
    """The scores of one query with the keys that it sees, under its own layout and under the other one.

    own, other: [keys]; largest: of their differences; captured: of the differences between `own` and the
    captured scores, which is what "the same" looks like.
    """

    keys: np.ndarray
    own: np.ndarray
    other: np.ndarray
    largest: float
    captured: float


def layout_difference(trace: Trace, layer: int, head: int, token: int) -> LayoutDifference:
    """What the other pairing would make of the scores of one query. Both q and k are turned by it."""
    turning = turning_of(trace.config, trace.dims["S"])
    other = turning.with_layout(LAYOUTS[1 - LAYOUTS.index(turning.layout)])
    q, k = (vectors(trace, layer, head, which)[0] for which in ("query", "key"))
    keys = np.flatnonzero(trace.visible(layer)[token])
    keys = keys[keys >= trace.past]  # cached keys are not in this trace
    scale = np.sqrt(trace.config.head_dim)

    def scores(turning: Turning) -> np.ndarray:
        query = turn(q[token], trace.past + token, turning)
        return turn(k[keys - trace.past], keys, turning) @ query / scale

    own, swapped = scores(turning), scores(other)
    captured = trace.head(At(layer, steps.SCORES), head)[token, keys]
    return LayoutDifference(keys, own, swapped, float(np.abs(own - swapped).max()), float(np.abs(own - captured).max()))


# --- only the distance counts ---


def place_scores(
    q: np.ndarray, k: np.ndarray, m: np.ndarray, n: np.ndarray, turning: Turning, dtype: type = np.float32
) -> np.ndarray:
    """The score of one query [Dh] at the positions m with one key [Dh] at the positions n, pair by pair. [...]

    q and k as they are before their turn; m and n of the same shape, or of shapes that numpy makes one of.
    """
    return (turn(q, m, turning, dtype) * turn(k, n, turning, dtype)).sum(axis=-1) / dtype(np.sqrt(q.shape[-1]))


def moved_score(trace: Trace, layer: int, head: int, query: int, key: int, shift: int) -> float:
    """The score of a query and a key of this run, both placed `shift` positions later; float32 as in the model."""
    q, k = (vectors(trace, layer, head, which)[0] for which in ("query", "key"))
    m, n = (np.array([trace.past + each + shift]) for each in (query, key))
    return float(place_scores(q[query], k[key], m, n, turning_of(trace.config, trace.dims["S"]))[0])


@dataclass(frozen=True, eq=False)
class ShiftProof:
    """A query at m and a key at n, both moved on by the same number of positions.

    score: at m and n; captured: the run's own; shifts: [n]; moved: the score at each shift, float32 as in the
    model; largest, exact: the largest difference to `score` over all shifts in float32 and in float64.
    table: the score of the query at row position with the key at column position, [side side].
    distances, along: the score over the distance m - n from the key's position 0; far: from `start`.
    """

    score: float
    captured: float
    shifts: np.ndarray
    moved: np.ndarray
    largest: float
    exact: float
    table: np.ndarray
    distances: np.ndarray
    along: np.ndarray
    far: np.ndarray
    start: int


def shift_proof(
    trace: Trace, layer: int, head: int, query: int, key: int, shifts: int = 512, side: int = 48, reach: int = 256
) -> ShiftProof:
    """Move a query and a key of this run together through the whole context, and see that their score stays.

    shifts: how many, evenly spaced up to the end of the context; side: positions of the table; reach: distances.
    """
    turning = turning_of(trace.config, trace.dims["S"])
    q, k = (vectors(trace, layer, head, which)[0] for which in ("query", "key"))
    q, k = q[query], k[key]
    m, n = trace.past + query, trace.past + key
    end = max(trace.config.max_length, trace.dims["S"]) - 1
    moves = np.unique(np.linspace(0, end - max(m, n), shifts).astype(int))
    moved = place_scores(q, k, m + moves, n + moves, turning)
    exact = place_scores(q, k, m + moves, n + moves, turning, np.float64)
    places = np.arange(min(side, end + 1))
    distances = np.arange(min(reach, end + 1))
    start = max(0, end - int(distances[-1]))
    return ShiftProof(
        float(moved[0]),
        float(trace.head(At(layer, steps.SCORES), head)[query, n]),
        moves,
        moved,
        float(np.abs(moved - moved[0]).max()),
        float(np.abs(exact - exact[0]).max()),
        place_scores(q, k, places[:, None], places, turning),
        distances,
        place_scores(q, k, distances, np.array(0), turning),
        place_scores(q, k, start + distances, np.array(start), turning),
        start,
    )


# --- what base and scaling do ---


def original_context(config: LlamaConfig) -> int:
    """Positions of training, before any stretching."""
    return getattr(config.rope_scaling, "original_max_position_embeddings", config.max_position_embeddings)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """Frequencies under another base and scaling, beside the model's own and plain RoPE with that base.

    own, plain, changed: [R] float32. length: positions of the stretched context; factor: as in Turning.
    kept, blended, divided: how many pairs keep their plain frequency, get one between, and are divided by the
    full stretching.
    """

    own: np.ndarray
    plain: np.ndarray
    changed: np.ndarray
    length: int
    factor: float
    kept: int
    blended: int
    divided: int


def what_if(
    config: LlamaConfig,
    kind: str,
    *,
    base: float,
    factor: float,
    original: int,
    low: float | None = None,
    high: float | None = None,
) -> WhatIf:
    """The frequencies of this model with another base and one of KINDS of scaling. ConfigError: it cannot be.

    factor: how many times longer than `original` the context becomes. low, high: turns within the original
    context between which llama3 blends (1 and 4 by default) and YaRN has its ramp (1 and 32). Dynamic scaling
    is taken at the full stretched length.
    """
    plain = config.with_(rope_theta=base, rope_scaling=None, max_position_embeddings=original)
    scaling: dict[str, float] = {} if kind == "none" else {"factor": factor}
    if kind in ("llama3", "yarn"):
        names = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
        scaling |= {name: value for name, value in zip(names, (low, high), strict=True) if value is not None}
        scaling["original_max_position_embeddings"] = original
    changed = plain if kind == "none" else plain.with_(rope_scaling=SCALINGS[kind](**scaling))
    length = original if kind == "none" else round(original * factor)
    before, after = turning_of(plain), turning_of(changed, length)
    ratio = before.frequencies.astype(np.float64) / after.frequencies
    full = ratio.max() if kind == "dynamic" else 1.0 if kind == "none" else factor
    kept, divided = np.abs(ratio - 1) < 1e-5, np.abs(ratio / full - 1) < 1e-5
    return WhatIf(
        turning_of(config).frequencies,
        before.frequencies,
        after.frequencies,
        length,
        after.factor,
        int(kept.sum()),
        int((~kept & ~divided).sum()),
        int((divided & ~kept).sum()),
    )
