"""LlamaConfig: the sizes and switches of one decoder, checked at birth. No torch here.

Field names are Hugging Face's, so a config.json reads straight in. A refusal names the rule,
both numbers and a value that would work. `dims()` turns a config and a prompt length into
numbers for the axis letters of `steps.AXES`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError
from .scaling import LARGEST, DynamicScaling, LinearScaling, Llama3Scaling, YarnScaling, is_number
from .steps import Walk

ACTIVATION_NAMES = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
# Other names of the same curves. The tanh form of GELU is written down in five ways, equal but for rounding.
_SAME_CURVE = {"swish": "silu", "gelu_python": "gelu"} | dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_pytorch_tanh"
)
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
COMPUTE_DTYPES = ("float32", "bfloat16")
PATHS = ("auto", "explicit", "fused")
MOST_FULL_LAYERS = 1 << 12  # they are listed one by one: a damaged count must not make an endless list

RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling
SCALINGS: Mapping[str, type[RopeScaling]] = {
    scaling.kind: scaling for scaling in (LinearScaling, DynamicScaling, Llama3Scaling, YarnScaling)
}
"""The scalings of RoPE that we compute, by the name that files give them; beside them "default", none."""


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and switches of a Llama-family decoder, in Hugging Face's names.

    Raises ConfigError when they cannot go together. Defaults follow transformers' LlamaConfig
    (rms_norm_eps 1e-6, rope_theta 10000), because that is what an absent key means.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None  # None: as many as query heads (MHA)
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_layout: Literal["halves", "neighbours"] = "halves"  # which dimensions form a pair
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # of q, k and v
    attention_out_bias: bool | None = None  # of o; None: as attention_bias
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm on each query and key vector (Qwen3)
    sliding_window: int | None = None  # keys that a query sees, its own included; None or 0: all before it
    full_layers: tuple[int, ...] = ()  # layers that see everything despite the window
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    other_eos_token_ids: tuple[int, ...] = ()  # where a file names several, as chat models do: all after the first

    def __post_init__(self) -> None:
        if self.num_key_value_heads is None:
            self._settle("num_key_value_heads", self.num_attention_heads)
        if self.sliding_window == 0:
            self._settle("sliding_window", None)
        if self.attention_out_bias == self.attention_bias:
            self._settle("attention_out_bias", None)  # said once: equal configs are equal values
        if isinstance(self.hidden_act, str):
            self._settle("hidden_act", _SAME_CURVE.get(self.hidden_act, self.hidden_act))
        problems = list(self._problems())
        if problems:
            raise ConfigError(" ".join(problems))
        if self.head_dim is None:
            self._settle("head_dim", self.hidden_size // self.num_attention_heads)

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _problems(self) -> Iterator[str]:
        for field in fields(self):
            problem = _wrong_kind(field.name, field.type, getattr(self, field.name))
            if problem:
                yield problem
                return
        heads, kv, hidden = self.num_attention_heads, self.num_key_value_heads, self.hidden_size
        if self.head_dim is None and hidden % heads:
            counts = _near(heads, hidden, lambda n: hidden % (2 * n) == 0 and (kv == heads or n % kv == 0))
            even = 2 * heads * max(1, round(hidden / heads / 2))
            yield (
                f"hidden_size {hidden} cannot be shared by num_attention_heads {heads}: {hidden} / {heads} = "
                f"{hidden / heads:.2f} is no whole head width. "
                f"{counts + ' would work, so would' if counts else 'Possible is'} hidden_size {even}, "
                "or a head_dim of its own."
            )
        if kv > heads:
            yield f"num_key_value_heads {kv} is more than num_attention_heads {heads}; 1 to {heads} is possible."
        elif heads % kv:
            yield (
                f"num_attention_heads {heads} cannot be split into num_key_value_heads {kv} equal groups. "
                f"{_near(kv, heads, lambda n: True)} would work."
            )
        width = self.head_dim or (hidden // heads if hidden % heads == 0 else None)
        if width is not None and width % 2:
            yield f"head_dim is {width}; RoPE turns pairs of dimensions, so it must be even: {width + 1} would work."
        if width == 2 and isinstance(self.rope_scaling, DynamicScaling):
            yield "head_dim is 2; dynamic RoPE scaling slows all pairs but the first, so it takes at least 4."
        if self.rope_theta <= 1 and isinstance(self.rope_scaling, YarnScaling):
            yield f"rope_theta is {self.rope_theta}; YaRN divides by its logarithm, so it must be above 1."
        if self.hidden_act not in ACTIVATION_NAMES:
            yield f"hidden_act is {self.hidden_act!r:.60}; we can compute {', '.join(ACTIVATION_NAMES)}."
        if self.rope_layout not in ("halves", "neighbours"):
            yield f"rope_layout is {self.rope_layout!r:.60}; it is 'halves' or 'neighbours'."
        if self.full_layers and not 0 <= min(self.full_layers) <= max(self.full_layers) < self.num_hidden_layers:
            yield (
                f"full_layers names layers {min(self.full_layers)} to {max(self.full_layers)}; "
                f"this model has layers 0 to {self.num_hidden_layers - 1}."
            )

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def out_bias(self) -> bool:
        """Whether o_proj has a bias."""
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias

    @property
    def max_length(self) -> int:
        """Positions that a run may take: those of training, and as many more as the scaling of RoPE was made for.

        In files with linear or dynamic scaling `max_position_embeddings` is the length before it. YaRN's files
        state either length there, so the larger of both counts.
        """
        scaling, trained = self.rope_scaling, self.max_position_embeddings
        if isinstance(scaling, LinearScaling | DynamicScaling):
            trained = int(trained * scaling.factor)
        elif isinstance(scaling, YarnScaling):
            trained = max(trained, int(scaling.original_max_position_embeddings * scaling.factor))
        return min(trained, LARGEST)

    def window(self, layer: int, S: int) -> int | None:
        """How many keys a query of this layer sees at most, itself included; None where all S stand within reach."""
        if self.sliding_window is None or self.sliding_window >= S or layer in self.full_layers:
            return None
        return self.sliding_window

    @property
    def walk(self) -> Walk:
        """The steps of this model in execution order."""
        return _walk(self.num_hidden_layers, frozenset({"qk_norm"} if self.qk_norm else ()))

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by its Hugging Face name. A tied head is not listed twice."""
        D, V = self.hidden_size, self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, D)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (D,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (V, D)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        D, F, Dh = self.hidden_size, self.intermediate_size, self.head_dim
        Q, KV = self.num_attention_heads * Dh, self.num_key_value_heads * Dh
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (D,)}
        for name, rows, columns, bias in (
            ("q_proj", Q, D, self.attention_bias),
            ("k_proj", KV, D, self.attention_bias),
            ("v_proj", KV, D, self.attention_bias),
            ("o_proj", D, Q, self.out_bias),
        ):
            shapes[f"self_attn.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"self_attn.{name}.bias"] = (rows,)
        if self.qk_norm:
            shapes |= {"self_attn.q_norm.weight": (Dh,), "self_attn.k_norm.weight": (Dh,)}
        shapes["post_attention_layernorm.weight"] = (D,)
        for name, rows, columns in (("gate_proj", F, D), ("up_proj", F, D), ("down_proj", D, F)):
            shapes[f"mlp.{name}.weight"] = (rows, columns)
            if self.mlp_bias:
                shapes[f"mlp.{name}.bias"] = (rows,)
        return shapes

    def parameter_count(self) -> int:
        """Number of different parameters: a tied table counts once."""
        D, V = self.hidden_size, self.vocab_size
        layer = sum(math.prod(shape) for shape in self._layer_shapes().values())
        return self.num_hidden_layers * layer + V * D * (1 if self.tie_word_embeddings else 2) + D

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights in "float32", "bfloat16" or "float16"; a tied table counts once."""
        return self.parameter_count() * ITEM_BYTES[dtype]

    def dims(self, T: int, past: int = 0, batch: int = 1) -> dict[str, int]:
        """Numbers for the axis letters at T query positions after `past` cached ones."""
        return {
            "B": batch,
            "T": T,
            "S": past + T,
            "D": self.hidden_size,
            "Hq": self.num_attention_heads,
            "Hkv": self.num_key_value_heads,
            "Dh": self.head_dim,
            "R": self.head_dim // 2,
            "F": self.intermediate_size,
            "V": self.vocab_size,
        }

    def capture_by_step(self, T: int, past: int = 0, dtype: str = "float32") -> dict[str, int]:
        """Bytes that a trace of T positions holds, by step, over all layers; derived steps hold 0.

        An upper bound, without edits: resid_in is the tensor that the layer before ended with.
        scores and weights are the two that grow with T squared.
        """
        dims = self.dims(T, past)
        times = {"model": 1, "layer": self.num_hidden_layers}
        cells = {
            step.key: 0 if step.derived else times[step.scope] * math.prod(dims[a] for a in step.axes)
            for step in self.walk.steps
        }
        return {key: n * ITEM_BYTES[dtype] for key, n in cells.items()}

    def capture_bytes(self, T: int, past: int = 0, dtype: str = "float32") -> int:
        """Bytes that a trace of T positions holds: every step but the derived ones."""
        return sum(self.capture_by_step(T, past, dtype).values())

    def with_(self, **changes: Any) -> LlamaConfig:
        """A changed copy, checked again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a label or a file; a scaling says its `rope_type`."""
        plain = asdict(self)
        if self.rope_scaling is not None:
            plain["rope_scaling"] = {"rope_type": self.rope_scaling.kind} | plain["rope_scaling"]
        return plain


@lru_cache(maxsize=32)
def _walk(layers: int, families: frozenset[str]) -> Walk:
    return Walk(layers, families)


def _wrong_kind(name: str, kind: str, value: Any) -> str | None:
    """What is wrong with a field by itself, given its annotation; None when nothing is."""
    if value is None and "None" in kind:
        return None
    if kind.startswith("int"):
        if not isinstance(value, int) or isinstance(value, bool):
            return f"{name} is {value!r:.60}; it must be a whole number."
        if not 1 <= value <= LARGEST and not name.endswith("token_id"):
            return f"{name} is {value}; it must be at least 1 and at most {LARGEST}."
    elif kind.startswith("float") and not (is_number(value) and value > 0):
        return f"{name} is {value!r:.60}; it must be a number above 0."
    elif kind.startswith("bool") and not isinstance(value, bool):
        return f"{name} is {value!r:.60}; it must be true or false."
    elif kind.startswith("tuple") and not (isinstance(value, tuple) and all(type(n) is int for n in value)):
        return f"{name} is {value!r:.60}; it must be a tuple of whole numbers."
    elif kind.startswith("RopeScaling") and not isinstance(value, RopeScaling):
        return f"{name} is {value!r:.60}; it must be None or one of {', '.join(c.__name__ for c in SCALINGS.values())}."
    return None


def _near(near: int, whole: int, works: Callable[[int], bool]) -> str:
    """The divisors of `whole` on either side of `near` that work, as "8 or 16"; empty when none does."""
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    found = [n for n in sorted({*small, *(whole // n for n in small)}) if works(n)]
    below, above = [n for n in found if n < near], [n for n in found if n > near]
    return " or ".join(str(n) for n in (*below[-1:], *above[:1]))


# --- reading a Hugging Face config.json -------------------------------------------------

# What an absent key means in each family, where that is not LlamaConfig's own default.
_QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768}
_ABSENT: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}
# What a family is by its name alone; its files say nothing of it.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {"attention_bias": False, "mlp_bias": False},
    "qwen2": {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
    "qwen3": {"qk_norm": True, "mlp_bias": False},
}
FAMILIES = tuple(_ABSENT)
"""The values of model_type that we compute."""

_READ = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id"),
)
_WINDOW = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")


def _named(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Keys by which relatives of Llama compute other numbers: refused by name unless they are switched off,
# which null, false, 0, an empty list or, for the first lot, 1 does.
_MULTIPLIERS = _named("""
    partial_rotary_factor rotary_pct attention_multiplier embedding_multiplier residual_multiplier logits_scaling
    logit_scale lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier scale_emb
    scale_depth embedding_scale output_multiplier_scale
""")
_FOREIGN = _named("""
    attn_logit_softcapping final_logit_softcapping logit_softcapping query_pre_attn_scalar clip_qkv qkv_clip
    num_experts num_local_experts n_routed_experts num_experts_per_tok num_experts_per_token moe_num_experts
    n_shared_experts moe_intermediate_size no_rope_layers no_rope_layer_interval rope_interleaved rope_interleave
    rope_dim rotary_dim rotary_emb_dim use_qk_norm qk_norm qk_layernorm attention_chunk_size attn_temperature_tuning
    use_alibi alibi use_parallel_residual parallel_residual parallel_attn kv_lora_rank q_lora_rank v_head_dim
    qk_rope_head_dim qk_nope_head_dim num_kv_shared_layers qkv_bias use_qkv_bias attention_qkv_bias use_bias bias
    attention_out_bias lm_head_bias vision_config audio_config text_config cross_attention_layers mrope_section
    dim_model_base use_attention_sinks add_swa_attention_sink_bias
""")
_OWN = {"qwen2": ("qkv_bias", "use_qkv_bias"), "qwen3": ("qk_norm", "use_qk_norm")}  # true says what the name says
_QUANTISED = ("quantization_config", "compression_config")
# Keys that say how a model was trained, sampled, saved or named, and change no number here.
_HARMLESS = _named("""
    model_type architectures transformers_version torch_dtype dtype use_cache initializer_range attention_dropout
    hidden_dropout embd_pdrop resid_pdrop pretraining_tp pad_token_id sep_token_id cls_token_id mask_token_id
    unk_token_id decoder_start_token_id output_attentions output_hidden_states return_dict torchscript problem_type
    id2label label2id num_labels finetuning_task tokenizer_class prefix task_specific_params gradient_checkpointing
    chunk_size_feed_forward is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size
    tie_encoder_decoder pruned_heads use_bfloat16 tf_legacy_loss temperature top_k top_p typical_p min_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences num_beams num_beam_groups diversity_penalty min_length max_length max_new_tokens do_sample
    early_stopping forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
    exponential_decay_length_penalty remove_invalid_values output_scores return_dict_in_generate attn_implementation
    is_llama_config transformers.js_config unsloth_fixed unsloth_version name_or_path model_max_length
    max_sequence_length tokenizer_model_max_length
""")
_KNOWN = frozenset((*_READ, *_WINDOW, *_ROPE, *_MULTIPLIERS, *_FOREIGN, *_QUANTISED, *_HARMLESS))
_ROPE_EVERYWHERE = frozenset(("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"))
_ROPE_KEYS = _ROPE_EVERYWHERE.union(*({f.name for f in fields(scaling)} for scaling in SCALINGS.values()))


def read_config(path: Path) -> LlamaConfig:
    """LlamaConfig from a Hugging Face config.json; ConfigError says what in it we cannot honour."""
    return config_from_dict(read_raw(path))


def read_raw(path: Path) -> dict[str, Any]:
    """The fields of a config.json as they stand there; ConfigError when it holds no JSON object."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, or endless digits
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path.name} cannot be read as JSON: {why}.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path.name} holds {type(raw).__name__}, not the object that a Hugging Face config is.")
    return raw


