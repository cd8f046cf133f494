"""What an update program is specific to, and where its numbers are found.

Numbers and tensors of an optimizer are inputs of the program; everything else (flags, which state
exists, which parameter is in which group) is its structure. Another structure, another program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pantile.optim import Optimizer
from pantile.program.program import Program
from pantile.program.spec import TensorSpec


@dataclass(frozen=True, eq=False)
class UpdateRequest:
    """What to capture: an optimizer and, by parameter name, what its parameters look like.

    `names` maps id(parameter) to its name; `gradients` names the parameters that have one;
    `parameters` are the device's tensors, where they are not the optimizer's own. `library_step`
    records the `step` of torch's or PopTorch's class, not that of a class derived from it, and
    `arguments` are given to it.
    """

    optimizer: torch.optim.Optimizer
    names: Mapping[int, str]
    gradients: Mapping[str, TensorSpec]
    divisor: int = 1
    loss_scaling: bool = False
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    library_step: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hyper:
    """Where a recorded number lives: `param_groups[group][key]`, or an item of it."""

    name: str
    group: int
    key: str
    item: int | None

    def read(self, optimizer: torch.optim.Optimizer) -> Any:
        """Its value now."""
        value = optimizer.param_groups[self.group][self.key]
        return value if self.item is None else value[self.item]


@dataclass(frozen=True, eq=False)
class UpdateProgram:
    """The update, and where its inputs are found."""

    program: Program
    hypers: tuple[Hyper, ...]
    structure: Any = field(repr=False)


def structure_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Any:
    """Everything about an optimizer that a program is specific to: all but numbers and tensors."""
    groups = tuple(
        (
            *((key, shape_of(value)) for key, value in sorted(group.items()) if key != "params"),
            tuple(names.get(id(p)) for p in group["params"]),
        )
        for group in optimizer.param_groups
    )
    state = tuple(
        (names.get(id(p)), tuple((k, shape_of(v)) for k, v in optimizer.state[p].items()))
        for group in optimizer.param_groups
        for p in group["params"]
        if p in optimizer.state
    )
    return type(optimizer), groups, state, shared_of(optimizer)


def shared_of(optimizer: torch.optim.Optimizer) -> tuple[tuple[str, Any], ...]:
    """The settings of a PopTorch optimizer that hold for all groups and are part of its rule."""
    if not isinstance(optimizer, Optimizer):
        return ()
    # The loss scale is an input of the program, in whatever group of settings it is kept.
    names = (name for name in optimizer.global_names if name != "loss_scaling")
    return tuple((name, getattr(optimizer, name)) for name in names)


def shape_of(value: Any) -> Any:
    """What is left of a setting when its numbers are taken out."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    if isinstance(value, float):
        return float
    if isinstance(value, (tuple, list)):
        return tuple(shape_of(item) for item in value)
    return value if isinstance(value, (int, bool, str, type(None))) else repr(value)


def state_name(key: str, parameter: str) -> str:
    """The name of a piece of optimizer state: `exp_avg/fc.weight`."""
    return f"{key}/{parameter}"
