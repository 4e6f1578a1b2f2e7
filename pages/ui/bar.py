"""A bar over work that takes long, with a button that ends it; and work that sessions share.

with progress(place, text) as tell: make(tell)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from llama_core.errors import GlassLlamaError
from pages.ui.parts import plain_markdown
from pages.ui.queue import TURNS, Queue
from pages.ui.session import session
from pages.ui.store import Shelf
from pages.words import t

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

Made = TypeVar("Made")
PATIENCE = 0.4  # seconds that a work takes before it shows a bar


class EndedError(GlassLlamaError):
    """The person has ended what took long, and has chosen nothing since."""


_numbers = itertools.count()


class Bar:
    """A bar that appears only when the work takes longer than a moment, and goes when it ends.

    Beside it a button ends the work, as every other choice does; until one is made, none is begun again: EndedError.
    end: what that button does instead, where what is there is worth keeping.
    """

    def __init__(self, slot: DeltaGenerator, text: str, end: Callable[[], None] | None = None) -> None:
        self.slot, self.text, self.end = slot, text, end or session().end
        self.since, self.share = time.monotonic() + PATIENCE, 0.0
        self.bar: DeltaGenerator | None = None

    def __enter__(self) -> Bar:
        return self

    def check(self) -> None:
        """A Streamlit call: whoever has gone, or has chosen something else, ends the work here."""
        if session().ended:
            raise EndedError(t("run.ended"))

    def tell(self, share: float) -> None:
        """So much of the work is done."""
        self.share = share
        self._say(self.text)

    def queued(self, before: int) -> None:
        """So many works have to be done before this one."""
        self._say(t("run.queued.one") if before == 1 else t("run.queued", before=before))

    def shared(self) -> None:
        """The same work is being done already, for another session."""
        self._say(t("run.shared"))

    def _say(self, text: str) -> None:
        self.check()
        if time.monotonic() > self.since:
            self.bar = self.bar or self._begin()
            self.bar.progress(self.share, text=plain_markdown(text))
            self.since = time.monotonic() + 0.1

    def _begin(self) -> DeltaGenerator:
        place = self.slot.container(horizontal=True, vertical_alignment="bottom")
        bar = place.empty()
        key = f"run.end.{next(_numbers)}"  # one run of the page may wait for several works
        place.button(t("run.end"), icon=":material/stop:", key=key, on_click=self.end)
        return bar

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.slot.empty()


@contextmanager
def progress(slot: DeltaGenerator, text: str, line: Queue = TURNS) -> Iterator[Callable[[float], None]]:
    """A turn in the line, under a bar that is told the share that is done. EndedError: this was ended."""
    with Bar(slot, text) as bar:
        bar.check()
        with line.turn(bar.queued):
            yield bar.tell


def shared(shelf: Shelf, key: Hashable, make: Callable[[], Made], busy: DeltaGenerator) -> Made:
    """The thing of this key: there, or made here, or waited for where another session makes it."""
    with Bar(busy, t("run.shared")) as bar:
        return shelf.get_or_make(key, make, bar.shared)
