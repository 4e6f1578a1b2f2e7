"""Next token: what comes out? Losses, probabilities and their cuts, each layer's answer, the parts of a logit."""

from pages.ui import next_parts
from pages.ui.frame import open_page

view = open_page("next").run()
next_parts.lead()
next_parts.surprise(view)
next_parts.probabilities(view)
lens = next_parts.place()
next_parts.parts_of_the_logit(view)
with lens:  # last, as it may take a while: all else is there
    next_parts.lens(view)
