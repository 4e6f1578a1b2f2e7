"""Where a step is computed: the lines of our own code, read from the files themselves. No torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .steps import Step

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Excerpt:
    """Lines of one function. first: the number of the first line; lit: the lines that compute the step."""

    file: str
    name: str
    first: int
    lines: tuple[str, ...]
    lit: frozenset[int]


@cache
def excerpts(step: Step) -> tuple[Excerpt, ...]:
    """The function that holds the step's own tap, then what it calls, as the registry names it."""
    name, function, statement = _tapped(step)
    lit = frozenset(range(statement.lineno, statement.end_lineno + 1))
    return (_excerpt("model", name, function, lit), *(_named(code) for code in step.code))


def _tapped(step: Step) -> tuple[str, ast.stmt, ast.stmt]:
    for holder in _tree("model").body:
        for function in holder.body if isinstance(holder, ast.ClassDef) else ():
            if isinstance(function, ast.FunctionDef):
                for statement in function.body:
                    if any(_is_tap(node, step.key) for node in ast.walk(statement)):
                        return f"{holder.name}.{function.name}", function, _innermost(statement, step.key)
    raise LookupError(f"model.py has no tap.{step.key}(...)")


def _innermost(statement: ast.stmt, key: str) -> ast.stmt:
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt) and any(_is_tap(node, key) for node in ast.walk(child)):
            return _innermost(child, key)
    return statement


def _is_tap(node: ast.AST, key: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (f"tap.{key}", f"self.tap.{key}")


def _named(code: str) -> Excerpt:
    """An excerpt by name: "model.RMSNorm.forward", "rope.rotate", "model.ACTIVATIONS"."""
    module, *path = code.split(".")
    node: ast.AST = _tree(module)
    for part in path:
        node = next(child for child in node.body if part in _names(child))
    return _excerpt(module, ".".join(path), node, frozenset())


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


def _excerpt(module: str, name: str, node: ast.stmt, lit: frozenset[int]) -> Excerpt:
    text = _lines(module)[node.lineno - 1 : node.end_lineno]
    indent = min(len(line) - len(line.lstrip()) for line in text if line.strip())
    return Excerpt(f"llama_core/{module}.py", name, node.lineno, tuple(line[indent:] for line in text), lit)


@cache
def _lines(module: str) -> list[str]:
    return (HERE / f"{module}.py").read_text(encoding="utf-8").splitlines()


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse("\n".join(_lines(module)))
