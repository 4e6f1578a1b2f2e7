"""RoPE against numbers worked out elsewhere: published cases, plain numpy, transformers' own frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig as TransformersConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llama_core import load
from llama_core.config import PRESETS, DynamicScaling, LinearScaling, Llama3Scaling, LlamaConfig, YarnScaling
from llama_core.model import Llama
from llama_core.rope import TABLE_ROWS, RotaryTable, attention_factor, inverse_frequencies, rotate

LAYOUTS = ("halves", "neighbours")
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def config(head_dim: int = 4, positions: int = 512, **changes) -> LlamaConfig:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "head_dim": head_dim, "max_position_embeddings": positions}
    return LlamaConfig(**sizes | changes)


def turned(vector: list[float], position: int, layout: str, table: RotaryTable | None = None) -> torch.Tensor:
    table = table or RotaryTable(config(len(vector)))
    x = torch.tensor(vector)[None, None, None]
    return rotate(x, table(position, 1), layout)[0, 0, 0]


# --- the turn ---


@pytest.mark.parametrize(
    ("layout", "right"),
    [
        ("halves", [-1.98411, 1.95990, 2.46238, 4.01980]),
        ("neighbours", [-1.14264, 1.92208, 2.95985, 4.02980]),
    ],
)
def test_one_two_three_four_at_position_one(layout, right):
    found = turned([1.0, 2.0, 3.0, 4.0], 1, layout)
    assert found.tolist() == pytest.approx(right, abs=5e-6)
    assert found.norm().item() == pytest.approx(5.47723, abs=5e-6)


@both_layouts
def test_position_zero_turns_nothing(layout):
    assert turned([1.0, 2.0, 3.0, 4.0], 0, layout).tolist() == [1.0, 2.0, 3.0, 4.0]


@both_layouts
def test_a_pair_turns_as_a_complex_number_of_its_own_speed(layout):
    x = np.random.default_rng(0).normal(size=(2, 7, 3, 8)).astype(np.float32)
    R = 4
    first, second = (np.arange(R), np.arange(R) + R) if layout == "halves" else (np.arange(R) * 2, np.arange(R) * 2 + 1)
    angles = np.arange(11, 18)[:, None] * 10000.0 ** (-np.arange(R) / R)
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)[None, :, None]
    found = rotate(torch.from_numpy(x), RotaryTable(config(8))(11, 7), layout).numpy()
    np.testing.assert_allclose(found[..., first], z.real, atol=2e-6)
    np.testing.assert_allclose(found[..., second], z.imag, atol=2e-6)


@both_layouts
def test_a_product_of_query_and_key_depends_on_the_difference_of_positions_only(layout):
    q, k = np.random.default_rng(1).normal(size=(2, 8)).tolist()
    at = {place: turned(q, place, layout) for place in (3, 40, 400)}
    products = [(at[place] @ turned(k, place - 3, layout)).item() for place in at]
    assert products == pytest.approx([products[0]] * 3, abs=2e-5)
    other = (at[3] @ turned(k, 2, layout)).item()
    assert abs(other - products[0]) > 0.1


@both_layouts
def test_all_heads_of_a_position_turn_alike_and_the_input_is_left_alone(layout):
    x = torch.randn(1, 5, 1, 8, generator=torch.Generator().manual_seed(0)).expand(1, 5, 3, 8)
    before = x.clone()
    out = rotate(x, RotaryTable(config(8))(0, 5), layout)
    assert torch.equal(out[:, :, 0], out[:, :, 2])
    assert torch.equal(x, before)


# --- frequencies ---


def llama3_by_hand(head_dim: int, factor: float, theta=500000.0, low=1.0, high=4.0, original=8192) -> np.ndarray:
    f = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    wavelength = 2 * np.pi / f
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * f / factor + smooth * f
    f = np.where(wavelength > original / low, f / factor, np.where(wavelength < original / high, f, blended))
    return f


CASES = {"a": (64, 32.0, range(15), range(15, 18)), "b": (128, 8.0, range(29), range(29, 35))}


@pytest.mark.parametrize("case", CASES)
def test_llama3_scaling_keeps_fast_pairs_blends_some_and_divides_slow_ones(case):
    head_dim, factor, kept, blended = CASES[case]
    plain = inverse_frequencies(config(head_dim, rope_theta=500000.0)).double().numpy()
    scaling = Llama3Scaling(factor, 1.0, 4.0, 8192)
    found = inverse_frequencies(config(head_dim, rope_theta=500000.0, rope_scaling=scaling)).double().numpy()
    share = plain / found
    for pair in range(head_dim // 2):
        if pair in kept:
            assert share[pair] == pytest.approx(1, rel=1e-6), pair
        elif pair in blended:
            assert 1.001 < share[pair] < factor * 0.999, pair
        else:
            assert share[pair] == pytest.approx(factor, rel=1e-6), pair
    np.testing.assert_allclose(found, llama3_by_hand(head_dim, factor), rtol=1e-5)


def test_llama3_scaling_gives_the_published_values():
    found = inverse_frequencies(config(64, rope_theta=500000.0, rope_scaling=Llama3Scaling(32.0))).tolist()
    assert found[15:18] == pytest.approx([1.290548e-3, 4.295568e-4, 9.708288e-5], rel=1e-5)
    assert found[31] == pytest.approx(9.418307e-8, rel=1e-5)


@pytest.mark.parametrize(("head_dim", "factor"), [(64, 32.0), (128, 8.0), (16, 4.0)])
@pytest.mark.parametrize("original", [32, 8192])
def test_frequencies_are_those_of_transformers(head_dim, factor, original):
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": original}
    theirs = TransformersConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=rope)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, device="cpu")
    scaling = Llama3Scaling(factor, 1.0, 4.0, original)
    found = inverse_frequencies(config(head_dim, rope_theta=500000.0, rope_scaling=scaling))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


SCALINGS = {
    "linear": LinearScaling(4.0),
    "dynamic": DynamicScaling(2.5),
    "yarn": YarnScaling(8.0, 512),
    "yarn, small factor": YarnScaling(1.5, 4096, beta_fast=20.0, beta_slow=2.0),
    "yarn, not truncated": YarnScaling(4.0, 300, truncate=False),
    "yarn, all pairs fast": YarnScaling(4.0, 1 << 20),
    "yarn, all pairs slow": YarnScaling(4.0, 4),
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("head_dim", [4, 16, 64, 128])
@pytest.mark.parametrize("length", [None, 512, 513, 1200])
def test_scaled_frequencies_are_bit_for_bit_those_of_transformers(name, head_dim, length):
    scaling = SCALINGS[name]
    rope = {"rope_type": scaling.kind, "rope_theta": 10000.0} | vars(scaling)
    theirs = TransformersConfig(head_dim=head_dim, max_position_embeddings=512, rope_parameters=rope)
    seq_len = None if length is None or length <= 512 else torch.tensor(length)  # as its forward pass calls it
    expected, factor = ROPE_INIT_FUNCTIONS[scaling.kind](theirs, device="cpu", seq_len=seq_len)
    scaled = config(head_dim, rope_scaling=scaling)
    assert torch.equal(inverse_frequencies(scaled, length), expected)
    assert attention_factor(scaled) == factor


def test_linear_and_dynamic_scaling_by_hand():
    linear = inverse_frequencies(config(8, positions=16, rope_scaling=LinearScaling(4.0)))
    assert linear.tolist() == pytest.approx([0.25, 0.025, 0.0025, 0.00025], rel=1e-6)
    dynamic = config(8, positions=16, rope_scaling=DynamicScaling(2.0))
    assert inverse_frequencies(dynamic, 8).tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-6)
    assert all(torch.equal(inverse_frequencies(dynamic, n), inverse_frequencies(dynamic)) for n in (1, 15, 16))
    beyond = [1, 0.069336, 0.0048075, 0.00033333]  # theta 43267.49
    assert inverse_frequencies(dynamic, 32).tolist() == pytest.approx(beyond, rel=2e-5)
    assert inverse_frequencies(dynamic, 32)[1].item() ** -4 == pytest.approx(43267.49, rel=1e-6)


def test_the_table_of_dynamic_scaling_depends_on_the_pass_alone():
    table = RotaryTable(config(8, positions=16, rope_scaling=DynamicScaling(2.0)))
    short, long, again = table(0, 8), table(0, 32), table(0, 8)
    assert all(torch.equal(one, other) for one, other in zip(short, again, strict=True))
    assert short[0][5, 1].item() == pytest.approx(math.cos(0.5), abs=1e-6)
    assert long[0][5, 1].item() == pytest.approx(math.cos(5 * 0.069336), abs=1e-5)
    assert torch.equal(table(31, 1)[1][0], long[1][31])  # where it ends decides, not how much is cached
    assert torch.equal(table(5, 11)[0], table(0, 16)[0][5:])


def test_the_factor_of_yarn_multiplies_cosine_and_sine_wherever_they_are_made():
    scaling = YarnScaling(4.0, 16, attention_factor=1.5)
    table = RotaryTable(config(8, positions=64, rope_scaling=scaling))
    for start in (3, 200):
        cos, sin = table(start, 2)
        torch.testing.assert_close(cos.square() + sin.square(), torch.full((2, 4), 2.25))
    assert attention_factor(config(8, rope_scaling=YarnScaling(4.0, 16))) == pytest.approx(0.1 * math.log(4) + 1)
    assert attention_factor(config(8, rope_scaling=LinearScaling(4.0))) == 1.0


@pytest.mark.parametrize("scaling", [LinearScaling(4.0), YarnScaling(4.0, 16)])
def test_the_table_reaches_as_far_as_the_scaling_was_made_for(scaling):
    assert len(RotaryTable(config(8, positions=16, rope_scaling=scaling)).cos) == 64


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0])
def test_plain_frequencies_fall_from_one_by_equal_shares(theta):
    found = inverse_frequencies(config(64, rope_theta=theta))
    assert found.tolist() == pytest.approx([theta ** (-2 * r / 64) for r in range(32)], rel=1e-6)


def test_a_factor_of_one_scales_nothing():
    plain = inverse_frequencies(config(64))
    torch.testing.assert_close(
        inverse_frequencies(config(64, rope_scaling=Llama3Scaling(1.0))), plain, rtol=1e-6, atol=0
    )


# --- the table, and what a cast may not do to it ---


def cast_by_to(sizes: LlamaConfig) -> Llama:
    return Llama(sizes).to(torch.bfloat16)


def cast_by_load(sizes: LlamaConfig) -> Llama:
    return load(sizes, dtype="bfloat16")


@pytest.mark.parametrize("cast", [cast_by_to, cast_by_load, lambda sizes: Llama(sizes).bfloat16()])
def test_a_bfloat16_model_keeps_its_angles_in_float32(cast):
    model = cast(config(8, positions=4100))
    assert model.dtype == torch.bfloat16
    assert {t.dtype for t in (model.rope.inv_freq, model.rope.cos, model.rope.sin)} == {torch.float32}
    assert torch.equal(model.rope.inv_freq, inverse_frequencies(config(8)))
    cos, sin = model.rope(4096, 1)
    assert cos[0, 1].item() == pytest.approx(0.36891, abs=1e-3)
    assert sin[0, 1].item() == pytest.approx(math.sin(409.6), abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_no_default_dtype_reaches_angles_that_are_made_on_the_way(dtype):
    table = RotaryTable(config(8, positions=16, rope_scaling=DynamicScaling(2.0)))
    right, before = table(0, 32), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = table(0, 32)
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_no_cast_and_no_default_dtype_reaches_the_table(dtype):
    right = RotaryTable(config(8))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        born = RotaryTable(config(8))
    finally:
        torch.set_default_dtype(before)
    for table in (born, RotaryTable(config(8)).to(dtype)):
        assert torch.equal(table.inv_freq, right.inv_freq)
        assert torch.equal(table.cos, right.cos)
        assert table.cos.dtype == torch.float32


def test_positions_above_256_stay_apart_in_bfloat16():
    table = Llama(config(8)).to(torch.bfloat16).rope
    x = torch.ones(1, 512, 1, 8, dtype=torch.bfloat16)
    assert len(torch.unique(table(0, 512)[0][:, 0])) == 512
    out = rotate(x, table(0, 512), "halves")
    assert out.dtype == torch.bfloat16
    assert not torch.equal(out[0, 256], out[0, 257])


@both_layouts
def test_the_turn_itself_is_float32_inside(layout):
    x = torch.randn(1, 64, 2, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    turn = RotaryTable(config(8))(100, 64)
    assert torch.equal(rotate(x, turn, layout), rotate(x.float(), turn, layout).to(torch.bfloat16))


def test_angles_hold_at_far_positions():
    table = RotaryTable(config(128, positions=4097))
    right = np.cos(4096 * 10000.0 ** (-np.arange(64) / 64))
    np.testing.assert_allclose(table(4096, 1)[0][0].numpy(), right, atol=1e-3)


def test_positions_beyond_the_table_are_the_same_function():
    table = RotaryTable(config(8, positions=16))
    assert len(table.cos) == 16
    wide = RotaryTable(config(8, positions=64))
    for start, T in ((0, 16), (10, 20), (40, 3)):
        for found, right in zip(table(start, T), wide(start, T), strict=True):
            assert torch.equal(found, right)


def test_a_config_of_endless_positions_builds_no_endless_table():
    assert len(RotaryTable(config(2, positions=1 << 23)).cos) == TABLE_ROWS


def test_the_table_is_not_a_weight():
    model = Llama(PRESETS["nano"])
    assert not [name for name in model.state_dict() if "rope" in name]
