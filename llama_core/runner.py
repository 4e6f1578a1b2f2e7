"""run(model, prompt) -> Trace: the one border between torch and the rest.

A run costs one forward pass and its statistics. It keeps references to the model's own tensors,
never copies, of as many steps as its budget allows; the others are rebuilt when a reader asks, and numpy is made then.
Runs on one model may overlap in threads.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import steps
from .checkpoints.fits import free_for
from .config import PATHS, LlamaConfig
from .edits import Edit, Edits, edits_of
from .errors import RunError, TokenizerError
from .heap import give_back, keep_heap
from .kv_cache import KVCache
from .model import Entry, Llama
from .rebuild import Held, keeps, kept_steps, read_only, run_bytes
from .recorder import EndOfRun, Recorder, edited
from .settings import HOLD_MIB, TRACE_MIB
from .stats import dtype_name
from .steps import At, Step, Walk
from .tap import recording
from .tokenizer import check_ids
from .trace import Parameters, Statistics, Token, Trace
from .watch import Watch, watches_of

keep_heap()

Made = TypeVar("Made", bound=Trace)

HOLD_LIMIT = min(HOLD_MIB.bytes, TRACE_MIB.bytes)
"""Bytes of tensors that one trace holds where `run` is not told otherwise; what is beyond is rebuilt when asked for."""
SMALL = 64 << 20
"""A run that takes less is not held against the memory that is free."""


def run(
    model: Llama,
    prompt: str | Sequence[int] | Sequence[str | Sequence[int]],
    *,
    until: At | str | None = None,
    edits: Edits | None = None,
    start: Trace | None = None,
    stop_when: Watch | str | Iterable[Watch | str] | None = None,
    cache: KVCache | None = None,
    hold: int | None = None,
    path: str | None = None,
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
    is judged.
    hold: bytes of tensors that the trace may hold, HOLD_LIMIT by default. The stream and all statistics always are;
    what is not is made again, the same, when it is asked for.
    path: of attention. "explicit", the default, makes scores, masked and weights tensors of the pass; "fused" leaves
    them to torch's scaled_dot_product_attention, and they are made from q_rot and k_rot when asked for, as are their
    statistics; "auto" is explicit where they would be held, fused where they would be made again anyway. A layer in
    which one of them is edited, watched or the last to compute is explicit. With `start` it is that trace's.
    progress: told the share of steps that are done, after each half of a layer; what it raises ends the run.
    Raises RunError (EditError, WatchError), TokenizerError or AddressError before anything is computed.
    """
    if is_batch(prompt):
        from .batch import run_batch

        refuse_for_batch(edits=edits, start=start, stop_when=stop_when, cache=cache)
        if path == "fused":
            raise RunError("A batch runs explicitly: with pads, the fused path would have queries that see no key.")
        return run_batch(model, prompt, until=until, hold=hold, progress=progress)
    config, walk = model.config, model.config.walk
    until = checked_until(walk, until)
    ids = prompt_ids(model, prompt)
    check_cache(model, cache)
    check_start(model, ids, start, cache)
    past = start.past if start is not None else 0 if cache is None else cache.length
    changes = _changes(config, len(ids), past, edits, start)
    hold = HOLD_LIMIT if hold is None else hold
    kept = kept_steps(config, hold, len(ids), past, dtype_name(model.dtype), edits=changes)
    watches = watches_of(stop_when, walk)
    fused = _fused(config, path, kept, changes, until, watches, start)
    check_size(model, len(ids), past, fused=len(fused) == config.num_hidden_layers)
    started = time.perf_counter()
    shared = _shared(start, changes, len(walk) if until is None else walk.index(until) + 1, kept)
    if start is not None:
        cache = _cache_again(start, shared, cache)
    recorder = Recorder(
        config,
        len(ids),
        past,
        kept=kept,
        until=until,
        edits=changes,
        watches=watches,
        judged=shared.equal,
        tensors=shared.tensors,
        measured={at: start.stat(at) for at in walk.order[: shared.count] if start.measured(at)},
        passed=shared.count,
        fused=fused,
        progress=progress,
    )
    if not shared.complete:
        with torch.no_grad(), recording(recorder), suppress(EndOfRun):
            model(torch.tensor([ids], device=model.device), cache, shared.entry, fused=fused)
    until = until if recorder.stopped is None else recorder.stopped.at
    if steps.GATE not in kept:  # a pass that held little has freed much
        give_back(run_bytes(config, len(ids), past, dtype_name(model.dtype), fused=bool(fused)))
    held = Held(
        model,
        recorder.tensors,
        cache=cache,
        past=past,
        edits=changes,
        until=until,
        row=None if start is None else start.tensors.row_up_to(shared.count),
        fused=fused,
    )
    return finished(
        Trace,
        recorder,
        held,
        started,
        tokens=as_tokens(model, ids) if start is None else start.tokens,
        until=until,
        edits=tuple(edit for some in changes.values() for edit in some),
        stopped=recorder.stopped,
        fused=fused,
    )


def finished(kind: type[Made], recorder: Recorder, held: Held, started: float, **also: Any) -> Made:
    """The trace of a pass that began at `started`: what was recorded, what is held, and whose weights those were."""
    model = held.model
    return kind(
        config=model.config,
        walk=model.config.walk,
        step_stats=Statistics(model.config.walk, recorder.seen, recorder.stats(), held.stats),
        tensors=held,
        dims=recorder.dims,
        device=str(model.device),
        dtype=dtype_name(model.dtype),
        seconds=time.perf_counter() - started,
        nbytes=held.nbytes(),
        parameters=HeldParameters(model),
        **also,
    )


