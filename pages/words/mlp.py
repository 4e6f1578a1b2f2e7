"""The words of the MLP page."""

from __future__ import annotations

EN: dict[str, str] = {
    "mlp.lead": "The MLP computes two numbers for every neuron: up, what it would say, and gate, whether it may. "
    "{curve} makes nearly nothing of a negative gate and passes a positive one, so of all neurons only those with an "
    "open gate write into the stream.",
    "mlp.axis.gate": "gate: may it speak?",
    "mlp.axis.up": "up: what it would say",
    "mlp.group.shut": "shut:",
    "mlp.group.negative": "gate below 0, not shut:",
    "mlp.group.open": "gate above 0:",
    "mlp.neuron": "neuron",
    "mlp.product": "product",
    "mlp.scatter.hover": "neuron <b>%{customdata[0]:d}</b><br>gate %{customdata[1]:.3~g}<br>up %{customdata[2]:.3~g}"
    "<br>product <b>%{customdata[3]:.3~g}</b>",
    "mlp.scatter.look": "Each point is one neuron of layer {layer} at {token} (position {position}); larger points "
    "have a larger product. Those on the tinted side have a negative gate and are pressed towards zero by the curve "
    "below, however far up they reach; the {n} loudest are named, and the dots on {curve} are their gates.",
    "mlp.scatter.some": "Drawn: {drawn} of {total} neurons, the loudest all of them.",
    "mlp.scatter.edge": "Hollow points at the edge lie beyond it: {n}.",
    "mlp.scatter.alt": "{n} neurons as points, gate against up; {quiet} of them are shut.",
    "mlp.number.neurons": "neurons",
    "mlp.number.neurons.small": "the width F",
    "mlp.number.quiet": "shut",
    "mlp.number.quiet.small": "at this token",
    "mlp.number.negative": "gate below 0",
    "mlp.number.negative.small": "a ReLU shuts these",
    "mlp.number.loud": "the {n} loudest",
    "mlp.number.loud.small": "of the product's square",
    "mlp.quiet.means": "Shut: the curve's value is at most {band} of the layer's largest in this run, here {limit}.",
    "mlp.formula": "The loudest one, neuron {neuron}, in numbers:",
    "mlp.strips": "From gate to product, layer {layer}, {token}",
    "mlp.strip": "step",
    "mlp.strips.name": "layer {layer} · gate, curve, up, product",
    "mlp.strips.look": "The same neurons from top to bottom. A column that is strong in gate and up but faint in the "
    "product was shut; one colour scale holds for all four rows.",
    "mlp.layers": "How much is shut in each layer",
    "mlp.layers.quiet": "shut, all tokens",
    "mlp.layers.here": "shut, position {position}",
    "mlp.layers.negative": "gate below 0, all tokens",
    "mlp.layers.axis": "share of neurons",
    "mlp.layers.alt": "Share of shut neurons in {n} layers.",
    "mlp.layers.look": "Shut is measured against the layer's own largest value ({band} of it): a layer in which one "
    "token has a huge gate has nearly all its others shut. The dotted line upright is the chosen layer.",
    "mlp.neurons": "The loudest neurons and what they write, layer {layer}, {token}",
    "mlp.neurons.neuron": "neuron",
    "mlp.neurons.gate": "gate",
    "mlp.neurons.act": "{curve}(gate)",
    "mlp.neurons.up": "up",
    "mlp.neurons.product": "product",
    "mlp.neurons.size": "length written",
    "mlp.neurons.promoted": "promotes",
    "mlp.neurons.demoted": "demotes",
    "mlp.neurons.look": "Each neuron writes its product times its own column of down_proj. Promoted and demoted are "
    "the tokens whose logits that vector would raise and lower most if it went straight to the head; later layers, "
    "which also read it, are left out. In early layers the tokens seldom make sense.",
    "mlp.neurons.random": "Weights that were never trained promote tokens by chance, and they have numbers only.",
    "mlp.curves": "The same gates through other curves",
    "mlp.curves.axis": "what passes",
    "mlp.curves.look": "ReLU shuts hard at 0; SiLU and GELU let small negative values through and dip below zero. "
    "The solid line is this model's.",
    "mlp.curves.alt": "Four curves over the gate: SiLU, ReLU, GELU and quick GELU; this model uses {own}.",
    "mlp.curves.name": "curve",
    "mlp.curves.own": "{name} · this model",
    "mlp.curves.cosine": "cosine of products",
    "mlp.curves.largest": "largest difference",
    "mlp.curves.table": "This model says hidden_act = {act}: {own}. The products of {token} in layer {layer}, made "
    "with each curve from the same gate and up, against the captured ones: the model's own curve differs by rounding "
    "alone. Quick GELU is x times the logistic function of 1.702 x.",
}
