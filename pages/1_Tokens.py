"""Tokens: what goes in? Text as pieces, each with its id, and the rows that the ids pick from the embedding table."""

from pages.ui import token_parts
from pages.ui.frame import open_page

view = open_page("tokens").run()
token_parts.lead()
token_parts.picture(view)
left, right = token_parts.columns()
with left:
    token_parts.chosen(view)
    token_parts.nearest(view)
with right:
    token_parts.every_piece(view)
