"""MLP: what does the gate let through? Neurons as points, the curve they pass, and what the loudest ones write."""

from llama_core.steps import GATE
from pages.ui import mlp_parts
from pages.ui.frame import open_page

view = open_page("mlp").run(layer=GATE)
loud, written = mlp_parts.neurons(view)  # first: what they write is worked out while the rest is drawn
mlp_parts.lead(view)
mlp_parts.picture(view, loud)
mlp_parts.strips(view)
mlp_parts.effects(view, loud, written())
mlp_parts.shut_by_layer(view)
mlp_parts.other_curves(view)
