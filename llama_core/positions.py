"""One position of a long run, made again by itself: a moment, where half a layer over all positions takes long.

Each layer is entered by the run's own stream, and its query sees the run's own keys and values, so nothing piles up
from layer to layer. What comes out is the run's row up to rounding: a product of one row is not rounded as the same row
is among many. A number that is shown as the run's own is asked of the trace; this is for measures over all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .steps import At, Step
from .trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Llama


@dataclass(frozen=True, eq=False)
class KeysValues:
    """The turned keys and the values of a run, by layer: each [T Hkv Dh] float32."""

    keys: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]


def apart(trace: Trace) -> bool:
    """Whether positions of this run are made by themselves: it holds its stream, but not what the layers made of it."""
    return trace.past == 0 and trace.holds(At(0, steps.RESID_IN)) and not trace.holds(At(0, steps.HEAD_OUT))


def keys_values(trace: Trace, progress: Callable[[float], None] | None = None) -> KeysValues:
    """Read those of all layers. progress: told the share of layers that are read; what it raises ends it."""
    layers, found = trace.config.num_hidden_layers, []
    for layer in range(layers):
        found.append(tuple(np.array(trace[At(layer, step)][0]) for step in (steps.K_ROT, steps.V)))
        if progress is not None:
            progress((layer + 1) / layers)
    return KeysValues(*zip(*found, strict=True))


def rows_at(trace: Trace, model: Llama, seen: KeysValues, position: int) -> Iterator[dict[Step, np.ndarray]]:
    """Layer by layer what each step has at one position: axes B and T taken off, S is position + 1. float32.

    seen: `keys_values` of this trace. Of a layer that the run's edits changed, head_out, attn_out and mlp_out alone:
    those are the run's own.
    """
    edited = {edit.at.layer for edit in trace.edits}
    turn = tuple(each[position : position + 1] for each in model.rope(0, trace.dims["T"]))
    for layer in range(trace.config.num_hidden_layers):
        if layer in edited:
            own = (steps.HEAD_OUT, steps.ATTN_OUT, steps.MLP_OUT)
            yield {step: trace[At(layer, step)][0, position] for step in own}
        else:
            yield _made(trace, model, seen, layer, position, turn)


def _made(
    trace: Trace, model: Llama, seen: KeysValues, layer: int, position: int, turn: tuple[Tensor, Tensor]
) -> dict[Step, np.ndarray]:
    import torch

    from .model import Sight, visible_cells
    from .tap import recording

    S, like = position + 1, {"dtype": model.dtype, "device": model.device}
    x = torch.tensor(trace[At(layer, steps.RESID_IN)][:, position:S], **like)  # B 1 D
    rows = _Rows(*(torch.from_numpy(each[layer][None, :S]).to(**like) for each in (seen.keys, seen.values)))
    sight = Sight(visible_cells(1, S, model.device, model.config.window(layer, S)))
    made: dict[Step, np.ndarray] = {}

    def tell(at: At, tensor: Tensor) -> None:
        row = tensor[0, :, 0] if at.step.causal else tensor[0] if "T" not in at.step.axes else tensor[0, 0]
        made[at.step] = row.float().cpu().numpy()

    with torch.no_grad(), recording(tell):
        model.model.layers[layer](x, turn, sight, rows)
    return made


@dataclass
class _Rows:
    """A KV cache of the run's own rows, up to the query's; what is made again of them is not taken."""

    keys: Tensor
    values: Tensor

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[B S Hkv Dh] each."""
        return self.keys, self.values