def config_from_dict(raw: Mapping[str, Any]) -> LlamaConfig:
    """LlamaConfig from the fields of a Hugging Face config.json.

    An absent or null key means what transformers means by it in this family. A key that changes the
    numbers in a way we do not compute is refused by name; `config_notes` lists those that nobody knows.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"The config says model_type {family!r:.60}. We can compute {', '.join(FAMILIES)}; "
            "other families differ in places that would give wrong numbers without an error."
        )
    _refuse_foreign(raw, family)
    given = _ABSENT[family] | {name: raw[name] for name in _READ if raw.get(name) is not None} | _FIXED[family]
    if "num_key_value_heads" in raw and raw["num_key_value_heads"] is None:
        given["num_key_value_heads"] = None  # null is not absent: it means MHA in every family
    if isinstance(given.get("eos_token_id"), list):
        first, *others = given["eos_token_id"] or [None]
        given |= {"eos_token_id": first, "other_eos_token_ids": tuple(others)}
    sizes = LlamaConfig(**given)  # checked before the rest, which counts on its sizes
    theta = _rope_record(raw).get("rope_theta")
    theta = raw.get("rope_theta") if theta is None else theta
    window, full_layers = _window(raw, family, sizes.num_hidden_layers)
    return sizes.with_(
        rope_theta=sizes.rope_theta if theta is None else theta,
        rope_scaling=_scaling(raw, sizes.max_position_embeddings),
        sliding_window=window,
        full_layers=full_layers,
    )


def config_notes(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Full sentences for the page about keys of a config.json that change nothing here, though they are set."""
    notes = [
        f"config.json also says {key} = {value!r:.60}, which this app does not know and does not use."
        for key, value in raw.items()
        if key not in _KNOWN and not key.startswith("_") and value is not None and value is not False
    ]
    family = raw.get("model_type")
    notes += [
        f"config.json says {key} = {raw[key]!r:.60}; models of the family {family} have none in transformers, "
        "and neither have they here."
        for key in ("attention_bias", "mlp_bias")
        if raw.get(key) and _FIXED.get(family, {}).get(key) is False
    ]
    return (*notes, *_rope_notes(raw))


