"""The header of a GGUF file: metadata and where each tensor lies, read before any number is.

It is read here rather than by `gguf.GGUFReader`, which takes ten seconds for a vocabulary of fifty
thousand. No count and no length in it is trusted: what a file cannot hold is refused first.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
from gguf import GGMLQuantizationType as Stored

from ..errors import CheckpointError
from .common import refuse_stand_in
from .files import changed, opened


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: shape outermost first, its format, and its bytes from `start`."""

    shape: tuple[int, ...]
    kind: Stored
    start: int
    size: int


_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_AXES = 4


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """(metadata, tensors by GGUF name) of a file; CheckpointError when it cannot be opened or is no such file."""
    refuse_stand_in(path, "GGUF")
    with opened(path) as file:
        return Header(file, path.name).read()


def _five(number: Any) -> str:
    return f"{number:05d}" if isinstance(number, int) else str(number)[:40]


class Header:
    """Reads the metadata and the table of tensors; never trusts a count or a length."""

    def __init__(self, data: BinaryIO, file: str) -> None:
        self.data, self.file, self.at = data, file, 0
        self.size = data.seek(0, 2)
        data.seek(0)

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        """(metadata, tensors by GGUF name)."""
        if self._take(4) != b"GGUF":
            raise CheckpointError(
                f"{self.file} does not start with the letters GGUF, so it is no GGUF file. "
                "Usually a web page or another format was saved under this name; fetch it again."
            )
        self._check_version(self._number("<I"))
        tensors, keys = self._count(24), self._count(13)  # 24, 13: the fewest bytes that one of each takes
        fields: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            fields[key] = self._value(self._number("<I"))
        self._check_parts(fields)
        return fields, self._table(tensors, fields.get("general.alignment", 32))

    def _check_version(self, version: int) -> None:
        if version in (2, 3):
            return
        if version & 0xFFFF == 0:
            raise CheckpointError(
                f"{self.file} is a big-endian GGUF, written for another kind of processor. "
                "We read little-endian files; take the usual version of the model, or convert it again."
            )
        raise CheckpointError(
            f"{self.file} is GGUF version {version}; we read 2 and 3. Convert it again with a current converter."
        )

    def _check_parts(self, fields: Mapping[str, Any]) -> None:
        count, number = fields.get("split.count", 1), fields.get("split.no", 0)
        if count not in (0, 1):
            stem = re.sub(r"-\d{5}-of-\d{5}$", "", self.file.removesuffix(".gguf"))
            raise CheckpointError(
                f"{self.file} is part {number + 1 if isinstance(number, int) else number} of {count} of a split model "
                f"({stem}-00001-of-{_five(count)}.gguf to {stem}-{_five(count)}-of-{_five(count)}.gguf). "
                "We read a model from one file; join the parts with llama.cpp's `llama-gguf-split --merge`."
            )

    def _table(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        rows = [self._row() for _ in range(count)]
        if not isinstance(alignment, int) or alignment < 1:
            raise self._broken(f"its alignment is {alignment!r}")
        base = -(-self.at // alignment) * alignment
        tensors = {name: self._placed(name, shape, kind, base + offset) for name, shape, kind, offset in rows}
        if len(tensors) != len(rows):
            raise self._broken("two tensors have the same name")
        return tensors

    def _row(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._string(), self._number("<I")
        if not 1 <= axes <= _MAX_AXES:
            raise self._broken(f"the tensor {name[:60]!r} has {axes} axes")
        shape = tuple(self._number("<Q") for _ in range(axes))[::-1]
        return name, shape, self._number("<I"), self._number("<Q")

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> StoredTensor:
        try:
            stored = Stored(kind)
            block, size = gguf.GGML_QUANT_SIZES[stored]
        except (ValueError, KeyError):
            raise self._broken(f"the tensor {name[:60]!r} is stored in the unknown format {kind}") from None
        if shape[-1] % block:
            raise self._broken(f"the tensor {name[:60]!r} has rows of {shape[-1]}, no multiple of {block}")
        size = math.prod(shape) // block * size
        if start + size > self.size:
            raise CheckpointError(
                f"{self.file} is cut short: the tensor {name[:60]!r} ends at byte {start + size:,}, but the file has "
                f"{self.size:,}. Usually the download stopped early, or it is still being copied: "
                "wait until it is whole, or fetch it again."
            )
        return StoredTensor(shape, stored, start, size)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise self._broken(f"a value has the unknown type {kind}")
        item = self._number("<I")
        if item == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if item not in _NUMBERS:
            raise self._broken(f"a list holds values of the type {item}")
        form = _NUMBERS[item]
        count = self._count(struct.calcsize(form))
        return list(struct.unpack(f"<{count}{form[1]}", self._take(count * struct.calcsize(form))))

    def _string(self) -> str:
        raw = self._take(self._count(1))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._broken(f"the text {raw[:40]!r} is not UTF-8") from None

    def _count(self, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each; refused when the file cannot hold them."""
        count = self._number("<Q")
        if count * smallest > self.size - self.at:
            raise self._broken(f"it announces {count:,} entries, more than its {self.size:,} bytes can hold")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > self.size:
            raise self._broken(f"its header goes on after its last byte, {self.size:,}")
        piece = self.data.read(size)
        if len(piece) < size:
            raise changed(self.file)
        self.at = end
        return piece

    def _broken(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file} cannot be read as GGUF: {what}. Usually the file is incomplete or damaged; fetch it again."
        )
