"""The registry: addresses that read back, an order that can be computed, names that exist in the weights."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import get_args

import pytest

from llama_core import steps
from llama_core.config import PRESETS
from llama_core.errors import AddressError
from llama_core.steps import AXES, LAYER_STEPS, STEPS, At, Kind, Walk, find

ROOT = Path(__file__).parent.parent
FULL = PRESETS["nano"].with_(attention_bias=True, mlp_bias=True, qk_norm=True)
WALKS = {"llama": Walk(2), "qwen3": Walk(3, frozenset({"qk_norm"})), "one layer": Walk(1)}
walks = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.key)

DESIGN = """embed
resid_in attn_norm q k v q_norm k_norm q_rot k_rot k_shared v_shared
scores masked weights head_out attn_out resid_mid mlp_norm gate up act gated mlp_out resid_out
final_norm logits"""


def test_the_steps_are_those_of_the_design_in_its_order():
    assert [step.key for step in STEPS] == DESIGN.split()
    assert [step.key for step in STEPS if step.scope == "model"] == ["embed", "final_norm", "logits"]
    assert [step.key for step in STEPS if step.derived] == ["k_shared", "v_shared", "masked"]
    assert [step.key for step in STEPS if step.causal] == ["scores", "masked", "weights"]
    assert [step.key for step in STEPS if step.family] == ["q_norm", "k_norm"]


# --- what each record says ---


@every_step
def test_each_record_is_complete(step):
    assert set(step.axes) <= AXES.keys()
    assert step.axes[0] == "B"
    assert step.kind in get_args(Kind)
    assert step.title.strip()
    assert step.alias.strip()
    assert step.formula.count("{") == step.formula.count("}") > -1
    assert len(step.formula) > 0
    assert getattr(steps, step.key.upper()) is step
    assert find(step.key) is step
    assert re.fullmatch(r"[a-z_]{1,32}", step.key)


@every_step
def test_each_step_says_why_in_two_plain_sentences(step):
    sentences = re.findall(r"[^.?!]+[.?!](?=\s|$)", step.why.replace("−0.278", "x"))
    assert len(sentences) == 2, step.why
    assert all(len(sentence.split()) >= 4 and sentence.strip()[0].isupper() for sentence in sentences)
    assert not re.search(r"[$<>\\`*_]", step.why), "plain words only"


def test_names_are_not_used_twice():
    for field in ("key", "alias", "title"):
        assert max(Counter(getattr(step, field) for step in STEPS).values()) == 1, field


@every_step
def test_the_code_that_a_step_names_exists(step):
    for place in step.code:
        home, *path = place.split(".")
        found = __import__(f"llama_core.{home}", fromlist=[home])
        for name in path:
            found = getattr(found, name)
        assert found


def test_the_causal_steps_are_those_with_queries_against_keys():
    assert {step for step in STEPS if {"T", "S"} <= set(step.axes)} == {step for step in STEPS if step.causal}


@every_step
def test_a_copy_of_a_step_is_the_step(step):
    assert copy.copy(step) is copy.deepcopy(step) is pickle.loads(pickle.dumps(step)) is step
    at = At(None if step.scope == "model" else 1, step)
    assert pickle.loads(pickle.dumps(at)) == copy.deepcopy(at) == at
    assert {at: 1}[pickle.loads(pickle.dumps(at))] == 1


def test_records_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        steps.Q.key = "k"
    with pytest.raises(FrozenInstanceError):
        At(0, steps.Q).layer = 1


# --- weights ---


def full_name(at: At, weight: str) -> str:
    return weight if at.layer is None else f"model.layers.{at.layer}.{weight}"


def test_every_parameter_belongs_to_exactly_one_step_and_no_step_names_another():
    owners = Counter(full_name(at, weight) for at in FULL.walk for weight in at.step.weights)
    assert owners.keys() == FULL.parameter_shapes().keys()
    assert set(owners.values()) == {1}
    assert sum(name.endswith("bias") for name in owners) == 2 * 7


@pytest.mark.parametrize("config", [PRESETS["nano"], PRESETS["tiny"]], ids=["untied", "tied"])
def test_without_biases_and_qk_norm_only_those_are_missing(config):
    named = {full_name(at, weight) for at in config.walk for weight in at.step.weights}
    missing = named - config.parameter_shapes().keys()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert {name for name in missing if not name.endswith(".bias")} == tied
    assert config.parameter_shapes().keys() <= named


def test_the_module_of_a_step_is_where_its_weights_are():
    for step in STEPS:
        for weight in step.weights:
            assert weight.rsplit(".", 1)[0] == step.module, step


# --- order ---


@walks
def test_each_step_is_computed_from_earlier_ones_only(walk):
    seen: set[At] = set()
    for at in walk:
        assert set(walk.sources(at)) <= seen, at
        assert (walk.sources(at) == ()) == (at.step is steps.EMBED)
        seen.add(at)


@walks
def test_every_step_but_the_last_is_read_by_a_later_one(walk):
    for at in walk.order[:-1]:
        readers = walk.readers(at)
        assert readers, at
        assert all(walk.index(reader) > walk.index(at) for reader in readers)
        assert all(at in walk.sources(reader) for reader in readers)
    assert walk.readers(At(None, steps.LOGITS)) == ()


@walks
def test_a_walk_counts_its_steps(walk):
    own = len(LAYER_STEPS) - (0 if walk.families else 2)
    assert len(walk) == len(walk.order) == len(set(walk)) == 3 + own * walk.layers
    assert [walk.index(at) for at in walk] == list(range(len(walk)))
    assert all(at in walk for at in walk)
    assert At(walk.layers, steps.Q) not in walk


def sources(walk: Walk, text: str) -> list[str]:
    return [str(at) for at in walk.sources(At.parse(text))]


def test_what_an_absent_step_would_read_stands_in_for_it():
    llama, qwen3 = WALKS["llama"], WALKS["qwen3"]
    assert sources(llama, "1.q_rot") == ["1.q"]
    assert sources(qwen3, "1.q_rot") == ["1.q_norm"]
    assert sources(qwen3, "1.q_norm") == ["1.q"]
    assert sources(llama, "0.k_rot") == ["0.k"]
    assert sources(qwen3, "2.k_rot") == ["2.k_norm"]
    for call in (llama.sources, llama.index, llama.readers):
        with pytest.raises(AddressError, match=r"no step q_norm.*qk_norm"):
            call(At(1, steps.Q_NORM))


@walks
def test_sources_across_the_border_of_a_layer(walk):
    assert sources(walk, "0.resid_in") == ["embed"]
    assert sources(walk, "final_norm") == [f"{walk.layers - 1}.resid_out"]
    if walk.layers > 1:
        assert sources(walk, "1.resid_in") == ["0.resid_out"]
    assert sources(walk, "0.weights") == ["0.masked"]
    assert sources(walk, "0.scores") == ["0.q_rot", "0.k_shared"]
    assert sources(walk, "0.head_out") == ["0.weights", "0.v_shared"]
    assert sources(walk, "0.resid_mid") == ["0.resid_in", "0.attn_out"]


# --- addresses ---


@walks
def test_every_address_reads_back(walk):
    for at in walk:
        assert At.parse(str(at)) == walk.parse(str(at)) == at
        assert hash(At.parse(str(at))) == hash(at)
    assert len({str(at) for at in walk}) == len(walk)


def test_an_address_reads_as_people_write_it():
    assert str(At(3, steps.Q_ROT)) == "3.q_rot"
    assert str(At(None, steps.LOGITS)) == "logits"
    assert repr(At(3, steps.Q_ROT)) == "At(3.q_rot)"
    assert At.parse("12.weights") == At(12, steps.WEIGHTS)


BAD = [
    *("", " ", ".", "..", "3.", ".q", "3..q", "3.q.k", "3 q", "3. q", " 3.q", "3.q ", "3.q\n", "\n3.q", "3,q", "3/q"),
    *("q", "weights", "resid_in", "0.embed", "0.logits", "7.final_norm"),  # wrong scope
    *("3.Q", "3.Q_ROT", "EMBED", "3.nothing", "nothing", "3.q-rot", "3.q_ rot", "3.hook_q", "3.__class__"),
    *("-1.q", "+1.q", "1e1.q", "1.0.q", "0x1.q", "1_0.q", "٣.q", "³.q", "３.q", "①.q", "3.ｑ", "3.q\u200b", "3。q"),
    *("9" * 7 + ".q", "9" * 5000 + ".q", "3." + "q" * 5000, "None.q", "None", "nan.q", "{3}.q", "<b>3.q</b>", "\x00"),
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:20]))
def test_what_is_no_address_is_refused_with_a_short_sentence(text):
    for parse in (At.parse, Walk(4).parse):
        with pytest.raises(AddressError) as refused:
            parse(text)
        assert str(refused.value).endswith(".")
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["4.q", "999999.q", "0.q_norm"])
def test_an_address_beyond_the_model_is_refused_by_its_walk_only(text):
    at = At.parse(text)
    for refuse in (lambda: Walk(4).parse(text), lambda: Walk(4).index(at), lambda: Walk(4).sources(at)):
        with pytest.raises(AddressError, match=r"0 to 3|q_norm"):
            refuse()


def test_an_address_of_the_wrong_scope_cannot_be_made():
    with pytest.raises(AddressError, match=r"'0\.q'"):
        At(None, steps.Q)
    with pytest.raises(AddressError, match="'logits'"):
        At(0, steps.LOGITS)
    with pytest.raises(AddressError, match="no layer -1"):
        Walk(2).index(At(-1, steps.Q))


# --- the rooms without torch ---


@pytest.mark.parametrize("module", ["steps", "config", "trace", "errors", "tokenizer"])
def test_importing_the_records_imports_no_torch(module):
    code = f"import sys, llama_core, llama_core.{module}; print('torch' in sys.modules, 'streamlit' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_what_the_package_offers_exists_and_nothing_else_does():
    import llama_core

    for name in llama_core.__all__:
        assert getattr(llama_core, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = llama_core.nothing_such
