"""Everything that is promised of a GPU, checked in one run of under three minutes.

    python benchmarks/gpu_check.py [--try]

Needs torch (2.11 to 2.13), numpy, safetensors and llama_core, nothing else. Without a CUDA device it says that it
checked nothing. --try goes through the same code on the CPU with a small model: it proves nothing about a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import MIB, Target, at_most, targets
from llama_core import STEPS, At, LlamaConfig, Trace, load, run
from llama_core.checkpoints import build
from llama_core.checkpoints.common import Checkpoint
from llama_core.model import Llama
from llama_core.sizes import SHAPES

SMALL = LlamaConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)
TRIAL = SMALL.with_(hidden_size=64, head_dim=None, intermediate_size=160, num_hidden_layers=2)
SECONDS = 180
BOUND = 1e-4
"""float32: how far a cell may be from the CPU's, as a share of the step's rms. TF32 is off, as PyTorch has it."""
BF16_BOUND = 2.0
"""bfloat16: how far the GPU may be from the CPU's float32, by how far the CPU's own bfloat16 is. Of each step."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@dataclass(frozen=True)
class Place:
    """Where the checks run, and on what: two shapes, and the lengths and rounds of what is timed."""

    device: str
    small: LlamaConfig
    large: LlamaConfig
    lengths: tuple[int, int]
    rounds: int

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def bytes(self) -> int:
        """Bytes allocated on the device now."""
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def peak(self, work: Callable[[], object]) -> tuple[object, int]:
        """What `work` gives, and the most bytes that it had allocated on the device besides those before."""
        if self.device != "cuda":
            return work(), 0
        torch.cuda.reset_peak_memory_stats()
        before, found = self.bytes(), work()
        self.wait()
        return found, torch.cuda.max_memory_allocated() - before


def prompt(T: int, config: LlamaConfig, seed: int = 0) -> list[int]:
    return torch.randint(0, config.vocab_size, (T,), generator=torch.Generator().manual_seed(seed)).tolist()


# --- the same numbers ---


def parity(place: Place) -> Iterator[Target]:
    """Every step of every layer against the CPU, and its statistics."""
    ids, scale = prompt(96, place.small), {"std": 0.06}
    exact = run(load(place.small, **scale), ids)
    for path in ("explicit", "fused"):
        there = run(load(place.small, **scale, device=place.device), ids, path=path)
        share = max(farthest(exact, there).values())
        yield at_most(f"float32, {path}: farthest cell from the CPU / rms of its step", share, BOUND)
        worst = max(map(difference, map(exact.stat, exact.walk.order), map(there.stat, exact.walk.order)))
        yield at_most(f"float32, {path}: farthest statistic / rms of its step", worst, BOUND)
    rough = farthest(exact, run(load(place.small, **scale, dtype="bfloat16"), ids))
    there = farthest(exact, run(load(place.small, **scale, dtype="bfloat16", device=place.device), ids))
    ratio = max(there[at] / rough[at] for at in rough if rough[at])
    yield at_most("bfloat16: distance from float32 / that of the CPU's bfloat16", ratio, BF16_BOUND)


def farthest(exact: Trace, other: Trace) -> dict[At, float]:
    """Of each address the largest difference of a cell that is not masked, as a share of the step's rms."""
    found = {}
    for at in exact.walk.order:
        a, b = exact[at], other[at]
        cells = np.isfinite(a)
        if not np.array_equal(cells, np.isfinite(b)):
            return {at: float("inf")}
        found[at] = float(np.abs(a[cells] - b[cells]).max()) / exact.stat(at).rms
    return found


def difference(a, b) -> float:
    """The largest difference of two rows of statistics, as a share of the rms; infinite where counts differ."""
    if (a.shape, a.count, a.masked, a.nan, a.inf) != (b.shape, b.count, b.masked, b.nan, b.inf):
        return float("inf")
    return max(abs(getattr(a, name) - getattr(b, name)) for name in ("mean", "std", "rms", "min", "max")) / a.rms


# --- no step waits ---


def waits(place: Place) -> Iterator[Target]:
    """How often a run waits for the device, with few layers and with many: steps must not wait."""
    counts = []
    for layers in (2, 12):
        model = load(place.small.with_(num_hidden_layers=layers), device=place.device)
        ids = prompt(64, place.small)
        run(model, ids)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if place.device == "cuda" else []
        with torch.profiler.profile(activities=kinds) as profile:
            trace = run(model, ids)
            place.wait()
        names = Counter(event.name for event in profile.events())
        back = sum(n for name, n in names.items() if "Memcpy DtoH" in name)
        counts.append((trace.computed, sum(names[name] for name in WAITS), back))
    (few, waited, fetched), (many, *later) = counts
    told = f"{waited} in {few} steps, {later[0]} in {many}"
    yield Target("times that a run waits for the device", told, "as often", waited == later[0])
    told = f"{fetched} in {few} steps, {later[1]} in {many}"
    yield Target("copies from the device (statistics are fetched at once)", told, "as many", fetched == later[1])


# --- a large model ---


def large_model(place: Place) -> Llama:
    """Random weights, drawn on the device: on the CPU eight billion would take longer than all checks."""
    generator = torch.Generator(place.device).manual_seed(0)

    def draw() -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in place.large.parameter_shapes().items():
            tensor = torch.empty(shape, dtype=torch.bfloat16, device=place.device)
            yield name, tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(0.0, 0.02, generator=generator)

    checkpoint = Checkpoint(place.large, draw(), None, "Random weights", "BF16", "random")
    return build(checkpoint, place.device, "bfloat16")


