"""What an executor reads from an optimizer: plain values that can be compared.

    optimizer ──read_attributes──► OptimizerAttributes
                                     type_name "Adam"
                                     globals   loss_scaling …      one value for all
                                     defaults  lr, betas …         what a new group would get
                                     groups    lr, betas … per group

Two readings are equal when nothing changed, and then there is nothing to update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from pantile.logging import logger
from pantile.optim.optimizer import Optimizer
from pantile.optim.supported import rule_name

#: Keys of a group that say how torch computes, not what.
_SWITCHES = frozenset({"foreach", "capturable", "differentiable", "fused"})
_TORCH_GLOBALS: Mapping[str, Any] = MappingProxyType(
    {"loss_scaling": 1.0, "max_grad_norm": math.inf}
)

#: torch.optim: an attribute is constant while it has this value.
_CONSTANT_AT: Mapping[str, float] = MappingProxyType(
    {
        "weight_decay": 0.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "eps": 1e-8,
        "loss_scaling": 1.0,
    }
)


@dataclass(frozen=True)
class Attribute:
    """A hyper-parameter: its value, and whether strict mode embeds it in the program."""

    value: Any
    constant: bool

    @property
    def is_structural(self) -> bool:
        """True if a change of the value is another program, not another input of the same one."""
        return self.value is None or isinstance(self.value, (bool, str, torch.dtype))


@dataclass(frozen=True)
class OptimizerAttributes:
    """One reading of an optimizer. Readings are equal if type, names, values and constness are.

    `type_name` is the update rule: SGD, Adam, AdamW, RMSprop, LAMB, or the name of the class.
    """

    type_name: str
    globals: Mapping[str, Attribute]
    defaults: Mapping[str, Attribute]
    groups: tuple[Mapping[str, Attribute], ...]

    @property
    def structure(self) -> tuple[object, ...]:
        """What cannot change without another program. Two optimizers that share it share that.

        Besides names and switches this is which numbers are off: torch leaves the momentum out
        of the rule, not in it as a zero.
        """
        tables = (self.globals, *self.groups)
        return (
            self.type_name,
            *(tuple((name, _kind(name, a)) for name, a in table.items()) for table in tables),
        )


def _kind(name: str, attribute: Attribute) -> object:
    # A learning rate of zero, where a warm-up starts, is an ordinary number.
    off = name != "lr" and attribute.value in (0, math.inf)
    return attribute.value if off or attribute.is_structural else None


def read_attributes(
    optimizer: torch.optim.Optimizer, *, automatic_loss_scaling: bool = False
) -> OptimizerAttributes:
    """Read everything an executor needs to know about `optimizer`.

    With automatic loss scaling on, `loss_scaling` is variable whatever the optimizer says.
    """
    shared = {
        name: _attribute(optimizer, name, value) for name, value in _globals(optimizer).items()
    }
    if automatic_loss_scaling:
        shared["loss_scaling"] = Attribute(shared["loss_scaling"].value, constant=False)
    return OptimizerAttributes(
        type_name=rule_name(optimizer),
        globals=shared,
        defaults=_table(optimizer, optimizer.defaults),
        groups=tuple(_table(optimizer, group) for group in optimizer.param_groups),
    )


def is_constant(optimizer: torch.optim.Optimizer, name: str, value: Any) -> bool:
    """PopTorch's rule: is the attribute embedded when the model is compiled?

    A PopTorch optimizer knows which arguments it was given. For a torch one the value decides: an
    attribute that is switched off is a constant, and so are those the device cannot change.
    """
    if isinstance(optimizer, Optimizer):
        known = optimizer.variable_attrs.knows(name)
        return not known or optimizer.variable_attrs.isConstant(name)
    if name == "lr":
        return False
    if name == "weight_decay" and rule_name(optimizer) == "AdamW":
        return bool(value == 0.01)
    return name not in _CONSTANT_AT or bool(value == _CONSTANT_AT[name])


def _globals(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    if isinstance(optimizer, Optimizer):
        return {name: getattr(optimizer, name) for name in sorted(optimizer.global_names)}
    return {name: getattr(optimizer, name, value) for name, value in _TORCH_GLOBALS.items()}


def _table(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> dict[str, Attribute]:
    ignored = _SWITCHES | {"params", "param_names", *_TORCH_GLOBALS}
    return {
        name: _attribute(optimizer, name, value)
        for name, value in sorted(group.items())
        if name not in ignored
    }


def _attribute(optimizer: torch.optim.Optimizer, name: str, value: Any) -> Attribute:
    plain = _plain(value)
    return Attribute(plain, constant=is_constant(optimizer, name, plain))


def _plain(value: Any) -> Any:
    """A value that compares and hashes: numbers for one-element tensors, tuples for lists."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else tuple(value.flatten().tolist())
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value


class AttributeWatch:
    """Warns about attributes that the first optimizer did not have.

    A later one that has more (a learning-rate scheduler adds `initial_lr`, say) may mean to set
    something that no compiled rule reads. Each distinct message is given once.
    """

    def __init__(self, first: torch.optim.Optimizer) -> None:
        self._expected = _names(first)
        self._said: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, *, relaxed: bool = False) -> None:
        """Warn about what is new in `optimizer`; with `relaxed`, say it at debug level only."""
        messages = [*self._unexpected(optimizer), *_ignored_loss_scaling(optimizer)]
        for message in messages:
            if message not in self._said:
                self._said.add(message)
                (logger.debug if relaxed else logger.warning)(message)

    def _unexpected(self, optimizer: torch.optim.Optimizer) -> list[str]:
        kind = type(optimizer).__name__
        found = _names(optimizer)
        messages = []
        for where, names in found.items():
            known = self._expected.get(where, self._expected.get("group 0 attribute", set()))
            new = sorted(names - known)
            if new:
                messages.append(f"Ignoring unexpected {where} in {kind} optimizer: {new}")
        return messages


def _names(optimizer: torch.optim.Optimizer) -> dict[str, set[str]]:
    """The attribute names of an optimizer, by the place they are found in."""
    own = {
        name
        for name, value in vars(optimizer).items()
        # A learning-rate scheduler replaces methods (`step`) on the object.
        if not name.startswith("_") and not callable(value)
    }
    names = {
        "optimizer attribute": own - {"state", "param_groups", "defaults"},
        "default group variable": set(optimizer.defaults),
    }
    for index, group in enumerate(optimizer.param_groups):
        names[f"group {index} attribute"] = set(group) - {"params", "param_names"}
    return names


def _ignored_loss_scaling(optimizer: torch.optim.Optimizer) -> list[str]:
    return [
        f"Ignoring loss_scaling of group {index}: it is an attribute of the whole optimizer"
        for index, group in enumerate(optimizer.param_groups)
        if "loss_scaling" in group
    ]
