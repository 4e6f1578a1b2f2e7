"""What long prompts cost by what their trace holds: peak memory and time, as ratios to the plain forward.

    python benchmarks/long.py [--tokens 512 1024 2048] [--rounds 3]

SmolLM2's size with random weights. Each way of holding runs in a process of its own, whose memory nothing else has
used; the plain forward, which no tap listens to, takes its turn in every round there. Memory is the highest the process
reached, over what it had when the model was loaded; reading afterwards is every step of every layer, and then every
head's weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

WAYS = ("plain", "stream", "no maps", "all")
LARGEST = 6 << 30
"""Bytes of a trace above which a way is left out."""


def measure(way: str, T: int, rounds: int) -> dict[str, float]:
    """One way of holding, in this process."""
    import torch
    from capture import SMOLLM2_SIZE

    from llama_core import LlamaConfig, load, run, steps
    from llama_core.rebuild import ALWAYS, held_bytes
    from llama_core.steps import At

    model = load(LlamaConfig(**SMOLLM2_SIZE), seed=0)
    config, every = model.config, frozenset(step for step in model.config.walk.steps if not step.derived)
    kept = {
        "stream": ALWAYS | {steps.LOGITS},
        "no maps": frozenset(step for step in every if not step.causal),
        "all": every,
    }.get(way, ALWAYS)
    hold = held_bytes(config, kept, T)
    if way != "plain" and hold > LARGEST:
        return {}
    ids = torch.randint(0, config.vocab_size, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    before = peak(reset=True)

    def plain() -> object:
        with torch.no_grad():
            return model(torch.tensor([ids]))

    if way == "plain":
        return {"forward s": median_of(plain, rounds), "peak MiB": peak() - before}
    trace = run(model, ids, hold=hold)
    found = {"trace MiB": trace.nbytes / 2**20, "peak MiB": peak() - before}
    forward = median_of(plain, rounds)
    peak(reset=True)
    layers = range(config.num_hidden_layers)
    found["run / forward"] = median_of(lambda: run(model, ids, hold=hold), rounds) / forward
    share = forward / len(layers)
    found["layer again / layer"] = median_of(fresh(trace, lambda i: trace[At(i, steps.GATE)]), rounds) / share
    found["first head / layer"] = median_of(fresh(trace, lambda i: trace.head(At(i, steps.WEIGHTS), 0)), rounds) / share
    found["next head / layer"] = median_of(fresh(trace, lambda i: trace.head(At(2, steps.WEIGHTS), i)), rounds) / share
    peak(reset=True)
    for at in trace.walk:
        trace[at]
    for i in layers:
        for head in range(config.num_attention_heads):
            trace.head(At(i, steps.WEIGHTS), head)
    return found | {"peak reading MiB": peak() - before}


def fresh(trace, read: Callable[[int], object]) -> Callable[[], object]:
    """Read another layer, or head, each time: the last one is there already."""
    number = iter(range(1, trace.config.num_attention_heads))
    return lambda: read(next(number))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="one way alone, as JSON")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.way, arguments.tokens[0], arguments.rounds)))
        return
    for T in arguments.tokens:
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, "--tokens", str(T), "--rounds", str(arguments.rounds)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"T = {T}, holds {way}" if way != "plain" else f"T = {T}, plain forward", flush=True)
            for name, value in found.items() or [("larger than is measured", LARGEST / 2**20)]:
                print(f"  {name:28} {value:9.2f}", flush=True)


if __name__ == "__main__":
    main()
