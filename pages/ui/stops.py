"""What a person has set for the debugger, as texts of the URL: edits that are on or off, breakpoints, watches.

    edit    3.head_out zero h2; off 5.mlp_out scale 0.5
    breaks  weights, 3.gate
    watch   notfinite; q above 100

The records and their grammar are the core's; here they only become lists and texts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llama_core.edits import Edit, EditError
from llama_core.steps import At, Walk, find
from llama_core.watch import Watch

OFF = "off "
MOST = 32
"""Edits, breakpoints or watches that one text may hold."""


@dataclass(frozen=True)
class Entry:
    """One edit of the list, and whether it acts."""

    edit: Edit
    on: bool = True

    def __str__(self) -> str:
        return f"{'' if self.on else OFF}{self.edit}"


def read_entries(text: str) -> tuple[Entry, ...]:
    """The edits of a text, each with its address. EditError or AddressError."""
    entries = []
    for part in _parts(text, ";"):
        edit = Edit.parse(part.removeprefix(OFF)).placed(None)
        entries.append(Entry(edit, not part.startswith(OFF)))
    if len(entries) > MOST:
        raise EditError(f"A list holds at most {MOST} edits; this one has {len(entries)}.")
    return tuple(entries)


def write_entries(entries: Iterable[Entry]) -> str:
    """The text that `read_entries` reads."""
    return "; ".join(map(str, entries))


def read_breaks(text: str) -> tuple[str, ...]:
    """Addresses ("3.gate"), and keys of steps ("weights") that mean every layer. AddressError."""
    parts = _parts(text, ",")[:MOST]
    for part in parts:
        At.parse(part) if "." in part else find(part)
    return tuple(dict.fromkeys(parts))


def break_after(breaks: Sequence[str], walk: Walk, after: At | None) -> At | None:
    """The first address behind `after` where a run should stop; None when there is none."""
    first = 0 if after is None else walk.index(after) + 1
    return next((at for at in walk.order[first:] if str(at) in breaks or at.step.key in breaks), None)


def read_watches(text: str) -> tuple[Watch, ...]:
    """The watches of a text, each once. WatchError or AddressError."""
    watches = [Watch.parse(part) for part in _parts(text, ";")[:MOST]]
    return tuple({str(watch): watch for watch in watches}.values())


def _parts(text: str, sign: str) -> list[str]:
    return [part for each in text.split(sign) if (part := " ".join(each.split()))]
