"""Step by step: what does each step do to the numbers? The stepper and all that is known about one step."""

import streamlit as st

from pages.ui import step_parts
from pages.ui.frame import open_page
from pages.ui.session import session
from pages.ui.stepper import stepper

view = open_page("steps").run()
left, right = st.columns([4, 7], gap="medium")
with left:
    stepper(
        view.trace.walk,
        view.trace.dims,
        view.at,
        computed=view.trace.computed,
        on_move=lambda at: session().choose(at=str(at)),
    )
with right:
    step_parts.heading(view)
    step_parts.picture(view)  # above the formula: the eye should fall on the tensor first, on a phone too
    step_parts.formula(view)
    step_parts.statistics(view)
    step_parts.more(view)
