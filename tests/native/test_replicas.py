"""Replicas on threads of the device loop: their buffers, shared rows, and weights of groups."""

from __future__ import annotations

from typing import Any

import torch
from tests.native.runs import Pair, options, runs_natively
from torch import nn

import poptorch
from poptorch import CommGroupType, OutputMode, VariableRetrievalMode


class RowSum(nn.Module):
    """A buffer that adds up what its replica saw."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum()
        return self.total.clone()


def test_each_replica_has_its_own_buffers_and_an_edit_reaches_all() -> None:
    model = RowSum()
    infer = poptorch.inferenceModel(model, options(deviceIterations=2, replicationFactor=2))
    x = torch.tensor([1.0, 10.0, 2.0, 20.0])

    assert infer(x).tolist() == [1.0, 10.0, 3.0, 30.0]
    assert infer(x).tolist() == [4.0, 40.0, 6.0, 60.0]
    assert runs_natively(infer)
    assert model.total == 6.0
    model.total.zero_()
    assert infer(x).tolist() == [1.0, 10.0, 3.0, 30.0]
    assert infer(x).tolist() == [4.0, 40.0, 6.0, 60.0]


class Shard(nn.Module):
    """A weight of which a replica sees its own columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(2, 4, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        out = x @ self.weight
        return out, poptorch.identity_loss((out - target) ** 2, reduction="sum")


def sharded(engine: str) -> poptorch.PoplarExecutor:
    """Four replicas: two values of the weight, rows shared by two replicas each."""
    model = Shard()
    chosen = options(engine, replicationFactor=4, deviceIterations=2, outputMode=OutputMode.All)
    chosen.inputReplicaGrouping(2, CommGroupType.Consecutive)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = poptorch.trainingModel(model, chosen, sgd)
    step.weight.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.OnePerGroup)
    return step


def test_weights_of_groups_and_rows_that_replicas_share() -> None:
    pair = Pair(sharded("native"), sharded("reference"))
    x, target = torch.randn(2 * 2 * 5, 4), torch.randn(2 * 2 * 5, 3)

    pair.check(x, target, calls=3)

    assert runs_natively(pair.native)
    first, second = pair.native.model.weight.detach()
    assert not torch.equal(first, second)


def test_more_replicas_than_threads_take_turns() -> None:
    model = nn.Linear(4, 3)
    infer = poptorch.inferenceModel(model, options(replicationFactor=7))
    x = torch.randn(7 * 2, 4)

    for _ in range(3):
        out = infer(x)

    assert runs_natively(infer)
    torch.testing.assert_close(out, model(x).detach(), rtol=1e-5, atol=1e-6)
