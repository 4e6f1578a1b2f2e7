"""What the model in the box reads: four kinds of text, made here from a seed. No file and no download.

    repeats    random tokens, or random words, said again and again: only looking back helps
    stories    names, pronouns, things that change hands, a name that comes back
    sums       7 + 5 = 12.
    brackets   ([]{()}): what was opened last has to be closed first

Some pairs of names and some sums are never trained on. They show what was learnt and what was learnt by heart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<s>", "</s>"
VOCABULARY = 1024


def _words(text: str) -> list[str]:
    return text.split()


GIRLS = _words("Mia Anna Lily Sara Emma Rosa Zoe Ella Nina Ruth Kate Jane")
BOYS = _words("Tom Ben Max Leo Sam Finn Noah Paul Jack Omar Hugo Carl")
NAMES = GIRLS + BOYS
THINGS = _words(
    "ball book kite cake key cup hat lamp map pen drum ring box coat bell flag boat doll apple stone letter "
    "basket ladder bottle blanket button candle mirror pencil ticket"
)
PLACES = _words("park shop school garden river market kitchen station beach forest bridge library farm tower hill lake")
COLOURS = _words("red blue green yellow white black brown pink golden silver")
SIZES = _words("big small old new round heavy little shiny soft broken")
MOODS = _words("happy sad tired hungry glad angry proud quiet afraid surprised")
ANIMALS = _words("dog cat bird horse fish mouse duck rabbit fox sheep goat frog")
TIMES = ["One day", "In the morning", "In the evening", "After school", "On Monday", "On Sunday", "Last week"]
OTHERS = _words(
    "sun moon star rain snow wind fire water bread milk soup rice salt sugar tea door window wall roof floor table "
    "chair bed street road train bus car plane wheel paper wood glass iron cloth hand foot head face eye ear nose "
    "mouth arm leg heart king queen child woman man friend doctor teacher baker farmer sailor one two three four "
    "five six seven eight nine ten first last long short high low warm cold fast slow good bad open read write "
    "sing dance jump walk run sleep eat drink sit stand look listen speak begin end left right north south east west "
    "music song word line page story number letter capital city country world"
)
WORDS = [*THINGS, *PLACES, *COLOURS, *SIZES, *MOODS, *ANIMALS, *OTHERS]

LARGEST_TERM = 20
PAIRS = {"(": ")", "[": "]", "{": "}"}


# --- what is kept back -----------------------------------------------------------------------


def kept_back(a: str, b: str) -> bool:
    """Whether two names never meet in training: one pair in eight."""
    return (NAMES.index(a) + NAMES.index(b)) % 8 == 0


def sum_kept_back(a: int, b: int) -> bool:
    """Whether a sum is never trained on, in either order: one in fourteen."""
    return (a * b + a + b) % 9 == 4


# --- stories ---------------------------------------------------------------------------------


def cast(rng: Random, held: bool = False) -> tuple[str, str, str]:
    """Three names, of which no two were kept back; held: the first two were, and the third is any other."""
    while True:
        a, b, c = rng.sample(NAMES, 3)
        if held and kept_back(a, b):
            return a, b, c
        if not held and not (kept_back(a, b) or kept_back(a, c) or kept_back(b, c)):
            return a, b, c


def she(name: str) -> str:
    """The pronoun of a name."""
    return "she" if name in GIRLS else "he"


def story(rng: Random, held: bool = False) -> str:
    """A short story in which a thing changes hands; held: between two names that never met in training."""
    a, b, c = cast(rng, held)
    thing, other = rng.sample(THINGS, 2)
    place = rng.choice(PLACES)
    parts = [_opening(rng, a, b, thing, place)]
    parts += [_aside(rng, a, b, c, thing, other) for _ in range(rng.choice((0, 1, 1, 2)))]
    parts.append(_gift(rng, a, b, thing))
    parts.append(_thanks(rng, a, b, thing))
    holder = b
    if rng.random() < 0.3:
        parts.append(f"Then {b} gave the {thing} to {c}. {c} said thank you to {b}.")
        holder = c
    parts.append(_ending(rng, a, b, holder, thing, place))
    return " ".join(parts)


def _opening(rng: Random, a: str, b: str, thing: str, place: str) -> str:
    looks = f"{rng.choice(SIZES)} {rng.choice(COLOURS)}" if rng.random() < 0.4 else rng.choice(COLOURS)
    first, second = rng.sample((a, b), 2)
    return rng.choice(
        (
            f"{a} had a {looks} {thing}. {she(a).capitalize()} went to the {place} and met {b}.",
            f"{rng.choice(TIMES)} {a} met {b} at the {place}. {a} had a {looks} {thing}.",
            f"{rng.choice(TIMES)} {first} and {second} went to the {place}. {a} had a {looks} {thing}.",
            f"When {first} and {second} went to the {place}, {a} found a {looks} {thing}.",
            f"There was a {'girl' if a in GIRLS else 'boy'} called {a}. {a} had a {looks} {thing} and a friend, {b}.",
        )
    )


def _aside(rng: Random, a: str, b: str, c: str, thing: str, other: str) -> str:
    who = rng.choice((a, b))
    return rng.choice(
        (
            f"{who} was {rng.choice(MOODS)}, so {she(who)} sang a song.",
            f"{who} saw a {rng.choice(ANIMALS)} and {she(who)} was {rng.choice(MOODS)}.",
            f"{c} was there too. {c} had a {rng.choice(COLOURS)} {other}.",
            f"{a} liked the {thing}, but {b} liked it more.",
            f"They played with the {rng.choice(ANIMALS)}.",
            f"{c} gave the {other} to {who}. {who} thanked {c}.",
        )
    )


def _gift(rng: Random, a: str, b: str, thing: str) -> str:
    return rng.choice(
        (
            f"{a} gave the {thing} to {b}.",
            f"{a} gave the {thing} to {b}.",
            f"{a} gave {b} the {thing}.",
            f"Then {a} gave the {thing} to {b}.",
            f"{b} asked for the {thing}, and {a} gave it to {b}.",
        )
    )


def _thanks(rng: Random, a: str, b: str, thing: str) -> str:
    return rng.choice(
        (
            f"{b} said thank you to {a}.",
            f"{b} said thank you to {a}.",
            f"{b} was {rng.choice(MOODS)} and thanked {a}.",
            f"{b} took the {thing} and said thank you to {a}.",
            f"{she(b).capitalize()} said: thank you, {a}.",
        )
    )


def _ending(rng: Random, a: str, b: str, holder: str, thing: str, place: str) -> str:
    return rng.choice(
        (
            f"Now {holder} has the {thing}.",
            f"Who gave the {thing} to {b}? {a}.",
            f"Who has the {thing} now? {holder}.",
            f"What did {a} give to {b}? The {thing}.",
            f"Where did {a} meet {b}? At the {place}.",
            f"{a} and {b} went home from the {place}.",
            f"{holder} took the {thing} home.",
        )
    )


# --- sums and brackets -----------------------------------------------------------------------


def addition(rng: Random, held: bool = False) -> str:
    """One sum of two numbers from 0 to LARGEST_TERM, with its answer."""
    while True:
        a, b = rng.randint(0, LARGEST_TERM), rng.randint(0, LARGEST_TERM)
        if sum_kept_back(a, b) == held:
            return f"{a} + {b} = {a + b}."


def sums(rng: Random, held: bool = False) -> str:
    """Some sums in a line."""
    return " ".join(addition(rng, held) for _ in range(rng.randint(4, 10)))


def brackets(rng: Random, held: bool = False) -> str:
    """Brackets of three kinds that nest at most six deep and all close; in some of them stands a word."""
    text, due = "", []
    length, spoken = rng.randint(3, 16), rng.random() < 0.3
    opened = 0
    while due or opened < length:
        opens = opened < length and len(due) < 6 and (not due or rng.random() < 0.55)
        if opens:
            kind = rng.choice("([{")
            due.append(PAIRS[kind])
            text, opened = text + kind, opened + 1
            if spoken and rng.random() < 0.5:
                text += rng.choice(WORDS)
        else:
            text += due.pop()
    return text


TEXTS: Mapping[str, Callable[..., str]] = {"stories": story, "sums": sums, "brackets": brackets}


# --- tokenizer and rows ----------------------------------------------------------------------


def train_tokenizer(seed: int = 0) -> Tokenizer:
    """Byte-level BPE learnt from this corpus. Every text can be written, and comes back as it was."""
    rng = Random(seed)
    texts = [make(rng) for make in TEXTS.values() for _ in range(4000)]
    texts += [" ".join(rng.choice(WORDS) for _ in range(40)) for _ in range(1000)]
    tokenizer = Tokenizer(models.BPE())
    # A bracket always stands alone; numbers and words take the space before them along.
    rule = r"[()\[\]{}]| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}()\[\]{}]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(rule), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in (BOS, EOS)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tokenizer


def repeated_ids(rng: Random, period: int, length: int, vocab_size: int) -> list[int]:
    """BOS and `length` ids: a block of `period` random tokens over and over. No control token but the first."""
    block = [rng.randrange(2, vocab_size) for _ in range(period)]
    return [0, *(block[i % period] for i in range(length))]


def repeats(rng: Random, tokens: Sequence[int], length: int) -> list[int]:
    """BOS and a few blocks of random tokens, each drawn again and again, so `length` + 1 ids.

    A block comes back at no fixed distance: else heads that always look back equally far would do.
    """
    count = rng.randint(1, 6)
    longest = length // (2 * count)
    sizes = [round(math.exp(rng.uniform(math.log(2), math.log(longest)))) for _ in range(count)]
    blocks = [rng.choices(tokens, k=size) for size in sizes]
    ids = [0]
    while len(ids) <= length:
        ids += rng.choice(blocks)
    return ids[: length + 1]


def rows(tokenizer: Tokenizer, shares: Mapping[str, float], length: int, count: int, seed: int) -> Iterator[list]:
    """Endless batches of `count` rows of `length` + 1 ids. Each row begins with BOS and is of one kind.

    shares: how many of the rows are "repeats", "stories", "sums" and "brackets", relative to each other.
    """
    rng = Random(seed)
    kinds, weights = list(shares), list(shares.values())
    anything = range(2, tokenizer.get_vocab_size())
    words = [tokenizer.token_to_id(f"Ġ{word}") for word in WORDS]  # "Ġ" is how byte-level BPE spells a space
    while True:
        batch = []
        for kind in rng.choices(kinds, weights, k=count):
            if kind == "repeats":
                batch.append(repeats(rng, words if rng.random() < 0.25 else anything, length))
            else:
                batch.append(_texts(tokenizer, kind, length, rng))
        yield batch


def _texts(tokenizer: Tokenizer, kind: str, length: int, rng: Random) -> list[int]:
    ids = [0]
    while len(ids) <= length:
        ids += [*tokenizer.encode(TEXTS[kind](rng), add_special_tokens=False).ids, 1]
    return ids[: length + 1]
