"""How the screen writes numbers: three significant digits, never -0.00, NaN said aloud.

Everything here takes a number (Python's or numpy's) and gives a str. `exact` gives the
full count for a hover where a short form is on the screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_SI = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_BYTES = ("B", "kB", "MB", "GB", "TB")


def short(x: float | None, digits: int = 3) -> str:
    """`x` in `digits` significant digits: 0.0123, -1.50, 946, 12300, 1.23e-9; NaN, ∞, -∞; n/a for None.

    Plain notation from 0.001 up to 99999, powers of ten outside. What was not zero never reads as zero.
    """
    if x is None:
        return "n/a"
    x = float(x)
    special = _special(x)
    if special is not None:
        return special
    mantissa, _, power = f"{x:.{digits - 1}e}".partition("e")
    exponent = int(power)
    if -3 <= exponent < 5:
        rounded = float(f"{mantissa}e{power}")
        return f"{rounded:.{max(digits - 1 - exponent, 0)}f}"
    return f"{mantissa}e{exponent}"


def signed(x: float | None, digits: int = 3) -> str:
    """`short` with its sign always shown, for differences: +1.50, -0.25, 0."""
    text = short(x, digits)
    return text if x is None or not float(x) > 0 else f"+{text}"


def cell(x: float) -> str:
    """A number narrow enough to stand inside a cell of a map: 0.98, -12, 946, 1e-9."""
    x = float(x)
    special = _special(x)
    if special is not None:
        return special
    size = abs(x)
    if size < 0.005 or size >= 9999.5:
        mantissa, _, power = f"{x:.0e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{x:.{2 if size < 0.995 else 1 if size < 9.95 else 0}f}"


def _special(x: float) -> str | None:
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    return "0" if x == 0 else None


def exact(n: int) -> str:
    """A whole number with its thousands set apart: 134,515,008."""
    return f"{int(n):,}"


def count(n: int) -> str:
    """A count as a person says it: 999, 12.3 k, 134.5 M, 1.2 B."""
    n = int(n)
    for at, (size, unit) in enumerate(_SI):
        value = n / size
        if abs(value) >= 1:
            if round(abs(value), 1) >= 1000 and at:
                return f"{value / 1000:.1f} {_SI[at - 1][1]}"
            return f"{value:.1f} {unit}"
    return str(n)


def bytes_(n: float) -> str:
    """An amount of memory in powers of 1000: 812 B, 1.5 kB, 54 MB, 3.7 GB."""
    value, unit = float(n), 0
    while unit < len(_BYTES) - 1 and round(abs(value), 0 if unit == 0 else 1) >= 1000:
        value, unit = value / 1000, unit + 1
    return f"{value:.{1 if unit and abs(value) < 9.95 else 0}f} {_BYTES[unit]}"


def duration(seconds: float) -> str:
    """A time as a person says it: 0.4 ms, 272 ms, 1.5 s, 2 min 5 s, 1 h 4 min."""
    ms = seconds * 1000
    if ms < 0.05:
        return "0 ms" if ms <= 0 else "< 0.1 ms"
    if ms < 999.5:
        return f"{ms:.1f} ms" if ms < 9.95 else f"{ms:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """A share of 1 as a percentage: 41.2 %, 0.03 %, < 0.01 %."""
    value = 100 * float(share)
    if not math.isfinite(value):
        return short(value)
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.{1 if value >= 0.995 or value == 0 else 2}f} %"


def shape(sizes: Iterable[int]) -> str:
    """A tensor's shape: 1·5·9·64; a scalar has none and reads "scalar"."""
    return "·".join(str(int(n)) for n in sizes) or "scalar"
