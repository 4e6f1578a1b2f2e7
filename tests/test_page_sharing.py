"""The page about shared heads: MHA, GQA and MQA each get true sentences, and the numbers are the run's."""

from __future__ import annotations

import re

import pytest
from test_app import NANO, SMOL, alts, bodies, component, said, texts, visit

from llama_core import load, run
from llama_core.checkpoints.roots import BOX, local_models
from llama_core.heads import group_likeness, tiled_difference
from pages.figures import numbers
from pages.words import t

TINY = {"model": "random"}
MHA, MQA = TINY | {"kv": "8"}, TINY | {"kv": "1"}


def lead(app) -> str:
    return " ".join(texts(app, "gl-lead"))


def rows(app) -> list[list[str]]:
    """The cells of every table on the page."""
    return [
        re.findall("<td>(.*?)</td>", row)
        for body in bodies(app)
        if "gl-table" in body
        for row in re.findall("<tr>(.*?)</tr>", body)
    ]


def drawn(app) -> str:
    return component(app, "sharing.drawing")["html"]


@pytest.mark.parametrize("query", [NANO, TINY, MHA, MQA, {"model": SMOL}, {"model": BOX}], ids=str)
def test_it_opens(query):
    if query["model"] == BOX and BOX not in local_models():
        query = TINY
    app = visit("sharing", **query)
    assert said(app) == []
    assert len(alts(app)) >= 2
    assert drawn(app).count(">Q") >= 2


@pytest.mark.parametrize(
    ("query", "figures"),
    [
        (TINY | {"ids": "7"}, 2),
        (TINY | {"ids": ",".join(str(i % 256) for i in range(300))}, 3),
        ({"model": SMOL, "prompt": "A"}, 2),
        ({"model": SMOL, "prompt": "one two " * 150}, 3),
        (TINY | {"heads": "1", "kv": "1", "hidden": "16"}, 2),
    ],
    ids=["one id", "300 ids", "one token", "300 tokens", "one head"],
)
def test_one_token_one_head_and_hundreds(query, figures):
    app = visit("sharing", **query)
    assert said(app) == []
    assert len(alts(app)) == figures


def test_each_kind_of_sharing_gets_true_sentences():
    assert "MHA" in lead(visit("sharing", **MHA))
    assert t("sharing.tiled.mha") in lead(visit("sharing", **MHA))
    assert "MQA" in lead(visit("sharing", **MQA))
    assert t("sharing.tiled.mqa") in lead(visit("sharing", **MQA))
    grouped = lead(visit("sharing", **TINY))
    assert t("sharing.lead") in grouped
    assert "Not the same output" in grouped or "hardly differ" in grouped


def test_the_drawing_is_this_models():
    app = visit("sharing", model=SMOL, head="4")
    assert [f">{name}<" in drawn(app) for name in ("Q0", "Q8", "Q9", "K2", "K3")] == [True, True, False, True, False]
    assert "4 // 3 = KV1" in " ".join(texts(app, "gl-caption"))


def test_sizes_and_bytes_are_this_models():
    found = rows(visit("sharing", model=SMOL))
    q, k, v = found[1:4]
    assert q[1:3] == ["B · T · Hq · Dh = 1·5·9·64", "576"]
    assert k[1:5] == ["B · T · Hkv · Dh = 1·5·3·64", "192", "self_attn.k_proj.weight", "192·576"]
    assert v[0] == "v"
    mha, gqa, mqa = (row for row in found if row and row[0].split(" ")[0] in ("MHA", "GQA", "MQA"))
    # 2 × KV heads × 64 × 4 bytes, 30 layers, 5 and 8,192 positions
    assert gqa == [
        "GQA · this model",
        "3",
        numbers.bytes_(2 * 3 * 64 * 4),
        numbers.bytes_(30 * 2 * 3 * 64 * 4),
        numbers.bytes_(5 * 30 * 2 * 3 * 64 * 4),
        numbers.bytes_(8192 * 30 * 2 * 3 * 64 * 4),
        "66.7 %",
        "134,515,008",
    ]
    assert mha[1] == "9"
    assert mha[5] == "1.1 GB"
    assert mqa[6] == "88.9 %"


def test_likeness_and_tiling_are_those_of_the_run():
    app = visit("sharing", **TINY, at="2.weights", std="0.5")
    trace = run(load("tiny", std=0.5), [10, 20, 30, 40, 50])
    alike, slip = group_likeness(trace, 2), tiled_difference(trace, 2)
    found = {row[0]: row[1:] for row in rows(app) if len(row) == 3}
    assert found[t("sharing.number.within")] == [numbers.short(alike.within, 4), "12 pairs"]
    assert found[t("sharing.number.across")] == [numbers.short(alike.across, 4), "16 pairs"]
    for value in (slip.largest, slip.rms, slip.rounding):
        assert numbers.short(value) in lead(app)


def test_moved_sizes_are_followed():
    app = visit("sharing", **TINY, heads="4", kv="2", hidden="32")
    assert drawn(app).count(">Q") == 4
    assert re.findall(r"<td[^>]*>(Q\d)</td>", "".join(bodies(app))) == ["Q0", "Q1", "Q2", "Q3"]
    assert said(app) == []


@pytest.mark.parametrize("query", [{"at": "9.weights"}, {"head": "99"}])
def test_what_is_not_in_this_model_leaves_a_note(query):
    app = visit("sharing", **TINY, **query)
    assert len(said(app)) == 1
    assert len(alts(app)) == 3


def test_a_link_that_cannot_be_leaves_a_note():
    assert len(said(visit("sharing", **TINY, head="x"))) == 1
