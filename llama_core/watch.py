"""Watches: conditions at which a run stops, as records with a grammar. numpy only.

    Watch.parse("notfinite")             the first NaN or infinity, at any step
    Watch.parse("q above 100")           |x| above 100 in the queries of any layer
    Watch.parse("3.resid_out std 0 50")  standard deviation outside 0 to 50, at one address
    Watch.parse("entropy 0.1")           a row of weights whose entropy is below 0.1 nats
    Watch.parse("3.weights collapse 0.99")  a row that gives 0.99 or more of its weight to one key

A cell that a query may not see is never judged. entropy and collapse judge rows that see more than one key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from . import steps
from .errors import RunError
from .ranking import largest
from .steps import At, Step, Walk

Kind = Literal["notfinite", "above", "std", "entropy", "collapse"]
_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "notfinite": (),
    "above": ("a bound",),
    "std": ("the lowest", "the highest"),
    "entropy": ("a bound in nats",),
    "collapse": ("a share, 0 to 1",),
}
FEW = 8
"""Cells that a stop names."""


class WatchError(RunError):
    """A watch that cannot be read, or that judges a step that the model does not have."""


@dataclass(frozen=True)
class Watch:
    """A condition. `str(watch)` is its text, `Watch.parse` reads it back.

    bounds: its numbers, see `_BOUNDS`. where: one address, a step of every layer, or None for every step.
    """

    kind: Kind
    bounds: tuple[float, ...] = ()
    where: At | Step | None = None

    def __post_init__(self) -> None:
        if self.kind not in _BOUNDS:
            raise WatchError(f"{self.kind!r:.60} is no condition. The conditions are {', '.join(_BOUNDS)}.")
        object.__setattr__(self, "bounds", tuple(map(float, self.bounds)))
        takes = " and ".join(_BOUNDS[self.kind]) or "no number"
        good = len(self.bounds) == len(_BOUNDS[self.kind]) and all(math.isfinite(b) and b >= 0 for b in self.bounds)
        if not good or list(self.bounds) != sorted(self.bounds) or (self.kind == "collapse" and self.bounds[0] > 1):
            raise WatchError(f"{self.kind} takes {takes}, 0 or above; it was given {self.bounds}.")
        if self.of_rows and self.where is not None and self._step is not steps.WEIGHTS:
            raise WatchError(f"{self.kind} is of attention weights: write weights or 3.weights, not {self._place}.")

    @property
    def of_rows(self) -> bool:
        """Whether it judges rows of attention weights."""
        return self.kind in ("entropy", "collapse")

    @property
    def _step(self) -> Step | None:
        return self.where.step if isinstance(self.where, At) else self.where

    @property
    def _place(self) -> str:
        return self.where.key if isinstance(self.where, Step) else str(self.where)

    def judges(self, at: At) -> bool:
        """Whether it looks at this address."""
        if self.where is None:
            return not self.of_rows or at.step is steps.WEIGHTS
        return self.where in (at, at.step)

    def __str__(self) -> str:
        numbers = [repr(bound).removesuffix(".0").replace("e+", "e") for bound in self.bounds]
        return " ".join([*([] if self.where is None else [self._place]), self.kind, *numbers])

    @classmethod
    def parse(cls, text: str) -> Watch:
        """Read "q above 100"; a WatchError shows the form."""
        words = text.split()
        place = words.pop(0) if len(words) > 1 and words[0] not in _BOUNDS else None
        if not words or words[0] not in _BOUNDS:
            raise WatchError(
                f"{text[:80]!r} is not a condition. A condition is {', '.join(_BOUNDS)}, its numbers, and in front of "
                "it the step or address that is meant, if it is not every one: q above 100, 3.weights entropy 0.1."
            )
        try:
            bounds = tuple(map(float, words[1:]))
        except ValueError as error:
            raise WatchError(f"{' '.join(words[1:])[:60]!r} in {text[:80]!r} is no number.") from error
        where = None if place is None else At.parse(place) if "." in place else steps.find(place)
        return cls(words[0], bounds, where)


@dataclass(frozen=True)
class Stopped:
    """Why a run ended before its last step.

    at: where; watch: the condition that was met; text: a sentence with the figures. cells: the first few that meet
    it, the worst first, as indices into the tensor (of a row of weights, into B Hq T); values: of these; count: all
    that meet it. A standard deviation has no single cell: () and 0.
    """

    at: At
    watch: Watch
    text: str
    cells: tuple[tuple[int, ...], ...] = ()
    values: tuple[float, ...] = ()
    count: int = 0


def watches_of(stop_when: Watch | str | Iterable[Watch | str] | None, walk: Walk) -> tuple[Watch, ...]:
    """The conditions of a run. WatchError or AddressError where the model lacks what one judges."""
    if stop_when is None:
        return ()
    given = [stop_when] if isinstance(stop_when, Watch | str) else list(stop_when)
    watches = tuple(Watch.parse(one) if isinstance(one, str) else one for one in given)
    for watch in watches:
        if not isinstance(watch, Watch):
            raise WatchError(f"{watch!r:.60} is not a condition. Give a Watch or its text, such as q above 100.")
        if isinstance(watch.where, At):
            walk.index(watch.where)
        elif watch.where is not None and not walk.has(watch.where):
            raise WatchError(f"{watch}: this model has no step {watch.where.key}.")
    return watches


def judge(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray | None) -> Stopped | None:
    """What is wrong with x, the float32 tensor at `at`; None when nothing is. visible: [T S], of a T x S step."""
    with np.errstate(all="ignore"):
        return _JUDGES[watch.kind](watch, at, x, visible)


def _not_finite(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray | None) -> Stopped | None:
    bad = _seen(~np.isfinite(x), visible)
    if not bad.any():
        return None
    cells, values, count = _worst(x, np.ones_like(x), bad)
    nan = int(np.count_nonzero(np.isnan(x) & bad))
    text = (
        f"{at} holds {count:,} cells that are not finite ({nan:,} NaN, {count - nan:,} infinite); "
        f"the first is {list(cells[0])}."
    )
    return Stopped(at, watch, text, cells, values, count)


def _above(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray | None) -> Stopped | None:
    size, bound = np.abs(x), watch.bounds[0]
    bad = _seen(size > bound, visible)
    if not bad.any():
        return None
    cells, values, count = _worst(x, size, bad)
    text = f"{at} reaches {values[0]:.6g} at {list(cells[0])}, beyond ±{bound:g}; {count:,} cells of {x.size:,} do."
    return Stopped(at, watch, text, cells, values, count)


def _std(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray | None) -> Stopped | None:
    seen = x.reshape(-1) if visible is None else x[..., visible].reshape(-1)
    seen = seen[np.isfinite(seen)]
    low, high = watch.bounds
    std = float(seen.std(dtype=np.float64)) if seen.size else low
    if low <= std <= high:
        return None
    return Stopped(at, watch, f"{at} has standard deviation {std:.6g}, outside {low:g} to {high:g}.")


def _entropy(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray) -> Stopped | None:
    wide = x.astype(np.float64)
    entropy = -np.where(wide > 0, wide * np.log(np.where(wide > 0, wide, 1)), 0).sum(-1)
    entropy[~np.isfinite(wide).all(-1)] = math.nan  # such a row is no distribution
    rows = _rows(entropy, visible)
    bad = (entropy < watch.bounds[0]) & rows
    if not bad.any():
        return None
    cells, values, count = _worst(entropy, -entropy, bad)
    text = (
        f"In {at} head {cells[0][1]}, query {cells[0][2]} has an entropy of {values[0]:.6g} nats, below "
        f"{watch.bounds[0]:g}; {count:,} rows of {np.count_nonzero(rows):,} that see more than one key do."
    )
    return Stopped(at, watch, text, cells, values, count)


def _collapse(watch: Watch, at: At, x: np.ndarray, visible: np.ndarray) -> Stopped | None:
    share = x.max(-1)
    rows = _rows(share, visible)
    bad = (share >= np.float32(watch.bounds[0])) & rows
    if not bad.any():
        return None
    cells, values, count = _worst(share, share, bad)
    text = (
        f"In {at} head {cells[0][1]}, query {cells[0][2]} gives {values[0]:.6g} of its weight to key "
        f"{x[cells[0]].argmax()}, at least {watch.bounds[0]:g}; {count:,} rows of {np.count_nonzero(rows):,} that see "
        "more than one key do."
    )
    return Stopped(at, watch, text, cells, values, count)


_JUDGES = {"notfinite": _not_finite, "above": _above, "std": _std, "entropy": _entropy, "collapse": _collapse}


def _seen(bad: np.ndarray, visible: np.ndarray | None) -> np.ndarray:
    return bad if visible is None else bad & visible


def _rows(like: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """The rows that see more than one key. [B Hq T] bool."""
    return np.broadcast_to(visible.sum(-1) > 1, like.shape)


def _worst(x: np.ndarray, badness: np.ndarray, bad: np.ndarray) -> tuple[tuple, tuple[float, ...], int]:
    """Indices and values of the worst of the bad cells, and how many are bad."""
    count = int(np.count_nonzero(bad))
    places = largest(np.where(bad, badness, -np.inf).reshape(-1), min(FEW, count))
    cells = tuple(tuple(int(i) for i in np.unravel_index(place, x.shape)) for place in places)
    return cells, tuple(float(x[cell]) for cell in cells), count
