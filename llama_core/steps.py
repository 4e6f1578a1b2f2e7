r"""THE registry: every step of a forward pass, in execution order. No torch here.

Stepper, drawing, README table, docs and tests read these records, and `At`, the address
of a step in a layer, is what pages, links, widget keys and the URL share. A new step is
one record here plus one tap of the same name in `model.py`.

Axis letters, used in every `shape` and every formula of the project:

    B batch             T query positions     S key positions (past + T)
    D hidden width      Hq query heads        Hkv key/value heads
    Dh head width       R = Dh/2 pairs        F intermediate width     V vocabulary
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import AddressError

AXES: Mapping[str, str] = {
    "B": "batch",
    "T": "query positions",
    "S": "key positions (past + T)",
    "D": "hidden width",
    "Hq": "query heads",
    "Hkv": "key/value heads",
    "Dh": "head width",
    "R": "rotation pairs (Dh/2)",
    "F": "intermediate width",
    "V": "vocabulary",
}

Kind = Literal["residual", "norm", "query", "key", "value", "attention", "mlp", "head"]


@dataclass(frozen=True, eq=False)
class Step:
    """One named tensor of the forward pass and all that is known about it.

    `why` is two plain sentences, `look` what to see in the step's picture.
    `reads` are the steps it is computed from, in the same layer; the two that cross a
    layer's border (`resid_in`, `final_norm`) are resolved by `Walk.sources`.
    `module` and `weights` are Hugging Face names, relative to `model.layers.<i>.` for
    layer steps. `code` names what computes it beside its own line in model.py.
    `derived` steps hold no memory of their own: they are rebuilt from what they read.
    `family` names the config flag without which the step does not exist.
    `causal` marks the T x S steps, whose statistics count visible cells only.
    """

    key: str
    title: str
    shape: str
    formula: str
    why: str
    look: str
    reads: tuple[Step, ...]
    kind: Kind
    module: str
    alias: str
    scope: Literal["model", "layer"] = "layer"
    weights: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    derived: bool = False
    family: str | None = None
    causal: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis letters of `shape`, one per dimension."""
        return tuple(self.shape.split())

    def __repr__(self) -> str:
        return f"steps.{self.key.upper()}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return find, (self.key,)  # steps are singletons: a copy would compare unequal


