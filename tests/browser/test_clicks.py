"""Clicks on MLP, Residual stream and Activations, with the model that a first visit opens on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_pages import clean, eventually, query, visit, watch

from llama_core import load, run
from llama_core.steps import STEPS
from pages.words import t

APP = Path(__file__).parents[2] / "app.py"
MODEL = Path(__file__).parents[2] / "assets" / "tiny-llama"
PROMPT = "Mia had a red ball. She went to the park"
TABLE_ROW = 33  # px: Streamlit draws its table on a canvas, where no element can be asked for


@pytest.fixture(scope="module")
def trace():
    return run(load(MODEL), PROMPT)


@pytest.fixture(scope="module")
def opened(serve, browser):
    """opened(page): this page of the app, in the one tab that all these tests share."""
    with serve(APP) as url, browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = watch(context.new_page())
        page.set_default_timeout(30_000)
        page.console_errors = []
        page.on("console", lambda message: message.type == "error" and page.console_errors.append(message.text))
        page.on("pageerror", lambda error: page.console_errors.append(str(error)))
        yield lambda name: visit(page, url, name, prompt=PROMPT)


def click_cell(page, key: str, *, row: int, column: int, shape: tuple[int, int]) -> None:
    """Click the middle of one cell of a map of this shape."""
    area = page.locator(f".st-key-{key} .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    x = box["x"] + (column + 0.5) * box["width"] / shape[1]
    y = box["y"] + (row + 0.5) * box["height"] / shape[0]
    page.mouse.move(x - 2, y - 2)  # Plotly clicks what it hovers
    page.mouse.click(x, y)


def layer(page) -> str:
    return page.get_by_role("spinbutton", name=t("pick.layer")).input_value()


def chosen(page) -> tuple[str | None, ...]:
    """Address and token of the URL, the layer beside the title, the token that is lit in the strip."""
    found = query(page)
    lit = page.locator(".gl-token.gl-here").get_attribute("data-i")
    return found.get("at"), found.get("token"), layer(page), lit


def test_mlp_shows_the_neurons_of_the_token_and_the_layer_that_are_clicked(opened, trace):
    page = opened("mlp")
    page.locator(".gl-token").nth(4).click()
    eventually(page, chosen, ("embed", "4", "0", "4"))
    for layer in ("1", "2"):
        page.locator(".st-key-choice-layer").get_by_test_id("stNumberInputStepUp").click()
        eventually(page, chosen, (f"{layer}.gate", "4", layer, "4"))
    page.get_by_text(t("mlp.neurons", token="·red", position=4, layer=2)).wait_for()
    rows = page.locator(".gl-table").first.locator("tbody tr")
    assert rows.count() == 8
    for cells in (row.locator("td").all_text_contents() for row in rows.all()):
        expected = [float(trace[f"2.{step}"][0, 4, int(cells[0])]) for step in ("gate", "act", "up", "gated")]
        assert [float(cell) for cell in cells[1:5]] == pytest.approx(expected, rel=0.01)
    clean(page)


def test_a_cell_of_the_stream_chooses_its_token_and_its_layer(opened, trace):
    page = opened("stream")
    shape = (trace.walk.layers + 1, len(trace.ids))
    click_cell(page, "stream", row=3, column=5, shape=shape)
    eventually(page, chosen, ("2.attn_norm", "5", "2", "5"))

    click_cell(page, "stream", row=0, column=1, shape=shape)  # embed: no layer
    eventually(page, chosen, ("2.attn_norm", "1", "2", "1"))
    page.locator(".st-key-choice-stage").get_by_role("radio", name="mlp_norm").click()
    eventually(page, chosen, ("2.mlp_norm", "1", "2", "1"))

    page.locator(".gl-token").nth(3).click()
    eventually(page, chosen, ("2.mlp_norm", "3", "2", "3"))
    click_cell(page, "stream", row=0, column=1, shape=shape)  # the same cell again
    eventually(page, chosen, ("2.mlp_norm", "1", "2", "1"))
    clean(page)


def test_a_cell_of_the_activations_and_a_row_of_their_table_choose_a_step(opened, trace):
    page = opened("ranges")
    steps = [step.key for step in STEPS if step.scope == "layer" and trace.walk.has(step)]
    shape = (len(steps), trace.walk.layers)

    def says(page) -> str:
        return page.get_by_test_id("stMain").locator(".gl-mono").first.inner_text().split(" — ")[0]

    click_cell(page, "ranges", row=steps.index("act"), column=2, shape=shape)
    eventually(page, says, "2.act")
    assert (query(page)["at"], layer(page)) == ("2.act", "2")
    page.get_by_text(t("ranges.channels.here", layer=2, step="act")).wait_for()

    page.get_by_role("radio", name=t("ranges.zeros")).click()
    eventually(page, lambda page: query(page).get("range"), "zeros")
    click_cell(page, "ranges", row=steps.index("q_rot"), column=3, shape=shape)
    eventually(page, says, "3.q_rot")

    table = page.get_by_test_id("stDataFrame")
    table.scroll_into_view_if_needed()
    order = [str(at) for at in trace.walk.order]
    table.click(position={"x": 17, "y": TABLE_ROW * (order.index("0.v") + 1.5)})
    eventually(page, lambda page: query(page)["at"], "0.v")
    eventually(page, says, "0.v")

    click_cell(page, "ranges", row=steps.index("q_rot"), column=3, shape=shape)  # the same cell again
    eventually(page, says, "3.q_rot")
    clean(page)
