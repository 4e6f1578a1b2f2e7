"""Does a model fit? The bytes its weights take against the memory that is free, before anything is read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

from ..config import LlamaConfig
from ..errors import CheckpointError
from .common import Checkpoint


def check_fits(model: Checkpoint | LlamaConfig, device: str = "cpu", dtype: str = "float32") -> int:
    """Bytes that the weights take on `device` in `dtype`; CheckpointError when less memory is free there.

    Where the machine does not say how much is free, nothing is refused.
    """
    config = model if isinstance(model, LlamaConfig) else model.config
    needed = config.weight_bytes(dtype)
    free = free_for(needed, device)
    if free is not None and needed > free:
        smaller = (
            "Choose bfloat16, which halves it, or a smaller model" if dtype == "float32" else "Take a smaller model"
        )
        raise CheckpointError(
            f"The weights take {mib(needed)} in {dtype}, but {'this machine' if device == 'cpu' else device} has "
            f"{mib(free)} of free memory. {smaller}, or free memory: close other programs, or other models in this app."
        )
    return needed


def free_for(needed: int, device: str = "cpu") -> int | None:
    """`free_bytes`; where that is less than `needed`, after freed memory has been given back."""
    free = free_bytes(device)
    if free is not None and needed > free and device == "cpu":
        _give_back_freed_memory()
        free = free_bytes(device)
    return free


def free_bytes(device: str = "cpu", root: Path = Path("/")) -> int | None:
    """Bytes that can still be used on `device`; None where the system does not say.

    On the CPU that is what Linux calls available, or what is left below the limit of the container
    (cgroup version 1 or 2, at every level), whichever is less; files that are only cached count as free.
    root: where /proc and /sys are looked for.
    """
    if device != "cpu":
        import torch

        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # PyTorch keeps it for itself
        return torch.cuda.mem_get_info(device)[0] + held
    rooms = [*_available(root / "proc/meminfo"), *_below_limits(root)]
    return max(0, min(rooms)) if rooms else None


def mib(size: int) -> str:
    """A number of bytes as a person reads it, rounded: "513 MiB"."""
    return f"{size / 2**20:,.0f} MiB"


def _available(meminfo: Path) -> Iterator[int]:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


# (limit, use, cached files within use) in version 2 and 1, and where the groups of each are mounted.
_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def _below_limits(root: Path) -> Iterator[int]:
    """What is left below each limit that holds for this process: its own group's and those around it."""
    groups = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()]
    for mount, limit, use, cached in _CGROUPS:
        kind = "memory" if mount.endswith("memory") else ""
        own = next((path for _, kinds, path in groups if kind in kinds.split(",")), "/")
        for place in _upwards(root / mount, own):
            most, used = _text(place / limit).strip(), _text(place / use).strip()
            if most.isdigit() and used.isdigit():
                yield int(most) - int(used) + _sum(place / "memory.stat", cached)


def _upwards(mount: Path, own: str) -> Iterator[Path]:
    parts = [part for part in own.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _sum(stat: Path, keys: tuple[str, ...]) -> int:
    rows = [line.split() for line in _text(stat).splitlines()]
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in keys and row[1].isdigit())


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _give_back_freed_memory() -> None:
    """Freed memory that the heap keeps for the next run (see heap.py) is in use to the system: give it back."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another C library
        return
