"""Which room may know which: read from the imports of every shipped file, so that no arrow turns round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = "llama_core"


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


ROOMS = {
    "core": files("llama_core/**/*.py"),
    "core without torch": [ROOT / CORE / f"{name}.py" for name in ("steps", "config", "trace", "errors", "tokenizer")],
    "figures": files("pages/figures/*.py"),
    "words": files("pages/words/*.py"),
    "ui": files("pages/ui/*.py"),
    "pages": files("app.py", "pages/*.py"),
}
SHIPPED = files("app.py", "llama_core/**/*.py", "pages/**/*.py", "scripts/*.py", "benchmarks/*.py")


def imports(tree: ast.Module, path: Path, *, top: bool = False) -> set[str]:
    """Absolute dotted names of all that is imported; `top`: only what an import of the module itself runs.

    What stands under `if TYPE_CHECKING:` is never run and does not count.
    """
    found: set[str] = set()
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in _running(tree, functions=not top):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            home = ".".join([*base, *([node.module] if node.module else [])])
            found |= {home} | {f"{home}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            found |= {value.value for value in node.args[:1] if isinstance(value, ast.Constant)}
    return found


def _running(node: ast.AST, functions: bool):
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            continue
        if not functions and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield from _running(child, functions)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), path.name)


def strays(room: str, *forbidden: str, top: bool = False) -> list[str]:
    """ "file imports name" for each import of a forbidden package or module, or of what lies inside it."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOMS[room]
        for name in sorted(imports(parsed(path), path, top=top))
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


# --- the rules ---


def test_the_core_knows_no_screen_and_no_other_decoder():
    assert strays("core", "streamlit", "plotly", "pages", "app", "transformers", "matplotlib") == []


def test_the_records_are_imported_without_torch():
    assert strays("core without torch", "torch", "safetensors.torch", "gguf", top=True) == []
    torch_rooms = [f"{CORE}.{name}" for name in ("model", "rope", "tap", "kv_cache", "runner", "stats", "checkpoints")]
    assert strays("core without torch", *torch_rooms, top=True) == []
    assert strays("core without torch", "torch") == []


def test_figures_know_arrays_and_labels_only():
    assert strays("figures", "torch", "streamlit", "transformers", "pages.ui") == []
    known = {CORE, f"{CORE}.steps", f"{CORE}.trace"}
    for path in ROOMS["figures"]:
        own = {name for name in imports(parsed(path), path) if name.split(".")[0] == CORE}
        assert {".".join(name.split(".")[:2]) for name in own} <= known, path


def test_words_know_nothing():
    assert strays("words", "torch", "streamlit", "plotly", "numpy", CORE, "pages.ui", "pages.figures") == []


def test_the_ui_computes_nothing():
    assert strays("ui", "plotly", "transformers") == []
    assert strays("ui", "torch", top=True) == []


def test_a_page_is_order_and_layout_only():
    assert strays("pages", "torch", "plotly", "numpy", "pandas", "math", "statistics", "scipy", "transformers") == []


def test_a_page_reads_no_session_state():
    touched = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*ROOMS["pages"], *ROOMS["figures"], *ROOMS["words"], *ROOMS["core"]]
        for node in ast.walk(parsed(path))
        if _name(node) == "session_state" or (isinstance(node, ast.alias) and node.name == "session_state")
    ]
    assert touched == []


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "yaml.load", "pandas.read_pickle", "pd.read_pickle"}


def unsafe(tree: ast.Module, path: Path) -> list[str]:
    """What in a file could run code that comes with data."""
    found = sorted(name for name in imports(tree, path) if name.split(".")[0] in UNSAFE_MODULES or name == "torch.load")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
            found.append(ast.unparse(node.func))
        if isinstance(node, ast.keyword):
            allowed = node.arg == "allow_pickle" and getattr(node.value, "value", True) is not False
            trusted = node.arg == "trust_remote_code" and getattr(node.value, "value", True) is not False
            found += [node.arg] if allowed or trusted else []
    return found


def test_nothing_that_is_shipped_opens_a_pickle():
    assert {
        str(path.relative_to(ROOT)): unsafe(parsed(path), path) for path in SHIPPED if unsafe(parsed(path), path)
    } == {}


def test_transformers_is_for_tests_and_benchmarks_only():
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert "transformers" not in requirements
    for room in ROOMS:
        assert strays(room, "transformers") == []


# --- the rules can fail ---


def test_the_rooms_are_there_to_be_read():
    for room in ("core", "core without torch", "figures"):
        assert ROOMS[room]
        assert all(path.is_file() for path in ROOMS[room])
    assert ROOT / "llama_core/checkpoints/folder.py" in ROOMS["core"]


@pytest.mark.parametrize(
    ("source", "name", "top"),
    [
        ("import torch", "torch", True),
        ("import torch.nn as nn", "torch.nn", True),
        ("from torch import Tensor", "torch.Tensor", True),
        ("from ..model import Llama", "llama_core.model", True),
        ("from .. import model", "llama_core.model", True),
        ("from . import folder", "llama_core.checkpoints.folder", True),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "torch", True),
        ("class A:\n    import torch", "torch", True),
        ("def f():\n    import torch", "torch", False),
        ("import_module('torch')", "torch", True),
    ],
)
def test_every_way_to_import_is_seen(source, name, top):
    path = ROOT / CORE / "checkpoints" / "x.py"
    assert name in imports(ast.parse(source), path)
    assert (name in imports(ast.parse(source), path, top=True)) == top


def test_imports_for_type_checkers_do_not_count():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    assert "torch" not in imports(ast.parse(source), ROOT / CORE / "x.py")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "load('x', allow_pickle=flag)",
        "eval('1')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
    ],
)
def test_every_way_to_open_a_pickle_is_seen(source):
    assert unsafe(ast.parse(source), ROOT / CORE / "x.py")


def test_refusing_a_pickle_is_allowed():
    assert unsafe(ast.parse("np.load('x', allow_pickle=False)\n'a pickle'"), ROOT / CORE / "x.py") == []
