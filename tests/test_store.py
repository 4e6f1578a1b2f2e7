"""The store: a thing is made once for all who ask, a failure is forgotten, the oldest leave when it is full."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest
from test_app import NANO, bodies, done, visit

from llama_core import load, run
from llama_core.survey import Survey, begin
from llama_core.trace import Trace
from pages.ui import cache_parts, frame
from pages.ui import store as stores
from pages.ui.store import MODEL_BYTES, TRACE_BYTES, Shelf, Store, Visit, begin_survey, store
from pages.ui.sweep_parts import Sweeping
from pages.words import t


@pytest.fixture
def shelf():
    """Room for 100 bytes; things are numbers, their size is their value."""
    return Shelf(limit=100, size=lambda thing: thing)


def test_eight_threads_that_ask_at_once_make_it_once():
    shelf, made, together = Shelf(10, len), [], threading.Barrier(8)

    def make():
        made.append(1)
        time.sleep(0.05)
        return "thing"

    def ask(_):
        together.wait()
        return shelf.get_or_make("key", make)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len(made) == 1
    assert all(thing is found[0] for thing in found)


def test_different_things_are_made_at_the_same_time():
    shelf, together = Shelf(10, len), threading.Barrier(4, timeout=10)

    def make():
        together.wait()  # passes only when four are being made at once
        return "x"

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda key: shelf.get_or_make(key, make), range(4))) == ["x"] * 4


def test_many_threads_and_keys_leave_the_account_right():
    shelf = Shelf(50, size=lambda thing: thing)
    keys = [i % 13 for i in range(400)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda key: shelf.get_or_make(key, lambda: key + 1), keys))
    assert found == [key + 1 for key in keys]
    assert 0 < shelf.nbytes() <= 50


def test_a_failed_making_reaches_who_asked_and_is_tried_again(shelf):
    calls = []

    def make():
        calls.append(1)
        if len(calls) < 3:
            raise OSError("the disk is gone")
        return 7

    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            shelf.get_or_make("key", make)
        assert shelf.get("key") is None
    assert shelf.get_or_make("key", make) == 7
    assert shelf.get_or_make("key", make) == 7
    assert len(calls) == 3


def test_one_failure_among_many_who_ask_is_made_good_by_the_next():
    shelf, calls, together = Shelf(10, len), [], threading.Barrier(8)

    def make():
        calls.append(1)
        time.sleep(0.02)
        if len(calls) == 1:
            raise OSError("once")
        return "thing"

    def ask(_):
        together.wait()
        try:
            return shelf.get_or_make("key", make)
        except OSError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert sum(isinstance(thing, OSError) for thing in found) == 1
    assert found.count("thing") == 7
    assert len(calls) == 2


class _Stop(BaseException):
    """As Streamlit ends a script: not an Exception."""


def test_a_maker_that_is_stopped_releases_who_waits(shelf):
    def stopped():
        raise _Stop

    with pytest.raises(_Stop):
        shelf.get_or_make("key", stopped)
    with ThreadPoolExecutor(1) as pool:  # another thread: a lock left behind would hang it
        assert pool.submit(shelf.get_or_make, "key", lambda: 5).result(timeout=5) == 5


def test_the_oldest_leave_first(shelf):
    for key in "abc":
        shelf.get_or_make(key, lambda: 30)
    shelf.get_or_make("d", lambda: 30)
    assert [key for key in "abcd" if shelf.get(key)] == ["b", "c", "d"]
    shelf.get_or_make("e", lambda: 70)
    assert [key for key in "bcde" if shelf.get(key)] == ["d", "e"]


def test_what_is_read_is_not_the_oldest(shelf):
    for key in "abc":
        shelf.get_or_make(key, lambda: 30)
    shelf.get("a")
    shelf.get_or_make("b", lambda: 0)  # found, not made
    shelf.get_or_make("d", lambda: 30)
    assert [key for key in "abcd" if shelf.get(key)] == ["a", "b", "d"]


def test_exactly_full_is_not_too_full(shelf):
    for key in "ab":
        shelf.get_or_make(key, lambda: 50)
    assert shelf.get("a") == 50
    assert shelf.nbytes() == 100


def test_the_newest_stays_even_when_it_is_too_large(shelf):
    shelf.get_or_make("a", lambda: 10)
    assert shelf.get_or_make("huge", lambda: 1000) == 1000
    assert shelf.get("a") is None
    assert shelf.get("huge") == 1000
    shelf.get_or_make("b", lambda: 10)
    assert shelf.get("huge") is None


def test_what_left_is_made_again(shelf):
    made = []
    for key in ("a", "b", "a"):
        shelf.get_or_make(key, lambda key=key: made.append(key) or 90)
    assert made == ["a", "b", "a"]


def test_there_is_one_store_with_bounds():
    assert store() is store()
    assert (store().models.limit, store().traces.limit) == (MODEL_BYTES, TRACE_BYTES)


def test_a_model_that_goes_takes_its_traces_and_measures_along():
    def model_of(nbytes):
        return SimpleNamespace(nbytes=lambda: nbytes)

    here = Store()
    for model in ("a", "b"):
        here.models.get_or_make(model, lambda: model_of(MODEL_BYTES // 2))
        here.traces.get_or_make((model, (1, 2)), lambda: SimpleNamespace(nbytes=1))
        here.measures.get_or_make(((model, (1, 2), 0), "heads"), lambda: [0.5])
    here.models.get_or_make("c", lambda: model_of(MODEL_BYTES // 2))
    assert [here.models.get(model) is None for model in "abc"] == [True, False, False]
    assert [here.traces.get((model, (1, 2))) is None for model in "ab"] == [True, False]
    assert [here.measures.get(((model, (1, 2), 0), "heads")) is None for model in "ab"] == [True, False]


# --- sessions hold what they asked for ---


class Person:
    """Whoever asks: a shelf's holder that a test sets."""

    def __init__(self) -> None:
        self.now = None

    def __call__(self) -> str | None:
        return self.now


