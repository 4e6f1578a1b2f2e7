"""The ranges over layers: every value is counted once, where numpy counts it, and a planted channel is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rigs import PROMPT

from llama_core import load, ranges, run, steps
from llama_core.ranges import SIDE, Ranges, largest_channels, sample, spread
from llama_core.steps import At


@pytest.fixture(scope="module")
def trace():
    return run(load("tiny"), PROMPT)


def with_values(trace, at, values):
    """The same trace, with other values at one address. Its statistics stay as they were."""
    values = np.asarray(values, dtype=np.float32)
    return replace(trace, tensors={one: values if one == at else trace[one] for one in trace.step_stats})


@pytest.mark.parametrize("step", [steps.RESID_OUT, steps.GATE, steps.Q])
def test_every_value_is_counted_once_between_the_edges_it_lies_in(trace, step):
    found = spread(trace, step)
    assert found.layers == tuple(range(trace.config.num_hidden_layers))
    assert found.edges[SIDE] == 0
    for row, layer in zip(found.counts, found.layers, strict=True):
        values = trace[At(layer, step)].ravel()
        assert row.sum() == values.size
        inner = np.searchsorted(found.edges[1:-1], values.astype(np.float64), side="right")
        assert np.abs(row - np.bincount(inner, minlength=2 * SIDE)).sum() <= 4  # rounding at an edge
    assert found.unit == pytest.approx(np.median([np.median(np.abs(trace[At(layer, step)])) for layer in found.layers]))


def test_only_cells_that_a_query_may_see_are_counted(trace):
    T, heads = len(PROMPT), trace.config.num_attention_heads
    assert spread(trace, steps.MASKED).counted.tolist() == [heads * T * (T + 1) // 2] * trace.config.num_hidden_layers


def test_what_is_not_finite_is_left_out(trace):
    at = At(1, steps.UP)
    values = trace[at].copy()
    values[0, 0, :3] = np.nan, np.inf, -np.inf
    found = spread(with_values(trace, at, values), steps.UP)
    assert found.counted[1] == values.size - 3
    assert found.counted[0] == values.size


def test_a_planted_channel_is_the_largest(trace):
    at = At(2, steps.Q)
    values = trace[at].copy()
    values[0, 3, 5, 1], values[0, 1, 0, 2] = -90, 40
    first, second, third = largest_channels(with_values(trace, at, values), steps.Q)[2]
    assert (first.index, first.value, first.position) == ((5, 1), -90, 3)
    assert (second.index, second.value, second.position) == ((0, 2), 40, 1)
    assert abs(third.value) < 40
    assert first.usual == pytest.approx(np.median(np.abs(values[0]).max(axis=0)))


def test_channels_of_the_stream_have_one_number(trace):
    for layer, found in enumerate(largest_channels(trace, steps.RESID_OUT, n=1)):
        values = np.abs(trace[At(layer, steps.RESID_OUT)][0])
        assert found[0].layer == layer
        assert (found[0].position, *found[0].index) == np.unravel_index(values.argmax(), values.shape)


def test_both_come_from_one_way_through_the_layers_which_can_stop_after_each(trace):
    read = []

    class Counted(dict):
        def __getitem__(self, at):
            read.append(at)
            return super().__getitem__(at)

    counted = replace(trace, tensors=Counted({at: trace[at] for at in trace.step_stats}))
    found = Ranges(steps.UP)
    for ready in range(1, trace.config.num_hidden_layers):
        assert not found.read(counted, 0)  # no time is a layer's time
        assert (found.ready, found.total) == (ready, trace.config.num_hidden_layers)
    assert found.read(counted, 0)
    assert read == sorted(read, key=trace.walk.index)
    assert np.array_equal(found.spread.counts, spread(trace, steps.UP).counts)
    assert found.channels == largest_channels(trace, steps.UP)
    found.read(counted)
    assert len(set(read)) == trace.config.num_hidden_layers
    maps = Ranges(steps.WEIGHTS)
    assert maps.read(trace)
    assert maps.channels == ()


@pytest.mark.parametrize("limit", [40, 97, 500])
def test_a_sample_of_a_step_looks_at_every_channel_and_every_head(trace, monkeypatch, limit):
    monkeypatch.setattr(ranges, "SAMPLE", limit)
    for step in (steps.RESID_OUT, steps.Q, steps.UP):
        at = At(0, step)
        numbered = np.arange(trace[at].size, dtype=np.float32).reshape(trace[at].shape)
        values, gap = sample(with_values(trace, at, numbered), at, limit)
        assert values.size <= limit
        assert np.array_equal(values, np.arange(0, numbered.size, gap))
        channels = numbered[0, 0].size
        assert len({*(values.astype(int) % channels)}) == min(values.size, channels)
    at = At(0, steps.WEIGHTS)
    visible, numbered = trace.visible(at), np.arange(trace[at].size, dtype=np.float32).reshape(trace[at].shape)
    values, gap = sample(with_values(trace, at, numbered), at, limit)
    assert np.array_equal(values, numbered[0][:, visible].ravel()[::gap])
    assert spread(trace, steps.WEIGHTS).counts.sum() == values.size * trace.config.num_hidden_layers