def edited_logits(model: Llama, start: Trace, edits: Edits) -> np.ndarray:
    """The logits of `run(model, start.ids, start=start, edits=edits)`, without a record of the way. [B T V] float32.

    Who calls it has asked `check_start`: a sweep asks once.
    """
    changes = _changes(model.config, len(start.ids), start.past, edits, start)
    shared = _shared(start, changes, len(start.walk))
    if shared.complete:
        return start["logits"]
    cache = _cache_again(start, shared, None)

    def change(at: At, x: Tensor) -> Tensor | None:
        return edited(x, changes[at], model.config) if at in changes else None

    with torch.no_grad(), recording(change):
        ids = torch.tensor([start.ids], device=model.device)
        return read_only(model(ids, cache, shared.entry, fused=start.fused))


def _fused(
    config: LlamaConfig,
    path: str | None,
    kept: frozenset[Step],
    changes: Mapping[At, object],
    until: At | None,
    watches: Sequence[Watch],
    start: Trace | None,
) -> frozenset[int]:
    """The layers whose attention runs fused."""
    if path not in (None, *PATHS):
        raise RunError(f"There is no attention path {path!r:.40}: give explicit, fused or auto.")
    edited_maps = {at.layer for at in changes if at.step.causal}
    if start is not None:
        if edited_maps & start.fused:
            layer = min(edited_maps & start.fused)
            raise RunError(
                f"The trace to start from ran its attention fused, so an edit of layer {layer}'s maps would change the "
                "path too, and with it every number a little. Run the prompt again with path='explicit', and edit that."
            )
        fused = start.fused
    elif path == "fused" or (path == "auto" and steps.SCORES not in kept):
        fused = frozenset(range(config.num_hidden_layers))
    else:
        return frozenset()
    maps = (at for at in config.walk if at.step.causal) if watches else ()
    watched = {at.layer for at in maps if any(watch.judges(at) for watch in watches)}
    last = {until.layer} if until is not None and until.step.causal and start is None else set()
    return fused - edited_maps - watched - last


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


def _shared(
    start: Trace | None, changes: Mapping[At, tuple[Edit, ...]], limit: int, kept: frozenset[Step] = frozenset()
) -> _Shared:
    """limit: how many addresses are wanted at most; kept: steps whose tensors are."""
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
    held = (at for at in start.tensors if keeps(kept, at) and start.walk.index(at) < count)
    return _Shared(count, equal, count == limit, {at: start.tensors.tensor(at) for at in held}, entry)


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


def check_size(model: Llama, T: int, past: int, batch: int = 1, fused: bool = False) -> None:
    """RunError when T tokens are none, beyond the model's positions, or take more memory than there is."""
    config = model.config
    if T == 0:
        raise RunError("The prompt is empty: there is no token to run. Type a word, or ids such as 10,20,30.")
    too_many = past + T - config.max_length
    if too_many > 0:
        raise RunError(
            f"The prompt takes positions up to {past + T - 1}, but the model was built for "
            f"{config.max_length} positions{_stretched(config)}. Shorten it by {too_many} tokens."
        )
    room = lacks_room(model, T, past, batch, fused)
    if room is not None:
        needed = run_bytes(config, T, past, dtype_name(model.dtype), batch, fused)
        most = "the stream and the logits" if fused else "the scores and weights of all heads of one layer"
        prompt = f"{T} tokens" if batch == 1 else f"{batch} prompts, filled up to {T} tokens each,"
        raise RunError(
            f"Running {prompt} takes {needed / 2**20:.0f} MiB, most of it for {most}; a run may take half of the "
            f"memory that is free, {room / 2**20:.0f} MiB. At most {longest_prompt(model, room, past, batch, fused)} "
            "tokens of this model fit: shorten the prompt, or close other programs."
        )


def lacks_room(model: Llama, T: int, past: int, batch: int = 1, fused: bool = False) -> int | None:
    """The bytes that a run may take, where these tokens take more; None where they fit, or the system does not say."""
    needed = run_bytes(model.config, T, past, dtype_name(model.dtype), batch, fused)
    if needed < SMALL:
        return None
    free = free_for(2 * needed, str(model.device))
    return free // 2 if free is not None and free // 2 < needed else None


def _stretched(config: LlamaConfig) -> str:
    if config.max_length == config.max_position_embeddings:
        return ""
    return f", {config.max_position_embeddings} stretched by {config.rope_scaling.kind} RoPE scaling"


def longest_prompt(model: Llama, room: int, past: int = 0, batch: int = 1, fused: bool = False) -> int:
    """The most tokens that run in so many bytes, by bisection."""
    low, high, dtype = 0, model.config.max_length - past, dtype_name(model.dtype)
    while low < high:
        middle = (low + high + 1) // 2
        fits = run_bytes(model.config, middle, past, dtype, batch, fused) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


class HeldParameters(Parameters):
    """The weights of a model as numpy, converted when asked for; float32 ones on the CPU are the model's own memory."""

    def __init__(self, model: Llama) -> None:
        self._tensors = model.weights()

    def __getitem__(self, name: str) -> np.ndarray:
        return read_only(self._tensors[name])

    def row(self, name: str, i: int) -> np.ndarray:
        return read_only(self._tensors[name][i])

    def are_of(self, model: Llama) -> bool:
        """Whether they are the very tensors that the model computes with."""
        theirs = model.weights()
        return theirs.keys() == self._tensors.keys() and all(
            tensor.data_ptr() == theirs[name].data_ptr() for name, tensor in self._tensors.items()
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
