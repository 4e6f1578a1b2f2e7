"""The decoder as a drawing: registry in, SVG text out. No torch, no streamlit, no plotly.

`layer_svg` draws one layer between the model's own first and last steps, `model_svg` the same in a
frame that says how often it repeats. Nothing here knows a step by name. Places follow from the
registry alone (`place`), so a new record there appears here:

    column  stream    the residual stream and the model's own steps, left, top to bottom
            branches  a step stands under the step it reads; several readers of one step spread out
                      around it; a step that reads several stands between them
    row     at least one below everything it reads, and never above the step before it in execution
            order, so a cursor moves right or down. What reads one step of the stream stands beside it.

Colours are classes; `MAP_CSS` gives them a light and a dark tone. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import get_args

from llama_core.steps import AXES, At, Kind, Step, Walk
from pages.figures.colours import KIND_COLOURS, ink
from pages.words import t

# Sizes in SVG units: one is one CSS pixel in a column of 424.
STREAM_W, NODE_W, NODE_H = 82, 98, 27
STREAM_X, FIRST_LANE, LANE = 48, 150, 106
PAD, GAP, ADD_GAP, FRAME_GAP = 5, 13, 9, 13
TALL = 716  # rows move closer together before the drawing gets taller than this
KINDS: tuple[Kind, ...] = get_args(Kind)


# --- places ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where one step stands: its row, its lane (None: the stream), and its box in SVG units."""

    step: Step
    row: int
    lane: float | None
    x: float
    y: float
    width: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + NODE_H

    @property
    def middle(self) -> float:
        return self.y + NODE_H / 2


def edges(walk: Walk) -> tuple[tuple[Step, Step], ...]:
    """Every arrow of the drawing as (read, reader): the registry's `reads`, absent steps resolved."""
    at = {step: At(None if step.scope == "model" else 0, step) for step in walk.steps}
    return tuple((source.step, step) for step in walk.steps for source in walk.sources(at[step]))


def in_stream(step: Step, sources: Iterable[Step]) -> bool:
    """Whether a step stands on the residual line: the stream itself, and where the model enters or leaves it."""
    return step.kind == "residual" or (step.scope == "model" and all(s.scope != "model" for s in sources))


def place(walk: Walk) -> dict[str, Place]:
    """A place for every step of the walk, by key. See the module's words for the rules."""
    reads: dict[Step, list[Step]] = {step: [] for step in walk.steps}
    for source, step in edges(walk):
        reads[step].append(source)
    stream = {step for step, sources in reads.items() if in_stream(step, sources)}
    rows: dict[Step, int] = {}
    lanes: dict[Step, float] = {}
    taken: set[tuple[int, float]] = set()
    before = 0
    for step, sources in reads.items():
        beside = step not in stream and len(sources) == 1 and sources[0] in stream and sources[0].scope == step.scope
        row = max([before] + [rows[s] + (not beside) for s in sources])
        if step not in stream:
            lane = _lane(step, sources, reads, lanes)
            while any(r == row and abs(lane - other) < 1 for r, other in taken):
                row, lane = (row + 1, lane) if sources else (row, lane + 1)
            lanes[step] = lane
            taken.add((row, lane))
        elif any(rows[s] == row for s in rows if s in stream):
            row += 1
        rows[step] = before = row
    return _boxes(rows, lanes, reads)


def _lane(step: Step, sources: list[Step], reads: Mapping[Step, list[Step]], lanes: Mapping[Step, float]) -> float:
    """The column of a branch step, in lanes right or left of the middle one."""
    above = [lanes[s] for s in sources if s in lanes]
    if not above:
        return 0.0
    if len(above) > 1:
        return int(sum(above) / len(above) * 2) / 2  # to half a lane, towards the middle
    twins = [s for s, other in reads.items() if other == sources]
    return above[0] + twins.index(step) - (len(twins) - 1) / 2 if len(twins) > 1 else above[0]


