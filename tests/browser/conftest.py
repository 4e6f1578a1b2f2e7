"""What browser tests share: a Streamlit server of its own, one Chromium, fresh pages.

`serve(script)` starts the app on a free port and waits until it answers; `browser` is one for all
tests; `page` is a new context of 1400 x 900 whose `console_errors` lists what went wrong in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


def chromium() -> str:
    """The installed Chromium; without one the browser tests fail rather than pass unseen."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.fail("Browser tests need Chromium: none of chromium, chromium-browser, google-chrome is installed.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(
    script: Path, env: dict[str, str] | None = None, *, port: int | None = None, log: Path | None = None
) -> Iterator[str]:
    """Run a Streamlit script, on a free port if none is given; yields its address, stops it afterwards.

    log: the file that gets what the server says.
    """
    port = port or free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true"]
    command += [f"--server.port={port}", "--server.address=127.0.0.1", "--browser.gatherUsageStats=false"]
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") if log else open(os.devnull, "wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait(f"{url}/_stcore/health", process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"The server stopped with exit status {process.returncode} before it answered.")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"No answer from {url} within {seconds:.0f} s.")


@pytest.fixture(scope="session")
def serve() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """`with serve(script, env) as url:`"""
    return serving


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu", *_QUIET])
        yield shown
        shown.close()


@pytest.fixture
def new_page(browser) -> Iterator[Callable]:
    """new_page(**context options): a page in a context of its own; `page.console_errors` fills by itself."""
    contexts = []

    def make(**options):
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a slow machine is no fault; only a failing test waits this long
        page.console_errors = []
        page.on("console", lambda message: message.type == "error" and page.console_errors.append(message.text))
        page.on("pageerror", lambda error: page.console_errors.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_page):
    return new_page()
