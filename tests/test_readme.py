"""The README is true: its code runs, its tree is the tree, its tables are what the code says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llama_core.checkpoints import models_root
from llama_core.heap import keep_heap
from llama_core.rebuild import REBUILT_LIMIT
from llama_core.runner import HOLD_LIMIT
from llama_core.steps import STEPS
from pages.ui.session import ALWAYS, CHOICES, Session, _text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHIPPED = [path for place in ("llama_core", "pages") for path in sorted((ROOT / place).rglob("*.py"))]


def between(name: str) -> list[str]:
    """The lines between the markers of this name."""
    (found,) = re.findall(rf"^<!-- {name}\b[^>]* -->\n(.*?)\n<!-- /{name} -->$", README, re.MULTILINE | re.DOTALL)
    return found.splitlines()


def rows(name: str) -> list[list[str]]:
    """A table's cells below its header, marks of code taken off."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in between(name)[2:]]


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


# --- code ---


@pytest.mark.parametrize("block", fenced("python"), ids=["random weights", "the box", "a real model"])
def test_what_the_readme_runs_gives_what_it_says(block, monkeypatch):
    monkeypatch.delenv("GLASS_LLAMA_MODELS", raising=False)
    names: dict = {}
    said = 0
    for line in block.splitlines():
        code, arrow, answer = line.partition("  # -> ")
        if arrow:
            assert repr(eval(code, names)) == answer, code
            said += 1
        else:
            exec(line, names)
    assert said >= 2


def test_the_first_block_has_five_lines_and_its_comment_is_right():
    from llama_core import load, run

    block = fenced("python")[0]
    assert len([line for line in block.splitlines() if line]) == 5
    model = load("tiny")
    c = model.config
    heads = f"{c.num_attention_heads} query heads that share {c.num_key_value_heads} key/value heads"
    assert f"# {c.num_hidden_layers} layers, {heads}" in block
    assert f"# {len(run(model, [10, 20, 30]).walk)} steps, recorded" in block


@pytest.mark.parametrize("block", fenced("py"), ids=["record", "tap declared", "tap called"])
def test_code_that_the_readme_quotes_is_in_the_file_it_names(block):
    name, code = block.removeprefix("# ").split("\n", 1)
    assert code.strip()
    assert f"\n{code}" in (ROOT / name).read_text(encoding="utf-8")


# --- the tree ---


