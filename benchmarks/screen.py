"""The app in a real browser: a tab, and the runs of its script as they pass through the websocket."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from benchmarks.wire import Server
from llama_core.checkpoints import local_models
from tests.browser.conftest import chromium

ENDED = '[data-testid="stApp"][data-test-script-state="notRunning"]'
PATIENCE = 120_000  # ms
_BRIEF = 256  # bytes


class Run(NamedTuple):
    """One run of the script: ms from the browser's request to the server's "script finished", and bytes that came."""

    ms: float
    size: int


class Wire:
    """A relay between browsers and the server: the runs of the script, timed where their bytes pass.

    A browser itself sees a message only when it has drawn what came before. port: where the browser goes.
    """

    def __init__(self, server: Server) -> None:
        self.runs: list[Run] = []
        self._server = server.port
        self._listening = socket.create_server(("localhost", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            browser, _ = self._listening.accept()
            server = socket.create_connection(("localhost", self._server))
            for end in (browser, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watched = _Watched(self.runs)
            for pipe in ((browser, server, watched.asked), (server, browser, watched.told)):
                threading.Thread(target=_pass_on, args=pipe, daemon=True).start()


class _Watched:
    """What passes through one connection: `asked` from the browser, `told` by the server."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs, self._asked, self._size = runs, None, 0
        self._messages = {"asked": _messages(), "told": _messages()}
        for each in self._messages.values():
            next(each)

    def asked(self, data: bytes) -> None:
        now = time.perf_counter()
        for message in self._messages["asked"].send(data):
            if self._asked is None and BackMsg.FromString(message).WhichOneof("type") == "rerun_script":
                self._asked, self._size = now, 0

    def told(self, data: bytes) -> None:
        now = time.perf_counter()
        for message in self._messages["told"].send(data):
            self._size += len(message)
            if self._asked is not None and _ends(message):
                self.runs.append(Run(1000 * (now - self._asked), self._size))
                self._asked = None


def _messages() -> Generator[list[bytes], bytes, None]:
    """Sent the bytes of one direction as they come: the binary messages that they complete. RFC 6455, section 5.2."""
    kept, found = b"", []
    upgraded = False
    while True:
        kept += yield found
        found = []
        if not upgraded:
            head, ended, rest = kept.partition(b"\r\n\r\n")
            if not ended:
                continue
            if b"upgrade: websocket" not in head.lower():
                kept = b""  # a file; what is asked next on the same connection is none either
                continue
            upgraded, kept = True, rest
        while len(kept) >= 2:
            masked, size, place = kept[1] >> 7, kept[1] & 0x7F, 2
            if size > 125:
                place += 2 if size == 126 else 8
                size = int.from_bytes(kept[2:place], "big")
            mask, place = kept[place : place + 4 * masked], place + 4 * masked
            if len(kept) < place + size:
                break
            if kept[0] & 0x0F == 2:
                body = kept[place : place + size]
                found.append(_unmasked(body, mask) if mask else body)
            kept = kept[place + size :]


def _unmasked(body: bytes, mask: bytes) -> bytes:
    key = np.resize(np.frombuffer(mask, np.uint8), len(body))
    return (np.frombuffer(body, np.uint8) ^ key).tobytes()


def _ends(message: bytes) -> bool:
    """Whether the server says that the script has finished. It says so briefly: a picture is not taken apart here."""
    return len(message) < _BRIEF and ForwardMsg.FromString(message).WhichOneof("type") == "script_finished"


def _pass_on(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    with suppress(OSError):  # either end has gone
        while data := source.recv(1 << 20):
            look(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium with nothing in its cache."""
    with sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield shown
        shown.close()


def tab(shown: Browser) -> Page:
    """A tab of 1400 x 900 in a context of its own."""
    page = shown.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    return page


def smollm2() -> str:
    """The name of SmolLM2 among the models that are here."""
    found = next((name for name in local_models() if name.startswith("SmolLM2")), None)
    return found or sys.exit("models/ holds no SmolLM2: run `make model` first.")


def prompt(tokens: int) -> str:
    """Text of so many tokens of SmolLM2's vocabulary."""
    return " ".join(("the", "cat", "saw", "a", "dog")[i % 5] for i in range(tokens))


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, in all its threads. Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
