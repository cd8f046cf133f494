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
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.guards import TensorGuards

from pantile.optim import Optimizer
from pantile.program.structure import Container, Leaf
from pantile.runtime import instrument
from pantile.runtime.compiled import Compiled
from pantile.runtime.engines import MISS
from pantile.runtime.held_objects import still_holds
from pantile.runtime.native.lane_library import LANE
from pantile.runtime.native.loop import has_memory
from pantile.runtime.native.runner import Numbers, Runner
from pantile.runtime.optimizer import HOOKS, Update
from pantile.runtime.outputs import NO_BACKWARD
from pantile.runtime.training import OptimizerControl
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.runtime.step import Machine

# The loops of a hot call run in C: over these, by map().
_is = operator.is_
_data_ptr = Tensor.data_ptr

_FIRST = operator.itemgetter(0)
"""Builds the result of a model that returns one tensor."""

_MOST_PROMISES = 64
"""How often a lane is told not to ask about the optimizer; no more, if it asks all the same."""

_END = object()
"""Ends a list of objects, so that a longer or shorter one differs in an element."""

_PLAIN = (float, int, bool, str, type(None), torch.dtype)
"""Settings of these types have another value only if they are another object."""


class HotCall:
    """What one call of an executor depended on.

    `call` answers the next one, or is `MISS`: in C++ (lane.cpp) as soon as that is compiled.
    """

    def __init__(
        self,
        machine: Machine,
        compiled: Compiled,
        runner: Runner,
        weights: Weights,
        known: Known,
        arguments: Sequence[torch.Tensor],
    ) -> None:
        self._runner, self._times = runner, machine.times
        self.all_times = runner.all_times
        self.tensors = (len(arguments), compiled.user_outputs)
        self._build = _builder(compiled)
        self._kinds = [(tensor.shape, tensor.dtype) for tensor in arguments]
        self._weights = weights
        self._hosts = tuple(weights.hosts())
        self._pointers = list(map(_data_ptr, self._hosts))
        # The last one is for a call without other tensors, which has modes all the same.
        self._checked = (*self._hosts, torch.empty((), device="cpu"))
        self._same_kinds = _guards(_plain(self._kinds), self._checked).check
        self._known, self.lock = known, known.lock
        self._update: _KnownUpdate | None = None
        if known.update is not None:
            assert runner.numbers is not None
            self._update = _KnownUpdate(known.update, runner.numbers)
        self.call: Callable[[tuple[Any, ...]], Any] = self._call
        self._waits_for_lane = not runner.draws
        if self._waits_for_lane:
            LANE.ask()
            self._take_lane()

    def still_holds(self) -> bool:
        """Was nothing moved while this was made? Other threads run, too.

        What was noted before it was moved, or while it was, differs from then on.
        """
        return self._weights.unmoved()

    def _take_lane(self) -> None:
        """Answer calls in C++ from now on, if that is compiled and takes this kind of call."""
        if LANE.module is None:
            return
        self._waits_for_lane = False
        try:
            lane = self._lane(LANE.module)
        except (TypeError, ValueError):  # such as a weight without elements
            return
        if self.still_holds():
            self.call = lane

    def _lane(self, module: Any) -> Callable[[tuple[Any, ...]], Any]:
        runner, update, known = self._runner, self._update, self._known
        entry = runner.loop.entry()
        control, user = known.control, None if update is None else update.user
        marks = [self._times, "whole", self]
        if user is not None:
            marks += [user, "_opt_called", True]
        lane: Callable[[tuple[Any, ...]], Any] = module.Lane(
            run=entry.run,
            loop=entry.loop,
            failure=entry.failure,
            iterations=entry.iterations,
            pointers=entry.pointers,
            arguments=_plain(self._kinds),
            weights=self._hosts,
            results=runner.loop.new_destinations(),
            miss=MISS,
            tables=module.Tables(self._weights.tables()),
            links=instrument.links(),
            link=id(known.model),
            pull=known.pull,
            prepare=None if update is None and control is None else self._preparation(module),
            finish=runner.finish_whole,
            after=None if control is None or not control.keeps_state else control.after_run,
            backward=NO_BACKWARD,
            build=None if self._build is _FIRST else self._build,
            marks=marks,
            pulse=self._times.pulse,
            constants=entry.constants,
            watched=runner.watched,
        )
        return lane

    def _prepare(self) -> bool:
        """Ready the optimizer, if it is the one of before."""
        if self._known.control is not None:
            self._known.control.before_run()
        return self._update is None or self._update.is_the_same()

    def _preparation(self, module: Any) -> Callable[[], Any]:
        """`_prepare` for a lane: it may also answer what must stay for the answer to stay."""
        update, control = self._update, self._known.control
        if update is None or (control is not None and control.keeps_state):
            return self._prepare

        def prepare() -> Any:
            if not self._prepare():
                return False
            watched = update.depends_on()
            return True if watched is None else module.Tables(watched)

        return prepare

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        """What the model returns for these arguments; `MISS` if this is another kind of call."""
        if self._waits_for_lane:
            self._take_lane()
        if not self._fits(arguments):
            return MISS
        self._known.pull()
        if not self._prepare() or not self._weights_are_the_same():
            return MISS
        if not all(map(has_memory, arguments)):  # the long way explains it
            return MISS
        results = self._runner.run_whole(list(map(_data_ptr, arguments)))
        self._times.whole = self
        if self._times.pulse is not None:
            self._times.pulse[0] += 1
        if self._update is not None:
            self._update.user._opt_called = True
        if self._known.control is not None:
            self._known.control.after_run()
        for tensor in results:
            tensor.backward = NO_BACKWARD  # type: ignore[method-assign]
        return self._build(results)

    def _fits(self, arguments: tuple[Any, ...]) -> bool:
        """Are arguments, weights and modes of the same kind?

        Inference mode and autocast change the dispatch keys of every tensor: they are seen here.
        """
        if len(arguments) != len(self._kinds):
            return False
        return bool(self._same_kinds(*arguments, *self._checked))

    def _weights_are_the_same(self) -> bool:
        now = list(map(_data_ptr, self._hosts))
        return now == self._pointers and self._weights.still_held()


