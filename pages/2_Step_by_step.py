"""Step by step: what does each step do to the numbers? The stepper, stops, and all that is known about one step."""

from functools import partial

import streamlit as st

from pages.ui import step_parts, stop_parts
from pages.ui.frame import open_page
from pages.ui.stepper import stepper

page = open_page("steps")
view = page.run(stops=True)
with page.picks:
    stop_parts.controls(view)
stop_parts.status(view)
left, right = st.columns([4, 7], gap="medium")
with left:
    stepper(
        view.trace.walk,
        view.trace.dims,
        view.at,
        computed=view.trace.computed,
        marks=stop_parts.marks(view),
        on_move=partial(step_parts.move, view),
    )
with right:
    step_parts.heading(view)
    step_parts.picture(view)  # above the formula: the eye should fall on the tensor first, on a phone too
    step_parts.formula(view)
    step_parts.statistics(view)
    step_parts.more(view)
