"""The state an optimizer starts with, before its first step has made any.

torch makes it in the first `step()`. A device has it from the moment a program is loaded, so strict
mode shows it after `compile`, and completes with it a loaded state that lacks entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pantile.optim.accumulators import state_dtype, step_counter
from pantile.optim.optimizer import Optimizer
from pantile.optim.supported import rule_name

_ADAM = ("exp_avg", "exp_avg_sq")


def initial_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], weight: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The state of one parameter of a group; `weight` is what the device holds of it."""
    rule = rule_name(optimizer)
    names = _names(optimizer, group)
    state = {} if rule == "SGD" or not names else {"step": step_counter()}
    for name in names:
        requested = None
        if isinstance(optimizer, Optimizer) and name in optimizer.accumulator_types:
            requested = optimizer._requested_type(name)
        state[name] = torch.zeros_like(weight, dtype=state_dtype(weight, requested))
    if getattr(optimizer, "use_tf_variant", False):
        state["square_avg"].fill_(1.0)
    return state


def complete_state(
    optimizer: torch.optim.Optimizer, weight_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Add what a changed hyper-parameter needs: an RMSprop that gets a momentum keeps one now.

    SGD makes its own: torch starts a momentum with the first gradient.
    """
    for group in optimizer.param_groups if rule_name(optimizer) != "SGD" else ():
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                for name, value in initial_state(optimizer, group, weight_of(parameter)).items():
                    state.setdefault(name, value)


def _names(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[str, ...]:
    rule, moving = rule_name(optimizer), bool(group.get("momentum", 0.0))
    if rule == "SGD":
        return ("momentum_buffer",) if moving or _may_move(optimizer) else ()
    if rule == "RMSprop":
        averages = {"square_avg": True, "momentum_buffer": moving, "grad_avg": group["centered"]}
        return tuple(name for name, needed in averages.items() if needed)
    return _ADAM if rule in ("Adam", "AdamW", "LAMB") else ()


def _may_move(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a momentum of zero may change later: then a device has velocities from the start."""
    return isinstance(optimizer, Optimizer) and not optimizer.variable_attrs.isConstant("momentum")
