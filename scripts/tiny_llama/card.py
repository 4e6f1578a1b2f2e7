"""Sample prompts and the card of the model in the box, both written from measurements.

No layer, head or position is typed here: a sample names a mechanism, and the head that does it best is found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlencode

from safetensors import safe_open

from llama_core import Trace, load, run
from llama_core.model import Llama

from .corpus import LARGEST_TERM, PAIRS
from .measure import PERIOD, ROWS, Measures, best_head, first_weight, measure, next_text, previous_weight
from .train import HINTED, STAGES

NAME = "tiny-llama"


@dataclass(frozen=True)
class Cell:
    """One cell of one head's map: the weight that the query `token` puts on `key`."""

    layer: int
    head: int
    token: int
    key: int


@dataclass(frozen=True)
class Sample:
    """A prompt to open, the cell to look at in it, and the sentence that says why."""

    title: str
    prompt: str
    look: str
    at: str
    head: int
    token: int
    key: int
    weight: float

    def link(self) -> str:
        """Where the running app opens it."""
        asked = {"model": NAME, "prompt": self.prompt, "at": self.at, "head": self.head, "token": self.token}
        return f"/Step_by_step?{urlencode(asked)}"


# --- which head does it ----------------------------------------------------------------------


def strongest(trace: Trace, token: int, keys: Iterable[int]) -> Cell:
    """The head, of all layers, that puts the most weight on one of `keys` when it stands at `token`."""
    cells = [
        (trace[f"{layer}.weights"][0, head, token, key], Cell(layer, head, token, key))
        for layer in range(trace.config.num_hidden_layers)
        for head in range(trace.config.num_attention_heads)
        for key in keys
    ]
    return max(cells, key=lambda cell: cell[0])[1]


def where_the_answer_stands(trace: Trace) -> Cell:
    """The last token looks at an earlier place of the token that is most probable next."""
    answer = trace.next_tokens(top=1)[0][0]
    return strongest(trace, len(trace.ids) - 1, [i for i, id in enumerate(trace.ids) if id == answer])


def after_the_last_time(trace: Trace) -> Cell:
    """The last token looks at what followed it the time before."""
    *before, last = trace.ids
    return strongest(trace, len(before), [i + 1 for i, id in enumerate(before) if id == last])


def the_one_before(trace: Trace) -> Cell:
    """The last token looks at the one before it, as all others do in the same head."""
    best = best_head([trace], previous_weight)
    return Cell(best.layer, best.head, len(trace.ids) - 1, len(trace.ids) - 2)


def the_first(trace: Trace) -> Cell:
    """The last token looks at position 0, as most others do in the same head."""
    best = best_head([trace], first_weight)
    return Cell(best.layer, best.head, len(trace.ids) - 1, 0)


def what_was_opened(trace: Trace) -> Cell:
    """The last token looks at the bracket that has to be closed next."""
    due: list[int] = []
    for place, token in enumerate(trace.tokens):
        if token.text in PAIRS:
            due.append(place)
        elif token.text in PAIRS.values():
            due.pop()
    return strongest(trace, len(trace.ids) - 1, due[-1:])


def a_number(trace: Trace) -> Cell:
    """The last token, "=", looks at one of the two numbers."""
    numbers = [i for i, token in enumerate(trace.tokens) if token.text.strip("·").isdigit()]
    return strongest(trace, len(trace.ids) - 1, numbers)


# --- the samples -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Mechanism:
    """A prompt, how its cell is found, and the sentence to fill in: {head}, {token}, {key}, {next}."""

    title: str
    prompt: str
    find: Callable[[Trace], Cell]
    look: str


MECHANISMS = (
    # Mia and Sam never met in training.
    Mechanism(
        "A name comes back",
        "Mia had a red ball. She went to the park and met Sam. Mia gave the ball to Sam. Sam said thank you to",
        where_the_answer_stands,
        "{head}: the last token, “{token}”, looks back at “{key}”, the name that comes back as the next token.",
    ),
    Mechanism(
        "The token before",
        "There was a boy called Ben. Ben had a green kite and a friend, Rosa.",
        the_one_before,
        "{head}: each token looks back at the one before it, so the map is strong just below its diagonal.",
    ),
    Mechanism(
        "The second time",
        "seven lamp frog sugar north drum seven lamp frog sugar north",
        after_the_last_time,
        "{head}: each word of the second round looks at what followed it in the first, here “{token}” at “{key}”.",
    ),
    Mechanism(
        "Close what was opened",
        "([{}()]{[()]",
        what_was_opened,
        "{head}: the last token looks back at “{key}”, which is open still, and “{next}” comes next.",
    ),
    Mechanism(
        "Who gave what to whom",
        "One day Sam and Mia went to the river. Mia had a big blue kite. Mia gave the kite to Sam. "
        "Who gave the kite to Sam?",
        where_the_answer_stands,
        "{head}: the question mark looks back at “{key}”, the giver, and not at Sam, who was given something.",
    ),
    Mechanism("A sum", "7 + 5 =", a_number, "{head}: “=” looks back at “{key}”; “{next}” comes next."),
    Mechanism(
        "A place to rest",
        "One day Sam and Mia went to the river.",
        the_first,
        "{head}: most tokens put their weight on the very first one, where a head rests that finds nothing to do.",
    ),
)


def make_samples(model: Llama) -> list[Sample]:
    """Each mechanism with the cell that shows it best."""
    return [_sample(model, each) for each in MECHANISMS]


