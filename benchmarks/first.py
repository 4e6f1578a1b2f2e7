"""The first seconds, on the screen of a real browser: a cold start, a new tab, another size, another model.

    python benchmarks/first.py [--rounds 3]

Each round starts a server and a browser of its own. On a page that had none, the first picture of a run is the bars of
what the model expects; where another run's stand already, it is the last chart, whose description names the layers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import screen
from benchmarks.report import at_most, number, table, targets
from benchmarks.wire import serving
from pages.words import t

SLIDER, SLIDER_STARTS, BOX_LAYERS, SMOLLM2_LAYERS = "layers", 4, 4, 30
WANTED = {
    "from process start to the map with its shapes": 4.0,
    "from process start to the first picture of a run": 8.0,
    "from process start to the last chart": None,
    "a new tab of a running server: to the first picture": 2.0,
    "a new tab of a running server: to the last chart": None,
    "the random model, a slider: to the new picture": 1.0,
    "SmolLM2 chosen for the first time: to the first picture": 10.0,
    "SmolLM2 chosen again: to the first picture": 4.0,
}
"""Seconds, in the order in which they are measured; None: nothing is claimed."""


def drawn(page: screen.Page, layers: int) -> None:
    """Wait for the picture of the stream of a model of so many layers."""
    named = t("figures.stream.alt", layers=layers, low="", high="").partition(",")[0]
    page.wait_for_function(
        """named => [...document.querySelectorAll("[data-testid=stPlotlyChart]")].some(chart =>
            (chart.getAttribute("aria-label") ?? chart.closest("[aria-label]")?.getAttribute("aria-label") ?? "")
                .startsWith(named) && chart.querySelector(".cartesianlayer .trace"))""",
        arg=named,
    )


MAP, ANSWER = ".gl-drawing svg", ".gl-bars li"
"""The decoder's drawing; the first picture of a run on a page that had none: what the model expects next."""


def there(page: screen.Page, selector: str) -> None:
    """Wait for an element, within a frame of its drawing: Playwright's own wait looks every half second."""
    page.wait_for_function(
        """selector => {
            const within = (root) => root.querySelector(selector) !== null
                || [...root.querySelectorAll("*")].some((each) => each.shadowRoot && within(each.shadowRoot));
            return within(document);
        }""",
        arg=selector,
    )


def choose_model(page: screen.Page, name: str) -> None:
    page.get_by_role("combobox", name=t("side.model")).click()
    page.get_by_role("option", name=name).first.click()


def one_round() -> Iterator[float]:
    """Seconds of each, in the order of WANTED."""
    with screen.browser() as shown:
        page, started = screen.tab(shown), time.perf_counter()
        with serving() as server:
            home = f"http://localhost:{server.port}/"
            page.goto(home)
            there(page, MAP)
            yield time.perf_counter() - started
            there(page, ANSWER)
            yield time.perf_counter() - started
            drawn(page, BOX_LAYERS)
            yield time.perf_counter() - started
            ended(page)

            other, started = page.context.new_page(), time.perf_counter()
            other.set_default_timeout(screen.PATIENCE)
            other.goto(home)
            there(other, ANSWER)
            yield time.perf_counter() - started
            drawn(other, BOX_LAYERS)
            yield time.perf_counter() - started
            other.close()

            page.goto(f"{home}?model=random")
            drawn(page, SLIDER_STARTS)
            ended(page)
            page.get_by_role("button", name=t("side.sizes")).click()
            slider = page.get_by_role("slider", name=t("size.layers")).first
            slider.focus()
            started = time.perf_counter()
            slider.press("ArrowRight")
            drawn(page, SLIDER_STARTS + 1)
            yield time.perf_counter() - started

            page.goto(home)
            for _ in range(2):
                drawn(page, BOX_LAYERS)
                ended(page)
                started = time.perf_counter()
                choose_model(page, screen.smollm2())
                drawn(page, SMOLLM2_LAYERS)
                yield time.perf_counter() - started
                ended(page)
                choose_model(page, "tiny-llama")


def ended(page: screen.Page) -> None:
    page.wait_for_timeout(500)
    page.wait_for_selector(screen.ENDED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = []
    for _ in range(parser.parse_args().rounds):
        rounds.append(list(one_round()))
        print(*(f"{seconds:.1f} s" for seconds in rounds[-1]), file=sys.stderr)
    found = dict(zip(WANTED, map(statistics.median, zip(*rounds, strict=True)), strict=True))
    claimed = {what: limit for what, limit in WANTED.items() if limit is not None}
    print(targets(at_most(what, found[what], limit, "s") for what, limit in claimed.items()))
    print(table(("besides", "s"), [(what, number(found[what])) for what in WANTED if what not in claimed]))


if __name__ == "__main__":
    main()