def test_what_only_sessions_held_that_have_ended_is_let_go():
    person = Person()
    shelf = Shelf(1000, size=lambda thing: 1, holder=person)
    for holder, keys in (("A", "xy"), ("B", "yz"), (None, "w")):
        person.now = holder
        for key in keys:
            shelf.get_or_make(key, lambda: 1)
    shelf.leave("A")
    assert [key for key in "wxyz" if key in shelf] == ["w", "y", "z"]
    shelf.leave("B")
    assert [key for key in "wxyz" if key in shelf] == ["w"]  # no session asked for it


def test_to_read_is_to_hold_and_to_look_is_not():
    person = Person()
    shelf = Shelf(1000, size=lambda thing: 1, holder=person)
    person.now = "A"
    for key in "xy":
        shelf.get_or_make(key, lambda: 1)
    person.now = "B"
    assert shelf.get("x") == 1
    assert "y" in shelf
    shelf.leave("A")
    assert ("x" in shelf, "y" in shelf) == (True, False)


def test_what_left_for_want_of_room_is_held_by_nobody():
    person = Person()
    shelf = Shelf(2, size=lambda thing: 1, holder=person)
    for person.now, key in (("A", "x"), ("B", "y"), ("B", "z")):
        shelf.get_or_make(key, lambda: 1)
    assert "x" not in shelf
    person.now = "C"
    shelf.get_or_make("x", lambda: 1)  # another x
    shelf.leave("A")
    assert "x" in shelf


@pytest.fixture
def own(monkeypatch) -> Store:
    """An empty store for the pages, instead of the server's."""
    here = Store()
    for module in (frame, stores, cache_parts):
        monkeypatch.setattr(module, "store", lambda: here)
    return here


def timeless(app: AppTest) -> list[str]:
    """What the page says, without how long its run took."""
    return [body for body in bodies(app) if "gl-state" not in body]


def visits_of(here: Store) -> set[Visit]:
    return set().union(*here.traces._holders.values())


def opened(own: Store) -> tuple[AppTest, Visit]:
    """The first page, and its session's visit."""
    app = visit("home", **NANO)
    (here,) = visits_of(own)
    return app, here


