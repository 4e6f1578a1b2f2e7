"""The words of Tokens."""

from __future__ import annotations

EN: dict[str, str] = {
    "tokens.lead": "A model reads no letters. Text is cut into pieces, each piece has a number, its id, and the id "
    "picks one row of the embedding table: these rows are all that goes in.",
    "tokens.rows.name": "embedding rows",
    "tokens.rows.row": "token",
    "tokens.rows.column": "dimension",
    "tokens.rows.look": "On the left each piece and its id, on the right the numbers that the model reads for it. "
    "Equal ids have equal rows: nothing in a row says where it stands.",
    "tokens.rows.ids": "On the left each id, on the right the numbers that the model reads for it. This model has no "
    "tokenizer, so an id has no text.",
    "tokens.window": "Positions {first} to {last} of {total}: choose another token in the strip above to move on.",
    "tokens.chosen": "{piece} at position {position}",
    "tokens.id": "id",
    "tokens.of": "of {n}",
    "tokens.times": "times here",
    "tokens.at": "at {places}",
    "tokens.length": "length",
    "tokens.length.small": "mean {mean}",
    "tokens.width": "width D",
    "tokens.table": "table",
    "tokens.bytes": "bytes",
    "tokens.kind": "kind",
    "tokens.kind.special": "control token",
    "tokens.kind.part": "part of a character",
    "tokens.kind.text": "text",
    "tokens.kind.id": "id",
    "tokens.every": "Every piece",
    "tokens.position": "position",
    "tokens.piece": "piece",
    "tokens.repeats": "times",
    "tokens.every.look": "A dot is a space. A piece that is only part of a character shows its bytes. The length of a "
    "row is its Euclidean norm.",
    "tokens.near.axis": "cosine of the two rows",
    "tokens.near.alt": "The {n} tokens nearest in the embedding table; the first is {first} with cosine {cosine}.",
    "tokens.near.none": "No other row of the table has a direction.",
    "tokens.near.look": "The tokens nearest to {piece} in the embedding table: cosine of its row with every other row. "
    "1 is the same direction, 0 is none in common.",
    "tokens.near.random": "Random rows point nowhere in common: with D = {width} a cosine is seldom far beyond "
    "1/√D = {usual}, and the largest of {n} stands out by chance alone.",
}
