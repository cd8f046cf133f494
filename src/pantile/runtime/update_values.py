"""Where the inputs of an update program are found, remembered from step to step.

    Layout     the groups, their settings, the state tensors an optimizer had when it was looked at
               closely; `still_holds` compares object identities, which is cheap
    Feed       the list of inputs of one program for one Layout; a step fills in what changes

An optimizer that only trains keeps its objects. New numbers (a scheduler's) keep the layout.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from pantile.capture.hyper import Hyper, UpdateProgram, shape_of, shared_of, state_name
from pantile.passes.automatic_loss_scaling import COUNT, SCALE
from pantile.program.program import Program
from pantile.program.spec import InputKind
from pantile.runtime.weights import Weights


class Layout:
    """The objects an optimizer consists of."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = list(optimizer.param_groups)
        self._sizes = _sizes(self._groups)
        self._parameters = _parameters(self._groups)
        self._keys = list(chain.from_iterable(self._groups))
        self._settings = list(chain.from_iterable(map(_values, self._groups)))
        self._lists = [(v, shape_of(v)) for v in _lists(self._groups)]
        self._owners = list(optimizer.state)
        self._entries = list(optimizer.state.values())
        self._names = list(chain.from_iterable(self._entries))
        self._tensors = list(chain.from_iterable(map(_values, self._entries)))
        self._shared = shared_of(optimizer)

    def still_holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if at most numbers changed: no group, flag, parameter or piece of state."""
        return self._same_groups(optimizer.param_groups) and self._same_state(optimizer)

    def _same_groups(self, groups: list[dict[str, Any]]) -> bool:
        if not _identical(groups, self._groups) or _sizes(groups) != self._sizes:
            return False
        if list(chain.from_iterable(groups)) != self._keys:
            return False
        if not _identical(_parameters(groups), self._parameters):
            return False
        settings = list(chain.from_iterable(map(_values, groups)))
        changed = (
            (old, new) for old, new in zip(self._settings, settings, strict=True) if old is not new
        )
        if not all(shape_of(old) == shape_of(new) for old, new in changed):
            return False
        return all(shape_of(now) == then for now, then in self._lists)

    def _same_state(self, optimizer: torch.optim.Optimizer) -> bool:
        entries = list(optimizer.state.values())
        return (
            _identical(entries, self._entries)
            and _identical(optimizer.state, self._owners)
            and list(chain.from_iterable(entries)) == self._names
            and _identical(list(chain.from_iterable(map(_values, entries))), self._tensors)
            and shared_of(optimizer) == self._shared
        )


class Feed:
    """The inputs of an update program."""

    def __init__(
        self,
        update: UpdateProgram,
        program: Program,
        optimizer: torch.optim.Optimizer,
        names: Mapping[int, str],
    ) -> None:
        state = {
            state_name(key, names[id(parameter)]): value
            for parameter, entries in optimizer.state.items()
            for key, value in entries.items()
        }
        hypers = {hyper.name: hyper for hyper in update.hypers}
        self._fixed: list[Any] = [
            state[e.name] if e.kind is InputKind.OPTIMIZER else None for e in program.inputs
        ]
        self._parameters = _places(program, InputKind.PARAMETER)
        self._gradients = _places(program, InputKind.GRADIENT)
        named = _places(program, InputKind.HYPER)
        self._scale = [(i, name) for i, name in named if name in (SCALE, COUNT)]
        self._hypers = [(i, hypers[name]) for i, name in named if name in hypers]

    def state(self) -> list[Any]:
        """The optimizer's tensors, at their places among the inputs; None elsewhere."""
        return self._fixed

    @property
    def hypers(self) -> Sequence[tuple[int, Hyper]]:
        """Which input is which hyper-parameter."""
        return self._hypers

    def values(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Weights,
        gradients: Mapping[str, torch.Tensor],
        scale: Mapping[str, torch.Tensor],
    ) -> Sequence[Any]:
        """One value per input, as of now."""
        values = self._fixed.copy()
        for i, name in self._parameters:
            values[i] = weights.whole(name)
        for i, name in self._gradients:
            values[i] = gradients[name]
        for i, hyper in self._hypers:
            values[i] = hyper.read(optimizer)
        for i, name in self._scale:
            values[i] = scale[name]
        return values


def _places(program: Program, kind: InputKind) -> list[tuple[int, str]]:
    return [(i, e.name) for i, e in enumerate(program.inputs) if e.kind is kind]


def _identical(now: Iterable[Any], then: list[Any]) -> bool:
    present = now if isinstance(now, list) else list(now)
    return len(present) == len(then) and all(map(operator.is_, present, then))


def _values(table: Mapping[str, Any]) -> Iterable[Any]:
    return table.values()


def _lists(groups: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Settings that can change without being replaced."""
    items = chain.from_iterable(group.items() for group in groups)
    return [value for key, value in items if key != "params" and isinstance(value, list)]


def _sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _parameters(groups: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))
