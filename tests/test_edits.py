"""Edits: read, written, refused; done at every step, on chosen cells alone, and seen by nobody else."""

from __future__ import annotations

import threading
from copy import deepcopy

import numpy as np
import pytest
import torch
from rigs import PROMPT, more_rig

from llama_core import KVCache, load, run, steps
from llama_core.config import PRESETS
from llama_core.edits import Edit, EditError, read_edits
from llama_core.errors import AddressError, GlassLlamaError
from llama_core.model import Llama
from llama_core.steps import At
from llama_core.tap import Tap

OTHER = [8, 1, 60, 33, 2]


def exact(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit for bit, the sign of zero too."""
    return np.array_equal(one.view(np.int32), other.view(np.int32))


@pytest.fixture(params=["gqa", "qwen3", "biased", "window"])
def rig(request, make) -> Llama:
    if request.param == "window":
        return make.decoder(more_rig("qwen2 window"))  # a bias, and a window of 3 from layer 1 on
    return make.decoder(make.reference(request.param))


# --- the grammar ---

TEXTS = [
    "3.head_out zero h2",
    "zero",
    "3.mlp_out scale 0.5 t0-3,5 c10",
    "embed noise 0.1 7 t4 c0-15",
    "0.scores set -1e30",
    "1.q set 1e20",
    "logits mean t1",
    "0.resid_in patch 5,9,9,3,7",
    "0.resid_in patch 5,9,9,3,7 t0-1,4 f2-3,0 c0",
    "1.weights scale 1 t2 h0,3 c0",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_reads_and_writes_itself(text):
    assert str(Edit.parse(text)) == text
    assert Edit.parse(str(Edit.parse(text))) == Edit.parse(text)
    assert hash(Edit.parse(text)) == hash(Edit.parse(text))


def test_what_is_made_in_code_is_what_its_text_says():
    pairs = {
        "3.head_out zero h2": Edit.zero("3.head_out", heads=[2]),
        "scale 0.1 t1-2": Edit.scale(0.1, tokens=(1, 2)),
        "embed noise 2 0": Edit.noise(2, at="embed"),
        "set 3 c4": Edit.set(3, channels=4),
        "0.q mean": Edit.mean(At(0, steps.Q)),
    }
    for text, edit in pairs.items():
        assert Edit.parse(text) == edit
        assert str(edit) == text
    assert read_edits("; ".join(pairs)) == tuple(pairs.values())
    assert read_edits(" ") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not an edit"),
        ("3.q", "is not an edit"),
        ("3.q double", "is not an edit"),
        ("scale", "takes a factor"),
        ("scale x", "takes a factor"),
        ("scale nan", "is a number from"),
        ("set inf", "is a number from"),
        ("set 1e39", "is a number from"),
        ("noise 1", "and a seed"),
        ("noise -1 0", "from 0 to"),
        ("noise 1 -4", "seed -4 is out of range"),
        ("zero x2", "names no cells"),
        ("zero t", "is no list of numbers"),
        ("zero t1 t2", "Write each once"),
        ("zero t3-1", "the first number comes first"),
        ("zero t0-99999999", "at most 100,000"),
        ("zero t1,1", "each once"),
        ("zero t-1", "is no list of numbers"),
        ("zero f1", "takes no number"),
        ("patch", "token ids of the other prompt"),
        ("patch 1,2 t0-1 f0", "2 tokens take from 1 positions"),
        ("<b>3.q</b> zero", "is not an address"),
        ("3.nowhere zero", "no step called"),
        ("q zero", "belongs to a layer"),
    ],
)
def test_a_text_that_is_no_edit_is_refused_with_a_sentence(text, says):
    with pytest.raises(GlassLlamaError, match=says):
        Edit.parse(text)


class Untouched:
    """Fails if the model computes anything."""

    def __init__(self, model: Llama) -> None:
        self.hook = model.model.embed_tokens.register_forward_pre_hook(self._refuse)

    def _refuse(self, *_):
        raise AssertionError("something was computed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hook.remove()


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ("2.q zero", "There is no layer 2"),
        ("0.q_norm zero", "has no step q_norm"),
        ({"3": "zero"}, "is not an address"),
        ("zero", "has no address"),
        ({"0.q": "1.q zero"}, "was given for 0.q"),
        ("0.q zero h4", "there is no head 4; q has 4 heads, 0 to 3"),
        ("0.k zero h2", "there is no head 2; k has 2 heads, 0 to 1"),
        ("0.q zero t5", "there is no token 5; q has 5 tokens, 0 to 4"),
        ("0.q zero c8", "there is no channel 8; q has 8 channels, 0 to 7"),
        ("0.attn_out zero h0", "attn_out has no heads, its axes are B T D"),
        ("0.q patch 1,2,3", "run the ids 1-3 and bind its trace"),
        (3, "is not an edit"),
        ({"0.q": [Edit.zero(), None]}, "is not an edit"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_before_anything_is_computed(ours, edits, says):
    with Untouched(ours), pytest.raises((EditError, AddressError), match=says):
        run(ours, PROMPT, edits=edits)


# --- what an edit does ---


def test_an_edit_that_changes_nothing_changes_nothing_at_any_step(rig):
    clean = run(rig, PROMPT)
    for at in rig.config.walk:
        for edit in ("scale 1", Edit.patch(clean)):
            same = run(rig, PROMPT, edits={at: edit})
            assert all(exact(same[each], clean[each]) for each in clean.walk), (at, edit)
            assert all(same.stat(each) == clean.stat(each) for each in clean.walk if each != at or not at.step.derived)
            assert same.stat(at)[3:] == pytest.approx(clean.stat(at)[3:], abs=1e-6)  # a derived one is measured itself


def test_an_edit_acts_at_every_step_and_is_what_the_trace_shows(rig):
    clean = run(rig, PROMPT)
    for at in rig.config.walk:
        after = run(rig, PROMPT, edits={at: "scale 2 t1 c0"})
        right = clean[at].copy()
        right[np.s_[:, :, 1, 0] if at.step.causal else np.s_[:, 1, ..., 0]] *= 2
        assert exact(after[at], right), at
        cells = right[..., clean.visible(at)] if at.step.causal else right
        assert after.stat(at).rms == pytest.approx(np.sqrt(np.square(cells, dtype=np.float64).mean()), rel=1e-5), at
        earlier = rig.config.walk.order[: rig.config.walk.index(at)]
        assert all(exact(after[each], clean[each]) for each in earlier), at
        assert not np.array_equal(after["logits"], clean["logits"]), at


def test_what_an_edited_step_feeds_is_computed_from_the_edited_tensor(ours):
    after = run(ours, PROMPT, edits={"0.attn_out": Edit.set(2), "0.mlp_out": "set 3"})
    clean = run(ours, PROMPT)
    assert exact(after["0.resid_mid"], clean["0.resid_in"] + np.float32(2))
    assert exact(after["0.resid_out"], after["0.resid_mid"] + np.float32(3))
    np.testing.assert_allclose(after["0.resid_out"], clean["0.resid_in"] + 5, rtol=1e-6, atol=1e-6)
    mid = after["0.resid_mid"].astype(np.float64)
    weight = ours.model.layers[0].post_attention_layernorm.weight.double().numpy()
    normed = mid / np.sqrt((mid**2).mean(-1, keepdims=True) + ours.config.rms_norm_eps) * weight
    np.testing.assert_allclose(after["0.mlp_norm"], normed, atol=1e-6)
    assert after.edits == read_edits("0.attn_out set 2; 0.mlp_out set 3")


@pytest.mark.parametrize("name", ["gqa", "mha", "biased"])
def test_zeroing_a_head_is_zeroing_its_columns_of_o_proj(make, name):
    theirs = deepcopy(make.reference(name))
    ours = make.decoder(theirs)
    width = ours.config.head_dim
    with torch.no_grad():
        theirs.model.layers[1].self_attn.o_proj.weight[:, 2 * width : 3 * width] = 0
        right = theirs(torch.tensor([PROMPT])).logits.numpy()
    after = run(ours, PROMPT, edits={"1.head_out": Edit.zero(heads=[2])})
    assert np.abs(after["logits"] - right).max() < 2e-5
    assert np.abs(run(ours, PROMPT)["logits"] - right).max() > 0.1


def test_shared_heads_can_be_edited_one_by_one(ours):
    after, clean = run(ours, PROMPT, edits="0.k_shared zero h1; 0.v_shared set 1 h3 t0 c2"), run(ours, PROMPT)
    assert not after["0.scores"][:, 1].any()  # head 0 reads the same key head, and keeps its scores
    assert exact(after["0.scores"][:, [0, 2, 3]], clean["0.scores"][:, [0, 2, 3]])
    assert exact(after["0.k_rot"], clean["0.k_rot"])
    assert after.stat("0.k_shared").zeros == pytest.approx(1 / 4)
    changed = after["0.v_shared"] != clean["0.v_shared"]
    assert changed.sum() == 1
    assert after["0.v_shared"][0, 0, 3, 2] == 1


@pytest.mark.parametrize("key", ["scores", "masked", "weights"])
def test_what_a_query_may_not_see_stays_hidden(make, key):
    ours = make.decoder(more_rig("qwen2 window"))
    clean = run(ours, PROMPT)
    for edit in ("set 0.5", "zero", "scale 3", "noise 1 0", "mean"):
        after = run(ours, PROMPT, edits={f"1.{key}": edit})
        hidden = ~after.visible(1)
        assert exact(after[f"1.{key}"][..., hidden], clean[f"1.{key}"][..., hidden]), edit
        assert not after["1.weights"][..., hidden].any()
        assert np.isneginf(after["1.masked"][..., hidden]).all()
        assert np.isfinite(after["logits"]).all()
        if key != "weights":
            np.testing.assert_allclose(after["1.weights"].sum(-1), 1, atol=1e-6)


def test_mean_is_over_all_tokens_and_over_the_queries_that_see_a_key(ours):
    clean = run(ours, PROMPT)
    after = run(ours, PROMPT, edits={"0.gate": "mean t1,3"})
    np.testing.assert_allclose(after["0.gate"][0, 1], clean["0.gate"][0].mean(0), atol=1e-6)
    assert exact(after["0.gate"][0, [0, 2, 4]], clean["0.gate"][0, [0, 2, 4]])
    weights = run(ours, PROMPT, edits={"0.weights": "mean"})["0.weights"]
    for key in range(5):
        mean = clean["0.weights"][0, :, key:, key].mean(-1)
        np.testing.assert_allclose(weights[0, :, key:, key], np.broadcast_to(mean[:, None], (4, 5 - key)), atol=1e-6)


def test_noise_is_drawn_by_seed_and_address_and_not_by_what_is_chosen(ours):
    def added(text: str) -> np.ndarray:
        at = text.split()[0]
        return run(ours, PROMPT, edits=text, until=at)[at] - run(ours, PROMPT, until=at)[at]

    all_cells = added("0.attn_norm noise 0.5 3")
    assert 0.35 < all_cells.std() < 0.65
    assert np.array_equal(all_cells, added("0.attn_norm noise 0.5 3"))
    assert np.array_equal(all_cells[:, 2], added("0.attn_norm noise 0.5 3 t2")[:, 2])
    assert not np.array_equal(all_cells, added("0.attn_norm noise 0.5 4"))
    assert np.abs(all_cells - added("embed noise 0.5 3")).max() > 0.1


def test_several_edits_of_one_step_are_done_in_turn(ours):
    after = run(ours, PROMPT, edits={"0.up": ["set 3", "scale 2 t1", "zero c0"]})["0.up"]
    assert after[0, :, 1].tolist() == [3, 6, 3, 3, 3]
    assert not after[..., 0].any()


def test_the_held_tensor_of_an_edit_is_another_than_what_the_step_computed(ours):
    seen = {}
    tap = ours.model.layers[0].mlp.tap.up
    hook = tap.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0], copy=inputs[0].clone()))
    run(ours, PROMPT, edits="0.up zero t1; 0.up scale 2")
    hook.remove()
    assert torch.equal(seen["x"], seen["copy"])


# --- patches ---


def test_a_layers_input_from_another_prompt_gives_that_prompts_output(rig):
    other = run(rig, OTHER)
    after = run(rig, PROMPT, edits=[Edit.patch(other, "1.resid_in")])
    for at in other.walk.order[other.walk.index(At(1, steps.RESID_IN)) :]:
        assert exact(after[at], other[at]), at
    assert not np.array_equal(after["0.resid_out"], other["0.resid_out"])


def test_a_patch_moves_positions_where_they_are_named(ours):
    other, clean = run(ours, [8, 1, 60]), run(ours, PROMPT)
    edit = Edit.patch(other, "0.gate", tokens=[4, 1], origins=[0, 2], channels=[5])
    after = run(ours, PROMPT, edits=[edit])["0.gate"]
    right = clean["0.gate"].copy()
    right[0, 4, 5], right[0, 1, 5] = other["0.gate"][0, 0, 5], other["0.gate"][0, 2, 5]
    assert exact(after, right)
    again = Edit.parse(str(edit))
    assert again != edit
    assert again.bind(other) == edit
    with pytest.raises(EditError, match="needs a trace of the ids 8,1,60"):
        again.bind(clean)


def test_a_patch_that_does_not_fit_is_refused(ours, make):
    short, wide = run(ours, [8, 1, 60]), run(make.decoder(make.reference("wide heads")), PROMPT)
    for edit, says in (
        (Edit.patch(short, "0.gate"), "1 × 5 × 48 here and 1 × 3 × 48 in the other trace"),
        (Edit.patch(short, "0.gate", tokens=[0], origins=[3]), "there is no origin 3; the other prompt has 3 origins"),
        (Edit.patch(short, "0.weights", tokens=[0], origins=[0]), "Patch k and v"),
        (Edit.patch(wide, "0.q"), "all else must be equal"),
        (Edit.patch(run(ours, PROMPT, until="0.v"), "0.gate"), "does not have. 0.gate was not computed"),
    ):
        with Untouched(ours), pytest.raises(EditError, match=says):
            run(ours, PROMPT, edits=[edit])


# --- the cache ---


def test_edited_keys_and_values_are_what_the_cache_keeps(ours):
    cache = KVCache(ours.config)
    first = run(ours, PROMPT[:3], cache=cache, edits="0.k_rot scale 2 t1; 1.v zero h0; 1.k_shared zero")
    for layer in range(2):
        keys, values = cache.arrays(layer)
        assert exact(keys, first[f"{layer}.k_rot"])
        assert exact(values, first[f"{layer}.v"])
    step = run(ours, PROMPT[3:], cache=cache, edits="1.k_shared zero t0")  # token 0 of all five
    assert exact(step["0.k_shared"][:, 1, ::2], first["0.k_rot"][:, 1])
    assert not step["1.k_shared"][:, 0].any()
    assert step["1.k_shared"][:, 1:].all()
    with pytest.raises(EditError, match="no token 2; scores has 2 tokens"):
        run(ours, [1, 2], cache=cache, edits="0.scores zero t2")


# --- types ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_edits_round_once_to_the_type_of_the_model(ours, dtype):
    ours = ours.to(dtype)
    clean = run(ours, PROMPT)
    same = run(ours, PROMPT, edits=dict.fromkeys(clean.walk, "scale 1"))
    assert all(exact(same[at], clean[at]) for at in clean.walk)
    after = run(ours, PROMPT, edits="0.up scale 0.3")["0.up"]
    right = torch.tensor(clean["0.up"] * np.float32(0.3)).to(dtype).float().numpy()
    assert exact(after, right)
    other = run(ours, OTHER)
    assert exact(run(ours, PROMPT, edits=[Edit.patch(other, "1.resid_in")])["logits"], other["logits"])


def test_an_edit_may_leave_the_range_of_float16(ours):
    trace = run(ours.to(torch.float16), PROMPT, edits="0.up set 70000 c3")
    assert np.isposinf(trace["0.up"][..., 3]).all()
    assert trace.first_not_finite() == At(0, steps.UP)


# --- nobody else sees them ---


def test_edits_leave_the_model_as_it_was(ours):
    weights = {name: p.clone() for name, p in ours.state_dict().items()}
    clean = run(ours, PROMPT)
    run(ours, PROMPT, edits=dict.fromkeys(ours.config.walk, "noise 1 0"))
    assert exact(run(ours, PROMPT)["logits"], clean["logits"])
    assert all(torch.equal(p, weights[name]) for name, p in ours.state_dict().items())
    taps = [module for module in ours.modules() if isinstance(module, Tap)]
    assert [len(tap._forward_hooks) for tap in taps] == [1] * len(taps)


def test_runs_at_once_never_see_each_others_edits():
    model = load(PRESETS["nano"], std=0.3)
    edits = [None, "1.head_out zero h0", "0.mlp_out set 2; 1.weights scale 0.5", "embed noise 0.5 1"]
    right = [run(model, PROMPT, edits=each) for each in edits]
    assert len({each["logits"].tobytes() for each in right}) == 4
    wrong, start = [], threading.Barrier(4)

    def work(i: int) -> None:
        start.wait()
        for _ in range(40):
            mine = run(model, PROMPT, edits=edits[i])
            again = run(model, PROMPT, edits=edits[i], start=right[0])
            if not all(exact(mine["logits"], each["logits"]) for each in (right[i], again)) and i:
                wrong.append(i)
            if mine.step_stats != right[i].step_stats:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
