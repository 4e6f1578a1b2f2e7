"""The hub's models through huggingface_hub itself, against a small hub of our own on this machine: no network."""

from __future__ import annotations

import errno
import json
import socket
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars
from rigs import reference_rig, save_folder

from llama_core import load
from llama_core.checkpoints import hub, local_models, open_checkpoint, roots
from llama_core.checkpoints.hub import download, is_hub_id, plan
from llama_core.errors import CheckpointError, ConfigError

COMMIT = "c0ffee" + "0" * 34
NAME = "org/rig"


@dataclass
class FakeHub:
    """Answers as the hub does for one model. status, code: what files (or all) are answered instead; asked: paths."""

    files: dict[str, bytes]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    status: int = 200
    code: str = ""
    info_too: bool = True
    cut: int | None = None

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        if path != "/api/agent-harnesses":  # the client asks that of its own, once a process
            self.asked.append(f"{handler.command} {path}")
        if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/v1") and (
            self.status == 200 or not self.info_too
        ):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            return self.send(handler, json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode(), {})
        name = path.rpartition("/")[2]
        if self.status == 200 and path.startswith(f"/{NAME}/resolve/") and name in self.files:
            data = self.files[name]
            return self.send(handler, data, {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
        status, code = (404, "RepoNotFound") if self.status == 200 else (self.status, self.code)
        return self.send(handler, b"{}", {"X-Error-Code": code} if code else {}, status)

    def send(self, handler, data: bytes, headers: dict[str, str], status: int = 200) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(data)), "Content-Type": "application/json"} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data)


