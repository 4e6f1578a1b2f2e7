"""Activations: what are the ranges? A map of layers and steps, one step over all layers, and every step as a table."""

from llama_core.steps import RESID_OUT
from pages.ui import ranges_parts
from pages.ui.frame import open_page

view = open_page("ranges").run(layer=RESID_OUT)
ranges_parts.lead()
ranges_parts.broken(view.trace)
ranges_parts.picture(view)
ranges_parts.over_layers(view)
ranges_parts.all_steps(view)
