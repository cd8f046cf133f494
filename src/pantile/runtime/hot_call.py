"""The call of before, again: a step that runs natively from beginning to end.

A call of an executor asks many questions: is the program compiled, does the model hold the same
tensors, did the optimizer change? For a step of 50 µs, the answers take longer than the step. A hot
call remembers the objects the last answers were about, compares them one by one, and runs. Whatever
differs makes it give up, and the call is answered the long way.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pantile.runtime.compiled import Compiled
from pantile.runtime.engines import MISS
from pantile.runtime.native.runner import Runner
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import finished
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.runtime.step import Machine


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
        self._compiled, self._runner, self._update = compiled, runner, update
        self._times = machine.times
        self._counts = (len(arguments), compiled.user_outputs)
        self._kinds = [(tensor.dtype, tensor.shape) for tensor in arguments]
        self._weights = weights
        self._known_weights = weights.identity()
        self._groups = [] if update is None else _settings(update.bound)
        self._parameters = [] if update is None else _parameters(update.bound)
        self._state = [] if update is None else _state(update.bound)

    def run(self, arguments: Sequence[Any]) -> Any:
        """What the model returns; `MISS` if this is another kind of call."""
        kinds = self._kinds
        if len(arguments) != len(kinds) or not self._same_objects():
            return MISS
        for tensor, (dtype, shape) in zip(arguments, kinds, strict=True):
            if (
                type(tensor) is not Tensor
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or tensor.requires_grad
                or not tensor.is_cpu
                or not tensor.is_contiguous()
            ):
                return MISS
        results = self._runner.run_whole(arguments)
        self._times.take_whole(self._counts, self._runner)
        if self._update is not None:
            self._update.note_step()
        return self._compiled.rebuild([finished(tensor, strict=False) for tensor in results])

    def _same_objects(self) -> bool:
        """Do the model and the optimizer consist of the same tensors and numbers?"""
        if not self._weights.is_still(self._known_weights):
            return False
        update = self._update
        if update is None:
            return True
        bound = update.bound
        return (
            not update.has_hooks
            and _identical(_settings(bound), self._groups)
            and _identical(_parameters(bound), self._parameters)
            and _identical(_state(bound), self._state)
        )


def _settings(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Every hyper-parameter of every group."""
    found: list[Any] = []
    for group in optimizer.param_groups:
        found += group.values()
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    found: list[Any] = []
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def _state(optimizer: torch.optim.Optimizer) -> list[Any]:
    found: list[Any] = []
    for entries in optimizer.state.values():
        found += entries.values()
    return found


def _identical(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(operator.is_, now, then))
