"""Edits: what a run changes at its steps, as records with a grammar. No torch here; `recorder` does the changing.

    Edit.parse("3.head_out zero h2")              one head of layer 3 is silent
    Edit.parse("3.mlp_out scale 0.5 t0-3,5")      half of what the MLP adds, at five tokens
    Edit.parse("embed noise 0.1 7 t4 c0-15")      std 0.1, seed 7, sixteen channels of one token
    Edit.patch(other, "5.resid_in")               the tensor that another prompt has there

A text is an address, a kind with its numbers, and the cells that are meant: t tokens, h heads, c channels; a
part that is not named means all of it. Numbers count from 0; several edits stand side by side, split by ";".

**Every step may be edited**, the derived ones too, and what follows is computed from the edited tensor. Tokens are
the axis T (S of k_shared and v_shared), heads the axis Hq or Hkv, channels the last axis. At scores, masked and
weights only cells that a query may see are edited; edited weights are not brought back to a sum of 1. What is edited at
k_rot and v goes into the KV cache as well; k_shared and v_shared come after it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .errors import GlassLlamaError, RunError
from .steps import At, Step, Walk
from .trace import Trace

Kind = Literal["zero", "scale", "noise", "set", "mean", "patch"]
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "zero": (),
    "scale": ("a factor",),
    "noise": ("a standard deviation", "a seed"),
    "set": ("a value",),
    "mean": (),
    "patch": ("the token ids of the other prompt",),
}
_PARTS = {"t": "tokens", "f": "origins", "h": "heads", "c": "channels"}
_AXES = {"tokens": ("T", "S"), "heads": ("Hq", "Hkv")}
LARGEST = 3.4028234e38  # of float32
MOST = 100_000
"""Numbers that one list of an edit may name."""


class EditError(RunError):
    """An edit that cannot be read, or that does not fit the run."""


Indices = Iterable[int] | None


@dataclass(frozen=True)
class Edit:
    """One change at one step. `str(edit)` is its text, `Edit.parse` reads it back.

    kind and its numbers: zero; scale, by value; noise, of standard deviation value, drawn by seed and address;
    set, to value; mean, over all tokens, later ones too; patch, the tensor at the same address of `trace`, a run
    over the ids `source`. at: None where the address stands beside it, as a key of `edits`.
    tokens, heads, channels: the cells that change, None for all. origins: of a patch from a prompt of another
    length, the position that each of `tokens` takes from. A patch that was read from text has no trace yet: `bind`.
    """

    kind: Kind
    at: At | None = None
    value: float | None = None
    seed: int | None = None
    source: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    origins: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None
    trace: Trace | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in _NUMBERS:
            raise EditError(f"{self.kind!r:.60} is no kind of edit. The kinds are {', '.join(_NUMBERS)}.")
        if isinstance(self.at, str):
            object.__setattr__(self, "at", At.parse(self.at))
        for part in (*_PARTS.values(), "source"):
            if getattr(self, part) is not None:
                object.__setattr__(self, part, _indices(part, getattr(self, part)))
        self._check_numbers()
        if self.origins is not None and len(self.origins) != len(self.tokens or ()):
            raise EditError(
                f"{self}: {len(self.tokens or ())} tokens take from {len(self.origins)} positions of the other prompt. "
                "Name as many of each, for example t0-3 f2-5."
            )

    def _check_numbers(self) -> None:
        given = (self.value is not None, self.seed is not None, self.source is not None, self.origins is not None)
        wanted = (self.kind in ("scale", "noise", "set"), self.kind == "noise", self.kind == "patch")
        if given[:3] != wanted or (given[3] and self.kind != "patch"):
            raise EditError(f"The edit {self.kind} takes {_takes(self.kind)}, and nothing else before t, h, c.")
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))
            low = 0 if self.kind == "noise" else -LARGEST
            if not low <= self.value <= LARGEST:
                raise EditError(
                    f"{self.kind} by {self.value} is not possible: {_NUMBERS[self.kind][0]} is a number from "
                    f"{low:.3g} to {LARGEST:.3g}."
                )
        if self.seed is not None and not 0 <= self.seed < 2**31:
            raise EditError(f"The seed {self.seed} is out of range: 0 to {2**31 - 1}.")

    @classmethod
    def zero(cls, at: At | str | None = None, **cells: Indices) -> Edit:
        """Every chosen cell is 0."""
        return cls("zero", at, **cells)

    @classmethod
    def scale(cls, factor: float, at: At | str | None = None, **cells: Indices) -> Edit:
        """Every chosen cell times a factor."""
        return cls("scale", at, value=factor, **cells)

    @classmethod
    def noise(cls, std: float, seed: int = 0, at: At | str | None = None, **cells: Indices) -> Edit:
        """Normal noise is added. Its draw at a cell depends on seed, address and size alone, not on what is chosen."""
        return cls("noise", at, value=std, seed=seed, **cells)

    @classmethod
    def set(cls, value: float, at: At | str | None = None, **cells: Indices) -> Edit:
        """Every chosen cell is `value`."""
        return cls("set", at, value=value, **cells)

    @classmethod
    def mean(cls, at: At | str | None = None, **cells: Indices) -> Edit:
        """Every chosen cell becomes the mean of its channel and head over all tokens of the pass."""
        return cls("mean", at, **cells)

    @classmethod
    def patch(cls, trace: Trace, at: At | str | None = None, **cells: Indices) -> Edit:
        """Chosen cells as they are in another trace; with `origins`, token by token from other positions."""
        return cls("patch", at, source=trace.ids, trace=trace, **cells)

    def bind(self, trace: Trace) -> Edit:
        """A patch with the trace that it takes from. EditError where the trace is of other tokens."""
        if self.source != trace.ids:
            raise EditError(f"{self} needs a trace of the ids {_write(self.source or ())}; this one is of others.")
        return replace(self, trace=trace)

    def placed(self, at: At | str | None) -> Edit:
        """The edit with its address. EditError where it has none, or another one already."""
        at = At.parse(at) if isinstance(at, str) else at
        if self.at is None and at is None:
            raise EditError(f"The edit {self} has no address. Write one in front, for example 3.attn_out {self}.")
        if None not in (self.at, at) and self.at != at:
            raise EditError(f"The edit {self} was given for {at}.")
        return self if self.at is not None else replace(self, at=at)

    def __str__(self) -> str:
        words = [] if self.at is None else [str(self.at)]
        words.append(self.kind)
        words += [_number(self.value)] if self.value is not None else []
        words += [str(self.seed)] if self.seed is not None else []
        words += [_write(self.source)] if self.source is not None else []
        chosen = ((letter, getattr(self, part)) for letter, part in _PARTS.items())
        return " ".join(words + [letter + _write(indices) for letter, indices in chosen if indices is not None])

    @classmethod
    def parse(cls, text: str) -> Edit:
        """Read "3.head_out zero h2"; an EditError shows the form."""
        words = text.split()
        at = At.parse(words.pop(0)) if words and words[0] not in _NUMBERS and len(words) > 1 else None
        if not words or words[0] not in _NUMBERS:
            raise EditError(
                f"{text[:80]!r} is not an edit. An edit is an address, {', '.join(_NUMBERS)}, and the cells "
                "that are meant: 3.head_out zero h2, or 3.mlp_out scale 0.5 t0-3,5 c10."
            )
        kind, *rest = words
        fields = len(_NUMBERS[kind])
        numbers, chosen = rest[:fields], rest[fields:]
        if len(numbers) < fields:
            raise EditError(f"{text[:80]!r} is not complete: {kind} takes {_takes(kind)}.")
        return cls(kind, at, **_read_numbers(kind, numbers), **_read_cells(text, chosen))


def read_edits(text: str) -> tuple[Edit, ...]:
    """Several edits, split by ";". "; ".join(map(str, edits)) writes them."""
    return tuple(Edit.parse(part) for part in text.split(";") if part.strip())


Edits = Mapping["At | str", "Edit | str | Iterable[Edit | str]"] | Iterable["Edit | str"] | Edit | str


def edits_of(edits: Edits | None, walk: Walk, dims: Mapping[str, int]) -> dict[At, tuple[Edit, ...]]:
    """Every edit by its address, in order of execution, checked against the sizes of the run.

    Those of one address keep the order in which they were given. EditError or AddressError.
    """
    found: dict[At, list[Edit]] = {}
    for edit in _listed(edits):
        walk.index(edit.at)
        check(edit, dims)
        found.setdefault(edit.at, []).append(edit)
    return {at: tuple(found[at]) for at in sorted(found, key=walk.index)}


def _listed(edits: Edits | None) -> Iterable[Edit]:
    if edits is None:
        return
    if isinstance(edits, Mapping):
        for at, some in edits.items():
            yield from (edit.placed(at) for edit in _each(some))
    else:
        yield from (edit.placed(None) for edit in _each(edits))


def _each(some: Edit | str | Iterable[Edit | str]) -> Iterable[Edit]:
    if isinstance(some, Edit):
        yield some
    elif isinstance(some, str):
        yield from read_edits(some)
    elif isinstance(some, Iterable):
        for one in some:
            yield from _each(one)
    else:
        raise EditError(f"{some!r:.80} is not an edit. Give an Edit or its text, such as 3.head_out zero h2.")


# --- does it fit ---


def axis_of(step: Step, part: str) -> int | None:
    """The place of "tokens", "heads" or "channels" among the axes of a step; None where it has none."""
    if part == "channels":
        return len(step.axes) - 1
    return next((step.axes.index(letter) for letter in _AXES[part] if letter in step.axes), None)


def check(edit: Edit, dims: Mapping[str, int]) -> None:
    """EditError where a chosen index is not there, or where a patch does not fit. The edit has its address."""
    step = edit.at.step
    for part in ("tokens", "heads", "channels"):
        indices, axis = getattr(edit, part), axis_of(step, part)
        if indices is None:
            continue
        if axis is None:
            raise EditError(
                f"{edit}: {step.key} has no {part}, its axes are {step.shape}. Choose tokens or channels, or edit "
                "head_out, where the heads are still apart."
            )
        _check_range(edit, part, indices, dims[step.axes[axis]], step.key)
    if edit.kind == "patch":
        _check_patch(edit, dims)


def _check_range(edit: Edit, part: str, indices: tuple[int, ...], size: int, where: str) -> None:
    if max(indices) >= size:
        raise EditError(
            f"{edit}: there is no {part.removesuffix('s')} {max(indices)}; {where} has {size} {part}, 0 to {size - 1}."
        )


def _check_patch(edit: Edit, dims: Mapping[str, int]) -> None:
    if edit.trace is None:
        raise EditError(
            f"{edit} takes the tensor of another prompt: run the ids {_write(edit.source)} and bind its trace, "
            "edit.bind(trace)."
        )
    try:
        theirs = edit.trace.stat(edit.at).shape
    except GlassLlamaError as error:
        raise EditError(f"{edit} takes a tensor that the other trace does not have. {error}") from error
    step = edit.at.step
    ours, axis = tuple(dims[a] for a in step.axes), axis_of(step, "tokens")
    mapped = edit.origins is not None
    if mapped and step.causal:
        raise EditError(f"{edit}: a map of positions would have to move the keys of {step.key} too. Patch k and v.")
    if mapped:
        _check_range(edit, "origins", edit.origins, theirs[axis], "the other prompt")
    same = [(mapped and axis == i) or a == b for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    if not all(same):
        raise EditError(
            f"{edit}: {step.key} is {_shape(ours)} here and {_shape(theirs)} in the other trace. Take a prompt of "
            "equal length, or name which position takes from which, for example t0-3 f2-5; all else must be equal."
        )


def _shape(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))


# --- the grammar ---


def _takes(kind: str) -> str:
    return " and ".join(_NUMBERS[kind]) or "no number"


def _number(value: float) -> str:
    """The shortest text that reads back the same; without "+", which a URL turns into a space."""
    return repr(value).removesuffix(".0").replace("e+", "e")


def _read_numbers(kind: str, words: list[str]) -> dict[str, object]:
    try:
        if kind == "patch":
            return {"source": _read(words[0])}
        found: dict[str, object] = {"value": float(words[0])} if words else {}
        return found | ({"seed": int(words[1])} if len(words) > 1 else {})
    except ValueError as error:
        raise EditError(f"{' '.join(words)[:80]!r} cannot be read: {kind} takes {_takes(kind)}.") from error


def _read_cells(text: str, words: list[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        part = _PARTS.get(word[0])
        if part is None or part in found:
            raise EditError(
                f"{word[:60]!r} in {text[:80]!r} names no cells. Write each once: t0-3,5 for tokens, h2 for heads, "
                "c10 for channels."
            )
        found[part] = _read(word[1:])
    return found


def _read(text: str) -> tuple[int, ...]:
    """ "0-3,5" -> (0, 1, 2, 3, 5)."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", piece, re.ASCII)
        if match is None:
            raise EditError(f"{text[:60]!r} is no list of numbers. Write them as 0-3,5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(found) + last - first >= MOST:
            raise EditError(f"{piece} is no range: the first number comes first, and at most {MOST:,} are named.")
        found += range(first, last + 1)
    return tuple(found)


def _write(indices: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 5) -> "0-3,5"; the order stays."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _indices(part: str, given: Iterable[int]) -> tuple[int, ...]:
    try:
        indices = tuple(operator.index(i) for i in ([given] if isinstance(given, int) else given))
    except TypeError as error:
        raise EditError(f"{given!r:.60} names no {part}. Give whole numbers, for example [0, 2].") from error
    once = part in ("origins", "source") or len(set(indices)) == len(indices)
    if not indices or min(indices) < 0 or not once:
        raise EditError(f"{given!r:.60} names no {part}: whole numbers from 0, at least one, each once.")
    return indices
