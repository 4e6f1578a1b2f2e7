"""Models of the Hugging Face hub: what a download would fetch, and the download into the hub's own cache.

Only configs, tokenizers and safetensors are fetched, never pickles nor code. Nothing here runs before it
is called, and text that is no hub id never reaches the network. Each failure is a sentence that says what
to do about it.
"""

from __future__ import annotations

import errno
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from ..config import LlamaConfig, read_config
from ..errors import CheckpointError
from .fits import mib
from .roots import WEIGHTS, hub_cache, snapshot

Progress = Callable[[float], None]

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]*[A-Za-z0-9_])(?:@([A-Za-z0-9_][\w./-]*))?", re.ASCII)
_LONGEST = 96  # characters of `org/name`, as the hub allows
_CONFIGS = ("config.json", "params.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def is_hub_id(text: str) -> bool:
    """Whether `text` is written like a model of the hub: `org/name` or `org/name@revision`. Nothing is looked up."""
    found = _ID.fullmatch(text)
    return (
        found is not None
        and len(found[1]) <= _LONGEST
        and not re.search(r"--|\.\.", text)
        and not found[1].endswith((".git", ".gguf"))
    )


def plan(model: str) -> dict[str, int]:
    """Bytes by name of the files that `download(model)` would fetch; those in the cache already do not count.

    model: `org/name`, or `org/name@revision` for another than main. Asks the hub, downloads nothing.
    Raises CheckpointError.
    """
    name, revision = _parsed(model)
    commit, files = _files(name, revision)
    return _missing(name, commit, files)


def download(
    model: str, progress: Progress | None = None, check: Callable[[LlamaConfig | None, int], object] | None = None
) -> Path:
    """The model's folder in the Hugging Face cache, fetched if it is not there whole; then no network is asked.

    progress: told the share of all bytes that is here, 0..1; what it raises ends the download, and a later
    one goes on where this one ended. Without it huggingface_hub draws its own bars. check: told the config before any
    weights are fetched, None where there is no config.json and only the shapes of the weights will complete it, and
    the bytes of the weights' files; what it raises ends the download too. Raises CheckpointError; ConfigError when
    the config shows, just as early, that we cannot compute the model.
    """
    name, revision = _parsed(model)
    here = snapshot(name, revision)
    if here is not None:
        return here
    commit, files = _files(name, revision)
    missing = _missing(name, commit, files)
    _check_disk(name, sum(missing.values()))
    order = sorted(files, key=lambda file: (file.endswith(".safetensors"), file))  # the config before gigabytes
    bars = _Bars(progress, sum(files.values()))
    version = revision or "main"
    stored = sum(size for file, size in files.items() if file.endswith(".safetensors"))
    if check is not None and "config.json" not in files:
        check(None, stored)
    for file in order:
        path = _fetch(name, file, version, bars, sum(missing.values()))
        version = path.parent.name  # the rest from the same commit, should main move meanwhile
        if file == "config.json":
            config = read_config(path)
            if check is not None:
                check(config, stored)
        bars.arrived(files[file])
        missing.pop(file, None)
    return path.parent


def _parsed(model: str) -> tuple[str, str | None]:
    if not is_hub_id(model):
        raise CheckpointError(
            f"{model[:120]!r} is no model of the Hugging Face hub: those are written org/name, for example "
            "HuggingFaceTB/SmolLM2-135M, or org/name@revision."
        )
    found = _ID.fullmatch(model)
    return found[1], found[2]


def _files(name: str, revision: str | None) -> tuple[str, dict[str, int]]:
    """(commit, bytes by name of all files that belong to the model as we read it)."""
    from huggingface_hub import HfApi

    with _sentences(name, revision):
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
        sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or ()}
        commit = str(info.sha)
    return commit, {file: sizes[file] for file in _wanted(sizes, name)}


def _missing(name: str, commit: str, files: dict[str, int]) -> dict[str, int]:
    from huggingface_hub import try_to_load_from_cache

    cached = {file: try_to_load_from_cache(name, file, cache_dir=hub_cache(), revision=commit) for file in files}
    return {file: size for file, size in files.items() if not isinstance(cached[file], str)}


def _wanted(names: Collection[str], model: str) -> list[str]:
    """Of a repository's files those that we read: config, tokenizer, and one version of the weights."""
    top = [name for name in names if "/" not in name]
    weights: list[str] = []
    for single in WEIGHTS:
        if f"{single}.index.json" in top:
            shards = re.compile(re.escape(single.removesuffix(".safetensors")) + r"-.+\.safetensors")
            weights = [f"{single}.index.json", *filter(shards.fullmatch, top)]
        elif single in top:
            weights = [single]
        if weights:
            break
    others = sorted({Path(name).suffix for name in top} & {".gguf", ".bin", ".pt", ".pth"})
    if not weights:
        found = f"only {' and '.join(others)} files" if others else "no weights that we know"
        raise CheckpointError(
            f"{model} holds no safetensors, {found}. Pickles (.bin, .pt) are never fetched; a .gguf file can be put "
            "into models/ by hand. Usually another repository has the model as safetensors."
        )
    if not set(_CONFIGS) & set(top):
        raise CheckpointError(
            f"{model} holds no config.json. Usually it is an adapter or a part of a model; take the whole model's."
        )
    return [name for name in (*_CONFIGS, *_TOKENIZERS, *weights) if name in top]


