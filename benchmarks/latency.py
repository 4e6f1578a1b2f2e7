"""How long a step takes on the screen: from the key press to the new heading, in a real browser over a real socket.

    python benchmarks/latency.py [--tokens 64] [--presses 30]

Per press of the right arrow key it measures the time until the page's heading names the next step, until the
script's run has ended, and what the server took: from the rerun request to its "script finished", as they pass
through the websocket. Medians are printed; `load` is the machine's, because a busy one measures its neighbours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from conftest import ROOT, chromium, serving
from playwright.sync_api import Page, WebSocket, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from llama_core.checkpoints import local_models

# Runs in the page: its own clock, so that Playwright's polling costs nothing.
WATCH = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  const heading = () => document.querySelector(".gl-step h2 code")?.textContent;
  window.measure = { key: 0, heading: 0, ended: 0, before: "" };
  const look = () => {
    const m = window.measure;
    if (!m.key) return;
    if (!m.heading && heading() && heading() !== m.before) m.heading = performance.now();
    if (m.heading && app.dataset.testScriptState === "notRunning") m.ended ||= performance.now();
  };
  const all = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(look).observe(document.body, all);
  addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight") return;
    window.measure = { key: performance.now(), heading: 0, ended: 0, before: heading() };
  }, true);
}"""


class Wire:
    """Times of rerun requests and of the ends of runs, and the bytes sent between."""

    def __init__(self, page: Page) -> None:
        self.asked = 0.0
        self.runs: list[float] = []
        self.sizes: list[int] = []
        self.size = 0
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", self._sent)
        socket.on("framereceived", self._received)

    def _sent(self, payload: bytes | str) -> None:
        if isinstance(payload, bytes) and BackMsg.FromString(payload).WhichOneof("type") == "rerun_script":
            self.asked, self.size = time.perf_counter(), 0

    def _received(self, payload: bytes | str) -> None:
        self.size += len(payload)
        message = ForwardMsg.FromString(payload) if isinstance(payload, bytes) else None
        if message is not None and message.WhichOneof("type") == "script_finished" and self.asked:
            self.runs.append(time.perf_counter() - self.asked)
            self.sizes.append(self.size)
            self.asked = 0.0


def prompt(tokens: int) -> str:
    """Text of about so many tokens of SmolLM2's vocabulary."""
    return " ".join(("the", "cat", "saw", "a", "dog")[i % 5] for i in range(tokens))


def measure(page: Page, wire: Wire, presses: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"heading": [], "ended": [], "server": [], "kB": []}
    page.evaluate(WATCH)
    for number in range(presses + 2):
        before = len(wire.runs)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("window.measure.ended > 0")
        page.wait_for_timeout(400)
        if number < 2:
            continue  # the first draw warms what is imported lazily
        m = page.evaluate("window.measure")
        found["heading"].append(m["heading"] - m["key"])
        found["ended"].append(m["ended"] - m["key"])
        if len(wire.runs) > before:
            found["server"].append(1000 * wire.runs[before])
            found["kB"].append(wire.sizes[before] / 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--presses", type=int, default=30)
    arguments = parser.parse_args()
    model = next((name for name in local_models() if name.startswith("SmolLM2")), None)
    if model is None:
        sys.exit("models/ holds no SmolLM2: run `make model` first.")
    query = urlencode({"model": model, "prompt": prompt(arguments.tokens), "at": "3.resid_in"})
    with serving(ROOT / "app.py") as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        wire = Wire(page)
        page.goto(f"{url}/Step_by_step?{query}")
        page.wait_for_selector(".js-plotly-plot .main-svg", timeout=120_000)
        page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
        page.wait_for_timeout(1000)
        load = os.getloadavg()[0]
        found = measure(page, wire, arguments.presses)
        tokens = page.locator(".gl-token").count()
        browser.close()
    print(f"{tokens} tokens, {arguments.presses} presses from 3.resid_in, load {load:.1f} on {os.cpu_count()} cores")
    for name, label in (
        ("heading", "key press to new heading"),
        ("ended", "key press to end of run"),
        ("server", "rerun request to script finished"),
    ):
        times = found[name]
        print(f"  {label:34} median {statistics.median(times):6.0f} ms   max {max(times):6.0f} ms   n {len(times)}")
    print(f"  {'sent to the browser per run':34} median {statistics.median(found['kB']):6.0f} kB")


if __name__ == "__main__":
    main()
