"""The two paths of attention side by side: how far apart their numbers are, and what each of them costs.

    found = difference(model, run(model, prompt))
    found.head_out.largest, found.logits.rms, found.bound, found.next_tokens
    for costs in costs_by_length(model, ids):
        costs.T, costs.explicit.seconds, costs.fused.nbytes

Statistics of a fused layer's maps, which the pass never had, are made here too, one after another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import steps
from .config import LlamaConfig
from .edits import edits_of
from .errors import RunError
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Llama

BOUNDS = {"float32": 1e-3, "bfloat16": 2.0}
"""As far as rounding takes the two paths apart at any cell, as a share of the step's rms: at least twice what was found
on trained models of up to 30 layers and 1,024 tokens. In bfloat16 the explicit path rounds scores to two or three
digits before the softmax, which the fused kernel does not; a wrong mask or scale moves cells by several rms in both."""
SHORTEST, LONGEST = 64, 2048
"""Lengths at which the paths are timed, doubling from the first to at most the second."""
SECONDS = 12.0
"""Seconds that the passes at all lengths may take together."""
REPEATS = 5
"""Passes of each path at one length, at most."""
GROWTH = 1.5
"""Power of T by which a longer pass is expected to take longer: between the projections' 1 and the maps' 2. Below
SHORTEST it hardly does: there all the weights are read for a few tokens."""
SHARE = 0.08
"""Share of the whole time after which a length has been repeated enough."""
CELLS = 1 << 22
"""Cells that are compared at once."""


# --- how far apart ---


class Distance(NamedTuple):
    """One step on both paths. largest: |explicit - fused| of its cells; rms: of the step in the trace.

    [L] each, for a step of every layer; [] of the logits. Infinite where a cell is finite on one path only.
    """

    largest: np.ndarray
    rms: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """largest / rms; 0 where nothing differs."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.largest == 0, 0.0, self.largest / self.rms)


@dataclass(frozen=True, eq=False)
class Difference:
    """The same prompt, weights and edits on both paths, cell by cell.

    head_out, resid_out: of each layer; logits. layers: those that ran fused in one of the two passes and explicitly in
    the other; behind the first of them all differ a little. next_tokens: the most probable id after each position,
    explicit and fused. [2 T]. bound: see BOUNDS.
    """

    layers: tuple[int, ...]
    head_out: Distance
    resid_out: Distance
    logits: Distance
    next_tokens: np.ndarray
    bound: float

    @property
    def largest_share(self) -> float:
        """The largest difference of all that were compared, as a share of its step's rms; NaN where that is."""
        return float(max(each.shares.max() for each in (self.head_out, self.resid_out, self.logits)))


COMPARED = (steps.HEAD_OUT, steps.RESID_OUT, steps.LOGITS)


def difference(model: Llama, trace: Trace, progress: Callable[[float], None] | None = None) -> Difference:
    """Run the trace's prompt once more, on the path that it did not take, and compare layer by layer.

    Nothing of the second pass is kept; what the trace does not hold is made again. A layer whose maps are edited runs
    explicitly in both. progress: told the share of layers that are done; what it raises ends the pass.
    RunError for a trace of another model, or behind cached positions, or with the maps of every layer edited, or where
    the other path does not fit in memory; NotComputedError for a trace without logits.
    """
    import torch

    from .recorder import edited
    from .runner import check_size
    from .tap import recording

    other, compared = _other(model, trace)
    layers, T = trace.config.num_hidden_layers, len(trace.ids)
    check_size(model, T, 0, fused=len(other) == layers)
    changes = edits_of(trace.edits, trace.walk, trace.dims)
    found: dict[At, tuple[float, float]] = {}
    best: list[np.ndarray] = []

    def compare(at: At, x: Tensor) -> Tensor | None:
        if at in changes:
            x = edited(x, changes[at], trace.config)
        if at.step in COMPARED:
            own = trace.tensors.tensor(at)
            found[at] = _largest(own, x), trace.stat(at).rms
            if at.step is steps.LOGITS:
                best.extend(logits[0].argmax(-1).cpu().numpy() for logits in (own, x))
        if at.step is steps.RESID_OUT and progress is not None:
            progress((at.layer + 1) / layers)
        return x if at in changes else None

    with torch.no_grad(), recording(compare):
        model(torch.tensor([trace.ids], device=model.device), fused=other)
    each = {step: [at for at in found if at.step is step] for step in COMPARED[:2]}
    return Difference(
        layers=tuple(sorted(compared)),
        **{step.key: Distance(*np.array([found[at] for at in ats]).T) for step, ats in each.items()},
        logits=Distance(*map(np.asarray, found[At(None, steps.LOGITS)])),
        next_tokens=np.stack(best[::-1] if trace.fused else best),
        bound=BOUNDS[trace.dtype],
    )


def _other(model: Llama, trace: Trace) -> tuple[frozenset[int], frozenset[int]]:
    """The layers that run fused on the other path, and those that take another one there."""
    from .runner import check_start

    check_start(model, trace.ids, trace, None)
    trace.resolve(At(None, steps.LOGITS))
    if trace.past:
        raise RunError(
            f"The two paths are compared over a prompt from its first token; this pass has {trace.past} cached "
            "positions before it. Compare the pass of the prompt."
        )
    if trace.fused:
        return frozenset(), trace.fused
    edited_maps = {edit.at.layer for edit in trace.edits if edit.at.step.causal}
    other = frozenset(range(trace.config.num_hidden_layers)) - edited_maps
    if not other:
        raise RunError(
            "The maps of every layer are edited, and an edited map has to be a tensor: there is no layer to run fused. "
            "Switch off the edits of scores, masked and weights of one layer at least."
        )
    return other, other


