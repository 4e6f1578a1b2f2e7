"""KV cache: what is kept between tokens? Its rows as they come, its bytes, what it saves, and the same numbers."""

from llama_core.steps import K_SHARED
from pages.ui import cache_parts
from pages.ui.frame import open_page

view = open_page("cache").run(layer=K_SHARED, heads=True, writes=True)
cache_parts.content(view)
cache_parts.bytes_kept(view)
cache_parts.operations(view)
cache_parts.same_numbers(view)
