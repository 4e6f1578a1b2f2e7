"""What capture costs: our recorded run against transformers' plain forward, as ratios in one process.

    python benchmarks/capture.py [--tokens 32 256 1024 2048] [--rounds 9]

Each round times every contender once, in turn, so that a drifting machine moves all alike; a ratio is the median over
rounds of ours / the faster of transformers' two (sdpa, eager) in the same round. Short prompts are run explicitly,
with every tensor held; long ones on the fused path, in fewer rounds and against sdpa alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import Target, at_most, number, table, targets
from benchmarks.shapes import SMOLLM2_SIZE
from llama_core import LlamaConfig, load, run
from llama_core import tap as taps
from llama_core.model import Llama
from llama_core.survey import survey

LONG = 1024
"""Tokens from which a prompt counts as long."""


def transformers_twin(ours: Llama, size: dict, attention: str) -> torch.nn.Module:
    """transformers' model that shares our weights."""
    from transformers import LlamaConfig as HuggingFaceConfig
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        twin = LlamaForCausalLM(HuggingFaceConfig(**size, attn_implementation=attention))
    twin.load_state_dict(ours.state_dict(), strict=False, assign=True)
    twin.tie_weights()
    twin.model.rotary_emb = type(twin.model.rotary_emb)(twin.config)  # its buffer was left on meta
    return twin.eval()


@contextmanager
def no_taps(model: Llama):
    """The same model with each tap replaced by a bare identity function."""
    found = [m for m in model.modules() if isinstance(m, taps.Taps)]
    saved = [dict(m.__dict__) for m in found]
    for module in found:
        for key in module._modules:
            module.__dict__[key] = _identity
    try:
        yield
    finally:
        for module, old in zip(found, saved, strict=True):
            module.__dict__.update(old)


def _identity(x):
    return x


def once(work) -> float:
    started = time.perf_counter()
    kept = work()
    seconds = time.perf_counter() - started
    del kept  # freeing is not part of the pass
    return seconds


def measure(T: int, rounds: int, size: dict) -> tuple[list[Target], dict[str, float]]:
    """What is claimed at this length, and medians of everything in ms."""
    ours = load(LlamaConfig(**size), seed=0)
    ids = torch.randint(0, ours.config.vocab_size, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    batch, long = torch.tensor([ids]), T >= LONG
    twins = {name: transformers_twin(ours, size, name) for name in (("sdpa",) if long else ("sdpa", "eager"))}
    how = {"path": "fused"} if long else {"path": "explicit", "hold": 16 << 30}

    def bare():
        with no_taps(ours):
            return ours(batch)

    passes = {name: (lambda twin=twin: twin(batch, use_cache=False).logits) for name, twin in twins.items()}
    passes["run"] = lambda: run(ours, ids, **how)
    if long:
        times = in_turn(passes, max(1, rounds // 3))
        claims = [
            at_most(f"T = {T}, fused: recorded run / transformers' sdpa", ratio(times["run"], times["sdpa"]), 1.2)
        ]
        return claims, medians(times)
    trace = run(ours, ids, **how)
    times = in_turn(passes, rounds) | in_turn({"survey": lambda: survey(trace)}, rounds)
    times |= in_turn({"taps, nobody listening": lambda: ours(batch), "no taps": bare}, rounds)
    plain = [min(pair) for pair in zip(times["sdpa"], times["eager"], strict=True)]
    taps_alone = ratio(times["taps, nobody listening"], times["no taps"])
    return [
        at_most(f"T = {T}, all held: recorded run / plain transformers", ratio(times["run"], plain), 1.35),
        at_most(f"T = {T}: the survey / plain transformers", ratio(times["survey"], plain), 1.0),
        at_most(f"T = {T}: taps that nobody listens to / none", taps_alone, 1.03),
    ], medians(times)


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: 1000 * statistics.median(seen) for name, seen in times.items()}


def in_turn(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender in every round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for work in contenders.values():
            once(work)
        gc.collect()
        gc.freeze()  # as the app does after loading: transformers' many objects are not walked in every pass
        for _ in range(rounds):
            for name, work in contenders.items():
                times[name].append(once(work))
    return times


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of ours / theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=json.loads, default=SMOLLM2_SIZE, help="of the model, as in config.json")
    given = parser.parse_args()
    claims, found = [], {}
    for T in given.tokens:
        some, found[T] = measure(T, given.rounds, given.size)
        claims += some
        print(f"T = {T} is done", file=sys.stderr)
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    print(targets(claims))
    header = ["ms, medians", *(f"T = {T}" for T in found)]
    print(
        table(
            header,
            [[name, *(number(times[name]) if name in times else "" for times in found.values())] for name in names],
        )
    )


if __name__ == "__main__":
    main()
