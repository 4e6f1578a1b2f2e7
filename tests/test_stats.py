"""Statistics of a step against float64 numpy, at full size and on what floats can do to a sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from llama_core import stats
from llama_core.kernel import BLOCK
from llama_core.stats import Visible, step_stats

TOLERANCE = 1e-5  # of rms
FLOAT_MAX = float(np.finfo(np.float32).max)


def normal(*shape: int, mean: float = 0.0, std: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std + mean


def check(x: torch.Tensor, keys: Visible | None = None) -> None:
    """Every field of step_stats(x) against numpy in float64, cell by cell."""
    found = step_stats(x, keys)
    visible = None if keys is None else np.tri(keys.T, keys.S, keys.S - keys.T, dtype=bool)
    if keys is not None and keys.window is not None:
        visible &= ~np.tri(keys.T, keys.S, keys.S - keys.T - keys.window, dtype=bool)
    cells = x.double().numpy()
    seen = cells.reshape(-1) if visible is None else cells[..., visible].reshape(-1)
    finite = seen[np.isfinite(seen)]
    assert (found.shape, found.dtype) == (tuple(x.shape), str(x.dtype).removeprefix("torch."))
    assert found.count == finite.size
    assert found.masked == cells.size - seen.size
    assert (found.nan, found.inf) == (np.isnan(seen).sum(), np.isinf(seen).sum())
    six = (found.mean, found.std, found.rms, found.min, found.max, found.zeros)
    if finite.size == 0:
        assert all(math.isnan(number) for number in six)
        return
    rms = np.sqrt(np.mean(finite**2))
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert found.zeros == pytest.approx(np.mean(finite == 0), abs=1e-12)
    assert found.rms == pytest.approx(rms, rel=TOLERANCE)
    assert found.mean == pytest.approx(finite.mean(), abs=TOLERANCE * rms)
    assert found.std == pytest.approx(finite.std(), rel=1e-3, abs=TOLERANCE * rms * 1e-3)
    assert found.std == pytest.approx(finite.std(), abs=TOLERANCE * rms)


@pytest.fixture(params=["compiled", "reductions"], autouse=True)
def way(request, monkeypatch):
    """Every test holds for the compiled loop and for torch's reductions, in several parts."""
    if request.param == "reductions":
        monkeypatch.setattr(stats, "scan", None)
        monkeypatch.setattr(stats, "AT_ONCE", 50_000)


# --- at full size ---


