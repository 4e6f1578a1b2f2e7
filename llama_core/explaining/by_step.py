"""How each step of the registry makes one cell: one small function per kind of step, in the registry's order.

Each says which products add up to the cell, in float64, from what the trace captured. numpy only, but for the
frequencies of RoPE, which are the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .. import steps
from ..config import LlamaConfig
from ..errors import AddressError
from ..steps import At, Step
from ..trace import Trace
from ..turning import angles, members, turning_of
from .terms import Cell, Factor, Sum, Term, Weight, largest_of, operand, sum_of, term_of, tex


@dataclass(frozen=True)
class Asked:
    """One cell, and what may be read to explain it: the steps that its step reads, and its weights."""

    trace: Trace
    at: At
    index: tuple[int, ...]
    top: int

    @property
    def config(self) -> LlamaConfig:
        return self.trace.config

    @property
    def sources(self) -> tuple[At, ...]:
        return self.trace.walk.sources(self.at)

    def captured(self, at: At, *index: int) -> np.ndarray:
        """Numbers of one address as the run had them; of a map of queries and keys no other head is made."""
        if at.step.causal:
            _, head, *rest = index
            return self.trace.head(at, head)[tuple(rest)]
        return self.trace[at][index]

    def read(self, at: At, *index: int) -> np.ndarray:
        """The same as float64."""
        return self.captured(at, *index).astype(np.float64)

    def factor(self, at: At, *index: int) -> Factor:
        """A captured number as a factor."""
        return Factor(at.step.key, float(self.captured(at, *index)), Cell(at, index))

    def parameter(self, ending: str) -> str | None:
        """The Hugging Face name of the step's parameter that ends so; None when the step has none of that kind."""
        name = next((name for name in self.at.step.weights if name.endswith(ending)), None)
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            return "model.embed_tokens.weight"
        return name if name is None or self.at.layer is None else f"model.layers.{self.at.layer}.{name}"

    def row(self, name: str, i: int) -> np.ndarray:
        """One row of a matrix (one number of a vector), as float64."""
        if name not in self.trace.parameters:
            raise AddressError(
                f"{self.at} is computed with {name}, and this trace came without its weights. "
                "Explain a trace that run(model, prompt) made, or a step without weights, such as a sum or a score."
            )
        return self.trace.parameters.row(name, i).astype(np.float64)

    def weight(self, name: str, *index: int) -> Factor:
        """One number of a parameter as a factor."""
        return Factor(name.split(".", 3)[-1], float(self.row(name, index[0])[index[1:]]), Weight(name, index))


@dataclass(frozen=True)
class Found:
    """What the explainer of a step says; `roundings` as in `rounding_bound`."""

    kind: str
    shown: Sum
    roundings: int
    formula: str = ""
    quantities: Mapping[str, float] = field(default_factory=dict)
    inner: Sum | None = None


# --- the explainers, in the order of the registry ---


def _embed(asked: Asked) -> Found:
    _, t, d = asked.index
    token = asked.trace.ids[t]
    name = asked.parameter(".weight")
    quantities = {"id": token, "position": asked.trace.past + t}
    return Found("row", sum_of(term_of(f"V {token}", asked.weight(name, token, d))), 0, quantities=quantities)


def _copy(asked: Asked) -> Found:
    (source,) = asked.sources
    return Found("copy", sum_of(term_of(source.step.key, asked.factor(source, *asked.index))), 0)


def _norm(asked: Asked) -> Found:
    (source,) = asked.sources
    *place, d = asked.index
    x = asked.read(source, *place)
    eps, mean_square = asked.config.rms_norm_eps, float(np.mean(x**2))
    scale = 1 / math.sqrt(mean_square + eps)
    weight = asked.weight(asked.parameter(".weight"), d)
    own = asked.factor(source, *asked.index)
    shown = sum_of(term_of(f"{asked.at.step.axes[-1]} {d}", own, Factor("scale", scale), weight))

    def square(i: int) -> Term:
        same = asked.factor(source, *place, i)
        return term_of(f"{asked.at.step.axes[-1]} {i}", same, same, Factor("1/N", 1 / len(x)))

    root = rf"\sqrt{{{tex(mean_square)} + {tex(eps)}}}"
    formula = rf"\dfrac{{{tex(own.value)}}}{{{root}}} \cdot {operand(weight.value)} = {tex(shown.total)}"
    quantities = {"mean square": mean_square, "eps": eps, "scale": scale}
    # Stored once when it is scaled and once more when it is weighted.
    return Found("norm", shown, 2, formula, quantities, largest_of(x**2 / len(x), square, asked.top))