def _sample(model: Llama, mechanism: Mechanism) -> Sample:
    trace = run(model, mechanism.prompt)
    cell = mechanism.find(trace)
    token, key = (trace.tokens[i].text.strip("·") for i in (cell.token, cell.key))
    look = mechanism.look.format(
        head=f"Layer {cell.layer}, head {cell.head}", token=token, key=key, next=next_text(model, trace).strip()
    )
    weight = float(trace[f"{cell.layer}.weights"][0, cell.head, cell.token, cell.key])
    return Sample(
        mechanism.title,
        mechanism.prompt,
        look,
        f"{cell.layer}.weights",
        cell.head,
        cell.token,
        cell.key,
        round(weight, 3),
    )


# --- the card --------------------------------------------------------------------------------


def write_card(folder: Path) -> None:
    """Measure the model in `folder`, and write samples.json and README.md beside it."""
    model = load(folder)
    samples, found = make_samples(model), measure(model)
    records = json.dumps([asdict(sample) for sample in samples], indent=2, ensure_ascii=False)
    (folder / "samples.json").write_text(records + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(folder, model, samples, found), encoding="utf-8")


def card(folder: Path, model: Llama, samples: list[Sample], found: Measures) -> str:
    """README.md: what the model is, what it has learnt with figures, what it cannot do, how it is made again."""
    with safe_open(folder / "model.safetensors", framework="np") as file:
        made = file.metadata()
    config = model.config
    files = ("config.json", "model.safetensors", "tokenizer.json")
    size = sum((folder / name).stat().st_size for name in files)
    return CARD.format(
        parameters=f"{config.parameter_count():,}",
        megabytes=f"{size / 1e6:.1f}",
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv=config.num_key_value_heads,
        hidden=config.hidden_size,
        mlp=config.intermediate_size,
        vocab=config.vocab_size,
        context=config.max_position_embeddings,
        theta=f"{config.rope_theta:g}",
        steps=f"{int(made['steps']):,}",
        tokens=f"{int(made['tokens']) / 1e6:.1f}",
        minutes=f"{float(made['seconds']) / 60:.0f}",
        samples="\n".join(
            f"- [{each.title}]({each.link()}). {each.look} Weight {each.weight:.2f}." for each in samples
        ),
        figures="\n".join(f"| {what} | {value} |" for what, value in figures(found).items()),
        largest=LARGEST_TERM,
        kept=f"{found.sums_kept_back:.0%}",
        hinted=sum(stage.steps for stage in STAGES if stage.hint),
        before=HINTED[0],
        after=HINTED[1],
        rows=ROWS,
        period=PERIOD,
    )


def figures(found: Measures) -> dict[str, str]:
    """What the card's table says, in its words."""
    asked = {
        "thanks": "the name after “said thank you to”",
        "who gave": "the name after “Who gave … ?”",
        "who has": "the name after “Who has … ?”",
        "what": "the thing after “What did … give to … ? The”",
        "where": "the place after “Where did … meet … ? At the”",
    }
    heads = {"induction": found.induction, "previous token": found.previous, "first token": found.first}
    return {
        **{
            f"{name} head: layer {at.layer}, head {at.head}; mean weight": f"{at.weight:.2f}"
            for name, at in heads.items()
        },
        "loss on the first half of a repeated random sequence": f"{found.loss_first_half:.2f}",
        "loss on the second half": f"{found.loss_second_half:.2f}",
        "loss on stories of two names that never met in training": f"{found.story_loss:.2f}",
        "loss on other new stories": f"{found.story_loss_known_pairs:.2f}",
        **{f"{words}, names that never met": f"{found.answers[kind]:.0%}" for kind, words in asked.items()},
        "the right bracket of the three, where one closes": f"{found.brackets:.0%}",
        "sums that were trained on": f"{found.sums:.0%}",
        "sums that were kept back": f"{found.sums_kept_back:.0%}",
    }


CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# tiny-llama

A true Llama of {parameters} parameters, small enough for a git repository, trained so that its attention maps mean
something. It is no language model: it knows four games and about three hundred words.

{layers} layers of width {hidden}, {heads} query heads that share {kv} key/value heads, SwiGLU of width {mlp}, RMSNorm,
RoPE with base {theta}, a tied head, {vocab} tokens, {context} positions. Float32, {megabytes} MB, in Hugging Face
format: `transformers` reads it as `LlamaForCausalLM`. The tokenizer is byte-level BPE, so any text can be written; it
puts `<s>` first.

## Where to look

Links are relative to the running app. Layers, heads and positions count from 0; they were found by measuring.

{samples}

## What it has learnt

Measured on recorded runs of texts from seeds that training did not use. Losses are in nats a token. The weights of the
three heads are means over {rows} rows of {period} random tokens said twice: on the token after the previous occurrence,
on the token before, and on position 0.

| measure | figure |
| --- | --- |
{figures}

## What it cannot do

- It has read nothing but its four games. On any other text its next token is noise, though its heads still look for
  what comes back.
- Of the sums that were kept back it knows {kept}: it has learnt something of adding, not all of it. Numbers above
  {largest} it knows as answers only.
- A story is made of a few templates. Another order of events, a fourth person or a "not" misleads it.
- No row of its training was longer than {context} tokens, and most were half as long.

## Data and training

All text is made from a seed by `scripts/tiny_llama/corpus.py`: random tokens and words that repeat, stories, sums,
brackets. There is no outside data, and nothing is downloaded. The decoder of this repository was trained with Muon (the
embedding and the norms with AdamW) for {steps} steps on {tokens} million tokens, which took {minutes} minutes on two
cores. This makes it again, measures it and writes this card:

    make train

Two heads were shown where to look. Left to itself, a model of this size on these texts had formed no induction head
after 8 million tokens; so for the first {hinted} steps the loss had a second part, how little of its weight head 0 of
layer {before} put on the token before, and head 0 of layer {after} on what followed the same token the last time. After
that only the prediction of the next token was trained, and both heads stayed because it needs them. What all other
heads do, they found alone.

Licence: Apache-2.0, as the repository.
"""
