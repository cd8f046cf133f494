"""The operator database of torch as cases.

The tensors of a sample that require a gradient become parameters of a small module, the others
arguments; the loss of a training case is a weighted sum of the differentiable outputs.

Note [Random ops are seeded outside]
The database wraps random ops so that they reseed inside the op. A captured step must not repeat
that (it happens in Python, once), so the wrapper is replaced and both runs are seeded outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from tests.differential.harness import SEED, Case, copy_tensor
from torch import nn
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import _disable_current_modes

from pantile.ops.loss import identity_loss

database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

UNSET_MEMORY = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)
"""Ops whose result has no defined values."""


def ops(*, training: bool) -> list[OpInfo]:
    """Every op with float32 samples; in training, every op with float32 gradients."""
    found = []
    for op in database.op_db:
        dtypes = op.supported_backward_dtypes("cpu") if training else op.supported_dtypes("cpu")
        if torch.float32 in dtypes and (op.supports_autograd or not training):
            found.append(op)
    return found


def op_names(*, training: bool) -> list[str]:
    """The names of those ops, as the tests show them."""
    return [op.formatted_name for op in ops(training=training)]


def op_cases(op: OpInfo, *, training: bool, limit: int | None) -> Iterator[Case]:
    """The first samples of an op."""
    torch.manual_seed(SEED)
    # A string: two generators of the database break when given a torch.device.
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=training)
    for index, sample in enumerate(itertools.islice(samples, limit)):
        module = OpModule(op, sample, training=training)
        yield Case(
            op.formatted_name,
            index,
            module,
            tuple(module.arguments),
            {},
            training=training,
            values_defined=op.name not in UNSET_MEMORY,
        )


class OpModule(nn.Module):
    """A call of an op on its parameters and arguments."""

    def __init__(self, op: OpInfo, sample: SampleInput, *, training: bool) -> None:
        super().__init__()
        self.op = [op]  # in a list: deepcopy must not copy an OpInfo
        self.process = sample.output_process_fn_grad
        self.graded = training
        leaves, self.structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
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

    def __deepcopy__(self, memo: dict[int, Any]) -> OpModule:
        new = OpModule.__new__(OpModule)
        nn.Module.__init__(new)
        new.weights = nn.ParameterList([nn.Parameter(copy_tensor(w)) for w in self.weights])
        for name in ("op", "process", "graded", "structure", "arguments", "leaves"):
            setattr(new, name, getattr(self, name))
        return new

    def forward(self, *arguments: torch.Tensor) -> Any:
        held = {"weight": self.weights, "argument": arguments}
        leaves = [value if kind == "constant" else held[kind][value] for kind, value in self.leaves]
        first, args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        result = self.op[0](first, *args, **kwargs)
        if not self.graded:
            return result
        return result, identity_loss(weighted_sum(self.process(result)), reduction="none")


def weighted_sum(result: Any) -> torch.Tensor:
    """A scalar in which every differentiable value counts, each with its own weight."""
    total = None
    for tensor in pytree.tree_leaves(result):
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
            continue
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        part = (real * _weights(real.shape, real.dtype)).sum()
        total = part if total is None else total + part
    return torch.zeros(()) if total is None else total


@cache
def _weights(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    with _disable_current_modes():
        return torch.linspace(0.5, 1.5, shape.numel(), dtype=dtype).reshape(shape)