def _projection(asked: Asked) -> Found:
    """Channel after channel of the input, times one row of the matrix; heads lie side by side in both."""
    (source,) = asked.sources
    *place, _ = asked.index if len(asked.index) == 3 else asked.index[:-1]
    wide = asked.trace.stat(asked.at).shape[2:]
    row = int(np.ravel_multi_index(asked.index[2:], wide))
    x = asked.read(source, *place)  # D, F, or Hq Dh
    name, bias = asked.parameter(".weight"), asked.parameter(".bias")
    weights = asked.row(name, row)

    def product(i: int) -> Term:
        inside = tuple(int(n) for n in np.unravel_index(i, x.shape))
        label = ", ".join(f"{axis} {n}" for axis, n in zip(source.step.axes[2:], inside, strict=True))
        return term_of(label, asked.factor(source, *place, *inside), asked.weight(name, row, i))

    always = (term_of("bias", asked.weight(bias, row)),) if bias in asked.trace.parameters else ()
    shown = largest_of(x.ravel() * weights, product, asked.top, *always)
    # Stored once; a product split over several units also stores its partial sums, each at most `size` together.
    return Found("projection", shown, 2 + len(always), quantities={"row": row})


def _rotation(asked: Asked) -> Found:
    (source,) = asked.sources
    b, t, head, d = asked.index
    trace, turning = asked.trace, turning_of(asked.config, asked.trace.dims["S"])
    pairs = members(asked.config.head_dim // 2, turning.layout)
    r, side = (int(n) for n in np.argwhere(pairs == d)[0])
    position, frequency = trace.past + t, float(turning.frequencies[r])
    angle = float(angles(position, turning.frequencies)[r])  # rounded to float32, as the model's is
    cos, sin = math.cos(angle), math.sin(angle)
    own, other = (asked.factor(source, b, t, head, int(pairs[r, s])) for s in (side, 1 - side))
    turns = (Factor("cos", cos), Factor("-sin", -sin) if side == 0 else Factor("sin", sin))
    grown = () if turning.factor == 1 else (Factor("attention factor", turning.factor),)
    shown = sum_of(
        *(
            term_of(f"Dh {factor.source.index[-1]}", factor, turn, *grown)
            for factor, turn in zip((own, other), turns, strict=True)
        )
    )
    quantities = {"pair": r, "position": position, "frequency": frequency, "angle": angle, "cos": cos, "sin": sin}
    if asked.config.rope_scaling is not None:
        plain = turning_of(asked.config.with_(rope_scaling=None)).frequencies[r]
        quantities |= {"unscaled frequency": float(plain), "attention factor": turning.factor}
    sign = "-" if side == 0 else "+"
    turned = rf"{tex(own.value)}\cos({tex(angle)}) {sign} {operand(other.value)}\sin({tex(angle)})"
    formula = rf"{tex(turning.factor)}\,({turned})" if grown else turned
    return Found("rotation", shown, 1, f"{formula} = {tex(shown.total)}", quantities)


def _shared(asked: Asked) -> Found:
    """Query head h reads key/value head h // group; rows before this pass are those of the cache."""
    (source,) = asked.sources
    b, s, head, d = asked.index
    trace, kv = asked.trace, head // asked.config.group
    quantities = {"query head": head, "key/value head": kv, "group": asked.config.group, "position": s}
    if s < trace.past:
        row = Factor("KV cache", float(trace[asked.at][asked.index]))
        return Found("cached", sum_of(term_of(f"Hkv {kv}", row)), 0, quantities=quantities)
    own = asked.factor(source, b, s - trace.past, kv, d)
    return Found("shared", sum_of(term_of(f"Hkv {kv}", own)), 0, quantities=quantities)


def _score(asked: Asked) -> Found:
    query, key = asked.sources
    b, head, t, s = asked.index
    width = asked.config.head_dim
    scale = 1 / math.sqrt(width)
    products = asked.read(query, b, t, head) * asked.read(key, b, s, head) * scale

    def product(d: int) -> Term:
        pair = asked.factor(query, b, t, head, d), asked.factor(key, b, s, head, d)
        return term_of(f"Dh {d}", *pair, Factor("1/√Dh", scale))

    shown = largest_of(products, product, asked.top)
    quantities = {"query position": asked.trace.past + t, "key position": s, "1/√Dh": scale}
    # The dot product as in a projection, and once more when it is scaled.
    return Found("score", shown, 3, quantities=quantities)


def _hidden(asked: Asked, total: float, result: str) -> Found | None:
    """A cell that the mask hides, with the total that it has instead of a sum; None for one that may be seen."""
    _, _, t, s = asked.index
    if asked.trace.visible(asked.at)[t, s]:
        return None
    query = asked.trace.past + t
    quantities = {"query position": query, "key position": s}
    if s > query:
        kind, why = "future", f"{s} > {query}"
    else:
        window = asked.config.sliding_window
        quantities["window"] = window
        kind, why = "window", rf"{s} \le {query} - {window}"
    return Found(kind, Sum((), None, total, 0.0), 0, rf"{why} \;\Rightarrow\; {result}", quantities)


def _masked(asked: Asked) -> Found:
    return _hidden(asked, -math.inf, r"-\infty") or _copy(asked)


def _softmax(asked: Asked) -> Found:
    hidden = _hidden(asked, 0.0, r"e^{-\infty} = 0")
    if hidden:
        return hidden
    (source,) = asked.sources
    *row, s = asked.index
    seen = np.flatnonzero(asked.trace.visible(asked.at)[row[-1]])
    scores = asked.read(source, *row)[seen]
    largest = float(scores.max())
    raised = np.exp(scores - largest)

    def exponential(i: int) -> Term:
        cell = Cell(source, (*row, int(seen[i])))
        return term_of(f"S {seen[i]}", Factor("exp", float(raised[i]), cell))

    inner = largest_of(raised, exponential, asked.top)
    own = exponential(int(np.searchsorted(seen, s))).factors[0]
    shown = sum_of(term_of(f"S {s}", own, Factor("1/sum", 1 / inner.total)))
    score = float(asked.captured(source, *asked.index))
    power = rf"e^{{{tex(score)} - {operand(largest)}}}"
    formula = rf"\dfrac{{{power}}}{{{tex(inner.total)}}} = {tex(shown.total)}"
    quantities = {"score": score, "max": largest, "exponent": score - largest, "exp": own.value, "sum": inner.total}
    return Found("softmax", shown, 1, formula, quantities | {"keys": len(seen)}, inner)


def _mixture(asked: Asked) -> Found:
    """Weight times value over the keys; a hidden one takes no part unless an edit gave it weight."""
    weights, values = asked.sources
    b, t, head, d = asked.index
    shares = asked.read(weights, b, head, t)
    parts = np.flatnonzero(asked.trace.visible(weights)[t] | (shares != 0))
    column = asked.read(values, b, slice(None), head, d)

    def product(i: int) -> Term:
        s = int(parts[i])
        return term_of(f"S {s}", asked.factor(weights, b, head, t, s), asked.factor(values, b, s, head, d))

    shown = largest_of(shares[parts] * column[parts], product, asked.top)
    return Found("mixture", shown, 2, quantities={"keys": len(parts), "key/value head": head // asked.config.group})


def _addition(asked: Asked) -> Found:
    return Found("addition", sum_of(*(term_of(at.step.key, asked.factor(at, *asked.index)) for at in asked.sources)), 1)


def _curve(asked: Asked) -> Found:
    """Each activation that the config knows is its input times a share of it that passes."""
    (source,) = asked.sources
    gate = asked.factor(source, *asked.index)
    name, share = _PASSES[asked.config.hidden_act]
    passes = Factor(name, share(gate.value))
    return Found("curve", sum_of(term_of(f"F {asked.index[-1]}", gate, passes)), 1, quantities={name: passes.value})


def _product(asked: Asked) -> Found:
    factors = [asked.factor(at, *asked.index) for at in asked.sources]
    return Found("product", sum_of(term_of(f"F {asked.index[-1]}", *factors)), 1)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))  # neither side overflows


def _normal_share(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _tanh_share(x: float) -> float:
    return 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _step_share(x: float) -> float:
    return x if math.isnan(x) else float(x > 0)


_PASSES: dict[str, tuple[str, Callable[[float], float]]] = {
    "silu": ("σ(g)", _sigmoid),
    "gelu": ("Φ(g)", _normal_share),
    "gelu_pytorch_tanh": ("≈Φ(g)", _tanh_share),
    "relu": ("[g > 0]", _step_share),
}
EXPLAINERS: dict[Step, Callable[[Asked], Found]] = {
    steps.EMBED: _embed,
    steps.RESID_IN: _copy,
    steps.ATTN_NORM: _norm,
    steps.Q: _projection,
    steps.K: _projection,
    steps.V: _projection,
    steps.Q_NORM: _norm,
    steps.K_NORM: _norm,
    steps.Q_ROT: _rotation,
    steps.K_ROT: _rotation,
    steps.K_SHARED: _shared,
    steps.V_SHARED: _shared,
    steps.SCORES: _score,
    steps.MASKED: _masked,
    steps.WEIGHTS: _softmax,
    steps.HEAD_OUT: _mixture,
    steps.ATTN_OUT: _projection,
    steps.RESID_MID: _addition,
    steps.MLP_NORM: _norm,
    steps.GATE: _projection,
    steps.UP: _projection,
    steps.ACT: _curve,
    steps.GATED: _product,
    steps.MLP_OUT: _projection,
    steps.RESID_OUT: _addition,
    steps.FINAL_NORM: _norm,
    steps.LOGITS: _projection,
}
