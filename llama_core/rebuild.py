"""What a trace holds of its run, and how the rest is made again when it is asked for.

Always held is the stream, before and after each half of a layer; of other steps as many as a budget of bytes allows.
What is not held comes from running that half once more: the same modules, on the stream that entered it, in the shape,
type and place of the run, with the run's edits. So it is the run's own number, bit for bit, and only takes a moment.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from . import steps
from .config import ITEM_BYTES, LlamaConfig
from .edits import Edit
from .heap import give_back
from .kv_cache import KVCache
from .model import Llama, Sight, Sights, share_heads
from .recorder import SAME_CELLS, EndOfRun, edited
from .settings import REBUILT_MIB
from .stats import Visible, dtype_name, stats_of_parts
from .steps import At, Step
from .tap import recording
from .trace import StepStats

REBUILT_LIMIT = REBUILT_MIB.bytes
"""Bytes of rebuilt tensors that the process keeps, over all traces; the least recently used go first."""
ALWAYS = frozenset({steps.EMBED, steps.RESID_IN, steps.RESID_MID, steps.RESID_OUT, steps.FINAL_NORM})
"""Steps that every trace holds: each layer is entered by the very tensor that the one before ended with."""


def kept_steps(
    config: LlamaConfig,
    hold: int,
    T: int,
    past: int = 0,
    dtype: str = "float32",
    batch: int = 1,
    edits: Iterable[At] = (),
) -> frozenset[Step]:
    """The steps that a trace holds within `hold` bytes: all; all but the T x S ones; ALWAYS and logits; ALWAYS.

    edits: what is changed on the way. An edited derived step, which cannot be made from what it reads, is held with the
    step that it shows again.
    """

    def size(tier: frozenset[Step]) -> int:
        own = [at.step for at in edits if at.step.derived and keeps(tier, at)]
        return held_bytes(config, tier, T, past, dtype, batch) + sum(
            _bytes(config, step, T, past, dtype, batch) for step in own
        )

    every = frozenset(step for step in config.walk.steps if not step.derived)
    tiers = (every, frozenset(step for step in every if not step.causal), ALWAYS | {steps.LOGITS})
    return next((tier for tier in tiers if size(tier) <= hold), ALWAYS)


def held_bytes(
    config: LlamaConfig, kept: frozenset[Step], T: int, past: int = 0, dtype: str = "float32", batch: int = 1
) -> int:
    """Bytes of a trace that holds these steps. resid_in is another step's tensor and costs nothing."""
    return sum(
        _bytes(config, step, T, past, dtype, batch) * (config.num_hidden_layers if step.scope == "layer" else 1)
        for step in kept - {steps.RESID_IN}
    )


def run_bytes(
    config: LlamaConfig, T: int, past: int = 0, dtype: str = "float32", batch: int = 1, fused: bool = False
) -> int:
    """Bytes that a run takes for a moment, beside the weights, when it holds as little as it can.

    fused: in all its layers, so that no map is a tensor. Otherwise in the widest layer scores, masked and weights stand
    at once, and one more in float32: of the softmax, or of the statistics. Or at the end the logits.
    """
    size = {step: _bytes(config, step, T, past, dtype, batch) for step in config.walk.steps}
    plain = sum(size[step] for step in config.walk.steps if step.scope == "layer" and not step.causal)
    square = 3 * size[steps.SCORES] + size[steps.SCORES] // ITEM_BYTES[dtype] * ITEM_BYTES["float32"]
    widest = plain if fused else plain + square
    return held_bytes(config, ALWAYS, T, past, dtype, batch) + max(widest, size[steps.LOGITS])


def _bytes(config: LlamaConfig, step: Step, T: int, past: int, dtype: str, batch: int) -> int:
    dims = config.dims(T, past, batch)
    return ITEM_BYTES[dtype] * math.prod(dims[axis] for axis in step.axes)


def keeps(kept: frozenset[Step], at: At) -> bool:
    """Whether a trace that holds these steps holds this address, where it has a tensor of its own."""
    return SAME_CELLS.get(at.step, at.step) in kept


