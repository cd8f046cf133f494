"""Small models, and the eager loop that says what an executor must compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

import poptorch


class Regression(nn.Module):
    """A linear layer; with a target it returns its output and its loss."""

    def __init__(self, width: int = 3, out: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(width, out)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        out = self.fc(x)
        return out if target is None else (out, F.mse_loss(out, target))


class Counter(nn.Module):
    """Counts its micro-batches in a buffer and adds up a weight in another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        self.seen += 1
        self.total += self.fc.bias[0].detach()
        out = self.fc(x)
        return out if target is None else (out, F.mse_loss(out, target))


class Pass(nn.Module):
    """Runs a function as its forward."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def strict(**setters) -> poptorch.Options:
    """Strict options with the given setters applied."""
    return options(**setters).strict(True)


def options(*, accumulation: int = 1, **setters) -> poptorch.Options:
    """Quiet options: `options(deviceIterations=2)` calls `deviceIterations(2)`."""
    made = poptorch.Options().showCompilationProgressBar(False)
    made.Training.gradientAccumulation(accumulation)
    for name, value in setters.items():
        getattr(made, name)(value)
    return made


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def twin(model: nn.Module) -> nn.Module:
    """An independent copy, for the eager run."""
    return copy.deepcopy(model)


def eager_step(model: nn.Module, optimizer, batches: Sequence[tuple[torch.Tensor, ...]]):
    """One optimizer step over some micro-batches, gradients averaged; the last result."""
    optimizer.zero_grad()
    for batch in batches:
        result = model(*batch)
        (result[-1] / len(batches)).backward()
    optimizer.step()
    return result


def data(rows: int, width: int = 3, out: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, width), torch.randn(rows, out)


def same_state(a: nn.Module, b: nn.Module) -> bool:
    """Are all parameters and buffers the same, bit for bit?"""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def close_state(a: nn.Module, b: nn.Module, tolerance: float = 1e-6) -> bool:
    """Are all parameters and buffers the same up to rounding?"""
    left, right = a.state_dict(), b.state_dict()
    return all(torch.allclose(left[k], right[k], atol=tolerance, rtol=0) for k in left)
