"""What peers cost to see everything: their capturing pass by transformers' plain sdpa forward, SmolLM2's size.

    python benchmarks/peers.py [--tokens 32 256 1024] [--rounds 5] [--only nnsight]

Each peer is installed by pip into a throwaway environment on top of this one, and measured in a process of its own
against the plain forward there, in turn. What could not be installed or measured is said, with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import number, table
from benchmarks.shapes import SMOLLM2_SIZE

OURS = "Glass Llama, all held"
PEERS = {
    OURS: None,
    "transformers, hidden states and attentions": None,
    "transformer-lens": "transformer-lens",
    "nnsight": "nnsight",
    "torchlens": "torchlens",
}
"""Names of what is measured, and the package it needs besides ours."""
PATIENCE = 400
"""Seconds for one installation, and for one measurement."""


# --- installing ---


@contextmanager
def environment(package: str | None) -> Iterator[str]:
    """The Python of an environment that has this package beside all that is installed here; None: our own.

    PeerError when pip cannot install it.
    """
    if package is None:
        yield sys.executable
        return
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        ours = Path(folder, "lib", version, "site-packages", "ours.pth")
        ours.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        call([python, "-m", "pip", "install", "--quiet", "--no-input", package], f"{package} did not install")
        yield python


class PeerError(Exception):
    """A peer that could not be installed or measured. Its text is the reason."""


def call(command: list[str], what: str) -> str:
    """What a command prints; PeerError with its last line when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{what} within {PATIENCE} s") from error
    if done.returncode:
        raise PeerError(f"{what}: {(done.stderr.strip().splitlines() or ['no word'])[-1][:160]}")
    return done.stdout


# --- measuring, in the peer's own environment ---


def ratio(peer: str, T: int, rounds: int, size: dict) -> dict[str, float]:
    """The peer's pass by the plain forward in the same round, the median; and the plain forward's ms."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def model(attention: str) -> torch.nn.Module:
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**size, attn_implementation=attention)).eval()

    ids = torch.randint(0, size["vocab_size"], (1, T), generator=torch.Generator().manual_seed(0))
    plain = model("sdpa")
    work = CAPTURES[peer](model, ids)
    pairs = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            alone = seconds(lambda: plain(ids, use_cache=False).logits)
            pairs.append((seconds(work), alone))
    return {
        "ratio": statistics.median(peer / alone for peer, alone in pairs[1:]),
        "plain ms": 1000 * statistics.median(alone for _, alone in pairs[1:]),
    }


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    kept = work()
    taken = time.perf_counter() - started
    del kept  # freeing is not part of the pass
    return taken


def ours(model: Callable, ids) -> Callable[[], object]:
    from llama_core import run
    from llama_core.config import config_from_dict
    from llama_core.model import Llama

    twin = model("sdpa")
    own = Llama(config_from_dict(twin.config.to_dict()))
    own.load_state_dict(twin.state_dict())
    own.requires_grad_(False).eval()
    return lambda: run(own, ids[0].tolist(), hold=16 << 30)


def transformers_outputs(model: Callable, ids) -> Callable[[], object]:
    eager = model("eager")
    return lambda: eager(ids, use_cache=False, output_attentions=True, output_hidden_states=True)


def transformer_lens(model: Callable, ids) -> Callable[[], object]:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    eager = model("eager")
    bridge = build_bridge_from_module(eager, "LlamaForCausalLM", hf_config=eager.config)
    return lambda: bridge.run_with_cache(ids)


def nnsight(model: Callable, ids) -> Callable[[], object]:
    from nnsight import NNsight

    wrapped = NNsight(model("eager"))

    def work() -> object:
        kept = []
        with wrapped.trace(ids, use_cache=False):
            for layer in wrapped.model.layers:
                for module in (  # nnsight wants them in the order in which they run
                    layer.input_layernorm,
                    layer.self_attn.q_proj,
                    layer.self_attn.k_proj,
                    layer.self_attn.v_proj,
                    layer.self_attn,
                    layer.post_attention_layernorm,
                    layer.mlp.gate_proj,
                    layer.mlp.act_fn,
                    layer.mlp.up_proj,
                    layer.mlp,
                    layer,
                ):
                    kept.append(module.output.save())
        return kept

    return work


def torchlens(model: Callable, ids) -> Callable[[], object]:
    import torchlens

    capture = getattr(torchlens, "trace", None) or torchlens.log_forward_pass
    plain = model("sdpa")
    return lambda: capture(plain, ids)


CAPTURES = dict(zip(PEERS, (ours, transformers_outputs, transformer_lens, nnsight, torchlens), strict=True))


# --- the table ---


def measure(peer: str, tokens: list[int], rounds: int, size: dict) -> list[str]:
    """A cell for each length: a ratio, or why there is none."""
    cells: list[str] = []
    try:
        with environment(PEERS[peer]) as python:
            for T in tokens:
                told = ["--measure", peer, "--tokens", str(T), "--rounds", str(rounds), "--size", json.dumps(size)]
                try:
                    found = json.loads(call([python, __file__, *told], "refused").splitlines()[-1])
                    cells.append(f"{number(found['ratio'])} x of {number(found['plain ms'])} ms")
                except PeerError as error:
                    cells.append(str(error))
                print(f"{peer}, T = {T}: {cells[-1]}", file=sys.stderr)
    except PeerError as error:
        return [str(error)] * len(tokens)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER")
    parser.add_argument("--size", type=json.loads, default=SMOLLM2_SIZE, help="of the model, as in config.json")
    parser.add_argument("--measure", choices=PEERS, help="this one alone, here, as JSON")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(ratio(given.measure, given.tokens[0], given.rounds, given.size)))
        return
    rows = ([peer, *measure(peer, given.tokens, given.rounds, given.size)] for peer in given.only)
    print(table(["capturing pass / plain forward", *(f"T = {T}" for T in given.tokens)], rows))


if __name__ == "__main__":
    main()
