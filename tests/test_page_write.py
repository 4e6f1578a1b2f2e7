"""Generate: the page writes what `generate` gives, says how each token was chosen, and every page looks inside."""

from __future__ import annotations

import html
import json
import re
from functools import lru_cache
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import pytest
from test_app import NANO, PATHS, alts, bodies, component, done, said, texts, visit
from test_page_attention import unpacked

from llama_core import generate, load
from llama_core.checkpoints.roots import BOX
from llama_core.sampling import cut, draw, draw_points
from pages.figures.sampling import kept_and_cut
from pages.figures.writing import drawn_line, surprise_bars
from pages.ui.passes import MOST_NEW, Growth
from pages.words import t

IDS = [10, 20, 30, 40]
HERE = {"model": "random", "preset": "nano", "std": "0.3", "ids": "10,20,30,40"}
DRAWN = {"greedy": "0", "temperature": "1.3", "top_k": "20", "top_p": "0.9", "draw": "7"}
INSIDE = ("steps", "attention", "mlp")
SAMPLING = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 7}


@lru_cache
def model():
    return load("nano", std=0.3)


def written(app) -> list[str]:
    """The texts of the pieces in the text, the model's own and the prompt's."""
    return [piece.strip() for piece, _ in component(app, "written_text")["pieces"]]


def number(app, label: str) -> float:
    return float(re.search(rf'<dt>{re.escape(label)}</dt><dd title="(.*?)">', "".join(bodies(app)))[1])


def press(app, key: str):
    return done(app.button(key=key).click().run())


# --- the text ---


@pytest.mark.parametrize(("query", "sampling"), [({}, {}), (DRAWN, SAMPLING)], ids=["greedy", "drawn"])
def test_a_link_opens_the_text_that_generate_writes(query, sampling):
    expected = [str(token) for token, _ in generate(model(), IDS, max_new_tokens=12, **sampling)]
    app = visit("write", **HERE, **query, new="12")
    assert written(app) == [*map(str, IDS), *expected]
    assert said(app) == []


def test_another_seed_is_another_text():
    texts = {tuple(written(visit("write", **HERE, **DRAWN | {"draw": seed}, new="12"))) for seed in "123"}
    assert len(texts) == 3


def test_a_press_writes_and_another_goes_on():
    app = visit("write", **HERE)
    assert written(app) == [*map(str, IDS)]
    press(app, "write.one")
    one = written(app)
    assert len(one) == 5
    press(app, "write.more")
    assert len(written(app)) == 25
    assert written(app)[:5] == one
    assert app.query_params["new"] in ("21", ["21"])
    press(app, "write.clear")
    assert written(app) == [*map(str, IDS)]
    assert "new" not in app.query_params


def test_another_text_takes_the_next_seed():
    app = visit("write", **HERE, **DRAWN, new="8")
    press(app, "write.again")
    assert app.query_params["draw"] in ("8", ["8"])
    assert written(app) == written(visit("write", **HERE, **DRAWN | {"draw": "8"}, new="8"))


def test_no_more_can_be_asked_for_than_a_page_holds():
    app = visit("write", **HERE, new=str(MOST_NEW))
    assert app.button(key="write.more").disabled
    assert app.button(key="write.one").disabled


def test_while_it_grows_text_is_only_appended():
    told = []
    growth = Growth(load(BOX), load(BOX).tokenizer.encode("Mia had"), {"temperature": 1.0, "seed": 3})
    growth.passes(12, lambda there: told.append(growth.text()))
    assert len(set(told)) > 8
    assert all(after.startswith(before) for before, after in pairwise(told))
    assert "\ufffd" not in told[-1]


@pytest.mark.parametrize(
    ("ids", "new", "ended"),
    [("10,20,30,40", "3", "length"), (",".join(["7"] * 126), "9", "context")],
)
def test_it_says_why_it_ended(ids, new, ended):
    config = load("nano").config
    app = visit("write", **HERE | {"ids": ids}, new=new)
    n = len(written(app)) - len(ids.split(","))
    expected = t(f"write.ended.{ended}", n=n, context=config.max_length, token="")
    assert any(expected in text for text in texts(app, "gl-caption"))


def test_a_stop_token_ends_it_and_nothing_more_can_be_asked_for():
    app = visit("write", model=BOX, **DRAWN | {"top_k": "40", "top_p": "0.95", "temperature": "1.4"}, new="24")
    assert written(app)[-1] == "</s>"
    n = len(written(app)) - 28
    assert any(t("write.ended.stop", n=n, token="</s>") in text for text in texts(app, "gl-caption"))
    assert app.button(key="write.more").disabled