@pytest.mark.parametrize("shape", [(1, 1024, 576), (1, 1024, 2048), (1, 9, 512, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors(shape, dtype):
    check(normal(*shape).to(dtype))


def test_the_stream_of_a_trained_model_with_one_position_that_dwarfs_the_rest():
    x = normal(1, 1024, 576, std=6.0)
    x[:, 0] *= 160
    check(x)


@pytest.mark.parametrize(("mean", "std"), [(1000.0, 0.01), (1e4, 1.0), (-300.0, 1e-3), (1.0, 0.09), (1.0, 0.11)])
def test_a_spread_far_below_the_mean_does_not_cancel(mean, std):
    x = normal(1, 1024, 576, mean=mean, std=std)
    check(x)
    assert step_stats(x).std == pytest.approx(x.double().numpy().std(), rel=1e-3)


def test_a_long_sum_of_equal_values_loses_no_digits():
    found = step_stats(torch.full((1, 3000, 3000), 0.1))
    assert found.mean == pytest.approx(float(np.float32(0.1)), rel=1e-6)
    assert found.rms == pytest.approx(float(np.float32(0.1)), rel=1e-6)
    assert found.std == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_extremes_at_the_borders_of_blocks_are_found(size):
    x = normal(1, size)
    x[0, -1], x[0, 0] = -50.0, 50.0
    check(x)
    x[0, -1] = float("nan")
    check(x)


# --- what floats can do ---

NAN, INF = math.nan, math.inf
ODD = {
    "one cell": [3.5],
    "one zero": [0.0],
    "one -0.0": [-0.0],
    "zeros of both signs": [0.0, -0.0, -0.0],
    "-0.0 among positives": [-0.0, 1.0, 2.0],
    "-0.0 among negatives": [-0.0, -1.0, -2.0],
    "0.0 among negatives": [0.0, -1.0, -2.0],
    "all negative": [-3.0, -1.0, -2.0],
    "all positive": [3.0, 1.0, 2.0],
    "both signs": [-3.0, 0.0, 2.0, -0.5],
    "both signs without zero": [-3.0, 2.0, -0.5],
    "NaN": [1.0, NAN, -2.0],
    "NaN alone": [NAN],
    "all NaN": [NAN] * 4,
    "inf": [1.0, INF, -2.0, INF],
    "-inf": [1.0, -INF, 2.0],
    "all inf": [INF, -INF],
    "inf among negatives": [-1.0, -INF, -2.0],
    "NaN among negatives": [-1.0, NAN, -2.0],
    "negative NaN": [1.0, math.copysign(NAN, -1.0), 2.0],
    "NaN, inf and zeros": [NAN, INF, -INF, 0.0, -0.0, 4.0],
    "squares overflow": [1e30, -2e30, 3e30],
    "largest floats": [FLOAT_MAX, -FLOAT_MAX, FLOAT_MAX],
    "squares lose digits": [1e-21, -2e-21, 3e-21],
    "squares underflow": [1e-25, -2e-25, 3e-25],
    "subnormal": [1e-42, -3e-42, 0.0],
    "huge and tiny": [1e30, 1e-30, -1e-42],
    "tiny and one": [1e-30, 1.0],
    "constant": [0.3] * 7,
    "constant negative": [-7e8] * 5,
    "constant tiny": [2e-40] * 5,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_cells(name):
    check(torch.tensor(ODD[name])[None])


@pytest.mark.parametrize("name", ["NaN", "inf", "zeros of both signs", "huge and tiny", "all negative", "one cell"])
def test_odd_cells_in_bfloat16(name):
    check(torch.tensor(ODD[name])[None].to(torch.bfloat16))


def test_float16_overflow_is_counted_as_infinity():
    product = torch.tensor([[255.875, 1.0]], dtype=torch.float16) * torch.tensor([[261.75, 1.0]], dtype=torch.float16)
    found = step_stats(product)
    assert (found.inf, found.count, found.max, found.dtype) == (1, 1, 1.0, "float16")


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0xFF800001, 0xFFFFFFFF])
def test_every_kind_of_nan_is_counted(bits):
    x = torch.from_numpy(np.array([[0, bits, 0x40000000]], dtype=np.uint32).view(np.float32).copy())
    check(x)
    assert step_stats(x).nan == 1


def test_no_cells_at_all():
    found = step_stats(torch.zeros(1, 0, 4))
    assert (found.count, found.nan, found.inf, found.masked) == (0, 0, 0, 0)
    assert all(math.isnan(number) for number in (found.mean, found.std, found.rms, found.min, found.max, found.zeros))


def test_random_bits_of_any_kind():
    random = np.random.default_rng(0)
    for _ in range(200):
        bits = random.integers(0, 2**32, size=random.integers(1, 40), dtype=np.uint32)
        x = torch.from_numpy(bits.view(np.float32).copy())[None]
        with np.errstate(all="ignore"):
            check(x)


def test_one_cell_has_a_spread_of_zero():
    assert step_stats(torch.tensor([[[[0.1]]]])).std == 0


# --- views and masks ---


def test_a_view_with_another_order_is_measured_as_what_it_shows():
    x = normal(2, 6, 5, 4)
    for view in (x.transpose(1, 2), x[:, ::2], x[..., 1], x.mT, x.expand(2, 6, 5, 4)):
        check(view)


@pytest.mark.parametrize(("T", "past"), [(1, 0), (5, 0), (64, 0), (1, 7), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_cells_that_a_query_may_see_count(T, past, dtype):
    hidden, keys = torch.ones(T, past + T, dtype=torch.bool).triu(past + 1), Visible(T, past + T)
    x = normal(1, 3, T, past + T).to(dtype)
    x[..., hidden] = 1e9
    check(x, keys)
    x[..., hidden] = -INF
    check(x, keys)
    assert step_stats(x, keys).inf == 0
    x[..., -1, 0] = NAN
    check(x, keys)


@pytest.mark.parametrize("window", [1, 2, 5, 64])
def test_of_a_sliding_window_only_its_keys_count(window):
    check(normal(2, 3, 6, 9), Visible(6, 9, window))


def test_the_minimum_of_weights_is_no_masked_zero():
    visible = np.tri(6, 6, dtype=bool)
    weights = normal(1, 2, 6, 6).masked_fill(~torch.from_numpy(visible), -INF).softmax(-1)
    found = step_stats(weights, Visible(6, 6))
    assert found.min > 0
    assert (found.zeros, found.masked) == (0, 2 * 15)
    assert step_stats(weights).min == 0


def test_the_tensor_is_only_read():
    x = normal(1, 4, 4)
    before, version = x.clone(), x._version
    step_stats(x, Visible(4, 4))
    step_stats(x)
    assert torch.equal(x, before)
    assert x._version == version
