"""Edit: what if a number were another? The list of edits, what they change, and every part switched off in turn."""

from llama_core.steps import HEAD_OUT
from pages.ui import edit_parts, sweep_parts
from pages.ui.frame import open_page

view = open_page("edit").run(layer=HEAD_OUT, heads=True)
edit_parts.lead(view)
edit_parts.edits(view)
edit_parts.effect(view)
sweep_parts.sweeps(view)
edit_parts.steps(view)
