"""generate(model, prompt): one token after another, each with the Trace of the pass that chose it.

A KV cache keeps every position that has been computed, so a step after the prompt is a pass over one token. What a
step costs is what `run` costs; nothing is kept here but the cache and the ids: the traces are the caller's.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .errors import RunError
from .kv_cache import KVCache
from .model import Llama
from .runner import check_cache, check_size, lacks_room, prompt_ids, run
from .sampling import cut, draw
from .scaling import DynamicScaling
from .sizes import pass_flops
from .stats import dtype_name
from .trace import Trace

Progress = Callable[[float], None]


@dataclass(frozen=True)
class End:
    """Why a generation ended.

    kind: "stop", a stop token was chosen, `token`; "length", max_new_tokens are there; "context", the model has no
    position left; "memory", the next step's trace would be above the limit of `run`; "closed", by `close`.
    """

    kind: Literal["stop", "length", "context", "memory", "closed"]
    token: int | None = None


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen of the logits: `sampling.cut`, then a draw. temperature 0 takes the largest, always."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise RunError(f"temperature is {self.temperature}; it must be 0 (the most probable token) or above.")
        if self.top_k < 0:
            raise RunError(f"top_k is {self.top_k}; it must be 0 (all tokens) or a number of tokens to keep.")
        if not 0 <= self.top_p <= 1:
            raise RunError(f"top_p is {self.top_p}; it must be a probability, 0 to 1 (all tokens).")

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        """One token id by the logits [V] of a position. RunError where they are no numbers to choose by."""
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise RunError(
                "No next token can be chosen: the last logits hold NaN or infinity. Usually a type too narrow for this "
                "model; run the same ids, and the trace's first_not_finite() names the step where it begins."
            )
        found = cut(logits, self.temperature, self.top_k, self.top_p)
        return int(found.ids[draw(found, random.random())])


def generate(
    model: Llama,
    prompt: str | Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Collection[int] | None = None,
    cache: KVCache | None = None,
    chunk: int | None = None,
    path: str | None = None,
    progress: Progress | None = None,
) -> Generation:
    """Iterate over (token id, Trace): the trace is of the pass whose last logits chose the token.

    The first trace is the prompt's, each further one that of the token before, alone. The last token is never run.
    stop: ids that end it, and are its last token; None: the model's own, () none. cache: earlier positions; holds
    afterwards those of the prompt and of all new tokens but the last. chunk: the prompt in passes of so many tokens;
    the first trace is then the last pass's. path: of attention, as in `run`. progress: told the share of all positions
    that are done, after each layer; what it raises ends the step. Raises what `run` raises, before anything is
    computed.
    """
    sampling = Sampling(temperature, top_k, top_p)
    ids = prompt_ids(model, prompt)
    cache = KVCache(model.config) if cache is None else cache
    _check(model, ids, cache, max_new_tokens, chunk)
    stop = stop_ids(model) if stop is None else frozenset(map(operator.index, stop))
    return Generation(model, ids, cache, max_new_tokens, sampling, seed, stop, chunk, path, progress)


class Generation(Iterator[tuple[int, Trace]]):
    """The tokens as they come. `end` says why there are no more, None before that.

    prompt: the ids that it began with; ids: the new ones so far; cache: what has been computed. hold, path: of
    the next pass, as in `run`; they can be set before each.
    """

    def __init__(
        self,
        model: Llama,
        prompt: list[int],
        cache: KVCache,
        max_new_tokens: int,
        sampling: Sampling,
        seed: int,
        stop: frozenset[int],
        chunk: int | None,
        path: str | None,
        progress: Progress | None,
    ) -> None:
        self.prompt = tuple(prompt)
        self.ids: tuple[int, ...] = ()
        self.cache = cache
        self.end: End | None = None
        self.hold: int | None = None
        self.path = path
        self._model, self._sampling, self._stop = model, sampling, stop
        self._max_new_tokens, self._chunk, self._progress = max_new_tokens, chunk, progress
        self._random = np.random.default_rng(seed)
        self._done = 0
        self._refused: RunError | None = None

    def __next__(self) -> tuple[int, Trace]:
        if self.end is not None:
            raise StopIteration
        if self._refused is not None:  # that pass is in the cache: made once more, it would stand there twice
            raise self._refused
        waiting = self.ids[-1:] or list(self.prompt[self._done :])
        told = self._progress and self._tell
        for trace in prefill(self._model, waiting, self.cache, self._chunk, told, self.path, self.hold):
            self._done += len(trace.ids)
        try:
            token = self._sampling.draw(trace["logits"][0, -1], self._random)
        except RunError as error:
            self._refused = error
            raise
        self.ids += (token,)
        self.end = self._ended()
        return token, trace

    def close(self) -> None:
        """No more tokens. Nothing of a pass is left behind; the cache keeps its rows."""
        self.end = self.end or End("closed")

    def _ended(self) -> End | None:
        config, past = self._model.config, self.cache.length
        if self.ids[-1] in self._stop:
            return End("stop", self.ids[-1])
        if len(self.ids) == self._max_new_tokens:
            return End("length")
        if past == config.max_length:
            return End("context")
        if lacks_room(self._model, 1, past) is not None:
            return End("memory")
        return None

    def _tell(self, done: float) -> None:
        self._progress((self._done + done) / (len(self.prompt) + self._max_new_tokens - 1))


def stop_ids(model: Llama) -> frozenset[int]:
    """The ids that end a text, by the model's config and by its tokenizer."""
    config = model.config
    known = {config.eos_token_id, *config.other_eos_token_ids, model.tokenizer and model.tokenizer.eos_token_id}
    return frozenset(known - {None})