def ended(here: Visit, meanwhile: Callable[[], object] = lambda: None) -> None:
    """A session ends as on the server: its connection's loop says so and goes on."""

    async def loop() -> None:
        here.end()
        meanwhile()
        await asyncio.sleep(0.2)

    asyncio.run(loop())


def test_a_session_that_has_ended_lets_go_of_its_traces_and_measures_but_not_of_the_model(own, monkeypatch):
    monkeypatch.setattr(stores, "GRACE", 0.0)
    app, here = opened(own)
    before = timeless(app)
    (model,) = own.models._things.values()
    trace = weakref.ref(next(iter(own.traces._things.values())))
    assert own.measures._things
    ended(here)
    gc.collect()
    assert trace() is None  # not even what was on the screen keeps it
    assert not own.traces._things
    assert not own.measures._things
    assert list(own.models._things.values()) == [model]
    assert timeless(done(app.run())) == before  # the connection had only been broken for a while


def test_what_a_script_still_reads_when_its_session_ends_is_not_taken_from_it(own):
    (_app, here), go_on = opened(own), threading.Event()
    here.script = threading.Thread(target=go_on.wait, daemon=True)
    here.script.start()
    ended(here)
    assert not here.view().gone
    go_on.set()
    here.script.join()
    ended(here)
    assert here.view().gone


def test_a_reload_finds_what_the_session_before_it_had(own, monkeypatch):
    monkeypatch.setattr(stores, "GRACE", 0.0)
    (_, here), found = opened(own), dict(own.traces._things)

    def reload() -> None:
        own.traces.holder = lambda: "the reloaded page"
        own.traces.get(*found)

    ended(here, reload)
    assert dict(own.traces._things) == found
    assert not own.measures._things  # nobody has asked for these again


def test_nothing_is_let_go_of_at_once(own):
    _, here = opened(own)
    ended(here)
    assert own.traces._things
    assert own.measures._things


# --- work in the background ends when its trace has left ---


def surveyed(here: Store, key: tuple, trace: Trace, into: Survey) -> None:
    begin_survey(trace, lambda _: here.between(key), into)
    for thread in threading.enumerate():
        if thread.name == "survey":
            thread.join()


def test_a_survey_ends_when_its_trace_has_left_and_goes_on_when_asked_again():
    here, key, trace = Store(), ("model", (1, 2, 3)), run(load("tiny"), [1, 2, 3])
    into = begin(trace)
    surveyed(here, key, trace, into)
    assert (len(into.layers), into.done) == (1, False)
    here.traces.get_or_make(key, lambda: trace)
    surveyed(here, key, trace, into)
    assert into.done
    assert [one.layer for one in into.layers] == [0, 1, 2, 3]


def test_one_thread_at_a_time_fills_a_survey():
    trace, began, go_on = run(load("tiny"), [1, 2, 3]), threading.Event(), threading.Event()
    into, calls = begin(trace), []

    def between(share: float) -> None:
        calls.append(share)
        began.set()
        assert go_on.wait(20)

    begin_survey(trace, between, into, patience=0)
    assert began.wait(20)
    begin_survey(trace, between, into, patience=0)
    go_on.set()
    surveyed(Store(), (), trace, into)
    assert calls == [0.25, 0.5, 0.75, 1.0]


def test_a_survey_that_fails_can_be_asked_for_again():
    trace = run(load("tiny"), [1, 2, 3])
    into = begin(trace)
    surveyed(Store(), (), trace, into)
    begin_survey(trace, lambda _: None, into, patience=20)
    assert into.done


def test_a_sweep_whose_trace_has_left_says_so_and_keeps_what_is_done():
    here, model = Store(), load("tiny")
    trace = run(model, [1, 2, 3])
    sweep = Sweeping((4, 8))
    sweep.begin(model, trace, "heads", 3, -1, lambda: here.between(("model", (1, 2, 3))))
    for thread in threading.enumerate():
        if thread.name == "sweep":
            thread.join()
    assert (sweep.done, sweep.running, sweep.trouble) == (1, False, t("run.left"))
