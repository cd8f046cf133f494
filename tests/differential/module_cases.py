"""The module database of torch as cases, in training and in evaluation mode.

The module is part of a small one that also owns the inputs that require a gradient, so that the
gradients of weights and inputs are both compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from tests.differential.harness import SEED, Case, copy_tensor, spread
from tests.differential.op_cases import weighted_sum
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

from pantile.ops.loss import identity_loss


def modules() -> list[ModuleInfo]:
    """Every entry of the database."""
    return list(module_db)


def module_cases(info: ModuleInfo, *, training: bool, limit: int | None) -> Iterator[Case]:
    """The inputs of one entry, each as a training step, or as inference in evaluation mode."""
    torch.manual_seed(SEED)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    for index in spread(len(inputs), limit):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = ModuleCall(info, inputs[index], training=training)
        yield Case(info.formatted_name, index, call, tuple(call.arguments), {}, training=training)


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.float64 else tensor


class ModuleCall(nn.Module):
    """A call of a module; inputs that require a gradient are its parameters."""

    def __init__(self, info: ModuleInfo, given: ModuleInput, *, training: bool) -> None:
        super().__init__()
        build, call = given.constructor_input, given.forward_input
        torch.manual_seed(SEED)
        # The database gives FractionalMaxPool samples of float64, which float32 modules refuse.
        options = pytree.tree_map_only(torch.Tensor, _as_float32, build.kwargs)
        self.inner = info.module_cls(*build.args, **options)
        if any(nn.parameter.is_lazy(p) for p in self.inner.parameters()):
            self.inner(*call.args, **call.kwargs)  # torch demands it before an optimizer is made
        self.train(training)
        args, kwargs = call.args, call.kwargs
        leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.weights = nn.ParameterList()
        self.arguments: list[torch.Tensor] = []
        self.leaves: list[tuple[str, Any]] = [self._place(leaf) for leaf in leaves]

    def _place(self, leaf: Any) -> tuple[str, Any]:
        if not isinstance(leaf, torch.Tensor):
            return "constant", leaf
        if leaf.requires_grad:
            self.weights.append(nn.Parameter(copy_tensor(leaf)))
            return "weight", len(self.weights) - 1
        self.arguments.append(leaf)
        return "argument", len(self.arguments) - 1

    def forward(self, *arguments: torch.Tensor) -> Any:
        held = {"weight": self.weights, "argument": arguments}
        leaves = [value if kind == "constant" else held[kind][value] for kind, value in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        result = self.inner(*args, **kwargs)
        if not self.training:
            return result
        return result, identity_loss(weighted_sum(result), reduction="none")
