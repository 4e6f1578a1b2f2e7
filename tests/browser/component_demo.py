"""A page with nothing but the two components, for tests/browser/test_components.py and for a look by eye."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import streamlit as st

from llama_core.steps import At, Walk
from pages.ui.stepper import stepper
from pages.ui.token_strip import token_strip

st.set_page_config(layout="wide")
query = st.query_params
walk = Walk(int(query.get("layers", 30)), frozenset({"qk_norm"} if "qk_norm" in query else ()))
dims = {"B": 1, "T": 5, "S": 9, "D": 576, "Hq": 9, "Hkv": 3, "Dh": 64, "R": 32, "F": 1536, "V": 49152}
state = st.session_state
state.setdefault("at", walk.parse(query.get("at", "embed")))
state.setdefault("token", 0)
state["runs"] = state.get("runs", 0) + 1

if "many" in query:
    pieces = [(f" word{i}", False) for i in range(2000)]
else:
    words = ["The", " capital", " of", " France", " is", " 東 1/3", "\n", "  ", "", '" onmouseover="alert(1)']
    pieces = [("<|begin|>", True), *((word, False) for word in words)]
    pieces += [("<img src=x onerror=alert(1)>", False), ("**bold** :red[r] $x$", False), ("<|end|>", True)]


def to_5_k() -> None:
    state["at"] = walk.parse("5.k")


def go(at: At) -> None:
    state["at"] = at


if "early" in query:
    st.caption(f"above the stepper: {state['at']}")
state["token"] = token_strip(pieces, state["token"])
left, right = st.columns([420, 640], gap="large")
with left:
    computed = int(query["computed"]) if "computed" in query else None
    marks = {"0.scores": "breakpoint", "0.attn_out": "edited", "2.q": "edited breakpoint"}
    early = go if "early" in query else None
    state["at"] = stepper(walk, dims, state["at"], computed=computed, marks=marks, on_move=early)
if "slow" in query:
    time.sleep(float(query["slow"]))
with right:
    st.code(f"at={state['at']} token={state['token']}", language=None)
    st.button("to 5.k", on_click=to_5_k)
    st.text_input("notes")
    st.slider("a slider", 0, 10, 5)
    st.write(state["at"].step.title)
    st.caption(f"runs: {state['runs']}")
