"""What a person has set for the debugger, as texts of the URL: edits that are on or off, breakpoints, watches.

    edit    3.head_out zero h2; off 5.mlp_out scale 0.5
    breaks  weights, 3.gate
    watch   notfinite; q above 100

The records and their grammar are the core's; here they only become lists and texts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llama_core.edits import Edit, EditError, check
from llama_core.errors import GlassLlamaError
from llama_core.steps import At, Walk, find
from llama_core.trace import Trace
from llama_core.watch import Watch
from pages.words import t

OFF = "off "
MOST = 32
"""Edits, breakpoints or watches that one text may hold."""
NAMED = 3
"""Edits that cannot be read of which a note says why; others are counted."""


@dataclass(frozen=True)
class Entry:
    """One edit of the list, and whether it acts."""

    edit: Edit
    on: bool = True

    def __str__(self) -> str:
        return f"{'' if self.on else OFF}{self.edit}"


def read_entries(text: str) -> tuple[Entry, ...]:
    """The edits of a text, each with its address. EditError or AddressError."""
    entries = tuple(map(_entry, _parts(text, ";")))
    if len(entries) > MOST:
        raise EditError(f"A list holds at most {MOST} edits; this one has {len(entries)}.")
    return entries


def _entry(part: str) -> Entry:
    return Entry(Edit.parse(part.removeprefix(OFF)).placed(None), not part.startswith(OFF))


def readable(text: str) -> tuple[str, list[str]]:
    """Of a link's edits those that can be read, as a text, and sentences about the others."""
    kept, notes = [], []
    for part in _parts(text, ";"):
        try:
            kept.append(_entry(part))
        except GlassLlamaError as error:
            piece = part if len(part) <= 60 else part[:59] + "…"
            notes.append(t("edit.unread", piece=piece, why=error))
    if len(notes) > NAMED:
        notes[NAMED:] = [t("edit.unread.more", n=len(notes) - NAMED)]
    if len(kept) > MOST:
        notes.append(t("edit.unread.most", most=MOST, n=len(kept) - MOST))
    return write_entries(kept[:MOST]), notes


def fitted(edit: Edit, prompt: Trace, read: Callable[[list[int]], Trace]) -> Edit:
    """The edit as a run over this prompt takes it: a patch brings the trace of its own prompt, which `read` makes.

    AddressError, RunError for what does not fit.
    """
    prompt.walk.index(edit.at)
    if edit.kind == "patch":
        theirs, ours = len(edit.source), prompt.dims["T"]
        if theirs != ours and edit.origins is None:
            raise EditError(t("edit.new.map", edit=edit, theirs=theirs, ours=ours))
        edit = edit.bind(read(list(edit.source)))
    check(edit, prompt.dims)
    return edit


def resting(edits: Iterable[Edit], trace: Trace) -> list[Edit]:
    """Of the edits that were asked for those that the trace was made without, for they do not fit it."""
    acting = set(map(str, trace.edits))
    return [edit for edit in edits if str(edit) not in acting]


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
