"""Attention: who looks at whom? One head large, the heads of a layer side by side, or all heads of all layers."""

from llama_core.steps import WEIGHTS
from pages.ui import attention_parts, path_parts
from pages.ui.frame import open_page

view = open_page("attention").run(layer=WEIGHTS, heads=True)
attention_parts.opening()
shown = attention_parts.controls(view)
path_parts.maps_were_made(view)
if shown == "head":
    attention_parts.one_head(view)
    attention_parts.measures(view)
    attention_parts.heads_like_this(view)
elif shown == "layer":
    attention_parts.layer(view)
    attention_parts.layer_table(view)
else:
    attention_parts.all_heads(view)
path_parts.two_paths(view)