def tree() -> dict[str, str]:
    """Path -> phrase."""
    found, above = {}, []
    for line in between("tree"):
        indent, name, phrase = re.fullmatch(r"    ( *)(\S+)(?: {2,}(\S.*))?", line).groups()
        above[len(indent) // 2 :] = [name]
        found["".join(above)] = phrase or ""
    return found


def test_what_the_tree_names_exists_and_has_a_phrase():
    for path, phrase in tree().items():
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
        assert phrase, path


def test_every_module_of_the_app_is_in_the_tree():
    wanted = {str(path.relative_to(ROOT)) for path in SHIPPED if path.name != "__init__.py"}
    wanted |= {f"{path.parent.relative_to(ROOT)}/" for path in SHIPPED}
    wanted |= {str(path.relative_to(ROOT)) for path in (*ROOT.glob("scripts/*.py"), *ROOT.glob("benchmarks/*.py"))}
    wanted |= {"app.py", "scripts/", "benchmarks/", "tests/", "assets/"}
    assert wanted - tree().keys() == set()


def test_files_and_pictures_that_the_text_names_exist():
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for name in re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(
        r"`((?:llama_core|pages|scripts|tests)/[\w/.]+)`", text
    ):
        assert (ROOT / name).is_file(), name
    assert "](docs/screenshots/" in text
    assert (ROOT / "LICENSE").is_file()


def test_every_target_that_the_readme_names_is_in_the_makefile():
    made = set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^    make (\w+)|make (\w+)(?= {2,})|`make (\w+)`", README, re.MULTILINE))
    named = {word for words in named for word in words if word}
    assert {"app", "test", "model", "clean"} <= named <= made


# --- tables ---


def test_the_table_of_steps_is_the_registry():
    script = [sys.executable, str(ROOT / "scripts" / "steps_table.py")]
    written = subprocess.run(script, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    assert "\n".join(between("steps")) + "\n" == written, "run: python scripts/steps_table.py --write"
    cells = rows("steps")
    assert [row[0].removeprefix("*model* ").strip("`") for row in cells] == [step.key for step in STEPS]
    assert [row[1].strip("`") for row in cells] == [step.shape for step in STEPS]


def test_settings_have_the_defaults_that_the_table_gives(monkeypatch):
    said = {name.strip("`"): default.strip("`") for name, default, _ in rows("settings")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GLASS_LLAMA_")}
    code = "from pages.ui import store; print(store.MODEL_BYTES >> 20, store.TRACE_BYTES >> 20)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
    )
    assert [said["GLASS_LLAMA_MODEL_MIB"], said["GLASS_LLAMA_TRACE_MIB"]] == found.stdout.split()
    limits = HOLD_LIMIT, REBUILT_LIMIT
    assert [said["GLASS_LLAMA_HOLD_MIB"], said["GLASS_LLAMA_REBUILT_MIB"]] == [str(limit >> 20) for limit in limits]
    assert said["GLASS_LLAMA_MODELS"] == "models` beside the app"
    assert said["GLASS_LLAMA_KEEP_HEAP"] == "1"
    monkeypatch.setenv("GLASS_LLAMA_KEEP_HEAP", "0")
    assert not keep_heap()
    monkeypatch.delenv("GLASS_LLAMA_MODELS", raising=False)
    assert models_root().name == "models"
    assert models_root().parent.resolve() == ROOT.resolve()  # the folder itself may be a link
    in_code = {
        name for path in SHIPPED for name in re.findall(r"GLASS_LLAMA_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert said.keys() == in_code


def test_url_parameters_are_those_of_the_session_in_its_order():
    assert [row[0].strip("`") for row in rows("url")] == list(CHOICES)
    assert set(ALWAYS) <= CHOICES.keys()


@pytest.mark.parametrize(("name", "default", "accepts"), rows("url"), ids=lambda cell: cell.strip("`").split("`")[0])
def test_a_url_parameter_has_the_default_and_accepts_what_the_table_says(name, default, accepts):
    name = name.strip("`")
    choice = CHOICES[name]
    assert (default.strip("`") == default) == (choice.default is None)
    assert choice.default is None or default == f"`{_text(choice.default)}`"
    if limits := re.match(r"(-?[\d.]+) to (\d+)", accepts):
        low, high = float(limits[1]) if "." in limits[1] else int(limits[1]), int(limits[2])
        assert choice.read(str(low)) == low
        assert choice.read(str(high)) == high
        refused = [str(low - 1), str(high + 1), "x", ""]
    elif re.match(r"`[^`]+`(, `[^`]+`)+", accepts):
        options = re.findall(r"`([^`]+)`", accepts)
        assert all(choice.read(option) is not None for option in options)
        assert set(options) == _offered(name, options)
        refused = ["x", "", "2"]
    else:
        refused = REFUSED.get(name, [])
        assert refused or name in ("prompt", "ids")
        if name == "at":
            assert [choice.read(at) for at in re.findall(r"`([^`]+)`", accepts)] == ["embed", "3.q_rot", "logits"]
    for text in refused:
        with pytest.raises((ValueError, KeyError)):
            choice.read(text)


REFUSED = {  # of choices whose text is neither a range nor a list
    "model": ["../models", "/etc/passwd"],
    "at": ["x", "0.embed", ""],
    "edit": ["zero", "3.head_out zero x"],
    "until": ["", "x"],
    "breaks": ["x", "3.x"],
    "watch": ["x", "q above"],
    "after": ["", "x"],
    "cell": ["", "1", "1,2,3,4,5"],
    "window": ["", "3-1,0-4", "1-2"],
    "of": ["", "x"],
    "context": ["0", "3", "2097152"],
}


def _offered(name: str, options: list[str]) -> set[str]:
    """All that the code offers there, so that one that the table forgot is seen."""
    from llama_core.checkpoints.random import SCHEMES
    from llama_core.config import COMPUTE_DTYPES, ITEM_BYTES, PRESETS

    return set({"dtype": COMPUTE_DTYPES, "preset": PRESETS, "scheme": SCHEMES, "stored": ITEM_BYTES}.get(name, options))


def test_a_long_prompt_stays_out_of_the_url_as_the_table_says():
    assert "1,500 characters" in "\n".join(between("url"))
    here = Session(values={"model": "random"})
    assert here.query(prompt="a" * 1500)["prompt"]
    assert "prompt" not in here.query(prompt="a" * 1501)


def test_presets_that_the_text_names_are_all_there_are():
    from llama_core.config import PRESETS

    (named,) = re.findall(r"preset \(([^)]+)\)", README)
    assert set(re.findall(r"`([^`]+)`", named)) == set(PRESETS)


def test_the_bound_in_the_text_is_the_one_that_is_tested():
    parity = ast.parse((ROOT / "tests" / "test_parity.py").read_text(encoding="utf-8"))
    (bound,) = (n.value.value for n in parity.body if isinstance(n, ast.Assign) and n.targets[0].id == "BOUND")
    assert f"differ by less than {bound:g}".replace("e-05", "e-5") in README
