"""What the MLP's gate lets through: which neurons are shut, which speak, and what they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import steps
from .ranking import largest
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from .model import Llama

BAND = 0.01
"""A neuron is quiet for a token when |act| is at most this share of the layer's largest |act| in the run."""


@dataclass(frozen=True, eq=False)
class Shut:
    """Shares of neurons of one layer that the gate holds back, 0..1: per token [T], and of all T x F cells.

    quiet: |act| <= BAND x the layer's largest |act| (`limit`), so nearly nothing passes, whatever the curve. One
    token with a huge gate raises the limit for all. negative: gate < 0, which a ReLU would shut fully.
    """

    quiet: np.ndarray
    negative: np.ndarray
    quiet_share: float
    negative_share: float
    limit: float


def shut(trace: Trace, layer: int) -> Shut:
    """How much of one layer's gate is shut."""
    gate, act = trace[At(layer, steps.GATE)][0], trace[At(layer, steps.ACT)][0]  # T F
    limit = BAND * float(np.abs(act).max())
    quiet, negative = (np.abs(act) <= limit).mean(axis=1), (gate < 0).mean(axis=1)
    return Shut(quiet, negative, float(quiet.mean()), float(negative.mean()), limit)


@dataclass(frozen=True)
class Neuron:
    """One neuron at one token: its gate, the curve's value, up, and act times up."""

    index: int
    gate: float
    act: float
    up: float
    gated: float


def loudest(trace: Trace, layer: int, position: int, n: int = 8) -> tuple[Neuron, ...]:
    """The n neurons with the largest |gated| at a position, the largest first."""
    gate, act, up, gated = (
        trace[At(layer, step)][0, position] for step in (steps.GATE, steps.ACT, steps.UP, steps.GATED)
    )  # F each
    return tuple(
        Neuron(int(i), *(float(values[i]) for values in (gate, act, up, gated))) for i in largest(np.abs(gated), n)
    )


@dataclass(frozen=True)
class Written:
    """What one neuron writes into the stream. size: its length, |gated| x ||its column of down_proj||.

    promoted, demoted: (token id, value), the furthest first: what it writes, times the final norm's weight, through
    the head. The norm's scale is left out (it is one number for all tokens), and so are later layers, which read
    what is written here: the direct effect on the logits, up to that scale.
    """

    size: float
    promoted: tuple[tuple[int, float], ...]
    demoted: tuple[tuple[int, float], ...]


def written(model: Llama, layer: int, neurons: Sequence[Neuron], tokens: int = 6) -> tuple[Written, ...]:
    """What each of these neurons of one layer writes. It reads the whole head, and nothing of a run."""
    columns = model.model.layers[layer].mlp.down_proj.weight.detach()[:, [one.index for one in neurons]]
    vectors = columns.float().cpu().numpy().T * np.array([[one.gated] for one in neurons], dtype=np.float32)  # n D
    effects = through_head(model, vectors)  # n V
    return tuple(
        Written(
            float(np.linalg.norm(vector)),
            promoted=tuple((int(t), float(effect[t])) for t in largest(effect, tokens)),
            demoted=tuple((int(t), float(effect[t])) for t in largest(-effect, tokens)),
        )
        for vector, effect in zip(vectors, effects, strict=True)
    )


def through_head(model: Llama, vectors: np.ndarray, block: int = 1 << 12) -> np.ndarray:
    """Vectors of the stream times the final norm's weight, through the head. [n D] -> [n V] float32.

    The head is read `block` rows at a time: a bfloat16 one is never held in float32 as a whole. With the head on the
    left, eight vectors take 12 ms where the other way takes 20.
    """
    import torch

    head, x = model.lm_head.weight.detach(), vectors.astype(np.float32)
    x = torch.tensor(x * model.model.norm.weight.detach().float().cpu().numpy(), device=head.device)
    return torch.cat([(rows.float() @ x.T).T for rows in head.split(block)], dim=1).cpu().numpy()


# --- curves ---


def curves(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same inputs through four curves, float64, each in x's shape.

    SiLU x s(x), ReLU max(x, 0), GELU x Phi(x) with the normal distribution's own Phi, quick GELU x s(1.702 x);
    s is the logistic function.
    """
    import torch

    wide = torch.tensor(np.asarray(x, dtype=np.float64))
    return {
        "SiLU": (wide * wide.sigmoid()).numpy(),
        "ReLU": wide.relu().numpy(),
        "GELU": torch.nn.functional.gelu(wide).numpy(),
        "quick GELU": (wide * (1.702 * wide).sigmoid()).numpy(),
    }


@dataclass(frozen=True)
class CurveChange:
    """gate times up with another curve, against the captured product: over one token, or all of them.

    cosine: of the two products as one vector each; largest: the largest difference of a neuron's product.
    """

    name: str
    cosine: float
    largest: float


def compare_curves(trace: Trace, layer: int, position: int | None = None) -> tuple[CurveChange, ...]:
    """What each of `curves` would have let through on this run's gates; the model's own differs by rounding."""
    rows = slice(None) if position is None else position
    gate, up, gated = (trace[At(layer, step)][0, rows] for step in (steps.GATE, steps.UP, steps.GATED))
    captured = gated.astype(np.float64).ravel()
    changes = []
    for name, act in curves(gate).items():
        product = (act * up).ravel()
        sizes = np.linalg.norm(product) * np.linalg.norm(captured)
        cosine = float(product @ captured / sizes) if sizes else np.nan
        changes.append(CurveChange(name, cosine, float(np.abs(product - captured).max())))
    return tuple(changes)
