"""Operators without a rule of ours in pipelines, and where floating-point faults are looked for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.native.runs import assert_close, options, seeded
from tests.native.test_segments import Orthogonal, adam, data, lowerings
from torch import nn

import poptorch


class Solved(nn.Module):
    """A solve in the first stage, a Cholesky factor and a Fourier transform in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        with poptorch.Block("b0", ipu_id=0):
            hidden = torch.tanh(self.first(x))
            hidden = torch.linalg.solve(hidden.t() @ hidden + torch.eye(6), hidden.t()).t()
        with poptorch.Block("b1", ipu_id=1):
            factor = torch.linalg.cholesky(hidden.t() @ hidden + torch.eye(6))
            wave = torch.fft.irfft(torch.fft.rfft(hidden @ factor) * 0.5, n=6)
            out = self.last(hidden + wave)
            return out, F.mse_loss(out, target)


STRATEGIES = {
    "pipelined": poptorch.PipelinedExecution,
    "sharded": poptorch.ShardedExecution,
    "serial": poptorch.SerialPhasedExecution,
}


def eager_losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, micro_batches: int
) -> list[torch.Tensor]:
    """The last loss of each step; each has so many micro-batches of 8 rows."""
    losses = []
    x, target = data(8 * micro_batches)
    for _ in range(steps):
        optimizer.zero_grad()
        for rows, wanted in zip(x.split(8), target.split(8), strict=True):
            loss = model(rows, wanted)[1]
            (loss / micro_batches).backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", [adam, Orthogonal], ids=["adam", "orthogonal"])
def test_calls_in_stages_train_as_eager_does(strategy: str, make: Any) -> None:
    model = seeded(Solved)
    eager = copy.deepcopy(model)
    chosen = options(accumulation=3, deviceIterations=2)
    chosen.setExecutionStrategy(STRATEGIES[strategy]("b0", "b1"))
    step = poptorch.trainingModel(model, chosen, make(model.parameters()))
    expected = eager_losses(eager, make(eager.parameters()), 6, 3)

    x, target = data(24)
    for call in range(3):
        _, loss = step(x.repeat(2, 1), target.repeat(2, 1))
        assert_close(loss, expected[2 * call + 1], rtol=1e-3, atol=1e-4)

    assert_close(model.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-3)
    assert "segments" in lowerings(step)


def test_replicas_accumulate_and_iterate_over_calls_as_eager_does() -> None:
    """Two replicas of two micro-batches are the four micro-batches of eager's step."""
    model = seeded(Solved)
    eager = copy.deepcopy(model)
    chosen = options(accumulation=2, deviceIterations=2, replicationFactor=2)
    step = poptorch.trainingModel(model, chosen, adam(model.parameters()))
    eager_losses(eager, adam(eager.parameters()), 6, 4)

    x, target = data(32)
    for _ in range(3):
        step(x.repeat(2, 1), target.repeat(2, 1))

    assert_close(model.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-3)
    assert lowerings(step)[0] == "segments"


class Factor(nn.Module):
    """Between kernels, a call whose result is infinite for large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i1(x * 2) + 1


def test_a_fault_of_a_call_is_found_where_faults_are_looked_for() -> None:
    chosen = options()
    chosen.Precision.enableFloatingPointExceptions(True)
    model = poptorch.inferenceModel(Factor(), chosen)
    good, bad = torch.ones(3), torch.full((3,), 1000.0)
    for _ in range(3):
        assert_close(model(good), Factor()(good))

    with pytest.raises(FloatingPointError, match=r"special_i1"):
        model(bad)

    assert_close(model(good), Factor()(good))


def test_without_the_option_the_same_call_gives_eagers_infinity() -> None:
    model, bad = poptorch.inferenceModel(Factor(), options()), torch.full((3,), 1000.0)

    for _ in range(3):
        assert torch.equal(model(bad), Factor()(bad))
    assert lowerings(model) == ["segments"]