def prefill(
    model: Llama,
    ids: Sequence[int],
    cache: KVCache,
    chunk: int | None = None,
    progress: Progress | None = None,
    path: str | None = None,
    hold: int | None = None,
) -> Iterator[Trace]:
    """Run `ids` into the cache in passes of at most `chunk` tokens, one Trace each. Same numbers, less at once.

    progress: told, after each layer, how many tokens the pass at work amounts to so far; not those of earlier passes.
    """
    for part in _parts(len(ids), chunk):
        told = progress and partial(_tell_tokens, progress, part.stop - part.start)
        yield run(model, ids[part], cache=cache, path=path, hold=hold, progress=told)


def _tell_tokens(progress: Progress, count: int, share: float) -> None:
    progress(count * share)


def _parts(T: int, chunk: int | None) -> list[slice]:
    size = chunk or T
    return [slice(start, min(start + size, T)) for start in range(0, T, size)]


def _check(model: Llama, ids: Sequence[int], cache: KVCache, max_new_tokens: int, chunk: int | None) -> None:
    if max_new_tokens < 1:
        raise RunError(f"max_new_tokens is {max_new_tokens}; at least 1 token can be asked for.")
    _check_chunk(chunk)
    check_cache(model, cache)
    for part in reversed(_parts(len(ids), chunk)):  # the last one first: it knows how far the whole prompt goes
        check_size(model, part.stop - part.start, cache.length + part.start)


def _check_chunk(chunk: int | None) -> None:
    if chunk is not None and chunk < 1:
        raise RunError(f"chunk is {chunk}; a pass takes at least 1 token. Without a chunk the prompt is one pass.")


# --- cached against uncached ---

ROUNDING = {"float32": 2.0**-17, "bfloat16": 2.0**-4, "float16": 2.0**-7}
"""What sums in another order may do to a logit, as a share of the largest: 64 steps of float32's last bit, 8 of the
narrow types', which add in float32. Measured on the trained and the random models: at most half of it."""


@dataclass(frozen=True, eq=False)
class CacheCheck:
    """One prompt with the cache, chunk after chunk, against one pass without.

    differences [T]: largest |difference| of a position's logits; NaN both ways is none, NaN one way is infinite.
    bound: what rounding may do to logits of this size in this type. kind: "exact", no difference; "rounding", within
    the bound; "dynamic", beyond the context of dynamic RoPE scaling, where keys in the cache keep the angles of the
    pass that stored them; "unexplained".
    The last chunk with the cache, `cached`, and all T positions again, `full`: operations and seconds of both.
    """

    differences: np.ndarray
    bound: float
    kind: Literal["exact", "rounding", "dynamic", "unexplained"]
    cached_flops: int
    full_flops: int
    cached_seconds: float
    full_seconds: float

    @property
    def largest(self) -> float:
        """The largest of the differences."""
        return float(self.differences.max())


def compare_cached(
    model: Llama, prompt: str | Sequence[int], *, chunk: int = 1, progress: Progress | None = None
) -> CacheCheck:
    """Run a prompt both ways and compare every logit. Nothing is recorded: T x V logits are all it holds.

    progress: told the share of the positions that have been compared, after each chunk; what it raises ends it.
    """
    ids = prompt_ids(model, prompt)
    _check_chunk(chunk)
    check_size(model, 1, len(ids) - 1)
    cache, differences = KVCache(model.config), []
    full, full_seconds = _timed(model, ids)
    for part in _parts(len(ids), chunk):
        some, cached_seconds = _timed(model, ids[part], cache)
        differences.append(_apart(some.float(), full[part].float()))
        if progress is not None:
            progress(part.stop / len(ids))
    worst = torch.cat(differences).cpu().numpy()
    finite = full[full.isfinite()]
    bound = ROUNDING[dtype_name(model.dtype)] * (float(finite.abs().max()) if finite.numel() else 0.0)
    return CacheCheck(
        worst,
        bound,
        _kind(model, len(ids), float(worst.max()), bound),
        sum(pass_flops(model.config, part.stop - part.start, part.start).values()),
        sum(pass_flops(model.config, len(ids)).values()),
        cached_seconds,
        full_seconds,
    )


def _timed(model: Llama, ids: Sequence[int], cache: KVCache | None = None) -> tuple[Tensor, float]:
    """Logits [T V] of one pass, and its seconds."""
    started = time.perf_counter()
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=model.device), cache)[0]
        logits[-1, 0].item()  # an accelerator is waited for
    return logits, time.perf_counter() - started


def _apart(some: Tensor, others: Tensor) -> Tensor:
    """The largest |difference| of each position, of logits [T V]; cells that hold the same, NaN too, have none. [T]."""
    same = (some == others) | (some.isnan() & others.isnan())
    return torch.where(same, 0.0, (some - others).abs()).nan_to_num(nan=torch.inf).amax(-1)


def _kind(model: Llama, T: int, largest: float, bound: float) -> str:
    if largest == 0:
        return "exact"
    if largest <= bound:
        return "rounding"
    beyond = model.config.max_position_embeddings < T
    return "dynamic" if beyond and isinstance(model.config.rope_scaling, DynamicScaling) else "unexplained"
