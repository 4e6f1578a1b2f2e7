"""What the tests of the core share: the reference rig in many shapes, and our decoder with the same weights."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

# Threads that wait by sleeping: where a browser, a server and the tests share two cores, spinning ones
# make everything many times slower. Read when torch is imported, here and in the servers that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from rigs import SIZES, redraw_norms, reference_rig
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from llama_core.config import config_from_dict
from llama_core.model import Llama

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
RIGS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 12},
    "narrow heads": {"head_dim": 4},
    # Head width 16 and 32 original positions: one pair is kept, one blended, six divided.
    "llama3": {
        "head_dim": 16,
        "rope_parameters": LLAMA3 | {"rope_theta": 10000.0, "original_max_position_embeddings": 32},
    },
    "theta 500000": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "gelu": {"hidden_act": "gelu"},
    "gelu tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "relu": {"hidden_act": "relu"},
    "small std": {"initializer_range": 0.02},
    "small std, eps 1e-5": {"initializer_range": 0.02, "rms_norm_eps": 1e-5},
    "qwen3": {},
}

LONG = (
    *("test_soak", "test_app", "test_wire", "test_page_edit", "test_page_attention", "test_generate"),
    "test_a_choice_survives_every_page_and_a_reload_and_console_and_server_log_stay_clean",
)
"""The files, and the test in a browser, that take longest, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with them: what is left for the end is short, and no worker waits for another."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: min(places.get(name, len(LONG)) for name in (item.path.stem, item.name)))


class Pair(NamedTuple):
    """The same weights twice: in transformers, and in our decoder."""

    theirs: PreTrainedModel
    ours: Llama


@lru_cache
def reference(name: str) -> LlamaForCausalLM | Qwen3ForCausalLM:
    """transformers' rig of this name; biases are drawn from N(0, 1)."""
    if name == "qwen3":
        return qwen3_rig()
    model = reference_rig(**RIGS[name])
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(generator=generator)
    return model


def qwen3_rig() -> Qwen3ForCausalLM:
    """The reference recipe for Qwen3: every query and key vector is normalised before it is turned."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, attn_implementation="eager")).eval()
    return redraw_norms(model)


def decoder_of(model: PreTrainedModel, **changes) -> Llama:
    """Our decoder with copies of a transformers model's weights; `changes` go to its config."""
    ours = Llama(config_from_dict(model.config.to_dict()).with_(**changes))
    ours.load_state_dict(model.state_dict())
    return ours.requires_grad_(False).eval()


def as_neighbours(ours: Llama) -> Llama:
    """The same decoder with rope_layout "neighbours": the rows of q and k, biases and norms too, in Meta's order."""
    config = ours.config.with_(rope_layout="neighbours")
    half = config.head_dim // 2
    order = torch.tensor([pair + side * half for pair in range(half) for side in (0, 1)])
    weights = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    for name, tensor in weights.items():
        if any(f".{part}." in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
            heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
            weights[name] = heads[:, order].reshape(tensor.shape)
    moved = Llama(config)
    moved.load_state_dict(weights)
    return moved.requires_grad_(False).eval()


@pytest.fixture(autouse=True)
def no_browser_waits(monkeypatch):
    """Pages that run without a browser need not give one a moment."""
    monkeypatch.setattr("pages.ui.parts.CHARTS_LAST", 0)


@pytest.fixture
def pair(request) -> Pair:
    """The rig named by an indirect parameter, "gqa" without one."""
    theirs = reference(getattr(request, "param", "gqa"))
    return Pair(theirs, decoder_of(theirs))


@pytest.fixture
def ours(request) -> Llama:
    """Our decoder alone: a rig's name, or "neighbours" for the GQA rig in Meta's order."""
    name = getattr(request, "param", "gqa")
    if name == "neighbours":
        return as_neighbours(decoder_of(reference("gqa")))
    return decoder_of(reference(name))


@pytest.fixture
def make():
    """The two makers above, for tests that need more than one decoder."""
    return make_from


class make_from:  # noqa: N801 - a namespace that reads as a verb
    reference = staticmethod(reference)
    decoder = staticmethod(decoder_of)
    neighbours = staticmethod(as_neighbours)
