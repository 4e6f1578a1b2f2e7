"""The app in a real browser: a tab, and the runs of its script as they pass through the websocket."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from llama_core.checkpoints import local_models
from tests.browser.conftest import chromium

ENDED = '[data-testid="stApp"][data-test-script-state="notRunning"]'
PATIENCE = 120_000  # ms


class Run(NamedTuple):
    """One run of the script: ms from the browser's request to the server's "script finished", and bytes that came."""

    ms: float
    size: int


class Wire:
    """The runs of a page's script, by the clock of the browser's network service.

    So neither what the page draws nor this process is in them.
    """

    def __init__(self, page: Page) -> None:
        self.runs: list[Run] = []
        self._asked: float | None = None
        self._size = 0
        self._cdp = page.context.new_cdp_session(page)
        self._cdp.send("Network.enable")
        self._cdp.on("Network.webSocketFrameSent", self._sent)
        self._cdp.on("Network.webSocketFrameReceived", self._received)

    def _sent(self, event: dict) -> None:
        data = _bytes(event)
        if self._asked is None and data and BackMsg.FromString(data).WhichOneof("type") == "rerun_script":
            self._asked, self._size = event["timestamp"], 0

    def _received(self, event: dict) -> None:
        data = _bytes(event)
        self._size += len(data)
        if self._asked is None or ForwardMsg.FromString(data).WhichOneof("type") != "script_finished":
            return
        self.runs.append(Run(1000 * (event["timestamp"] - self._asked), self._size))
        self._asked = None


def _bytes(event: dict) -> bytes:
    frame = event["response"]
    return base64.b64decode(frame["payloadData"]) if frame["opcode"] == 2 else b""


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
