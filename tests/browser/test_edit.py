"""The Edit page by hand: a head is chosen in a sweep, ablated, seen in the map, seen on other pages, and removed."""

from __future__ import annotations

from test_pages import eventually, link, query, server, settle, tab  # noqa: F401

from pages.words import t

NANO = {"model": "random", "preset": "nano", "ids": "3,9,3,9,3", "std": "0.3"}


def press(page, name: str) -> None:
    page.locator('[data-testid="stMain"]').get_by_role("button", name=name, exact=True).click()


def listed(page) -> list[str]:
    return page.locator('[class*="st-key-gl-edit-"] .gl-mono').all_text_contents()


def test_a_head_is_ablated_by_hand_its_effect_seen_and_taken_back(tab):  # noqa: F811
    page = tab("edit", **NANO)
    press(page, t("edit.sweep.go", n=8))
    sweep = page.get_by_role("img", name="8 parts").or_(page.locator(".st-key-edit-sweep-heads"))
    sweep.locator(".main-svg").first.wait_for()
    box = sweep.locator(".nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + 0.625 * box["width"], box["y"] + 0.75 * box["height"])  # layer 1, head 2 of 2 x 4
    eventually(page, lambda page: query(page).get("head"), "2")
    assert query(page)["at"] == "1.head_out"

    page.locator(".st-key-edit-quick-head").get_by_role("button").click()
    eventually(page, listed, ["1.head_out zero h2"])
    assert query(page)["edit"] == "1.head_out zero h2"
    page.locator(".st-key-edit-cone .main-svg").first.wait_for()
    page.get_by_text(t("edit.steps")).wait_for()

    link(page, "attention")
    line = page.locator(".st-key-gl-edited")
    line.wait_for()
    assert "1.head_out zero h2" in line.inner_text()
    line.get_by_role("link", name=t("edit.on.all")).click()

    page.locator(".st-key-edit-remove-0").get_by_role("button").click()
    eventually(page, listed, [])
    assert "edit" not in query(page)
    settle(page)
    assert page.locator(".st-key-edit-cone").count() == 0
    assert page.trouble == []
