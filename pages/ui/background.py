"""Work in a thread of its own that a page shows as it fills, and that can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from llama_core.errors import GlassLlamaError

PATIENCE = 0.4
"""Seconds that the page waits for a work before it shows a bar."""


@dataclass(eq=False, kw_only=True)
class Background:
    """One such work, shared by all who ask for the same: not begun, running, stopped, or over.

    stopped: whether a person ended it; the work looks at it between two parts. trouble: the sentence of an error.
    """

    stopped: bool = False
    trouble: str = ""
    running: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def stop(self) -> None:
        """End it at the next part; what is done is kept."""
        self.stopped = True

    def _start(self, name: str, work: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        """Do the work, unless it is being done already or is not `ready`; a short one is over when this returns."""
        with self.lock:
            if self.running or not ready():
                return
            self.running, self.stopped, self.trouble = True, False, ""
        thread = threading.Thread(target=self._work, args=(work,), name=name, daemon=True)
        thread.start()
        thread.join(PATIENCE)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except GlassLlamaError as error:
            self.trouble = str(error)
        finally:
            self.running = False