def read_only(tensor: Tensor) -> np.ndarray:
    """numpy float32 that refuses writes; a float32 tensor on the CPU and its array are the same memory."""
    array = tensor.float().cpu().numpy()
    array.flags.writeable = False
    return array


class Lately:
    """What was rebuilt lately, of all traces: at most `limit` bytes, the least recently used goes first.

    The tensors lie with their owners, so a trace that goes takes its own along. Any thread may ask.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._order: OrderedDict[tuple[weakref.ref[Held], Hashable], int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, owner: Held, key: Hashable) -> Tensor | None:
        """The tensor, now the most recently used; None when it is not there."""
        with self._lock:
            found = owner.lately.get(key)
            if found is not None:
                self._order.move_to_end((weakref.ref(owner), key))
            return found

    def put(self, owner: Held, made: Mapping[Hashable, Tensor]) -> None:
        """Keep these, the last one longest. One that is larger than the limit is not kept."""
        with self._lock:
            for key, tensor in made.items():
                if tensor.nbytes <= self.limit:
                    owner.lately[key] = tensor
                    self._order[weakref.ref(owner), key] = tensor.nbytes
                    self._order.move_to_end((weakref.ref(owner), key))
            for entry in [entry for entry in self._order if entry[0]() is None]:
                del self._order[entry]
            while sum(self._order.values()) > self.limit:
                (reference, key), _ = self._order.popitem(last=False)
                gone = reference()
                if gone is not None:
                    del gone.lately[key]

    def nbytes(self) -> int:
        """Bytes kept now."""
        with self._lock:
            return sum(size for (owner, _), size in self._order.items() if owner() is not None)


LATELY = Lately(REBUILT_LIMIT)
_one_at_a_time = threading.RLock()  # a layer at work is the largest thing there is; a patch reads another trace inside


class Held(Mapping[At, np.ndarray]):
    """The tensors of a run as numpy: held ones converted, derived ones made from what they read, others rebuilt.

    As a mapping it lists what is held; [], `head` and `tensor` answer for all that the run computed.
    pads: of each row of a batch. edits: of the run, by address. until: where it ended. fused: the layers whose maps the
    run never had.
    row: where a run goes on from a row of a batch, that row, and how many addresses are its: they had the batch's
    shape, and are asked of it.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__  # by identity: to compare numbers, all would have to be made

    def __init__(
        self,
        model: Llama,
        tensors: Mapping[At, Tensor],
        *,
        cache: KVCache | None = None,
        past: int = 0,
        pads: Sequence[int] | None = None,
        edits: Mapping[At, Sequence[Edit]] | None = None,
        until: At | None = None,
        row: tuple[Held, int] | None = None,
        fused: frozenset[int] = frozenset(),
    ) -> None:
        self.model, self._config, self._tensors = model, model.config, tensors
        self._cache, self._past, self._pads = cache, past, pads
        self._edits, self._until, self.row, self._fused = edits or {}, until, row, fused
        self.lately: dict[Hashable, Tensor] = {}  # kept by LATELY

    def __getitem__(self, at: At) -> np.ndarray:
        return read_only(self.tensor(at))

    def head(self, at: At, head: int) -> np.ndarray:
        """One head of a T x S step. [T S]."""
        return read_only(self.head_tensor(at, head))

    def __contains__(self, at: object) -> bool:
        return at in self._tensors

    def __iter__(self) -> Iterator[At]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def nbytes(self) -> int:
        """Bytes held; a tensor that two addresses share counts once."""
        return sum({t.data_ptr(): t.nbytes for t in self._tensors.values()}.values())

    def tensor(self, at: At) -> Tensor:
        """The tensor itself, in the model's dtype and on its device. KeyError behind the run's end."""
        if at in self._tensors:
            return self._tensors[at]
        if not self._computed(at):
            raise KeyError(at)
        if at.step.derived and at not in self._edits:
            return self._derived(at)
        if self._is_of_row(at):
            return self.row[0].tensor(at)
        found = LATELY.get(self, at)
        if found is not None:
            return found
        if at.step.causal and not self._own_way(at.layer):
            return self._map_by_map(at)
        with _one_at_a_time:
            found = LATELY.get(self, at)  # by the thread that was waited for
            return self._rebuilt(at) if found is None else found

    def head_tensor(self, at: At, head: int, b: int = 0) -> Tensor:
        """One head of a T x S step, of one row. [T S]. Where the step is not held, no other head's is computed."""
        if self._is_of_row(at):
            return self.row[0].head_tensor(at, head)
        found = self._tensors.get(at)
        if found is None:
            found = LATELY.get(self, at)
        if found is not None:
            return found[b, head]
        if self._own_way(at.layer) or not self._computed(at):
            return self.tensor(at)[b, head]
        found = LATELY.get(self, (at, head, b))
        if found is None:
            found = self._one_head(at, head, b)
            LATELY.put(self, {(at, head, b): found})
        return found

    def stats(self, at: At) -> StepStats:
        """Statistics of a fused layer's maps, made head by head."""
        scores = self.tensor(At(at.layer, steps.Q_ROT))  # B T Hq Dh
        B, T, Hq, _ = scores.shape
        maps = (self._one_head(at, head, b)[None, None] for b in range(B) for head in range(Hq))
        S = self._past + T
        visible = Visible(T, S, self._config.window(at.layer, S))
        return stats_of_parts((B, Hq, T, S), scores.dtype, maps, visible)

    def row_up_to(self, count: int) -> tuple[Held, int] | None:
        """`row` of a run that takes its first `count` addresses from this one."""
        return None if self.row is None else (self.row[0], min(self.row[1], count))

    def past_rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Cached keys and values that this run's queries saw besides its own. [B past Hkv Dh] each."""
        return self._cache.read(layer, self._past)

    # --- what needs no layer ---

    def _computed(self, at: At) -> bool:
        walk = self._config.walk
        return at in walk and (self._until is None or walk.index(at) <= walk.index(self._until))

    def _is_of_row(self, at: At) -> bool:
        return self.row is not None and self._config.walk.index(at) < self.row[1]

    def _own_way(self, layer: int) -> bool:
        """Whether the maps of a layer were edited on their way, so that its q_rot and k_rot alone do not tell them."""
        return any(at.layer == layer and at.step.causal for at in self._edits)

    def _map_by_map(self, at: At) -> Tensor:
        """A whole T x S step: beside it no more is in memory than one head takes."""
        B, T, Hq, _ = self.tensor(At(at.layer, steps.Q_ROT)).shape
        give_back(self._bytes(at))
        whole = torch.empty(B, Hq, T, self._past + T, dtype=self.model.dtype, device=self.model.device)
        for b in range(B):
            for head in range(Hq):
                whole[b, head] = self._one_head(at, head, b)
        return whole

    def _bytes(self, at: At) -> int:
        B, T = self._tensors[At(None, steps.EMBED)].shape[:2]
        return _bytes(self._config, at.step, T, self._past, dtype_name(self.model.dtype), B)

    def _derived(self, at: At) -> Tensor:
        if at.step is steps.MASKED and At(at.layer, steps.SCORES) not in self._tensors and not self._own_way(at.layer):
            return self._map_by_map(at)
        source = self.tensor(At(at.layer, SAME_CELLS[at.step]))
        if at.step is steps.MASKED:
            return torch.where(self._sight(at.layer, source.shape[-2]).visible, source, float("-inf"))
        if self._past:
            keys, values = self.past_rows(at.layer)
            source = torch.cat((keys if at.step is steps.K_SHARED else values, source), dim=1)
        return share_heads(source, self._config.group)

    def _sight(self, layer: int, T: int) -> Sight:
        return Sights(self._config, T, self._past + T, self.model.device, self._pads).of(layer, layer in self._fused)

    def _one_head(self, at: At, head: int, b: int) -> Tensor:
        """As in `Attention.forward`, of one head: a product of two matrices does not depend on those beside it."""
        if at.step is steps.SCORES:
            q, k = (self.tensor(At(at.layer, step)) for step in (steps.Q_ROT, steps.K_SHARED))
            q, k = (each[b : b + 1].transpose(1, 2)[:, head : head + 1] for each in (q, k))
            return (q @ k.mT).mul_(self._config.head_dim**-0.5)[0, 0]
        if at.step is steps.MASKED:
            held = self._tensors.get(At(at.layer, steps.SCORES))
            scores = self._one_head(At(at.layer, steps.SCORES), head, b) if held is None else held[b, head].clone()
            return scores.masked_fill_(~self._visible_of(at.layer, len(scores), b), float("-inf"))
        masked = self._one_head(At(at.layer, steps.MASKED), head, b)
        weights = masked.softmax(-1, dtype=torch.float32).to(self.model.dtype)
        return weights if self._pads is None else torch.where(self._visible_of(at.layer, len(masked), b), weights, 0.0)

    def _visible_of(self, layer: int, T: int, b: int) -> Tensor:
        seen = self._sight(layer, T).visible
        return seen if self._pads is None else seen[b, 0]

    # --- what needs one ---

    def _rebuilt(self, at: At) -> Tensor:
        give_back(self._bytes(at))
        made = self._logits() if at.step is steps.LOGITS else self._layer(at)
        made[at] = made.pop(at)  # it is kept longest
        LATELY.put(self, made)
        return made[at]

    def _logits(self) -> dict[At, Tensor]:
        at = At(None, steps.LOGITS)
        with torch.no_grad():
            logits = self.model.lm_head(self.tensor(At(None, steps.FINAL_NORM)))
        return {at: edited(logits, self._edits[at], self._config) if at in self._edits else logits}

    def _layer(self, asked: At) -> dict[At, Tensor]:
        """What is not held of one part of a layer: up to the turned keys, up to attention's end, or the MLP.

        T x S steps only where one of them is asked for.
        """
        layer, walk = asked.layer, self._config.walk
        ends = (At(layer, step) for step in (steps.K_ROT, steps.ATTN_OUT, steps.MLP_OUT))
        end = next(end for end in ends if walk.index(asked) <= walk.index(end))
        last = end if self._until is None else min(end, self._until, key=walk.index)
        made: dict[At, Tensor] = {}

        def tell(at: At, x: Tensor) -> Tensor | None:
            edits = () if at.step is steps.RESID_IN else self._edits.get(at, ())  # that one is held as it was edited
            x = edited(x, edits, self._config) if edits else x
            wanted = at not in self._tensors and (bool(edits) or not at.step.derived)
            if wanted and (asked.step.causal or not at.step.causal):
                made[At(layer, at.step)] = x
            if at == last:
                raise EndOfRun
            return x if edits else None

        with torch.no_grad(), recording(tell), suppress(EndOfRun):
            if end.step is steps.MLP_OUT:
                self._second_half(layer)
            else:
                self._first_half(layer)
        return made

    def _first_half(self, layer: int) -> None:
        x = self._tensors[At(layer, steps.RESID_IN)]
        T, rope = x.shape[1], self.model.rope
        turn = rope(self._past, T) if self._pads is None else rope.of_batch(T, self._pads)
        past = _Past(self) if self._past else None
        self.model.model.layers[layer](x, turn, self._sight(layer, T), past)

    def _second_half(self, layer: int) -> None:
        """As in `DecoderLayer.forward`, from the stream after attention on."""
        module, x = self.model.model.layers[layer], self._tensors[At(layer, steps.RESID_MID)]
        module.mlp(module.tap.mlp_norm(module.post_attention_layernorm(x)))


class _Past:
    """A KV cache to a layer that is run again: it gives the rows that the run saw, and takes none."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All rows: those of the past, and these behind them. [B S Hkv Dh] each."""
        return tuple(torch.cat(pair, dim=1) for pair in zip(self._held.past_rows(layer), (k, v), strict=True))