def _boxes(rows: Mapping[Step, int], lanes: Mapping[Step, float], reads: Mapping[Step, list[Step]]) -> dict[str, Place]:
    extra = [0.0] * (max(rows.values()) + 1)
    scope = {row: step.scope for step, row in rows.items()}
    for step, row in rows.items():
        if step not in lanes and len(reads[step]) > 1:
            extra[row] = ADD_GAP
    for row in range(1, len(extra)):
        extra[row] += FRAME_GAP if scope[row] != scope[row - 1] else 0
    fixed = 2 * PAD + NODE_H * len(extra) + sum(extra)
    gap = max(10.0, min(GAP, (TALL - fixed) / max(1, len(extra) - 1)))
    tops, y = [], float(PAD)
    for row, more in enumerate(extra):
        y += more + (gap if row else 0)
        tops.append(y)
        y += NODE_H
    first = min(lanes.values(), default=0.0)
    return {
        step.key: Place(
            step,
            row,
            lanes.get(step),
            FIRST_LANE + (lanes[step] - first) * LANE if step in lanes else STREAM_X,
            tops[row],
            NODE_W if step in lanes else STREAM_W,
        )
        for step, row in rows.items()
    }


# --- arrows ------------------------------------------------------------------------------


def route(source: Place, target: Place, entry: float, places: Iterable[Place]) -> list[tuple[float, float]]:
    """The corners of an arrow; `entry` is where it meets the target's top, as an offset from its middle."""
    if source.row == target.row:
        return [(source.right, source.middle), (target.left, target.middle)]
    x, start, end = target.x + entry, (source.x, source.bottom), (target.x + entry, target.y)
    if abs(source.x - x) < 1:
        return [start, end]
    others = [p for p in places if p not in (source, target)]
    bend = target.y - GAP / 2
    if _free(source.x, source.bottom, bend, others):
        return [start, (source.x, bend), (x, bend), end]
    out = source.bottom + GAP / 2  # the way down is taken: go down in the first free gutter
    way = next(
        (c for c in sorted({p.right + 4 for p in others}, key=lambda c: abs(c - x)) if _free(c, out, bend, others)), x
    )
    return [start, (source.x, out), (way, out), (way, bend), (x, bend), end]


def _free(x: float, top: float, bottom: float, places: Iterable[Place]) -> bool:
    return not any(p.left - 2 < x < p.right + 2 and p.bottom > top + 1 and p.y < bottom - 1 for p in places)


def _path(points: list[tuple[float, float]], cut: float = 5.0) -> str:
    """An SVG path through the corners, rounded; it ends `cut` before the last one, where the tip stands."""
    (px, py), (ex, ey) = points[-2], points[-1]
    length = max(abs(ex - px) + abs(ey - py), 1e-6)
    points = [*points[:-1], (ex - (ex - px) / length * cut, ey - (ey - py) / length * cut)]
    text = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for (ax, ay), (bx, by), (cx, cy) in zip(points, points[1:], points[2:], strict=False):
        a, c = abs(bx - ax) + abs(by - ay), abs(cx - bx) + abs(cy - by)
        r = min(5.0, a / 2, c / 2)
        if r < 0.5:
            text += f"L{_n(bx)} {_n(by)}"
            continue
        text += f"L{_n(bx - (bx - ax) / a * r)} {_n(by - (by - ay) / a * r)}"
        text += f"Q{_n(bx)} {_n(by)} {_n(bx + (cx - bx) / c * r)} {_n(by + (cy - by) / c * r)}"
    return text + f"L{_n(points[-1][0])} {_n(points[-1][1])}"


def _tip(points: list[tuple[float, float]]) -> str:
    (px, py), (ex, ey) = points[-2], points[-1]
    length = max(abs(ex - px) + abs(ey - py), 1e-6)
    dx, dy = (ex - px) / length, (ey - py) / length
    bx, by = ex - dx * 6, ey - dy * 6
    return f"M{_n(ex)} {_n(ey)}L{_n(bx - dy * 3)} {_n(by + dx * 3)}L{_n(bx + dy * 3)} {_n(by - dx * 3)}Z"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# --- drawing -----------------------------------------------------------------------------


def shape_text(step: Step, dims: Mapping[str, int]) -> str:
    """The step's shape in numbers, "1·5·9·64"; a letter that has no number stays a letter."""
    return "·".join(str(dims.get(axis, axis)) for axis in step.axes)


