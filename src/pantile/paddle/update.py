"""The update part of a Paddle program as a torch optimizer, so that the core can record it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pantile.paddle.call import Call, Table
from pantile.paddle.parts import GRADIENT, Parts

RATE = "read/"
"""Names of param_groups entries that are read from the scope before each run."""


class ProgramUpdate(torch.optim.Optimizer):
    """Runs decay, clipping and update operators on the gradients of the core.

    `state` are the tensors the update writes (moments, powers of beta), `read` those it only
    reads (learning rates).
    """

    loss_scaling: float = 1.0
    """The core multiplies the loss by it, and divides the gradients again."""

    def __init__(
        self,
        parts: Parts,
        table: Table,
        *,
        parameters: Mapping[str, nn.Parameter],
        state: Mapping[str, torch.Tensor],
        read: Mapping[str, torch.Tensor],
    ) -> None:
        self._parts, self._table = parts, table
        self._names = tuple(parameters)
        self._others = tuple(state)
        defaults = {RATE + name: tensor for name, tensor in read.items()}
        super().__init__(list(parameters.values()), defaults)
        owners = {name: self._owner(name) for name in state}
        for name, tensor in state.items():
            self.state[parameters[owners[name]]][name] = tensor

    def __getstate__(self) -> dict[str, Any]:
        """A copy runs the same operators; torch would copy groups and state alone."""
        return dict(self.__dict__)

    def _owner(self, name: str) -> str:
        """The parameter whose update reads the variable; the first one for what all share."""
        for op in self._parts.update:
            if name in op.reads and "Param" in op.inputs:
                return op.inputs["Param"][0]
        return self._names[0]

    def read_tensors(self) -> dict[str, torch.Tensor]:
        """What is only read, by name: fill these to change a learning rate."""
        (group,) = self.param_groups
        return {key.removeprefix(RATE): group[key] for key in group if key.startswith(RATE)}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The state by its names in the program."""
        (group,) = self.param_groups
        return {name: t for p in group["params"] for name, t in self.state[p].items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update with the gradients the parameters hold."""
        (group,) = self.param_groups
        before = dict(zip(self._names, group["params"], strict=True))
        before.update(self.state_tensors())
        values = {**before, **self.read_tensors()}
        for name, p in zip(self._names, group["params"], strict=True):
            values[name + GRADIENT] = torch.zeros_like(p) if p.grad is None else p.grad
        for op in self._parts.update:
            self._table[op.type](Call(op, values, self._parts.variables))
        for name, tensor in before.items():
            if values[name] is not tensor:
                tensor.copy_(values[name].reshape(tensor.shape))
