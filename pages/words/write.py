"""The words of Generate."""

from __future__ import annotations

EN: dict[str, str] = {
    "write.lead": "A model writes one token at a time: it reads all that is there, gives every token of its "
    "vocabulary a probability, one of them is taken, and it begins again.",
    # how
    "write.how": "how a token is taken",
    "write.greedy": "greedy",
    "write.drawn": "drawn",
    "write.greedy.look": "Always the most probable one: the same prompt gives the same text.",
    "write.seed": "seed",
    "write.seed.help": "Of the draws: the same seed gives the same text, so a link to this page reopens it.",
    # the text
    "write.first": "Write {n} tokens",
    "write.more": "{n} more",
    "write.one": "one token",
    "write.again": "another text",
    "write.clear": "start over",
    "write.none": "Nothing is written yet: this is the prompt. Change it on the left.",
    "write.look": "Underlined: the model's own. The more shaded a token, the less probable it was to the model; click "
    "one to see what else it could have been.",
    "write.hover.prompt": "{position} · {token}: of the prompt",
    "write.hover.made": "{position} · {token}: {share}, rank {rank}",
    "write.ended.length": "{n} tokens, as many as were asked for.",
    "write.ended.stop": "It ended by itself after {n} tokens: “{token}” is its stop token.",
    "write.ended.context": "It ended after {n} tokens: all {context} positions of this model are taken.",
    "write.ended.memory": "It ended after {n} tokens: the trace of one more step would be above this app's limit of "
    "memory for a run.",
    "write.ended.closed": "It was ended after {n} tokens.",
    # the chosen token
    "write.chosen": "Why “{token}”, position {position}",
    "write.chosen.by": "Written by the pass that read “{token}”, position {position}.",
    "write.read": "“{token}”, position {position}, is part of the prompt",
    "write.read.by": "This is what the model expected there, after “{token}”, position {position}.",
    "write.first_token": "The first token: the model reads it and has no say in it. Choose another one.",
    "write.bars.look": "The most probable tokens at this place.",
    "write.bars.taken": "the one that stands there",
    "write.bars.uncut": "It was not drawn, so both bars show the model's own probabilities: at temperature 1, uncut.",
    "write.beyond": "“{token}” stands at rank {rank}, below these.",
    "write.share": "probability",
    "write.share.small": "temperature 1",
    "write.rank": "rank",
    "write.rank.small": "of {n}",
    "write.entropy.small": "in nats",
    "write.drawn_with": "drawn with",
    "write.drawn_with.small": "after the cuts",
    "write.how.prompt": "It was not chosen: the prompt has it.",
    "write.how.greedy": "Greedy: the most probable token is taken.",
    "write.how.drawn": "Draw {n} of seed {seed}: a random point between 0 and 1 fell at {point}.",
    "write.draw.look": "The draw: what is kept lies side by side, each as wide as its probability. The token under "
    "the mark is taken.",
    "write.draw.other": "1 other",
    "write.draw.others": "{n} others",
    "write.draw.alt": "The draw fell at {point}, on {token}.",
    "write.inside": "inside this pass: {page}",
    "write.inside.edited": "While edits act, these pages show the edited pass of the prompt and not this one: switch "
    "the edits off to look inside.",
    # all steps
    "write.surprise": "How surprising each token was",
    "write.surprise.look": "−ln of the probability that the model had given to the token after each position: low "
    "where it saw it coming.",
    "write.surprise.look.own": "From position {first} on, what came is the model's own.",
    "write.surprise.look.chosen": "Strongest: the chosen token, “{token}” at position {position}.",
    "write.surprise.look.click": "Click a bar to look at what came.",
    "write.surprise.own": "the model's own from here",
    "write.steps": "Step after step",
    "write.steps.look": "Probability, rank and entropy are the model's own, before temperature and cuts. The first "
    "pass reads the whole prompt, T × S = its length squared; each later one reads a single token and finds the keys "
    "and values of the others in the cache.",
    "write.steps.scroll": "{n} rows: scroll inside the table.",
    "write.step.position": "position",
    "write.step.token": "token",
    "write.step.share": "probability",
    "write.step.rank": "rank",
    "write.step.entropy": "entropy",
    "write.step.pass": "pass T × S",
    "write.step.time": "time",
}