def _rope_notes(raw: Mapping[str, Any]) -> Iterator[str]:
    rope = _rope_record(raw)
    kind = _scaling_kind(rope)
    used = _ROPE_EVERYWHERE.union(f.name for f in fields(SCALINGS[kind])) if kind in SCALINGS else _ROPE_EVERYWHERE
    original = "original_max_position_embeddings"
    stated = {original: raw.get(original)} | rope
    for key, value in stated.items():
        if key in _ROPE_KEYS - used and value is not None:
            yield f"config.json says {key} = {value!r:.60}, which RoPE scaling of the type {kind} does not use."
    outer, inner = raw.get("rope_theta"), rope.get("rope_theta")
    if outer is not None and inner is not None and outer != inner:
        yield (
            f"config.json says rope_theta = {outer!r:.60} and, in its record of RoPE, {inner!r:.60}. "
            "The record counts, as in transformers."
        )


def stored_dtype_of(raw: Mapping[str, Any]) -> str | None:
    """The type that a config says its weights have ("bfloat16"), by either of its names; None when it says none."""
    stated = [raw.get(key) for key in ("dtype", "torch_dtype")]
    named = [value.removeprefix("torch.") for value in stated if isinstance(value, str)]
    return next((name for name in named if name not in ("", "auto")), None)


