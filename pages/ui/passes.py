"""The forward passes that a page can look into: the prompt's, and one for each generated token that was read again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llama_core.settings import NEW_TOKENS
from llama_core.trace import Token, Trace

if TYPE_CHECKING:
    from llama_core.model import Llama

MOST_NEW = NEW_TOKENS.value
"""Tokens that a page may ask for."""
Tell = Callable[[int], None]


def _nobody(_there: int) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Passes:
    """The prompt's pass and those after it.

    later: the passes of the generated tokens, each of one token, on the cache of those before it; the last generated
    token was never read. tokens: all of them as a person reads them, the prompt's first. ended: why no more were
    generated, one of `generation.End`'s kinds; "" when none were asked for. before: the prompt's pass without its
    edits; None when there are none.
    """

    prompt: Trace
    tokens: tuple[Token, ...]
    later: tuple[Trace, ...] = ()
    ended: str = ""
    before: Trace | None = None

    @property
    def read(self) -> int:
        """How many tokens, from the first, went through the model: the positions that can be chosen."""
        return self.prompt.dims["T"] + len(self.later)

    @property
    def made(self) -> tuple[Token, ...]:
        """The generated tokens."""
        return self.tokens[self.prompt.dims["T"] :]

    def sizes(self) -> Passes:
        """The same passes without a tensor."""
        return replace(self, prompt=self.prompt.sizes(), later=tuple(each.sizes() for each in self.later), before=None)

    @property
    def nbytes(self) -> int:
        """Bytes that the passes hold."""
        return sum(trace.nbytes for trace in self)

    def __iter__(self) -> Iterator[Trace]:
        yield self.prompt
        yield from self.later

    def at(self, position: int) -> tuple[Trace, int]:
        """The pass in which the token at a position was the query, and its row there."""
        first = self.prompt.dims["T"]
        return (self.prompt, position) if position < first else (self.later[position - first], 0)


class Growth:
    """A generation as far as it is: it grows when more is asked for, and what is there is never made twice.

    Whoever asks for more while another waits for it, waits too. A step that is ended half way can be asked for again.
    All its traces together hold what one may; the passes beyond that keep their stream, and are made again when looked
    at.
    """

    def __init__(self, model: Llama, ids: list[int], sampling: Mapping[str, Any], path: str = "auto") -> None:
        from llama_core import generate

        self._model = model
        self._pairs: list[tuple[int, Trace]] = []
        self._lock = threading.Lock()
        self._tell: Tell = _nobody
        self._source = generate(model, ids, max_new_tokens=MOST_NEW, progress=self._progress, path=path, **sampling)

    @property
    def nbytes(self) -> int:
        """Bytes that its traces hold, and the keys and values that they share."""
        return sum(trace.nbytes for _, trace in self._pairs) + self._source.cache.nbytes()

    @property
    def there(self) -> int:
        """How many tokens have been written."""
        return len(self._pairs)

    def has(self, new: int) -> bool:
        """Whether the first `new` tokens are there, or as many as there will be."""
        return self.there >= new or self._source.end is not None

    @property
    def ids_only(self) -> bool:
        """Whether the model has no tokenizer, so that its ids are all there is to read."""
        return self._model.tokenizer is None

    @cached_property
    def prompt(self) -> tuple[Token, ...]:
        """The tokens that it continues."""
        from llama_core.runner import as_tokens

        return as_tokens(self._model, self._source.prompt)

    def passes(self, new: int, tell: Tell = _nobody) -> Passes:
        """The passes of the first `new` tokens; fewer where the generation ended, or the context.

        tell: how many tokens are there, after each layer and each token; what it raises ends the step.
        """
        from llama_core import runner

        if self.there >= new:  # whoever only reads does not wait for who writes on
            return self._first(new)
        with self._lock:
            self._tell = tell
            while len(self._pairs) < new and self._source.end is None:
                self._source.hold = max(0, runner.HOLD_LIMIT - self.nbytes)
                self._pairs.append(next(self._source))
                if self._source.path == "auto":
                    self._source.path = "explicit"  # of one token; what is left to hold must decide no number
                tell(len(self._pairs))
        return self._first(min(new, len(self._pairs)))

    def text(self) -> str:
        """What has been written so far, whole characters only."""
        from llama_core.tokenizer import TextStream

        if self.ids_only:
            return " ".join(str(token) for token, _ in self._pairs)
        stream = TextStream(self._model.tokenizer, self._source.prompt)
        return "".join(stream.add(token) for token, _ in self._pairs)

    def _first(self, new: int) -> Passes:
        from llama_core.runner import as_tokens

        made, traces = zip(*self._pairs[:new], strict=True)
        tokens = as_tokens(self._model, [*self._source.prompt, *made])
        whole = new == len(self._pairs) and self._source.end is not None
        return Passes(traces[0], tokens, traces[1:], self._source.end.kind if whole else "length")

    def _progress(self, _share: float) -> None:
        self._tell(len(self._pairs))
