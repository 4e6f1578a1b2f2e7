"""Reading files that may change, grow or go while they are read: stamps, parts of a file, and what cannot be read.

Nothing is mapped into memory: where a mapped file is cut short, touching what it lost ends the whole process.
What is read lies in memory of its own, so a file that changes later changes no model.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import CheckpointError

Stamp = tuple[tuple[str, int, int, int], ...]
"""(name, inode, bytes, time of the last change in ns) of each file of a model."""

_OPENED = ("config.json", "params.json", "tokenizer.json", "tokenizer_config.json")
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_USUALLY = {
    errno.ENOENT: "It was moved or deleted a moment ago, or is a link to nothing: put it back, or fetch it again.",
    errno.EACCES: "Whoever started the app may not read it: change its owner or its permissions.",
    errno.EPERM: "Whoever started the app may not read it: change its owner or its permissions.",
    errno.EISDIR: "A folder has this name where a file belongs: move it away and fetch the file.",
}


def stamp(model: Path) -> Stamp:
    """What tells two states of a model's file or folder apart: equal where no file that a reader opens has changed.

    Costs a look at the names and sizes; nothing is opened. CheckpointError when the model cannot be looked at.
    """
    try:
        if model.is_dir():
            with os.scandir(model) as entries:
                files = [Path(entry.path) for entry in entries if entry.name in _OPENED or _is_weights(entry.name)]
        else:
            files = [model]
        return tuple(_stamp(file) for file in sorted(files) if file.is_file() or file == model)
    except OSError as error:
        raise unreadable(model, error) from error


def _is_weights(name: str) -> bool:
    return name.endswith(_WEIGHTS)


def _stamp(file: Path) -> tuple[str, int, int, int]:
    found = file.stat()
    return file.name, found.st_ino, found.st_size, found.st_mtime_ns


def check_unchanged(model: Path, before: Stamp) -> None:
    """CheckpointError when a file of the model is another one now than when it was stamped."""
    now = stamp(model)
    if now != before:
        raise changed((sorted({*before} ^ {*now}) or [(model.name,)])[0][0])


def changed(name: str) -> CheckpointError:
    """The refusal of a file that is not the one whose header was read."""
    return CheckpointError(
        f"{name} changed while it was read. Usually it is being copied, downloaded or replaced just now: "
        "wait until it is whole, and open the model again."
    )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file for reading; a CheckpointError where it cannot be opened or its disk fails."""
    try:
        with path.open("rb", buffering=1 << 18) as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


def read_into(file: BinaryIO, start: int, room: np.ndarray) -> None:
    """Fill `room`, contiguous bytes, from `start` on. CheckpointError where the file has become shorter."""
    file.seek(start)
    if room.nbytes and file.readinto(memoryview(room)) < room.nbytes:
        raise changed(Path(getattr(file, "name", "The file")).name)


def unreadable(file: Path, error: Exception) -> CheckpointError:
    """What cannot be read, why, and the next move."""
    number, reason = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)[:300]
    usually = (
        "Usually the download or the copy is incomplete, or another format has this name: wait until it is whole, "
        "fetch it again, or convert it to safetensors where you trust it."
    )
    return CheckpointError(f"{file.name} cannot be read: {reason}. {_USUALLY.get(number, usually)}")
