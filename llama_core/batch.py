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

from . import runner
from .errors import AddressError, GlassLlamaError, RunError
from .model import Llama
from .recorder import EndOfRun, Recorder, of_row
from .runner import Held, HeldParameters, as_tokens, check_size, checked_until, prompt_ids
from .stats import dtype_name
from .steps import At
from .tap import recording
from .trace import Token, Trace

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
        raise AddressError(
            f"This run has {len(self.rows)} prompts: say which is meant, for example trace.row(0).next_tokens()."
        )

    def row(self, b: int) -> Trace:
        """The trace of prompt b: views without its pads, statistics of its own cells. AddressError."""
        if not 0 <= b < len(self.rows):
            raise AddressError(
                f"There is no row {b}: this run has {len(self.rows)} prompts, 0 to {len(self.rows) - 1}."
            )
        pad, T = self.pads[b], self.dims["T"]
        recorder = Recorder(self.config, T - pad, 0)
        for at in self.step_stats:
            recorder(at, of_row(self.tensors.tensor(at), at.step, b, pad))
        held = Held(self.config, recorder.tensors, None, 0)
        return Trace(
            config=self.config,
            tokens=self.rows[b][pad:],
            walk=self.walk,
            step_stats=recorder.stats(),
            tensors=held,
            dims=recorder.dims,
            until=self.until,
            device=self.device,
            dtype=self.dtype,
            path=self.path,
            seconds=self.seconds,
            nbytes=held.nbytes(),
            parameters=self.parameters,
        )


def run_batch(
    model: Llama,
    prompts: Sequence[str | Sequence[int]],
    *,
    until: At | str | None = None,
    progress: Callable[[float], None] | None = None,
) -> BatchTrace:
    """One forward pass over several prompts; `run` comes here when its prompt is a list of prompts."""
    config, walk = model.config, model.config.walk
    until = checked_until(walk, until)
    ids = [_ids(model, prompt, b) for b, prompt in enumerate(prompts)]
    T = max(map(len, ids))
    _check_size(model, len(ids), T)
    pads = [T - len(some) for some in ids]
    filled = torch.tensor([[PAD.id] * pad + some for pad, some in zip(pads, ids, strict=True)], device=model.device)
    recorder = Recorder(config, T, 0, until=until, pads=pads, progress=progress)
    started = time.perf_counter()
    with torch.no_grad(), recording(recorder), suppress(EndOfRun):
        model(filled, pads=pads)
    held = Held(config, recorder.tensors, None, 0, pads)
    return BatchTrace(
        config=config,
        tokens=(),
        walk=walk,
        step_stats=recorder.stats(),
        tensors=held,
        dims=recorder.dims,
        until=until,
        device=str(model.device),
        dtype=dtype_name(model.dtype),
        seconds=time.perf_counter() - started,
        nbytes=held.nbytes(),
        parameters=HeldParameters(model),
        rows=tuple((PAD,) * pad + as_tokens(model, some) for pad, some in zip(pads, ids, strict=True)),
    )


def _ids(model: Llama, prompt: str | Sequence[int], b: int) -> list[int]:
    try:
        return prompt_ids(model, prompt)
    except GlassLlamaError as error:
        raise type(error)(f"Prompt {b} of the batch: {error}") from error


def _check_size(model: Llama, B: int, T: int) -> None:
    dtype = dtype_name(model.dtype)
    check_size(model.config, T, 0, dtype)
    needed = B * model.config.capture_bytes(T, 0, dtype)
    if needed > runner.HOLD_LIMIT:
        raise RunError(
            f"Holding every step of {B} prompts, filled up to {T} tokens each, would take {needed / 2**20:.0f} MiB; "
            f"the limit is {runner.HOLD_LIMIT / 2**20:.0f} MiB. Run fewer at once, or shorter ones."
        )