def shape_words(step: Step, dims: Mapping[str, int]) -> str:
    """The same with every letter spelt out: "B batch 1 · T query positions 5 · …"."""
    return " · ".join(f"{axis} {AXES.get(axis, '')} {dims.get(axis, '')}".strip() for axis in step.axes)


def _arrows(walk: Walk, places: Mapping[str, Place]) -> str:
    incoming: dict[str, list[Place]] = {}
    for source, step in edges(walk):
        incoming.setdefault(step.key, []).append(places[source.key])
    parts = []
    for key, sources in incoming.items():
        target = places[key]
        above = sorted((p for p in sources if p.row != target.row), key=lambda p: p.x)
        adds = target.lane is None and len(sources) > 1
        for source in sources:
            if adds and source.lane is not None:
                y = target.y - (GAP + ADD_GAP) / 2
                points = [(source.x, source.bottom), (source.x, y), (target.x + 6, y)]
            elif target.lane is None or source not in above:
                points = route(source, target, 0, places.values())
            else:
                points = route(source, target, 16 * (above.index(source) - (len(above) - 1) / 2), places.values())
            line = " gl-line" if source.lane is None and target.lane is None else ""
            parts.append(
                f'<g class="gl-edge gl-kind-{_class(source.step.kind)}{line}" data-from="{_a(source.step.key)}" '
                f'data-to="{_a(key)}"><path class="gl-way" d="{_path(points)}"/>'
                f'<path class="gl-tip" d="{_tip(points)}"/></g>'
            )
        if adds:
            y = target.y - (GAP + ADD_GAP) / 2
            names = ", ".join(p.step.key for p in sources if p.lane is not None)
            parts.append(
                f'<g class="gl-plus"><title>{escape(t("map.adds", step=names))}</title>'
                f'<circle cx="{_n(target.x)}" cy="{_n(y)}" r="6"/>'
                f'<path d="M{_n(target.x - 3)} {_n(y)}h6M{_n(target.x)} {_n(y - 3)}v6"/></g>'
            )
    return "".join(parts)


def _node(spot: Place, dims: Mapping[str, int], lit: bool, href: Callable[[str], str] | None) -> str:
    step, shape = spot.step, shape_text(spot.step, dims)
    hint = (
        f"{escape(f'{step.key}: {step.title}')}&#10;{escape(shape_words(step, dims))}"  # one line: markdown ends there
    )
    role = "" if href else ' tabindex="0" role="button"'
    label = t("map.node", step=step.key, title=step.title, shape=shape_words(step, dims))
    small = " gl-long" if len(shape) > 15 else ""
    node = (
        f'<g class="gl-node gl-kind-{_class(step.kind)}{" gl-here" if lit else ""}" data-step="{_a(step.key)}"{role} '
        f'aria-label="{_a(label)}"><title>{hint}</title>'
        f'<rect class="gl-ring" x="{_n(spot.left - 3)}" y="{_n(spot.y - 3)}" width="{_n(spot.width + 6)}" '
        f'height="{NODE_H + 6}" rx="8"/>'
        f'<rect class="gl-box" x="{_n(spot.left)}" y="{_n(spot.y)}" width="{_n(spot.width)}" '
        f'height="{NODE_H}" rx="5.5"/>'
        f'<text class="gl-key" x="{_n(spot.x)}" y="{_n(spot.y + 11.2)}">{escape(step.key)}</text>'
        f'<text class="gl-shape{small}" x="{_n(spot.x)}" y="{_n(spot.y + 22.4)}">{escape(shape)}</text>'
        f'<path class="gl-edited" d="M{_n(spot.right - 5)} {_n(spot.y - 5)}l5 5l-5 5l-5 -5Z"/>'
        f'<circle class="gl-stop" cx="{_n(spot.left)}" cy="{_n(spot.middle)}" r="4.5"/></g>'
    )
    if href is None:
        return node
    return f'<a href="{_a(href(step.key))}" target="_self" class="gl-link">{node}</a>'


