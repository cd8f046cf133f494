"""What a step did besides computing: logging, metrics, lists it appended to; done again each run.

recording   self.log("loss", loss)     event: log, "loss", value 0 of the program
            self.acc(preds, y)         event: call the metric on values 1 and 2; its result is
                                       a Deferred, which may be logged or returned
            self.outputs.append(loss)  event: append value 0
each run    the values of this run are put into the events, and the events take place
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor

from pantile.capture.tracked import Values, evaluated, is_tracked
from pantile.errors import CaptureError, DataDependentError

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


@dataclass(frozen=True)
class Ref:
    """The place of a value among the tensors a program returns."""

    index: int


@dataclass(frozen=True, eq=False)
class Built:
    """An object of the step's own that holds values: built anew at each run."""

    original: Any
    fields: dict[str, Any]

    def build(self, evaluate: Callable[[Any], Any]) -> Any:
        """A copy with the values of a run."""
        twin = copy.copy(self.original)
        vars(twin).update((name, evaluate(kept)) for name, kept in self.fields.items())
        return twin


@dataclass(frozen=True, eq=False)
class Event:
    """Something that takes place on the host after each run."""

    act: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Deferred:
    """A value that is computed on the host after the run: a metric's, or what was made of it."""

    #: A tracked number leaves arithmetic to it.
    takes_over = True

    def __init__(self, tape: Tape, act: Callable[..., Any], args: Any, kwargs: Any = None) -> None:
        self._tape = tape
        self._event = tape.add(act, args, kwargs or {})

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        every = pytree.tree_leaves((args, kwargs or {}))
        tape = next(leaf._tape for leaf in every if type(leaf) is Deferred)
        return Deferred(tape, func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(self._tape, getattr, (self, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Deferred(self._tape, _called, (self, *args), kwargs)

    def __getitem__(self, key: Any) -> Any:
        return Deferred(self._tape, operator.getitem, (self, key))

    def __bool__(self) -> bool:
        raise _needed_too_early("bool()")

    def __float__(self) -> float:
        raise _needed_too_early("float()")

    def __int__(self) -> int:
        raise _needed_too_early("int()")

    def __iter__(self) -> Any:
        raise _needed_too_early("a loop")

    def __len__(self) -> int:
        raise _needed_too_early("len()")

    def __format__(self, spec: str) -> str:
        raise _needed_too_early("formatting a text")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _needed_too_early("NumPy")

    def __round__(self, digits: int | None = None) -> Any:
        return Deferred(self._tape, round, (self, digits))


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _needed_too_early(what: str) -> CaptureError:
    return DataDependentError(
        f"{what} needs a value that is not there while the step is recorded: of a tensor's "
        ".item(), .tolist() or .numpy(), or of a metric. They are computed after each run",
        fix="choose with torch.where(condition, a, b); log, keep or return the value, or use it in "
        "on_train_batch_end",
    )


def _arithmetic(name: str, *, swapped: bool) -> Callable[[Deferred, Any], Deferred]:
    function = getattr(operator, name)

    def method(self: Deferred, other: Any) -> Deferred:
        args = (other, self) if swapped else (self, other)
        return Deferred(self._tape, function, args)

    return method


def _unary(name: str) -> Callable[[Deferred], Deferred]:
    function = getattr(operator, name)
    return lambda self: Deferred(self._tape, function, (self,))


for _name in ("add", "sub", "mul", "truediv", "pow", "mod"):
    setattr(Deferred, f"__{_name}__", _arithmetic(_name, swapped=False))
    setattr(Deferred, f"__r{_name}__", _arithmetic(_name, swapped=True))
for _name in ("neg", "abs"):
    setattr(Deferred, f"__{_name}__", _unary(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Deferred, f"__{_name}__", _arithmetic(_name, swapped=False))


class Tape:
    """The events of one recorded step, and the values they need."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tensors: list[torch.Tensor] = []
        self.result: Any = None
        #: Steps of optimizers so far, which the Trainer will have counted.
        self.steps = 0
        self._known: dict[int, int] = {}
        #: Keeps tensors alive while recording, so that no other one gets the same id.
        self._held: list[torch.Tensor] = []
        self._reduce: dict[int, str] = {}
        #: For each value: is it a single number?
        self.scalars: list[bool] = []
        #: Tensors that are no values of the program, and that events use.
        self.real: dict[int, torch.Tensor] = {}

    # While recording

    def keep(self, tree: Any, reduce: str = "mean") -> Any:
        """The nested value with references in place of the program's tensors."""

        def leaf(value: Any) -> Any:
            if not isinstance(value, FakeTensor):
                if isinstance(value, torch.Tensor):
                    self.real[id(value)] = value
                elif _holds_values(value):
                    fields = {name: self.keep(inner) for name, inner in vars(value).items()}
                    return Built(value, fields)
                return value
            return self._ref(value, reduce)

        return pytree.tree_map(leaf, tree)

    def _ref(self, value: torch.Tensor, reduce: str) -> Ref:
        # One value may be wanted in two ways: by mean in a list, by sum in a log.
        key = hash((id(value), reduce))
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(value.detach())
            self._held.append(value)
            self.scalars.append(value.dim() == 0)
            if reduce != "mean":
                self._reduce[len(self.tensors) - 1] = reduce
        return Ref(self._known[key])

    def add(self, act: Callable[..., Any], args: Any, kwargs: Any, reduce: str = "mean") -> Event:
        """Let something take place after each run."""
        event = Event(act, self.keep(tuple(args), reduce), self.keep(dict(kwargs), reduce))
        self.events.append(event)
        return event

    def add_call(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let a call take place after each run."""
        self.add(act, args, kwargs)

    def close(self) -> list[torch.Tensor]:
        """The tensors the program must return; the recording is over."""
        tensors, self.tensors = self.tensors, []
        self._known.clear()
        self._held.clear()
        return tensors

    # After a run

    def merged(self, tensors: Sequence[torch.Tensor], parts: int) -> list[torch.Tensor]:
        """The values of a run over several micro-batches: numbers reduced, rows side by side."""
        if parts == 1:
            return list(tensors)
        return [
            self._reduced(i, tensor) if self.scalars[i] else tensor
            for i, tensor in enumerate(tensors)
        ]

    def _reduced(self, index: int, values: torch.Tensor) -> torch.Tensor:
        reduce = _REDUCTIONS[self._reduce.get(index, "mean")]
        if reduce is torch.mean and not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        return reduce(values)

    def replay(self, tensors: Sequence[torch.Tensor], values: Values) -> Any:
        """Let the events take place; what the step returned."""
        results: dict[int, Any] = {}

        def leaf(value: Any) -> Any:
            if type(value) is Ref:
                return tensors[value.index]
            if type(value) is Deferred:
                return results[id(value._event)]
            if type(value) is Built:
                return value.build(partial(pytree.tree_map, leaf, is_leaf=_is_leaf))
            return evaluated(value, values)

        for event in self.events:
            args, kwargs = pytree.tree_map(leaf, (event.args, event.kwargs), is_leaf=_is_leaf)
            results[id(event)] = event.act(*args, **kwargs)
        return pytree.tree_map(leaf, self.result, is_leaf=_is_leaf)


def _is_leaf(value: Any) -> bool:
    return type(value) in (Ref, Deferred, Built) or is_tracked(value)


def _holds_values(value: Any) -> bool:
    """Is it an object with the program's tensors, or with numbers, among its attributes?"""
    if is_tracked(value) or type(value) is Deferred or callable(value):
        return False
    inner = pytree.tree_leaves(vars(value)) if hasattr(value, "__dict__") else []
    return any(isinstance(leaf, FakeTensor) or is_tracked(leaf) for leaf in inner)
