"""One row of the table of malformed inputs, and the models the rows are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from pantile.errors import Error


@dataclass(frozen=True)
class Row:
    """A mistake, what is said about it, and the call that the advice leads to.

    `also` is the builtin class that PopTorch (or eager PyTorch) raises for it; `says` stands in the
    message (the argument, and what is wrong with it), `advises` in the fix.
    """

    title: str
    bad: Callable[[], Any]
    good: Callable[[], Any]
    error: type[Error]
    says: tuple[str, ...]
    advises: str
    also: type[BaseException] = Exception


class Net(nn.Module):
    """Eight features to four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.fc(x)
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits, labels)


class Scaled(nn.Module):
    """One mandatory argument of each kind."""

    def forward(self, x: Tensor, scale: Tensor, *, shift: float = 0.0) -> Tensor:
        return x * scale + shift


class Sums(nn.Module):
    """Takes any nested value and adds up its tensors."""

    def forward(self, batch: Any) -> Tensor:
        tensors = list(batch.values()) if isinstance(batch, dict) else list(batch)
        return torch.stack([t.sum() for t in tensors]).sum()


X = torch.randn(6, 8)
Y = torch.tensor([0, 1, 2, 3, 0, 1])


def options() -> poptorch.Options:
    return poptorch.Options()


def strict() -> poptorch.Options:
    return poptorch.Options().strict()


def infer(*args: Any, **kwargs: Any) -> Any:
    """Call an inference executor of `Net`."""
    return poptorch.inferenceModel(Net())(*args, **kwargs)


def infer_with(chosen: poptorch.Options, *args: Any) -> Any:
    """Call an inference executor of `Net` with these options."""
    return poptorch.inferenceModel(Net(), chosen)(*args)


def train(*args: Any, **kwargs: Any) -> Any:
    """Call a training executor of `Net`."""
    return poptorch.trainingModel(Net())(*args, **kwargs)


def train_with(make: Callable[[Net], torch.optim.Optimizer]) -> Any:
    """Train a step with the optimizer that `make` builds."""
    model = Net()
    return poptorch.trainingModel(model, None, make(model))(X, Y)


def then(first: Any, second: Any, chosen: poptorch.Options | None = None) -> Any:
    """Two calls of one inference executor; the second is the one that counts."""
    executor = poptorch.inferenceModel(Net(), chosen)
    executor(first)
    return executor(second)
