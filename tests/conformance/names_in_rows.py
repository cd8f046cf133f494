"""The models, data and small functions that the rows of the conformance table speak of."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
import poptorch.testing

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 3, 0, 1])
DATASET = torch.utils.data.TensorDataset(X, Y)


class Net(nn.Module):
    """Eight features to four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.fc(x)
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


class TwoStages(nn.Module):
    """A layer on each of two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = poptorch.BeginBlock(nn.Linear(8, 8), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(8, 4), "second", ipu_id=1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.second(self.first(x))
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


class WithBuffer(nn.Module):
    """Adds a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("y", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.y


class Counter(WithBuffer):
    """Counts its micro-batches in a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        self.y += 1
        return x + self.y


class Pair(nn.Module):
    """Two arguments, tensors or numbers."""

    def forward(self, a: Any, b: Any) -> Any:
        return a if b is None else a + b


class Many(nn.Module):
    """Any number of arguments."""

    def forward(self, *tensors: Tensor) -> Tensor:
        return torch.stack([t.sum() for t in tensors]).sum()


class First(nn.Module):
    """Sums the tensors of a container."""

    def forward(self, a: Any) -> Tensor:
        return torch.stack([t.sum() for t in (a.values() if isinstance(a, dict) else a)]).sum()


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows without a length."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


class Function(nn.Module):
    """A function of one tensor as a model."""

    def __init__(self, function: Callable[[Tensor], Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Function2(Function):
    """A function of two tensors as a model."""

    def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        return self.function(x, y)  # type: ignore[call-arg]


class Trained(nn.Module):
    """Trains the input of a function of `X`."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(X.clone())
        self.function = function

    def forward(self, scale: Tensor) -> Tensor:
        out = self.function(self.weight * scale)
        return poptorch.identity_loss(out.float().square(), reduction="mean")


def run_inference(
    function: Callable[[Tensor], Any], options: poptorch.Options, *layers: nn.Module
) -> Any:
    """What an inference executor of the function, which may use the layers, gives for `X`."""
    return poptorch.inferenceModel(Function(function, *layers), options)(X)


def run_training(function: Callable[[Tensor], Tensor], options: poptorch.Options) -> Tensor:
    """The weight after two steps of SGD on the mean square of the function's result."""
    model = Trained(function)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = poptorch.trainingModel(model, options, sgd)
    step(torch.ones(1))
    step(torch.ones(1))
    return model.weight.detach().clone()


def train_both(
    function: Callable[[Tensor], Tensor],
    formula: Callable[[Tensor], Tensor],
    options: poptorch.Options,
) -> tuple[Tensor, Tensor]:
    """The weight after training the function, and after training the formula with eager PyTorch."""
    model = Trained(formula)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        sgd.zero_grad()
        model(torch.ones(1)).backward()
        sgd.step()
    return run_training(function, options), model.weight.detach()


def call_twice(
    model: nn.Module, options: poptorch.Options, first: list[Any], second: list[Any]
) -> Any:
    """The result of the second call of one inference executor."""
    executor = poptorch.inferenceModel(model, options)
    executor(*first)
    return executor(*second)


def overlap(options: poptorch.Options) -> poptorch.Options:
    """Options under which transfers may overlap with compute."""
    options.setExecutionStrategy(poptorch.ShardedExecution())
    options.outputMode(poptorch.OutputMode.All)
    options.TensorLocations.numIOTiles(32)
    return options


def custom(options: poptorch.Options, value: Any) -> Any:
    """Call a custom op with one attribute."""
    poptorch.register_custom_op("com.acme", "Echo", 1, lambda x, value: x)
    return run_inference(
        lambda x: poptorch.custom_op([x], "Echo", "com.acme", 1, [x], {"value": value})[0], options
    )


@contextlib.contextmanager
def mode_of(options: poptorch.Options) -> Iterator[None]:
    """Outside a model, strict mode is what the environment says: say what the options say."""
    before = os.environ.get("POPTORCH_STRICT")
    os.environ["POPTORCH_STRICT"] = str(int(options.is_strict))
    try:
        yield
    finally:
        if before is None:
            del os.environ["POPTORCH_STRICT"]
        else:
            os.environ["POPTORCH_STRICT"] = before


@contextlib.contextmanager
def stderr() -> Iterator[Callable[[], str]]:
    """What was written to stderr in the scope."""
    text = io.StringIO()
    kept, sys.stderr = sys.stderr, text
    try:
        yield text.getvalue
    finally:
        sys.stderr = kept


def namespace(folder: str, options: poptorch.Options | None = None) -> dict[str, Any]:
    """The globals a row is run with."""
    names = {name: value for name, value in globals().items() if not name.startswith("_")}
    return {**names, "copy": copy, "folder": folder, "options": options}
