"""`make bench` works: every benchmark that needs no browser in its shortest form, and what becomes of its tables."""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import report

ROOT = Path(__file__).parents[1]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    here = {**os.environ, **environment}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=here, capture_output=True, text=True)


# --- each runs ---


@pytest.fixture
def quick(monkeypatch, capsys):
    """quick(name): what a benchmark prints in its shortest form, here, where torch is loaded already."""

    def run_it(name: str) -> bench.Found:
        monkeypatch.setattr(sys, "argv", [name, *bench.BENCHMARKS[name].quick])
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
        return bench.parted(capsys.readouterr().out)

    yield run_it
    gc.unfreeze()


# `peers` is `capture` again, with pip before it; what `loading` measures, its own processes load.
@pytest.mark.parametrize(("name", "claims"), [("capture", 3), ("long", 3), ("grid", 2), ("gpu_check", 16)])
def test_a_benchmark_says_what_is_claimed_and_what_it_found(quick, name, claims):
    found = quick(name).targets
    assert len(found) == claims
    for what, measured, wanted, met in found:
        assert what
        assert any(sign.isdigit() for sign in measured + wanted) or measured in ("yes", "cpu")
        assert met in ("yes", "**no**")


def test_every_script_with_a_main_is_run_by_the_runner():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "argparse" in path.read_text("utf-8")}
    assert scripts - {"__main__", "rerun"} == set(bench.BENCHMARKS)


# --- the tables ---


ROWS = [
    report.at_most("peak at T = 64", 12.34, 20, "MiB"),
    report.at_most("a | b", 3.0, 2.0),
    report.Target("three", "-", "5", None),
]


def test_a_targets_verdict_is_in_its_row():
    table = report.targets(ROWS)
    assert "| peak at T = 64 | 12.3 MiB | 20 MiB | yes |" in table
    assert "| a / b | 3 | 2 | **no** |" in table
    assert "| three | - | 5 | not measured |" in table


def test_targets_are_gathered_and_everything_else_stays_with_its_benchmark():
    other = report.table(["T", "ms"], [[64, 5]])
    grid, long = bench.parted(f"{report.targets(ROWS)}\n{other}"), bench.parted(f"{other}\nA sentence.\n")
    assert [row[0] for row in grid.targets] == ["peak at T = 64", "a / b", "three"]
    assert (grid.rest, long.targets) == (other.strip(), [])
    text = bench.written({"grid": grid, "long": long}, "a machine")
    assert text.count(" | ".join(report.HEADER)) == 1
    assert text.count("| grid | ") == 3
    assert bench.read(text) == ({"grid": grid, "long": long}, "a machine")


def test_a_benchmark_that_ends_badly_is_a_target_that_is_not_met(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "HERE", tmp_path)
    (tmp_path / "grid.py").write_text("print('| a | b |')\nraise SystemExit(3)", encoding="utf-8")
    assert bench.measure("grid").targets == [("ends without complaint", "exit status 3", "0", "**no**")]


@pytest.fixture
def readme(tmp_path, monkeypatch) -> Path:
    """A README with the tables of two benchmarks, of this machine."""
    path = tmp_path / "README.md"
    found = {name: bench.Found([(name, "1", "2", "yes")], f"{name} as before") for name in ("capture", "grid")}
    tables = bench.written(found, report.machine())
    path.write_text(f"# Head\n\n{bench.BEGIN}\n{tables}\n{bench.END}\n\nFoot.\n", encoding="utf-8")
    monkeypatch.setattr(bench, "README", path)
    monkeypatch.setattr(bench, "measure", lambda name, more=(): bench.Found([(name, "7", "2", "**no**")], "new"))
    return path


def test_measuring_one_leaves_the_tables_of_the_others(readme, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "grid"])
    bench.main()
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("# Head\n")
    assert text.endswith("Foot.\n")
    found, _ = bench.read(bench.between(text)[1])
    assert found["capture"] == bench.Found([("capture", "1", "2", "yes")], "capture as before")
    assert found["grid"] == bench.Found([("grid", "7", "2", "**no**")], "new")


def test_tables_of_two_machines_are_not_mixed(readme, monkeypatch, capsys):
    before = readme.read_text(encoding="utf-8")
    monkeypatch.setattr(bench, "machine", lambda: "another machine")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "grid"])
    with pytest.raises(SystemExit, match="another machine"):
        bench.main()
    assert readme.read_text(encoding="utf-8") == before


def test_the_short_form_writes_nothing(readme, monkeypatch, capsys):
    before = readme.read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--only", "grid"])
    bench.main()
    assert "| grid | 7 | 2 | **no** |".replace("| grid |", "| grid | grid |") in capsys.readouterr().out
    assert readme.read_text(encoding="utf-8") == before


# --- the core alone ---


ALONE = """
import sys
for name in ("gguf", "huggingface_hub", "numba", "pandas", "plotly", "streamlit", "tokenizers", "transformers"):
    sys.modules[name] = None  # an import of it fails
from llama_core import load, run
trace = run(load("nano"), [1, 2, 3])
print(trace.stat("0.weights").masked, trace["logits"].shape, trace.head("1.weights", 0).shape)
"""


def test_the_core_runs_with_nothing_but_torch_numpy_and_safetensors():
    done = run("-c", ALONE)
    assert done.stderr == ""
    masked, *shapes = done.stdout.split(" ", 1)
    assert int(masked) == 4 * 3
    assert shapes == ["(1, 3, 64) (3, 3)\n"]


def test_without_a_gpu_nothing_is_said_to_be_checked():
    done = run("benchmarks/gpu_check.py", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Nothing was checked: PyTorch sees no CUDA device on this machine.\n"
