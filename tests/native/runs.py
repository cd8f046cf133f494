"""Small models, and the same training on the native and on the reference engine.

All tests use the same model and the same micro-batch where they can: equal programs are compiled
once for the whole folder.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import poptorch

ROWS = 4
"""Of a micro-batch."""

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    """Two layers; with labels it returns its scores and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = self.second(torch.tanh(self.first(x)))
        return out if labels is None else (out, F.cross_entropy(out, labels))


class Normed(nn.Module):
    """Batch statistics: buffers that every micro-batch writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        out = self.second(self.norm(self.first(x)))
        return out, F.cross_entropy(out, labels)


class Dropped(nn.Module):
    """Dropout, and nothing else that could hide its mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.25)


class Pass(nn.Module):
    """Runs a function as its forward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of tests that are not about optimizers."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def options(engine: str = "native", *, accumulation: int = 1, **setters: Any) -> poptorch.Options:
    """Quiet options: `options(deviceIterations=2)` calls `deviceIterations(2)`."""
    made = poptorch.Options().showCompilationProgressBar(False).engine(engine)
    made.Training.gradientAccumulation(accumulation)
    for name, value in setters.items():
        getattr(made, name)(*value if isinstance(value, tuple) else (value,))
    return made


def seeded(model: Callable[[], nn.Module] = Net) -> nn.Module:
    """A model with the weights of seed 0."""
    torch.manual_seed(0)
    return model()


def batch(micro_batches: int = 1, *, rows: int = ROWS, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """Inputs and labels for so many micro-batches."""
    draw = torch.Generator().manual_seed(seed)
    count = micro_batches * rows
    return torch.randn(count, 4, generator=draw), torch.randint(0, 3, (count,), generator=draw)


def runs_natively(executor: poptorch.PoplarExecutor) -> bool:
    """Did the latest call go through the device loop?"""
    return executor._native is not None and bool(executor._native._bound)


@dataclass(frozen=True)
class Pair:
    """The same model, options and optimizer on both engines."""

    native: poptorch.PoplarExecutor
    reference: poptorch.PoplarExecutor

    def check(self, *args: Any, calls: int = 1, **kwargs: Any) -> None:
        """Call both with the same arguments; results and state must agree."""
        for _ in range(calls):
            results = self.native(*args, **kwargs)
            expected = self.reference(*args, **kwargs)
            assert_close(results, expected)
        self.check_state()

    def check_state(self) -> None:
        """Parameters and buffers agree."""
        assert_close(self.native.model.state_dict(), self.reference.model.state_dict())


def training_pair(
    make: MakeOptimizer = momentum,
    model: Callable[[], nn.Module] = Net,
    edit: Callable[[poptorch.Options], object] = lambda _: None,
    **setters: Any,
) -> Pair:
    """Training executors of two equal models."""
    made = []
    for engine in ("native", "reference"):
        chosen, net = options(engine, **setters), seeded(model)
        edit(chosen)
        made.append(poptorch.trainingModel(net, chosen, make(net.parameters())))
    return Pair(*made)


def inference_pair(model: Callable[[], nn.Module], **setters: Any) -> Pair:
    """Inference executors of two equal models."""
    engines = ("native", "reference")
    return Pair(
        *(poptorch.inferenceModel(seeded(model).eval(), options(e, **setters)) for e in engines)
    )


def assert_close(results: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal structure, equal up to rounding."""
    torch.testing.assert_close(results, expected, rtol=rtol, atol=atol)


class Compilations(logging.Handler):
    """Listens to the log of the engine."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def count(self, what: str) -> int:
        """How many executables were `compiled` or `found`."""
        return sum(line.startswith("executable ") and line.endswith(what) for line in self.lines)

    @property
    def compiled(self) -> int:
        """How many executables were compiled."""
        return self.count("compiled")

    @property
    def used(self) -> int:
        """How many executables were compiled or found."""
        return self.compiled + self.count("found")

    @property
    def warnings(self) -> list[str]:
        """What was said about the engine that runs the model."""
        return [line for line in self.lines if "reference engine" in line]


def run_script(script: str, *arguments: str, timeout: float = 250, **environment: str) -> str:
    """What a Python script prints, run in a process of its own."""
    done = subprocess.run(
        command(script, *arguments),
        env={**os.environ, **environment},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command(script: str, *arguments: str) -> Sequence[str]:
    """How to run a script that can import the tests."""
    return [sys.executable, "-c", script, *arguments]
