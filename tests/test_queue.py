"""The line of works: first come, first served; whoever leaves gives the place up; the background gives way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pages.ui.queue import Queue, held
from pages.ui.store import Shelf

SOON = 20
"""Seconds after which something hangs. Nothing here waits that long."""


class _Stop(BaseException):
    """As Streamlit ends a script: not an Exception."""


class Work:
    """A work in a thread of its own: `queued` once it has been told that others are before it, `begun`, `end` it."""

    def __init__(self, line: Queue, order: list | None = None) -> None:
        self.line, self.order = line, [] if order is None else order
        self.queued, self.begun, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.told: list[int] = []
        self.stopped: BaseException | None = None
        self.cancelled = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            with self.line.turn(self._waiting):
                self.order.append(self)
                self.begun.set()
                assert self.may_end.wait(SOON)
        except _Stop as stopped:
            self.stopped = stopped

    def _waiting(self, before: int) -> None:
        if not self.told or self.told[-1] != before:
            self.told.append(before)
        self.queued.set()
        if self.cancelled:
            raise _Stop

    def end(self) -> None:
        self.may_end.set()
        self.join()

    def join(self) -> None:
        self.thread.join(SOON)
        assert not self.thread.is_alive()


def begun(line: Queue, n: int = 1) -> list[Work]:
    works = [Work(line) for _ in range(n)]
    assert all(work.begun.wait(SOON) for work in works)
    return works


def queued(line: Queue, order: list | None = None) -> Work:
    work = Work(line, order)
    assert work.queued.wait(SOON)
    return work


def test_who_comes_first_is_served_first_and_everybody_is_told_how_many_are_before():
    line, order = Queue(1), []
    (first,) = begun(line)
    works = [queued(line, order) for _ in range(5)]
    assert [work.told for work in works] == [[1], [2], [3], [4], [5]]
    first.end()
    for work in works:
        assert work.begun.wait(SOON)
        work.end()
    assert order == works
    assert all(work.told == sorted(work.told, reverse=True) for work in works)


def test_so_many_run_at_once_and_no_more():
    line, running, most = Queue(2), Counter(), []
    pairs, lock = threading.Barrier(2, timeout=SOON), threading.Lock()

    def work(_) -> None:
        with line.turn(lambda before: None):
            with lock:
                running["now"] += 1
                most.append(running["now"])
            pairs.wait()  # passes only when two are inside
            with lock:
                running["now"] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max(most) == 2


def test_who_ends_while_waiting_gives_the_place_up():
    line = Queue(1)
    (first,) = begun(line)
    one, other = queued(line), queued(line)
    one.cancelled = True
    one.join()
    assert isinstance(one.stopped, _Stop)
    assert not one.begun.is_set()
    first.end()
    assert other.begun.wait(SOON)
    other.end()


@pytest.mark.parametrize("error", [_Stop, OSError])
def test_a_turn_ends_with_the_work_whatever_ends_it(error):
    line = Queue(1)
    with pytest.raises(error), line.turn(lambda before: None):
        raise error
    begun(line)[0].end()


def test_a_work_inside_a_work_has_its_turn():
    line = Queue(1)
    with line.turn(pytest.fail):
        waiting = queued(line)
        with line.turn(pytest.fail):
            pass
        assert not waiting.begun.wait(0.05)  # the inner one's end did not end the outer one's turn
    assert waiting.begun.wait(SOON)
    waiting.end()


def test_a_long_work_lets_those_who_wait_pass_between_its_steps():
    line, order = Queue(1, share=0), []
    stepped, waiting = threading.Event(), threading.Event()

    def long() -> None:
        with line.turn(lambda before: None) as pass_on:
            pass_on()  # nobody waits: it goes on at once
            order.append("first step")
            stepped.set()
            assert waiting.wait(SOON)
            pass_on()
            order.append("second step")

    thread = in_background(long)
    assert stepped.wait(SOON)
    other = queued(line, order)
    waiting.set()
    assert other.begun.wait(SOON)
    assert order == ["first step", other]
    other.end()
    thread.join(SOON)
    assert order == ["first step", other, "second step"]


def test_a_long_work_computes_for_its_share_of_time_first():
    line = Queue(1, share=SOON)
    with line.turn(pytest.fail) as pass_on:
        other = queued(line)
        pass_on()
        assert not other.begun.is_set()
    assert other.begun.wait(SOON)
    other.end()


# --- the background ---


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_background_work_gives_way_to_who_computes_and_who_waits():
    line, parts = Queue(1), []
    (first,) = begun(line)
    second = queued(line)

    def survey() -> None:
        for layer in range(2):
            line.give_way(longest=SOON)
            parts.append(layer)

    thread = in_background(survey)
    first.end()
    assert second.begun.wait(SOON)
    thread.join(0.05)  # time enough to go wrong
    assert parts == []
    second.end()
    thread.join(SOON)
    assert parts == [0, 1]


def test_background_work_is_never_starved_for_ever():
    line = Queue(1)
    (work,) = begun(line)
    thread = in_background(lambda: line.give_way(longest=0.01))
    thread.join(SOON)
    assert not thread.is_alive()
    work.end()


# --- the same thing, asked for by several ---


@pytest.fixture
def shelf():
    return Shelf(limit=1000, size=lambda thing: 1)


class Asking:
    """Somebody who asks for a thing; `making` once it is made here, `waits` once it is made elsewhere."""

    def __init__(self, shelf: Shelf, key: str = "key") -> None:
        self.shelf, self.key = shelf, key
        self.making, self.waits, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.cancelled, self.found = False, None
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.found = self.shelf.get_or_make(self.key, self._make, self._waiting)
        except _Stop:
            self.found = "stopped"

    def _make(self) -> str:
        self.making.set()
        assert self.go_on.wait(SOON)
        if self.cancelled:
            raise _Stop
        return f"made by {id(self)}"

    def _waiting(self) -> None:
        self.waits.set()
        if self.cancelled:
            raise _Stop

    def done(self) -> str:
        self.thread.join(SOON)
        assert not self.thread.is_alive()
        return self.found


def test_who_waits_for_a_thing_that_another_makes_can_end(shelf):
    maker = Asking(shelf)
    assert maker.making.wait(SOON)
    one, other = Asking(shelf), Asking(shelf)
    assert one.waits.wait(SOON)
    one.cancelled = True
    assert one.done() == "stopped"
    maker.go_on.set()
    assert maker.done() == other.done() == f"made by {id(maker)}"


def test_when_a_maker_is_stopped_one_who_waits_takes_over(shelf):
    maker = Asking(shelf)
    assert maker.making.wait(SOON)
    others = [Asking(shelf) for _ in range(3)]
    assert all(each.waits.wait(SOON) for each in others)
    maker.cancelled = True
    maker.go_on.set()
    assert maker.done() == "stopped"
    for each in others:
        each.go_on.set()
    (made,) = {each.done() for each in others}
    assert sum(each.making.is_set() for each in others) == 1
    assert made in {f"made by {id(each)}" for each in others}


def test_a_key_that_nobody_waits_for_is_forgotten(shelf):
    def stop():
        raise _Stop

    with pytest.raises(_Stop):
        shelf.get_or_make("key", stop)
    shelf.get_or_make("other", lambda: 1)
    assert len(shelf._locks) == 0


def test_makers_in_line_who_need_what_others_make_and_are_ended_at_random_all_come_to_an_end(shelf):
    """An edited run needs the prompt's run first; each run takes a turn; every third person gives up while waiting."""
    line, ended = Queue(1), Counter()

    def person(i: int) -> None:
        asked, waits = i % 4, 0

        def waiting(*_) -> None:
            nonlocal waits
            waits += 1
            if i % 3 == 0 and waits > 1:
                raise _Stop

        def run(name: str) -> str:
            with line.turn(waiting):
                threading.Event().wait(0.01)  # so that others queue up behind
                return name

        def edited() -> str:
            before = shelf.get_or_make(f"prompt {asked}", lambda: run(f"prompt {asked}"), waiting)
            return run(f"{before}, edited")

        try:
            assert shelf.get_or_make(f"edited {asked}", edited, waiting) == f"prompt {asked}, edited"
            ended["with it"] += 1
        except _Stop:
            ended["before"] += 1

    threads = [in_background(lambda i=i: person(i)) for i in range(32)]
    for thread in threads:
        thread.join(SOON)
    assert sum(ended.values()) == 32
    assert ended["with it"] >= 21  # those who never give up
    assert line._line == []


def test_a_lock_is_given_back_however_the_block_ends():
    lock = threading.Lock()
    with pytest.raises(_Stop), held(lock, pytest.fail):
        raise _Stop
    assert lock.acquire(blocking=False)
