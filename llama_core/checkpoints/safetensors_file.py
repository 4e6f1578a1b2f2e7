"""A safetensors file: its header, and then one tensor at a time, each in memory of its own.

The format is a length, a JSON object of names, types, shapes and places, and the bytes. It is read here because the
safetensors package maps the file, and one that is cut short while it is mapped ends the process (`files.py`).
No length and no place in the header is trusted.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .common import Shape, once
from .files import opened, read_into, unreadable

if TYPE_CHECKING:
    import torch

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""The types that we read, as safetensors and as torch names them."""
_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors package


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its shape, its type as safetensors names it, and its `size` bytes from `start` on."""

    shape: Shape
    kind: str
    file: Path
    start: int
    size: int


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of a file by name. Nothing but the header is read, and torch is not imported. CheckpointError."""
    with opened(file) as source:
        whole = source.seek(0, 2)
        source.seek(0)
        length = int.from_bytes(source.read(8), "little")
        try:
            if whole < 8 or length > min(_LONGEST_HEADER, whole - 8):
                raise ValueError(f"its header takes {length:,} bytes, the file has {whole:,}")
            return _tensors(source.read(length), file, 8 + length, whole)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise unreadable(file, error) from error


def read_tensor(source: BinaryIO, stored: Stored, rows: tuple[int, int] | None = None) -> torch.Tensor:
    """A tensor's numbers, in the type they are stored in; of a part, those from row `rows[0]` up to `rows[1]`."""
    import torch  # here, so that a header can be read before torch is imported

    first, last = (0, stored.shape[0] if stored.shape else 1) if rows is None else rows
    shape = stored.shape if rows is None else (last - first, *stored.shape[1:])
    tensor = torch.empty(shape, dtype=getattr(torch, DTYPES[stored.kind]))
    row = stored.size // stored.shape[0] if stored.shape and stored.shape[0] else 0
    read_into(source, stored.start + first * row, tensor.reshape(-1).view(torch.uint8).numpy())
    return tensor


def _tensors(header: bytes, file: Path, base: int, whole: int) -> dict[str, Stored]:
    raw = json.loads(header.decode(), object_pairs_hook=once)
    if not isinstance(raw, dict):
        raise ValueError(f"its header is {type(raw).__name__}, not an object")
    raw.pop("__metadata__", None)
    found = {name: _stored(name, entry, file, base) for name, entry in raw.items()}
    end = base
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != end:
            raise ValueError(f"{name[:120]!r} does not begin where the tensor before it ends")
        end += tensor.size
    if end != whole:
        raise ValueError(f"its tensors end at byte {end:,}, but the file has {whole:,}")
    return found


def _stored(name: str, entry: Any, file: Path, base: int) -> Stored:
    kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
    counts = all(type(n) is int and n >= 0 for n in (*shape, first, last))
    if not isinstance(kind, str) or len(kind) > 16 or not counts or last < first:
        raise ValueError(f"{name[:120]!r} has no type, shape and place that can be")
    if kind in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[kind] != last - first:
        raise ValueError(f"{name[:120]!r} takes {last - first:,} bytes, which is not what {kind} {shape} takes")
    return Stored(tuple(shape), kind, file, base + first, last - first)
