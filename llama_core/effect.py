"""What an edit changed: two traces of one prompt side by side, and one part after another switched off. numpy out.

    after = run(model, ids, start=before, edits={"3.head_out": "zero h2"})
    change = effect(before, after)
    change.first, change.stream(), change.kl()
    sweep(model, before, "heads", token_id=42).logit

Differences are taken in float64, address by address: nothing that is read is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from . import steps
from .edits import Edit
from .errors import RunError
from .heads import CELLS, maps_of
from .ranking import largest
from .steps import At
from .trace import Trace

if TYPE_CHECKING:
    from .model import Llama

Part = Literal["heads", "attn_out", "mlp_out"]
_EDITED = {"heads": steps.HEAD_OUT, "attn_out": steps.ATTN_OUT, "mlp_out": steps.MLP_OUT}


def effect(before: Trace, after: Trace) -> Effect:
    """Compare two traces of equal sizes. RunError where they are not."""
    if before.walk != after.walk or before.dims != after.dims:
        raise RunError(
            f"Two traces are compared cell by cell, but their sizes differ: {dict(before.dims)} and "
            f"{dict(after.dims)}. Compare runs of one model over equally many tokens."
        )
    return Effect(before, after)


@dataclass(frozen=True, eq=False)
class Effect:
    """`after` against `before`. Addresses that either of them did not compute have no answer."""

    before: Trace
    after: Trace

    @cached_property
    def first(self) -> At | None:
        """The earliest address with a cell that differs; None when all that both computed is the same."""
        return next((at for at, largest in self.changes() if largest > 0), None)

    def changes(self) -> Iterator[tuple[At, float]]:
        """(address, `largest` there), in order of execution, each computed when it is asked for."""
        return ((at, self.largest(at)) for at in self.before.walk if at in self.before and at in self.after)

    def largest(self, at: At | str) -> float:
        """The largest |difference| of a cell, exactly 0 where none differs; infinite where only one is finite."""
        at = self._both(at)
        if self._shared(at):
            return 0.0
        return max(float(_distance(before, after).max()) for before, after in self._pieces(at))

    def stream(self) -> np.ndarray:
        """‖Δ resid_out‖ / ‖resid_out before‖ of each token. [layers T], exactly 0 where nothing differs.

        NaN in layers that either trace did not compute; infinite where something came from an all-zero row, or where
        a cell is finite in one of the two only.
        """
        layers, T = self.before.config.num_hidden_layers, self.before.dims["T"]
        shares = np.full((layers, T), np.nan)
        for layer in range(layers):
            at = At(layer, steps.RESID_OUT)
            if at not in self.before or at not in self.after:
                break
            shares[layer] = 0.0 if self._shared(at) else _share(self.before[at][0], self.after[at][0])
        return shares

    def probabilities(self, position: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Next-token probabilities before and after at a position. [V] each, float64."""
        return tuple(np.exp(_log_shares(trace["logits"][0, position])) for trace in (self.before, self.after))

    def next_tokens(self, position: int = -1, top: int = 10) -> list[tuple[int, float, float]]:
        """(id, probability before, after) of the `top` most probable of either, the most probable before first."""
        p, q = self.probabilities(position)
        ids = {int(i) for shares in (p, q) for i in largest(shares, top)}
        return [(i, float(p[i]), float(q[i])) for i in sorted(ids, key=lambda i: (-p[i], i))]

    def kl(self, position: int = -1) -> float:
        """Sum of p ln(p / q) over the vocabulary, p before and q after, in nats. NaN where a logit is."""
        logits = [trace["logits"][0, position] for trace in (self.before, self.after)]
        if np.array_equal(*logits):
            return 0.0
        p, q = (_log_shares(row) for row in logits)
        return float(max(0.0, (np.exp(p) * (p - q)).sum())) if np.isfinite([p, q]).all() else float("nan")

    def _both(self, at: At | str) -> At:
        return self.after.resolve(self.before.resolve(at))

    def _pieces(self, at: At) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All cells of both, some heads or some positions at a time: never a whole large tensor in float64."""
        if at.step.causal and self.before.dims["B"] == 1:
            yield from zip(maps_of(self.before, at), maps_of(self.after, at), strict=True)
            return
        before, after = self.before[at], self.after[at]
        some = max(1, CELLS // max(1, before[:, :1].size))
        for first in range(0, before.shape[1], some):
            yield before[:, first : first + some], after[:, first : first + some]

    def _shared(self, at: At) -> bool:
        """A resumed run hands on the very statistics of what it did not compute again, layer by layer."""
        at = At(at.layer, steps.Q_ROT) if at.step.causal else at  # of the maps there may be none yet
        return self.before.step_stats[at] is self.after.step_stats[at]


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|b - a| in float64; 0 where both are the same infinity or both NaN, infinite where one alone is not finite."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(b.astype(np.float64) - a)
    distance[np.isnan(distance)] = np.inf
    distance[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    return distance


def _share(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of each row, the length of the difference by the length before. [T D], [T D] -> [T]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.linalg.norm(_distance(a, b), axis=-1)
        share = moved / np.linalg.norm(a.astype(np.float64), axis=-1)
    return np.where(moved == 0, 0.0, np.where(np.isinf(moved), np.inf, share))


def _log_shares(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


# --- sweeps ---


class Sweep(NamedTuple):
    """What each part, switched off alone, does to one token at one position: after - before.

    [layers Hq] for heads, [layers] otherwise. logit: of the token's logit; log_probability: of ln p, in nats, which
    does not see what moves all logits alike.
    """

    logit: np.ndarray
    log_probability: np.ndarray


def sweep(
    model: Llama,
    trace: Trace,
    parts: Part,
    token_id: int,
    position: int = -1,
    progress: Callable[[float], None] | None = None,
) -> Sweep:
    """Set one part after another to zero and read the chosen token's logit.

    parts: "heads", each at head_out; "attn_out" or "mlp_out", of each layer. The trace's own edits stay. Each starts
    at its layer, from the trace. progress: told the share that is done, after each; what it raises ends the sweep.
    RunError, NotComputedError for a trace without logits.
    """
    each = sweeping(model, trace, parts, token_id, position)
    total = len(_parts(trace, parts))
    found = np.zeros((2, total))
    for i, changes in enumerate(each):
        found[:, i] = changes
        if progress is not None:
            progress((i + 1) / total)
    rows = trace.config.num_hidden_layers
    return Sweep(*(values.reshape(rows, -1) if parts == "heads" else values for values in found))


def sweeping(
    model: Llama, trace: Trace, parts: Part, token_id: int, position: int = -1, first: int = 0
) -> Iterator[tuple[float, float]]:
    """`sweep` one part after another, from the part numbered `first` on: what it does to the logit, and to ln p.

    Raises what `sweep` raises, before anything is computed.
    """
    from .runner import check_start

    _check_sweep(trace, parts, token_id, position)
    check_start(model, trace.ids, trace, None)
    return _each(model, trace, _parts(trace, parts)[first:], token_id, position, trace["logits"][0, position])


def _each(
    model: Llama, trace: Trace, edits: list[Edit], token_id: int, position: int, before: np.ndarray
) -> Iterator[tuple[float, float]]:
    from .runner import edited_logits

    expected = _log_shares(before)[token_id]
    for edit in edits:
        after = edited_logits(model, trace, (*trace.edits, edit))[0, position]
        yield float(after[token_id]) - float(before[token_id]), float(_log_shares(after)[token_id] - expected)


def _parts(trace: Trace, parts: Part) -> list[Edit]:
    places = [At(layer, _EDITED[parts]) for layer in range(trace.config.num_hidden_layers)]
    if parts != "heads":
        return [Edit.zero(at) for at in places]
    return [Edit.zero(at, heads=[head]) for at in places for head in range(trace.dims["Hq"])]


def _check_sweep(trace: Trace, parts: str, token_id: int, position: int) -> None:
    T, V = trace.dims["T"], trace.dims["V"]
    if parts not in _EDITED:
        raise RunError(f"There is no sweep over {parts!r:.60}. Choose {', '.join(_EDITED)}.")
    if not 0 <= token_id < V:
        raise RunError(f"Token {token_id} is outside this model's vocabulary of {V}: ids are 0 to {V - 1}.")
    if not -T <= position < T:
        raise RunError(f"There is no position {position}: the run has {T}, 0 to {T - 1}.")