def _refuse_foreign(raw: Mapping[str, Any], family: str) -> None:
    for key in _QUANTISED:
        if raw.get(key):
            method = raw[key].get("quant_method") if isinstance(raw[key], Mapping) else raw[key]
            raise ConfigError(
                f"The config says that the weights are quantised ({key}, {method!r:.60}), a form that is not read "
                "here. Take the unquantised version of the model, or its GGUF."
            )
    for key in (*_MULTIPLIERS, *_FOREIGN):
        value = raw.get(key)
        off = not value or (key in _MULTIPLIERS and value == 1) or (key in _OWN.get(family, ()) and value is True)
        if not off:
            raise ConfigError(f"The config sets {key} to {value!r:.60}, which we do not compute.")


def _window(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, None for none, and the layers that see everything despite it."""
    width, kinds = _window_width(raw, family), raw.get("layer_types")
    if kinds is not None:
        full = _full_of(kinds, layers)
        every_layer_alike = len(full) == (0 if width else layers)
        if not (every_layer_alike or (width and family in ("qwen2", "qwen3"))):
            raise ConfigError(
                f"layer_types lets {layers - len(full)} of {layers} layers slide, but the sliding window of this "
                f"{family} model is {width or 'switched off'}. Make both say the same."
            )
    else:
        first = raw.get("max_window_layers")
        first = 0 if family == "mistral" else 28 if first is None else first
        if not isinstance(first, int) or isinstance(first, bool):
            raise ConfigError(f"max_window_layers is {first!r:.60}; it must be a whole number.")
        full = range(min(max(0, first), layers)) if width else ()
    if width is None or len(full) == layers:
        return None, ()
    if len(full) > MOST_FULL_LAYERS:
        raise ConfigError(f"max_window_layers is {len(full)}; it must be at most {MOST_FULL_LAYERS}.")
    return width, tuple(full)


def _window_width(raw: Mapping[str, Any], family: str) -> Any:
    width = raw.get("sliding_window", None if family == "llama" else 4096) or None  # absent is 4096, null and 0 none
    switch = raw.get("use_sliding_window")
    if switch not in (None, True, False):
        raise ConfigError(f"use_sliding_window is {switch!r:.60}; it must be true or false.")
    if family in ("qwen2", "qwen3"):
        return width if switch else None
    if width is None or (family == "mistral" and switch is not False):
        return width
    if family == "llama" and switch is False:
        return None
    knows = "no window" if family == "llama" else "only the first of both"
    raise ConfigError(
        f"The config sets sliding_window to {width!r:.60} and use_sliding_window to {switch!r}, but the family "
        f"{family} knows {knows} in transformers. Set sliding_window to null for none, "
        "or model_type to 'mistral' and leave use_sliding_window out for a window in every layer."
    )


def _full_of(kinds: Any, layers: int) -> tuple[int, ...]:
    """The layers that `layer_types` lets see everything."""
    known = {"full_attention": True, "attention": True, "sliding_attention": False}
    if not isinstance(kinds, list) or len(kinds) != layers:
        found = f"{len(kinds)} entries" if isinstance(kinds, list) else f"{kinds!r:.60}"
        raise ConfigError(f"layer_types has {found}; it must be a list with one entry for each of the {layers} layers.")
    foreign = [kind for kind in kinds if not (isinstance(kind, str) and kind in known)]
    if foreign:
        raise ConfigError(f"layer_types names {foreign[0]!r:.60}. We compute full_attention and sliding_attention.")
    return tuple(layer for layer, kind in enumerate(kinds) if known[kind])


def _rope_record(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the config says of RoPE, under the name that transformers follows, as one flat record."""
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ConfigError(f"{name} is {rope!r:.60}; it must be an object or null.")
    parts = [part for part in rope.values() if isinstance(part, Mapping)]
    if not parts:
        return rope
    if len(parts) < sum(part is not None for part in rope.values()) or any(part != parts[0] for part in parts):
        raise ConfigError(f"{name} differs between {', '.join(rope)!s:.60}. We turn all layers by the same angles.")
    return parts[0]


def _scaling_kind(rope: Mapping[str, Any]) -> str:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return kind if isinstance(kind, str) else repr(kind)


_NEEDED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _scaling(raw: Mapping[str, Any], positions: int) -> RopeScaling | None:
    """The scaling that a config asks for. positions: its max_position_embeddings."""
    rope = _rope_record(raw)
    kind = _scaling_kind(rope)
    if kind != "default" and kind not in SCALINGS:
        raise ConfigError(f"The config scales RoPE by {kind!r:.60}. We compute default, {', '.join(SCALINGS)}.")
    for key, value in rope.items():
        partial = key == "partial_rotary_factor" and value not in (None, 1)
        if partial or (key not in _ROPE_KEYS and value is not None):
            raise ConfigError(f"The config sets {key!s:.60} of its RoPE to {value!r:.60}, which we do not compute.")
    if kind == "default":
        return None
    names = [field.name for field in fields(SCALINGS[kind])]
    given = {name: rope[name] for name in names if name in rope}
    if "original_max_position_embeddings" in names:
        outer = raw.get("original_max_position_embeddings")
        inner = rope.get("original_max_position_embeddings", positions)  # absent: those of the config
        given["original_max_position_embeddings"] = inner if outer is None else outer
    if kind == "yarn":
        given = _as_yarn_means_it(given, positions)
    missing = [name for name in names if name in _NEEDED and not is_number(given.get(name))]
    if missing:
        raise ConfigError(f"RoPE scaling of type {kind} lacks {', '.join(missing)}: each must be a number.")
    return SCALINGS[kind](**given)


def _as_yarn_means_it(given: dict[str, Any], positions: int) -> dict[str, Any]:
    """What transformers makes of null and 0 in a YaRN record."""
    original = given["original_max_position_embeddings"]
    if "factor" in given and given["factor"] is None and is_number(original) and original > 0:
        given["factor"] = positions / original
    for beta in ("beta_fast", "beta_slow"):
        if not given.get(beta):
            given.pop(beta, None)
    if "truncate" in given:
        given["truncate"] = bool(given["truncate"])  # absent is true, null is false
    return given


# --- presets for random weights ----------------------------------------------------------

PRESETS: Mapping[str, LlamaConfig] = {
    "tiny": LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    ),
    "nano": LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=128,
    ),
    # S3: 846,336 parameters, MHA, untied head, MLP int(128 * 8 / 3).
    "light-0.85M": LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=341,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_layout="neighbours",
    ),
    # S1's teaching size: 83,196,672 parameters tied.
    "teaching-83M": LlamaConfig(
        vocab_size=10000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
}
"""Sizes to start from, by name; each can be changed with `with_`."""
