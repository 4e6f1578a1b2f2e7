"""Prompts to begin with: the model in the box brings its own, each with what it shows and where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from llama_core.checkpoints.roots import BOX
from pages.ui.echo import ASSETS

PROMPT = "The capital of France is"


@dataclass(frozen=True)
class Sample:
    """A prompt with one thing to see in it. at, head, token: where; look: what, in one sentence."""

    title: str
    prompt: str
    look: str
    at: str
    head: int
    token: int


@cache
def samples() -> tuple[Sample, ...]:
    """The box's sample prompts, as measured when its model was trained; the first is the opening picture."""
    records = json.loads((ASSETS / BOX / "samples.json").read_text(encoding="utf-8"))
    return tuple(Sample(**{name: record[name] for name in Sample.__dataclass_fields__}) for record in records)


def prompt_for(model: str) -> str:
    """What a model reads before a person has written anything."""
    return samples()[0].prompt if model == BOX else PROMPT
