"""Models in any number of stages, and how they are trained with and without their annotations."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import poptorch
from poptorch import (
    Block,
    ParallelPhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
)

STRATEGIES = {
    "pipelined": lambda names: PipelinedExecution(*names),
    "sharded": lambda names: ShardedExecution(*names),
    "serial": lambda names: SerialPhasedExecution(*names),
    "parallel": lambda names: ParallelPhasedExecution(*names),
}


class Staged(nn.Module):
    """A row of layers, each in a block `b0`, `b1`, …; the last block also has the loss."""

    def __init__(self, layers: Sequence[nn.Module], annotated: bool, checkpoints: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.annotated, self.checkpoints = annotated, checkpoints

    def block(self, number: int):
        return Block(f"b{number}", ipu_id=number) if self.annotated else nullcontext()

    def forward(self, x, target=None):
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            with self.block(number):
                x = layer(x)
                if self.checkpoints and self.annotated:
                    x = poptorch.recomputationCheckpoint(x)
                if number == last:
                    return x if target is None else (x, F.mse_loss(x, target))


class ConvNorm(nn.Module):
    """A convolution with batch norm: statistics that change with each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Transformer(nn.Module):
    """Attention and a feed-forward layer, with dropout in both."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.feed, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = F.dropout(torch.softmax(q @ k.transpose(1, 2) / 2, dim=-1), 0.2, self.training)
        x = self.norm(x + self.out(scores @ v))
        return x + F.dropout(F.gelu(self.feed(x)), 0.1, self.training)


class Tied(nn.Module):
    """A linear layer whose weight is that of all others."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return torch.tanh(F.linear(x, self.weight, self.bias))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def layers(kind: str, stages: int) -> tuple[list[nn.Module], tuple[int, ...]]:
    """The layers of a model, and the shape of a sample."""
    if kind == "cnn":
        return [ConvNorm() for _ in range(stages)], (2, 4, 4)
    if kind == "linear":
        return [nn.Linear(4, 4) for _ in range(stages)], (4,)
    if kind == "transformer":
        return [Transformer() for _ in range(stages)], (3, 4)
    weight = nn.Parameter(torch.randn(4, 4) / 2)
    row: list[nn.Module] = [Tied(weight) for _ in range(stages)]
    row[0] = nn.Sequential(Recurrent(), Tied(weight))
    return row, (3, 4)


@dataclass(frozen=True)
class Case:
    """A configuration: what to build and how to run it."""

    kind: str = "cnn"
    stages: int = 3
    accumulation: int = 4
    strategy: str = "pipelined"
    recompute: str = ""
    replicas: int = 1
    iterations: int = 1
    seed: int | None = None
    mode: poptorch.OutputMode = poptorch.OutputMode.All

    def options(self, *, annotated: bool, training: bool = True) -> poptorch.Options:
        made = poptorch.Options().showCompilationProgressBar(False)
        made.engine("reference").outputMode(self.mode)
        made.deviceIterations(self.iterations).replicationFactor(self.replicas)
        if training:
            made.Training.gradientAccumulation(self.accumulation)
        if self.seed is not None:
            made.randomSeed(self.seed)
        if annotated:
            names = [f"b{i}" for i in range(self.stages)]
            made.setExecutionStrategy(STRATEGIES[self.strategy](names))
            if self.recompute == "option":
                made._Popart.set("autoRecomputation", 3)
        return made

    def model(self, *, annotated: bool) -> tuple[Staged, tuple[int, ...]]:
        torch.manual_seed(1)
        row, shape = layers(self.kind, self.stages)
        return Staged(row, annotated, self.recompute == "checkpoints"), shape

    def train(self, *, annotated: bool, steps: int = 2):
        """Outputs of the steps, and the state of the model, the optimizer and the generator."""
        model, shape = self.model(annotated=annotated)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        executor = poptorch.trainingModel(model, self.options(annotated=annotated), optimizer)
        rows = 2 * self.accumulation * self.replicas * self.iterations
        torch.manual_seed(2)
        outputs = []
        for _ in range(steps):
            x, target = torch.randn(rows, *shape), torch.randn(rows, *shape)
            outputs.append(executor(x, target))
        state = copy.deepcopy([*model.state_dict().values()])
        momenta = [s["momentum_buffer"] for s in optimizer.state_dict()["state"].values()]
        drawn = [torch.rand(3), torch.tensor(executor.rng_state)]
        executor.destroy()
        return [*(t for pair in outputs for t in pair), *state, *momenta, *drawn]

    def infer(self, *, annotated: bool):
        """The outputs of a model in training mode without gradients: it draws and counts too."""
        model, shape = self.model(annotated=annotated)
        executor = poptorch.inferenceModel(model, self.options(annotated=annotated, training=False))
        torch.manual_seed(2)
        x = torch.randn(2 * self.replicas * self.iterations, *shape)
        return [executor(x), *copy.deepcopy([*model.state_dict().values()]), torch.rand(3)]


def same_bits(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Are all tensors equal, bit for bit?"""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )
