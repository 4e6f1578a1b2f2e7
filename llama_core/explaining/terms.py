"""The records that an explanation is made of, and how terms are summed and written in LaTeX. numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..steps import At


@dataclass(frozen=True)
class Cell:
    """One number of a captured step; index has every axis of the step, the batch included."""

    at: At
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.at}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Weight:
    """One number of a parameter, by its Hugging Face name."""

    name: str
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Factor:
    """A number that a term is multiplied from.

    source: the cell or weight that it is, or for an exponential the score that it is made from. None: a number
    that belongs to the place (a cosine, a scale), or a row of the KV cache, which another pass computed.
    """

    name: str
    value: float
    source: Cell | Weight | None = None


@dataclass(frozen=True)
class Term:
    """value: the product of the factors. label: what tells it from the other terms, an axis letter and a number."""

    label: str
    value: float
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class Rest:
    """The small terms that are not listed: how many, what they add up to, and the sum of their sizes."""

    count: int
    value: float
    size: float


@dataclass(frozen=True)
class Sum:
    """terms: the largest, the largest first (where there are two, in the order of the formula), then a bias.

    total: all terms, listed or not; size: the sum of their absolute values.
    """

    terms: tuple[Term, ...]
    rest: Rest | None
    total: float
    size: float


# --- sums ---


def term_of(label: str, *factors: Factor) -> Term:
    """The product of these factors."""
    return Term(label, math.prod(factor.value for factor in factors), factors)


def sum_of(*terms: Term) -> Sum:
    """The sum of a few terms, all of them listed."""
    return Sum(terms, None, sum(term.value for term in terms), sum(abs(term.value) for term in terms))


def largest_of(values: np.ndarray, term: Callable[[int], Term], top: int, *always: Term) -> Sum:
    """The sum of `values` and of the terms `always`; of the values the `top` largest are terms. NaN is largest."""
    sizes = np.abs(values)
    order = np.argsort(-np.where(np.isnan(sizes), np.inf, sizes), kind="stable")
    left = order[top:]
    rest = Rest(len(left), float(values[left].sum()), float(sizes[left].sum())) if len(left) else None
    total, size = float(values.sum()), float(sizes.sum())
    for each in always:
        total, size = total + each.value, size + abs(each.value)
    return Sum(tuple(term(int(i)) for i in order[:top]) + always, rest, total, size)


# --- LaTeX ---


def tex(x: float) -> str:
    """Four digits of a number, in LaTeX."""
    if math.isnan(x):
        return r"\mathrm{NaN}"
    if math.isinf(x):
        return r"-\infty" if x < 0 else r"\infty"
    digits, _, power = f"{x:.4g}".partition("e")
    return rf"{digits}\cdot 10^{{{int(power)}}}" if power else digits


def operand(x: float) -> str:
    """A number behind an operator: one below zero in parentheses."""
    return f"({tex(x)})" if x < 0 else tex(x)


def products(shown: Sum, most: int = 3) -> str:
    """The first terms as products of numbers, joined by plus signs."""
    written = [
        r" \cdot ".join((operand if i or j else tex)(f.value) for j, f in enumerate(term.factors))
        for i, term in enumerate(shown.terms[:most])
    ]
    if shown.rest is not None or len(shown.terms) > most:
        written.append(r"\cdots")
    return " + ".join(written)