def test_the_surprise_of_a_token_is_that_of_the_probability_it_had():
    pairs = list(generate(model(), IDS, max_new_tokens=3))
    expected = [-np.log(cut(trace["logits"][0, -1]).before[0]) for _, trace in pairs]
    charts = [element.proto for element in visit("write", **HERE, new="3").get("plotly_chart")]
    (spec,) = [chart.spec for chart in charts if chart.id.endswith("write.surprise")]
    bars = json.loads(spec, object_hook=unpacked)["data"][0]["y"]
    assert len(bars) == 6
    assert bars[3:] == pytest.approx(expected, abs=1e-4)


# --- how a token was chosen ---


def test_the_newest_token_is_looked_at_though_it_was_never_read():
    app = visit("write", **HERE, new="5")
    assert component(app, "written_text")["chosen"] == 8
    assert component(app, "token_strip")["chosen"] == 8
    row = [trace for _, trace in generate(model(), IDS, max_new_tokens=5)][-1]["logits"][0, -1]
    assert number(app, t("write.share")) == pytest.approx(cut(row).before[0])
    assert number(app, t("write.rank")) == 1


def test_a_drawn_token_shows_what_was_left_and_where_the_draw_fell():
    pairs = list(generate(model(), IDS, max_new_tokens=6, **SAMPLING))
    app = visit("write", **HERE, **DRAWN, new="6", token="6")
    token, trace = pairs[2]
    found = cut(trace["logits"][0, -1], 1.3, 20, 0.9)
    rank = found.ids.tolist().index(token)
    assert number(app, t("write.drawn_with")) == pytest.approx(found.after[rank])
    assert number(app, t("next.kept")) == found.kept
    (line,) = [body for body in bodies(app) if 'class="gl-draw"' in body]
    assert f'title="{draw_points(7, 3)[-1]:.3f}"' in line


def test_the_mark_of_a_draw_lies_on_the_token_that_was_taken():
    pairs = list(generate(model(), IDS, max_new_tokens=20, **SAMPLING))
    points = draw_points(7, 20)
    for (token, trace), point in zip(pairs, points, strict=True):
        found = cut(trace["logits"][0, -1], 1.3, 20, 0.9)
        assert found.ids[draw(found, point)] == token


def test_a_draw_takes_each_token_as_often_as_its_probability_says():
    found = cut(np.array([2.0, 1.0, 0.0, -1.0]), top_k=3)
    ranks = [draw(found, point) for point in (np.arange(30000) + 0.5) / 30000]
    assert np.bincount(ranks) / 30000 == pytest.approx(found.after, abs=1e-4)


def test_a_token_of_the_prompt_was_not_chosen():
    app = visit("write", **HERE, new="4", token="2")
    assert t("write.how.prompt") in texts(app, "gl-caption")
    assert "gl-draw" not in "".join(body for body in bodies(app) if "<style" not in body)
    assert t("write.first_token") in texts(visit("write", **HERE, token="0"), "gl-caption")


def test_the_table_has_a_row_for_each_pass():
    app = visit("write", **HERE, new="4", token="6")
    (table,) = [body for body in bodies(app) if t("write.step.pass") in body]
    passes = re.findall(r"<td>(\d+ × \d+)</td>", table)
    assert passes == ["4 × 4", "1 × 5", "1 × 6", "1 × 7"]
    assert table.count("<tr class=gl-here>") == 1


def test_texts_of_the_line_of_a_draw_cannot_act():
    line = drawn_line({0: '<script>alert("1")</script>', 1: "&lt;"}, np.array([0.6, 0.4]), 0.7, 1, '"quoted"')
    assert "<script" not in line
    assert html.unescape(re.sub("<[^>]*>", "", line)) == '<script>alert("1")</script>&lt;'
    assert line.count("class=gl-here") == 1


def test_a_token_that_is_hardly_probable_has_its_own_part_between_the_others():
    line = drawn_line({0: "a", 7: "rare"}, np.array([0.3, *[0.05] * 6, 0.001, 0.399]), 0.6005, 7, "alt")
    parts = re.findall(r'<span style="flex: ([0-9.]+) [^"]*"( class=gl-here)? title="([^"]*)">', line)
    assert [text for *_, text in parts] == ["a", "6 others", "rare", "1 other"]
    assert [float(share) for share, *_ in parts] == pytest.approx([0.3, 0.3, 0.001, 0.399])
    assert [bool(here) for _, here, _ in parts] == [False, False, True, False]
    assert "min-width" in line
    assert 'left: 50.000%" title="0.600"' in line or 'left: 50.000%" title="0.601"' in line
    assert ">rare<" in line


