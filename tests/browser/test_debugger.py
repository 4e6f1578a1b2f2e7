"""The debugger by hand: a breakpoint stops the run, a click explains a cell, a link leads back; a long run is ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_pages import SMOL, cursor, eventually, heading, query, visit, watch

from llama_core import explain, load, run
from pages.figures import numbers
from pages.words import t

APP = Path(__file__).parents[2] / "app.py"
IDS = (10, 20, 30, 40, 50)


@pytest.fixture(scope="module")
def server(serve):
    with serve(APP) as url:
        yield url


def computed_yet(page) -> str:
    return page.locator(".gl-stepper .gl-state").text_content()


def test_a_breakpoint_stops_a_click_explains_and_a_link_walks_back(new_page, server):
    page = visit(watch(new_page()), server, model="random", preset="nano", at="1.q_rot")
    trace = run(load("nano"), IDS)
    page.get_by_role("button", name=t("stop.title")).click()
    page.get_by_role("button", name=t("stop.break.every", step="q_rot")).click()
    eventually(page, heading, "0.q_rot")
    assert query(page)["breaks"] == "q_rot"
    page.keyboard.press("Escape")
    page.get_by_role("button", name=t("stop.on")).click()
    eventually(page, heading, "1.q_rot")
    assert page.locator(".gl-node.gl-has-stop").text_content().startswith("q_rot")

    _click_cell(page, row=2, column=1, shape=(5, trace.config.head_dim))
    eventually(page, lambda page: query(page).get("cell"), "0,2,0,1")
    assert query(page)["token"] == "2"
    found = explain(trace, "1.q_rot", (2, 0, 1))
    assert page.locator(".gl-cell b").last.text_content() == numbers.short(found.value, 4)

    source = found.terms[0].factors[0].source
    page.locator(".gl-go").first.click()
    eventually(page, cursor, str(source.at))
    eventually(page, heading, str(source.at))
    eventually(
        page, lambda page: page.locator(".gl-cell b").last.text_content(), numbers.short(trace["1.q"][source.index], 4)
    )
    page.go_back()
    eventually(page, heading, "1.q_rot")
    page.keyboard.press("ArrowRight")
    eventually(page, computed_yet, t("stepper.not_computed"))
    assert t("stop.run_here") in page.locator(".st-key-stop-run_here").text_content()
    assert page.trouble == []
    assert [text for text in page.console_errors if "404" not in text] == []  # they ask below the page first


def _click_cell(page, *, row: int, column: int, shape: tuple[int, int]) -> None:
    area = page.locator(".st-key-map .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    at = ((column + 0.5) * box["width"] / shape[1], (row + 0.5) * box["height"] / shape[0])
    page.mouse.move(box["x"] + at[0] - 2, box["y"] + at[1] - 2)
    page.mouse.click(box["x"] + at[0], box["y"] + at[1])


def test_a_long_run_is_ended_by_hand(new_page, server):
    page = watch(new_page())
    page.goto(f"{server}/Step_by_step?model={SMOL}&at=0.q&prompt={'one two three four. ' * 74}")
    page.locator('[class*="st-key-run-end"] button').click(timeout=60_000)
    page.get_by_text(t("run.ended")).wait_for()
    assert page.locator(".gl-stepper").count() == 0
    assert page.get_by_role("button", name=t("run.again")).is_visible()
    assert page.trouble == []
    assert [text for text in page.console_errors if "404" not in text] == []  # they ask below the page first
