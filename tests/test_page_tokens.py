"""The Tokens page on each model: pieces, ids, bytes, repeats, nearest tokens; one token and hundreds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_app import NANO, SMOL, alts, bodies, said, visit

from llama_core import load
from llama_core.checkpoints import local_models
from llama_core.checkpoints.roots import BOX
from pages.ui.parts import window
from pages.ui.token_parts import hex_of
from pages.words import t

MODELS = [NANO, {"model": SMOL}, *([{"model": BOX}] if BOX in local_models() else [])]
TINY = {"model": "random", "preset": "tiny"}


@pytest.mark.parametrize("model", MODELS)
def test_the_page_shows_rows_nearest_tokens_and_a_table(model):
    app = visit("tokens", **model)
    assert len(alts(app)) == 2
    assert "embedding rows" in alts(app)[0]
    assert "nearest in the embedding table" in alts(app)[1]
    assert any("<table" in body for body in bodies(app))
    assert said(app) == []


def test_a_character_over_three_tokens_shows_its_bytes_and_a_special_token_its_kind():
    table = "".join(bodies(visit("tokens", model=SMOL, prompt="is 東<|im_end|> the the")))
    kinds = [t("tokens.kind.part"), t("tokens.kind.special"), t("tokens.kind.text")]
    assert [text for text in ("20 E6", "9D", "B1", *kinds) if f"<td>{text}</td>" not in table] == []
    assert table.count("<td>2×</td>") == 2


def test_what_is_near_is_what_numpy_finds_in_the_table():
    app = visit("tokens", **NANO, ids="5,9", token="1")
    table = load("nano").model.embed_tokens.weight.double().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[9]
    cosines[9] = -2
    assert f"the first is {cosines.argmax()} with cosine {cosines.max():.3g}" in alts(app)[1]
    shown = re.search(rf'<dt>{t("tokens.length")}</dt><dd title="(.*?)">', "".join(bodies(app)))[1]
    assert float(shown) == pytest.approx(np.linalg.norm(table[9]), rel=1e-6)


@pytest.mark.parametrize(("T", "chosen", "said_of"), [(1, 0, None), (300, 299, (276, 299)), (300, 5, (0, 23))])
def test_one_token_and_three_hundred(T, chosen, said_of):
    app = visit("tokens", **TINY, ids=",".join(str(i % 60) for i in range(T)), token=str(chosen))
    windows = re.findall("Positions (\\d+) to (\\d+) of 300", "".join(bodies(app)))
    assert set(windows) == (set() if said_of is None else {tuple(map(str, said_of))})
    assert len(alts(app)) == 2
    assert said(app) == []


def test_a_bad_token_in_the_link_is_said():
    assert said(visit("tokens", **NANO, token="99")) == [t("note.token", asked=99, used=4)]


def test_a_page_of_positions_holds_the_chosen_one_and_stays_while_it_moves_within():
    assert window(0, 5, 24) == range(5)
    assert window(23, 50, 24) == range(24)
    assert window(24, 50, 24) == window(47, 50, 24) == range(24, 48)
    assert window(48, 50, 24) == window(49, 50, 24) == range(26, 50)


def test_bytes_are_said_in_hexadecimal_whole_characters_too():
    assert hex_of(" ‹E6›‹9D›") == "20 E6 9D"
    assert hex_of("‹B1›é") == "B1 C3 A9"