@dataclass(frozen=True)
class Known:
    """Who takes part in the calls of an executor beside its program."""

    model: nn.Module
    update: Update | None
    control: OptimizerControl | None
    lock: threading.RLock

    def pull(self) -> None:
        """Let the host have what a training executor keeps to itself, before inference."""
        if self.control is None and (owner := instrument.owner_of(self.model)) is not None:
            owner.copyWeightsToHostIfNeeded()  # hot weights are the host's: no more to refresh


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
        self._promises_left = _MOST_PROMISES
        self._take_settings()

    def _take_settings(self) -> None:
        """Remember the settings, then read the numbers: a change in between is found next time."""
        bound = self._bound
        self._settings = _settings(bound)
        self._same_settings = still_holds(bound.param_groups)
        self._shared = self._read_shared(bound)
        found = (value for (_, key), value in self._settings.items() if key != "params")
        self._fixed = all(map(_is_fixed, (self._shared, *found)))
        self._is_new = True
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
        self._is_new = False
        if not self._fixed:
            self._numbers.refresh()
        return True

    def depends_on(self) -> list[Any] | None:
        """The dicts and lists that `is_the_same` looked into; None if it must be asked again.

        It must after new settings, which a scheduler may bring every time, and where a number can
        change in place. An optimizer that counts its steps in an attribute is given up.
        """
        user, bound = self.user, self._bound
        owners = [self._update, user, bound]
        if self._is_new or not self._fixed or not self._promises_left:
            return None
        if hasattr(type(bound), "loss_scaling") or not all(hasattr(o, "__dict__") for o in owners):
            return None
        self._promises_left -= 1
        hooks = [getattr(user, name, None) for name in HOOKS]
        groups = [part for group in self._groups for part in (group, group["params"])]
        found = [hook for hook in hooks if isinstance(hook, dict)]
        states = [self._state, *self._state.values()]
        return [*map(vars, owners), *found, self._groups, *groups, *states]

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


def _plain(kinds: Sequence[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    """Plain and contiguous tensors, as arguments must be. Nobody touches their memory."""
    return [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in kinds]


def _guards(examples: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
    """What checks type, dtype, device, `requires_grad`, shape, strides and dispatch keys.

    A pending negation or conjugation is a dispatch key. Strides of dims of size one say nothing.
    """
    tensors = (*examples, *weights)
    strides = [tensor.stride() for tensor in tensors]
    # Any: torch's own declaration is of another time.
    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
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
            return _FIRST
        case Container(kind, _, children) if all(isinstance(child, Leaf) for child in children):
            if kind is tuple or kind is list:
                return kind
    return compiled.rebuild
