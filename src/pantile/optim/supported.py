"""Which optimizers an executor takes.

By default all whose `step` can be recorded: the update rule that is compiled is the optimizer's
own, whoever wrote it. Strict mode takes what PopTorch had a device rule for.
"""

from __future__ import annotations

import torch

from pantile.errors import OptimizerError, OptimizerTypeError
from pantile.logging import logger
from pantile.optim.adam import Adam, AdamW
from pantile.optim.lamb import LAMB
from pantile.optim.optimizer import refuse_amsgrad
from pantile.optim.rmsprop import RMSprop
from pantile.optim.sgd import SGD

#: Rule name -> the classes that follow it. AdamW comes first because torch derives it from Adam.
_RULES: dict[str, tuple[type[torch.optim.Optimizer], ...]] = {
    "SGD": (SGD, torch.optim.SGD),
    "AdamW": (AdamW, torch.optim.AdamW),
    "Adam": (Adam, torch.optim.Adam),
    "RMSprop": (RMSprop, torch.optim.RMSprop),
    "LAMB": (LAMB,),
}


def rule_name(optimizer: torch.optim.Optimizer) -> str:
    """The update rule an optimizer follows, or its class name if it is none of PopTorch's."""
    for name, classes in _RULES.items():
        if isinstance(optimizer, classes):
            return name
    return type(optimizer).__name__


def check_static(optimizer: torch.optim.Optimizer) -> None:
    """Raise if the update of `optimizer` depends on a closure or on the values of its gradients."""
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise OptimizerError(
            f"{type(optimizer).__name__} cannot be part of a static graph",
            fix="use one that needs no closure and no sparse gradients: SGD, Adam, AdamW, ...",
        )


def check_supported(optimizer: object, *, strict: bool) -> None:
    """Raise if `optimizer` cannot be compiled; in strict mode, if PopTorch would refuse it."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerTypeError(
            f"optimizer={type(optimizer).__name__} is not a torch.optim.Optimizer",
            fix="pass an optimizer object such as poptorch.optim.SGD(model.parameters(), lr=0.01)",
        )
    if not strict:
        check_static(optimizer)
        return
    if rule_name(optimizer) not in _RULES:
        names = ", ".join(
            f"{'torch' if cls.__module__.startswith('torch') else 'poptorch'}.optim.{cls.__name__}"
            for classes in _RULES.values()
            for cls in classes
        )
        raise OptimizerTypeError(
            f"optimizer={type(optimizer).__name__} is not supported. Optimizer must be one of: "
            f"{names}",
            fix="use one of these types, or turn strict mode off",
        )
    _check_rule(optimizer)
    if not _is_library_class(type(optimizer)):
        logger.warning(
            "The optimizer is a subclass, %s. The Python code of its methods is not executed "
            "on the device: only its attributes are used.",
            type(optimizer).__name__,
        )


def _check_rule(optimizer: torch.optim.Optimizer) -> None:
    refuse_amsgrad(optimizer.param_groups)
    centered = {bool(group.get("centered", False)) for group in optimizer.param_groups}
    if rule_name(optimizer) == "RMSprop" and len(centered) > 1:
        raise OptimizerTypeError(
            "centered differs between the parameter groups of RMSprop",
            fix="give every group the same value of centered",
        )


def library_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The class of torch or PopTorch that an optimizer is, or is derived from."""
    return next((cls for cls in type(optimizer).__mro__ if _is_library_class(cls)), type(optimizer))


def _is_library_class(cls: type[torch.optim.Optimizer]) -> bool:
    return any(cls in classes for classes in _RULES.values())