EMBED = Step(
    key="embed",
    title="token embedding",
    shape="B T D",
    formula=r"x_t = E[\,\mathrm{id}_t\,]",
    why="Each token id picks its own row of the embedding table. Nothing about neighbours or position is in it yet.",
    look="One row per token: equal tokens have equal rows, wherever they stand.",
    reads=(),
    kind="residual",
    scope="model",
    module="model.embed_tokens",
    weights=("model.embed_tokens.weight",),
    alias="hook_embed",
)
RESID_IN = Step(
    key="resid_in",
    title="residual stream entering the layer",
    shape="B T D",
    formula=r"x",
    why="The running sum of the embedding and of everything that earlier layers added. "
    "This layer reads it twice and adds to it twice.",
    look="Look for single channels that stand out in every row: they carry the stream's outliers.",
    reads=(EMBED,),
    kind="residual",
    module="",
    alias="hook_resid_pre",
)
ATTN_NORM = Step(
    key="attn_norm",
    title="normalised for attention",
    shape="B T D",
    formula=r"\hat x = \dfrac{x}{\sqrt{\frac1D\sum_{d=1}^{D} x_d^2+\varepsilon}}\odot w",
    why="Every token is rescaled to root mean square 1, then each channel is multiplied by a learnt weight. "
    "Attention reads this copy; the stream itself stays as it was.",
    look="Rows now have comparable sizes; the columns show which channels the norm's weight favours.",
    reads=(RESID_IN,),
    kind="norm",
    module="input_layernorm",
    weights=("input_layernorm.weight",),
    code=("model.RMSNorm.forward",),
    alias="ln1.hook_normalized",
)
Q = Step(
    key="q",
    title="queries",
    shape="B T Hq Dh",
    formula=r"q = \hat x\,W_Q^\top",
    why="What each token is looking for, one vector of width Dh per query head. Position is not in it yet.",
    look="Each row is what one token asks for in this head. Equal tokens still ask alike.",
    reads=(ATTN_NORM,),
    kind="query",
    module="self_attn.q_proj",
    weights=("self_attn.q_proj.weight", "self_attn.q_proj.bias"),
    alias="attn.hook_q",
)
K = Step(
    key="k",
    title="keys",
    shape="B T Hkv Dh",
    formula=r"k = \hat x\,W_K^\top",
    why="What each token offers to be found by. There are fewer key heads than query heads when heads are shared.",
    look="Each row is what one token offers. Compare rows of equal tokens: no position is in them yet.",
    reads=(ATTN_NORM,),
    kind="key",
    module="self_attn.k_proj",
    weights=("self_attn.k_proj.weight", "self_attn.k_proj.bias"),
    alias="attn.hook_k",
)
V = Step(
    key="v",
    title="values",
    shape="B T Hkv Dh",
    formula=r"v = \hat x\,W_V^\top",
    why="What each token hands over when it is looked at. "
    "Values are never rotated: position decides who is read, not what is read.",
    look="Each row is what a token would hand over if this head looked at it.",
    reads=(ATTN_NORM,),
    kind="value",
    module="self_attn.v_proj",
    weights=("self_attn.v_proj.weight", "self_attn.v_proj.bias"),
    alias="attn.hook_v",
)
Q_NORM = Step(
    key="q_norm",
    title="normalised queries",
    shape="B T Hq Dh",
    formula=r"\hat q = \mathrm{RMSNorm}(q)",
    why="Each query vector is brought to root mean square 1 and reweighted before it is rotated. "
    "That keeps the scores from growing during training; Qwen3 does it, Llama does not.",
    look="The rows of q at one common size.",
    reads=(Q,),
    kind="query",
    module="self_attn.q_norm",
    weights=("self_attn.q_norm.weight",),
    code=("model.RMSNorm.forward",),
    family="qk_norm",
    alias="attn.q_norm.hook_normalized",
)
K_NORM = Step(
    key="k_norm",
    title="normalised keys",
    shape="B T Hkv Dh",
    formula=r"\hat k = \mathrm{RMSNorm}(k)",
    why="Each key vector is brought to root mean square 1 and reweighted before it is rotated. "
    "It is the counterpart of the normalised queries.",
    look="The rows of k at one common size.",
    reads=(K,),
    kind="key",
    module="self_attn.k_norm",
    weights=("self_attn.k_norm.weight",),
    code=("model.RMSNorm.forward",),
    family="qk_norm",
    alias="attn.k_norm.hook_normalized",
)
Q_ROT = Step(
    key="q_rot",
    title="queries turned by their position",
    shape="B T Hq Dh",
    formula=r"\begin{pmatrix}q'_a\\q'_b\end{pmatrix}=\begin{pmatrix}\cos m\theta_r&-\sin m\theta_r\\"
    r"\sin m\theta_r&\cos m\theta_r\end{pmatrix}\begin{pmatrix}q_a\\q_b\end{pmatrix}",
    why="Each pair of dimensions is turned by an angle that grows with the position m. "
    "Lengths stay the same, and position 0 is not turned at all.",
    look="Row 0 is as it was. Each row below is turned further: the fastest pair by 1 radian a row, "
    "the slowest hardly at all.",
    reads=(Q_NORM,),
    kind="query",
    module="self_attn",
    code=("rope.rotate",),
    alias="attn.hook_rot_q",
)
K_ROT = Step(
    key="k_rot",
    title="keys turned by their position",
    shape="B T Hkv Dh",
    formula=r"\begin{pmatrix}k'_a\\k'_b\end{pmatrix}=\begin{pmatrix}\cos n\theta_r&-\sin n\theta_r\\"
    r"\sin n\theta_r&\cos n\theta_r\end{pmatrix}\begin{pmatrix}k_a\\k_b\end{pmatrix}",
    why="Keys turn by the same rule, at their own position n. "
    "In a product of query and key only the difference m − n is left.",
    look="Row 0 is as it was. Equal tokens now differ by where they stand.",
    reads=(K_NORM,),
    kind="key",
    module="self_attn",
    code=("rope.rotate",),
    alias="attn.hook_rot_k",
)
K_SHARED = Step(
    key="k_shared",
    title="keys, one per query head",
    shape="B S Hq Dh",
    formula=r"k^{(h)} = k'^{(\lfloor h/g\rfloor)},\quad g = H_q/H_{kv}",
    why="Query head h reads key head h // g: neighbouring query heads form a group that shares one key head. "
    "Nothing new is computed; each key head is shown to its whole group.",
    look="Move the query head within its group: the map stays, because the key head is shared.",
    reads=(K_ROT,),
    kind="key",
    module="self_attn",
    code=("model.share_heads",),
    derived=True,
    alias="attn.hook_k_shared",
)
V_SHARED = Step(
    key="v_shared",
    title="values, one per query head",
    shape="B S Hq Dh",
    formula=r"v^{(h)} = v^{(\lfloor h/g\rfloor)}",
    why="Values are shared within the same groups as keys. "
    "Only the small unshared version has to be kept in the KV cache.",
    look="Move the query head within its group: the map stays, because the value head is shared.",
    reads=(V,),
    kind="value",
    module="self_attn",
    code=("model.share_heads",),
    derived=True,
    alias="attn.hook_v_shared",
)
SCORES = Step(
    key="scores",
    title="attention scores",
    shape="B Hq T S",
    formula=r"s_{mn} = \dfrac{q'_m\cdot k_n}{\sqrt{D_h}}",
    why="How well the query at position m fits the key at position n. "
    "The division by √Dh keeps their spread near 1 whatever the head width.",
    look="The strongest cell of a row is where that query fits best, before anything is hidden.",
    reads=(Q_ROT, K_SHARED),
    kind="attention",
    module="self_attn",
    causal=True,
    alias="attn.hook_attn_scores_unmasked",
)
MASKED = Step(
    key="masked",
    title="scores with the future hidden",
    shape="B Hq T S",
    formula=r"\tilde s_{mn} = \begin{cases}s_{mn}&n\le m\\-\infty&n>m\end{cases}",
    why="A token may look at itself and at what came before; later positions get minus infinity. "
    "Without this the model could read the answer it has to predict.",
    look="Above the diagonal lies the future: blank, not zero. Below, all is open, or the band of a sliding window.",
    reads=(SCORES,),
    kind="attention",
    module="self_attn",
    code=("model.visible_cells",),
    derived=True,
    causal=True,
    alias="attn.hook_attn_scores",
)
WEIGHTS = Step(
    key="weights",
    title="attention weights",
    shape="B Hq T S",
    formula=r"a_{mn} = \dfrac{e^{\tilde s_{mn}}}{\sum_{n'} e^{\tilde s_{mn'}}}",
    why="Softmax turns each row of scores into shares that sum to 1. A hidden position has a share of exactly 0.",
    look="Each row sums to 1. Look for a full first column: a place to rest when a head has nothing to say.",
    reads=(MASKED,),
    kind="attention",
    module="self_attn",
    causal=True,
    alias="attn.hook_pattern",
)
HEAD_OUT = Step(
    key="head_out",
    title="what each head carries away",
    shape="B T Hq Dh",
    formula=r"z_m^{(h)} = \sum_{n\le m} a^{(h)}_{mn}\, v_n^{(h)}",
    why="Each head mixes the values by its weights. "
    "Until here the heads have not met each other: this is where one can be switched off.",
    look="Each row is a mixture of the rows of v, by the weights of this head.",
    reads=(WEIGHTS, V_SHARED),
    kind="value",
    module="self_attn",
    alias="attn.hook_z",
)
ATTN_OUT = Step(
    key="attn_out",
    title="what attention adds to the stream",
    shape="B T D",
    formula=r"o = \mathrm{concat}_h(z^{(h)})\,W_O^\top",
    why="All heads are laid side by side and mixed back to the width of the stream. "
    "This is the first of the layer's two additions.",
    look="What all heads together add to each token: compare its size with the stream's.",
    reads=(HEAD_OUT,),
    kind="attention",
    module="self_attn.o_proj",
    weights=("self_attn.o_proj.weight", "self_attn.o_proj.bias"),
    alias="hook_attn_out",
)
RESID_MID = Step(
    key="resid_mid",
    title="stream after attention",
    shape="B T D",
    formula=r"x \leftarrow x + o",
    why="The stream plus what attention found. The old content is still there: a layer adds, it does not replace.",
    look="The stream with attention's answer added.",
    reads=(RESID_IN, ATTN_OUT),
    kind="residual",
    module="",
    alias="hook_resid_mid",
)
MLP_NORM = Step(
    key="mlp_norm",
    title="normalised for the MLP",
    shape="B T D",
    formula=r"\hat x = \dfrac{x}{\sqrt{\frac1D\sum_{d=1}^{D} x_d^2+\varepsilon}}\odot w",
    why="The same rescaling once more, with its own learnt weight. "
    "The MLP reads this copy and sees one token at a time.",
    look="Rows at one common size again, ready for the MLP.",
    reads=(RESID_MID,),
    kind="norm",
    module="post_attention_layernorm",
    weights=("post_attention_layernorm.weight",),
    code=("model.RMSNorm.forward",),
    alias="ln2.hook_normalized",
)
GATE = Step(
    key="gate",
    title="gate, before its curve",
    shape="B T F",
    formula=r"g = \hat x\,W_{gate}^\top",
    why="For each of the F neurons: how much should it be open for this token? "
    "The answer is still a plain number of either sign.",
    look="Most gates are below zero: those neurons will be nearly shut.",
    reads=(MLP_NORM,),
    kind="mlp",
    module="mlp.gate_proj",
    weights=("mlp.gate_proj.weight", "mlp.gate_proj.bias"),
    alias="mlp.hook_pre",
)
UP = Step(
    key="up",
    title="up projection",
    shape="B T F",
    formula=r"u = \hat x\,W_{up}^\top",
    why="The content that the gate will let through or hold back. "
    "It is read from the same normalised stream as the gate.",
    look="The content waiting behind the gates, of either sign.",
    reads=(MLP_NORM,),
    kind="mlp",
    module="mlp.up_proj",
    weights=("mlp.up_proj.weight", "mlp.up_proj.bias"),
    alias="mlp.hook_pre_linear",
)
ACT = Step(
    key="act",
    title="gate after its curve",
    shape="B T F",
    formula=r"\mathrm{SiLU}(g) = g\cdot\sigma(g)",
    why="Large positive gates pass almost unchanged, large negative ones are nearly shut. "
    "Its lowest value is −0.278, so a gate can also turn a little negative.",
    look="What was far below zero is now nearly 0; the coloured cells are open gates.",
    reads=(GATE,),
    kind="mlp",
    module="mlp.act_fn",
    code=("model.ACTIVATIONS",),
    alias="mlp.hook_act",
)
GATED = Step(
    key="gated",
    title="gate times up",
    shape="B T F",
    formula=r"h = \mathrm{SiLU}(g)\odot u",
    why="Neuron by neuron, content times gate. "
    "Most products are near zero: only a few neurons speak for a given token.",
    look="A few neurons speak for each token; most columns stay quiet.",
    reads=(ACT, UP),
    kind="mlp",
    module="mlp",
    alias="mlp.hook_post",
)
MLP_OUT = Step(
    key="mlp_out",
    title="what the MLP adds to the stream",
    shape="B T D",
    formula=r"y = h\,W_{down}^\top",
    why="Each open neuron writes its own direction into the stream, scaled by its product. "
    "This is the second of the layer's two additions.",
    look="What the MLP adds to each token: compare its size with the stream's.",
    reads=(GATED,),
    kind="mlp",
    module="mlp.down_proj",
    weights=("mlp.down_proj.weight", "mlp.down_proj.bias"),
    alias="hook_mlp_out",
)
RESID_OUT = Step(
    key="resid_out",
    title="residual stream leaving the layer",
    shape="B T D",
    formula=r"x \leftarrow x + y",
    why="The stream after both additions. The next layer, or the final norm, starts from here.",
    look="The stream as the next layer finds it. Rows that grow over the layers carry the outliers.",
    reads=(RESID_MID, MLP_OUT),
    kind="residual",
    module="",
    alias="hook_resid_post",
)
FINAL_NORM = Step(
    key="final_norm",
    title="final norm",
    shape="B T D",
    formula=r"\hat x = \dfrac{x}{\sqrt{\frac1D\sum_{d=1}^{D} x_d^2+\varepsilon}}\odot w",
    why="The finished stream is rescaled one last time. "
    "After it, only direction and the learnt weight decide which token wins.",
    look="The last rescaling: very large rows come back to the size of the others.",
    reads=(RESID_OUT,),
    kind="norm",
    scope="model",
    module="model.norm",
    weights=("model.norm.weight",),
    code=("model.RMSNorm.forward",),
    alias="ln_final.hook_normalized",
)
LOGITS = Step(
    key="logits",
    title="logits",
    shape="B T V",
    formula=r"\ell = \hat x\,W_{head}^\top",
    why="One number per word of the vocabulary: how well does it fit as the next token? "
    "Softmax of a row gives the probabilities.",
    look="One row per position, one column per word of the vocabulary; the bars below name the highest of a row.",
    reads=(FINAL_NORM,),
    kind="head",
    scope="model",
    module="lm_head",
    weights=("lm_head.weight",),
    alias="logits",
)

