"""The decoder, read top to bottom: norm, attention, MLP, layer, model.

    B batch   T query positions   S key positions (past + T)   D hidden width
    Hq query heads   Hkv key/value heads   Dh head width   F intermediate width   V vocabulary

Parameter names are Hugging Face's. `tap.<step>(x)` returns x: it is where a step of the registry
can be seen, and nothing else. A tensor that no tap has seen may be written in place; no other is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import steps
from .config import LlamaConfig
from .kv_cache import KVCache
from .rope import RotaryTable, rotate
from .tap import Taps
from .tokenizer import Tokenizer
from .trace import shared

Turn = tuple[Tensor, Tensor]  # cos and sin of this pass's positions, each [T R]; of a padded batch [B T R]
Entry = tuple[int, Tensor]  # where a resumed pass begins: so many layers are done, and the stream behind them [B T D]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,  # x * sigmoid(x), the "Swi" of SwiGLU
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True)
class Origin:
    """Where a model's weights came from: a label for people, the kind of source, the types its file stores.

    notes: full sentences about what its files say besides, for the page.
    """

    label: str
    kind: str
    stored_dtype: str
    notes: tuple[str, ...] = ()


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension. No mean is subtracted, no bias added."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Statistics in float32: in half precision the mean of squares loses its small terms.
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype).mul_(self.weight)


def share_heads(x: Tensor, group: int) -> Tensor:
    """Show each key/value head to its group of query heads. [B S Hkv Dh] -> [B S Hq Dh].

    Heads repeat next to each other (0 0 1 1), not in turn (0 1 0 1): query head h reads h // group.
    """
    return x.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3)


@shared
def visible_cells(T: int, S: int, device: torch.device | None = None, window: int | None = None) -> Tensor:
    """Which keys each query may see: itself and what came before. [T S] bool.

    With S - T cached positions the diagonal moves right by as many. window: only so many keys, the query's own
    included; a second diagonal cuts off what lies further back.
    """
    seen = torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
    return seen if window is None else seen.triu(S - T - window + 1)


def visible_in_batch(seen: Tensor, pads: Sequence[int]) -> Tensor:
    """The same for each row of a left-padded batch: no pad is seen, and none sees. [T S] -> [B 1 T S] bool."""
    places = torch.arange(seen.shape[-1], device=seen.device)
    real = places >= torch.tensor(pads, device=seen.device)[:, None]  # B S
    return seen & real[:, None, None, :]


class Sight(NamedTuple):
    """What the queries of a layer may see. visible: [T S], or [B 1 T S] of a batch; bool.

    all_before: it is just the query itself and every position before it, with no cache. fused: scores, masked and
    weights of the whole layer are never tensors; torch's own kernel goes through them in pieces.
    """

    visible: Tensor
    all_before: bool = False
    fused: bool = False


class Sights:
    """The sight of each layer of one pass: T queries, S keys. Layers of one window share one mask."""

    def __init__(
        self, config: LlamaConfig, T: int, S: int, device: torch.device, pads: Sequence[int] | None = None
    ) -> None:
        self._config, self._T, self._S, self._device, self._pads = config, T, S, device, pads
        self._masks: dict[int | None, Tensor] = {}

    def of(self, layer: int, fused: bool = False) -> Sight:
        """What the queries of that layer may see."""
        window = self._config.window(layer, self._S)
        if window not in self._masks:
            seen = visible_cells(self._T, self._S, self._device, window)
            self._masks[window] = seen if self._pads is None else visible_in_batch(seen, self._pads)
        all_before = self._T == self._S and window is None and self._pads is None
        return Sight(self._masks[window], all_before, fused)


class Attention(nn.Module):
    """Grouped-query attention, every stage a tensor of its own; or, on the fused path, all but those of T x S cells."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        D, Hq, Hkv, Dh = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(D, Hq * Dh, bias=config.attention_bias)
        self.k_proj = nn.Linear(D, Hkv * Dh, bias=config.attention_bias)
        self.v_proj = nn.Linear(D, Hkv * Dh, bias=config.attention_bias)
        self.o_proj = nn.Linear(Hq * Dh, D, bias=config.out_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(Dh, config.rms_norm_eps)
            self.k_norm = RMSNorm(Dh, config.rms_norm_eps)
        self.layer, self.group, self.head_dim, self.layout = layer, config.group, Dh, config.rope_layout
        normed = (steps.Q_NORM, steps.K_NORM) if config.qk_norm else ()
        self.tap = Taps(
            layer,
            *(steps.Q, steps.K, steps.V, *normed, steps.Q_ROT, steps.K_ROT, steps.K_SHARED, steps.V_SHARED),
            *(steps.SCORES, steps.MASKED, steps.WEIGHTS, steps.HEAD_OUT, steps.ATTN_OUT),
        )

    def forward(self, x: Tensor, turn: Turn, sight: Sight, cache: KVCache | None) -> Tensor:
        tap, visible = self.tap, sight.visible
        per_head = (-1, self.head_dim)
        q = tap.q(self.q_proj(x).unflatten(-1, per_head))  # B T Hq Dh
        k = tap.k(self.k_proj(x).unflatten(-1, per_head))  # B T Hkv Dh
        v = tap.v(self.v_proj(x).unflatten(-1, per_head))  # B T Hkv Dh
        if self.qk_norm:
            q = tap.q_norm(self.q_norm(q))
            k = tap.k_norm(self.k_norm(k))
        q = tap.q_rot(rotate(q, turn, self.layout))
        k = tap.k_rot(rotate(k, turn, self.layout))
        if cache is not None:
            k, v = cache.append(self.layer, k, v)  # B S Hkv Dh
        k = tap.k_shared(share_heads(k, self.group))  # B S Hq Dh
        v = tap.v_shared(share_heads(v, self.group))  # B S Hq Dh
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))  # B Hq T Dh, B Hq S Dh
        if sight.fused:
            mask = None if sight.all_before else visible
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=sight.all_before)  # B Hq T Dh
        else:
            scores = tap.scores((q @ k.mT).mul_(self.head_dim**-0.5))  # B Hq T S
            masked = tap.masked(torch.where(visible, scores, float("-inf")))
            weights = masked.softmax(-1, dtype=torch.float32).to(v.dtype)
            if visible.ndim == 4:  # a batch: a pad sees no key, and the softmax of nothing is NaN
                weights = torch.where(visible, weights, 0.0)
            weights = tap.weights(weights)
            mixed = weights @ v  # B Hq T Dh
        out = tap.head_out(mixed.transpose(1, 2).contiguous())  # B T Hq Dh
        return tap.attn_out(self.o_proj(out.flatten(2)))  # B T D


