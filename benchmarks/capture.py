"""What capture costs: our recorded run against transformers' plain forward, as ratios in one process.

    python benchmarks/capture.py [--tokens 32 256] [--rounds 9]

Each round times every contender once, in turn, so that a drifting machine moves all alike; a ratio is
the median over rounds of ours / the faster of transformers' two (sdpa, eager) in the same round.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from llama_core import LlamaConfig, load, run
from llama_core import tap as taps
from llama_core.model import Llama

SMOLLM2_SIZE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


def transformers_twin(ours: Llama, attention: str) -> torch.nn.Module:
    """transformers' model that shares our weights."""
    from transformers import LlamaConfig as HuggingFaceConfig
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        twin = LlamaForCausalLM(HuggingFaceConfig(**SMOLLM2_SIZE, attn_implementation=attention))
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


def measure(T: int, rounds: int) -> dict[str, float]:
    ours = load(LlamaConfig(**SMOLLM2_SIZE), seed=0)
    ids = torch.randint(0, ours.config.vocab_size, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = torch.tensor([ids])
    twins = {name: transformers_twin(ours, name) for name in ("sdpa", "eager")}

    def bare():
        with no_taps(ours):
            return ours(batch)

    recorded = {name: (lambda twin=twin: twin(batch, use_cache=False).logits) for name, twin in twins.items()}
    recorded["run"] = lambda: run(ours, ids)
    times = in_turn(recorded, rounds) | in_turn({"taps": lambda: ours(batch), "bare": bare}, rounds)
    plain = [min(pair) for pair in zip(times["sdpa"], times["eager"], strict=True)]
    return {
        **{f"{name} ms": 1000 * statistics.median(seen) for name, seen in times.items()},
        "capture / plain transformers": ratio(times["run"], plain),
        "taps / no taps": ratio(times["taps"], times["bare"]),
    }


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for T in arguments.tokens:
        print(f"T = {T}")
        for name, value in measure(T, arguments.rounds).items():
            print(f"  {name:32} {value:8.3f}")


if __name__ == "__main__":
    main()
