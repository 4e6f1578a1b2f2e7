"""Where models may lie: what is offered by name, and what a page may open.

A page takes words from a URL or a text field, which anyone can write; `find` opens only what lies in
an allowed folder and answers everything else with one sentence, whether or not it exists. Python's own
`load` takes any path: who calls it has the whole machine anyway. Inside a model's folder the same holds
for every name and every link (`file_in`), whoever opens it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import CheckpointError
from ..settings import MODELS

BOX = "tiny-llama"
"""The name of the model that comes with the app."""

WEIGHTS = ("model.safetensors", "consolidated.safetensors", "consolidated.00.safetensors")
"""Names of a single file of weights; the index of a sharded one adds `.index.json`."""

_APP = Path(__file__).parents[2]
_CONFIGS = ("config.json", "params.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ELSEWHERE = (
    "There is no model of this name in the list, and no path inside the folders that models may come from "
    "(GLASS_LLAMA_MODELS, by default models/ beside the app, and the Hugging Face cache). Put the model there, "
    "or start the app with GLASS_LLAMA_MODELS set to its folder."
)


def models_roots() -> tuple[Path, ...]:
    """The folders of GLASS_LLAMA_MODELS, separated as in PATH; without it `models` beside the app."""
    return tuple(map(Path, MODELS.value)) or (_APP / "models",)


def models_root() -> Path:
    """The first folder whose models are offered, where a fetched model is put."""
    return models_roots()[0]


def hub_cache() -> Path:
    """The Hugging Face cache, as huggingface_hub finds it (HF_HOME, HF_HUB_CACHE)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def roots() -> tuple[Path, ...]:
    """Every folder a page may open models from: GLASS_LLAMA_MODELS and the Hugging Face cache."""
    return (*models_roots(), hub_cache())


def local_models() -> dict[str, Path]:
    """What is offered, by name: the model of the box, what lies in the models folders, then the hub's cached ones.

    A .gguf file or a folder with config.json or params.json goes by its own name; of the cache, as
    `org/name`, only what was downloaded whole. What cannot be read, or is a link out of all roots, is left out.
    """
    found: dict[str, Path] = {}
    box = _APP / "assets" / BOX
    if _is_file(box / "config.json"):
        found[BOX] = box
    allowed = [_resolved(root) for root in roots()]
    for root in models_roots():
        for path in sorted(_listed(root)):
            if _is_model(path) and inside(path, *allowed):
                name = path.name if path.name not in found else f"{root.name}/{path.name}"
                found.setdefault(name, path)
    for name, path in sorted(_cached(hub_cache())):
        if inside(path, *allowed):
            found.setdefault(name, path)
    return found


def find(text: str, offered: Mapping[str, Path] | None = None) -> Path:
    """The model that a page's URL or text field names: one of the list, or a path inside a root.

    A relative path starts in a models folder. Links are followed before it is judged. Anything else
    is a CheckpointError of one and the same sentence, whether or not it exists. offered: the list, where the caller
    has just made it.
    """
    offered = local_models() if offered is None else offered
    if text in offered:
        return offered[text]
    allowed = [_resolved(root) for root in roots()]
    for root in models_roots():
        path = root / text  # an absolute path stays what it is
        if inside(path, *allowed) and _is_model(path):
            return path
    raise CheckpointError(_ELSEWHERE)


def inside(path: Path, *allowed: Path) -> bool:
    """Whether `path` lies in or under one of the resolved folders once all links are followed."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL in the name
        return False
    return any(real.is_relative_to(root) for root in allowed)


def file_in(folder: Path, name: str) -> Path:
    """The file of this plain name in a model's folder, there or not; CheckpointError when it would lie elsewhere.

    A name with a path in it and a link that leaves the folder are refused before anything is opened,
    and the sentence does not tell whether the target exists. Of the Hugging Face cache, whose folders
    hold links to `blobs`, the model's own part and the shared blobs count as inside.
    """
    plain = name not in ("", ".", "..") and not re.search(r"[/\\:\x00]", name)
    if plain and inside(folder / name, *_homes(folder.resolve())):
        return folder / name
    raise CheckpointError(
        f"{name[:80]!r} leads out of the folder {folder.name}. Only files of the folder itself are opened: "
        "no paths, no links to elsewhere. Usually the folder was put together by hand; copy the file into it."
    )


def is_file_in(folder: Path, name: str) -> bool:
    """Whether the folder holds this file; CheckpointError as for `file_in`, and where something else has its name."""
    path = file_in(folder, name)
    if _is_file(path):
        return True
    if not os.path.lexists(path):
        return False
    kind = "a link to nothing" if path.is_symlink() and not path.exists() else "no file, though it has a file's name"
    raise CheckpointError(
        f"{name[:80]} in {folder.name} is {kind}. Usually the file was moved or deleted after the folder was put "
        "together; put it back, or fetch the model again."
    )


def _homes(folder: Path) -> tuple[Path, ...]:
    """The folder; of a snapshot in the Hugging Face cache also that model's folder and the cache's shared blobs."""
    snapshots, model = folder.parent, folder.parent.parent
    if snapshots.name == "snapshots" and model.name.startswith("models--"):
        return folder, model, model.parent / "blobs"
    return (folder,)


def snapshot(name: str, revision: str | None = None) -> Path | None:
    """The folder of a hub model that is in the cache and complete; None otherwise. Asks no network."""
    model = hub_cache() / f"models--{name.replace('/', '--')}"
    if revision is not None and _COMMIT.fullmatch(revision):
        commit = revision
    else:
        commit = _text(model / "refs" / (revision or "main"))
    folder = model / "snapshots" / commit
    return folder if _COMMIT.fullmatch(commit) and _is_complete(folder) else None


def _cached(cache: Path) -> Iterator[tuple[str, Path]]:
    """(name, folder) of what the cache holds whole: `org/name` at its main revision, `org/name@revision` at others."""
    for model in _listed(cache):
        if not model.name.startswith("models--"):
            continue
        name = model.name.removeprefix("models--").replace("--", "/", 1)
        named = {_text(model / "refs" / ref): ref for ref in (*_refs(model / "refs"), "main")}
        for folder in _listed(model / "snapshots"):
            ref = named.get(folder.name, folder.name)
            if _COMMIT.fullmatch(folder.name) and _is_complete(folder):
                yield name if ref == "main" else f"{name}@{ref}", folder


def _refs(folder: Path) -> list[str]:
    return sorted(path.name for path in _listed(folder) if _is_file(path))


def _is_model(path: Path) -> bool:
    if path.suffix == ".gguf":
        return _is_file(path)
    return any(_is_file(path / name) for name in _CONFIGS)


def _is_complete(folder: Path) -> bool:
    """Whether a snapshot holds a config and every file of its weights."""
    return any(_is_file(folder / name) for name in _CONFIGS) and any(
        _is_file(folder / name) or _has_all_shards(folder, name) for name in WEIGHTS
    )


def _has_all_shards(folder: Path, weights: str) -> bool:
    try:
        shards = set(json.loads(_text(folder / f"{weights}.index.json") or "null")["weight_map"].values())
        return all(_is_file(folder / shard) for shard in shards)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # no index, or no such index
        return False


# --- a disk that may be broken: nothing here raises ------------------------------------------


def _listed(folder: Path) -> list[Path]:
    """What lies in a folder and has a name that can be written on a screen."""
    try:
        return [path for path in folder.iterdir() if path.name.isprintable()]
    except (OSError, ValueError):
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path
