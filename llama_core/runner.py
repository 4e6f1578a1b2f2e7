"""run(model, prompt) -> Trace: the one border between torch and the rest.

A run costs one forward pass and its statistics. It keeps references to the model's own tensors,
never copies; numpy is made when a reader asks. Runs on one model may overlap in threads.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from . import steps
from .config import LlamaConfig
from .errors import RunError, TokenizerError
from .heap import keep_heap
from .kv_cache import KVCache
from .model import Llama, share_heads, visible_cells
from .stats import dtype_name, step_stats
from .steps import At, Walk
from .tap import recording
from .tokenizer import check_ids
from .trace import StepStats, Token, Trace, visible_keys

keep_heap()

HOLD_LIMIT = 1 << 30
"""Bytes of tensors that one trace may hold; a run estimated above it is refused."""

# A derived step has the statistics of the step that it shows again.
_SAME_CELLS = {steps.K_SHARED: steps.K_ROT, steps.V_SHARED: steps.V, steps.MASKED: steps.SCORES}


class _Stopped(Exception):  # noqa: N818 - private: ends a forward pass at its `until`, caught by run
    pass


def run(
    model: Llama,
    prompt: str | Sequence[int],
    *,
    until: At | str | None = None,
    cache: KVCache | None = None,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """One forward pass over `prompt`, recorded at every step.

    prompt: text, for a model with a tokenizer, or token ids. until: the last address to compute;
    nothing after it is computed. cache: earlier positions; this pass's rows are added to it.
    progress: told the share of steps that are done, after each layer; what it raises ends the run.
    Raises RunError, TokenizerError or AddressError before anything is computed.
    """
    walk = model.config.walk
    if until is not None:
        until = walk.parse(until) if isinstance(until, str) else until
        walk.index(until)
    ids = prompt_ids(model, prompt)
    check_cache(model, cache)
    past = 0 if cache is None else cache.length
    check_size(model.config, len(ids), past, dtype_name(model.dtype))
    recorder = _Recorder(model.config, len(ids), past, until, progress)
    started = time.perf_counter()
    with torch.no_grad(), recording(recorder), suppress(_Stopped):
        model(torch.tensor([ids], device=model.device), cache)
    held = Held(model.config, recorder.tensors, cache, past)
    return Trace(
        config=model.config,
        tokens=as_tokens(model, ids),
        walk=walk,
        step_stats=recorder.stats(),
        tensors=held,
        dims=recorder.dims,
        until=until,
        device=str(model.device),
        dtype=dtype_name(model.dtype),
        seconds=time.perf_counter() - started,
        nbytes=held.nbytes(),
    )


def prompt_ids(model: Llama, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a prompt, checked against the model's vocabulary."""
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise TokenizerError(
                "This model has no tokenizer, so it cannot read text. Give token ids, for example [10, 20, 30]."
            )
        ids = model.tokenizer.encode(prompt)
    else:
        try:
            ids = [operator.index(i) for i in prompt]
        except TypeError as error:
            raise TokenizerError(
                f"A prompt is text or a list of whole numbers, for example [10, 20, 30]; {prompt!r:.80} is neither."
            ) from error
    check_ids(ids, model.config.vocab_size, model.tokenizer.vocab_size if model.tokenizer else None)
    return ids


def check_cache(model: Llama, cache: KVCache | None) -> None:
    """RunError when a cache was made for another config, or holds rows of another type or device."""
    if cache is None:
        return
    if cache.config != model.config:
        raise RunError(
            "This KV cache was made for a model of another config. Begin with an empty KVCache(model.config)."
        )
    rows = cache.rows()
    if rows is not None and (rows.dtype, rows.device) != (model.dtype, model.device):
        raise RunError(
            f"This KV cache holds {dtype_name(rows.dtype)} on {rows.device}, but the model computes in "
            f"{dtype_name(model.dtype)} on {model.device}. Begin with an empty KVCache(model.config)."
        )


def as_tokens(model: Llama, ids: Sequence[int]) -> tuple[Token, ...]:
    """The prompt's positions as a person reads them; without a tokenizer, the ids themselves."""
    if model.tokenizer is None:
        return tuple(Token(i, str(i)) for i in ids)
    return tuple(Token(piece.id, piece.text, piece.special) for piece in model.tokenizer.pieces(ids))


def check_size(config: LlamaConfig, T: int, past: int, dtype: str) -> None:
    """RunError when T tokens are none, beyond the model's positions, or more than a trace may hold."""
    if T == 0:
        raise RunError("The prompt is empty: there is no token to run. Type a word, or ids such as 10,20,30.")
    too_many = past + T - config.max_length
    if too_many > 0:
        raise RunError(
            f"The prompt takes positions up to {past + T - 1}, but the model was built for "
            f"{config.max_length} positions{_stretched(config)}. Shorten it by {too_many} tokens."
        )
    needed = config.capture_bytes(T, past, dtype)
    if needed > HOLD_LIMIT:
        fits = longest_prompt(config, past, dtype)
        raise RunError(
            f"Holding every step of {T} tokens would take {needed / 2**20:.0f} MiB; the limit is "
            f"{HOLD_LIMIT / 2**20:.0f} MiB. At most {fits} tokens of this model fit: shorten the prompt."
        )


def _stretched(config: LlamaConfig) -> str:
    if config.max_length == config.max_position_embeddings:
        return ""
    return f", {config.max_position_embeddings} stretched by {config.rope_scaling.kind} RoPE scaling"


