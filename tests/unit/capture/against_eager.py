"""Run a model twice, captured and eager, and compare every bit that can be seen.

Seen are: what forward returned, the caller's own tensors (in-place writes), all parameters and
buffers after each step, and the state of torch's random generator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

import poptorch

Batch = tuple[Any, ...]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain gradient descent with a step large enough to change every bit that moves."""
    return torch.optim.SGD(parameters, lr=0.1)


def same_bits(a: Any, b: Any) -> bool:
    """Equal in structure, dtype, shape and value; NaN equals NaN."""
    flat_a, spec_a = pytree.tree_flatten(a)
    flat_b, spec_b = pytree.tree_flatten(b)
    return spec_a == spec_b and all(map(_same_leaf, flat_a, flat_b))


def _same_leaf(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))) and bool(
        torch.equal(a.isnan(), b.isnan())
    )


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers, also the ones that are not persistent."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def scalar_loss(result: Any) -> torch.Tensor:
    """The loss of an eager step: the last 0-d tensor that has a gradient."""
    scalars = [
        t
        for t in pytree.tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.dim() == 0 and t.requires_grad
    ]
    return scalars[-1]


def trains_like_eager(
    model: nn.Module,
    *batches: Batch,
    optimizer: MakeOptimizer = sgd,
    loss: Callable[[Any], torch.Tensor] = scalar_loss,
    options: poptorch.Options | None = None,
    steps: int = 3,
) -> poptorch.PoplarExecutor:
    """Train `model` and an eager twin on the batches, `steps` times; all must be equal."""
    twin = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, options, optimizer(_trainable(model)))
    eager_optimizer = optimizer(_trainable(twin))
    for step in range(steps):
        for batch in batches:
            args, twin_args = copy.deepcopy(batch), copy.deepcopy(batch)
            start = torch.get_rng_state()
            result = executor(*args)
            after = torch.get_rng_state()
            torch.set_rng_state(start)
            expected = twin(*twin_args)
            eager_optimizer.zero_grad()
            loss(expected).backward()
            eager_optimizer.step()
            _compare(result, expected, args, twin_args, f"step {step}")
            assert torch.equal(after, torch.get_rng_state()), f"step {step}: random state differs"
            _compare_state(model, twin, f"step {step}")
    return executor


def infers_like_eager(
    model: nn.Module, *batches: Batch, options: poptorch.Options | None = None, rounds: int = 2
) -> poptorch.PoplarExecutor:
    """Run `model` and an eager twin on the batches; all must be equal."""
    twin = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model, options)
    for number in range(rounds):
        for batch in batches:
            args, twin_args = copy.deepcopy(batch), copy.deepcopy(batch)
            start = torch.get_rng_state()
            result = executor(*args)
            torch.set_rng_state(start)
            with torch.no_grad():
                expected = twin(*twin_args)
            _compare(result, expected, args, twin_args, f"round {number}")
            _compare_state(model, twin, f"round {number}")
    return executor


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _compare(result: Any, expected: Any, args: Batch, twin_args: Batch, where: str) -> None:
    assert same_bits(result, expected), f"{where}: {result} is not eager's {expected}"
    assert same_bits(args, twin_args), f"{where}: the arguments are changed differently"


def _compare_state(model: nn.Module, twin: nn.Module, where: str) -> None:
    mine, eager = state_of(model), state_of(twin)
    assert list(mine) == list(eager)
    differing = [name for name in mine if not same_bits(mine[name], eager[name])]
    assert not differing, f"{where}: {differing} differ from eager"


def changed(before: dict[str, torch.Tensor], model: nn.Module) -> Sequence[str]:
    """The names of the parameters and buffers that are not what they were."""
    now = state_of(model)
    return [name for name, tensor in before.items() if not torch.equal(tensor, now[name])]
