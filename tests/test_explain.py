"""explain: every cell is the sum of its terms, each factor is where it says, and the way leads back to a token."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from rigs import MORE_RIGS, more_rig

from llama_core import KVCache, explain, load, run, steps
from llama_core.config import PRESETS
from llama_core.errors import AddressError
from llama_core.explaining import Cell, Explanation, Weight
from llama_core.explaining.by_step import EXPLAINERS
from llama_core.steps import STEPS, At
from llama_core.trace import Parameters, Trace

LONG = [(7 * i * i + 3 * i + 5) % 64 for i in range(48)]  # beyond the 16 or 32 original positions of scaled rigs
RIGS = (
    *("biased", "qwen3", "neighbours", "llama3", "mqa", "tied", "gelu", "gelu tanh", "relu"),
    *("llama yarn", "llama dynamic", "llama linear", "qwen2 window", "mistral window"),
)
# The exponential is made from the score that it names; all other factors with a source are that number.
MADE_FROM_ITS_SOURCE = "exp"


@lru_cache
def trace_of(make, name: str, dtype: str = "float32", past: int = 0) -> Trace:
    """A pass over LONG; with `past`, its first positions come from a KV cache."""
    if name == "neighbours":
        model = make.neighbours(make.decoder(make.reference("qwen3")))
    else:
        model = make.decoder(more_rig(name) if name in MORE_RIGS else make.reference(name))
    model = model.to(getattr(torch, dtype))
    cache = KVCache(model.config)
    if past:
        run(model, LONG[:past], cache=cache)
    return run(model, LONG[past:], cache=cache)


def cells(trace: Trace, at: At, n: int) -> list[tuple[int, ...]]:
    """The first and the last cell of a step, and n drawn at random."""
    shape = trace[at].shape
    generator = np.random.default_rng(trace.walk.index(at))
    drawn = generator.integers(shape, size=(n, len(shape))).tolist()
    return [tuple(index) for index in [[0] * len(shape), [size - 1 for size in shape], *drawn]]


def check(trace: Trace, found: Explanation) -> None:
    """It adds up, it lists what it sums, and each factor is the number at its source."""
    assert found.value == trace[found.at][found.index]
    assert found.adds_up, found
    for shown in filter(None, (found.shown, found.inner)):
        rest = shown.rest
        if shown.terms:
            assert math.isclose(
                sum(term.value for term in shown.terms) + (rest.value if rest else 0),
                shown.total,
                abs_tol=1e-12 * (1 + shown.size),
            )
        for term in shown.terms:
            assert math.isclose(term.value, math.prod(f.value for f in term.factors), rel_tol=1e-14)
            for factor in term.factors:
                if isinstance(factor.source, Weight):
                    assert factor.value == trace.parameters[factor.source.name][factor.source.index]
                elif isinstance(factor.source, Cell) and factor.name != MADE_FROM_ITS_SOURCE:
                    assert factor.value == trace[factor.source.at][factor.source.index]
                    assert factor.source.at in trace.walk.sources(found.at)
    for text in (found.formula, str(found)):
        assert text.count("{") == text.count("}")


def test_every_step_of_the_registry_has_an_explainer():
    assert tuple(EXPLAINERS) == STEPS


@pytest.mark.parametrize("name", RIGS)
def test_random_cells_of_every_step_add_up(make, name):
    trace = trace_of(make, name)
    for at in trace.walk:
        for index in cells(trace, at, 6):
            found = explain(trace, at, index)
            check(trace, found)
            assert found.bound == 1e-5 * (1 + found.shown.size)


@pytest.mark.parametrize("name", ["neighbours", "llama yarn", "llama dynamic", "mistral window"])
def test_with_a_cache_they_add_up_too(make, name):
    trace = trace_of(make, name, past=20)
    assert trace.past == 20
    for at in trace.walk:
        for index in cells(trace, at, 6):
            check(trace, explain(trace, at, index))


def test_each_prompt_of_a_batch_adds_up_and_the_batch_asks_which_is_meant(make):
    batch = run(make.decoder(more_rig("llama dynamic")), [LONG[:9], LONG])
    with pytest.raises(AddressError, match=r"2 prompts.*trace\.row\(0\)"):
        explain(batch, "0.q", (0, 0, 0, 0))
    for trace in (batch.row(0), batch.row(1)):
        for at in trace.walk:
            for index in cells(trace, at, 4):
                check(trace, explain(trace, at, index))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_a_short_type_they_add_up_to_its_rounding_and_not_more_closely(make, dtype):
    trace = trace_of(make, "biased", dtype)
    share = {}
    for at in trace.walk:
        found = [explain(trace, at, index) for index in cells(trace, at, 12)]
        for one in found:
            check(trace, one)
        share[at.step] = max(share.get(at.step, 0), *(abs(one.difference) / one.bound for one in found))
    copies = {step for step in STEPS if EXPLAINERS[step].__name__ in ("_embed", "_copy", "_shared", "_masked")}
    assert all(share[step] == 0 for step in copies)
    assert all(share[step] > 0.05 for step in share.keys() - copies), share


def test_a_real_checkpoint_adds_up_in_its_first_middle_and_last_layer():
    trace = run(load("SmolLM2-135M-Instruct.Q4_1.gguf"), "The capital of France is")
    for at in trace.walk:
        if at.layer in (None, 0, 12, 29):
            for index in cells(trace, at, 2):
                check(trace, explain(trace, at, index))


# --- against what others computed ---

PROJECTIONS = {
    "q": ("attn_norm", "self_attn.q_proj"),
    "k": ("attn_norm", "self_attn.k_proj"),
    "v": ("attn_norm", "self_attn.v_proj"),
    "attn_out": ("head_out", "self_attn.o_proj"),
    "gate": ("mlp_norm", "mlp.gate_proj"),
    "up": ("mlp_norm", "mlp.up_proj"),
    "mlp_out": ("gated", "mlp.down_proj"),
}


@pytest.mark.parametrize("key", PROJECTIONS)
def test_the_terms_of_a_projection_are_those_of_transformers_weights(make, key):
    trace, (source, module) = trace_of(make, "biased"), PROJECTIONS[key]
    linear = make.reference("biased").model.layers[1].get_submodule(module)
    index = (0, 7, *(size - 2 for size in trace[f"1.{key}"].shape[2:]))
    row = np.ravel_multi_index(index[2:], trace[f"1.{key}"].shape[2:])
    products = trace[f"1.{source}"][0, 7].ravel() * linear.weight[row].detach().double().numpy()
    expected = sorted(products, key=abs, reverse=True)
    found = explain(trace, f"1.{key}", index, top=5)
    assert [term.value for term in found.terms[:-1]] == pytest.approx(expected[:5])
    assert found.terms[-1].label == "bias"
    assert found.terms[-1].value == pytest.approx(linear.bias[row].item())
    assert (found.rest.count, found.rest.value) == (products.size - 5, pytest.approx(sum(expected[5:])))
    assert found.rest.size == pytest.approx(sum(map(abs, expected[5:])))


@pytest.mark.parametrize("name", ["llama default", "llama linear", "llama dynamic", "llama3", "llama yarn"])
def test_the_cosines_of_a_rotation_are_those_of_transformers(make, name):
    trace = trace_of(make, name)
    theirs = more_rig(name) if name in MORE_RIGS else make.reference(name)
    cos, sin = theirs.model.rotary_emb(torch.zeros(1), torch.arange(48)[None])
    half = trace.config.head_dim // 2
    for t, d in [(0, 0), (1, 3), (30, half), (47, half - 1), (47, half + 2)]:
        found = explain(trace, "1.k_rot", (t, 1, d))
        turns = [math.prod(f.value for f in term.factors[1:]) for term in found.terms]
        sign = -1 if d < half else 1
        assert turns == pytest.approx([float(cos[0, t, d]), sign * float(sin[0, t, d])], abs=1e-6)
        assert [term.factors[0].source.index[-1] for term in found.terms] == [d, (d + half) % (2 * half)]
        assert found.quantities["position"] == t
        assert found.quantities["angle"] == pytest.approx(t * found.quantities["frequency"], rel=1e-6)


def test_neighbours_are_turned_with_each_other(make):
    found = explain(trace_of(make, "neighbours"), "0.q_rot", (3, 1, 5))
    assert [term.factors[0].source.index[-1] for term in found.terms] == [5, 4]
    assert found.quantities["pair"] == 2


def test_positions_go_on_behind_the_cache_and_cached_rows_say_so(make):
    trace = trace_of(make, "llama yarn", past=20)
    found = explain(trace, "0.q_rot", (3, 1, 5))
    assert found.quantities["position"] == 23
    assert found.quantities["unscaled frequency"] > found.quantities["frequency"] > 0
    assert found.quantities["attention factor"] == pytest.approx(0.1 * math.log(4) + 1)
    old, new = (explain(trace, "0.k_shared", (s, 3, 2)) for s in (19, 20))
    assert (old.kind, new.kind) == ("cached", "shared")
    assert old.terms[0].factors[0].source is None
    assert new.terms[0].factors[0].source == Cell(At(0, steps.K_ROT), (0, 0, 1, 2))


def test_a_weight_is_an_exponential_over_the_sum_of_those_that_may_be_seen(make):
    trace = trace_of(make, "mistral window")
    scores = trace["1.scores"][0, 2, 40].astype(np.float64)
    found = explain(trace, "1.weights", (2, 40, 39))
    seen = scores[38:41]  # a window of 3
    assert found.quantities["keys"] == 3
    assert found.quantities["max"] == seen.max()
    assert found.quantities["sum"] == pytest.approx(np.exp(seen - seen.max()).sum(), rel=1e-12)
    assert found.total == pytest.approx(math.exp(scores[39]) / np.exp(seen).sum(), rel=1e-9)
    assert {term.label for term in found.inner.terms} == {"S 38", "S 39", "S 40"}
    assert explain(trace, "1.head_out", (40, 2, 0)).quantities["keys"] == 3


@pytest.mark.parametrize(("cell", "kind"), [((0, 3, 4), "future"), ((0, 40, 37), "window")])
def test_a_hidden_cell_has_a_reason_and_no_terms(make, cell, kind):
    trace = trace_of(make, "mistral window")
    hidden, weight = explain(trace, "0.masked", cell), explain(trace, "0.weights", cell)
    assert (hidden.kind, hidden.terms, hidden.total, hidden.difference) == (kind, (), -math.inf, 0)
    assert (weight.kind, weight.terms, weight.total, weight.difference) == (kind, (), 0, 0)
    assert hidden.quantities["query position"] == cell[1]
    assert explain(trace, "0.scores", cell).terms


def test_a_norm_shows_its_mean_square_and_which_channels_make_it(make):
    trace = trace_of(make, "qwen3")
    for at, source in (("1.k_norm", "1.k"), ("1.attn_norm", "1.resid_in"), ("final_norm", "1.resid_out")):
        found = explain(trace, at, [5] * (trace[at].ndim - 3) + [1, 7])
        x = trace[source][found.index[:-1]].astype(np.float64)
        assert found.quantities["mean square"] == pytest.approx((x**2).mean(), rel=1e-12)
        assert found.inner.total == pytest.approx((x**2).mean(), rel=1e-12)
        assert found.quantities["scale"] == pytest.approx(1 / math.sqrt((x**2).mean() + 1e-6), rel=1e-12)
        assert found.inner.terms[0].factors[0].source.index[-1] == np.abs(x).argmax()


# --- the way back ---


def walk_back(trace: Trace, at: At, index: tuple[int, ...]) -> list[Cell]:
    """From a cell along the first link of its largest term but a bias, until a term links to no cell."""
    way = [Cell(at, index)]
    while True:
        terms = [term for term in explain(trace, way[-1].at, way[-1].index).terms if term.label != "bias"]
        factors = max(terms, key=lambda term: abs(term.value)).factors
        links = [factor.source for factor in factors if isinstance(factor.source, Cell)]
        if not links:
            return way
        way.append(links[0])


@pytest.mark.parametrize("name", ["biased", "qwen3", "tied"])
def test_the_largest_terms_lead_from_a_logit_back_to_the_row_of_a_token(make, name):
    trace = trace_of(make, name)
    for t in (0, 20, 47):
        logits = trace["logits"][0, t]
        for v in (logits.argmax(), logits.argmin()):
            way = walk_back(trace, At(None, steps.LOGITS), (0, t, int(v)))
            assert len(way) <= len(trace.walk)
            places = [trace.walk.index(cell.at) for cell in way]
            assert places == sorted(places, reverse=True)
            assert way[-1].at.step is steps.EMBED
            (factor,) = explain(trace, way[-1].at, way[-1].index).terms[0].factors
            _, position, channel = way[-1].index
            assert factor.source == Weight("model.embed_tokens.weight", (LONG[position], channel))
            assert position <= t


# --- what does not explain the run does not add up ---


def _without_biases(trace: Trace) -> Trace:
    return replace(trace, parameters=Parameters({n: a for n, a in trace.parameters.items() if "bias" not in n}))


def _with_config(trace: Trace, **changes) -> Trace:
    return replace(trace, config=trace.config.with_(**changes))


def _with_one_weight_for_all(trace: Trace) -> Trace:
    return replace(trace, parameters=Parameters({name: np.ones_like(a) for name, a in trace.parameters.items()}))


WRONG = {
    "without biases": ("biased", _without_biases, "q k v attn_out gate up mlp_out"),
    "the other pairs": ("biased", partial(_with_config, rope_layout="neighbours"), "q_rot k_rot"),
    "another theta": ("biased", partial(_with_config, rope_theta=500.0), "q_rot k_rot"),
    "without YaRN": ("llama yarn", partial(_with_config, rope_scaling=None), "q_rot k_rot"),
    "another eps": ("biased", partial(_with_config, rms_norm_eps=0.1), "attn_norm mlp_norm final_norm"),
    "another curve": ("biased", partial(_with_config, hidden_act="gelu"), "act"),
    "no window": ("mistral window", partial(_with_config, sliding_window=None), "masked"),
    "all weights 1": (
        "qwen3",
        _with_one_weight_for_all,
        "embed attn_norm q k v q_norm k_norm attn_out mlp_norm gate up mlp_out final_norm logits",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_an_explanation_of_another_model_does_not_add_up(make, mistake):
    name, change, keys = WRONG[mistake]
    trace = change(trace_of(make, name))
    failed = {
        at.step.key for at in trace.walk if not all(explain(trace, at, index).adds_up for index in cells(trace, at, 12))
    }
    assert failed == set(keys.split())


def test_a_step_that_an_edit_changed_says_so_and_those_that_read_it_add_up():
    trace = run(load("nano", seed=3, std=0.3), [5, 9, 9, 3], edits={"0.mlp_out": "set 2"})
    changed = explain(trace, "0.mlp_out", (2, 5))
    assert (changed.value, changed.edited, changed.adds_up) == (2.0, True, False)
    reader = explain(trace, "0.resid_out", (2, 5))
    assert not reader.edited
    assert 2.0 in [term.value for term in reader.terms]
    check(trace, reader)


# --- what can be asked ---


@pytest.fixture(scope="module")
def tiny() -> Trace:
    return run(load("nano", seed=3, std=0.3), [5, 9, 9, 3])


def test_the_batch_may_be_left_out_and_negative_numbers_count_from_the_end(tiny):
    full = explain(tiny, "1.weights", (0, 3, 3, 2))
    for index in [(3, 3, 2), (-1, -1, -2), np.array([3, 3, 2]), [0, -1, 3, -2]]:
        assert explain(tiny, At(1, steps.WEIGHTS), index).index == full.index == (0, 3, 3, 2)


@pytest.mark.parametrize(
    ("index", "parts"),
    [
        ((3, 4, 2), ("4 is outside query positions T", "0 to 3", "batch B = 1, query heads Hq = 4")),
        ((0, 0, 0, -5), ("-5 is outside key positions (past + T) S",)),
        ((1, 0, 0, 0), ("1 is outside batch B",)),
        ((1, 2), ("has 4 axes, 2 numbers were given", "for example 3, 3, 3")),
        ((0, 0, 0, 0, 0), ("has 4 axes, 5 numbers",)),
        ((1, 2.5, 0), ("whole number per axis",)),
        ("abc", ("'abc' is no place in 1.weights",)),
        (7, ("7 is no place in 1.weights",)),
    ],
)
def test_a_cell_that_is_not_there_is_refused_by_its_axes_and_sizes(tiny, index, parts):
    with pytest.raises(AddressError) as refused:
        explain(tiny, "1.weights", index)
    assert all(part in str(refused.value) for part in parts), refused.value
    assert str(refused.value).endswith(".")


def test_top_says_how_many_terms_are_listed(tiny):
    for top in (1, 3, 8):
        found = explain(tiny, "0.q", (1, 0, 0), top=top)
        assert (len(found.terms), found.rest.count) == (top, 16 - top)
    everything = explain(tiny, "0.q", (1, 0, 0), top=100)
    assert (len(everything.terms), everything.rest) == (16, None)
    sizes = [abs(term.value) for term in everything.terms]
    assert sizes == sorted(sizes, reverse=True)


def test_without_weights_the_steps_that_have_none_are_still_explained(tiny):
    bare = replace(tiny, parameters=Parameters())
    for at in bare.walk:
        index = (0,) * tiny[at].ndim
        if at.step.weights:
            with pytest.raises(AddressError, match=r"came without its weights\. Explain a trace"):
                explain(bare, at, index)
        else:
            check(bare, explain(bare, at, index))


def test_nan_and_infinity_are_followed_without_a_warning():
    model = load("nano", seed=3, std=0.3)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[4, 9] = float("nan")
        model.model.layers[1].self_attn.q_proj.weight[2, 3] = float("inf")
    trace = run(model, [5, 9, 9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = explain(trace, "0.up", (1, 4))
        assert found.terms[0].factors[1].source == Weight("model.layers.0.mlp.up_proj.weight", (4, 9))
        assert math.isnan(found.total)
        assert found.adds_up
        for at in trace.walk:
            explain(trace, at, [0] * trace[at].ndim)


def test_the_weights_of_a_trace_are_the_models_own_memory_and_refuse_writes():
    model = load("nano")
    parameters = run(model, [1, 2]).parameters
    assert {name: array.shape for name, array in parameters.items()} == model.config.parameter_shapes()
    for name, array in parameters.items():
        assert array.dtype == np.float32
        assert array.ctypes.data == model.get_parameter(name).data_ptr()
        for part in (array, parameters.row(name, 0)):
            assert not part.flags.writeable
    rounded = run(load("nano", dtype="bfloat16"), [1, 2]).parameters
    assert rounded["lm_head.weight"].dtype == rounded.row("lm_head.weight", 3).dtype == np.float32
    assert np.array_equal(rounded["lm_head.weight"][3], rounded.row("lm_head.weight", 3))
    assert PRESETS["nano"].parameter_shapes().keys() == set(rounded)