def answered_by(monkeypatch, url: str) -> None:
    """As HF_ENDPOINT does, which huggingface_hub reads when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def rig():
    return reference_rig()


@pytest.fixture
def fake(rig, tmp_path, monkeypatch):
    """A hub that has the rig in shards, with a pickle, code and a stray second version beside it; an empty cache."""
    rig.save_pretrained(tmp_path / "rig", max_shard_size="20KB")
    files = {path.name: path.read_bytes() for path in (tmp_path / "rig").iterdir()}
    files |= {
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"print()",
        "consolidated.safetensors": b"x",
        "model-x/a.safetensors": b"x",
    }
    hub = FakeHub(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hub.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(roots, "_APP", tmp_path / "app")  # the box is offered besides
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    answered_by(monkeypatch, hub.url)
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.chdir(tmp_path)
    disable_progress_bars()
    yield hub
    server.shutdown()
    server.server_close()


def wanted(hub: FakeHub) -> dict[str, int]:
    keep = ["config.json", "model.safetensors.index.json", *(name for name in hub.files if name.startswith("model-0"))]
    return {name: len(hub.files[name]) for name in keep}


def refusal(function, *args, **options) -> str:
    with pytest.raises(CheckpointError) as refused:
        function(*args, **options)
    return str(refused.value)


# --- what is an id ---


@pytest.mark.parametrize(
    "text", ["org/name", "HuggingFaceTB/SmolLM2-135M", "a/b.c_d-e", "org/name@v1.0", "o/n@refs/pr/1"]
)
def test_ids_of_the_hub_are_known(text):
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "name", "a/b/c", "/a/b", "../a", "a/..", "a/../b", "a/b--c", "a b/c", "a/b\n", "a/", "/b", "a/b@"),
        *("a/b@../x", "-a/b", ".a/b", "a/b-", "https://x/y", "a/b.gguf", "a/b.git", "é/b", "a\x00/b", "a/b?x=1"),
        *("a/b#c", "a/" + "b" * 96),
    ],
)
def test_what_is_no_id_never_reaches_the_network(fake, text):
    assert not is_hub_id(text)
    for ask in (plan, download):
        assert "no model of the Hugging Face hub" in refusal(ask, text)
    with pytest.raises(CheckpointError):
        load(text)
    assert fake.asked == []


def test_a_path_beside_a_folder_that_is_here_is_no_id(fake):
    assert "There is no model" in refusal(load, "models/typo")
    assert "There is no model" in refusal(open_checkpoint, NAME)
    assert fake.asked == []


# --- what is fetched ---


def test_a_plan_lists_what_we_read_and_fetches_nothing(fake, tmp_path):
    assert plan(NAME) == wanted(fake)
    assert fake.asked == [f"GET /api/models/{NAME}"]
    assert list((tmp_path / "hub").iterdir()) == []


def test_a_download_lands_in_the_cache_with_progress_and_loads(fake, rig):
    told = []
    folder = download(NAME, told.append)
    assert {path.name for path in folder.iterdir()} == set(wanted(fake))
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) > len(wanted(fake))
    assert local_models() == {NAME: folder}
    fake.asked.clear()
    model = load(NAME)
    assert fake.asked == []
    assert model.origin.label == f"{NAME} (folder, F32)"
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in rig.state_dict().items())


def test_load_downloads_by_itself(fake):
    told = []
    assert load(NAME, progress=told.append).config.hidden_size == 32
    assert told.count(1.0) >= 2


def test_what_is_here_whole_is_taken_without_asking(fake):
    folder = download(NAME)
    fake.asked.clear()
    assert download(NAME) == folder
    assert fake.asked == []


def test_the_config_comes_first_and_ends_the_download_of_what_we_cannot_compute(fake):
    config = json.loads(fake.files["config.json"])
    fake.files["config.json"] = json.dumps(config | {"model_type": "gemma3"}).encode()
    with pytest.raises(ConfigError, match="gemma3"):
        download(NAME)
    assert not [path for path in fake.asked if path.endswith(".safetensors")]


def test_another_revision_is_kept_under_its_own_name(fake):
    folder = download(f"{NAME}@v1")
    assert local_models() == {f"{NAME}@v1": folder}
    assert download(f"{NAME}@v1") == folder


def test_what_is_in_the_cache_already_is_not_counted_again(fake, tmp_path):
    folder = download(NAME)
    gone = next(folder.glob("model-*"))
    gone.resolve().unlink()
    gone.unlink()
    assert plan(NAME) == {gone.name: len(fake.files[gone.name])}
    told = []
    download(NAME, told.append)
    assert gone.is_file()
    assert told[-1] == 1.0


class Stop(BaseException):
    """As Streamlit ends a script: not an Exception."""


@pytest.mark.parametrize("kind", [Stop, CheckpointError, OSError, ValueError])
def test_what_progress_raises_ends_the_download_which_goes_on_later(fake, kind):
    def stop(share):
        if share > 0.3:
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        download(NAME, stop)
    assert local_models() == {}
    assert not constants.HF_HUB_DISABLE_XET
    assert download(NAME).is_dir()


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "GatedRepo", f"Accept the licence at https://huggingface.co/{NAME}"),
        (401, "GatedRepo", "hf auth login"),
        (404, "RepoNotFound", "no model org/rig, or it is private"),
        (401, "", "hf auth login"),
        (403, "", "HF_TOKEN"),
        (429, "", "too many requests"),
        (418, "", "HTTP 418"),
    ],
)
@pytest.mark.parametrize("ask", [plan, download])
def test_what_the_hub_refuses_is_a_sentence_with_what_to_do(fake, status, code, says, ask):
    fake.status, fake.code = status, code
    assert says in refusal(ask, NAME)


def test_a_gated_model_whose_page_is_open_is_refused_at_its_files(fake):
    fake.status, fake.code, fake.info_too = 403, "GatedRepo", False
    assert plan(NAME) == wanted(fake)
    assert "is gated" in refusal(download, NAME)


def test_a_revision_that_is_not_there_is_named(fake):
    fake.status, fake.code = 404, "RevisionNotFound"
    assert "'v9'" in refusal(download, f"{NAME}@v9")


def test_a_hub_that_cannot_be_reached_is_a_sentence(fake, monkeypatch):
    with socket.socket() as taken:  # a port that nobody listens on
        taken.bind(("127.0.0.1", 0))
        answered_by(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert "offline" in refusal(download, NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal(download, NAME)


def test_a_page_that_is_not_the_hubs_is_a_sentence(fake, monkeypatch):
    def answer(handler):
        fake.send(handler, b"<html>sign in</html>", {})

    monkeypatch.setattr(fake, "answer", answer)
    assert "is not the hub's" in refusal(plan, NAME)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "only .bin files"),
        ({"x.gguf": b"x"}, "only .gguf files"),
        ({"config.json": b"{}", "onnx/model.safetensors": b"x"}, "no weights that we know"),
        ({"model.safetensors": b"x", "adapter_config.json": b"{}"}, "no config.json"),
        ({}, "no safetensors"),
    ],
)
def test_a_repository_without_what_we_read_is_refused_before_anything_is_fetched(fake, files, says):
    fake.files = files
    assert says in refusal(download, NAME)
    assert fake.asked == [f"GET /api/models/{NAME}"]


def test_a_single_file_is_taken_whole_and_metas_only_where_it_is_alone(fake):
    fake.files = {
        "params.json": b"{}",
        "config.json": b"{}",
        "model.safetensors": b"xx",
        "consolidated.safetensors": b"x",
    }
    assert plan(NAME) == {"config.json": 2, "params.json": 2, "model.safetensors": 2}
    fake.files.pop("model.safetensors")
    assert "consolidated.safetensors" in plan(NAME)


def test_a_disk_that_is_too_small_is_told_before_and_one_that_fills_up_after(fake, monkeypatch):
    usage = hub.shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(hub.shutil, "disk_usage", lambda path: usage._replace(free=1 << 10))
        said = refusal(download, NAME)
        assert "0 MiB are free" in said
        assert "HF_HOME" in said

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    assert "disk is full" in refusal(download, NAME)


def test_a_cache_that_cannot_be_written_is_a_sentence(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file/hub"))
    assert "Hugging Face cache" in refusal(download, NAME)


def test_a_folder_of_the_same_name_is_not_asked_of_the_hub(fake, rig, tmp_path):
    save_folder(rig, tmp_path / "org" / "rig")
    assert load(NAME).config.hidden_size == 32
    assert fake.asked == []


def test_a_token_is_never_part_of_a_sentence(fake, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fake.status = 500
    assert "hf_secret" not in refusal(plan, NAME)


def test_nothing_is_asked_by_importing_or_listing(fake):
    assert local_models() == {}
    assert is_hub_id(NAME)
    assert fake.asked == []
    assert Path(constants.HF_HUB_CACHE).is_dir()
