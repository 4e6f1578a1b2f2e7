"""Residual stream: what accumulates? Its size by layer and token, what each layer adds, and the norms that tame it."""

from llama_core.steps import ATTN_NORM
from pages.ui import stream_parts
from pages.ui.frame import open_page

view = open_page("stream").run(layer=ATTN_NORM)
stream_parts.lead()
stream_parts.growth(view)
stream_parts.norm(view)
