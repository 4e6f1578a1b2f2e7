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
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import screen
from benchmarks.report import at_most, table, targets
from benchmarks.wire import serving

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


def measure(page: screen.Page, wire: screen.Wire, presses: int) -> dict[str, list[float]]:
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
            found["server"].append(wire.runs[before].ms)
            found["kB"].append(wire.runs[before].size / 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--presses", type=int, default=30)
    given = parser.parse_args()
    query = urlencode({"model": screen.smollm2(), "prompt": screen.prompt(given.tokens), "at": "3.resid_in"})
    with serving() as server, screen.browser() as shown:
        page = screen.tab(shown)
        wire = screen.Wire(server)
        page.goto(f"http://localhost:{wire.port}/Step_by_step?{query}")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.wait_for_selector(screen.ENDED)
        page.wait_for_timeout(1000)
        load = os.getloadavg()[0]
        found = measure(page, wire, given.presses)
    labels = {
        "heading": "key press to new heading, ms",
        "ended": "key press to end of run, ms",
        "server": "rerun request to script finished, ms",
        "kB": "sent to the browser per run, kB",
    }
    rows = [
        (label, f"{statistics.median(found[name]):.0f}", f"{max(found[name]):.0f}") for name, label in labels.items()
    ]
    header = f"{given.presses} presses at T = {given.tokens}, load {load:.1f} on {os.cpu_count()} cores"
    what = f"the cursor moves one step, T = {given.tokens}: rerun request to script finished"
    print(targets([at_most(what, statistics.median(found["server"]), 100, "ms")]))
    print(table([header, "median", "largest"], rows))


if __name__ == "__main__":
    main()