def _largest(a: Tensor, b: Tensor) -> float:
    """The largest |difference| of a cell; infinite where one alone is finite. Some positions at a time."""
    largest, some = 0.0, max(1, CELLS // a[:, :1].numel())
    for x, y in zip(a.split(some, dim=1), b.split(some, dim=1), strict=True):
        distance = (x.float() - y.float()).abs()
        distance[(x == y) | (x.isnan() & y.isnan())] = 0
        largest = max(largest, float(distance.nan_to_num(nan=math.inf, posinf=math.inf).max()))
    return largest


# --- what they cost ---


class Cost(NamedTuple):
    """One path at one length. seconds: the median of a plain forward pass; None where it does not fit in memory.

    nbytes: what a pass needs at once beside the weights, from shapes (`rebuild.run_bytes`).
    """

    seconds: float | None
    nbytes: int


class Costs(NamedTuple):
    """Both paths over T tokens."""

    T: int
    explicit: Cost
    fused: Cost


def lengths(config: LlamaConfig, T: int) -> tuple[int, ...]:
    """64, 128, ... as far as this model goes, at most 2,048; and T, the prompt's own length. Ascending."""
    end = min(LONGEST, config.max_length)
    doubling = {min(SHORTEST << n, end) for n in range(end.bit_length()) if SHORTEST << n <= end or n == 0}
    return tuple(sorted(doubling | {min(T, config.max_length)}))


def costs_by_length(
    model: Llama, ids: Sequence[int], seconds: float = SECONDS, between: Callable[[], object] = lambda: None
) -> Iterator[Costs]:
    """Time plain forward passes of both paths, alternately, at one of `lengths` after another, the shortest first.

    Each pass is `model(ids)` without a recorder, so nothing is measured or kept but its time. ids: whose beginning is
    run, over and over where they are fewer. seconds: of all passes together; a length that would go beyond is left
    out, with all longer ones. between: called before each pass; what it raises ends it all. It ends early where
    neither path fits in memory. RunError for no ids.
    """
    from .runner import lacks_room

    if not ids:
        raise RunError("There is no token to time a pass with. Give ids such as [10, 20, 30].")
    paths = {False: range(0), True: range(model.config.num_hidden_layers)}  # fused or not -> the layers that are
    left, last = seconds, None
    for T in lengths(model.config, len(ids)):
        fits = {fused: layers for fused, layers in paths.items() if lacks_room(model, T, 0, fused=fused) is None}
        if not fits or (last is not None and last.seconds * (T / max(last.T, SHORTEST)) ** GROWTH > left):
            return
        prompt = _prompt(model, ids, T)
        if last is None:
            _in_turn(model, prompt, fits, 0.0, between)  # what is done once, at the first pass
        taken = _in_turn(model, prompt, fits, min(left, SHARE * seconds), between)
        left -= sum(map(sum, taken.values()))
        last = _Pair(T, sum(map(min, taken.values())))
        medians = {fused: median(each) for fused, each in taken.items()}
        yield Costs(T, *(Cost(medians.get(fused), _nbytes(model, T, fused)) for fused in paths))


class _Pair(NamedTuple):
    """One pass of each path over T tokens, the fastest of each, took so long together."""

    T: int
    seconds: float


def _nbytes(model: Llama, T: int, fused: bool) -> int:
    from .rebuild import run_bytes
    from .stats import dtype_name

    return run_bytes(model.config, T, dtype=dtype_name(model.dtype), fused=fused)


def _prompt(model: Llama, ids: Sequence[int], T: int) -> Tensor:
    """The first T of the ids, over and over where they are fewer. [1 T]."""
    import torch

    return torch.tensor([(list(ids) * -(-T // len(ids)))[:T]], device=model.device)


def _in_turn(
    model: Llama, prompt: Tensor, paths: Mapping[bool, range], enough: float, between: Callable[[], object]
) -> dict[bool, list[float]]:
    """Seconds of passes of each path in turn: REPEATS, or fewer once they took `enough` together, but at least one."""
    taken: dict[bool, list[float]] = {path: [] for path in paths}
    for i in range(REPEATS):
        if i and sum(map(sum, taken.values())) >= enough:
            break
        for path, fused in paths.items():
            between()
            taken[path].append(_seconds(model, prompt, fused))
    return taken


def _seconds(model: Llama, prompt: Tensor, fused: range) -> float:
    import torch

    started = time.perf_counter()
    with torch.no_grad():
        logits = model(prompt, fused=fused)
    logits[0, -1, -1].item()  # a device has then done all that it was asked for
    return time.perf_counter() - started


# --- statistics that a fused pass has not ---


def unmeasured(trace: Trace) -> tuple[At, ...]:
    """Addresses whose statistics are not there yet, in order of execution: maps of fused layers."""
    maps = (at for at in trace.walk.order[: trace.computed] if at.step.causal and at.layer in trace.fused)
    return tuple(at for at in maps if not trace.measured(at))


def measure(trace: Trace, progress: Callable[[float], None] | None = None) -> None:
    """Make all statistics that are not there yet. progress: told the share that is done; what it raises ends it, and
    what was made stays."""
    missing = unmeasured(trace)
    for i, at in enumerate(missing):
        trace.stat(at)
        if progress is not None:
            progress((i + 1) / len(missing))
