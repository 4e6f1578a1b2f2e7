"""RoPE's arrows on small hand-made arrays: they point where the numbers say, and the hover says the numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from llama_core.turning import members
from pages.figures.arrows import SHOWN, arrows, degrees, shown_pairs, wedge

BEFORE = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
ANGLE = np.array([np.pi / 2, np.pi, 7 * np.pi, 0.0])
AFTER = np.stack(
    (
        BEFORE[:, 0] * np.cos(ANGLE) - BEFORE[:, 1] * np.sin(ANGLE),
        BEFORE[:, 1] * np.cos(ANGLE) + BEFORE[:, 0] * np.sin(ANGLE),
    ),
    axis=1,
)


def drawn(html: str) -> list[ElementTree.Element]:
    """The planes; what is not well-formed raises."""
    return ElementTree.fromstring(f"<div>{html}</div>").findall(".//svg")


def small(**more) -> str:
    return arrows(BEFORE, AFTER, ANGLE, members(4, "halves"), kind="query", name="q <b>", **more)


def points_to(plane: ElementTree.Element, name: str) -> np.ndarray:
    """Where an arrow's tip lies, in mathematics' axes: SVG's second one points down, and so do its angles."""
    (group,) = (part for part in plane.findall("g") if part.get("class") == name)
    turn = -math.radians(float(re.fullmatch(r"rotate\((.*)\)", group.get("transform"))[1]))
    length = float(re.match(r"M([\d.]+) 0", group.findall("path")[1].get("d"))[1])
    return length * np.array([math.cos(turn), math.sin(turn)])


def test_arrows_point_where_the_vectors_do():
    for name, vectors in (("gl-pale", BEFORE), ("gl-strong", AFTER)):
        for plane, vector in zip(drawn(small())[:3], vectors, strict=False):
            end = points_to(plane, name)
            np.testing.assert_allclose(end / np.linalg.norm(end), vector / np.linalg.norm(vector), atol=1e-3)


def test_the_area_of_a_circle_is_the_length_of_its_pair_down_to_the_smallest():
    html = arrows(np.array([[4.0, 0], [0, 3.0], [1e-3, 0]]), np.eye(3, 2), np.ones(3), members(3, "halves"), kind="key")
    radii = [float(plane.find("circle").get("r")) for plane in drawn(html)]
    assert radii[1] ** 2 / radii[0] ** 2 == pytest.approx(3 / 4, rel=5e-3)
    assert radii[2] / radii[0] == pytest.approx(0.62, rel=5e-3)
    assert [np.linalg.norm(points_to(plane, "gl-pale")) for plane in drawn(html)] == pytest.approx(radii, abs=0.06)


def test_labels_leave_whole_turns_out_and_the_hover_does_not():
    planes = drawn(small())
    labels, hovers = [plane.find("text").text for plane in planes], [plane.get("data-hover") for plane in planes]
    assert labels[0] == "0 · 90°"
    assert labels[3] == "3 · 0°"
    assert labels[2] in ("2 · 180°", "2 · -180°")
    assert "3.50 turns" in hovers[2]
    assert "dimensions 1 and 5" in hovers[1]
    assert hovers[1].count("2.00") == 4


@pytest.mark.parametrize(
    ("radians", "shown"),
    [(0.0, "0°"), (1.0, "57°"), (-1.0, "-57°"), (1e-4, "< 0.1°"), (0.0175, "1.0°"), (2 * np.pi + 0.1, "5.7°")],
)
def test_degrees_are_short(radians, shown):
    assert degrees(radians) == shown


@pytest.mark.parametrize("angle", [1.2, -1.2, 2 * np.pi + 1.2, 3.0, -3.0])
def test_the_wedge_is_the_turn_without_whole_turns(angle):
    numbers = list(map(float, re.findall(r"-?\d+(?:\.\d+)?", wedge(0.5, angle, 50.0))))
    first, sweep, last = numbers[2:4], numbers[8], numbers[9:11]
    assert first == pytest.approx([50 * math.cos(0.5), -50 * math.sin(0.5)], abs=0.06)
    assert last == pytest.approx([50 * math.cos(0.5 + angle), -50 * math.sin(0.5 + angle)], abs=0.06)
    assert sweep == (math.remainder(angle, 2 * math.pi) < 0)  # SVG's 0 is counterclockwise: RoPE's way


def test_what_the_browser_plays_from_and_by_is_the_run_s():
    for plane, start, angle in zip(drawn(small()), (0, np.pi / 2, 0, 0), ANGLE, strict=True):
        assert float(plane.get("data-start")) == pytest.approx(start, abs=1e-5)
        assert float(plane.get("data-angle")) == angle
    assert "gl-play" in small()


def test_nothing_to_play_at_position_0():
    assert "gl-play" not in arrows(BEFORE, BEFORE, np.zeros(4), members(4, "halves"), kind="query")


def test_texts_from_outside_are_escaped():
    html = small()
    assert "<b>" not in html
    assert "q &lt;b&gt;" in html


def test_many_pairs_are_thinned_evenly_and_it_is_known():
    assert shown_pairs(32).tolist() == list(range(32))
    assert shown_pairs(64).tolist() == list(range(0, 64, 2))
    for R in (1, 2, 33, 100, 256):
        assert 1 <= len(shown_pairs(R)) <= SHOWN
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 2))
    html = arrows(x, x, rng.normal(size=256), members(256, "halves"), kind="key")
    assert len(drawn(html)) == 32
    assert "32 of 256 pairs" in html
    assert len(html) < 60_000


def test_a_pair_that_is_not_finite_is_an_empty_circle():
    before = BEFORE.copy()
    before[1], before[2] = np.nan, [np.inf, 0]
    planes = drawn(arrows(before, before, ANGLE, members(4, "halves"), kind="query"))
    assert [len(plane.findall("g")) for plane in planes] == [2, 0, 0, 2]
    assert [plane.get("data-start") is None for plane in planes] == [False, True, True, False]
    assert "nan" in planes[1].get("data-hover").lower()
    for plane in planes:
        assert "nan" not in plane.find("circle").get("r")


def test_a_length_beyond_float32_is_still_an_arrow():
    before = np.array([[3e38, 3e38], [1, 0]], dtype=np.float32)
    html = arrows(before, before, ANGLE[:2], members(2, "halves"), kind="query")
    assert "nan" not in html.lower()
    assert [len(plane.findall("g")) for plane in drawn(html)] == [2, 2]
