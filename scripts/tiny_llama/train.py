"""Trains the model in the box from nothing, on two cores in less than half an hour.

The decoder is the one that the app shows, run forward without a recorder; torch makes the gradients.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from llama_core import LlamaConfig, load
from llama_core.model import Llama

from .corpus import rows, train_tokenizer

SEED = 0
PEAK, WARM_UP, DECAY = 3e-3, 100, 0.05
EMBEDDING_PACE = 0.1  # of the rate: what reads and writes tokens cannot form while the tokens themselves run about
STD = 0.08  # about 1 / sqrt(128): at Llama's usual 0.02 a model as narrow as this one learns to look back much later


@dataclass(frozen=True)
class Stage:
    """A stretch of training: `steps` batches of `count` rows of `length` tokens, shared out among the kinds of text."""

    steps: int
    length: int
    count: int
    shares: Mapping[str, float]


# Looking back forms late and all at once, and first where it is the one thing that helps: so repeats begin alone.
MIXED = {"repeats": 0.44, "stories": 0.34, "sums": 0.11, "brackets": 0.11}
STAGES = (
    Stage(2500, 64, 16, {"repeats": 1.0}),
    Stage(3500, 128, 16, MIXED),
    Stage(600, 256, 8, MIXED),
)


def tiny_config(tokenizer: Tokenizer) -> LlamaConfig:
    """Eight query heads share two key/value heads in each of four layers.

    A head is 32 wide, twice 128 / 8: one that copies has to tell 1024 tokens apart by its value vector alone.
    """
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        rope_theta=1000.0,  # in 256 positions, more pairs that turn fast enough to tell neighbours apart
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def first_weights(config: LlamaConfig) -> Llama:
    """Random weights whose embeddings share one direction.

    Llama has no biases, so a head that looks by position alone, such as one that looks back by one, needs
    something that is the same in every token. To grow it takes a long time; to begin with it costs nothing.
    """
    model = load(config, seed=SEED, scheme="xavier", std=STD).requires_grad_(True)
    shared = torch.randn(config.hidden_size, generator=torch.Generator().manual_seed(SEED + 1))
    with torch.no_grad():
        model.model.embed_tokens.weight += STD * shared
    return model


def train(out: Path, share: float = 1.0) -> None:
    """Train, and write the Hugging Face folder `out`; it is written every few hundred steps too.

    share: of all steps, for a trial; the model needs them all.
    """
    started = time.perf_counter()
    stages = [replace(stage, steps=round(stage.steps * share)) for stage in STAGES]
    total = sum(stage.steps for stage in stages)
    tokenizer = train_tokenizer(SEED)
    model = first_weights(tiny_config(tokenizer))
    optimizer = _optimizer(model)
    losses: list[float] = []
    tokens = 0
    for step, batch in enumerate(_batches(tokenizer, stages), start=1):
        for group in optimizer.param_groups:
            group["lr"] = group["pace"] * _rate(step, total)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tokens += batch[:, 1:].numel()
        if step % 20 == 0 or step == total:
            _show(step, total, sum(losses[-20:]) / 20, time.perf_counter() - started)
        if step % 250 == 0 or step == total:
            made = {"steps": step, "tokens": tokens, "seconds": round(time.perf_counter() - started)}
            save(model, tokenizer, out, made)


def loss_of(model: Llama, batch: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of each token of the rows [B T+1] after those before it."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def save(model: Llama, tokenizer: Tokenizer, out: Path, made: Mapping[str, int]) -> None:
    """config.json, model.safetensors (float32) and tokenizer.json, as transformers names and reads them.

    made: how the weights were made, kept in the header of their file, where the card finds it.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: model.state_dict()[name].contiguous() for name in model.config.parameter_shapes()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"} | {key: str(n) for key, n in made.items()})
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "config.json").write_text(json.dumps(_config_json(model.config), indent=2) + "\n", encoding="utf-8")


def _config_json(config: LlamaConfig) -> dict:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act")
    names += ("tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        **{name: getattr(config, name) for name in names},
    }


def _optimizer(model: Llama) -> torch.optim.AdamW:
    embedding = model.model.embed_tokens.weight
    others = [parameter for parameter in model.parameters() if parameter is not embedding]
    groups = [
        {"params": [embedding], "pace": EMBEDDING_PACE},
        {"params": [p for p in others if p.ndim == 2], "pace": 1.0},
        {"params": [p for p in others if p.ndim == 1], "pace": 1.0, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.98), weight_decay=DECAY)


def _rate(step: int, steps: int) -> float:
    """Up in a straight line, then down along half a cosine to a twentieth."""
    if step < WARM_UP:
        return PEAK * step / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return PEAK * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)


def _batches(tokenizer: Tokenizer, stages: Sequence[Stage]) -> Iterator[Tensor]:
    for seed, stage in enumerate(stages, start=SEED + 1):
        batches = rows(tokenizer, stage.shares, stage.length, stage.count, seed)
        yield from (torch.tensor(batch) for batch in islice(batches, stage.steps))


def _show(step: int, steps: int, loss: float, seconds: float) -> None:
    left = seconds / step * (steps - step)
    bar = "#" * (30 * step // steps)
    line = f"[{bar:<30}] step {step} of {steps}, loss {loss:.3f}, {seconds / 60:.1f} min, {left / 60:.1f} min left"
    print(f"\r{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)
