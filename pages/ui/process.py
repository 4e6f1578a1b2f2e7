"""What is set once for the whole server: how a page's messages leave it, how its widgets look, how threads wait."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from streamlit.config import on_config_parsed
from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.runtime import app_session
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner import ScriptRunnerEvent
from streamlit.runtime.state import SafeSessionState
from threadpoolctl import threadpool_limits

HOLD = 0.1
"""Seconds that a page's messages wait for more of them: too short to be seen."""


@cache
def prepare() -> None:
    """Called by every page; the first call of the process does it."""
    sleep_without_work()
    one_thread_for_numpy()
    send_at_once()
    send_together()
    look_up_only_what_is_asked()
    read_the_theme_once()


def sleep_without_work() -> None:
    """Torch's threads sleep while they wait for the next part of an operation, unless the person has set otherwise.

    OpenMP reads this when torch is loaded, later than the first page. Without it GNU's lets them turn for 15 ms after
    each part, on the core that the browser and the other thread need: a page that takes 31 ms of a core took 85, and
    the thread that it waits for another 45. A whole pass takes as long with it as without.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def send_at_once() -> None:
    """Take Nagle's algorithm off every TCP socket of this process; what a listening one accepts later has it off too.

    The server hands its own listening socket to uvicorn, and with it this is left on: the kernel holds a small message
    back until the one before was acknowledged, which the other end puts off for 40 ms
    (https://github.com/Kludex/uvicorn/issues/3149). A page is a hundred small messages. Nothing is done where the
    system does not list a process's open files.
    """
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:  # OSError: it is no socket
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


_MORE_COMES = frozenset((ScriptRunnerEvent.SCRIPT_STARTED, ScriptRunnerEvent.ENQUEUE_FORWARD_MSG))
"""Events of a script after which more will come. All others end something."""


class Together:
    """The events of one session's scripts: they are handled in their order, but many at a time."""

    def __init__(self) -> None:
        self._lock, self._waiting = threading.Lock(), []

    def add(
        self,
        handle: Callable[[], None],
        event: ScriptRunnerEvent,
        soon: Callable[[Callable[[], object]], object],
        later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        """Have `handle` called on the event loop: within `HOLD` seconds, or at once, with all that waited before it.

        Called on any thread. soon: has a call made on the event loop; later: on the event loop, after so many seconds.
        """
        with self._lock:
            self._waiting.append(handle)
            first = len(self._waiting) == 1
        if event not in _MORE_COMES:
            soon(self._handle)
        elif first:
            soon(lambda: later(HOLD, self._handle))

    def _handle(self) -> None:
        with self._lock:
            ready, self._waiting = self._waiting, []
        for each in ready:
            each()


_sessions: WeakKeyDictionary[AppSession, Together] = WeakKeyDictionary()
_before = AppSession._on_scriptrunner_event  # Streamlit refers to it weakly where it hears scripts that run already


def send_together() -> None:
    """A page's messages go to the browser together: when its script ends, and every `HOLD` seconds until then.

    Streamlit wakes its event loop for each of the hundred: each time the script waits for it, and the browser, which
    at once draws what has come, takes the core that the script needs. On two cores a page with nine pictures then
    takes 140 ms where 85 would do.
    """
    AppSession._on_scriptrunner_event = _heard_together


def _heard_together(session: AppSession, sender: object, event: ScriptRunnerEvent, **more: Any) -> None:
    together = _sessions.get(session)
    if together is None:
        together = _sessions[session] = Together()  # it must not hold the session: it is kept as long as that is
    handle = partial(session._handle_scriptrunner_event_on_event_loop, sender, event, **more)
    together.add(handle, event, session._call_soon_on_event_loop, session._event_loop.call_later)


class State(Mapping[str, Any]):
    """A session's state by the keys that its script knows; all of it is gathered only where all of it is asked for."""

    def __init__(self, session: SafeSessionState) -> None:
        self._session = session

    def __contains__(self, key: object) -> bool:
        return key in self._session

    def __getitem__(self, key: str) -> Any:
        return self._session[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_gathered(self._session))

    def __len__(self) -> int:
        return len(_gathered(self._session))

    def __repr__(self) -> str:
        return repr(_gathered(self._session))


_gathered: Callable[[SafeSessionState], dict[str, Any]] = SafeSessionState.filtered_state.fget


def look_up_only_what_is_asked() -> None:
    """Each of Streamlit's widgets looks for one key in the session's state.

    It has all of the state put together for that, with each component's asked what it shows: of fifteen widgets on a
    page that is a twentieth of its time.
    """
    SafeSessionState.filtered_state = property(State)


_themes: dict[str, CustomThemeConfig] = {}
_read_theme = app_session._populate_theme_msg


@cache
def read_the_theme_once() -> None:
    """Every run of a script begins with a message that has the whole theme in it, read from the settings for that one
    message: a millisecond of every answer. It is kept until the settings are read anew.
    """
    app_session._populate_theme_msg = _theme
    on_config_parsed(_themes.clear, force_connect=True)


def _theme(into: CustomThemeConfig, section: str = "theme") -> None:
    kept = _themes.get(section)
    if kept is None:
        _read_theme(kept := CustomThemeConfig(), section)
        _themes[section] = kept
    if kept.ByteSize():
        into.MergeFrom(kept)


def load_torch() -> threading.Thread:
    """Load torch in a thread of its own: more than a second, in which a page can do something else."""
    thread = threading.Thread(target=import_module, args=("torch",), name="torch", daemon=True)
    thread.start()
    return thread


def one_thread_for_numpy() -> None:
    """The products that pages ask of numpy are small: on two threads one waits for the other, which a browser keeps
    off its core. The model's own are torch's, which this leaves as they are."""
    threadpool_limits(limits=1, user_api="blas")
