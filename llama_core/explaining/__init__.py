"""explain(trace, at, index): where one captured number came from, term by term.

Every cell of every step is a sum of a few products, and each factor of a product is a cell of an earlier step or
one weight: following them leads back to the token. Terms are computed in float64 from the captured inputs, so
what is left between their total and the cell is the rounding of the pass, and `bound` says how much of it is
honest.

A factor that stands for a whole vector (the scale of a norm, the sum of a softmax) is an `inner` sum of its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import AddressError
from ..steps import AXES, At
from ..trace import Trace
from .by_step import EXPLAINERS, Asked
from .terms import Cell, Factor, Rest, Sum, Term, Weight, products, tex

__all__ = ["Cell", "Explanation", "Factor", "Rest", "Sum", "Term", "Weight", "explain", "rounding_bound"]

TOLERANCE = 1e-5
"""What float32 may lose between a cell and its terms, as a share of 1 + the sum of their sizes."""

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The largest relative error of rounding once to a type that is shorter than float32."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """One cell of a trace and the terms that make it. All numbers float64.

    kind says what happened: row, copy, shared, cached (a row that an earlier pass left in the KV cache), norm,
    projection, rotation, score, future or window (a key that the query may not see, and why), softmax, mixture,
    addition, curve, product. `shown.total` is what the formula gives; `value` the captured cell. `quantities`
    names the numbers on the way. `inner` is the sum behind one factor: the mean square of a norm, the
    exponentials of a softmax. `formula`: LaTeX with this cell's numbers, four digits of each. `edited`: the run
    changed this step after computing it, so that the cell need not be what its terms add up to.
    """

    at: At
    index: tuple[int, ...]
    value: float
    kind: str
    shown: Sum = field(repr=False)
    bound: float
    formula: str
    quantities: Mapping[str, float]
    inner: Sum | None = field(default=None, repr=False)
    edited: bool = False

    @property
    def terms(self) -> tuple[Term, ...]:
        """The listed terms; with `rest` they add up to `total`."""
        return self.shown.terms

    @property
    def rest(self) -> Rest | None:
        """The small terms as one; None when all are listed."""
        return self.shown.rest

    @property
    def total(self) -> float:
        """The sum of all terms; minus infinity for a hidden score."""
        return self.shown.total

    @property
    def difference(self) -> float:
        """value - total, the rounding of the pass. 0 where both are the same infinity, or both NaN."""
        same = self.value == self.total or (math.isnan(self.value) and math.isnan(self.total))
        return 0.0 if same else self.value - self.total

    @property
    def adds_up(self) -> bool:
        """Whether the difference is no more than rounding explains."""
        return self.difference == 0 or abs(self.difference) <= self.bound  # 0 first: NaN has no bound

    def __str__(self) -> str:
        lines = [f"{Cell(self.at, self.index)} = {self.value:.6g}  ({self.kind}{', edited' if self.edited else ''})"]
        for term in self.terms:
            factors = " * ".join(f"{f.name} {f.value:.6g}" for f in term.factors)
            lines.append(f"  {term.label}: {factors} = {term.value:.6g}")
        if self.rest is not None:
            lines.append(f"  {self.rest.count} more = {self.rest.value:.6g}")
        lines.append(f"  total {self.total:.9g}, difference {self.difference:.2g}, bound {self.bound:.2g}")
        return "\n".join(lines)


def explain(trace: Trace, at: At | str, index: Sequence[int], *, top: int = 8) -> Explanation:
    """Where the number `trace[at][index]` came from.

    index: one number per axis of the step's shape; the batch axis, of size 1, may be left out. Negative numbers
    count from the end. Of a batch, explain one prompt's `trace.row(b)`. top: how many terms of a long sum are
    listed, at least 1, the largest first.
    Raises AddressError for a step or a cell that is not there, and for a step whose weights the trace lacks.
    """
    if not trace.tokens:  # a batch: they belong to a row
        raise AddressError(
            f"This run has {trace.dims['B']} prompts: say which is meant, for example explain(trace.row(0), …)."
        )
    at = trace.resolve(at)
    index = check_index(at, index, trace.stat(at).shape)
    with np.errstate(all="ignore"):  # what is infinite or NaN in a run stays so in its terms, without a warning
        asked = Asked(trace, at, index, max(1, top))
        found = EXPLAINERS[at.step](asked)
    bound = rounding_bound(trace.dtype, found.roundings, found.shown.size)
    value = float(asked.captured(at, *index))
    edited = any(edit.at == at for edit in trace.edits)
    formula = found.formula or f"{products(found.shown)} = {tex(found.shown.total)}"
    return Explanation(at, index, value, found.kind, found.shown, bound, formula, found.quantities, found.inner, edited)


def rounding_bound(dtype: str, roundings: int, size: float) -> float:
    """How far a cell may be from its terms, whose sizes add up to `size`.

    float32: TOLERANCE * (1 + size). In a shorter type each result that the pass stores on the way to the cell is
    rounded to it, `roundings` times in all; no such result is larger than `size`. With u the unit roundoff they
    move the cell by at most ((1 + u)^roundings - 1) * size, beside what float32 loses inside each operation.
    """
    stored = (1 + UNIT_ROUNDOFF.get(dtype, 0.0)) ** roundings - 1
    return TOLERANCE * (1 + size) + stored * size


def check_index(at: At, index: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index with all axes, from 0; AddressError names the axes and their sizes when there is no such cell."""
    axes = dict(zip(at.step.axes, shape, strict=True))
    sizes = ", ".join(f"{AXES[axis]} {axis} = {size}" for axis, size in axes.items())
    example = f"for example {', '.join(str(size - 1) for size in shape[1:])}"
    try:
        given = [operator.index(i) for i in index]
    except TypeError as error:
        raise AddressError(
            f"{index!r:.60} is no place in {at}: give one whole number per axis ({sizes}), {example}."
        ) from error
    full = [0, *given] if len(given) == len(shape) - 1 else given
    if len(full) != len(shape):
        raise AddressError(
            f"{at} has {len(shape)} axes, {len(given)} numbers were given: {sizes}. "
            f"The batch may be left out, {example}."
        )
    for i, (axis, size) in zip(full, axes.items(), strict=True):
        if not -size <= i < size:
            raise AddressError(
                f"{i} is outside {AXES[axis]} {axis}, which runs from 0 to {size - 1}. The axes of {at}: {sizes}."
            )
    return tuple(i % size for i, size in zip(full, shape, strict=True))