def capture(place: Place, model: Llama) -> Iterator[Target]:
    """What recording costs, and what memory it takes."""
    short, long = place.lengths
    for T, how, wanted in ((short, {"hold": 16 << 30}, 1.35), (long, {"path": "fused"}, 1.2)):
        ids = prompt(T, model.config)
        batch = torch.tensor([ids], device=place.device)
        layers = range(model.config.num_hidden_layers)

        def plain(batch: torch.Tensor = batch, fused=layers if "path" in how else ()) -> None:
            with torch.no_grad():
                model(batch, fused=fused)

        ratios = []
        for _ in range(place.rounds + 1):
            alone = seconds(plain, place)
            ratios.append(seconds(lambda ids=ids, how=how: run(model, ids, **how), place) / alone)
        what = "explicit, all held" if "hold" in how else "fused"
        yield at_most(f"T = {T}, {what}: recorded run / plain forward", statistics.median(ratios[1:]), wanted)
        print(f"plain forward of {T} tokens, {what}: {1000 * alone:.0f} ms", file=sys.stderr)
    before = place.bytes()
    _, alone = place.peak(plain)
    trace, most = place.peak(lambda: run(model, ids, path="fused"))
    told, wanted = f"{most / MIB:.0f} MiB", f"{(alone + trace.nbytes) / MIB + 256:.0f} MiB"
    within = most <= alone + trace.nbytes + 256 * MIB
    yield Target(f"T = {long}, fused: peak over the model", told, f"a plain pass, the trace, 256 MiB: {wanted}", within)
    del trace
    place.wait()
    yield at_most("bytes left on the device when the trace is gone", (place.bytes() - before) / MIB, 1.0, "MiB")


def seconds(work: Callable[[], object], place: Place) -> float:
    place.wait()
    started = time.perf_counter()
    kept = work()
    place.wait()
    taken = time.perf_counter() - started
    del kept  # freeing is not part of the pass
    return taken


# --- made again, and at once ---


def rebuild(place: Place, model: Llama) -> Iterator[Target]:
    """What is not held is made again on the device, bit for bit."""
    ids = prompt(64, model.config)
    held, light = run(model, ids, hold=16 << 30), run(model, ids, hold=0)
    layer = model.config.num_hidden_layers // 2
    addresses = [At(layer, step) for step in STEPS if step.scope == "layer" and model.config.walk.has(step)]
    same, all_of_them = sum(np.array_equal(held[at], light[at]) for at in addresses), len(addresses)
    yield Target("steps of a layer made again, equal bit for bit", str(same), str(all_of_them), same == all_of_them)
    again = run(model, ids, hold=0)
    head = all(np.array_equal(again.head(f"{layer}.weights", i), held[f"{layer}.weights"][0, i]) for i in (0, 3))
    yield Target("one head alone made again, equal bit for bit", "yes" if head else "no", "yes", head)
    where = {light.tensors.tensor(at).device.type for at in addresses}
    yield Target("where tensors are, held and made again", ", ".join(where), place.device, where == {place.device})


def threads(place: Place) -> Iterator[Target]:
    """Two sessions at once on one model: each gets the numbers that it gets alone."""
    model = load(place.small, device=place.device)
    prompts = [prompt(T, place.small, seed=T) for T in (37, 61)]
    alone = [run(model, ids) for ids in prompts]
    equal: list[bool] = []

    def work(ids: list[int], wanted: Trace) -> None:
        for _ in range(2 * place.rounds):
            found = run(model, ids)
            equal.extend(np.array_equal(found[at], wanted[at]) for at in ("0.weights", "1.mlp_out", "logits"))

    workers = [threading.Thread(target=work, args=pair) for pair in zip(prompts, alone, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wanted = 2 * 3 * 2 * place.rounds
    yield Target("two threads at once: tensors as when alone", str(sum(equal)), str(wanted), sum(equal) == wanted)


def checks(place: Place) -> Iterator[Target]:
    """All of them, the small model first."""
    yield from parity(place)
    yield from waits(place)
    yield from threads(place)
    model = large_model(place)
    yield from capture(place, model)
    yield from rebuild(place, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", dest="trial", action="store_true", help="on the CPU: proves nothing about a GPU")
    trial = parser.parse_args().trial
    if not trial and not torch.cuda.is_available():
        print("Nothing was checked: PyTorch sees no CUDA device on this machine.")
        return
    place = (
        Place("cpu", TRIAL, TRIAL, (64, 128), 1)
        if trial
        else Place("cuda", SMALL, SHAPES["Llama 3 8B"], (256, 2048), 5)
    )
    started, found = time.perf_counter(), []
    for target in checks(place):
        found.append(target)
        print(f"{time.perf_counter() - started:6.1f} s  {target.what}: {target.measured}", file=sys.stderr)
    found.append(at_most("all checks", time.perf_counter() - started, SECONDS, "s"))
    name = "the CPU, which proves nothing about a GPU" if trial else torch.cuda.get_device_name()
    print(f"On {name}, torch {torch.__version__}.\n", targets(found), sep="\n")
    if not trial and not all(target.met for target in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
