"""The Sizes page: known totals, every preset, sizes that cannot be; nothing is loaded for it."""

from __future__ import annotations

import re

import pytest
from test_app import NANO, SMOL, alts, bodies, said, visit

from llama_core.checkpoints import local_models
from llama_core.checkpoints.roots import BOX
from llama_core.config import PRESETS
from llama_core.sizes import SHAPES
from pages.ui.session import CHOICES, WHAT_IF_LIMITS
from pages.words import t

MODELS = [NANO, {"model": SMOL}, *([{"model": BOX}] if BOX in local_models() else [])]


def shown(app, label: str) -> str:
    """The exact value on hover of a number on the page."""
    return re.search(rf'<dt>{re.escape(label)}</dt><dd title="(.*?)">', "".join(bodies(app)))[1]


@pytest.mark.parametrize("model", MODELS)
def test_the_page_shows_areas_three_growths_and_exact_numbers(model):
    app = visit("sizes", **model)
    assert len(alts(app)) == 4
    assert said(app) == []


@pytest.mark.parametrize(
    ("of", "parameters"),
    [
        ("Llama 2 7B", "6,738,415,616"),
        ("Llama 3 8B", "8,030,261,248"),
        ("Llama 3 70B", "70,553,706,496"),
        ("Llama 3.2 1B", "1,235,814,400"),
        ("TinyLlama 1.1B", "1,100,048,384"),
        ("SmolLM2 135M", "134,515,008"),
        ("light-0.85M", "846,336"),
    ],
)
def test_known_totals(of, parameters):
    app = visit("sizes", **NANO, of=of)
    assert shown(app, t("sizes.parameters")) == parameters
    assert f"{parameters} in all" in alts(app)[0]


def test_the_cache_of_llama_3_8b_is_128_kib_a_token_in_bfloat16():
    app = visit("sizes", **NANO, of="Llama 3 8B", context="8192")
    assert int(shown(app, t("sizes.cache")).replace(",", "")) == 8192 * 128 * 1024
    wide = visit("sizes", **NANO, of="Llama 3 8B", context="8192", stored="float32")
    assert int(shown(wide, t("sizes.cache")).replace(",", "")) == 8192 * 256 * 1024


@pytest.mark.parametrize("of", [*SHAPES, *PRESETS])
def test_every_preset_can_be_looked_at(of):
    app = visit("sizes", **NANO, of=of, context="1")
    assert len(alts(app)) == 4
    assert said(app) == []


def test_moved_sizes_change_the_numbers_and_survive_in_the_link():
    app = visit("sizes", **NANO, of="Llama 3 8B", of_layers="16", of_tied="1")
    layer = (8_030_261_248 - 2 * 128256 * 4096 - 4096) // 32
    assert shown(app, t("sizes.parameters")) == f"{16 * layer + 128256 * 4096 + 4096:,}"
    assert app.query_params["of_layers"] == "16"
    assert t("sizes.parts.tied") in "".join(bodies(app))


def test_the_head_width_follows_the_hidden_width():
    app = visit("sizes", **NANO, of="Llama 3 8B", of_hidden="2048")
    assert "D 2,048 · 32 query and 8 KV heads of 64" in "".join(bodies(app))


def test_sizes_that_cannot_be_are_said_in_a_sentence():
    app = visit("sizes", **NANO, of="Llama 3 8B", of_kv="5")
    (sentence,) = said(app)
    assert "5" in sentence
    assert "32" in sentence
    assert alts(app) == []


def test_a_random_model_too_large_to_run_still_shows_its_sizes():
    app = visit("sizes", model="random", layers="64", hidden="4096", heads="32", kv="8", mlp="16384")
    assert len(alts(app)) == 4
    assert len(said(app)) == 1


def test_a_field_takes_what_its_choice_takes():
    fields = {field.key: field for field in visit("sizes", **NANO).number_input}
    for name, limits in WHAT_IF_LIMITS.items():
        assert (fields[f"choice.{name}"].min, fields[f"choice.{name}"].max) == limits
        for value in limits:
            assert CHOICES[name].read(str(value)) == value


def test_bad_values_in_the_link_are_said():
    assert len(said(visit("sizes", **NANO, of="GPT-4", context="1000", stored="int3", of_layers="0"))) == 4
