"""The words of the Attention page."""

from __future__ import annotations

EN: dict[str, str] = {
    "attention.opening": "Each token looks back at the tokens before it and takes something from each: the weights in "
    "its row say how much, and they sum to 1. Every head looks in its own way, at the first token, at the one before, "
    "at the place where this word stood last time.",
    "attention.look": "how much is shown",
    "attention.look.head": "One head",
    "attention.look.layer": "This layer",
    "attention.look.all": "All heads",
    "attention.stage": "stage",
    "attention.rest": "without the first token",
    "attention.rest.help": "Hides the first key and brings the rest of each row back to a sum of 1. Most heads rest on "
    "the first token, and beside its weight all others are faint.",
    "attention.log": "log colours",
    "attention.log.help": "Each step of the scale is ten times the weight; 0.001 and less has the colour of the page.",
    # one head
    "attention.name": "layer {layer} · {head} · {stage}",
    "attention.name.rest": "layer {layer} · {head} · without key 0, rows sum to 1 again",
    "attention.scores.look": "Before the mask: queries against all keys, also those ahead, already divided by "
    "√{width}. Only differences within a row count.",
    "attention.masked.look": "The scores of what each query may see. The softmax of a row makes its weights.",
    "attention.weights.look": "A strong column: a token that many look at. A strong diagonal: the token itself or the "
    "one before. The outlined row is where “{token}” looks{column}.",
    "attention.weights.column": ", the dotted column who looks at it",
    "attention.pick.cell": "Click a cell to choose its query.",
    "attention.pick.box": "Draw a box to look closer.",
    "attention.window": "queries {q0} to {q1}, keys {k0} to {k1}",
    "attention.window.close": "whole map",
    "attention.nothing": "Beside the first token there is nothing to look at here.",
    "attention.where": "Where “{token}” looks",
    "attention.weight": "weight",
    "attention.moves": "adds (length)",
    "attention.where.alt": "Bars: the weights of token {place} on the tokens it looks at most, and the length of what "
    "each adds to the residual stream.",
    "attention.where.look": "{share} of the weight. Right: the length of weight × value after o_proj: a large "
    "weight on a small value moves little.",
    "attention.sum": "Together this head adds a vector of length {written}; the lengths of its parts sum to {lengths}"
    "{cancel}.",
    "attention.cancel": ", so parts of them cancel",
    "attention.who": "Who looks at “{token}”",
    "attention.who.alt": "Bars: the tokens whose weight on token {place} is largest.",
    "attention.who.look": "The largest weights in its column. {none}",
    "attention.who.last": "It is the last token: only itself can.",
    "attention.formula": "The softmax of row {query}, at key {key}:",
    # measures of a head
    "attention.measures": "What this head does on this prompt",
    "attention.measures.look": "Means over the queries that see more than themselves.",
    "attention.entropy": "entropy",
    "attention.spread": "spread",
    "attention.spread.small": "{share} of even",
    "attention.first": "on first token",
    "attention.previous": "on previous",
    "attention.itself": "on itself",
    "attention.duplicate": "on same token",
    "attention.induction": "induction",
    "attention.distance": "distance",
    "attention.first.small": "the sink",
    "attention.induction.small": "what came after",
    "attention.duplicate.small": "its last place",
    "attention.distance.small": "tokens back",
    "attention.no_repeat": "no repeat",
    "attention.no_repeat.small": "in this prompt",
    "attention.no_repeat.table": "No token of this prompt comes twice, so “on same token” and “induction” have nothing "
    "to measure.",
    "attention.no_choice": "–",
    "attention.no_choice.small": "only one token",
    "attention.no_choice.table": "With one token no head has a choice, so there is nothing to measure.",
    "attention.entropy.help": "−Σ a ln a of a row, in nats, mean over rows: 0 looks at one token.",
    "attention.spread.help": "Entropy as a share of an even look at all visible keys: 0 one token, 1 all alike.",
    "attention.first.help": "Weight on position 0. Large: a sink, where a head rests when it has nothing to find.",
    "attention.previous.help": "Weight on the position before the query.",
    "attention.itself.help": "Weight on the query's own position.",
    "attention.duplicate.help": "Weight on the latest earlier place of the same token.",
    "attention.induction.help": "Weight on what came after the latest earlier place of the same token: what came next "
    "last time.",
    "attention.distance.help": "How many tokens back it looks, each key counted by its weight.",
    "attention.alike": "Heads like this one",
    "attention.alike.look": "The heads of all layers whose measures are nearest, nearest first. Click one to open it.",
    "attention.alike.none": "With one token all heads do the same: look at it.",
    "attention.alike.alt": "Small maps of the heads whose measures are nearest to those of layer {layer} {head}.",
    # a layer, all layers
    "attention.layer.look": "All heads of layer {layer} on this prompt. Heads in one group read the same keys "
    "and still look in different ways. Click a head to choose it; the choice is framed.",
    "attention.layer.alt": "The attention maps of the {n} heads of layer {layer}, side by side.",
    "attention.here": "Each head at “{token}”",
    "attention.here.alt": "Bars: of each head of layer {layer} the token that token {place} looks at most, its weight, "
    "and the length of the vector that the head writes.",
    "attention.here.look": "The token that each head looks at most. Right: the length of what the head writes here; "
    "heads that write most come first. Click one to choose it.",
    "attention.writes": "writes (length)",
    "attention.together": "What “{token}” takes from each token",
    "attention.together.alt": "Bars: the length of what layer {layer} adds at token {place}, by source token.",
    "attention.together.look": "All heads together, as vectors: heads can add up or cancel.",
    "attention.all.look": "Layers down, heads to the right. Strong left edges are heads that rest on the first token, "
    "diagonals look at the token before, short diagonals away from it repeat what came last time. Click a head to "
    "open it.",
    "attention.all.alt": "Small attention maps of all {heads} heads of {layers} layers.",
    "attention.pooled": "Each cell shows the largest weight of {rows} × {cols}.",
    "attention.blank": "Masked cells are blank.",
    "attention.rest.note": "Without key 0, rows brought back to a sum of 1.",
    "attention.tile": "layer {layer} · {head}",
    "attention.table": "Heads as numbers",
    "attention.table.look": "Click a column's name to sort by it, a row's left edge to choose that head.",
    "attention.table.layer": "layer",
    "attention.table.head": "head",
    "attention.table.kv": "KV",
}
