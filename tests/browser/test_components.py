"""The stepper and the token strip in a real browser: no press is lost, nothing pulls the cursor back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llama_core.steps import At, Walk

WALK = Walk(30)
BOX = ".gl-stepper"


@pytest.fixture(scope="module")
def demo(serve):
    with serve(Path(__file__).with_name("component_demo.py")) as url:
        yield url


def show(page, demo: str, query: str = ""):
    page.goto(f"{demo}/?{query}")
    page.wait_for_selector(f"{BOX}[data-at]")
    page.wait_for_selector(".gl-token")
    settle(page)
    return page


def settle(page) -> None:
    """Wait until the page's run has ended."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def cursor(page) -> str:
    return page.locator(BOX).get_attribute("data-at")


def python(page) -> str:
    return page.locator('[data-testid="stCode"]').inner_text().strip()


def expect_at(page, at: At | str, seconds: float = 15) -> None:
    """Browser and Python both stand at this address, and stay there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if cursor(page) == str(at) and f"at={at} " in python(page):
            break
        page.wait_for_timeout(50)
    settle(page)
    page.wait_for_timeout(400)
    assert cursor(page) == str(at)
    assert f"at={at} " in python(page)


def expect_token(page, position: int, seconds: float = 15) -> None:
    """Strip and Python both have this token chosen."""
    lit, end = page.locator(".gl-token.gl-here"), time.monotonic() + seconds
    while time.monotonic() < end:
        if lit.get_attribute("data-i") == str(position) and python(page).endswith(f"token={position}"):
            return
        page.wait_for_timeout(50)
    assert (lit.get_attribute("data-i"), python(page)) == (str(position), f"... token={position}")


def order(index: int) -> At:
    return WALK.order[index]


def do(page, name: str):
    return page.locator(f'[data-do="{name}"]')


def test_ten_quick_presses_of_right_are_ten_steps(page, demo):
    show(page, demo)
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert cursor(page) == str(order(10))
    expect_at(page, order(10))
    assert page.console_errors == []


def test_ten_quick_clicks_are_ten_steps(page, demo):
    show(page, demo)
    for _ in range(10):
        do(page, "forward").click(delay=0)
    expect_at(page, order(10))
    for _ in range(3):
        do(page, "back").click(delay=0)
    expect_at(page, order(7))


def test_fifty_presses_within_one_frame_all_count(page, demo):
    show(page, demo)
    page.evaluate(
        """() => { for (let i = 0; i < 50; i++)
             document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true})) }"""
    )
    expect_at(page, order(50))


def test_fifty_presses_while_the_page_is_slow_all_count(page, demo):
    show(page, demo, "slow=0.4")
    seen = []
    for i in range(50):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(30)
        seen.append(cursor(page) == str(order(i + 1)))
    assert all(seen), "an older answer pulled the cursor back"
    expect_at(page, order(50))


def test_shift_moves_by_layers_and_home_and_end_to_the_ends(page, demo):
    show(page, demo, "at=3.q_rot")
    page.keyboard.press("Shift+ArrowRight")
    expect_at(page, "4.q_rot")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    expect_at(page, "2.q_rot")
    page.keyboard.press("End")
    expect_at(page, "logits")
    page.keyboard.press("ArrowRight")
    assert cursor(page) == "logits"
    page.keyboard.press("Home")
    expect_at(page, "embed")


def test_keys_belong_to_the_field_that_is_typed_in(page, demo):
    show(page, demo, "at=3.q_rot")
    field = page.get_by_role("textbox", name="notes")
    field.fill("abc")
    for key in ("ArrowLeft", "ArrowRight", "Home", "End"):
        field.press(key)
    page.get_by_role("slider", name="a slider").press("ArrowRight")
    page.locator(".gl-number").press("Home")
    expect_at(page, "3.q_rot")
    page.locator("[data-testid=stCaptionContainer]").last.click()
    page.keyboard.press("Control+ArrowRight")
    expect_at(page, "3.q_rot")


def test_focus_stays_on_the_pressed_button(page, demo):
    show(page, demo)
    do(page, "forward").click()
    expect_at(page, order(1))
    focused = page.locator(BOX).evaluate("box => box.getRootNode().activeElement?.dataset.do")
    assert focused == "forward"
    page.keyboard.press("Enter")
    expect_at(page, order(2))


def test_a_change_from_python_moves_the_cursor(page, demo):
    show(page, demo)
    page.keyboard.press("ArrowRight")
    expect_at(page, order(1))
    page.get_by_role("button", name="to 5.k").click()
    expect_at(page, "5.k")
    page.keyboard.press("ArrowRight")
    expect_at(page, "5.v")
    page.get_by_role("button", name="to 5.k").click()
    expect_at(page, "5.k")


def test_what_stands_above_the_stepper_hears_of_a_move_in_the_same_run(page, demo):
    show(page, demo, "early")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    expect_at(page, order(7))
    assert page.get_by_text(f"above the stepper: {order(7)}").is_visible()
    page.get_by_role("button", name="to 5.k").click()
    expect_at(page, "5.k")


def test_a_move_is_not_lost_to_another_widget_pressed_right_after(page, demo):
    show(page, demo, "slow=0.3")
    for count in range(1, 6):
        page.keyboard.press("ArrowRight")
        page.locator(".gl-token").nth(count).click(delay=0)
        page.locator(BOX).evaluate("box => box.getRootNode().activeElement?.blur()")
        page.locator("[data-testid=stCaptionContainer]").last.click()
    expect_at(page, order(5))
    assert "token=5" in python(page)


def test_keyboard_focus_in_the_drawing_follows_the_cursor(page, demo):
    show(page, demo, "at=3.q_rot")
    page.locator('[data-step="q_rot"]').focus()
    page.keyboard.press("ArrowRight")
    expect_at(page, "3.k_rot")
    assert page.locator(BOX).evaluate("box => box.getRootNode().activeElement.dataset.step") == "k_rot"
    assert page.locator('.gl-node[tabindex="0"]').count() == 1


def test_a_click_on_a_node_goes_there(page, demo):
    show(page, demo, "at=3.q_rot")
    page.locator('[data-step="gated"]').click()
    expect_at(page, "3.gated")
    page.locator('[data-step="embed"]').click()
    expect_at(page, "embed")
    page.locator('[data-step="logits"]').click()
    expect_at(page, "logits")
    assert page.locator(".gl-layer").text_content() == "layer 29"


def test_rail_number_and_list_go_there(page, demo):
    show(page, demo, "at=3.q_rot")
    page.locator('[data-layer="7"]').click()
    expect_at(page, "7.q_rot")
    page.locator(".gl-number").fill("21")
    page.locator(".gl-number").press("Enter")
    expect_at(page, "21.q_rot")
    page.locator(".gl-choice").select_option("weights")
    expect_at(page, "21.weights")
    assert page.locator('[data-layer="21"]').evaluate(
        "c => c.getBoundingClientRect().right <= c.parentElement.getBoundingClientRect().right + 1"
    )


def test_play_moves_on_and_pauses(page, demo):
    show(page, demo)
    page.locator('[data-speed="4"]').click()
    do(page, "play").click()
    page.wait_for_function("box => box.dataset.at === '0.q'", arg=page.locator(BOX).element_handle())
    do(page, "play").click()
    settle(page)
    stood = cursor(page)
    page.wait_for_timeout(900)
    expect_at(page, stood)


def test_play_stops_at_the_end_and_when_a_person_moves(page, demo):
    show(page, demo, "at=29.resid_out")
    page.locator('[data-speed="4"]').click()
    do(page, "play").click()
    expect_at(page, "logits")
    assert do(page, "play").get_attribute("data-shows") == "play"
    page.keyboard.press("ArrowLeft")
    do(page, "play").click()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(700)
    expect_at(page, "29.resid_out")


def test_what_is_not_computed_is_hollow(page, demo):
    show(page, demo, f"at=0.scores&computed={WALK.index(WALK.parse('0.weights'))}")
    assert "gl-hollow" in page.locator('[data-step="weights"]').get_attribute("class")
    assert "gl-hollow" not in page.locator('[data-step="masked"]').get_attribute("class")
    assert "gl-has-stop" in page.locator('[data-step="scores"]').get_attribute("class")
    assert "gl-has-edit" in page.locator('[data-step="attn_out"]').get_attribute("class")


def test_the_drawing_is_not_rebuilt_by_a_step(page, demo):
    show(page, demo)
    page.locator(".gl-map").evaluate("map => { map.mark = 1 }")
    page.keyboard.press("ArrowRight")
    expect_at(page, order(1))
    assert page.locator(".gl-map").evaluate("map => map.mark") == 1


def test_token_text_is_shown_letter_for_letter(page, demo):
    show(page, demo)
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    texts = page.locator(".gl-piece").all_text_contents()
    for text in ("<img src=x onerror=alert(1)>", "**bold** :red[r] $x$", '" onmouseover="alert(1)', " 東 1/3", "\n"):
        assert text in texts
    assert page.locator(".gl-strip img, .gl-strip b, .gl-strip script").count() == 0
    page.locator(".gl-token").nth(10).hover()
    assert dialogs == []


def test_the_strip_moves_by_click_and_by_its_own_keys(page, demo):
    show(page, demo, "at=3.q_rot")
    page.locator(".gl-token").nth(3).click()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect_token(page, 7)
    expect_at(page, "3.q_rot")
    assert page.locator(".gl-token.gl-here").get_attribute("data-i") == "7"
    assert page.locator(".gl-token").nth(7).evaluate("cell => cell.getRootNode().activeElement === cell")


def test_two_thousand_tokens_keep_the_chosen_one_in_view(page, demo):
    show(page, demo, "many")
    page.locator(".gl-token").nth(2).click()
    page.keyboard.press("End")
    expect_token(page, 1999)
    box = page.locator(".gl-token").nth(1999).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1400
    assert page.console_errors == []


def test_a_narrow_screen_folds_the_drawing_and_does_not_scroll_sideways(new_page, demo):
    page = show(new_page(viewport={"width": 390, "height": 844}), demo, "at=3.q_rot")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not page.locator(".gl-map").is_visible()
    page.locator(".gl-stepper summary").click()
    assert page.locator(".gl-map").is_visible()
    page.locator('[data-step="gate"]').click()
    expect_at(page, "3.gate")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    inner = page.locator(BOX).evaluate("box => box.scrollWidth <= box.clientWidth")
    assert inner
