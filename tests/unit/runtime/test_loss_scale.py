"""Automatic loss scaling, seen from a script (spec 2.6).

The sequences are those that PopART's own documentation of the option implies: the scale doubles
after each update whose float16 gradients are small, and is anchored as it was used.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import options, strict
from torch import nn

import poptorch
from poptorch import OutputMode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x, target):
        out = self.fc(x)
        return out, F.mse_loss(out, target)


def halves(rows):
    return torch.randn(rows, 8).half(), torch.randn(rows, 4).half()


def scaling(opts, **settings):
    opts.Training.setAutomaticLossScaling(True)
    for name, value in settings.items():
        opts._Popart.set(f"automaticLossScalingSettings.{name}", value)
    opts.anchorTensor("scale", "finalLossScale", OutputMode.All)
    return opts


def adam(model, scale=10.0):
    return poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=scale)


def factor(optimizer):
    return float(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"])


@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_the_scale_doubles_after_each_update_and_is_anchored_as_it_was_used(opts):
    model = Net().half()
    optimizer = adam(model)
    step = poptorch.trainingModel(model, scaling(opts()), optimizer)
    batch = halves(4)
    step.compile(*batch)

    for used in (10.0, 20.0, 40.0, 80.0):
        before = factor(optimizer)
        step(*batch)
        assert float(step.getAnchoredTensor("scale")) == used == 10.0 * before


def test_it_adapts_inside_a_call_of_many_device_iterations():
    model = Net().half()
    opts = scaling(options(deviceIterations=8), updatePeriod=2)
    step = poptorch.trainingModel(model, opts, adam(model))

    step(*halves(32))

    assert step.getAnchoredTensor("scale").tolist() == [10, 20, 20, 40, 40, 80, 80, 160]


def test_the_update_is_that_of_a_fixed_scale():
    torch.manual_seed(3)
    model, batch = Net().half(), halves(4)
    fixed = copy.deepcopy(model)
    ours = poptorch.trainingModel(model, scaling(options()), adam(model, 8.0))
    other = poptorch.trainingModel(fixed, options(), adam(fixed, 8.0))

    for _ in range(3):
        ours(*batch)
        other(*batch)

    for a, b in zip(model.parameters(), fixed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)


def test_gradients_that_overflow_leave_the_weights_alone_until_the_scale_fits():
    model = Net().half()
    optimizer = adam(model, 2.0**15)
    step = poptorch.trainingModel(model, scaling(options()), optimizer)
    x, target = torch.full((4, 8), 50.0).half(), torch.full((4, 4), 100.0).half()
    before = model.fc.weight.detach().clone()

    step(x, target)

    assert torch.equal(model.fc.weight, before)
    assert factor(optimizer) == 0.5
    for _ in range(12):
        step(x, target)
    assert model.fc.weight.isfinite().all()
    assert not torch.equal(model.fc.weight, before)


def test_float_gradients_do_not_change_it():
    model = Net()
    optimizer = adam(model)
    step = poptorch.trainingModel(model, scaling(options()), optimizer)

    for _ in range(3):
        step(torch.randn(4, 8), torch.randn(4, 4))

    assert factor(optimizer) == 1.0
    assert float(step.getAnchoredTensor("scale")) == 10.0


def test_half_activations_with_float_weights_do():
    model = Net()
    optimizer = adam(model)
    step = poptorch.trainingModel(model, scaling(options()), optimizer)

    step(*halves(4))

    assert factor(optimizer) == 2.0
    assert model.fc.weight.dtype is torch.float32


def test_it_goes_on_where_it_was_after_a_state_dict_and_after_an_export(tmp_path):
    model, batch = Net().half(), halves(4)
    optimizer = adam(model)
    step = poptorch.trainingModel(model, scaling(options()), optimizer)
    for _ in range(3):
        step(*batch)
    twin = copy.deepcopy(model)
    other = adam(twin)
    other.load_state_dict(optimizer.state_dict())
    step.save(tmp_path / "model.poptorch")

    resumed = poptorch.trainingModel(twin, scaling(options()), other)
    loaded = poptorch.load(tmp_path / "model.poptorch")
    for executor in (step, resumed, loaded):
        executor(*batch)

    assert float(resumed.getAnchoredTensor("scale")) == 80.0
    assert float(loaded.getAnchoredTensor("scale")) == 80.0
    assert torch.equal(twin.fc.weight, model.fc.weight)
    assert torch.equal(loaded.fc.weight, model.fc.weight)


def test_a_new_number_of_the_optimizer_keeps_the_factor():
    model, batch = Net().half(), halves(4)
    optimizer = adam(model)
    step = poptorch.trainingModel(model, scaling(options()), optimizer)
    step(*batch)
    step(*batch)

    optimizer.loss_scaling = 3.0
    step.setOptimizer(optimizer)
    step(*batch)

    assert float(step.getAnchoredTensor("scale")) == 12.0


def test_the_loss_that_is_returned_is_not_scaled():
    model, batch = Net().half(), halves(4)
    expected = model(*batch)[1]
    step = poptorch.trainingModel(model, scaling(options()), adam(model))

    assert torch.equal(step(*batch)[1], expected)
