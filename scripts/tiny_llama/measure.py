"""What the model in the box has learnt, measured on recorded runs of texts that it never saw.

Everything here reads traces, as the app does. One `measure(model)` takes about a minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from llama_core import Trace, run
from llama_core.lens import loss
from llama_core.model import Llama

from .corpus import LARGEST_TERM, PAIRS, brackets, repeated_ids, story, sum_kept_back

SEED = 10_000  # far from the seeds of training
PERIOD, ROWS = 50, 16
QUESTIONS = {
    "thanks": r"said thank you to(?= (\w+)\.)",
    "who gave": r"Who gave [\w ]+\?(?= (\w+)\.)",
    "who has": r"Who has [\w ]+\?(?= (\w+)\.)",
    "what": r"What did [\w ]+\? The(?= (\w+)\.)",
    "where": r"Where did [\w ]+\? At the(?= (\w+)\.)",
}
"""Places in a story where only one word can follow, as patterns; the group is that word."""


@dataclass(frozen=True)
class Head:
    """One attention head and its mean weight on the keys that were asked about."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True)
class Measures:
    """Figures of one model. Losses are in nats a token, accuracies are shares from 0 to 1."""

    induction: Head
    previous: Head
    first: Head
    loss_first_half: float
    loss_second_half: float
    story_loss: float
    story_loss_known_pairs: float
    answers: dict[str, float]
    brackets: float
    sums: float
    sums_kept_back: float


def measure(model: Llama) -> Measures:
    """All figures, over texts made from seeds that training did not use."""
    repeats = [run(model, ids) for ids in repeated_rows(model.config.vocab_size)]
    losses = np.stack([loss(trace).each for trace in repeats])
    return Measures(
        induction=best_head(repeats, induction_weight),
        previous=best_head(repeats, previous_weight),
        first=best_head(repeats, first_weight),
        loss_first_half=float(losses[:, :PERIOD].mean()),
        loss_second_half=float(losses[:, PERIOD:].mean()),
        story_loss=story_loss(model, held=True),
        story_loss_known_pairs=story_loss(model, held=False),
        answers={kind: share_right(model, questions(kind)) for kind in QUESTIONS},
        brackets=brackets_closed(model),
        sums=share_right(model, sum_questions(held=False)),
        sums_kept_back=share_right(model, sum_questions(held=True)),
    )


# --- heads, on repeated random tokens --------------------------------------------------------


def repeated_rows(vocab_size: int, count: int = ROWS) -> list[list[int]]:
    """BOS and PERIOD random ids, twice."""
    rng = Random(SEED)
    return [repeated_ids(rng, PERIOD, 2 * PERIOD, vocab_size) for _ in range(count)]


def induction_weight(weights: np.ndarray) -> np.ndarray:
    """Mean weight that the second block puts on the token after the previous occurrence. [Hq T S] -> [Hq]."""
    return np.diagonal(weights, 1 - PERIOD, 1, 2)[:, -PERIOD:].mean(-1)


def previous_weight(weights: np.ndarray) -> np.ndarray:
    """Mean weight on the token before; without position 1, whose token before is BOS. [Hq T S] -> [Hq]."""
    return np.diagonal(weights, -1, 1, 2)[:, 1:].mean(-1)


def first_weight(weights: np.ndarray) -> np.ndarray:
    """Mean weight on position 0, of all later positions. [Hq T S] -> [Hq]."""
    return weights[:, 1:, 0].mean(-1)


def best_head(traces: list[Trace], score: Callable[[np.ndarray], np.ndarray]) -> Head:
    """The head with the highest mean score over all traces."""
    layers = traces[0].config.num_hidden_layers
    scores = np.mean([[score(trace[f"{layer}.weights"][0]) for layer in range(layers)] for trace in traces], axis=0)
    layer, head = np.unravel_index(int(scores.argmax()), scores.shape)
    return Head(int(layer), int(head), float(scores[layer, head]))


# --- losses and answers ----------------------------------------------------------------------


def story_loss(model: Llama, held: bool, count: int = 100) -> float:
    """Mean loss a token over stories; held: of two names that never met in training."""
    rng = Random(SEED + 1)
    return float(np.concatenate([loss(run(model, story(rng, held))).each for _ in range(count)]).mean())


def questions(kind: str, count: int = 100) -> Iterator[tuple[str, str]]:
    """Stories of two names that never met in training, cut where one word must follow, and that word."""
    rng = Random(SEED + 2)
    while count:
        text = story(rng, held=True)
        if place := re.search(QUESTIONS[kind], text):
            count -= 1
            yield text[: place.end()], f" {place[1]}"


def sum_questions(held: bool) -> Iterator[tuple[str, str]]:
    """Every sum that was trained on, or every one that was kept back, up to "=", and its answer."""
    terms = range(LARGEST_TERM + 1)
    yield from ((f"{a} + {b} =", f" {a + b}") for a in terms for b in terms if sum_kept_back(a, b) == held)


def share_right(model: Llama, asked: Iterator[tuple[str, str]]) -> float:
    """How often the most probable next token is the answer."""
    right = [next_text(model, run(model, prompt)) == answer for prompt, answer in asked]
    return sum(right) / len(right)


def next_text(model: Llama, trace: Trace) -> str:
    """The most probable next token of a run, as text."""
    return model.tokenizer.decode([trace.next_tokens(top=1)[0][0]])


def brackets_closed(model: Llama, count: int = 100) -> float:
    """Where a bracket closes: how often the right one of the three is the most probable of the three."""
    rng = Random(SEED + 3)
    closers = [model.tokenizer.encode(sign)[-1] for sign in PAIRS.values()]
    right = []
    for _ in range(count):
        trace = run(model, brackets(rng))
        ids = np.array(trace.ids[1:])
        closing = np.isin(ids, closers)
        best = np.array(closers)[trace["logits"][0, :-1][:, closers].argmax(-1)]
        right += list(best[closing] == ids[closing])
    return float(np.mean(right))
