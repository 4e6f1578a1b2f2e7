"""Shared heads: who reads which keys? Groups drawn, what sharing saves, how alike its heads are, and the usual slip."""

from llama_core.steps import WEIGHTS
from pages.ui import sharing_parts
from pages.ui.frame import open_page

view = open_page("sharing").run(layer=WEIGHTS, heads=True)
sharing_parts.introduction(view)
sharing_parts.heads_drawn(view)
sharing_parts.sizes(view)
sharing_parts.cost(view)
sharing_parts.likeness(view)
sharing_parts.tiled(view)
