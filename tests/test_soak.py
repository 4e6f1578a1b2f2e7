"""Many people at one server, over real websockets: what they are told, what they leave behind, how they go."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pages.words import t

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from soak import FLAT, errors, models, questions, rest, said, soak
from wire import Answer, Server, Tab, serving

SHORT = {"model": "random", "preset": "nano", "ids": "1,2,3,4,5"}
TOKENS = 120
WIDE = {"model": "random", "preset": "nano", "layers": 60, "mlp": 16384}
"""A model whose pass over so many tokens takes seconds, and whose trace is small."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """One that keeps few traces, so that most are made again; its log must be empty of errors in the end."""
    log = tmp_path_factory.mktemp("soak") / "log"
    small = {"GLASS_LLAMA_TRACE_MIB": "1", "GLASS_LLAMA_HOLD_MIB": "1", "GLASS_LLAMA_AT_ONCE": "2"}
    with serving(log, **small, OMP_NUM_THREADS="1") as found:
        yield found
        threads, _ = rest(found)
    assert errors(log) == []
    assert threads < 16  # the server's own: no script, survey or sweep is left


def long(first: int) -> dict[str, object]:
    """A question whose run takes seconds; another one for another first id."""
    return WIDE | {"ids": ",".join(str((first + 7 * i) % 60) for i in range(TOKENS))}


def send(tab: Tab, query: dict[str, object], text: str) -> str:
    """Ask, and read until a bar says this; the id of the button beside it."""
    tab.send("Tokens", query)
    button, said_so_far = "", set()
    for message, _ in tab.messages():
        element = message.delta.new_element
        if element.WhichOneof("type") == "button" and "run.end" in element.button.id:
            button = element.button.id
        if element.WhichOneof("type") == "progress":
            said_so_far.add(element.progress.text.replace("\\", ""))
        if button and any(re.fullmatch(text, each) for each in said_so_far):
            return button
    raise AssertionError(f"{text} was never said, only {said_so_far}")


@contextmanager
def crowd(server: Server) -> Iterator[None]:
    """Eight long works, one of them seen in line; all are killed in the end."""
    with ExitStack() as tabs:
        works = [tabs.enter_context(Tab(server)) for _ in range(8)]
        for i, tab in enumerate(works[:-1]):
            tab.send("Tokens", long(i))
        send(works[-1], long(len(works)), QUEUED)
        yield
        for tab in works:
            tab.kill()


def htmls(answer: Answer) -> list[str]:
    return [delta.new_element.html.body for delta in answer.shown.values()]


QUEUED = t("run.queued", before="[0-9]+")


def test_what_four_people_are_told_at_once_is_what_one_is_told_alone(server):
    asked = [each for each in questions(models(real=False)) if each.query.get("seed") != 5]
    here = soak(server, asked, sessions=4, seconds=10)
    assert here.trouble == []
    assert here.wrong == []
    assert here.counts["made again"] > 10  # not only looked up
    assert here.left == (0, 0)
    assert here.growth < FLAT


def test_who_waits_is_told_how_many_are_before_and_can_end_it(server):
    with Tab(server) as tab:
        with crowd(server):
            button = send(tab, SHORT | {"ids": "5"}, QUEUED)
            tab.send("Tokens", SHORT | {"ids": "5"}, press=button)
            assert any(t("run.ended") in html for html in htmls(tab.read()))
        assert any("1 token ·" in html for html in htmls(tab.ask("Tokens", SHORT | {"ids": "6"})))


def test_who_asks_for_what_another_tab_is_making_waits_for_it_and_takes_over_when_that_one_is_killed(server):
    with Tab(server) as maker, Tab(server) as tab:
        with crowd(server):
            send(maker, SHORT | {"ids": "7,8"}, QUEUED)
            send(tab, SHORT | {"ids": "7,8"}, t("run.shared"))
            maker.kill()
        assert any("2 tokens ·" in html for html in htmls(tab.read()))


def test_a_storm_of_reloads_while_a_run_computes_leaves_no_turn_and_no_thread_behind(server):
    with Tab(server) as tab:
        alone = said(tab.ask("Step_by_step", SHORT))
    before, _ = rest(server)
    tab = Tab(server)
    tab.send("Tokens", long(10))
    next(tab.messages())
    for reload in range(20):
        came_back = tab.session if reload % 2 else ""
        tab.kill()
        tab = Tab(server, came_back)
        tab.send("Tokens", long(10 + reload % 3))
        if not reload % 2:  # its session is known once it has begun
            next(tab.messages())
    while not any(f"{TOKENS} tokens ·" in html for html in htmls(tab.read())):
        pass  # the end of a run of the tab before
    tab.kill()
    for _ in range(3):
        with Tab(server) as tab:
            assert said(tab.ask("Step_by_step", SHORT)).numbers == alone.numbers
    after, _ = rest(server)
    assert after <= before
