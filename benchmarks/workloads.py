"""The workloads W1 to W5: a model, a batch and an optimizer, the same bits in every process.

    workload = WORKLOADS["W2"]
    model = workload.model()                      # nn.Module, seed 0
    x, labels = workload.batch()
    optimizer = workload.optimizer(model.parameters(), fused=True)

`W0` is W2 with every dimension at 1: almost no arithmetic, so its step time is host time.
W6 is the inference of the others, at batch 1 and at the training batch (`with_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from benchmarks import models

_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Update:
    """An optimizer by name, for engines that are not torch."""

    kind: str
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def of(self, parameters: Iterable[nn.Parameter], **flags: Any) -> torch.optim.Optimizer:
        """The torch optimizer; flags such as `fused=True` go to its constructor."""
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, **flags}
        if self.kind == "sgd":
            settings["momentum"] = self.momentum
        return _OPTIMIZERS[self.kind](parameters, **settings)


@dataclass(frozen=True)
class Workload:
    """One row of the table of workloads."""

    name: str
    title: str
    make: Callable[..., nn.Module]
    rows: int
    update: Update
    shape: tuple[int, ...]
    """Of one input row. Inputs are word numbers if `words` is set, else normal floats."""
    words: int = 0
    classes: int = 10
    dropout: float | None = None
    convolutions: bool = False
    dtype: torch.dtype = torch.float32

    def model(self) -> nn.Module:
        """The network without its loss, in training mode, with the weights of seed 0."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.make() if self.dropout is None else self.make(dropout=self.dropout)
        return model.to(self.dtype)

    def with_loss(self) -> models.WithLoss:
        """The network with its loss: what the torch engines train."""
        return models.WithLoss(self.model())

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of one micro-batch, with seed 1."""
        draw = torch.Generator().manual_seed(1)
        shape = (self.rows, *self.shape)
        if self.words:
            x = torch.randint(0, self.words, shape, generator=draw)
        else:
            x = torch.randn(shape, generator=draw).to(self.dtype)
        # A language model has a label at every place, a classifier one for each row.
        labelled = shape if self.classes == self.words else (self.rows,)
        return x, torch.randint(0, self.classes, labelled, generator=draw)

    def optimizer(self, parameters: Iterable[nn.Parameter], **flags: Any) -> torch.optim.Optimizer:
        """The torch optimizer of the workload."""
        return self.update.of(parameters, **flags)

    def without_dropout(self) -> Workload:
        """The same with dropout 0, for comparing results: engines draw different masks."""
        return self if self.dropout is None else replace(self, dropout=0.0)

    def with_rows(self, rows: int) -> Workload:
        """The same with another batch size."""
        return replace(self, rows=rows)


def _cnn(name: str, rows: int, update: Update) -> Workload:
    title = f"MNIST CNN, batch {rows}, {update.kind.upper() if update.kind == 'sgd' else 'Adam'}"
    return Workload(name, title, models.CNN, rows, update, (1, 28, 28), convolutions=True)


def _tiny_mlp() -> nn.Module:
    return models.MLP(1, 1, 1)


_SGD, _ADAM = Update("sgd", 0.01), Update("adam", 1e-3)

WORKLOADS = {
    workload.name: workload
    for workload in (
        _cnn("W1a", 8, _SGD),
        _cnn("W1a-Adam", 8, _ADAM),
        _cnn("W1b", 64, _SGD),
        Workload("W2", "MLP 64-128-128-10, batch 16, SGD", models.MLP, 16, _SGD, (64,)),
        Workload(
            "W3",
            "GPT-like, 4 layers of 256, sequence 128, batch 8, dropout 0.1, AdamW",
            models.GPT,
            8,
            Update("adamw", 1e-3, weight_decay=0.01),
            (128,),
            words=1024,
            classes=1024,
            dropout=0.1,
        ),
        Workload(
            "W4",
            "ResNet-18 on 32 x 32, batch 32, SGD with momentum",
            models.ResNet18,
            32,
            # At 0.01 three steps on one batch amplify rounding by 1000: nothing to compare.
            Update("sgd", 1e-3, momentum=0.9),
            (3, 32, 32),
            convolutions=True,
        ),
        Workload(
            "W5",
            "LSTM classifier, sequence 50, hidden 128, batch 16, Adam",
            models.Classifier,
            16,
            _ADAM,
            (50,),
            words=1000,
            classes=2,
        ),
        Workload(
            "LeNet",
            "Paddle's LeNet, batch 64, SGD",
            models.LeNet,
            64,
            _SGD,
            (1, 28, 28),
            convolutions=True,
        ),
        Workload("W0", "MLP 1-1-1-1, batch 1, SGD", _tiny_mlp, 1, _SGD, (1,), classes=1),
    )
}

TRAINED = ("W1a", "W1a-Adam", "W1b", "W2", "W3", "W4", "W5", "LeNet")
INFERRED = ("W1a", "W2", "W3", "W4", "W5")
