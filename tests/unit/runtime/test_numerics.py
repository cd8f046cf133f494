"""Floating-point exceptions and stochastic rounding, seen from a script (spec 1.4, 2.6)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Pass, Regression, data, options, sgd, strict
from torch import nn

import poptorch

INF, NAN = float("inf"), float("nan")


def checked(opts):
    opts.Precision.enableFloatingPointExceptions(True)
    return opts


FAULTS = {
    "division by zero": (lambda x: 1 / x, [0.0]),
    "overflow": (lambda x: torch.exp(x), [1000.0]),
    "overflow of half": (lambda x: x.half() * 60000, [2.0]),
    "inf - inf": (lambda x: x - x, [INF]),
    "0 * inf": (lambda x: x * 0.0, [INF]),
    "root of a negative": (lambda x: torch.sqrt(x), [-1.0]),
    "comparison with NaN": (lambda x: x > 0, [NAN]),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_an_invalid_operation_raises_and_names_the_op_and_the_line(name, opts):
    function, values = FAULTS[name]
    infer = poptorch.inferenceModel(Pass(function), checked(opts()))
    infer(torch.ones(1))

    with pytest.raises(poptorch.Error, match="floating-point exception: aten") as raised:
        infer(torch.tensor(values))

    assert isinstance(raised.value, FloatingPointError)
    assert __file__ in raised.value.location


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_option_nothing_raises(name):
    function, values = FAULTS[name]
    x = torch.tensor(values)

    out = poptorch.inferenceModel(Pass(function), options())(x)

    torch.testing.assert_close(out, function(x), equal_nan=True)


def test_a_mask_of_minus_infinity_is_no_fault():
    def attention(scores, mask):
        return F.softmax(scores.masked_fill(mask, -INF), -1)

    scores, mask = torch.randn(2, 4), torch.tensor([[False, True, False, True]] * 2)
    infer = poptorch.inferenceModel(Pass(attention), checked(options()))

    assert torch.equal(infer(scores, mask), attention(scores, mask))


def test_the_module_and_the_phase_are_named():
    class Roots(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.inner = Pass(lambda w: torch.sqrt(w))

        def forward(self, x):
            return poptorch.identity_loss(self.inner(self.weight) * x, "sum")

    model = Roots()
    step = poptorch.trainingModel(model, checked(options()), sgd(model))

    with pytest.raises(FloatingPointError, match="backward in inner"):
        step(torch.ones(1))


def test_a_step_without_faults_trains_as_it_does_without_the_option():
    model = Regression()
    other = Regression()
    other.load_state_dict(model.state_dict())
    batch = data(4)

    poptorch.trainingModel(model, checked(options()), sgd(model))(*batch)
    poptorch.trainingModel(other, options(), sgd(other))(*batch)

    assert torch.equal(model.fc.weight, other.fc.weight)


class Weight(nn.Module):
    """A weight that loses lr at each step."""

    def __init__(self, count=4000):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count).half())

    def forward(self, x):
        return poptorch.identity_loss((self.weight * x).float(), "sum")


def trained(opts, steps=20, make=poptorch.optim.SGD):
    model = Weight()
    step = poptorch.trainingModel(model, opts, make(model.parameters(), lr=1e-4))
    for _ in range(steps):
        step(torch.ones(4000).half())
    return model.weight.detach().float()


def random_rounding(seed=7):
    opts = options().randomSeed(seed)
    opts.Precision.enableStochasticRounding(True)
    return opts


def test_small_updates_of_half_weights_are_lost_to_the_nearest_and_kept_on_average_at_random():
    assert torch.equal(trained(options()), torch.ones(4000))

    weights = trained(random_rounding())

    # 20 steps of 1e-4; one rounding moves by at most 2**-11, and there are 4000 weights.
    assert float(weights.mean()) == pytest.approx(1 - 20 * 1e-4, abs=1e-4)
    assert len(weights.unique()) > 2


def test_a_seed_repeats_the_roundings():
    assert torch.equal(trained(random_rounding(1)), trained(random_rounding(1)))
    assert not torch.equal(trained(random_rounding(1)), trained(random_rounding(2)))


def test_float_models_are_not_rounded():
    model, batch = Regression(), data(4)
    other = Regression()
    other.load_state_dict(model.state_dict())

    poptorch.trainingModel(model, random_rounding(), sgd(model))(*batch)
    poptorch.trainingModel(other, options(), sgd(other))(*batch)

    assert torch.equal(model.fc.weight, other.fc.weight)
