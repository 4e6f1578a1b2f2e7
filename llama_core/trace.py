"""Trace: the finished, read-only record of one forward pass. numpy out, no torch.

It holds the statistics of every address and hands out tensors through a mapping, so it need not
know whether they are held, rebuilt, read from a file or made by another library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .config import LlamaConfig
from .errors import AddressError, NotComputedError
from .ranking import largest
from .steps import At, Walk

if TYPE_CHECKING:
    import pandas as pd

    from .edits import Edit
    from .watch import Stopped


class StepStats(NamedTuple):
    """One row of `trace.stats`. Numbers are over finite cells that a query may see.

    count: those cells; std: population standard deviation, 0 for one cell; rms: root mean square;
    zeros: share of exact zeros among `count`; nan, inf, masked: cells left out, by reason.
    With count 0 the six measures are NaN. dtype is what the model computed in.
    """

    shape: tuple[int, ...]
    dtype: str
    count: int
    mean: float
    std: float
    rms: float
    min: float
    max: float
    zeros: float
    nan: int = 0
    inf: int = 0
    masked: int = 0


class Statistics(Mapping[At, StepStats]):
    """Statistics of all that a run computed, in execution order; some are only made when they are asked for.

    there: those that the run took. later: makes the others; whoever asks first waits for them.
    """

    def __init__(
        self, walk: Walk, computed: int, there: Mapping[At, StepStats], later: Callable[[At], StepStats] | None = None
    ) -> None:
        self._walk, self._computed, self._there, self._later = walk, computed, dict(there), later

    def __getitem__(self, at: At) -> StepStats:
        found = self._there.get(at)
        if found is None:
            if at not in self or self._later is None:
                raise KeyError(at)
            found = self._there.setdefault(at, self._later(at))
        return found

    def __contains__(self, at: object) -> bool:
        return isinstance(at, At) and at in self._walk and self._walk.index(at) < self._computed

    def __iter__(self) -> Iterator[At]:
        return iter(self._walk.order[: self._computed])

    def __len__(self) -> int:
        return self._computed

    def knows(self, at: At) -> bool:
        """Whether it is there."""
        return at in self._there

    def known(self) -> dict[At, StepStats]:
        """Those that are there, in no particular order."""
        return dict(self._there)


@dataclass(frozen=True)
class Token:
    """One position of the prompt: its id, the text a person reads, and whether it is a control token.

    pad: it is none, and only fills a row of a batch up to the length of the longest.
    """

    id: int
    text: str
    special: bool = False
    pad: bool = False


class Parameters(Mapping[str, np.ndarray]):
    """A model's weights by Hugging Face name: numpy float32 that refuses writes. A tied head is not listed twice.

    Made from arrays; empty for a trace whose weights nobody handed over.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._arrays = dict(arrays or {})

    def __getitem__(self, name: str) -> np.ndarray:
        array = np.asarray(self._arrays[name], dtype=np.float32).view()
        array.flags.writeable = False
        return array

    def row(self, name: str, i: int) -> np.ndarray:
        """One row of a matrix, without converting the others. [columns] float32."""
        return self[name][i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


_COUNTS = ("count", "nan", "inf", "masked")

SHARED = 1 << 22
"""Most cells of a mask that is kept for the next who asks for it."""
Mask = TypeVar("Mask")


@dataclass(frozen=True, eq=False)
class Trace:
    """What one forward pass computed.

    `trace["3.q_rot"]` or `trace[At(3, steps.Q_ROT)]`: numpy float32, all axes of `step.shape`,
    writes refused; what is not held, because the run was long, is made again then, the same. `nbytes`: of what is held.
    `trace.stats`: a DataFrame, one row per computed address in execution order; empty where not computed yet.
    `until`: where the run stopped, None when it went to the end; asking for more raises NotComputedError.
    `fused`: the layers whose attention ran fused, so that scores, masked and weights were never tensors of that pass.
    Asked for, they are made from its q_rot and k_rot by the explicit path, and so are their statistics.
    `edits`: what was changed, each at its address; the tensor that is held there is the changed one.
    `stopped`: the watch that ended the run at `until`, why and at which cells; None when none did.
    `parameters`: the weights that computed it, shared with the model, so that a cell can be explained.
    """

    config: LlamaConfig
    tokens: tuple[Token, ...]
    walk: Walk
    step_stats: Mapping[At, StepStats]
    tensors: Mapping[At, np.ndarray] = field(repr=False)
    dims: Mapping[str, int]
    until: At | None = None
    device: str = "cpu"
    dtype: str = "float32"
    fused: frozenset[int] = frozenset()
    seconds: float = 0.0
    nbytes: int = 0
    parameters: Parameters = field(default_factory=Parameters, repr=False)
    edits: tuple[Edit, ...] = ()
    stopped: Stopped | None = None

    def __getitem__(self, at: At | str) -> np.ndarray:
        return self.tensors[self.resolve(at)]

    def head(self, at: At | str, head: int) -> np.ndarray:
        """One head's map of scores, masked or weights: `self[at][0, head]`, and the others need not be there. [T S].

        AddressError for a step without such maps, and for a head that the model lacks.
        """
        at = self.resolve(at)
        if not at.step.causal:
            raise AddressError(f"{at} has no map of queries and keys: ask for scores, masked or weights of a layer.")
        if not 0 <= head < self.dims["Hq"]:
            raise AddressError(f"There is no query head {head}: this model has {self.dims['Hq']}, from 0.")
        alone = getattr(self.tensors, "head", None)  # tensors that need not all be there
        return self[at][0, head] if alone is None else alone(at, head)

    def holds(self, at: At | str) -> bool:
        """Whether the tensor is there; another one of this run takes a moment to make."""
        return self.resolve(at) in self.tensors

    @cached_property
    def whole(self) -> bool:
        """Whether all is there that can be: derived steps are views, and a fused layer has no maps to hold."""
        return all(
            at in self.tensors or at.step.derived or (at.step.causal and at.layer in self.fused)
            for at in self.walk.order[: self.computed]
        )

    def stat(self, at: At | str) -> StepStats:
        """The statistics of one address."""
        return self.step_stats[self.resolve(at)]

    @property
    def path(self) -> str:
        """Which path attention took: "explicit", "fused", or "fused but for layers 3, 5"."""
        if not self.fused:
            return "explicit"
        others = [str(i) for i in range(self.config.num_hidden_layers) if i not in self.fused]
        return f"fused but for layer{'s' * (len(others) > 1)} {', '.join(others)}" if others else "fused"

    def path_of(self, at: At | str) -> str:
        """Which path made the tensor at an address: "explicit" or "fused"."""
        at = self.resolve(at)
        return "fused" if at.layer in self.fused and not at.step.causal else "explicit"

    def measured(self, at: At | str) -> bool:
        """Whether the statistics of an address are there; those of a fused layer's maps are made when asked for."""
        at = self.resolve(at)
        return not isinstance(self.step_stats, Statistics) or self.step_stats.knows(at)

    @property
    def known(self) -> Mapping[At, StepStats]:
        """The statistics that are there, in no particular order; the others are made when they are asked for."""
        return self.step_stats.known() if isinstance(self.step_stats, Statistics) else self.step_stats

    def resolve(self, at: At | str) -> At:
        """The address, checked: AddressError when the model has no such step, NotComputedError when
        the run stopped before it."""
        at = self.walk.parse(at) if isinstance(at, str) else at
        place = self.walk.index(at)
        if at not in self.step_stats:
            reached = f"{describe(self.until)}, step {self.walk.index(self.until) + 1} of {len(self.walk)}"
            if self.stopped is None:
                way = "Run again without until, or with a later one."
            else:
                way = f'The watch "{self.stopped.watch}" ended it: {self.stopped.text} Run on with start=trace.'
            raise NotComputedError(
                f"{at} was not computed: the run stopped at {reached}; {at} is step {place + 1}. {way}"
            )
        return at

    def __contains__(self, at: object) -> bool:
        return at in self.step_stats

    def sizes(self) -> Trace:
        """The same trace without a tensor, a weight or an edit: addresses, statistics and sizes."""
        stats = Statistics(self.walk, self.computed, self.known)
        return replace(self, step_stats=stats, tensors={}, parameters=Parameters(), edits=(), nbytes=0)

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return tuple(token.id for token in self.tokens)

    @property
    def computed(self) -> int:
        """How many addresses, from the first, were computed."""
        return len(self.step_stats)

    @property
    def past(self) -> int:
        """Cached positions before this pass."""
        return self.dims["S"] - self.dims["T"]

    def visible(self, at: At | str | int | None = None) -> np.ndarray:
        """Which keys each query may see in a layer. [T S] bool.

        at: an address in that layer, or its number. Without one, the answer that all layers share; where a
        sliding window makes them differ, an AddressError asks for the layer.
        """
        T, S = self.dims["T"], self.dims["S"]
        if at is None:
            windows = {self.config.window(layer, S) for layer in range(self.config.num_hidden_layers)}
            if len(windows) > 1:
                raise AddressError(
                    f"Some layers of this model see the last {self.config.sliding_window} keys only, others all {S}: "
                    "say which layer is meant, for example visible(0)."
                )
            return visible_keys(T, S, windows.pop())
        if not isinstance(at, int):
            at = self.resolve(at).layer
        return visible_keys(T, S, None if at is None else self.config.window(at, S))

    def row(self, b: int) -> Trace:
        """The trace of one prompt of a batch, without pads; a single prompt is its own row 0. AddressError."""
        if b != 0:
            raise AddressError(f"There is no row {b}: this run has 1 prompt, row 0.")
        return self

    def first_not_finite(self) -> At | None:
        """The earliest address with NaN or infinity among its cells; its `stat` counts them. None: all are finite.

        Of a fused layer the maps come before head_out, and are looked at where that is not finite.
        """
        known = self.known
        for at in self.walk.order[: self.computed]:
            if at in known and (known[at].nan or known[at].inf):
                way = (At(at.layer, step) for step in self.walk.steps if step.causal) if at.layer in self.fused else ()
                maps = [each for each in way if self.walk.index(each) < self.walk.index(at)]
                return next((each for each in maps if self.stat(each).nan or self.stat(each).inf), at)
        return None

    @property
    def stats(self) -> pd.DataFrame:
        """One row per computed address, indexed by its text, in execution order.

        Of what is not computed yet, the maps of a fused layer, a row has its shape and type alone.
        """
        import pandas as pd

        known, order = self.known, self.walk.order[: self.computed]
        rows = [known[at]._asdict() if at in known else self._unknown(at) for at in order]
        frame = pd.DataFrame(rows, columns=StepStats._fields, index=pd.Index(map(str, order), name="at"))
        return frame if len(known) >= len(order) else frame.astype(dict.fromkeys(_COUNTS, "Int64"))

    def _unknown(self, at: At) -> dict[str, object]:
        return {"shape": tuple(self.dims[axis] for axis in at.step.axes), "dtype": self.dtype}

    def next_tokens(self, position: int = -1, top: int = 10) -> list[tuple[int, float]]:
        """The `top` most probable next tokens at a position: (id, probability), softmax in float64."""
        logits = self["logits"][0, position].astype(np.float64)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        return [(int(i), float(shares[i])) for i in largest(shares, top)]


def shared(mask: Callable[..., Mask]) -> Callable[..., Mask]:
    """The last two masks that `mask` made, (T, S, …) -> [T S], for all who ask again; large ones are made each time.

    What it gives must not be written to.
    """
    kept = lru_cache(maxsize=2)(mask)

    @wraps(mask)
    def ask(T: int, S: int, *more: Any, **named: Any) -> Mask:
        return (kept if T * S <= SHARED else mask)(T, S, *more, **named)

    return ask


@shared
def visible_keys(T: int, S: int, window: int | None = None) -> np.ndarray:
    """Which of S keys each of the last T positions may see: itself, what came before, at most `window`. [T S] bool."""
    seen = np.tri(T, S, S - T, dtype=bool)
    seen = seen if window is None else seen & ~np.tri(T, S, S - T - window, dtype=bool)
    seen.flags.writeable = False
    return seen


def describe(at: At) -> str:
    """An address in words: "layer 3 q_rot"; the model's own steps by their key alone."""
    return at.step.key if at.layer is None else f"layer {at.layer} {at.step.key}"


def labels(tokens: Sequence[Token]) -> list[str]:
    """The printable pieces, one per position."""
    return [token.text for token in tokens]
