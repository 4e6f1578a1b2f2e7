"""Generate in a real browser: the text grows, a press ends it, and a token that was written can be looked into."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

APP = Path(__file__).parents[2] / "app.py"
RESTING = '[data-testid="stApp"][data-test-script-state="notRunning"]'


@pytest.fixture(scope="module")
def url(serve):
    with serve(APP) as address:
        yield address


def query(page) -> dict[str, str]:
    href = page.evaluate("location.href")
    return {name: values[-1] for name, values in parse_qs(urlsplit(href).query).items()}


def open_(page, url: str, name: str, **choices: str) -> None:
    page.goto(f"{url}/{name}?{urlencode(choices)}")
    page.wait_for_selector(".gl-token", timeout=60_000)
    page.wait_for_selector(RESTING)


def test_write_stop_and_look_inside(page, url):
    choices = urlencode({"model": "random", "preset": "tiny", "layers": "24", "ids": "10,20,30,40", "new": "256"})
    page.goto(f"{url}/Generate?{choices}")
    written = 'document.querySelector(".gl-writing b")?.textContent.trim().split(/\\s+/).length > 4'
    page.wait_for_function(written)  # position 6 is clicked below
    page.get_by_test_id("stMain").get_by_role("button", name="stop").click()
    page.wait_for_selector(".gl-writing", state="detached")
    page.wait_for_selector(RESTING)
    made = int(query(page)["new"])
    assert 3 < made < 256
    page.get_by_text(f"{made} tokens, as many as were asked for").wait_for()

    page.get_by_role("button", name="one token").click()
    page.wait_for_function(f"new URLSearchParams(location.search).get('new') === '{made + 1}'")
    page.wait_for_selector(RESTING)
    page.locator('.gl-written [data-i="6"]').click()
    page.get_by_role("heading", name=re.compile("^Why .* position 6$")).wait_for()
    page.get_by_role("link", name="inside this pass: Attention").click()
    page.wait_for_function("new URLSearchParams(location.search).get('token') === '5'")
    page.get_by_text("1 token ·").wait_for()


def test_a_token_that_was_read_again_is_looked_into_by_the_strip(page, url):
    open_(page, url, "Attention", model="random", preset="nano", ids="10,20,30", new="4")
    page.locator('.gl-token[data-i="3"]').click()
    page.wait_for_function("new URLSearchParams(location.search).get('token') === '3'")
    page.get_by_text("1 token ·").wait_for()
    last = page.locator(".gl-token[aria-disabled]")
    assert last.count() == 1
    last.click(force=True)
    assert query(page)["token"] == "3"
    assert page.console_errors == [] or all("404" in each for each in page.console_errors)