def _frame(places: Mapping[str, Place], width: float, label: str) -> str:
    inside = [p for p in places.values() if p.step.scope == "layer"]
    top, bottom = min(p.y for p in inside) - FRAME_GAP + 1, max(p.bottom for p in inside) + FRAME_GAP - 4
    tab = 6.3 * len(label) + 16
    return (
        f'<g class="gl-frame"><rect x="1" y="{_n(top)}" width="{_n(width - 2)}" height="{_n(bottom - top)}" rx="10"/>'
        f'<rect class="gl-tab" x="{_n(width - 14 - tab)}" y="{_n(top - 8)}" width="{_n(tab)}" height="16" rx="8"/>'
        f'<text class="gl-layer" x="{_n(width - 14 - tab / 2)}" y="{_n(top + 3.5)}">{escape(label)}</text></g>'
        f'<text class="gl-note gl-before" x="{STREAM_X + 12}" y="{_n(top - 4)}"></text>'
        f'<text class="gl-note gl-after" x="{STREAM_X + 12}" y="{_n(bottom + 11)}"></text>'
    )


def _legend(kinds: Iterable[Kind], top: float, width: float) -> tuple[str, float]:
    kinds, columns = list(kinds), 4
    step = (width - 12) / columns
    parts = [f'<g class="gl-legend" role="list" aria-label="{_a(t("map.legend"))}">']
    for i, kind in enumerate(kinds):
        x, y = 8 + (i % columns) * step, top + (i // columns) * 19
        name = t(f"map.kind.{kind}")
        parts.append(
            f'<g class="gl-kind-{_class(kind)}" role="listitem"><rect class="gl-swatch" x="{_n(x)}" y="{_n(y)}" '
            f'width="11" height="11" rx="3"/><text x="{_n(x + 16)}" y="{_n(y + 9.3)}">{escape(name)}</text></g>'
        )
    return "".join(parts) + "</g>", 19 * -(-len(kinds) // columns)


def _draw(
    walk: Walk,
    dims: Mapping[str, int],
    *,
    name: str,
    label: str,
    theme: str = "",
    legend: bool = False,
    highlight: str | None = None,
    href: Callable[[str], str] | None = None,
) -> str:
    places = place(walk)
    width = max(p.right for p in places.values()) + 11
    height = max(p.bottom for p in places.values()) + PAD
    body = _frame(places, width, label) + _arrows(walk, places)
    body += "".join(_node(spot, dims, spot.step.key == highlight, href) for spot in places.values())
    if legend:
        shown = {p.step.kind for p in places.values()}
        text, more = _legend([k for k in KINDS if k in shown], height + 12, width)
        body, height = body + text, height + 12 + more
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gl-map {theme}" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="group" aria-label="{_a(name)}">{body}</svg>'
    )


def layer_svg(walk: Walk, dims: Mapping[str, int]) -> str:
    """One layer with the model's own steps above and below it, for the stepper to light up.

    dims: numbers for the axis letters (`LlamaConfig.dims`).
    """
    return _layer(walk, tuple(sorted(dims.items())))


@lru_cache(maxsize=64)
def _layer(walk: Walk, dims: tuple[tuple[str, int], ...]) -> str:
    return _draw(walk, dict(dims), name=t("map.title.layer"), label=t("map.layer", layer=0))


def model_svg(
    walk: Walk,
    dims: Mapping[str, int],
    highlight: str | None = None,
    *,
    href: Callable[[str], str] | None = None,
    theme: str = "light",
) -> str:
    """The whole model: one layer drawn in full, in a frame that says how often it repeats, and the colours.

    highlight: a step's key to light up; href: a step's key to the link that its node becomes;
    theme: "light" or "dark". It needs `MAP_CSS` on the page.
    """
    label = t("map.times", layers=walk.layers) if walk.layers > 1 else t("map.times.one")
    mode = f"gl-whole gl-{_class(theme)}"
    name = t("map.title.model")
    return _draw(walk, dims, name=name, label=label, theme=mode, legend=True, highlight=highlight, href=href)


def _a(text: str) -> str:
    return escape(text, quote=True)


def _class(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "-_")


# --- style -------------------------------------------------------------------------------


def _palette(tone: int) -> str:
    """The kinds' colours, and the ink that can be read on them, as CSS variables."""
    colours = {kind: KIND_COLOURS[kind][tone] for kind in KINDS}
    return "".join(f"--gl-{kind}:{colour};--gl-on-{kind}:{ink(colour)};" for kind, colour in colours.items())


MAP_CSS = (
    f".gl-light,.gl-map{{{_palette(0)}--gl-tint:14%;--gl-text:#1c2128;--gl-page:#fff}}"
    f".gl-dark,.gl-dark .gl-map{{{_palette(1)}--gl-tint:20%;--gl-text:#e3e7ec;--gl-page:#14171c}}"
    + "".join(f".gl-kind-{kind}{{--gl-kind:var(--gl-{kind});--gl-on:var(--gl-on-{kind})}}" for kind in KINDS)
    + """
.gl-map{display:block;width:100%;height:auto;max-width:424px;overflow:visible;
  --gl-ink:var(--st-text-color,var(--gl-text));--gl-paper:var(--st-background-color,var(--gl-page));
  --gl-kind:var(--gl-residual);--gl-on:#10151b;
  font-family:var(--st-font,ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif)}
.gl-map text{fill:var(--gl-ink);text-anchor:middle;font-size:11px;font-weight:400;user-select:none;pointer-events:none}
.gl-map .gl-key,.gl-map .gl-shape{
  font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.gl-map .gl-key{font-size:11px;font-weight:600;letter-spacing:-.1px}
.gl-map .gl-shape{font-size:9px;fill-opacity:.68}
.gl-map .gl-long{font-size:7.6px}
.gl-box{fill:color-mix(in srgb,var(--gl-kind) var(--gl-tint),var(--gl-paper));stroke:var(--gl-kind);stroke-width:1.25}
.gl-ring{fill:none;stroke:none}
.gl-way{fill:none;stroke:var(--gl-kind);stroke-width:1.25;stroke-opacity:.75}
.gl-tip{fill:var(--gl-kind);fill-opacity:.9}
.gl-line .gl-way{stroke-width:2.5;stroke-opacity:.6}
.gl-plus circle{fill:var(--gl-paper);stroke:var(--gl-residual);stroke-width:1.25}
.gl-plus path{stroke:var(--gl-ink);stroke-width:1.25;fill:none}
.gl-frame rect{fill:color-mix(in srgb,var(--gl-ink) 2.5%,transparent);
  stroke:color-mix(in srgb,var(--gl-ink) 16%,transparent);stroke-width:1}
.gl-frame .gl-tab{fill:color-mix(in srgb,var(--gl-ink) 7%,var(--gl-paper))}
.gl-map .gl-layer{font-size:10.5px;font-weight:600;fill-opacity:.85}
.gl-map .gl-note{font-size:9.5px;text-anchor:start;fill-opacity:.6}
.gl-edited,.gl-stop{display:none;stroke:var(--gl-paper);stroke-width:1.5}
.gl-edited{fill:var(--gl-ink)}.gl-stop{fill:#d0342c}
.gl-here .gl-box{fill:var(--gl-kind);stroke:var(--gl-kind)}
.gl-here .gl-ring{stroke:var(--gl-ink);stroke-width:1.75}
.gl-map .gl-here text{fill:var(--gl-on);fill-opacity:1}
.gl-node{outline:none}
.gl-link,.gl-node[role=button]{cursor:pointer}
.gl-link:hover .gl-box,.gl-node[role=button]:hover .gl-box{stroke-width:2.25}
.gl-link:focus-visible{outline:none}
.gl-link:focus-visible .gl-ring,.gl-node:focus-visible .gl-ring{
  stroke:var(--st-primary-color,var(--gl-ink));stroke-width:2}
.gl-swatch{fill:color-mix(in srgb,var(--gl-kind) 30%,var(--gl-paper));stroke:var(--gl-kind);stroke-width:1.25}
.gl-map .gl-legend text{text-anchor:start;font-size:10px;fill-opacity:.85}
"""
)
"""The style of both drawings. `gl-dark` on the drawing or around it chooses the dark tones."""
