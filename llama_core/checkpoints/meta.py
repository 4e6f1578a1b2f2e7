"""Meta's and Mistral's params.json as a LlamaConfig. What the file leaves open is said in a note.

A key that we do not know may change the numbers, so it is refused by name unless it is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..config import Llama3Scaling, LlamaConfig
from ..errors import ConfigError
from .common import Shape

_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "sliding_window": "sliding_window",
}
_REQUIRED = ("dim", "n_layers", "n_heads")
_HANDLED = ("multiple_of", "ffn_dim_multiplier", "use_scaled_rope", "rope_scaling_factor", "tied_embeddings")
_NO_MATTER = ("max_batch_size", "model_type", "flash_attn", "use_kv_cache")
_SCALED_POSITIONS = 131072  # what the models are made for that Meta ships with use_scaled_rope


def config_from_params(raw: Mapping[str, Any], shapes: Mapping[str, Shape]) -> tuple[LlamaConfig, tuple[str, ...]]:
    """(config, notes) from a params.json and the shapes in the weights' files.

    The vocabulary is the embedding's rows where params.json says -1, and the head is tied when the files
    hold none: params.json does not say. Raises ConfigError.
    """
    _refuse_unknown(raw)
    notes: list[str] = []
    given = {name: raw[key] for key, name in _NAMES.items() if raw.get(key) is not None}
    if given.get("vocab_size", -1) == -1:
        given["vocab_size"] = _rows(shapes)
        notes.append(f"params.json names no vocabulary size: it is the embedding's, {given['vocab_size']}.")
    if "intermediate_size" not in given:
        given["intermediate_size"] = _hidden(raw)
    if "rms_norm_eps" not in given:
        given["rms_norm_eps"] = 1e-5
        notes.append("params.json names no norm_eps: it is 1e-5, as in Meta's own code.")
    if "rope_theta" not in given:
        notes.append("params.json names no rope_theta: it is 10000, as in Llama 2.")
    if given.get("sliding_window") == 0:
        del given["sliding_window"]
    scaled = bool(raw.get("use_scaled_rope"))
    if scaled:
        given["rope_scaling"] = Llama3Scaling(factor=_factor(raw, notes))
    if "max_position_embeddings" not in given:
        given["max_position_embeddings"] = _SCALED_POSITIONS if scaled else LlamaConfig.max_position_embeddings
        notes.append(
            "params.json does not say for how many positions the model was made: "
            f"{given['max_position_embeddings']} is assumed."
        )
    tied = raw.get("tied_embeddings")
    given["tie_word_embeddings"] = "output.weight" not in shapes if tied is None else tied is True
    if tied is None and given["tie_word_embeddings"]:
        notes.append("The files hold no output.weight, so the embedding serves as the head too.")
    return LlamaConfig(rope_layout="neighbours", **given), tuple(notes)


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    known = (*_NAMES, *_HANDLED, *_NO_MATTER)
    for key, value in raw.items():
        if key not in known and value not in (None, False):
            raise ConfigError(
                f"params.json sets {key[:60]} to {str(value)[:60]!r}, which we do not know. It may change the numbers, "
                "so it is not passed over. Usually the model is of another family; its Hugging Face version may work."
            )
    missing = [key for key in _REQUIRED if raw.get(key) is None]
    if missing:
        raise ConfigError(
            f"params.json lacks {', '.join(missing)}. Meta's and Mistral's name the sizes dim, n_layers and n_heads; "
            "usually the file belongs to something else."
        )
    if raw.get("model_type") not in (None, "transformer", "llama", "mistral"):
        raise ConfigError(f"params.json says model_type {str(raw['model_type'])[:60]!r}; we compute transformers only.")


def _rows(shapes: Mapping[str, Shape]) -> int:
    shape = next(
        (shapes[name] for name in ("tok_embeddings.weight", "model.embed_tokens.weight") if name in shapes), ()
    )
    if len(shape) != 2:
        raise ConfigError(
            "params.json names no vocabulary size, and the files hold no tok_embeddings.weight to count its rows. "
            "Usually a part of the model is missing."
        )
    return shape[0]


def _hidden(raw: Mapping[str, Any]) -> int:
    """Meta's rule for the MLP's width: two thirds of 4 dim, times the multiplier, up to the next multiple."""
    dim, multiple, times = raw["dim"], raw.get("multiple_of"), raw.get("ffn_dim_multiplier")
    times = 1.0 if times is None else times
    numbers = all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 1 << 24 for n in (dim, multiple))
    if not numbers or not isinstance(times, (int, float)) or isinstance(times, bool) or not 0 < times < 1e6:
        raise ConfigError(
            f"params.json gives the MLP's width neither as hidden_dim nor by dim {dim!r}, multiple_of {multiple!r} and "
            f"ffn_dim_multiplier {times!r}, which must be numbers above 0. Usually the file is damaged."
        )
    return math.ceil(int(times * int(8 * dim / 3)) / multiple) * multiple


def _factor(raw: Mapping[str, Any], notes: list[str]) -> float:
    factor = raw.get("rope_scaling_factor")
    if isinstance(factor, (int, float)):
        return factor
    if factor is not None:
        raise ConfigError(
            f"params.json sets rope_scaling_factor to {str(factor)[:60]!r}; it must be a number, such as 8."
        )
    notes.append(
        "params.json says use_scaled_rope but not by how much: factor 8 is assumed, as in Llama 3.1 and in Meta's own "
        "code. Llama 3.2's Hugging Face files say 32; take those where it matters."
    )
    return 8.0
