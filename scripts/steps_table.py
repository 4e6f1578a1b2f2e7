"""Writes the README's table of steps from the registry: prints it, or with `--write` puts it into README.md."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llama_core.steps import STEPS, Step  # noqa: E402

README = ROOT / "README.md"
BEGIN, END = "<!-- steps: written by scripts/steps_table.py -->", "<!-- /steps -->"


def main() -> None:
    """Print the table; with --write, bring README.md up to date."""
    if "--write" not in sys.argv[1:]:
        print(table())
        return
    before, _, after = parts(README.read_text(encoding="utf-8"))
    README.write_text(f"{before}{table()}{after}", encoding="utf-8")


def table() -> str:
    """The Markdown table, one row per step in execution order."""
    rows = [("step", "shape", "reads", "Hugging Face module", "TransformerLens alias"), ("---",) * 5]
    rows += [_row(step) for step in STEPS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def parts(readme: str) -> tuple[str, str, str]:
    """The README before the table, the table itself, and what follows it."""
    before, found, rest = readme.partition(BEGIN + "\n")
    table_, ended, after = rest.partition("\n" + END)
    if not found or not ended:
        raise SystemExit(f"README.md lacks the lines {BEGIN} and {END} around its table of steps.")
    return before + found, table_, ended + after


def _row(step: Step) -> tuple[str, ...]:
    inside = step.scope == "layer"
    module = f"`{step.module}`" if step.module else "the layer itself"
    reads = ", ".join(f"`{source.key}`" for source in step.reads) or "token ids"
    return (f"{'' if inside else '*model* '}`{step.key}`", f"`{step.shape}`", reads, module, f"`{step.alias}`")


if __name__ == "__main__":
    main()
