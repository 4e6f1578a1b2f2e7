"""Whose turn it is to compute: at most so many works of people at once, first come, first served.

Work in the background, which nobody waits for, gives way between its parts. Nothing here knows a screen: who waits is
called ten times a second, and what that call raises gives the place up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llama_core.settings import AT_ONCE

MOMENT = 0.1
"""Seconds between two calls of who waits: so soon a press of End is noticed."""
SHARE = 2.0
"""Seconds that a work of many steps computes before it lets the others go first."""
LONGEST = 5.0
"""Seconds that background work gives way before each part, at most: on a server that is never idle it still ends."""


class Queue:
    """A line of works: the first `at_once` of it run, the others wait."""

    def __init__(self, at_once: int, share: float = SHARE) -> None:
        self.at_once, self.share = at_once, share
        self._line: list[int] = []  # ids of threads
        self._moved = threading.Condition()

    @contextmanager
    def turn(self, waiting: Callable[[int], object]) -> Iterator[Callable[[], None]]:
        """A turn, which ends with the block, however that ends.

        waiting: told how many are before, every moment until it is this one's turn; what it raises leaves the line.
        Yields a call for between two steps of a long work: after a fair share of time it lets all go first who wait
        by then. A work inside a work has its turn. Who has one must not wait for a thing that another makes: that one
        may wait for this turn.
        """
        me = threading.get_ident()
        if me in self._line:
            yield lambda: None
            return
        with self._moved:
            self._line.append(me)
        try:
            self._wait(me, waiting)
            since = time.monotonic()

            def pass_on() -> None:
                nonlocal since
                if time.monotonic() >= since + self.share:
                    self._pass_on(me, waiting)
                    since = time.monotonic()

            yield pass_on
        finally:
            with self._moved:
                self._line.remove(me)
                self._moved.notify_all()

    def give_way(self, longest: float = LONGEST) -> None:
        """Of background work, before each part: returns when nobody computes or waits, or after `longest` seconds."""
        with self._moved:
            self._moved.wait_for(lambda: not self._line, longest)

    def _wait(self, me: int, waiting: Callable[[int], object]) -> None:
        while True:
            with self._moved:
                if self._moved.wait_for(lambda: self._line.index(me) < self.at_once, MOMENT):
                    return
                before = self._line.index(me)
            waiting(before)

    def _pass_on(self, me: int, waiting: Callable[[int], object]) -> None:
        with self._moved:
            if len(self._line) > self.at_once:
                self._line.remove(me)
                self._line.append(me)
                self._moved.notify_all()
        self._wait(me, waiting)


TURNS = Queue(AT_ONCE.value)
"""Of runs, and of whatever else computes."""
LOADS = Queue(1)
"""Of models: a large one is read for minutes, and keeps nobody from running one that is there."""


@contextmanager
def held(lock: threading.Lock, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the lock. waiting: called every moment while another has it; what it raises ends the wait."""
    while not lock.acquire(timeout=MOMENT):
        waiting()
    try:
        yield
    finally:
        lock.release()
