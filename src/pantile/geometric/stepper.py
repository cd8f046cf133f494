"""Tools for people who bring a PyG model: a fixed number of nodes, and training in lock-step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.testing import assert_close
from torch_geometric.nn import MessagePassing

from pantile import optim
from pantile.errors import DataArgumentError
from pantile.options import Options
from pantile.runtime.wrap import trainingModel

MakeOptimizer = Callable[..., torch.optim.Optimizer]


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Let every `MessagePassing` layer aggregate into `dim_size` nodes instead of asking its input.

    It must not be less than the number of nodes of a batch.
    """

    def with_size(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        arguments = inputs[-1]
        arguments["dim_size"] = dim_size
        return arguments

    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.register_aggregate_forward_pre_hook(with_size)


class TrainingStepper:
    """Train a model eagerly and compiled side by side, and compare outputs, loss and weights.

    The model's forward returns `(output, loss)`. `run` raises AssertionError, naming what differs,
    if a step of the two is not close (`rtol`, `atol` and `equal_nan` as in
    `torch.testing.assert_close`). `enable_fp_exception` also lets the compiled run stop at the
    first operation that makes a value not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.001,
        optimizer: MakeOptimizer = optim.Adam,
        options: Options | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        enable_fp_exception: bool = True,
        equal_nan: bool = False,
    ) -> None:
        model.train()
        self.lr = lr
        self.rtol = rtol
        self.atol = atol
        self.equal_nan = equal_nan
        self.options = options or Options()
        self.options.Precision.enableFloatingPointExceptions(enable_fp_exception)
        self.cpu_model = deepcopy(model)
        self.ipu_model = deepcopy(model)
        self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr)
        self.training_model = trainingModel(
            self.ipu_model, self.options, optimizer(self.ipu_model.parameters(), lr=lr)
        )
        self.check_parameters()

    def cpu_step(self, batch: Sequence[Any]) -> tuple[Any, torch.Tensor]:
        """One eager training step."""
        self.optimizer.zero_grad()
        out, loss = self.cpu_model(*batch)
        loss.backward()
        self.optimizer.step()
        return out, loss

    def ipu_step(self, batch: Sequence[Any], copy_weights: bool = True) -> tuple[Any, torch.Tensor]:
        """One compiled training step."""
        out, loss = self.training_model(*batch)
        if copy_weights:
            self.training_model.copyWeightsToHost()
        return out, loss

    def run(self, num_steps: int, batch: Sequence[Any]) -> None:
        """Train on one batch, comparing after every step."""
        for _ in range(num_steps):
            expected, expected_loss = self.cpu_step(batch)
            actual, actual_loss = self.ipu_step(batch)
            self.assert_close(actual, expected, "Output")
            self.assert_close(actual_loss, expected_loss, "loss")
            self.check_parameters()

    def check_parameters(self) -> None:
        """Compare all weights."""
        compiled = dict(self.ipu_model.named_parameters())
        for name, parameter in self.cpu_model.named_parameters():
            self.assert_close(compiled[name], parameter, name)

    def assert_close(self, actual: Any, expected: Any, id: str) -> None:
        """Raise AssertionError, naming `id`, unless the two are close."""
        assert_close(
            actual,
            expected,
            rtol=self.rtol,
            atol=self.atol,
            equal_nan=self.equal_nan,
            msg=lambda text: f"{id} was not equal:\n\n{text}\n",
        )

    def benchmark(
        self, num_steps: int, batch: Sequence[Any], devices: Sequence[str] = ("ipu",)
    ) -> dict[str, float]:
        """Seconds for so many steps, compiled ("ipu") and eager ("cpu"), after one to warm up."""
        steps = {"ipu": lambda: self.ipu_step(batch, False), "cpu": lambda: self.cpu_step(batch)}
        devices = (devices,) if isinstance(devices, str) else devices
        found = {}
        for device in devices:
            if device not in steps:
                raise DataArgumentError(
                    f"device {device!r} cannot be measured", fix=f"use one of {sorted(steps)}"
                )
            steps[device]()
            start = time.perf_counter()
            for _ in range(num_steps):
                steps[device]()
            found[f"{device}_time"] = time.perf_counter() - start
        return found