def _check_disk(name: str, needed: int) -> None:
    free = _free()
    if free is not None and needed - _begun(name) > free:
        raise CheckpointError(
            f"{name} takes {mib(needed)} on the disk, but {mib(free)} are free where the Hugging Face cache lies. "
            "Free some, or set HF_HOME to a folder on a larger disk."
        )


def _free() -> int | None:
    """Bytes that are free where the cache lies; None where the system does not say."""
    folder = hub_cache()
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _begun(name: str) -> int:
    """Bytes of the model's files that an earlier download left half done, and that the next goes on from."""
    blobs = hub_cache() / f"models--{name.replace('/', '--')}" / "blobs"
    try:
        return sum(part.stat().st_size for part in blobs.glob("*.incomplete"))
    except OSError:
        return 0


def _fetch(name: str, file: str, revision: str, bars: _Bars, needed: int) -> Path:
    from huggingface_hub import hf_hub_download

    with bars.listening(), _sentences(name, revision, needed):
        return Path(hf_hub_download(name, file, revision=revision, cache_dir=hub_cache(), tqdm_class=bars.kind()))


# --- progress --------------------------------------------------------------------------------


class _StoppedError(BaseException):
    """Carries what our progress raised through a client that would take it for a failure and try again."""


class _Bars:
    """Sums up the bars that huggingface_hub makes, one a file, and tells their share of all bytes."""

    def __init__(self, tell: Progress | None, total: int) -> None:
        self._tell, self._total, self._before, self._now = tell, max(1, total), 0, 0

    def arrived(self, size: int) -> None:
        """A file of `size` bytes is here, whether it came now or was in the cache."""
        self._before, self._now = self._before + size, 0
        self._say()

    def kind(self) -> Any:
        """The class of bars to hand to huggingface_hub; None lets it draw its own."""
        if self._tell is None:
            return None
        from huggingface_hub.utils import tqdm

        bars = self

        class Bar(tqdm):
            def __init__(self, *args: Any, initial: int = 0, **options: Any) -> None:
                super().__init__(*args, **options | {"disable": True})
                bars._now = initial

            def update(self, n: float | None = 1) -> None:
                bars._now += n or 0
                try:
                    bars._say()
                except BaseException as stop:
                    raise _StoppedError from stop

        return Bar

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let what our progress raises come out as it was raised."""
        if self._tell is None:
            yield
            return
        try:
            with _plain_http():
                yield
        except _StoppedError as stop:
            raise stop.__cause__ from None

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(min(1.0, (self._before + self._now) / self._total))


_plain = threading.RLock()


@contextmanager
def _plain_http() -> Iterator[None]:
    """Without Xet, whose transfer goes on in threads of its own that our progress cannot end."""
    with _plain:  # one download at a time: the switch is the whole process's
        before, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True
        try:
            yield
        finally:
            constants.HF_HUB_DISABLE_XET = before


# --- failures --------------------------------------------------------------------------------


@contextmanager
def _sentences(model: str, revision: str | None, needed: int = 0) -> Iterator[None]:
    """Any failure of the client as a CheckpointError with what to do about it. needed: bytes still to be written."""
    from huggingface_hub import errors

    known = (errors.HTTPError, errors.RevisionResolutionError, OSError, ValueError, TypeError, KeyError)
    try:
        yield
    except known as error:
        raise CheckpointError(_sentence(model, revision, error, needed)) from error


def _sentence(model: str, revision: str | None, error: Exception, needed: int) -> str:
    from huggingface_hub import errors

    sign_in = "sign in here with `hf auth login`, or set HF_TOKEN to a token of yours that may read it"
    page = f"https://huggingface.co/{model}"
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what kept the client from asking
    if isinstance(error, errors.GatedRepoError):
        return f"{model} is gated: its makers ask for your agreement. Accept the licence at {page}, then {sign_in}."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"The hub has no model {model}, or it is private. Check the spelling; for a private one {sign_in}."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{model} has no revision {revision!r}. Without @{revision} its main one is taken."
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{model} is not whole in the Hugging Face cache, and HF_HUB_OFFLINE forbids to ask the hub. "
            "Unset it, or download the model where there is a network and copy the cache."
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return (
                f"The hub refuses {model} (HTTP {status}). Accept its licence at {page} if it has one, and {sign_in}."
            )
        if status == 429:
            return (
                f"The hub asks for a pause before {model} is fetched (HTTP 429, too many requests). Wait some minutes; "
                f"those who are signed in may ask more often: {sign_in}."
            )
        return f"The hub answered HTTP {status} for {model}. Usually it is its trouble and passes; try again later."
    if isinstance(error, (errors.HTTPError, errors.LocalEntryNotFoundError)):
        return (
            f"The hub cannot be reached to fetch {model} ({type(error).__name__}). Usually this machine is offline, or "
            "a proxy stands between; try again, or copy the model's folder into models/."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = _free()
        room = "the disk" if free is None else f"the disk, which has {mib(free)} free"
        return (
            f"The disk is full: {mib(needed)} of {model} are still to be written to the Hugging Face cache on {room}. "
            "Free some, or set HF_HOME to a folder on a larger disk; the download goes on where it ended."
        )
    if isinstance(error, OSError):
        return (
            f"{model} could not be fetched into the Hugging Face cache: {error.strerror or str(error)[:200]}. Usually "
            "the connection broke, or the cache cannot be written; try again."
        )
    return (
        f"What answered for {model} is not the hub's: {str(error)[:120]}. Usually a proxy or a sign-in page of the "
        "network stands between; open https://huggingface.co in a browser and try again."
    )
