"""run(model, [prompt, prompt]) -> BatchTrace: several prompts in one pass, each with its own numbers.

Shorter prompts are filled up at their left. Positions count from each prompt's first token, no pad is seen by any
query, and a pad's own query sees nothing: its weights are 0. So a row is what its prompt alone would be, up to the
rounding of matrix products of another shape, and what stands at a pad means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import runner
from .errors import AddressError, GlassLlamaError
from .model import Llama
from .rebuild import Held, kept_steps
from .recorder import EndOfRun, Recorder, of_row
from .runner import as_tokens, check_size, checked_until, finished, prompt_ids
from .stats import dtype_name
from .steps import At
from .tap import recording
from .trace import Statistics, Token, Trace

PAD = Token(0, "‹pad›", pad=True)
"""What fills a row. Its id is looked up in the embedding like any other, and nothing reads what comes of it."""


@dataclass(frozen=True, eq=False)
class BatchTrace(Trace):
    """What one pass over several prompts computed. `row(b)` is the Trace of one of them, as any page or measure reads.

    `rows`: the tokens of each prompt, pads first, T in each. `trace[at]` has every row, pads included; `stats` and
    `stat` count real cells only, over all rows. `tokens`, `ids` and `next_tokens` belong to a row.
    """

    rows: tuple[tuple[Token, ...], ...] = ()

    @property
    def pads(self) -> tuple[int, ...]:
        """How many positions at the left of each row are pads."""
        return tuple(sum(token.pad for token in row) for row in self.rows)

    def visible(self, at: At | str | int | None = None) -> np.ndarray:
        """Which keys each query of each row may see. [B T S] bool: no query sees a pad, a pad's query sees none."""
        real = np.array([[not token.pad for token in row] for row in self.rows])
        return super().visible(at) & real[:, None, :]

    def next_tokens(self, position: int = -1, top: int = 10) -> list[tuple[int, float]]:
        """Not of all prompts at once: AddressError."""
        raise AddressError(self._of_a_row("next_tokens()"))

    def _of_a_row(self, call: str) -> str:
        return f"This run has {len(self.rows)} prompts: say which is meant, for example trace.row(0).{call}."

    def head(self, at: At | str, head: int) -> np.ndarray:
        """Not of all prompts at once: AddressError."""
        raise AddressError(self._of_a_row("head(at, head)"))

    def row(self, b: int) -> Trace:
        """The trace of prompt b: views without its pads, statistics of its own cells. AddressError."""
        if not 0 <= b < len(self.rows):
            raise AddressError(
                f"There is no row {b}: this run has {len(self.rows)} prompts, 0 to {len(self.rows) - 1}."
            )
        pad, T = self.pads[b], self.dims["T"]
        held = RowOf(self.tensors, b, pad)
        recorder = Recorder(self.config, T - pad, 0, kept=frozenset())
        for at in self.step_stats:
            recorder(at, held.tensor(at))
        measured = Statistics(self.walk, self.computed, recorder.stats())
        return Trace(
            config=self.config,
            tokens=self.rows[b][pad:],
            walk=self.walk,
            step_stats=measured,
            tensors=held,
            dims=recorder.dims,
            until=self.until,
            device=self.device,
            dtype=self.dtype,
            seconds=self.seconds,
            nbytes=held.nbytes(),
            parameters=self.parameters,
        )


class RowOf(Held):
    """One row of a batch without its pads: views of what the batch holds or rebuilds, in the batch's shape."""

    def __init__(self, batch: Held, b: int, pad: int) -> None:
        self._batch, self._b, self._pad = batch, b, pad
        super().__init__(batch.model, {at: self._view(at) for at in batch})

    def tensor(self, at: At) -> Tensor:
        return self._tensors[at] if at in self._tensors else self._view(at)

    def head_tensor(self, at: At, head: int, b: int = 0) -> Tensor:
        return self._batch.head_tensor(at, head, self._b)[self._pad :, self._pad :]

    def row_up_to(self, count: int) -> tuple[Held, int]:
        return self, count

    def _view(self, at: At) -> Tensor:
        return of_row(self._batch.tensor(at), at.step, self._b, self._pad)


def run_batch(
    model: Llama,
    prompts: Sequence[str | Sequence[int]],
    *,
    until: At | str | None = None,
    hold: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> BatchTrace:
    """One forward pass over several prompts; `run` comes here when its prompt is a list of prompts."""
    config = model.config
    until = checked_until(config.walk, until)
    ids = [_ids(model, prompt, b) for b, prompt in enumerate(prompts)]
    T = max(map(len, ids))
    check_size(model, T, 0, batch=len(ids))
    hold = runner.HOLD_LIMIT if hold is None else hold
    kept = kept_steps(config, hold, T, dtype=dtype_name(model.dtype), batch=len(ids))
    pads = [T - len(some) for some in ids]
    filled = torch.tensor([[PAD.id] * pad + some for pad, some in zip(pads, ids, strict=True)], device=model.device)
    recorder = Recorder(config, T, 0, kept=kept, until=until, pads=pads, progress=progress)
    started = time.perf_counter()
    with torch.no_grad(), recording(recorder), suppress(EndOfRun):
        model(filled, pads=pads)
    held = Held(model, recorder.tensors, pads=pads, until=until)
    return finished(
        BatchTrace,
        recorder,
        held,
        started,
        tokens=(),
        until=until,
        rows=tuple((PAD,) * pad + as_tokens(model, some) for pad, some in zip(pads, ids, strict=True)),
    )


def _ids(model: Llama, prompt: str | Sequence[int], b: int) -> list[int]:
    try:
        return prompt_ids(model, prompt)
    except GlassLlamaError as error:
        raise type(error)(f"Prompt {b} of the batch: {error}") from error
