"""Generate: what does it write? One token after another, each with what else it could have been."""

from pages.ui import write_parts
from pages.ui.frame import open_page

page = open_page("write")
places = write_parts.places()
view = page.run(writes=True, written=places.write)
write_parts.text(view, places)
write_parts.chosen(view)
write_parts.surprise(view)
write_parts.steps(view)
