"""What the environment may set: every name, its default and its meaning. Read here and nowhere else.

A value that cannot be is said in a sentence, in the log and on every page (`complaints`), and the default is used:
a limit that was written wrongly is still a limit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

PREFIX = "GLASS_LLAMA_"
_log = logging.getLogger("glass_llama")


@dataclass(frozen=True)
class Number:
    """A whole number from `low` up to `high`. what: its meaning, as the README's table has it."""

    name: str
    default: int
    what: str
    low: int = 0
    high: int = 10**9

    @property
    def value(self) -> int:
        """What the environment says, or the default."""
        text = os.environ.get(self.name)
        return self.default if text is None or _complaint(self, text) else int(text)

    @property
    def bytes(self) -> int:
        """Of a setting in KiB or MiB: the bytes."""
        return self.value << {"KIB": 10, "MIB": 20}[self.name.rpartition("_")[2]]


@dataclass(frozen=True)
class Folders:
    """Folders, separated as in PATH; `default` in words."""

    name: str
    default: str
    what: str

    @property
    def value(self) -> list[str]:
        """What the environment says; nothing where the default holds."""
        return [part for part in os.environ.get(self.name, "").split(os.pathsep) if part]


MODELS = Folders(
    "GLASS_LLAMA_MODELS", "models beside the app", "the folders whose models are offered, separated as in `PATH`"
)
MODEL_MIB = Number(
    "GLASS_LLAMA_MODEL_MIB",
    4096,
    "MiB of weights that the server keeps, the least recently used goes first; a model that takes more is not loaded",
    low=1,
)
TRACE_MIB = Number(
    "GLASS_LLAMA_TRACE_MIB",
    2048,
    "MiB of traces that the server keeps, likewise; a prompt whose trace takes more at the least is not run",
    low=1,
)
HOLD_MIB = Number(
    "GLASS_LLAMA_HOLD_MIB",
    1024,
    "MiB of tensors that one trace holds, or all of one generation; the rest is made again when it is looked at",
)
REBUILT_MIB = Number("GLASS_LLAMA_REBUILT_MIB", 96, "MiB of tensors made again that the server keeps, over all traces")
PROMPT_TOKENS = Number("GLASS_LLAMA_PROMPT_TOKENS", 4096, "tokens of the longest prompt that a page runs", low=1)
PROMPT_KIB = Number(
    "GLASS_LLAMA_PROMPT_KIB", 64, "KiB of the longest text that a page splits into tokens to see how many", low=1
)
NEW_TOKENS = Number("GLASS_LLAMA_NEW_TOKENS", 256, "tokens that a page lets a model write after a prompt", low=1)
SWEEP_PARTS = Number("GLASS_LLAMA_SWEEP_PARTS", 1024, "parts that a sweep switches off in turn, at most", low=1)
AT_ONCE = Number(
    "GLASS_LLAMA_AT_ONCE",
    1,
    "works that compute at once, over all sessions; the others wait in line. One keeps all cores busy, two together "
    "take a third longer",
    low=1,
)
KEEP_HEAP = Number("GLASS_LLAMA_KEEP_HEAP", 1, "0 gives freed memory back to the system after every run", high=1)

SETTINGS = (
    MODELS,
    MODEL_MIB,
    TRACE_MIB,
    HOLD_MIB,
    REBUILT_MIB,
    PROMPT_TOKENS,
    PROMPT_KIB,
    NEW_TOKENS,
    SWEEP_PARTS,
    AT_ONCE,
    KEEP_HEAP,
)


def complaints() -> Iterator[str]:
    """A sentence for each value in the environment that is not used."""
    known = {setting.name: setting for setting in SETTINGS}
    for name, text in sorted(os.environ.items()):
        if isinstance(known.get(name), Number):
            yield from filter(None, [_complaint(known[name], text)])
        elif name.startswith(PREFIX) and name not in known:
            yield f"{name} is set, but there is no such setting. There are {', '.join(known)}."


@cache
def _complaint(setting: Number, text: str) -> str:
    """What is wrong with a value, logged when it is first seen; "" where nothing is."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(setting.high))
    if digits and setting.low <= int(text) <= setting.high:
        return ""
    sentence = (
        f"{setting.name} is {text[:40]!r}, which is no whole number from {setting.low} to {setting.high:,}: "
        f"the default, {setting.default}, is used. It stands for: {setting.what}."
    )
    _log.warning(sentence)
    return sentence
