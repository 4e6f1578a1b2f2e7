"""What happens at a tap while a model runs: the edit, the record, the watch, the stop.

A recorder belongs to one run and is handed to every tap by `tap.recording`. It keeps references, never copies.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from . import steps
from .config import LlamaConfig
from .edits import Edit, axis_of
from .model import visible_cells
from .stats import Found, Visible, begun, fetched, step_stats
from .steps import At, Step, Walk
from .trace import StepStats, visible_keys
from .watch import Stopped, Watch, judge

# A derived step has the statistics of the step that it shows again.
SAME_CELLS = {steps.K_SHARED: steps.K_ROT, steps.V_SHARED: steps.V, steps.MASKED: steps.SCORES}


class EndOfRun(Exception):  # noqa: N818 - no error: ends a forward pass where the run was to stop, caught by run
    """Raised at the last step that a run was asked for."""


class Recorder:
    """Receives each tap in turn: edits, checks order and shape, keeps a reference, measures what it kept.

    kept: the steps of which tensors are held; None: all.
    pads: of each row of a batch, how many positions at its left are none; they are recorded, and not measured.
    fused: the layers whose scores, masked and weights no tap sees: they are passed over, and have no statistics yet.
    It begins behind the first `passed` addresses, which a resumed run shares with the one before, as far as they are in
    `tensors` and `measured`.
    Measuring waits for the end of attention and of the layer: the tensors are still in the cache then,
    and the code that measures is read in once for many of them, not between two matrix products each.
    """

    def __init__(
        self,
        config: LlamaConfig,
        T: int,
        past: int,
        *,
        kept: frozenset[Step] | None = None,
        until: At | None = None,
        edits: Mapping[At, Sequence[Edit]] | None = None,
        watches: Sequence[Watch] = (),
        judged: int = 0,
        tensors: Mapping[At, Tensor] | None = None,
        measured: Mapping[At, StepStats] | None = None,
        passed: int = 0,
        pads: Sequence[int] = (0,),
        fused: Collection[int] = (),
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.dims = config.dims(T, past, batch=len(pads))
        self.pads = tuple(pads)
        self.until, self.progress, self._fused = until, progress, frozenset(fused)
        self.edits, self.watches, self.judged = edits or {}, watches, judged
        self.tensors: dict[At, Tensor] = dict(tensors or {})
        self.seen = passed
        self.stopped: Stopped | None = None
        self._config = config
        self._kept = frozenset(steps.STEPS) if kept is None else kept
        self._held = {step for step in self._kept if not step.derived}
        self._order = config.walk.order
        twins = _twins(config.walk, past == 0)
        self._twins = {at: twin for at, twin in twins.items() if at not in self.edits} if self.edits else twins
        self._shapes = {step: tuple(self.dims[a] for a in step.axes) for step in steps.STEPS}
        windows = {layer: config.window(layer, past + T) for layer in range(config.num_hidden_layers)}
        keys = {window: Visible(T, past + T, window) for window in windows.values()}
        self._visible = {layer: keys[window] for layer, window in windows.items()}
        self._waiting: list[tuple[At, Tensor]] = []
        self._measured: dict[At, StepStats | Found] = dict(measured or {})

    def __call__(self, at: At, x: Tensor) -> Tensor | None:
        expected = self._order[self.seen]
        while expected.step.causal and expected.layer in self._fused:
            self.seen += 1
            expected = self._order[self.seen]
        if at.step is not expected.step or at.layer != expected.layer:
            raise AssertionError(f"the tap {at} fired where the registry has {expected}")
        if x.shape != self._shapes[at.step]:
            raise AssertionError(f"{at} has shape {tuple(x.shape)}; the registry says {self._shapes[at.step]}")
        edits = self.edits.get(at) if self.edits else None
        if edits:
            x = edited(x, edits, self._config)
        self.seen += 1
        if at.step in self._held or (edits and SAME_CELLS.get(at.step, at.step) in self._kept):
            self.tensors[expected] = x
        if expected not in self._twins:
            self._waiting.append((expected, x))
        if self.watches and self.seen > self.judged:
            self._judge(at, x)
        if at == self.until:
            raise EndOfRun
        if at.step is steps.ATTN_OUT or at.step is steps.RESID_OUT:
            self._measure()
            if self.progress is not None:
                self.progress(self.seen / len(self._order))
        return x if edits else None

    def _judge(self, at: At, x: Tensor) -> None:
        for watch in (watch for watch in self.watches if watch.judges(at)):
            T, S = self.dims["T"], self.dims["S"]
            visible = visible_keys(T, S, self._config.window(at.layer, S)) if at.step.causal else None
            self.stopped = judge(watch, at, x.float().cpu().numpy(), visible)
            if self.stopped is not None:
                raise EndOfRun

    def _measure(self) -> None:
        for at, x in self._waiting:
            visible = self._visible[at.layer] if at.step.causal else None
            self._measured[at] = self._without_pads(at, x) if any(self.pads) else begun(x, visible)
        self._waiting.clear()

    def _without_pads(self, at: At, x: Tensor) -> StepStats:
        rows = [of_row(x, at.step, b, pad) for b, pad in enumerate(self.pads)]
        if at.step.causal:
            T, window = self.dims["T"], self._config.window(at.layer, self.dims["S"])
            rows = [
                row[..., visible_cells(T - pad, T - pad, x.device, window)]
                for row, pad in zip(rows, self.pads, strict=True)
            ]
        cells = torch.cat([row.flatten() for row in rows])
        return step_stats(cells)._replace(shape=tuple(x.shape), masked=x.numel() - cells.numel())

    def stats(self) -> dict[At, StepStats]:
        """Statistics of every address measured, in order; the same cells were measured once."""
        self._measure()
        measured, found = fetched(self._measured), {}
        for at in self._order[: self.seen]:
            row, twin = measured.get(at), self._twins.get(at)
            if row is None and twin in found:
                row = _again(found[twin], self._shapes[at.step])
            if row is not None:
                found[at] = row
        return found


def of_row(x: Tensor, step: Step, b: int, pad: int) -> Tensor:
    """A view of one row of a batch without its pads: B is 1, T and S are shorter by `pad`."""
    parts = {"B": slice(b, b + 1), "T": slice(pad, None), "S": slice(pad, None)}
    return x[tuple(parts.get(axis, slice(None)) for axis in step.axes)]


@lru_cache(maxsize=32)
def _twins(walk: Walk, alone: bool) -> dict[At, At]:
    """Addresses whose cells are those of an earlier one, or each of those repeated equally often.

    alone: without cached positions, which the shared keys and values would show besides.
    """
    found: dict[At, At] = {}
    for at in walk:
        if at.step is steps.RESID_IN:
            (found[at],) = walk.sources(at)
        elif at.step is steps.MASKED or (at.step in SAME_CELLS and alone):
            found[at] = At(at.layer, SAME_CELLS[at.step])
    return found


def _again(old: StepStats, shape: tuple[int, ...]) -> StepStats:
    times = math.prod(shape) // math.prod(old.shape)
    return old._replace(
        shape=shape, count=old.count * times, nan=old.nan * times, inf=old.inf * times, masked=old.masked * times
    )


# --- edits ---


def edited(x: Tensor, edits: Sequence[Edit], config: LlamaConfig) -> Tensor:
    """The tensor after each edit in turn: always another one, x itself is left as it was."""
    for edit in edits:
        visible = None
        if edit.at.step.causal:
            T, S = x.shape[-2:]
            visible = visible_cells(T, S, x.device, config.window(edit.at.layer, S))
        new = _changed(edit, x, visible).to(x.dtype)
        cells = _chosen(edit, x, visible)
        x = new if cells is None else torch.where(cells, new, x)
    return x


def _chosen(edit: Edit, x: Tensor, visible: Tensor | None) -> Tensor | None:
    """The cells that an edit changes, as a mask that broadcasts to x; None for all."""
    cells = visible
    for part in ("tokens", "heads", "channels"):
        indices, axis = getattr(edit, part), axis_of(edit.at.step, part)
        if indices is None:
            continue
        some = torch.zeros(x.shape[axis], dtype=torch.bool, device=x.device)
        some[list(indices)] = True
        some = some.view([-1 if i == axis else 1 for i in range(x.ndim)])
        cells = some if cells is None else cells & some
    return cells


def _changed(edit: Edit, x: Tensor, visible: Tensor | None) -> Tensor:
    """What an edit would put in every cell: a new tensor of x's shape, in float32 or x's type."""
    match edit.kind:
        case "zero":
            return torch.zeros_like(x)
        case "set":
            return torch.full_like(x, edit.value, dtype=torch.float32)
        case "scale":
            return x.float() * edit.value
        case "noise":
            return x.float() + edit.value * _noise(edit, x)
        case "mean":
            return _mean_of_tokens(x.float(), axis_of(edit.at.step, "tokens"), visible).expand(x.shape).clone()
        case "patch":
            return _patched(edit, x)


def _noise(edit: Edit, x: Tensor) -> Tensor:
    """Standard normal, by seed and address. Drawn for all cells, whichever are chosen."""
    random = np.random.default_rng([edit.seed, zlib.crc32(str(edit.at).encode())])
    return torch.from_numpy(random.standard_normal(x.shape, dtype=np.float32)).to(x.device)


def _mean_of_tokens(x: Tensor, axis: int, visible: Tensor | None) -> Tensor:
    if visible is None:
        return x.mean(axis, keepdim=True)
    return torch.where(visible, x, 0).sum(axis, keepdim=True) / visible.sum(0)


def _patched(edit: Edit, x: Tensor) -> Tensor:
    theirs = torch.tensor(edit.trace[edit.at], device=x.device)
    if edit.origins is None:
        return theirs
    axis = axis_of(edit.at.step, "tokens")
    tokens, origins = (torch.tensor(indices, device=x.device) for indices in (edit.tokens, edit.origins))
    return x.float().index_copy(axis, tokens, theirs.index_select(axis, origins))
