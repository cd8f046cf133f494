"""What only the host has while a step is recorded: values of tensors, loggers, metrics so far.

loss.item(), x.tolist(), x.numpy()   computed after the run; may be logged, kept, returned
self.logger.experiment.add_image()   called after the run, with the values of the run
trainer.callback_metrics             read now; other values, another program
real tensors that the step uses      noted: they are no inputs unless they turn out to change
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

from pantile.capture.tracked import Facts
from pantile.lightning.tape import Deferred, Tape

_VALUES: tuple[Any, ...] = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy)
_PLAIN = (int, float, bool, str, bytes, type(None))
METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


class HostValues(TorchFunctionMode):
    """Puts off what asks for values; notes the real tensors that functions of torch are given."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self.used: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _VALUES and isinstance(args[0], FakeTensor):
            return Deferred(self._tape, func, (args[0].detach(), *args[1:]), kwargs)
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor):
                self.used[id(leaf)] = leaf
        return func(*args, **kwargs)


class HostObject:
    """Stands for an object whose methods are called after each run: a logger, what it holds."""

    def __init__(self, tape: Tape, real: Any) -> None:
        self.__dict__.update(_tape=tape, _real=real)

    @property
    def __class__(self) -> Any:
        return type(self._real)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"a logger is not turned into a {kind.__name__}")

    def __getattr__(self, name: str) -> Any:
        tape, value = self._tape, getattr(self._real, name)
        if type(value) in _PLAIN:
            return value
        if not callable(value):
            return HostObject(tape, value)
        return lambda *args, **kwargs: Deferred(tape, value, args, kwargs)


def host_object(tape: Tape, real: Any) -> Any:
    """A stand-in, for what is not None; a list of them for a list."""
    if isinstance(real, list):
        return [host_object(tape, item) for item in real]
    return None if real is None else HostObject(tape, real)


def watched_metrics(facts: Facts, look: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Metrics of the Trainer; the recording holds while they have the values they have now."""

    def values(_: Any) -> Any:
        return [(name, float(value)) for name, value in look().items()]

    facts.conclude(values, values(None))
    return look()
