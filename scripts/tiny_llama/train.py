"""Trains the model in the box from nothing, on two cores in less than half an hour.

The decoder is the one that the app shows, run forward without a recorder; torch makes the gradients.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
STD = 0.08  # about 1 / sqrt(128): at Llama's usual 0.02 a model as narrow as this one learns to look back much later


@dataclass(frozen=True)
class Stage:
    """A stretch of training: `steps` batches of `count` rows of `length` tokens, shared out among the kinds of text.

    hint: how much the two heads of `HINTED` count that are shown where to look, beside the loss itself.
    """

    steps: int
    length: int
    count: int
    shares: Mapping[str, float]
    hint: float = 0.0


MIXED = {"repeats": 0.34, "stories": 0.40, "sums": 0.13, "brackets": 0.13}
STAGES = (
    Stage(400, 64, 32, {"repeats": 1.0}, hint=0.3),
    Stage(5200, 128, 16, MIXED),
    Stage(600, 256, 8, MIXED),
)

# Looking back forms late and all at once, and only where nothing easier helps: left alone, a model of this size was
# still without it after 8 million tokens. So in the first stage head 0 of one layer is shown the token before, and
# head 0 of the next one what followed the same token the last time. After that nothing holds them but their use.
HINTED = (1, 2)


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
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def first_weights(config: LlamaConfig) -> Llama:
    """Random weights, which are going to be trained."""
    return load(config, seed=SEED, scheme="xavier", std=STD).requires_grad_(True)


def train(out: Path, share: float = 1.0) -> None:
    """Train, and write the Hugging Face folder `out`; it is written every few hundred steps too.

    share: of all steps, for a trial; the model needs them all.
    """
    started = time.perf_counter()
    stages = [replace(stage, steps=round(stage.steps * share)) for stage in STAGES]
    total = sum(stage.steps for stage in stages)
    tokenizer = train_tokenizer(SEED)
    model = first_weights(tiny_config(tokenizer))
    optimizers = _optimizers(model)
    losses: list[float] = []
    tokens = 0
    for step, (stage, batch) in enumerate(_batches(tokenizer, stages), start=1):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = _rate(step, total)
        with hinted(model) as weights:
            loss = loss_of(model, batch)
        aim = loss + stage.hint * missed(weights, batch[:, :-1]) if stage.hint else loss
        model.zero_grad()
        aim.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
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


@contextmanager
def hinted(model: Llama) -> Iterator[list[Tensor]]:
    """Within it, a forward pass leaves the weights of head 0 of the HINTED layers in the list. Each [B T T]."""
    found: list[Tensor] = []
    taps = [model.model.layers[layer].self_attn.tap.weights for layer in HINTED]
    hooks = [tap.register_forward_hook(lambda _tap, _args, weights: found.append(weights[:, 0])) for tap in taps]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def missed(weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    """-log of the weight on the token before, and of that on what followed the same token before: mean, summed.

    weights: of two heads, [B T T] each. ids: [B T]. Only tokens that were there before count for the second.
    """
    before, after = weights
    same = (ids[:, :, None] == ids[:, None, :]).tril(-1)  # B T S
    followed = functional.pad(same[:, :, :-1], (1, 0))
    hit = (after * followed).sum(-1)[followed.any(-1)]
    return sum(-(share + 1e-6).log().mean() for share in (before.diagonal(-1, 1, 2)[:, 1:], hit))


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


def _optimizers(model: Llama) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms. One group each."""
    embedding = model.model.embed_tokens.weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [embedding, *(p for p in model.parameters() if p.ndim == 1)]
    muon = torch.optim.Muon(matrices, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    return muon, torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)


def _rate(step: int, steps: int) -> float:
    """Up in a straight line, then down along half a cosine to a twentieth."""
    if step < WARM_UP:
        return PEAK * step / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return PEAK * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)


def _batches(tokenizer: Tokenizer, stages: Sequence[Stage]) -> Iterator[tuple[Stage, Tensor]]:
    for seed, stage in enumerate(stages, start=SEED + 1):
        batches = rows(tokenizer, stage.shares, stage.length, stage.count, seed)
        yield from ((stage, torch.tensor(batch)) for batch in islice(batches, stage.steps))


def _show(step: int, steps: int, loss: float, seconds: float) -> None:
    left = seconds / step * (steps - step)
    bar = "#" * (30 * step // steps)
    line = f"[{bar:<30}] step {step} of {steps}, loss {loss:.3f}, {seconds / 60:.1f} min, {left / 60:.1f} min left"
    print(f"\r{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)
