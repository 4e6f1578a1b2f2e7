"""The stepper: controls, layer rail and drawing of the layer as one component with one cursor.

The cursor moves in the browser at once; Python hears the absolute address, the last one wins (see
`echo`). Store the returned address right away, and give it back as `at` in the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import streamlit as st

from llama_core.errors import AddressError
from llama_core.steps import At, Walk
from pages.figures.decoder_map import MAP_CSS, layer_svg
from pages.ui.echo import asset, line, listener
from pages.words import group

_BUTTONS = ("first", "layer_back", "back", "forward", "layer_forward", "last")
_HTML = f"""
<div class="gl-stepper gl-light" role="group">
  <div class="gl-top">
    <div class="gl-bar">
      <span class="gl-set">{"".join(f'<button type="button" data-do="{name}"></button>' for name in _BUTTONS)}</span>
      <span class="gl-set"><button type="button" data-do="play"></button>
        {"".join(f'<button type="button" data-speed="{n}">{n}×</button>' for n in (1, 2, 4))}</span>
    </div>
    <div class="gl-where">
      <span class="gl-position"><span class="gl-n" aria-live="polite"></span><span class="gl-state"></span></span>
      <select class="gl-choice"></select>
    </div>
    <div class="gl-layers">
      <span class="gl-layer-word" aria-hidden="true"></span>
      <input class="gl-number" type="number" inputmode="numeric" min="0" step="1">
      <div class="gl-rail" role="group"></div>
    </div>
  </div>
  <details open><summary></summary>
    <div class="gl-drawing"></div>
    <div class="gl-hint" aria-hidden="true"></div>
  </details>
</div>
"""

_component = st.components.v2.component(
    "glass_llama_stepper", html=_HTML, css=MAP_CSS + asset("stepper.css"), js=asset("echo.js", "stepper.js")
)


def stepper(
    walk: Walk,
    dims: Mapping[str, int],
    at: At,
    *,
    computed: int | None = None,
    marks: Mapping[str, str] | None = None,
    on_move: Callable[[At], None] | None = None,
    key: str = "stepper",
) -> At:
    """Draw the stepper with its cursor at `at`; return where the person moved it, or `at`.

    computed: how many addresses of the walk have been computed (None: all); later ones are hollow.
    marks: address -> "edited", "breakpoint" or both in one text, drawn at that step.
    on_move: called with the new address before the script runs, so that what stands above the
    stepper sees it in the same run; then `at` already is the new address.
    """
    walk.index(at)  # an address of another model is a mistake of the page: AddressError
    heard = line(key)
    n = heard.n
    target = (_read(walk, heard.value) if heard.fresh else None) or at
    result = _component(
        key=key,
        data=_data(walk, dims, target, computed, marks or {}) | {"ack": heard.ack()},
        on_at_change=listener(key, "at", on_move and (lambda value: _tell(walk, value, on_move))),
    )
    if heard.hear(result.at):  # a state that no callback announced: the first run after a reconnection
        target, n = _read(walk, heard.value) or target, heard.n
    heard.handed_over(n)
    return target


def _read(walk: Walk, value: object) -> At | None:
    """The address in a message from the browser, None when this walk has no such step."""
    try:
        return walk.parse(value) if isinstance(value, str) else None
    except AddressError:
        return None


def _tell(walk: Walk, value: object, on_move: Callable[[At], None]) -> None:
    moved = _read(walk, value)
    if moved is not None:
        on_move(moved)


def _data(
    walk: Walk, dims: Mapping[str, int], at: At, computed: int | None, marks: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "at": str(at),
        "computed": computed,
        "marks": dict(marks),
        "walk": _walk(walk),
        "titles": {step.key: step.title for step in walk.steps},
        "texts": group("stepper.") | group("map."),
        "svg": layer_svg(walk, dims),
    }


@lru_cache(maxsize=16)
def _walk(walk: Walk) -> dict[str, Any]:
    """The walk's order in short: model steps before the layers, a layer's steps, model steps after."""
    before = [at.step.key for at in walk.order[: next(i for i, at in enumerate(walk.order) if at.layer == 0)]]
    body = [at.step.key for at in walk.order if at.layer == 0]
    after = [at.step.key for at in walk.order[len(before) + len(body) * walk.layers :]]
    return {"head": before, "body": body, "tail": after, "layers": walk.layers}