class MLP(nn.Module):
    """SwiGLU: down(act(gate(x)) * up(x)). Three matrices, one of them only to open and shut the others."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        D, F = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(D, F, bias=config.mlp_bias)
        self.up_proj = nn.Linear(D, F, bias=config.mlp_bias)
        self.down_proj = nn.Linear(F, D, bias=config.mlp_bias)
        self.act_fn = ACTIVATIONS[config.hidden_act]
        self.tap = Taps(layer, steps.GATE, steps.UP, steps.ACT, steps.GATED, steps.MLP_OUT)

    def forward(self, x: Tensor) -> Tensor:
        tap = self.tap
        gate = tap.gate(self.gate_proj(x))  # B T F
        up = tap.up(self.up_proj(x))
        act = tap.act(self.act_fn(gate))
        gated = tap.gated(act * up)
        return tap.mlp_out(self.down_proj(gated))  # B T D


class DecoderLayer(nn.Module):
    """Pre-Norm: each half reads a normalised copy of the stream and adds its answer to the stream itself."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config, layer)
        self.tap = Taps(layer, steps.RESID_IN, steps.ATTN_NORM, steps.RESID_MID, steps.MLP_NORM, steps.RESID_OUT)

    def forward(self, x: Tensor, turn: Turn, sight: Sight, cache: KVCache | None) -> Tensor:
        tap = self.tap
        x = tap.resid_in(x)  # B T D
        normed = tap.attn_norm(self.input_layernorm(x))
        x = tap.resid_mid(x + self.self_attn(normed, turn, sight, cache))
        normed = tap.mlp_norm(self.post_attention_layernorm(x))
        return tap.resid_out(x + self.mlp(normed))


class Embedding(nn.Embedding):
    """torch's, which on the meta device is not filled: for numbers that are nowhere torch would load its compiler."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # a second and a half
            super().reset_parameters()


class Decoder(nn.Module):
    """Embedding, the layers, the final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.tap = Taps(None, steps.EMBED, steps.FINAL_NORM)

    def forward(
        self, ids: Tensor, turn: Turn, sights: Sequence[Sight], cache: KVCache | None, entry: Entry | None = None
    ) -> Tensor:
        tap = self.tap
        done, x = (0, tap.embed(self.embed_tokens(ids))) if entry is None else entry  # B T D
        for layer, sight in zip(self.layers[done:], sights[done:], strict=True):
            x = layer(x, turn, sight, cache)
        return tap.final_norm(self.norm(x))


class Llama(nn.Module):
    """The decoder with its head. Weights never change after load; nothing of a run is stored here.

    tokenizer and origin are what `load` knows beside the weights; both may be None.
    """

    def __init__(self, config: LlamaConfig, tokenizer: Tokenizer | None = None, origin: Origin | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.origin = origin
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rope = RotaryTable(config)
        self.tap = Taps(None, steps.LOGITS)
        self._places = [(name, *self._place(name)) for name, _ in self.named_parameters()]

    def _place(self, name: str) -> tuple[nn.Module, str]:
        module, _, own = name.rpartition(".")
        return self.get_submodule(module), own

    def weights(self) -> dict[str, Tensor]:
        """Every weight by its Hugging Face name, sharing memory; a tied head is not listed twice."""
        return {name: getattr(module, own).detach() for name, module, own in self._places}

    @property
    def device(self) -> torch.device:
        """Where the weights are and the pass runs."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the pass computes in."""
        return self.lm_head.weight.dtype

    def nbytes(self) -> int:
        """Bytes of the weights; a tied table counts once."""
        return self.config.parameter_count() * self.dtype.itemsize

    def forward(
        self,
        ids: Tensor,
        cache: KVCache | None = None,
        entry: Entry | None = None,
        pads: Sequence[int] | None = None,
        fused: Collection[int] = (),
    ) -> Tensor:
        """Token ids [B T] -> logits [B T V]. With a cache, positions go on behind its rows.

        entry: begin behind so many layers, from the stream that they left; nothing before is computed.
        pads: how many ids at the left of each row are none; positions count from behind them. Not with a cache.
        fused: the layers that take the fused path. Not with pads.
        """
        T = ids.shape[1]
        past = 0 if cache is None else cache.length
        turn = self.rope(past, T) if pads is None else self.rope.of_batch(T, pads)
        sights = Sights(self.config, T, past + T, ids.device, pads)
        seen = [sights.of(layer, layer in fused) for layer in range(self.config.num_hidden_layers)]
        x = self.model(ids, turn, seen, cache, entry)
        logits = self.tap.logits(self.lm_head(x))  # B T V
        if cache is not None:
            cache.commit(T)
        return logits