def longest_prompt(config: LlamaConfig, past: int = 0, dtype: str = "float32") -> int:
    """The most tokens whose trace stays within HOLD_LIMIT, by bisection."""
    low, high = 0, config.max_length - past
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if config.capture_bytes(middle, past, dtype) <= HOLD_LIMIT else (low, middle - 1)
    return low


class _Recorder:
    """Receives each tap in turn: checks order and shape, keeps a reference, measures what it kept.

    Measuring waits for the end of attention and of the layer: the tensors are still in the cache then,
    and the code that measures is read in once for many of them, not between two matrix products each.
    """

    def __init__(
        self, config: LlamaConfig, T: int, past: int, until: At | None, progress: Callable[[float], None] | None
    ) -> None:
        self.dims = config.dims(T, past)
        self.until, self.progress = until, progress
        self.tensors: dict[At, Tensor] = {}
        self.seen = 0
        self._order = config.walk.order
        self._twins = _twins(config.walk, past == 0)
        self._shapes = {step: tuple(self.dims[a] for a in step.axes) for step in steps.STEPS}
        self._cells = _visible_of_layers(config, T, past + T)
        self._waiting: list[tuple[At, Tensor]] = []
        self._measured: dict[At, StepStats] = {}

    def __call__(self, at: At, x: Tensor) -> None:
        expected = self._order[self.seen]
        if at != expected:
            raise AssertionError(f"the tap {at} fired where the registry has {expected}")
        if tuple(x.shape) != self._shapes[at.step]:
            raise AssertionError(f"{at} has shape {tuple(x.shape)}; the registry says {self._shapes[at.step]}")
        self.seen += 1
        if not at.step.derived:
            self.tensors[expected] = x
        if expected not in self._twins:
            self._waiting.append((expected, x))
        if at == self.until:
            raise _Stopped
        if at.step is steps.ATTN_OUT or at.step is steps.RESID_OUT:
            self._measure()
            if self.progress is not None:
                self.progress(self.seen / len(self._order))

    def _measure(self) -> None:
        for at, x in self._waiting:
            self._measured[at] = step_stats(x, self._cells[at.layer] if at.step.causal else None)
        self._waiting.clear()

    def stats(self) -> dict[At, StepStats]:
        """Statistics of every address seen, in order; the same cells were measured once."""
        self._measure()
        found: dict[At, StepStats] = {}
        for at in self._order[: self.seen]:
            twin = self._twins.get(at)
            found[at] = self._measured[at] if twin is None else _again(found[twin], self._shapes[at.step])
        return found


def _visible_of_layers(config: LlamaConfig, T: int, S: int) -> list[np.ndarray]:
    """The flat cells of a T x S map that count, by layer; layers of one window share one array."""
    windows = [config.window(layer, S) for layer in range(config.num_hidden_layers)]
    cells = {window: np.flatnonzero(visible_keys(T, S, window)) for window in set(windows)}
    return [cells[window] for window in windows]


@lru_cache(maxsize=32)
def _twins(walk: Walk, alone: bool) -> dict[At, At]:
    """Addresses whose cells are those of an earlier one, or each of those repeated equally often.

    alone: without cached positions, which the shared keys and values would show besides.
    """
    found: dict[At, At] = {}
    for at in walk:
        if at.step is steps.RESID_IN:
            (found[at],) = walk.sources(at)
        elif at.step is steps.MASKED or (at.step in _SAME_CELLS and alone):
            found[at] = At(at.layer, _SAME_CELLS[at.step])
    return found


def _again(old: StepStats, shape: tuple[int, ...]) -> StepStats:
    times = math.prod(shape) // math.prod(old.shape)
    return old._replace(shape=shape, count=old.count * times, nan=old.nan * times, inf=old.inf * times)


class Held(Mapping[At, np.ndarray]):
    """The tensors of a run as numpy: held ones converted, derived ones made again from what they read."""

    def __init__(self, config: LlamaConfig, tensors: Mapping[At, Tensor], cache: KVCache | None, past: int) -> None:
        self._config, self._tensors, self._cache, self._past = config, tensors, cache, past

    def __getitem__(self, at: At) -> np.ndarray:
        array = self.tensor(at).float().cpu().numpy()
        array.flags.writeable = False
        return array

    def tensor(self, at: At) -> Tensor:
        """The tensor itself, in the model's dtype and on its device."""
        if at in self._tensors:
            return self._tensors[at]
        if at.step is steps.MASKED:
            scores = self._tensors[At(at.layer, steps.SCORES)]
            T, S = scores.shape[-2:]
            visible = visible_cells(T, S, scores.device, self._config.window(at.layer, S))
            return torch.where(visible, scores, float("-inf"))
        if at.step in (steps.K_SHARED, steps.V_SHARED):
            return share_heads(self._rows(at), self._config.group)
        raise KeyError(at)

    def _rows(self, at: At) -> Tensor:
        """Keys or values of all S positions, one per key/value head."""
        new = self._tensors[At(at.layer, _SAME_CELLS[at.step])]
        if self._past == 0:
            return new
        keys, values = self._cache.read(at.layer, self._past)
        return torch.cat((keys if at.step is steps.K_SHARED else values, new), dim=1)

    def __iter__(self) -> Iterator[At]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def nbytes(self) -> int:
        """Bytes held; a tensor that two addresses share counts once."""
        return sum({t.data_ptr(): t.nbytes for t in self._tensors.values()}.values())
