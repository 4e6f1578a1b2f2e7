"""The first page: what this is, which model is loaded, a map of the decoder, where to look first."""

from pages.ui.frame import open_page
from pages.ui.home_parts import slots

page = open_page("home")
places = slots()
view = page.run(first_paint=places.draw_map)
places.fill(view)
