"""The call of before, again: a step that runs natively from beginning to end.

A call of an executor asks many questions: is the program compiled, does the model hold the same
tensors, did the optimizer change? For a step of 50 µs, the answers take longer than the step. A hot
call remembers what the last answers were about, and compares:

    arguments, weights      kind of each tensor         one call of C++ for all of them
    weights                 where their memory is       their addresses
    model, optimizer        the objects they consist of, by identity

Whatever differs makes it give up, and the call is answered the long way. Only new numbers of the
optimizer, such as a scheduler's learning rate, are followed here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from pantile.optim import Optimizer
from pantile.program.structure import Container, Leaf
from pantile.runtime.compiled import Compiled
from pantile.runtime.engines import MISS
from pantile.runtime.held_objects import still_holds
from pantile.runtime.native.runner import Numbers, Runner
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import NO_BACKWARD
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.runtime.step import Machine

# The loops of a hot call run in C: over these, by map().
_is = operator.is_
_data_ptr = Tensor.data_ptr

_END = object()
"""Ends a list of objects, so that a longer or shorter one differs in an element."""

_PLAIN = (float, int, bool, str, type(None), torch.dtype)
"""Settings of these types have another value only if they are another object."""


class HotCall:
    """What one call of an executor depended on."""

    def __init__(
        self,
        machine: Machine,
        compiled: Compiled,
        runner: Runner,
        weights: Weights,
        update: Update | None,
        arguments: Sequence[torch.Tensor],
    ) -> None:
        self._runner, self._times = runner, machine.times
        self.all_times = runner.all_times
        self.tensors = (len(arguments), compiled.user_outputs)
        self._build = _builder(compiled)
        self._count = len(arguments)
        self._weights = weights
        self._hosts = tuple(weights.hosts())
        self._pointers = list(map(_data_ptr, self._hosts))
        # The last one is for a call without other tensors, which has modes all the same.
        self._checked = (*self._hosts, torch.empty((), device="cpu"))
        self._same_kinds = _guards(arguments, self._checked).check
        self._update: _KnownUpdate | None = None
        if update is not None:
            assert runner.numbers is not None
            self._update = _KnownUpdate(update, runner.numbers)

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Are arguments, weights and modes of the same kind?

        Inference mode and autocast change the dispatch keys of every tensor: they are seen here.
        """
        return len(arguments) == self._count and bool(self._same_kinds(*arguments, *self._checked))

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """What the model returns for arguments that fit; `MISS` if this is another kind of call."""
        if list(map(_data_ptr, self._hosts)) != self._pointers or not self._weights.still_held():
            return MISS
        update = self._update
        if update is not None and not update.is_the_same():
            return MISS
        pointers = list(map(_data_ptr, arguments))
        if not all(pointers):  # memory that was given back: the long way explains it
            return MISS
        results = self._runner.run_whole(pointers)
        self._times.whole = self
        if self._times.pulse is not None:
            self._times.pulse[0] += 1
        if update is not None:
            update.user._opt_called = True
        for tensor in results:
            tensor.backward = NO_BACKWARD  # type: ignore[method-assign]
        return self._build(results)


class _KnownUpdate:
    """An optimizer as it was, and the numbers the step reads of it."""

    def __init__(self, update: Update, numbers: Numbers) -> None:
        self._update, self._numbers = update, numbers
        self.user: Any = update.user
        self._bound = bound = update.bound
        self._groups, self._state = bound.param_groups, bound.state
        self._entries = [*bound.state.values(), _END]
        lists = [group["params"] for group in bound.param_groups]
        self._still_holds = still_holds([self._groups, *lists, *bound.state.values()])
        self._read_shared = _shared_reader(self._bound)
        self._take_settings()

    def _take_settings(self) -> None:
        """Remember the settings, then read the numbers: a change in between is found next time."""
        bound = self._bound
        self._settings = _settings(bound)
        self._same_settings = still_holds(bound.param_groups)
        self._shared = self._read_shared(bound)
        found = (value for (_, key), value in self._settings.items() if key != "params")
        self._fixed = all(map(_is_fixed, (self._shared, *found)))
        self._numbers.refresh()

    def is_the_same(self) -> bool:
        """Does the optimizer consist of the same objects, but for numbers? They are followed."""
        update, bound = self._update, self._bound
        if (
            update.bound is not bound
            or update.has_hooks
            or bound.param_groups is not self._groups
            or bound.state is not self._state
            or not all(map(_is, chain(self._state.values(), (_END,)), self._entries))
            or not self._still_holds()
            or self._read_shared(bound) != self._shared
        ):
            return False
        if not self._same_settings():
            return self._follow()
        if not self._fixed:
            self._numbers.refresh()
        return True

    def _follow(self) -> bool:
        """Take over new numbers; False if anything else is new, or a number decides more."""
        now, known = _settings(self._bound), self._settings
        if self._numbers.guarded or now.keys() != known.keys():
            return False
        changed = ((now[key], known[key]) for key in now if now[key] is not known[key])
        if not all(type(new) is type(old) is float for new, old in changed):
            return False
        self._take_settings()
        return True


def _settings(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    """Every hyper-parameter of every group; also the lists of parameters."""
    groups = enumerate(optimizer.param_groups)
    return {(i, key): value for i, group in groups for key, value in group.items()}


def _shared_reader(optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
    """What reads the settings that are no group's: those of a PopTorch optimizer."""
    if isinstance(optimizer, Optimizer):
        return operator.attrgetter(*optimizer.global_names)
    return lambda other: getattr(other, "loss_scaling", None)


def _is_fixed(value: Any) -> bool:
    """Can the value change only by being replaced?"""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_fixed, value)))


def _guards(arguments: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
    """What checks type, dtype, device, `requires_grad`, shape, strides and dispatch keys.

    A pending negation or conjugation is a dispatch key. Arguments must be plain and contiguous,
    whatever the last ones were; weights must be as they are. Strides of dims of size one say
    nothing.
    """
    plain = [torch.empty((), dtype=tensor.dtype, device="cpu") for tensor in arguments]
    examples = [one.expand(tensor.shape) for one, tensor in zip(plain, arguments, strict=True)]
    strides = [torch.empty(tensor.shape, device="meta").stride() for tensor in arguments]
    strides += [tensor.stride() for tensor in weights]
    # Any: torch's own declaration is of another time.
    sizes: list[Any] = [list(tensor.shape) for tensor in (*arguments, *weights)]
    pairs = zip(sizes, strides, strict=True)
    needed: list[Any] = [
        [None if size == 1 else stride for size, stride in zip(*pair, strict=True)]
        for pair in pairs
    ]
    return TensorGuards(*examples, *weights, dynamic_dims_sizes=sizes, dynamic_dims_strides=needed)


def _builder(compiled: Compiled) -> Callable[[list[Tensor]], Any]:
    """What makes the model's result of its tensors: for a tensor, a tuple or a list at once."""
    structure, leaves = compiled.captured.structure, list(compiled.captured.leaves)
    tensors = all(isinstance(leaf, int) for leaf in leaves)
    if not tensors or leaves != [*range(compiled.user_outputs)]:
        return compiled.rebuild
    match structure:
        case Leaf():
            return operator.itemgetter(0)
        case Container(kind, _, children) if all(isinstance(child, Leaf) for child in children):
            if kind is tuple or kind is list:
                return kind
    return compiled.rebuild
