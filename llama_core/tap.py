"""A tap is an identity with a name. Remove every tap and the model computes the same sentence.

Each tap gets one forward hook, when the model is built, and keeps it. The hook asks a ContextVar
for the recorder of *this* call; without one it does nothing. So nothing of a run lives on the
shared model: no lock is needed, and a run that raises leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from .steps import At, Step

Recorder = Callable[[At, Tensor], Tensor | None]
"""Called once per tap and forward; what it returns, if anything, replaces the tensor."""

_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Every tap that this thread or task passes inside the block calls `recorder`."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def _tell_recorder(tap: Tap, _inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
    recorder = _recorder.get()
    return None if recorder is None else recorder(tap.at, output)


class Tap(nn.Module):
    """Returns its input. `at` says which step of which layer that is."""

    def __init__(self, at: At) -> None:
        super().__init__()
        self.at = at
        self.register_forward_hook(_tell_recorder)

    def forward(self, x: Tensor) -> Tensor:
        return x

    def __call__(self, x: Tensor) -> Tensor:
        # Where the one hook is its own, it is called here: nn.Module's dispatch costs more than small ops between taps.
        if len(self._forward_hooks) == 1 and not self._forward_pre_hooks:
            found = _tell_recorder(self, (x,), x)
            return x if found is None else found
        return super().__call__(x)


class Taps(nn.Module):
    """The taps of one module, by step key: `tap.scores(x)`."""

    def __init__(self, layer: int | None, *steps: Step) -> None:
        super().__init__()
        for step in steps:
            tap = Tap(At(layer, step))
            self.add_module(step.key, tap)
            self.__dict__[step.key] = tap  # found at once, without nn.Module's slower lookup
