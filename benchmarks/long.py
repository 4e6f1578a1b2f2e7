"""What long prompts cost by path and by what their trace holds: peak memory and time, as ratios to the plain forward.

    python benchmarks/long.py [--tokens 256 512 1024 2048] [--rounds 3] [--ways fused all]

SmolLM2's size with random weights. Each way runs in a process of its own, whose memory nothing else has used; the plain
forward of the same path, which no tap listens to, takes its turn in every round there. Memory is the highest that the
process reached, over what it had when the model was loaded; reading afterwards is every step of every layer, and then
every head's weights.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import Target, at_most, number, table, targets
from benchmarks.shapes import SMOLLM2_SIZE

WAYS = {
    "plain": "plain forward, fused",
    "fused": "fused, holds the stream",
    "stream": "explicit, holds the stream",
    "no maps": "explicit, holds all but maps",
    "all": "explicit, holds all",
}
"""Ways to run; of all but the first, what the trace holds."""
PEAK, PEAK_READING, HEAD = "run: peak MiB", "reading all: peak MiB", "first head / a layer's share"
FIRST = ("plain", "fused", "stream")
BOUND = 1024
"""MiB over the model at 2,048 tokens."""
CROOKED = 0.05
LARGEST = 6 << 30
"""Bytes of a trace above which a way is left out."""


def measure(way: str, T: int, rounds: int, size: dict) -> dict[str, float]:
    """One way of holding, in this process."""
    import torch

    from llama_core import LlamaConfig, load, run, steps
    from llama_core.rebuild import ALWAYS, held_bytes
    from llama_core.steps import At

    model = load(LlamaConfig(**size), seed=0)
    config, layers, every = (
        model.config,
        model.config.num_hidden_layers,
        frozenset(step for step in model.config.walk.steps if not step.derived),
    )
    kept = {
        "fused": ALWAYS | {steps.LOGITS},
        "stream": ALWAYS | {steps.LOGITS},
        "no maps": frozenset(step for step in every if not step.causal),
        "all": every,
    }.get(way, ALWAYS)
    hold, path = held_bytes(config, kept, T), "fused" if way == "fused" else "explicit"
    if way != "plain" and hold > LARGEST:
        return {}
    ids = torch.randint(0, config.vocab_size, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    run(model, ids[:8])  # what a process loads once: compiled loops, buffers of the libraries
    before = peak(reset=True)

    def plain() -> object:
        with torch.no_grad():
            return model(torch.tensor([ids]), fused=range(layers) if way in ("plain", "fused") else ())

    if way == "plain":
        return {"forward s": median_of(plain, rounds), PEAK: peak() - before}
    trace = run(model, ids, hold=hold, path=path)
    found = {"trace MiB": trace.nbytes / 2**20, PEAK: peak() - before}
    forward = median_of(plain, rounds)
    peak(reset=True)
    found["run / forward"] = median_of(lambda: run(model, ids, hold=hold, path=path), rounds) / forward
    share = forward / layers
    reads = {
        "half a layer again / a layer's share": lambda i: trace[At(i % layers, steps.GATE)],
        HEAD: lambda i: trace.head(At(i % layers, steps.WEIGHTS), 0),
        "next head / a layer's share": lambda i: trace.head(At(2 % layers, steps.WEIGHTS), i),
    }
    for name, read in reads.items():
        found[name] = median_of(fresh(trace, read), rounds) / share
    peak(reset=True)
    for at in trace.walk:
        trace[at]
    for i in range(layers):
        for head in range(config.num_attention_heads):
            trace.head(At(i, steps.WEIGHTS), head)
    return found | {PEAK_READING: peak() - before}


def fresh(trace, read: Callable[[int], object]) -> Callable[[], object]:
    """Read another layer, or head, each time: the last one is there already."""
    each = iter(range(1, trace.config.num_attention_heads))
    return lambda: read(next(each))


def median_of(work: Callable[[], object], rounds: int) -> float:
    """Seconds, the median over rounds after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def peak(reset: bool = False) -> float:
    """MiB of memory at the highest so far; from now on, after a reset. Linux."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    name = "VmRSS:" if reset else "VmHWM:"
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(name))


def judged(found: dict[tuple[str, int], dict[str, float]]) -> Iterator[Target]:
    """The claims about what was measured, by way and length."""
    lengths = [T for way, T in found if way == "fused"]
    if not lengths:
        return
    T = max(lengths)
    longest = found["fused", T]
    yield at_most(f"T = {T}, fused: peak of a run over the model", longest[PEAK], BOUND, "MiB")
    yield at_most(f"T = {T}: peak while every step and head is read", longest[PEAK_READING], BOUND, "MiB")
    yield at_most(f"T = {T}: one head that is not held / a layer's share", longest[HEAD], 0.5)
    if len(lengths) > 2:
        off = crooked(lengths, [found["fused", T][PEAK] for T in lengths])
        yield at_most(f"T = {min(lengths)} to {T}: memory off a straight line, share of its end", off, CROOKED)


def crooked(x: Sequence[float], y: Sequence[float]) -> float:
    """How far y lies from the straight line that fits it best, at the most, as a share of its last value."""
    slope, start = statistics.linear_regression(x, y)
    return max(abs(start + slope * a - b) for a, b in zip(x, y, strict=True)) / y[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=json.loads, default=SMOLLM2_SIZE, help="of the model, as in config.json")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=FIRST)
    parser.add_argument("--json", action="store_true", help="the first way at the first length, here, as JSON")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(measure(given.ways[0], given.tokens[0], given.rounds, given.size)))
        return
    found = {}
    for way in given.ways:
        for T in given.tokens:
            command = [sys.executable, __file__, "--json", "--ways", way, "--tokens", str(T)]
            command += ["--rounds", str(given.rounds), "--size", json.dumps(given.size)]
            found[way, T] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"{WAYS[way]}, T = {T} is done", file=sys.stderr)
    print(targets(judged(found)))
    for way in given.ways:
        names = list(dict.fromkeys(name for T in given.tokens for name in found[way, T]))
        rows = [[name, *(number(found[way, T].get(name, math.nan)) for T in given.tokens)] for name in names]
        print(table([WAYS[way], *(f"T = {T}" for T in given.tokens)], rows))


if __name__ == "__main__":
    main()
