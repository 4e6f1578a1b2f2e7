"""A browser's tab without the browser: Streamlit's messages over a websocket, and a server to exchange them with."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Delta_pb2 import Delta
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

ROOT = Path(__file__).parents[1]
SECONDS = 120
"""How long a tab waits for the next message."""
QUIET = logging.Logger("killed tabs are no errors", logging.CRITICAL + 1)
CUT_SHORT = ForwardMsg.FINISHED_EARLY_FOR_RERUN
Place = tuple[int, ...]


@dataclass(frozen=True)
class Server:
    """A server of the app. log: what it says."""

    port: int
    pid: int
    log: Path

    def threads(self) -> int:
        """How many threads it has."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def files(self) -> int:
        """How many files, sockets and pipes it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def nbytes(self) -> int:
        """Bytes of memory that it has touched."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(log: Path | None = None, **environment: str) -> Iterator[Server]:
    """The app on a free port, until the block ends. log: the file that takes what it says."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
    log = log or Path(os.devnull)
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=out, stderr=out)
    try:
        _wait(process, f"http://localhost:{port}/_stcore/health")
        yield Server(port, process.pid, log)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen, health: str) -> None:
    for _ in range(600):
        with suppress(OSError), urllib.request.urlopen(health):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit("The server did not start.")


@dataclass
class Answer:
    """What one run of the page sent. ms: from the request to its end; size: bytes; shown: what stands where at last."""

    ms: float = 0.0
    size: int = 0
    shown: dict[Place, Delta] = field(default_factory=dict)

    def take(self, message: ForwardMsg) -> None:
        """What stands at a place and inside it goes when something else is put there."""
        if message.WhichOneof("type") != "delta":
            return
        place = tuple(message.metadata.delta_path)
        for inside in [each for each in self.shown if each[: len(place)] == place]:
            del self.shown[inside]
        self.shown[place] = message.delta


class Tab:
    """A tab of the app: `with Tab(server) as tab: tab.ask("MLP", {"at": "3.gate"})`.

    session: of a tab whose connection broke, which comes back; once something has been read, this one's.
    """

    def __init__(self, server: Server, session: str = "") -> None:
        self.session = session
        origin = f"http://localhost:{server.port}"
        address = f"ws://localhost:{server.port}/_stcore/stream"
        protocols = ["streamlit", "no-token", session] if session else ["streamlit"]
        self._opened = connect(address, subprotocols=protocols, max_size=None, origin=origin, logger=QUIET)
        self._socket = self._opened.__enter__()

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, trace)

    def kill(self) -> None:
        """Go without a word, as a browser that was killed."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def send(
        self, page: str, query: Mapping[str, object], press: str = "", fields: Mapping[str, float] | None = None
    ) -> None:
        """Ask for a page and do not wait.

        press: the id of a button that is pressed with it; fields: ids of number fields and what stands in them.
        """
        message = BackMsg()
        message.rerun_script.page_name = page
        message.rerun_script.query_string = urlencode(query)
        if press:
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.trigger_value = press, True
        for name, value in (fields or {}).items():
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.double_value = name, value
        self._socket.send(message.SerializeToString())

    def messages(self) -> Iterator[tuple[ForwardMsg, int]]:
        """What the server says, each with its bytes, up to the end of a run that no other request cut short."""
        while True:
            data = self._socket.recv(timeout=SECONDS)
            message = ForwardMsg.FromString(data)
            if message.WhichOneof("type") == "new_session":
                self.session = message.new_session.initialize.session_id
            yield message, len(data)
            if message.WhichOneof("type") == "script_finished" and message.script_finished != CUT_SHORT:
                return

    def read(self, look: Callable[[ForwardMsg], object] = lambda message: None) -> Answer:
        """The answer to what was sent. look: shown each message as it comes."""
        answer, asked = Answer(), time.perf_counter()
        for message, size in self.messages():
            answer.size += size
            answer.take(message)
            look(message)
        answer.ms = 1000 * (time.perf_counter() - asked)
        return answer

    def ask(self, page: str, query: Mapping[str, object]) -> Answer:
        """Open a page by its link and wait for all of it."""
        self.send(page, query)
        return self.read()
