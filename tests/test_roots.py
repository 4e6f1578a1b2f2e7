"""What is offered by name, and what a page may open: nothing outside the allowed folders, and no word about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants
from rigs import reference_rig, save_folder

from llama_core import load
from llama_core.checkpoints import local_models, models_root, roots
from llama_core.checkpoints.roots import find, inside, snapshot
from llama_core.errors import CheckpointError

COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty models folder, an empty Hugging Face cache, and no model in the box."""
    for name in ("models", "hub"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(roots, "_APP", tmp_path / "app")
    return tmp_path / "models"


def make_folder(path: Path, config: str = "config.json", *files: str) -> Path:
    path.mkdir(parents=True)
    for name in (config, *files):
        (path / name).write_text("{}", encoding="utf-8")
    return path


def make_cached(hub: Path, name: str, refs: dict[str, str], snapshots: dict[str, tuple[str, ...]]) -> Path:
    model = hub / f"models--{name.replace('/', '--')}"
    for ref, commit in refs.items():
        (model / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (model / "refs" / ref).write_text(commit, encoding="utf-8")
    for commit, files in snapshots.items():
        make_folder(model / "snapshots" / commit, *files)
    return model


def refused(text: str) -> str:
    with pytest.raises(CheckpointError) as error:
        find(text)
    return str(error.value)


# --- what is offered ---


def test_files_and_folders_are_offered_by_name_and_other_things_are_not(models):
    (models / "a.gguf").write_bytes(b"GGUF")
    make_folder(models / "hf")
    make_folder(models / "meta", "params.json")
    (models / "notes.txt").write_text("x")
    (models / "empty").mkdir()
    (models / "dir.gguf").mkdir()
    assert local_models() == {name: models / name for name in ("a.gguf", "hf", "meta")}


def test_the_model_of_the_box_comes_first_and_only_where_it_is(models, tmp_path):
    make_folder(models / "a")
    assert "tiny-llama" not in local_models()
    box = make_folder(tmp_path / "app/assets/tiny-llama")
    assert list(local_models().items()) == [("tiny-llama", box), ("a", models / "a")]
    make_folder(models / "tiny-llama")
    assert local_models()["tiny-llama"] == box
    assert local_models()["models/tiny-llama"] == models / "tiny-llama"


def test_several_models_folders_are_named_as_in_a_path(models, tmp_path, monkeypatch):
    for name in ("x/models", "y/other"):
        make_folder(tmp_path / name / "same")
    monkeypatch.setenv("GLASS_LLAMA_MODELS", f"{tmp_path / 'x/models'}{os.pathsep}{tmp_path / 'y/other'}")
    assert roots.models_roots() == (tmp_path / "x/models", tmp_path / "y/other")
    assert models_root() == tmp_path / "x/models"
    assert local_models() == {"same": tmp_path / "x/models/same", "other/same": tmp_path / "y/other/same"}


def test_without_the_setting_models_lie_beside_the_app(models, tmp_path, monkeypatch):
    monkeypatch.delenv("GLASS_LLAMA_MODELS")
    assert roots.roots() == (tmp_path / "app/models", tmp_path / "hub")


SHARDED = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'


def test_of_the_cache_only_what_is_whole_is_offered(models, tmp_path):
    hub = tmp_path / "hub"
    make_cached(hub, "org/whole", {"main": COMMIT}, {COMMIT: ("config.json", "model.safetensors")})
    make_cached(hub, "org/no-weights", {"main": COMMIT}, {COMMIT: ("config.json",)})
    make_cached(hub, "org/no-config", {"main": COMMIT}, {COMMIT: ("model.safetensors",)})
    make_cached(hub, "org/pickle", {"main": COMMIT}, {COMMIT: ("config.json", "pytorch_model.bin")})
    (hub / "datasets--org--whole").mkdir()
    cut = make_cached(hub, "org/cut", {"main": COMMIT}, {COMMIT: ("config.json", "model-1.safetensors")})
    index = cut / "snapshots" / COMMIT / "model.safetensors.index.json"
    index.write_text(SHARDED, encoding="utf-8")
    assert list(local_models()) == ["org/whole"]
    assert snapshot("org/cut") is None
    (index.parent / "model-2.safetensors").write_bytes(b"")
    assert list(local_models()) == ["org/cut", "org/whole"]
    assert snapshot("org/cut") == local_models()["org/cut"] == index.parent


def test_other_revisions_of_a_cached_model_have_names_of_their_own(models, tmp_path):
    whole = ("config.json", "model.safetensors")
    refs = {"main": COMMIT, "v1": OTHER}
    third = "c" * 40
    model = make_cached(tmp_path / "hub", "org/a", refs, {COMMIT: whole, OTHER: whole, third: whole, "x": whole})
    assert set(local_models()) == {"org/a", "org/a@v1", f"org/a@{third}"}
    assert snapshot("org/a", "v1") == model / "snapshots" / OTHER
    assert snapshot("org/a", third) == model / "snapshots" / third
    assert snapshot("org/a", "v2") is None


@pytest.mark.parametrize("index", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_a_broken_index_in_the_cache_raises_nothing(models, tmp_path, index):
    model = make_cached(tmp_path / "hub", "org/a", {"main": COMMIT}, {COMMIT: ("config.json",)})
    (model / "snapshots" / COMMIT / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    assert local_models() == {}


def test_what_cannot_be_read_in_a_root_raises_nothing(models, tmp_path):
    (models / "dangling").symlink_to(tmp_path / "nowhere")
    (models / "loop").symlink_to("loop")
    (models / "loop.gguf").symlink_to("loop.gguf")
    os.mkfifo(models / "pipe.gguf")
    (models / os.fsdecode(b"\xff.gguf")).write_bytes(b"GGUF")
    (tmp_path / "hub/models--org--a").write_text("a file where a folder should be")
    make_cached(tmp_path / "hub", "org/b", {"main": "../../../etc"}, {})
    (models / "line\nbreak.gguf").write_bytes(b"GGUF")
    assert local_models() == {}


def test_roots_that_are_not_there_offer_nothing(models, tmp_path, monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_MODELS", f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'a.file'}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    (tmp_path / "a.file").write_text("x")
    assert local_models() == {}


def test_a_link_out_of_all_roots_is_not_offered_but_one_between_them_is(models, tmp_path):
    outside = make_folder(tmp_path / "outside")
    (models / "leaves").symlink_to(outside)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (models / "x.gguf").symlink_to(tmp_path / "x.gguf")
    within = make_folder(tmp_path / "hub/anything")
    (models / "stays").symlink_to(within)
    assert list(local_models()) == ["stays"]
    assert refused("leaves") == refused("x.gguf") == refused("nothing")


# --- what a page may open ---


def test_a_name_of_the_list_and_a_path_inside_a_root_are_found(models, tmp_path):
    make_folder(models / "a")
    deep = make_folder(models / "deep/down")
    (models / "deep/b.gguf").write_bytes(b"GGUF")
    snapshot = make_folder(tmp_path / "hub/models--org--a/snapshots/x")
    assert find("a") == models / "a"
    assert find("deep/down") == deep
    assert find(str(deep)) == deep
    assert find("deep/b.gguf") == models / "deep/b.gguf"
    assert find(str(snapshot)) == snapshot
    assert find("deep/../a").resolve() == models / "a"


def test_a_path_that_leaves_is_refused_in_the_same_words_whether_or_not_it_exists(models, tmp_path):
    there = make_folder(tmp_path / "outside")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (models / "link").symlink_to(tmp_path)
    said = refused("no such model")
    for text in (
        str(there),
        str(tmp_path / "missing"),
        "../outside",
        "../missing",
        "link/outside",
        "link/missing",
        str(tmp_path / "x.gguf"),
        f"{models}/../outside",
        "/etc/passwd",
        "/etc",
        "~",
        "a\x00b",
        "x" * 5000,
        "",
        "/",
        ".",
        "..",
        "//etc",
        "\udcff",
    ):
        assert refused(text) == said, text
    assert str(there) not in said


def test_what_is_no_model_inside_a_root_is_refused_in_the_same_words(models):
    (models / "secret.txt").write_text("x")
    (models / "empty").mkdir()
    assert refused("secret.txt") == refused("empty") == refused(str(models)) == refused("none")


def test_a_root_that_is_a_link_itself_is_followed(models, tmp_path, monkeypatch):
    make_folder(models / "a")
    (tmp_path / "alias").symlink_to(models)
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path / "alias"))
    assert find("a") == tmp_path / "alias/a"
    assert find(str(models / "a")) == models / "a"


def test_a_name_that_only_begins_like_a_root_is_outside(models, tmp_path):
    make_folder(tmp_path / "models-not")
    assert not inside(tmp_path / "models-not", models.resolve())
    assert refused(str(tmp_path / "models-not")) == refused("none")


def test_python_may_open_what_a_page_may_not(models, tmp_path):
    path = save_folder(reference_rig(), tmp_path / "outside")
    assert refused(str(path))
    assert load(path).config.hidden_size == load(str(path)).config.hidden_size == 32


def test_a_name_of_the_list_loads(models):
    save_folder(reference_rig(), models / "rig")
    assert load("rig").origin.label == "rig (folder, F32)"
    with pytest.raises(CheckpointError, match=r"or one of: .*rig"):
        load("rigg")


@pytest.mark.parametrize("text", ["a\x00b", "x" * 5000, "", "models/typo.gguf"])
def test_text_that_can_be_no_model_is_a_sentence(models, text):
    with pytest.raises(CheckpointError, match=r"There is no model|holds no config"):
        load(text)
