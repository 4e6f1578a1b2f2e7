"""The store: a thing is made once for all who ask, a failure is forgotten, the oldest leave when it is full."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pages.ui.store import MODEL_BYTES, TRACE_BYTES, Shelf, Store, store


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
