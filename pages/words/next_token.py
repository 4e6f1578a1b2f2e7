"""The words of Next token."""

from __future__ import annotations

EN: dict[str, str] = {
    "next.lead": "At every position the model gives each token of its vocabulary a probability of coming next. The "
    "loss says how surprised it was by the token that did come: −ln of the probability it had given it.",
    # the loss
    "next.loss.none": "One token alone: nothing came after it, so there is no loss. Write a longer prompt.",
    "next.loss.step": "This pass read one token alone, {token}, which the model had written itself. How sure it was of "
    "each token that it wrote stands on the page Generate; for the loss of the prompt, choose one of its tokens.",
    "next.loss.hover": "<b>%{y:.4~g}</b><br>after %{customdata[0]} came %{customdata[1]}<br>given %{customdata[2]}",
    "next.loss.mean": "mean {value}",
    "next.loss.even": "ln V {value}",
    "next.loss.position": "position",
    "next.loss.axis": "−ln p of the token that came",
    "next.loss.alt": "Loss at {n} positions, from {low} to {high}, mean {mean}; ln V is {even}.",
    "next.loss.look.came": "Under each token stands the one that came after it.",
    "next.loss.look": "A low bar: the model saw the next token coming. A bar at ln V: no better than a blind draw from "
    "the vocabulary. Click a bar to choose its position.",
    "next.loss.worse": "The mean loss of {mean} is above ln V = {even}: worse than finding every token equally likely. "
    "The model is sure, and wrong. Weights that have not been trained do this when their logits are large; here they "
    "spread by {spread} (standard deviation).",
    "next.loss.tied": "The head is tied: with embedding rows as large as N(0, 1) the others' logits spread by about "
    "√D = {root}, and every token's logit for itself is about D = {width}, so each expects itself again.",
    # probabilities
    "next.after": "What comes after {token}",
    "next.temperature": "temperature",
    "next.temperature.help": "Logits are divided by it: below 1 the favourite gains, above 1 the others do. 0 leaves "
    "the favourite alone.",
    "next.top_k": "top-k",
    "next.top_k.help": "Keep the k most probable tokens. 0 keeps all.",
    "next.top_p": "top-p",
    "next.top_p.help": "Keep the most probable tokens until they hold this much together. 1 keeps all.",
    "next.cut.before": "at this temperature",
    "next.cut.after": "after the cuts",
    "next.cut.untouched": "at temperature 1",
    "next.cut.gone": "{before} cut",
    "next.cut.k": "top-k cuts here",
    "next.cut.p": "top-p cuts here",
    "next.cut.alt": "Next tokens: {kept} are kept; the most probable is {best}, {share}.",
    "next.cut.look": "A token is drawn from the bars after the cuts. What is cut shares its probability out among what "
    "is kept, in proportion.",
    "next.cut.more": "{n} more are kept and not drawn; together they have {share}.",
    "next.kept": "kept",
    "next.kept.of": "of {n}",
    "next.cut": "cut",
    "next.cut.small": "of probability",
    "next.entropy": "entropy",
    "next.entropy.small": "uncut {before}",
    "next.choices": "as many as",
    "next.choices.small": "even choices",
    "next.came": "came next",
    "next.came.rank": "rank {rank}, {share}",
    "next.came.none": "the prompt ends",
    # the lens
    "next.lens": "What each layer would say",
    "next.lens.look": "Each cell is the token that would come first if the model stopped after that layer: its stream "
    "through the final norm, once, and the head. The last row is the model's answer, the logits themselves. Watch the "
    "answer form from top to bottom; click a cell to choose its position.",
    "next.lens.window": "Positions {first} to {last} of {total}: choose another token in the strip above to move on.",
    "next.lens.colour": "colour",
    "next.lens.share": "probability",
    "next.lens.entropy": "entropy",
    "next.lens.rank": "rank of the answer",
    "next.lens.share.name": "Probability of the token in the cell",
    "next.lens.entropy.name": "Entropy of all probabilities, in nats",
    "next.lens.rank.name": "Rank that the final answer has in this layer",
    "next.lens.rank.end": "rank {n}",
    "next.lens.layer": "after layer",
    "next.lens.position": "position",
    "next.lens.embed": "embedding",
    "next.lens.last": "{layer} = logits",
    "next.lens.head": "{layer} · position {position} {token}",
    "next.lens.head.embed": "embedding",
    "next.lens.head.layer": "after layer {layer}",
    "next.lens.hover.entropy": "entropy {value}",
    "next.lens.hover.rank": "the final answer {token}: rank {rank}, {share}",
    "next.lens.hover.came": "{token}, which came: rank {rank}, {share}",
    "next.lens.alt": "The favourite token of the embedding and of {layers} layers at {positions} positions. {name}.",
    "next.lens.row.embed": "the embedding",
    "next.lens.row": "layer {layer}",
    "next.lens.settled": "At position {position} the answer {token} leads from {first} on.",
    "next.lens.overtaken": "At position {position} the answer {token} leads first after {first}, is overtaken, and "
    "leads for good from {settled} on.",
    "next.lens.filling": "{ready} of {total} rows are ready",
    # attribution
    "next.where": "position {position} ({token})",
    "next.parts": "Where a logit comes from",
    "next.parts.answer": "logit of",
    "next.parts.against": "against",
    "next.parts.best": "{token}, the most probable",
    "next.parts.nobody": "no other token",
    "next.parts.unknown": "This vocabulary ends at id {last}: there is no token {asked}. {used}",
    "next.parts.unknown.answer": "The most probable is used.",
    "next.parts.unknown.against": "No other token is compared.",
    "next.parts.embedding": "embedding",
    "next.parts.attention": "attention",
    "next.parts.mlp": "MLP",
    "next.parts.of": "{part} of layer {layer}",
    "next.parts.sum": "the sum so far",
    "next.parts.layer": "layer",
    "next.parts.embed": "emb",
    "next.parts.axis": "added to the logit",
    "next.parts.alt": "{n} parts of the logit of {name}, which add up to {total}.",
    "next.parts.look": "Every bar is what one part of the model wrote for or against {token} at {where}. With the "
    "final norm's scale held at its value they add up to the logit: the line is their sum so far.",
    "next.parts.look.against": "Every bar is what one part of the model wrote for {token} rather than {other} at "
    "{where}: what raises both alike cancels. The line is their sum so far.",
    "next.parts.logit": "logit",
    "next.parts.lead": "lead",
    "next.parts.total": "sum of the parts",
    "next.parts.difference": "difference",
    "next.parts.difference.small": "rounding of the pass",
    "next.parts.scale": "final norm scale",
    "next.parts.heads.total": "all heads",
    "next.parts.heads": "What each head added",
    "next.parts.heads.layer": "layer",
    "next.parts.heads.head": "head",
    "next.parts.heads.look": "The attention bars, split by head. Click a cell to choose that layer and head on every "
    "page.",
    "next.parts.heads.bias": "The bias of o_proj adds {bias} in all and belongs to no head.",
}
