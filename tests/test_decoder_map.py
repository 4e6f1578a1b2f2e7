"""The drawing of the decoder follows the registry: every step, every arrow, a place for what is new."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from llama_core import steps
from llama_core.config import PRESETS
from llama_core.steps import At, Step, Walk
from pages.figures import decoder_map
from pages.figures.decoder_map import NODE_H, layer_svg, model_svg, place, shape_text, shape_words

DIMS = PRESETS["tiny"].dims(5, past=4)
WALKS = {"llama": Walk(4), "qwen3": Walk(4, frozenset({"qk_norm"})), "one layer": Walk(1)}
walks = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
drawings = pytest.mark.parametrize("draw", [layer_svg, model_svg], ids=["layer", "model"])


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def marked(svg: str, name: str) -> list[ET.Element]:
    return [element for element in parse(svg).iter() if name in element.attrib]


@walks
@drawings
def test_every_step_of_the_walk_is_drawn_exactly_once(walk, draw):
    drawn = [node.get("data-step") for node in marked(draw(walk, DIMS), "data-step")]
    assert drawn == [step.key for step in walk.steps]


@walks
@drawings
def test_the_arrows_are_what_the_registry_reads(walk, draw):
    drawn = sorted((a.get("data-from"), a.get("data-to")) for a in marked(draw(walk, DIMS), "data-to"))
    addresses = [At(None if s.scope == "model" else 0, s) for s in walk.steps]
    assert drawn == sorted((source.step.key, at.step.key) for at in addresses for source in walk.sources(at))


@walks
def test_no_two_nodes_overlap_and_all_are_inside(walk):
    places = place(walk).values()
    for one, other in combinations(places, 2):
        apart = one.right <= other.left or other.right <= one.left or one.bottom <= other.y or other.bottom <= one.y
        assert apart, (one.step.key, other.step.key)
    _, _, width, height = (float(n) for n in parse(layer_svg(walk, DIMS)).get("viewBox").split())
    assert all(p.left > 0 and p.right < width and p.y > 0 and p.bottom < height for p in places)
    assert width <= 424


@walks
def test_execution_never_goes_up(walk):
    places = place(walk)
    rows = [places[step.key].row for step in walk.steps]
    assert rows == sorted(rows)


@walks
def test_no_arrow_runs_through_a_node(walk):
    places = place(walk)
    for arrow in marked(layer_svg(walk, DIMS), "data-to"):
        ends = {arrow.get("data-from"), arrow.get("data-to")}
        numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", arrow[0].get("d"))]
        corners = list(zip(numbers[::2], numbers[1::2], strict=True))
        for (ax, ay), (bx, by) in pairwise(corners):
            for t in range(21):
                x, y = ax + (bx - ax) * t / 20, ay + (by - ay) * t / 20
                hit = [k for k, p in places.items() if p.left < x < p.right and p.y < y < p.bottom and k not in ends]
                assert not hit, (ends, hit)


def test_qwen3_has_its_two_norms_between_projection_and_rotation():
    places = place(WALKS["qwen3"])
    assert places["q"].row < places["q_norm"].row < places["q_rot"].row
    assert "q_norm" not in place(WALKS["llama"])


def test_the_two_additions_are_drawn():
    signs = [g for g in parse(layer_svg(Walk(2), DIMS)).iter() if "gl-plus" in g.get("class", "")]
    assert len(signs) == 2


def test_shapes_are_numbers_on_the_node_and_letters_in_its_hint():
    assert shape_text(steps.Q_ROT, DIMS) == "1·5·8·8"
    assert shape_words(steps.Q_ROT, DIMS) == "B batch 1 · T query positions 5 · Hq query heads 8 · Dh head width 8"
    assert shape_text(steps.Q_ROT, {"B": 1}) == "1·T·Hq·Dh"
    (node,) = (n for n in marked(layer_svg(Walk(2), DIMS), "data-step") if n.get("data-step") == "q_rot")
    assert "1·5·8·8" in [text.text for text in node]
    assert "T query positions 5" in node[0].text


def test_text_from_the_registry_is_escaped(monkeypatch):
    evil = replace(steps.ACT, title='<script>alert("x")</script> & \'"><img src=x onerror=alert(1)>')
    gated = replace(steps.GATED, reads=(evil, steps.UP))
    mlp_out = replace(steps.MLP_OUT, reads=(gated,))
    changed = {steps.ACT: evil, steps.GATED: gated, steps.MLP_OUT: mlp_out}
    resid_out = changed[steps.RESID_OUT] = replace(steps.RESID_OUT, reads=(steps.RESID_MID, mlp_out))
    changed[steps.FINAL_NORM] = replace(steps.FINAL_NORM, reads=(resid_out,))
    changed[steps.LOGITS] = replace(steps.LOGITS, reads=(changed[steps.FINAL_NORM],))
    walk = with_steps(monkeypatch, [changed.get(s, s) for s in steps.STEPS])
    svg = model_svg(walk, DIMS, href=lambda key: f'/Step?at={key}&x="><b>')
    assert {element.tag.rpartition("}")[2] for element in parse(svg).iter()}.isdisjoint({"script", "img", "b"})
    (node,) = (n for n in marked(svg, "data-step") if n.get("data-step") == "act")
    assert evil.title in node[0].text


def with_steps(monkeypatch, changed: list[Step]) -> Walk:
    """A walk over another registry, as a future version of it would be."""
    by_key = {step.key: step for step in changed}
    monkeypatch.setattr(steps, "STEPS", tuple(changed))
    monkeypatch.setattr(steps, "LAYER_STEPS", tuple(s for s in changed if s.scope == "layer"))
    for name in ("EMBED", "RESID_IN", "RESID_OUT", "FINAL_NORM", "LOGITS"):
        monkeypatch.setattr(steps, name, by_key[name.lower()])
    return Walk(2, frozenset({"new"}))


def new(key: str, reads: tuple[Step, ...], kind: str = "mlp") -> Step:
    return Step(key, key, "B T D", "x", "why", "look", reads, kind, "mlp", key)


@pytest.mark.parametrize("kind", ["mlp", "attention", "norm", "query"])
def test_a_new_record_in_the_registry_gets_a_place(monkeypatch, kind):
    extra = [
        new("router", (steps.MLP_NORM,), kind),
        new("experts", (steps.MLP_NORM,), kind),
        new("mixed", (steps.UP,), kind),
        new("gate_bias", (steps.GATE,), kind),
    ]
    at = steps.STEPS.index(steps.ACT)
    walk = with_steps(monkeypatch, [*steps.STEPS[:at], *extra, *steps.STEPS[at:]])
    decoder_map._layer.cache_clear()
    test_every_step_of_the_walk_is_drawn_exactly_once(walk, layer_svg)
    places = place(walk)
    for one, other in combinations(places.values(), 2):
        assert one.right <= other.left or other.right <= one.left or one.bottom <= other.y or other.bottom <= one.y, (
            one.step.key,
            other.step.key,
        )
    rows = [places[step.key].row for step in walk.steps]
    assert rows == sorted(rows)
    decoder_map._layer.cache_clear()


def test_the_model_says_how_often_the_layer_repeats_and_names_the_colours():
    svg = model_svg(Walk(30), DIMS, "q_rot", href=lambda key: f"/Step_by_step?at={key}", theme="dark")
    text = "".join(parse(svg).itertext())
    assert "× 30 layers" in text
    assert all(word in text for word in ("residual stream", "queries", "keys", "values", "MLP"))
    links = [element.get("href") for element in parse(svg).iter() if element.tag.endswith("}a")]
    assert "/Step_by_step?at=scores" in links
    assert svg.count("gl-here") == 1
    assert "gl-dark" in parse(svg).get("class")


def test_a_drawing_fits_a_column_of_420_by_720():
    *_, width, height = (float(n) for n in parse(layer_svg(Walk(30), DIMS)).get("viewBox").split())
    assert height * 420 / width <= 720
    assert NODE_H >= 24
