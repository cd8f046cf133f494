"""Runs without data: nothing of the arguments is read, nothing is returned (spec 1.3)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Regression, options, sgd, strict
from torch import nn

import poptorch
from poptorch import OutputMode


class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, labels):
        out = self.fc(x)
        return {"scores": out, "loss": F.cross_entropy(out, labels)}


@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_arguments_are_not_read_and_results_have_their_shapes_only(opts):
    model = Classes()
    made = opts(deviceIterations=2).enableSyntheticData(True).outputMode(OutputMode.All)
    step = poptorch.trainingModel(model, made, sgd(model))
    before = model.fc.weight.detach().clone()

    for _ in range(3):
        out = step(torch.full((4, 3), float("nan")), torch.full((4,), 99))

    assert {k: v.tolist() for k, v in out.items()} == {"scores": [[0.0] * 2] * 4, "loss": [0.0] * 2}
    assert model.fc.weight.isfinite().all()
    assert not torch.equal(model.fc.weight, before)


def test_nothing_goes_in_or_out():
    infer = poptorch.inferenceModel(Regression(), options().enableSyntheticData(True))

    infer(torch.ones(1, 3))

    assert infer.getPerfCounters() == {
        name: [[]] for name in ("input", "input_complete", "output", "output_complete")
    }


def test_in_place_changes_of_arguments_do_not_reach_the_caller():
    class Adds(nn.Module):
        def forward(self, x):
            x += 1
            return x

    infer = poptorch.inferenceModel(Adds(), options().enableSyntheticData(True))
    x = torch.zeros(2)

    infer(x)

    assert x.tolist() == [0.0, 0.0]


def test_arguments_are_checked_all_the_same():
    made = options(deviceIterations=2).enableSyntheticData(True)
    infer = poptorch.inferenceModel(Regression(), made)

    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        infer(torch.ones(3, 3))


def test_there_is_no_latency_where_nothing_is_transferred():
    infer = poptorch.inferenceModel(nn.Linear(3, 2), options().enableSyntheticData(True))

    infer(torch.ones(4, 3))

    assert infer.getLatency() == infer.getComputeLatency() == (0.0, 0.0, 0.0)
