"""The words of the page about RoPE."""

from __future__ import annotations

EN: dict[str, str] = {
    "rope.lead": "RoPE takes the numbers of a query or key in pairs and turns each pair, like an arrow, by an angle "
    "that grows with the token's position. When a turned query meets a turned key, only the distance between the two "
    "is left in their score.",
    # the arrows
    "rope.vector": "vector",
    "rope.vector.query": "query",
    "rope.vector.key": "key",
    "rope.place": "turn it to position",
    "rope.place.help": "Where the vector is placed. Its own position is where the run turned it; any other is a "
    "what-if. Steps grow with the distance: the slow pairs need thousands of positions to move.",
    "rope.play": "play the turn",
    "rope.own": "own position {own}",
    "rope.arrows.name.query": "layer {layer}, query head {head}: {token} at position {position}",
    "rope.arrows.name.key": "layer {layer}, key head {head}: {token} at position {position}",
    "rope.arrows.look": "Faint: as computed. Strong: turned to position {position}. Under each plane its pair and its "
    "angle, whole turns left out. Pair 0 turns by a radian a position; the last pairs hardly move. The area of a "
    "circle stands for the length of its pair, with a smallest size for the short ones.",
    "rope.arrows.look.origin": "Faint and strong are the same at position 0: nothing is turned there. Move the slider, "
    "and pair 0 turns by a radian a position while the last pairs hardly move. The area of a circle stands for the "
    "length of its pair, with a smallest size for the short ones.",
    "rope.arrows.thinned": "Drawn are {shown} of {pairs} pairs, evenly chosen.",
    "rope.arrow.hover": "pair {pair}: dimensions {a} and {b}\nbefore {before}, length {size}\nafter {after}, length "
    "{now}\n{angle} rad = {turns} turns",
    "rope.arrow.alt": "{name}: {shown} of {pairs} pairs as arrows, turned by {first} in the first pair and {last} in "
    "the last.",
    "rope.number.before": "length before",
    "rope.number.after": "length after",
    "rope.number.after.same": "turning keeps it",
    "rope.number.after.grown": "YaRN: × {factor}",
    "rope.number.fast": "pair 0 has turned",
    "rope.number.slow": "pair {pair} has turned",
    "rope.number.turns": "{turns} turns",
    "rope.number.radians": "{radians} rad",
    "rope.number.difference": "against the run",
    "rope.number.difference.small": "at its own position {own}",
    "rope.read.norm": "This model brings each query and key to one size first, so what is turned is {step}.",
    "rope.yarn": "YaRN also multiplies both sides by {factor}, so the arrows grow by that much and the scores by "
    "{square}.",
    "rope.bfloat16": "The model computes in {dtype}, so its turned vector is rounded to fewer digits than the one "
    "turned here.",
    # frequencies
    "rope.wheel.title": "How fast each pair turns",
    "rope.wheel.look": "Each dot is a pair: how many positions it needs for one full turn. Filled: it comes round "
    "within the context, {full} of {pairs} pairs, and alone cannot tell two places a full turn apart. Hollow: it "
    "never comes round. Less than an eighth of a turn: {still} pairs, which carry content that hardly knows its place.",
    "rope.mark.context": "context",
    "rope.mark.stretched": "stretched context",
    "rope.mark.original": "context of training",
    "rope.mark.prompt": "this prompt",
    "rope.wave.hover": "pair %{x}<br>a full turn every %{y:.4~g} positions",
    "rope.wave.turns": "%{customdata:.3~g} turns in the longest context drawn",
    "rope.wave.alt": "Wavelength of {pairs} pairs on a log axis, from {low} to {high} positions.",
    "rope.pair": "pair",
    "rope.position": "position",
    "rope.wavelength": "positions for a full turn",
    "rope.table.title": "The table of angles",
    "rope.table.name": "cos of position × frequency",
    "rope.table.angle": "angle in rad",
    "rope.table.look": "A row for each position, a column for each pair, as the model holds it for the first {rows} "
    "positions. Left, the colours swing from row to row; right, a column is one colour: there a shift changes "
    "nothing. Hover for the angle.",
    # layouts
    "rope.pairs.title": "Which two dimensions form a pair",
    "rope.pairs.halves": "halves: r with r + {R}",
    "rope.pairs.neighbours": "neighbours: 2r with 2r + 1",
    "rope.pairs.as.halves": "r with r + {R} (halves)",
    "rope.pairs.as.neighbours": "2r with 2r + 1 (neighbours)",
    "rope.pairs.used": "this model",
    "rope.pairs.not_used": "not this model",
    "rope.pairs.before": "before",
    "rope.pairs.after": "after",
    "rope.dimension": "dimension",
    "rope.pairs.look": "{title}, at position {position}. Arcs tie the two dimensions of a pair; {drawn}only where a "
    "pair turned do the rows differ.",
    "rope.pairs.drawn": "every {step}th arc is drawn, and ",
    "rope.pairs.say": "The same numbers, another answer. With the other layout the scores of {token} with the keys it "
    "sees would be off by up to {largest}; the scores reach {reach}. Which layout is right is a property of the "
    "stored weights; these pair {layout}. The other one runs without an error and is wrong, the commonest mistake in "
    "ports of Llama.",
    "rope.pairs.say.origin": "Position 0 turns nothing, so both layouts give the same scores there: choose a later "
    "token, or write a longer prompt. These weights pair {layout}; the other layout would run without an error and be "
    "wrong.",
    "rope.pairs.say.one": "Of one pair both layouts are the same.",
    "rope.hand": "By hand: head width 4, base 10,000, the vector 1 2 3 4 at position 1.",
    "rope.hand.layout": "pairs",
    "rope.hand.dims": "dimensions",
    # what base and scaling do
    "rope.if.title": "What if the base or the scaling were another",
    "rope.if.kind": "scaling",
    "rope.if.kind.none": "none",
    "rope.if.kind.linear": "linear",
    "rope.if.kind.dynamic": "dynamic",
    "rope.if.kind.llama3": "llama3",
    "rope.if.kind.yarn": "yarn",
    "rope.if.base": "base",
    "rope.if.base.help": "theta: pair r turns by theta^(−2r/Dh) a position. A larger base slows all pairs but the "
    "first.",
    "rope.if.factor": "stretched × ",
    "rope.if.factor.help": "How many times longer than the context of training the new one is.",
    "rope.if.original": "context of training",
    "rope.if.low.llama3": "turns: divided below",
    "rope.if.high.llama3": "turns: kept above",
    "rope.if.low.yarn": "turns: divided below",
    "rope.if.high.yarn": "turns: kept above",
    "rope.if.own": "this model: base {base}, {kind}",
    "rope.if.plain": "plain, base {base}",
    "rope.if.changed": "{kind}, base {base}",
    "rope.if.none.say": "No scaling: the base alone sets the speeds. Beyond the context of training the slow pairs "
    "reach angles that the model has never seen.",
    "rope.if.linear.say": "Linear: every pair turns {factor} times slower, so {length} positions fit where {original} "
    "were. The fast pairs lose their sharpness too: neighbours look closer than they were in training.",
    "rope.if.dynamic.say": "Dynamic: nothing changes up to {original} positions. Beyond, the base grows with the "
    "length of the pass; drawn is a pass of {length}. The first pair keeps its speed, the last is divided by the most.",
    "rope.if.llama3.say": "llama3: of {pairs} pairs, {kept} turn often within {original} positions and are kept, "
    "{divided} turn rarely and are divided by {factor}, {blended} get a blend.",
    "rope.if.yarn.say": "YaRN: of {pairs} pairs, {kept} are kept, {divided} are divided by {factor}, {blended} lie on "
    "the ramp between. It also multiplies q and k by {grown}, so scores grow by {square}.",
    "rope.if.look": "Dots: the model's own pairs. Line: the what-if. Dotted: plain RoPE with the same base. Above a "
    "dashed line a pair never comes round within that context; hollow dots do in none that is drawn.",
    "rope.if.stretch.title": "times slower than plain",
    "rope.if.stretch.alt": "How many times slower than plain RoPE each of {pairs} pairs turns: from {low} to {high}.",
    "rope.if.stretch.hover": "pair %{x}<br>%{y:.4~g} times slower",
    "rope.if.stretch.look": "How many times slower than plain RoPE of the same base each pair turns: 1 is kept.",
    # the proof
    "rope.proof.title": "Only the distance counts",
    "rope.key": "key",
    "rope.shift": "move both on by",
    "rope.shift.help": "Query and key are placed this many positions later, both of them.",
    "rope.proof.table": "score, query at row, key at column",
    "rope.proof.table.look": "The query of {query} and the key of {key} placed at every pair of positions. Each "
    "diagonal is one colour: along it both move on together and their distance stays.",
    "rope.proof.row": "query at",
    "rope.proof.column": "key at",
    "rope.distance": "distance m − n",
    "rope.score": "score",
    "rope.distance.from": "key at {start}",
    "rope.distance.here": "this run",
    "rope.distance.hover": "distance %{x}<br>score %{y:.5~g}",
    "rope.distance.alt": "The score over {n} distances between query and key: from {low} to {high}.",
    "rope.distance.look": "The score of the same two vectors at growing distance, with the key at position 0 and far "
    "out. The two curves lie on each other: where the pair stands does not matter, how far apart does.",
    "rope.distance.look.one": "The score of the same two vectors at growing distance.",
    "rope.number.score": "q at {m}, k at {n}",
    "rope.number.moved": "q at {m}, k at {n}",
    "rope.number.moved.small": "Δ {difference}",
    "rope.number.captured": "score in the run",
    "rope.number.captured.small": "Δ {difference}",
    "rope.number.largest": "largest Δ of {n} shifts",
    "rope.number.largest.small": "in float32, as the model",
    "rope.number.exact": "the same in float64",
    "rope.number.exact.small": "rounding is all there is",
    "rope.proof.say": "score = q·k / √{Dh}. The angle of a far position is itself rounded in float32, so the "
    "difference grows with the position; in float64 it all but disappears.",
    "rope.proof.dynamic": "Dynamic scaling gives a longer pass other angles; the shifts here keep those of this run.",
}