STEPS: tuple[Step, ...] = (
    EMBED,
    RESID_IN,
    ATTN_NORM,
    Q,
    K,
    V,
    Q_NORM,
    K_NORM,
    Q_ROT,
    K_ROT,
    K_SHARED,
    V_SHARED,
    SCORES,
    MASKED,
    WEIGHTS,
    HEAD_OUT,
    ATTN_OUT,
    RESID_MID,
    MLP_NORM,
    GATE,
    UP,
    ACT,
    GATED,
    MLP_OUT,
    RESID_OUT,
    FINAL_NORM,
    LOGITS,
)
"""All steps in execution order; those of scope "layer" repeat in every layer."""

LAYER_STEPS = tuple(step for step in STEPS if step.scope == "layer")
_BY_KEY = {step.key: step for step in STEPS}


def find(key: str) -> Step:
    """The step with this key; AddressError names the nearest ones when there is none."""
    if key in _BY_KEY:
        return _BY_KEY[key]
    raise AddressError(f"There is no step called {key!r}. The steps are {', '.join(_BY_KEY)}.")


@dataclass(frozen=True, slots=True)
class At:
    """The address of one captured tensor: a layer (None for the model's own steps) and a step.

    `str(At(3, Q_ROT))` is "3.q_rot", `str(At(None, LOGITS))` is "logits"; `At.parse` reads both.
    """

    layer: int | None
    step: Step

    def __post_init__(self) -> None:
        if (self.layer is None) != (self.step.scope == "model"):
            right = f"0.{self.step.key}" if self.step.scope == "layer" else self.step.key
            raise AddressError(
                f"{self.step.key} belongs to {'a layer' if self.step.scope == 'layer' else 'the model itself'}: "
                f"its address reads {right!r}."
            )

    def __hash__(self) -> int:
        return id(self.step) ^ (-1 if self.layer is None else self.layer)  # a run looks up thousands

    def __str__(self) -> str:
        return self.step.key if self.layer is None else f"{self.layer}.{self.step.key}"

    def __repr__(self) -> str:
        return f"At({self})"

    @staticmethod
    def parse(text: str) -> At:
        """Read "3.q_rot" or "logits"; anything else is an AddressError that shows the form."""
        match = re.fullmatch(r"(?:(\d{1,6})\.)?([a-z_]{1,32})", text, re.ASCII)
        if match is None:
            raise AddressError(
                f"{text[:60]!r} is not an address. An address is a layer and a step, such as 3.q_rot, "
                "or a step of the model itself: embed, final_norm, logits."
            )
        return At(None if match[1] is None else int(match[1]), find(match[2]))


