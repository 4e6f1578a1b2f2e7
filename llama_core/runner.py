"""run(model, prompt) -> Trace: the one border between torch and the rest.

A run costs one forward pass and its statistics. It keeps references to the model's own tensors,
never copies; numpy is made when a reader asks. Runs on one model may overlap in threads.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import steps
from .config import LlamaConfig
from .edits import Edit, Edits, edits_of
from .errors import RunError, TokenizerError
from .heap import keep_heap
from .kv_cache import KVCache
from .model import Entry, Llama, share_heads, visible_cells, visible_in_batch
from .recorder import SAME_CELLS, EndOfRun, Recorder, edited
from .stats import dtype_name
from .steps import At, Walk
from .tap import recording
from .tokenizer import check_ids
from .trace import Parameters, Token, Trace
from .watch import Watch, watches_of

keep_heap()

HOLD_LIMIT = 1 << 30
"""Bytes of tensors that one trace may hold; a run estimated above it is refused."""


def run(
    model: Llama,
    prompt: str | Sequence[int] | Sequence[str | Sequence[int]],
    *,
    until: At | str | None = None,
    edits: Edits | None = None,
    start: Trace | None = None,
    stop_when: Watch | str | Iterable[Watch | str] | None = None,
    cache: KVCache | None = None,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """One forward pass over `prompt`, recorded at every step.

    prompt: text, for a model with a tokenizer, or token ids; a list of such prompts is a batch and gives a BatchTrace.
    until: the last address to compute; nothing after it is computed.
    cache: earlier positions; this pass's rows are added to it.
    edits: what is changed at which step, {"3.head_out": "zero h2"} or Edits that know their address.
    start: a trace of these ids by this model. Layers whose edits are the same are taken from it, not computed again;
    its edits hold where none are given, () takes them off. Its past is read from its own cache, which stays as it is;
    a `cache` given besides must be empty, and holds afterwards the past and this pass.
    stop_when: conditions that end the run at the step that meets one, see `watch`; of a resumed run only what is new
    is judged. progress: told the share of steps that are done, after each half of a layer; what it raises ends the run.
    Raises RunError (EditError, WatchError), TokenizerError or AddressError before anything is computed.
    """
    if is_batch(prompt):
        from .batch import run_batch

        refuse_for_batch(edits=edits, start=start, stop_when=stop_when, cache=cache)
        return run_batch(model, prompt, until=until, progress=progress)
    config, walk = model.config, model.config.walk
    until = checked_until(walk, until)
    ids = prompt_ids(model, prompt)
    check_cache(model, cache)
    check_start(model, ids, start, cache)
    past = start.past if start is not None else 0 if cache is None else cache.length
    check_size(config, len(ids), past, dtype_name(model.dtype))
    changes = _changes(config, len(ids), past, edits, start)
    watches = watches_of(stop_when, walk)
    started = time.perf_counter()
    shared = _shared(start, changes, len(walk) if until is None else walk.index(until) + 1)
    if start is not None:
        cache = _cache_again(start, shared, cache)
    recorder = Recorder(
        config,
        len(ids),
        past,
        until=until,
        edits=changes,
        watches=watches,
        judged=shared.equal,
        tensors=shared.tensors,
        measured={at: start.step_stats[at] for at in walk.order[: shared.count]},
        progress=progress,
    )
    if not shared.complete:
        with torch.no_grad(), recording(recorder), suppress(EndOfRun):
            model(torch.tensor([ids], device=model.device), cache, shared.entry)
    held = Held(config, recorder.tensors, cache, past)
    return Trace(
        config=config,
        tokens=as_tokens(model, ids) if start is None else start.tokens,
        walk=walk,
        step_stats=recorder.stats(),
        tensors=held,
        dims=recorder.dims,
        until=until if recorder.stopped is None else recorder.stopped.at,
        device=str(model.device),
        dtype=dtype_name(model.dtype),
        seconds=time.perf_counter() - started,
        nbytes=held.nbytes(),
        parameters=HeldParameters(model),
        edits=tuple(edit for some in changes.values() for edit in some),
        stopped=recorder.stopped,
    )


def edited_logits(model: Llama, start: Trace, edits: Edits) -> np.ndarray:
    """The logits of `run(model, start.ids, start=start, edits=edits)`, without a record of the way. [B T V] float32."""
    check_start(model, start.ids, start, None)
    changes = _changes(model.config, len(start.ids), start.past, edits, start)
    shared = _shared(start, changes, len(start.walk))
    if shared.complete:
        return start["logits"]
    cache = _cache_again(start, shared, None)

    def change(at: At, x: Tensor) -> Tensor | None:
        return edited(x, changes[at], model.config) if at in changes else None

    with torch.no_grad(), recording(change):
        return _read_only(model(torch.tensor([start.ids], device=model.device), cache, shared.entry))


# --- resuming ---


class _Shared(NamedTuple):
    """What a resumed run takes from the trace before: its first `count` addresses, all that is wanted if `complete`.

    equal: how many addresses are the same in both, at least `count`; those of a layer that parts are computed again.
    """

    count: int = 0
    equal: int = 0
    complete: bool = False
    tensors: Mapping[At, Tensor] = {}
    entry: Entry | None = None


def _shared(start: Trace | None, changes: Mapping[At, tuple[Edit, ...]], limit: int) -> _Shared:
    """limit: how many addresses are wanted at most."""
    if start is None:
        return _Shared()
    order, before = start.walk.order, {}
    for edit in start.edits:
        before[edit.at] = (*before.get(edit.at, ()), edit)
    parted = [start.walk.index(at) for at in {*before, *changes} if before.get(at) != changes.get(at)]
    equal = count = min(start.computed, limit, *parted)
    entry = None
    if count < limit:  # back to where a layer, or the end of the model, is entered
        while order[count].step not in (steps.EMBED, steps.RESID_IN, steps.FINAL_NORM):
            count -= 1
        if count:
            (source,) = start.walk.sources(order[count])
            layer = start.config.num_hidden_layers if order[count].layer is None else order[count].layer
            entry = (layer, start.tensors.tensor(source))
    kept = {at: start.tensors.tensor(at) for at in start.tensors if start.walk.index(at) < count}
    return _Shared(count, equal, count == limit, kept, entry)


def _changes(
    config: LlamaConfig, T: int, past: int, edits: Edits | None, start: Trace | None
) -> dict[At, tuple[Edit, ...]]:
    if edits is None and start is not None:
        edits = start.edits
    return edits_of(edits, config.walk, config.dims(T, past))


def check_start(model: Llama, ids: Sequence[int], start: Trace | None, cache: KVCache | None) -> None:
    """RunError where a run over these ids cannot go on from that trace."""
    if start is None:
        return
    if not (isinstance(start.tensors, Held) and isinstance(start.parameters, HeldParameters)):
        raise RunError("A run goes on only from a trace that `run` made here: of another one, no tensors are held.")
    if not start.parameters.are_of(model):
        raise RunError(
            "The trace to start from was computed by another model, by other weights or in another type. "
            "Run this model from the beginning."
        )
    if list(start.ids) != list(ids):
        raise RunError(
            f"The trace to start from is of other tokens: it has {len(start.ids)}, this prompt {len(ids)}, and they "
            "are not the same. Run this prompt from the beginning, or give the trace's own ids."
        )
    if cache is not None and cache.length:
        raise RunError(
            f"A resumed run reads the past of its trace, but the KV cache that was given holds {cache.length} "
            "positions. Give an empty KVCache(model.config), or none."
        )


def _cache_again(start: Trace, shared: _Shared, cache: KVCache | None) -> KVCache | None:
    """A cache of the trace's past and of the layers that are shared. Rows of the old one never change."""
    if cache is None and start.past == 0:
        return None
    cache = KVCache(start.config) if cache is None else cache
    if start.past:
        for layer in range(start.config.num_hidden_layers):
            cache.append(layer, *start.tensors.past_rows(layer))
        cache.commit(start.past)
    ended = shared.count == len(start.walk)
    for layer in range(start.config.num_hidden_layers if ended else shared.entry[0] if shared.entry else 0):
        keys, values = (start.tensors.tensor(At(layer, step)) for step in (steps.K_ROT, steps.V))
        cache.append(layer, keys, values)
    if ended:
        cache.commit(len(start.ids))
    return cache


