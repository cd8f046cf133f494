"""What the log says of an optimizer: values, constants, and nothing when nothing changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from pantile.optim.attributes import read_attributes
from pantile.optim.report import report_lines

X, Y = torch.randn(1, 4), torch.tensor([2])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.fc(x), y)


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    before = poptorch.logger.level
    caplog.set_level(logging.DEBUG, logger="poptorch::python")
    yield
    poptorch.logger.setLevel(before)


def strict() -> poptorch.Options:
    return poptorch.Options().strict().engine("reference")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if "optimizer with" in r.getMessage()]
    caplog.clear()
    return lines


def lines_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return report_lines(read_attributes(optimizer))


def test_what_was_passed_is_variable_and_the_rest_is_constant() -> None:
    model = Model()

    graph, group = lines_of(poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))

    assert "defaultLearningRate=0.5," in graph
    assert "defaultWeightDecay=0 (const)" in graph
    assert "learningRate=0.5, momentum=0.9," in group
    assert "dampening=0 (const)" in group


def test_both_betas_are_named() -> None:
    graph, _ = lines_of(torch.optim.Adam(Model().parameters(), lr=0.5))

    assert "defaultBeta1=0.9 (const), defaultBeta2=0.999 (const)" in graph


def test_the_velocity_of_separate_accumulators_is_scaled_as_the_loss_is() -> None:
    graph, group = lines_of(poptorch.optim.SGD(Model().parameters(), lr=1.0, loss_scaling=2.0))

    assert "defaultVelocityScaling=2," in graph and graph.endswith("lossScaling=2")
    assert "velocityScaling=2," in group


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_types_of_the_accumulators_are_told(dtype: torch.dtype) -> None:
    optimizer = poptorch.optim.AdamW(
        Model().parameters(), accum_type=dtype, second_order_momentum_accum_type=torch.float16
    )

    graph, _ = lines_of(optimizer)

    name = str(dtype).removeprefix("torch.")
    assert f"accumType={name}, firstOrderMomentumAccumType=float32" in graph
    assert "secondOrderMomentumAccumType=float16" in graph


def test_it_is_told_at_compilation_and_when_something_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, strict(), optimizer)
    executor(X, Y)
    first = said(caplog)

    executor.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.5))
    same = said(caplog)
    executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.25))
    changed = said(caplog)

    assert [line.partition(" with")[0] for line in first] == [
        "Updating graph optimizer",
        "Updating group 0 optimizer",
    ]
    assert same == []
    assert "learningRate=0.25" in changed[1]


def test_transfers_of_optimizer_state_are_told(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, strict(), optimizer)
    executor(X, Y)

    state: dict[str, Any] = optimizer.state_dict()
    optimizer.state_dict()
    optimizer.load_state_dict(state)
    executor(X, Y)

    told = [r.getMessage() for r in caplog.records]
    wanted = [
        "Writing optimiser state tensors from IPU to host.",
        "Using cached optimiser state dict",
        "copyWeightsToHost()",
        "Writing optimiser state tensors from host to IPU memory",
    ]
    assert [line for line in told if line in wanted] == wanted
