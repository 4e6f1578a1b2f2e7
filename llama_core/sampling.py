"""How the next token is chosen: temperature, then top-k, then top-p, then the rest shares what was cut. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .ranking import falling


@dataclass(frozen=True, eq=False)
class Cut:
    """The tokens of one position by probability, and how many of the first are left after each cut.

    ids [V], before [V]: all tokens, the most probable first, with their probabilities at this temperature.
    by_k: how many top-k leaves; kept: how many of those top-p leaves too, at least one.
    after [kept]: their probabilities once the others are gone; both sum to 1.
    """

    ids: np.ndarray
    before: np.ndarray
    after: np.ndarray
    by_k: int
    kept: int

    @property
    def share(self) -> float:
        """Probability, at this temperature, of all that is kept together."""
        return float(self.before[: self.kept].sum())


def cut(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Cut:
    """Apply the three in the order in which generation does. logits [V].

    temperature 0 is its limit: the largest logit has it all. top_k 0 cuts nothing. top_p keeps a token while those
    before it, out of what top-k left, hold less than top_p together. Equal logits stand by id, so a cut may part them.
    """
    wide = logits.astype(np.float64)
    ids = falling(wide)
    falls = wide[ids] - wide[ids[0]]  # 0 and less
    if temperature == 0:
        powers = np.zeros(len(wide))
        powers[0] = 1.0
    else:
        powers = np.exp(falls / temperature)
    before = powers / powers.sum()
    by_k = min(top_k, len(ids)) if top_k else len(ids)
    left = before[:by_k] / before[:by_k].sum()
    earlier = np.append(0.0, np.cumsum(left)[:-1])
    kept = by_k if top_p >= 1 else max(1, int(np.count_nonzero(earlier < top_p)))
    return Cut(ids, before, before[:kept] / before[:kept].sum(), by_k, kept)


def draw(found: Cut, point: float) -> int:
    """The rank of the token on which a point in 0..1 falls, where those that are kept lie side by side.

    Each takes its probability's share of the line, the most probable first.
    """
    ends = found.after.cumsum()
    return int(np.searchsorted(ends / ends[-1], point, side="right"))


def draw_points(seed: int, n: int) -> np.ndarray:
    """The points of a generation's first `n` draws. [n] in 0..1."""
    return np.random.default_rng(seed).random(n)


def entropy(shares: np.ndarray) -> float:
    """-sum of p ln p in nats; what has no probability adds nothing."""
    some = shares[shares > 0]
    return float(max(0.0, -(some * np.log(some)).sum()))
