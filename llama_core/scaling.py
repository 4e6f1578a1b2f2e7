"""How RoPE is stretched beyond the context of training: one record for each way that we compute. No torch here.

Field names are those of Hugging Face's files. `rope.py` turns a record into frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import ConfigError

LARGEST = 1 << 24  # no size of a Llama is larger; a damaged file often says so


def is_number(value: Any) -> bool:
    """A number that float32 can hold; True, NaN and text are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e38


def _check(holds: bool, kind: str, name: str, value: Any, rule: str) -> None:
    if not holds:
        raise ConfigError(f"RoPE scaling {kind}: {name} is {value!r:.60}; it must be {rule}.")


def _check_factor(kind: str, factor: Any) -> None:
    _check(is_number(factor) and factor >= 1, kind, "factor", factor, "a number of at least 1, for example 4")


def _check_original(kind: str, original: Any) -> None:
    whole = isinstance(original, int) and is_number(original) and 1 <= original <= LARGEST
    rule = f"a whole number of 1 to {LARGEST}, for example 8192"
    _check(whole, kind, "original_max_position_embeddings", original, rule)


@dataclass(frozen=True)
class LinearScaling:
    """Every pair turns `factor` times slower, at any length: positions are interpolated."""

    kind: ClassVar[str] = "linear"

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.kind, self.factor)


@dataclass(frozen=True)
class DynamicScaling:
    """Plain RoPE up to `max_position_embeddings`; beyond, theta grows with the length of the pass."""

    kind: ClassVar[str] = "dynamic"

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.kind, self.factor)


@dataclass(frozen=True)
class Llama3Scaling:
    """RoPE frequencies stretched as Llama 3.1 does: slow pairs divided, fast pairs kept, a blend between.

    All four are plain numbers; `original_max_position_embeddings` is in tokens.
    """

    kind: ClassVar[str] = "llama3"

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        _check_factor(self.kind, self.factor)
        low, high = self.low_freq_factor, self.high_freq_factor
        _check(is_number(high) and high > 0, self.kind, "high_freq_factor", high, "a number above 0, for example 4")
        rule = f"above 0 and below high_freq_factor {high}, for example 1 and 4"
        _check(is_number(low) and 0 < low < high, self.kind, "low_freq_factor", low, rule)
        _check_original(self.kind, self.original_max_position_embeddings)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: slow pairs divided by `factor`, fast pairs kept, a ramp over the pairs between; cos and sin grow a little.

    beta_fast, beta_slow: turns within the original context where the ramp begins and ends.
    truncate: its two ends are rounded outwards to whole pairs. attention_factor: what cos and sin are multiplied
    by; None derives it from `factor`, `mscale` and `mscale_all_dim`.
    """

    kind: ClassVar[str] = "yarn"

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.kind, self.factor)
        _check_original(self.kind, self.original_max_position_embeddings)
        grown = self.attention_factor
        fits = grown is None or (is_number(grown) and grown > 0)
        _check(fits, self.kind, "attention_factor", grown, "a number above 0, or null")
        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            fits = value is None or (is_number(value) and value >= 0)
            _check(fits, self.kind, name, value, "a number of at least 0, or null")
        fast, slow = self.beta_fast, self.beta_slow
        _check(is_number(fast) and fast > 0, self.kind, "beta_fast", fast, "a number above 0, for example 32")
        rule = f"above 0 and at most beta_fast {fast}, for example 1 and 32"
        _check(is_number(slow) and 0 < slow <= fast, self.kind, "beta_slow", slow, rule)
        _check(isinstance(self.truncate, bool), self.kind, "truncate", self.truncate, "true or false")
