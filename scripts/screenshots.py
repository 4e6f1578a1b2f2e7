"""Takes the pictures in docs/screenshots from the running app: `make screenshots`.

The app is served on a free port with the small trained model, a real Chromium opens each address in
a context of its own, and the picture is taken when the page has finished and every chart is drawn.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from fetch_model import NAME as MODEL  # noqa: E402

from tests.browser.conftest import chromium, serving  # noqa: E402

OUT = ROOT / "docs" / "screenshots"
PROMPT = "The capital of France is"
LARGEST = 250_000  # bytes of one picture; a larger one is brought down to 256 colours
PATIENCE = 90_000  # ms; the first picture waits for torch and the model


@dataclass(frozen=True)
class Shot:
    """One picture: file name, page, what its URL asks for, how the browser is. box: of the model in the box."""

    name: str
    page: str = ""
    at: str = "embed"
    head: int = 0
    width: int = 1400
    height: int = 900
    scheme: str = "light"
    box: bool = False
    more: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """Path and query, from the server's root."""
        asked = {} if self.box else {"model": MODEL, "prompt": PROMPT}
        return f"/{self.page}?{urlencode(asked | {'at': self.at, 'head': self.head} | dict(self.more))}"


SHOTS = (
    Shot("home", box=True),
    Shot("steps", "Step_by_step", "11.q_rot", 2),
    Shot("steps-weights", "Step_by_step", "25.weights", 2),
    Shot("steps-dark", "Step_by_step", "25.weights", 2, scheme="dark"),
    Shot("home-phone", width=390, height=844, box=True),
    Shot("explain", "Step_by_step", "2.weights", 1, box=True, height=1200, more=(("show", "explain"), ("token", "27"))),
    Shot("stopped", "Step_by_step", "1.weights", 1, box=True, more=(("breaks", "weights"), ("after", "0.weights"))),
    Shot("edit", "Edit", "2.head_out", 1, box=True, more=(("edit", "2.head_out zero h0-1"),)),
    Shot("generate", "Generate", box=True, more=(("new", "30"), ("greedy", "0"), ("draw", "3"))),
    Shot("cache", "KV_cache", "2.k_rot", 0, box=True, more=(("new", "12"),)),
    Shot("tokens", "Tokens"),
    Shot("rope", "RoPE", "12.q_rot", 2),
    Shot("sharing", "Shared_heads", "12.k_shared", 2),
    Shot("attention", "Attention", "25.weights", 2),
    Shot("mlp", "MLP", "12.gated"),
    Shot("stream", "Residual_stream", "12.resid_out"),
    Shot("ranges", "Activations", "12.resid_out"),
    Shot("next", "Next_token", "logits"),
    Shot("sizes", "Sizes"),
)

FINISHED = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  if (!app || app.dataset.testScriptState !== 'notRunning') return false;
  if (document.querySelector('[data-testid="stSkeleton"], [data-stale="true"]')) return false;
  const charts = [...document.querySelectorAll('[data-testid="stPlotlyChart"]')];
  const drawn = '.cartesianlayer .subplot, .treemaplayer .trace';
  return charts.length > 0 && charts.every(chart => chart.querySelector(drawn));
}"""
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def main() -> None:
    """Take all pictures; an error on a page or a missing chart ends the program."""
    OUT.mkdir(parents=True, exist_ok=True)
    env = {"GLASS_LLAMA_MODELS": str(ROOT / "models")}
    with serving(ROOT / "app.py", env) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for shot in SHOTS:
            picture = small(take(browser, url, shot))
            path = OUT / f"{shot.name}.png"
            path.write_bytes(picture)
            print(f"{path.relative_to(ROOT)}  {shot.width}x{shot.height}  {len(picture) / 1000:.0f} KB")
        browser.close()


def take(browser: Browser, url: str, shot: Shot) -> bytes:
    """PNG of one page, once it has settled."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url + shot.address)
    settle(page)
    refused = page.locator('.gl-say-error, [data-testid="stException"]')
    if refused.count():
        raise RuntimeError(f"{shot.address} shows an error: {refused.first.inner_text()}")
    picture = page.screenshot(animations="disabled", caret="hide")
    context.close()
    return picture


def settle(page: Page) -> None:
    """Wait until the script has ended, all charts are drawn, fonts are there and two pictures in a row are equal."""
    page.wait_for_function(FINISHED, timeout=PATIENCE)
    page.evaluate("() => document.fonts.ready.then(() => true)")
    before = b""
    for _ in range(40):
        page.wait_for_timeout(250)
        page.evaluate(TWO_FRAMES)
        now = page.screenshot(animations="disabled", caret="hide")
        if now == before and page.evaluate(FINISHED):
            return
        before = now
    raise TimeoutError("The page did not come to rest within 10 s.")


def small(picture: bytes) -> bytes:
    """The same picture, packed as tightly as PNG can; with 256 colours only if it is larger than LARGEST."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    packed = _png(image)
    return packed if len(packed) <= LARGEST else _png(image.quantize(256, dither=Image.Dither.NONE))


def _png(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "PNG", optimize=True)
    return sink.getvalue()


if __name__ == "__main__":
    main()
