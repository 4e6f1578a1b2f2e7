"""Every word the screens show, in one table: a second language is a second table.

Keys are grouped by the part that shows them ("stepper.next"); `t` looks one up and fills its
{fields}. A key that is missing is a mistake in the code, so it raises.
"""

from __future__ import annotations

EN: dict[str, str] = {
    # the drawing of a layer and of the model
    "map.title.layer": "The steps of one decoder layer",
    "map.title.model": "The decoder: every step from token ids to logits",
    "map.layer": "layer {layer}",
    "map.times": "× {layers} layers",
    "map.times.one": "1 layer",
    "map.before.one": "layer 0 before",
    "map.before": "layers 0–{last} before",
    "map.after.one": "layer {first} after",
    "map.after": "layers {first}–{last} after",
    "map.node": "{step}: {title}. Shape {shape}.",
    "map.adds": "{step} is added to the residual stream",
    "map.legend": "colours",
    "map.kind.residual": "residual stream",
    "map.kind.norm": "norm",
    "map.kind.query": "queries",
    "map.kind.key": "keys",
    "map.kind.value": "values",
    "map.kind.attention": "attention",
    "map.kind.mlp": "MLP",
    "map.kind.head": "head",
    # the stepper: controls, rail, drawing
    "stepper.controls": "Move through the steps",
    "stepper.first": "First step (Home)",
    "stepper.last": "Last step (End)",
    "stepper.layer_back": "One layer back (Shift + left arrow)",
    "stepper.layer_forward": "One layer on (Shift + right arrow)",
    "stepper.back": "One step back (left arrow)",
    "stepper.forward": "One step on (right arrow)",
    "stepper.layer": "layer",
    "stepper.step": "step",
    "stepper.play": "Play the steps",
    "stepper.pause": "Pause",
    "stepper.speed": "Speed {speed}×",
    "stepper.position": "step {n} of {total}",
    "stepper.not_computed": "not computed yet",
    "stepper.jump_layer": "Go to layer",
    "stepper.jump_step": "Go to step",
    "stepper.rail": "Layers",
    "stepper.rail.layer": "Layer {layer}",
    "stepper.map": "Drawing of the layer",
    "stepper.fold": "The layer as a drawing",
    "stepper.keys": "← → step    Shift + ← → layer    Home End",
    # the token strip
    "strip.label": "Tokens: choose one",
    "strip.token": "Position {position}: {text}",
    "strip.special": "Position {position}: {text} (special token)",
    "strip.empty": "(empty)",
    # figures: captions, hovers, alt texts
    "figures.map.query": "query",
    "figures.map.key": "key",
    "figures.map.values": "values",
    "figures.map.masked": "masked",
    "figures.map.empty": "Nothing to draw: the tensor has no values.",
    "figures.map.alt": "Map of {name}, {rows} × {cols} ({row_axis} × {col_axis}): values from {low} to {high}.",
    "figures.map.pooled": "Each cell stands for {rows} × {cols} values and shows the one of largest size.",
    "figures.map.clipped": "Colours end at {limit}; cells beyond that: {n}, the largest {largest}.",
    "figures.map.blank": "Masked cells are blank.",
    "figures.map.flagged": "Yellow cells are not finite numbers: {n}.",
    "figures.histogram.alt": "How {n} values are spread, from {low} to {high}.",
    "figures.histogram.alt.outside": "How {n} values are spread, from {low} to {high}, "
    "nearly all from {left} to {right}.",
    "figures.histogram.one": "All {n} values are {value}.",
    "figures.histogram.none": "No finite values to count.",
    "figures.histogram.values": "values",
    "figures.histogram.below": "{n} lie further left, down to {low}.",
    "figures.histogram.above": "{n} lie further right, up to {high}.",
    "figures.histogram.dropped": "Left out: {n} that are NaN or infinite.",
    "figures.next.alt": "The most likely next tokens: {tokens}.",
    "figures.next.none": "No next token to show.",
}


def t(key: str, **values: object) -> str:
    """The words for `key`, its {fields} filled from `values`."""
    text = EN[key]
    return text.format(**values) if values else text


def group(prefix: str) -> dict[str, str]:
    """All words whose key begins with `prefix`, unfilled: what a browser component is handed."""
    return {key: text for key, text in EN.items() if key.startswith(prefix)}
