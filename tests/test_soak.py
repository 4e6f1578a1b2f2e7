"""Many people at one server, over real websockets: what they are told, what they leave behind, how they go."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from llama_core import PRESETS, load, run
from pages.words import t

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from soak import LEAK, errors, models, questions, rest, said, soak
from wire import Answer, Server, Tab, serving

SHORT = {"model": "random", "preset": "nano", "ids": "1,2,3,4,5"}
TOKENS = 120
WIDE = {"model": "random", "preset": "nano", "layers": 60, "mlp": 16384}
"""A model whose pass over so many tokens takes a second, and whose trace is small."""
SLOW = {"model": "random", "preset": "teaching-83M", "hidden": 16, "heads": 8, "kv": 1, "layers": 60, "mlp": 4096}
ENDLESS = 1900
"""Tokens that it takes many seconds to run explicitly through the slow one."""
AT_ONCE = 2


@contextmanager
def small(log: Path, **more: str) -> Iterator[Server]:
    """A server on little memory; its log must be empty of errors in the end, and nothing left at work."""
    limits = {"GLASS_LLAMA_HOLD_MIB": "1", "GLASS_LLAMA_AT_ONCE": str(AT_ONCE), "OMP_NUM_THREADS": "1"}
    with serving(log, **limits | more) as found:
        yield found
        threads, _ = rest(found)
    assert errors(log) == []
    assert threads < 16  # the server's own: no script, survey or sweep is left


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """One that keeps few traces, so that most are made again."""
    with small(tmp_path_factory.mktemp("soak") / "log", GLASS_LLAMA_TRACE_MIB="1") as found:
        yield found


@pytest.fixture(scope="module")
def roomy(tmp_path_factory) -> Iterator[Server]:
    """One with room for the traces of long prompts."""
    with small(tmp_path_factory.mktemp("roomy") / "log") as found:
        yield found


def long(first: int) -> dict[str, object]:
    """A question whose run takes a second; another one for another first id."""
    return WIDE | {"ids": ",".join(str((first + 7 * i) % 60) for i in range(TOKENS))}


def send(tab: Tab, query: dict[str, object], text: str, share: float = 0) -> str:
    """Ask, and read until a bar says this and so much is done; the id of the button beside it."""
    tab.send("Tokens", query)
    button, said_so_far = "", set()
    for message, _ in tab.messages():
        element = message.delta.new_element
        if element.WhichOneof("type") == "button" and "run.end" in element.button.id:
            button = element.button.id
        if element.WhichOneof("type") == "progress" and element.progress.value >= share:
            said_so_far.add(element.progress.text.replace("\\", ""))
        if button and any(re.fullmatch(text, each) for each in said_so_far):
            return button
    raise AssertionError(f"{text} was never said, only {said_so_far}")


@contextmanager
def crowd(server: Server) -> Iterator[None]:
    """Every turn there is has somebody, seen at work, for longer than a test takes; they are killed in the end."""
    with ExitStack() as tabs:
        works = [tabs.enter_context(Tab(server)) for _ in range(AT_ONCE)]
        for i, tab in enumerate(works):
            query = SLOW | {"attention": "explicit", "ids": ",".join([str(i), *["5"] * (ENDLESS - 1)])}
            send(tab, query, t("run.running", tokens=ENDLESS), share=1)
        yield
        for tab in works:
            tab.kill()


def htmls(answer: Answer) -> list[str]:
    return [delta.new_element.html.body for delta in answer.shown.values()]


QUEUED = t("run.queued", before="[0-9]+")


def test_what_four_people_are_told_at_once_is_what_one_is_told_alone(server):
    asked = [each for each in questions(models(real=False)) if each.query.get("seed") != 5]
    here = soak(server, asked, sessions=4, seconds=60)
    assert here.trouble == []
    assert here.wrong == []
    assert here.counts["made again"] > 10  # not only looked up
    assert here.left == (0, 0)
    assert here.left_by_a_tab < LEAK


def test_who_waits_is_told_how_many_are_before_and_can_end_it(roomy):
    with Tab(roomy) as tab:
        with crowd(roomy):
            button = send(tab, SHORT | {"ids": "5"}, QUEUED)
            tab.send("Tokens", SHORT | {"ids": "5"}, press=button)
            assert any(t("run.ended") in html for html in htmls(tab.read()))
        assert any("1 token ·" in html for html in htmls(tab.ask("Tokens", SHORT | {"ids": "6"})))


def test_who_asks_for_what_another_tab_is_making_waits_for_it_and_takes_over_when_that_one_is_killed(roomy):
    with Tab(roomy) as maker, Tab(roomy) as tab:
        with crowd(roomy):
            send(maker, SHORT | {"ids": "7,8"}, QUEUED)
            send(tab, SHORT | {"ids": "7,8"}, t("run.shared"))
            maker.kill()
        assert any("2 tokens ·" in html for html in htmls(tab.read()))


def test_a_run_that_follows_a_new_page_at_once_tells_its_fields_their_values_again(roomy):
    """Back pressed twice: the browser may never draw the first run, and would show what fields hold by default."""
    with Tab(roomy) as tab:
        tab.ask("Tokens", SHORT)
        for token in (0, 1):
            shown = [delta.new_element for delta in tab.ask("Step_by_step", SHORT | {"token": token}).shown.values()]
            told = [each.text_input for each in shown if each.WhichOneof("type") == "text_input"]
            assert (True, SHORT["ids"]) in [(each.set_value, each.value) for each in told]


def test_fields_of_a_page_that_is_being_left_choose_nothing(roomy):
    """A second press of a link brings them along as they are; Streamlit has forgotten what they were."""
    with Tab(roomy) as tab:
        shown = [delta.new_element for delta in tab.ask("Sizes", SHORT).shown.values()]
        fields = {
            each.number_input.id: each.number_input.value
            for each in shown
            if each.WhichOneof("type") == "number_input" and each.number_input.set_value
        }
        assert len(fields) > 6
        for after in (5, 40, 10**6):  # messages of the next page; the last: all
            tab.send("RoPE", SHORT)
            for count, _ in enumerate(tab.messages()):
                if count >= after:
                    break
            tab.send("Sizes", SHORT, fields=fields)
            written = []
            tab.read(lambda message, to=written: message.HasField("page_info_changed") and to.append(message))
            assert written == []  # the address says what it said


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


# --- D6 ---


def test_memory_is_flat_after_a_few_runs_of_one_session_and_after_ten_sessions(tmp_path):
    ids = [[(7 * i + n) % 250 for i in range(256)] for n in range(30)]
    capture = run(load(PRESETS["tiny"], seed=0), ids[0], path="explicit").nbytes
    assert capture > 16 << 20  # more than the heap's own ups and downs
    room = {"GLASS_LLAMA_HOLD_MIB": "64", "GLASS_LLAMA_TRACE_MIB": "64"}

    def ask(tab: Tab, n: int) -> None:
        query = {"model": "random", "preset": "tiny", "attention": "explicit", "ids": ",".join(map(str, ids[n]))}
        assert any("256 tokens ·" in html for html in htmls(tab.ask("Tokens", query)))

    with small(tmp_path / "log", **room) as server:
        found = []
        with Tab(server) as tab:
            for n in range(20):
                ask(tab, n)
                found.append(server.nbytes())
        full = found[5]  # the store is full
        # Beside other work the heap wanders by more than a capture and comes back; what leaks does not come back.
        assert min(found[10:]) < full + capture
        for n in range(20, 30):
            with Tab(server) as tab:
                ask(tab, n)
                found.append(server.nbytes())
        rest(server)
        assert min(*found[20:], server.nbytes()) < full + capture
