"""RoPE: how does a vector know where it stands? Arrows that turn, their speeds, their pairs, and why it works."""

from llama_core.steps import Q_ROT
from pages.ui import rope_parts
from pages.ui.frame import open_page

page = open_page("rope")
rope_parts.introduction()
view = page.run(layer=Q_ROT, heads=True)
rope_parts.arrows(view)
rope_parts.frequencies(view)
rope_parts.proof(view)
rope_parts.layouts(view)
rope_parts.what_if_scaling(view)
