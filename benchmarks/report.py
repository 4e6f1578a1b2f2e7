"""How a benchmark says what it found: Markdown tables, the first one of targets.

    print(targets([Target("recorded run / plain forward, T = 256", "1.41 x", "1.35 x", 1.41 <= 1.35)]))

`benchmarks/__main__.py` gathers the targets of all benchmarks into one table.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NamedTuple

HEADER = ("target", "measured", "wanted", "met")
MIB = 2**20


class Target(NamedTuple):
    """One claim. met: None where this run could not tell."""

    what: str
    measured: str
    wanted: str
    met: bool | None


def at_most(what: str, measured: float, wanted: float, unit: str = "") -> Target:
    """A target that is a largest value: at_most("peak", 900.0, 1024, "MiB")."""
    told = (f"{number(value)} {unit}".rstrip() for value in (measured, wanted))
    return Target(what, *told, measured <= wanted)


def targets(rows: Iterable[Target]) -> str:
    """The table of targets."""
    return table(HEADER, [(what, found, wanted, _met(met)) for what, found, wanted, met in rows])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, a blank line behind it."""
    cells = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |\n" for row in cells)


def number(value: float) -> str:
    """Three significant digits at most: 0.123, 12.3, 1234."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> str:
    """This machine in general words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} ({platform.machine()}), Python {platform.python_version()}, torch {version('torch')}"
    return f"{cores} cores, {memory:.0f} GiB of memory, {system}"


def _met(met: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not measured"}[met]