@pytest.mark.parametrize("how", [{}, {"greedy": "0", "temperature": "0", "top_k": "1"}], ids=["greedy", "zero"])
def test_what_was_not_drawn_says_nothing_of_a_draw(how):
    app = visit("write", **HERE, **how, new="4")
    page = "".join(body for body in bodies(app) if "<style" not in body)
    assert t("write.how.greedy") in texts(app, "gl-caption")
    for word in ("gl-draw", f"<dt>{t('write.drawn_with')}</dt>", f"<dt>{t('next.kept')}</dt>"):
        assert word not in page


def links(app) -> list:
    found = [each.proto for each in app.get("page_link")]
    return [link for link in found if link.label in {t("write.inside", page=t(f"page.{p}.title")) for p in INSIDE}]


def test_links_into_a_pass_rest_while_edits_act():
    for entry, rest in (("1.attn_out zero", True), ("off 1.attn_out zero", False)):
        app = visit("write", **HERE, new="4", edit=entry)
        assert [link.disabled for link in links(app)] == [rest] * 3
        assert (t("write.inside.edited") in texts(app, "gl-caption")) == rest


def test_the_models_own_part_is_named_only_where_there_is_one():
    own = t("write.surprise.look.own", first=3)
    assert not any(own in text for text in texts(visit("write", **HERE), "gl-caption"))
    assert any(own in text for text in texts(visit("write", **HERE, new="2"), "gl-caption"))
    each = np.array([1.0, 2.0, 3.0, 4.0])
    for first, count in ((2, 3), (4, 2)):
        figure = surprise_bars(each, 2.5, 5.0, list("abcde"), own=first)
        named = [line.name for line in figure.layout.shapes if line.showlegend]
        assert (
            named
            == [t("next.loss.mean", value="2.50"), t("next.loss.even", value="5.00"), t("write.surprise.own")][:count]
        )
        assert figure.layout.showlegend
        assert not figure.layout.annotations
        assert [line.x0 for line in figure.layout.shapes[2:]] == [1.5] * (count - 2)
        go.Figure(figure.to_dict())  # with plotly's own checks


def test_a_long_table_says_that_it_scrolls():
    for new, long in (("20", False), ("70", True)):
        said_so = [text for text in texts(visit("write", **HERE, new=new), "gl-caption") if "scroll inside" in text]
        assert len(said_so) == long


@pytest.mark.parametrize(("best", "end"), [(0.9, 1.0), (0.11, 1.0), (0.1, 0.1), (0.02, 0.1), (0.0015, 0.01)])
def test_bars_stand_on_one_of_few_scales_and_are_named(best, end):
    share = np.array([best, best / 2])
    figure = kept_and_cut(["a", "b"], share, share, taken=1)
    assert figure.layout.xaxis.range == pytest.approx((0, end))
    assert figure.layout.xaxis.ticktext[-1] == f"{100 * end:g} %"
    names = [layer.name for layer in figure.data if layer.name]
    assert names == [t("next.cut.before"), t("next.cut.after"), t("write.bars.taken")]
    assert list(figure.data[-1].y) == [1]
    assert figure.layout.showlegend


# --- every page looks into a decode step ---


@pytest.mark.parametrize("page", PATHS)
@pytest.mark.parametrize("model", [HERE, {"model": BOX}], ids=["ids", "box"])
def test_a_token_that_was_read_again_is_looked_into_on_every_page(page, model):
    place = "6" if model is HERE else "31"
    app = visit(page, **model, new="6", token=place)
    if page == "edit":  # edits act on the prompt alone, and the page says so
        return
    assert said(app) == []
    assert len(alts(app)) >= 2
    if page != "write":
        assert any(t("state.tokens.one") in text for text in texts(app, "gl-state"))
        assert app.query_params["token"] in (place, [place])
    assert "position 0" not in " ".join(alts(app))


def test_one_that_was_never_read_shows_the_pass_that_wrote_it():
    app = visit("attention", **HERE, new="3", token="6")  # positions 4, 5, 6 are new; 6 was never read
    assert said(app) == []
    assert "1 × 6 (query × key)" in alts(app)[0]
    assert said(visit("attention", **HERE, new="3", token="7")) != []


@pytest.mark.parametrize("page", ["stream", "next"])
def test_positions_count_what_is_in_the_cache(page):
    """The map of the one token stands at its own position, 5, not at 0."""
    app = visit(page, **NANO, ids="10,20,30,40", new="3", token="5")
    charts = [element.proto for element in app.get("plotly_chart")]
    key = "stream" if page == "stream" else "lens"
    (spec,) = [json.loads(chart.spec) for chart in charts if chart.id.split("-")[-1] == key]
    assert spec["layout"]["xaxis"]["range"] == [4.5, 5.5]