@dataclass(frozen=True)
class Walk:
    """The steps of one model in execution order, and who reads whom.

    layers: number of decoder layers; families: the config flags that are on ("qk_norm").
    """

    layers: int
    families: frozenset[str] = frozenset()
    order: tuple[At, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = [s for s in LAYER_STEPS if self.has(s)]
        order = [At(None, EMBED)]
        order += [At(layer, step) for layer in range(self.layers) for step in own]
        order += [At(None, FINAL_NORM), At(None, LOGITS)]
        object.__setattr__(self, "order", tuple(order))
        object.__setattr__(self, "_index", {at: i for i, at in enumerate(order)})

    def has(self, step: Step) -> bool:
        """Whether this model computes the step at all."""
        return step.family is None or step.family in self.families

    @property
    def steps(self) -> tuple[Step, ...]:
        """The registry's steps that this model has, in order."""
        return tuple(step for step in STEPS if self.has(step))

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[At]:
        return iter(self.order)

    def __contains__(self, at: object) -> bool:
        return at in self._index

    def index(self, at: At) -> int:
        """Place of `at` in execution order, from 0; AddressError when this model has no such step."""
        if not isinstance(at, At):
            raise AddressError(f"{at!r:.60} is not an address. Give At(3, steps.Q_ROT) or its text, 3.q_rot.")
        if at in self._index:
            return self._index[at]
        if not self.has(at.step):
            raise AddressError(f"This model has no step {at.step.key}: its config has no {at.step.family}.")
        raise AddressError(f"There is no layer {at.layer}: this model has {self.layers}, 0 to {self.layers - 1}.")

    def parse(self, text: str) -> At:
        """`At.parse`, and the address exists in this model."""
        at = At.parse(text)
        self.index(at)
        return at

    def sources(self, at: At) -> tuple[At, ...]:
        """The addresses that `at` is computed from; an absent step stands for what it reads itself."""
        self.index(at)
        if at.step is RESID_IN:
            return (At(None, EMBED),) if at.layer == 0 else (At(at.layer - 1, RESID_OUT),)
        found: list[At] = []
        for step in at.step.reads:
            while not self.has(step):
                (step,) = step.reads
            layer = None if step.scope == "model" else (self.layers - 1 if at.layer is None else at.layer)
            found.append(At(layer, step))
        return tuple(found)

    def readers(self, at: At) -> tuple[At, ...]:
        """The addresses that read `at` directly, in execution order."""
        self.index(at)
        return tuple(other for other in self.order if at in self.sources(other))
