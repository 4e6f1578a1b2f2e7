"""Everything that is claimed about speed and memory, measured by one command: `make bench`.

    python -m benchmarks [--only capture grid] [--quick]

Each benchmark runs in a process of its own. What it prints becomes the tables of benchmarks/README.md: the targets of
all together, then the rest one after another. --only measures some and leaves the tables of the others, where they are
of this machine. --quick runs small sizes, to see that all of it works, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import HEADER, machine, table
from benchmarks.shapes import SMALL_SIZE

HERE = Path(__file__).parent
SIZE = ("--size", json.dumps(SMALL_SIZE))


@dataclass(frozen=True)
class Benchmark:
    """One script. quick: what makes it short; screen: it needs a browser."""

    quick: Sequence[str] = ()
    screen: bool = False


BENCHMARKS = {
    "capture": Benchmark(("--tokens", "16", "--rounds", "1", *SIZE)),
    "long": Benchmark(("--tokens", "16", "--rounds", "1", "--ways", "fused", *SIZE)),
    "grid": Benchmark(("--tokens", "16", "--alone", *SIZE)),
    "peers": Benchmark(("--tokens", "16", "--rounds", "1", "--only", "Glass Llama, all held", *SIZE)),
    "loading": Benchmark(("--layers", "1", "--random")),
    "first": Benchmark(("--rounds", "1"), screen=True),
    "views": Benchmark(("--tokens", "16", "--changes", "1", "--page", "Step_by_step"), screen=True),
    "latency": Benchmark(("--tokens", "16", "--presses", "2"), screen=True),
    "soak": Benchmark(("--sessions", "2", "--minutes", "0.1"), screen=True),
    "gpu_check": Benchmark(("--try",)),
}
README = HERE / "README.md"
BEGIN, END = "<!-- bench: written by make bench -->", "<!-- /bench -->"
Cells = tuple[str, ...]


@dataclass
class Found:
    """What one benchmark printed. targets: rows of its table of targets; rest: the Markdown besides."""

    targets: list[Cells]
    rest: str


def measure(name: str, more: Sequence[str] = ()) -> Found:
    """Run one benchmark. One that ends badly says so in a row of its own."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, HERE / f"{name}.py", *more], stdout=subprocess.PIPE, text=True)
    print(f"{name}.py took {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = parted(done.stdout)
    if done.returncode:
        found.targets.append(("ends without complaint", f"exit status {done.returncode}", "0", "**no**"))
    return found


def parted(text: str) -> Found:
    """A benchmark's Markdown: the rows of its table of targets, and everything else."""
    found, rest, inside = [], [], False
    for line in text.splitlines():
        row = cells(line)
        inside = row == HEADER or (inside and bool(row))
        if inside and row != HEADER and set("".join(row)) != {"-"}:
            found.append(row)
        elif not inside:
            rest.append(line)
    return Found(found, "\n".join(rest).strip())


def cells(line: str) -> Cells:
    """The cells of a table's row; none of another line."""
    return tuple(cell.strip() for cell in line.strip("|").split("|")) if line.startswith("| ") else ()


def written(found: dict[str, Found], machine: str) -> str:
    """The part of the README between its markers."""
    rows = [(name, *row) for name in BENCHMARKS if name in found for row in found[name].targets]
    parts = [f"Measured on: {machine}.", table(("measured by", *HEADER), rows).strip()]
    parts += [f"### {name}\n\n{found[name].rest}" for name in BENCHMARKS if name in found and found[name].rest]
    return "\n\n".join(parts)


def read(text: str) -> tuple[dict[str, Found], str]:
    """What `written` wrote: what was found, and the machine."""
    named = re.search(r"^Measured on: (.*)\.$", text, re.MULTILINE)
    head, *parts = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)
    found = {name: Found([], rest.strip()) for name, rest in zip(parts[::2], parts[1::2], strict=True)}
    for name, *row in map(list, filter(None, map(cells, head.splitlines()))):
        if name in BENCHMARKS:
            found.setdefault(name, Found([], "")).targets.append(tuple(row))
    return found, named[1] if named else ""


def between(text: str) -> tuple[str, str, str]:
    """A README before, between and behind the markers."""
    before, _, rest = text.partition(BEGIN)
    inside, _, behind = rest.partition(END)
    return before, inside, behind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    given = parser.parse_args()
    found = {name: measure(name, BENCHMARKS[name].quick if given.quick else ()) for name in given.only}
    here = machine()
    print(written(found, here))
    if given.quick:
        return
    before, inside, behind = between(README.read_text(encoding="utf-8"))
    known, there = read(inside)
    if known.keys() - found.keys() and there != here:
        sys.exit(f"Nothing is written: the other tables are of another machine ({there}). Measure all: make bench")
    text = f"{before}{BEGIN}\n{written(known | found, here)}\n{END}{behind}"
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