def checked_until(walk: Walk, until: At | str | None) -> At | None:
    """The address to stop at; AddressError when this model has none such."""
    until = walk.parse(until) if isinstance(until, str) else until
    if until is not None:
        walk.index(until)
    return until


def is_batch(prompt: object) -> bool:
    """Whether a prompt is several: a list or tuple of texts, lists or tuples."""
    return (
        isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(isinstance(p, (str, list, tuple)) for p in prompt)
    )


def refuse_for_batch(**given: object) -> None:
    """RunError for what a batch cannot be run with."""
    for name, value in given.items():
        if value is not None:
            raise RunError(
                f"A batch is run without {name}: they belong to one prompt. Run the prompts one by one, "
                "or take one prompt's trace of a batch, trace.row(0), and go on from it with start."
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


class HeldParameters(Parameters):
    """The weights of a model as numpy, converted when asked for; float32 ones on the CPU are the model's own memory."""

    def __init__(self, model: Llama) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def __getitem__(self, name: str) -> np.ndarray:
        return _read_only(self._tensors[name])

    def row(self, name: str, i: int) -> np.ndarray:
        return _read_only(self._tensors[name][i])

    def are_of(self, model: Llama) -> bool:
        """Whether they are the very tensors that the model computes with."""
        theirs = dict(model.named_parameters())
        return theirs.keys() == self._tensors.keys() and all(
            tensor.data_ptr() == theirs[name].data_ptr() for name, tensor in self._tensors.items()
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.float().cpu().numpy()
    array.flags.writeable = False
    return array


class Held(Mapping[At, np.ndarray]):
    """The tensors of a run as numpy: held ones converted, derived ones made again from what they read."""

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[At, Tensor],
        cache: KVCache | None,
        past: int,
        pads: Sequence[int] | None = None,
    ) -> None:
        self._config, self._tensors, self._cache, self._past = config, tensors, cache, past
        self._pads = pads  # of each row of a batch

    def __getitem__(self, at: At) -> np.ndarray:
        return _read_only(self.tensor(at))

    def tensor(self, at: At) -> Tensor:
        """The tensor itself, in the model's dtype and on its device."""
        if at in self._tensors:
            return self._tensors[at]
        if at.step is steps.MASKED:
            scores = self._tensors[At(at.layer, steps.SCORES)]
            T, S = scores.shape[-2:]
            visible = visible_cells(T, S, scores.device, self._config.window(at.layer, S))
            if self._pads is not None:
                visible = visible_in_batch(visible, self._pads)
            return torch.where(visible, scores, float("-inf"))
        if at.step in (steps.K_SHARED, steps.V_SHARED):
            return share_heads(self._rows(at), self._config.group)
        raise KeyError(at)

    def _rows(self, at: At) -> Tensor:
        """Keys or values of all S positions, one per key/value head."""
        new = self._tensors[At(at.layer, SAME_CELLS[at.step])]
        if self._past == 0:
            return new
        keys, values = self.past_rows(at.layer)
        return torch.cat((keys if at.step is steps.K_SHARED else values, new), dim=1)

    def past_rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Cached keys and values that this run's queries saw besides its own. [B past Hkv Dh] each."""
        return self._cache.read(layer, self._past)

    def __iter__(self) -> Iterator[At]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def nbytes(self) -> int:
        """Bytes held; a tensor that two addresses share counts once."""
        return sum({t.data_ptr(): t.nbytes for t in self._tensors.values()}.values())
