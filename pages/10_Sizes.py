"""Sizes: what does it cost? From a config alone: it is drawn before the model is loaded, and nothing is allocated."""

from pages.ui.frame import open_page
from pages.ui.sizes_parts import draw

open_page("sizes").run(first_paint=lambda config, dims, loads: draw(config, dims))
