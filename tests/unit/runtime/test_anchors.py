"""Anchored tensors: what the step computed inside, each with its own mode (spec 1.3, 2.4, 2.18)."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Regression, data, options, sgd, strict, twin

import poptorch
from poptorch import OutputMode


def anchored(opts, **names):
    for short, entry in names.items():
        opts.anchorTensor(short, *(entry if isinstance(entry, tuple) else (entry,)))
    return opts


@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_gradients_updated_weights_and_activations_are_eagers(opts):
    model = Regression()
    eager, (x, target) = twin(model), data(4)
    made = anchored(
        opts(),
        gradient="Gradient___fc.weight",
        updated="UpdatedVar___fc.bias",
        hidden="fc/MatMul:0",
        given="input/1",
        loss="loss",
    )
    step = poptorch.trainingModel(model, made, sgd(model))
    out = F.linear(x, eager.fc.weight, eager.fc.bias)
    loss = F.mse_loss(out, target)
    loss.backward()
    sgd(eager).step()

    step(x, target)

    assert torch.equal(step.getAnchoredTensor("gradient"), eager.fc.weight.grad)
    assert torch.equal(step.getAnchoredTensor("updated"), eager.fc.bias)
    assert torch.equal(step.getAnchoredTensor("hidden"), out)
    assert torch.equal(step.getAnchoredTensor("given"), target)
    assert torch.equal(step.getAnchoredTensor("loss"), loss)


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ((OutputMode.All,), 12),
        ((OutputMode.EveryN, 2), 6),
        ((OutputMode.Final,), 2),
        ((OutputMode.Sum,), 2),
    ],
    ids=str,
)
def test_an_anchor_has_its_own_mode(mode, rows):
    opts = anchored(options(deviceIterations=2, accumulation=3, replicationFactor=2))
    opts.anchorTensor("given", "input", *mode)
    model = Regression()
    step = poptorch.trainingModel(model, opts, sgd(model))
    x, target = data(12)

    step(x, target)

    found = step.getAnchoredTensor("given")
    assert found.shape == (rows, 3)
    parts = x.reshape(2, 3, 2, 3)  # device iteration, accumulation, replica
    expected = {
        OutputMode.All: parts.reshape(12, 3),
        OutputMode.EveryN: parts[1].reshape(6, 3),
        OutputMode.Final: parts[1, 2],
        OutputMode.Sum: parts.sum((0, 1)),
    }[mode[0]]
    torch.testing.assert_close(found, expected)


def test_without_a_mode_an_anchor_follows_the_outputs():
    infer = poptorch.inferenceModel(
        Regression(), anchored(options(deviceIterations=3), hidden="fc/MatMul:0")
    )

    out = infer(torch.randn(3, 3))

    assert torch.equal(infer.getAnchoredTensor("hidden"), out)


def test_what_the_update_leaves_is_kept_once_for_each_update():
    model = Regression()
    opts = options(deviceIterations=3, accumulation=2)
    opts.anchorTensor("weights", "UpdatedVar___fc.bias", OutputMode.All)
    opts.anchorTensor("rate", "scaledLearningRate0___specific___fc.bias", OutputMode.All)
    step = poptorch.trainingModel(model, opts, sgd(model, 0.25))

    step(*data(6))

    assert step.getAnchoredTensor("weights").shape == (6,)
    assert torch.equal(step.getAnchoredTensor("weights")[4:], model.fc.bias)
    assert step.getAnchoredTensor("rate").tolist() == [0.25] * 3


def test_the_state_of_the_optimizer_can_be_anchored():
    model = Regression()
    eager, batch = twin(model), data(4)
    opts = anchored(options(), moment="Accl1___fc.weight")
    step = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.1))
    eager(*batch)[1].backward()

    step(*batch)

    expected = 0.1 * eager.fc.weight.grad  # (1 - beta1) * gradient, from zero
    torch.testing.assert_close(step.getAnchoredTensor("moment"), expected)


def test_the_names_of_older_releases_are_understood():
    model = Regression()
    opts = anchored(options(), gradient="Gradient___model.fc.bias")
    step = poptorch.trainingModel(model, opts, sgd(model))

    step(*data(4))

    assert step.getAnchoredTensor("gradient").shape == (2,)


def test_a_part_that_is_called_model_keeps_its_name():
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Regression()

        def forward(self, x, target):
            return self.model(x, target)

    model = Wrapped()
    made = anchored(options(), g="Gradient___model.fc.bias", w="UpdatedVar___model.fc.bias")
    step = poptorch.trainingModel(model, made, sgd(model))

    step(*data(4))

    assert step.getAnchoredTensor("g").shape == model.model.fc.bias.shape
    assert torch.equal(step.getAnchoredTensor("w"), model.model.fc.bias)


def test_an_unknown_tensor_is_refused_with_names_like_it():
    infer = poptorch.inferenceModel(Regression(), anchored(options(), hidden="fc/MatMull:0"))

    with pytest.raises(poptorch.Error, match="no such tensor") as raised:
        infer(torch.ones(1, 3))
    assert "fc/MatMul:0" in raised.value.fix


def test_a_name_that_was_not_anchored_and_a_model_that_has_not_run_are_told_apart():
    infer = poptorch.inferenceModel(Regression(), anchored(options(), hidden="fc/MatMul:0"))

    with pytest.raises(AssertionError, match="No tensor with name other"):
        infer.getAnchoredTensor("other")
    with pytest.raises(AssertionError, match="has not run"):
        infer.getAnchoredTensor("hidden")


def test_values_stay_until_the_next_call_and_are_the_callers_own():
    infer = poptorch.inferenceModel(Regression(), anchored(options(), given="input"))
    x = torch.ones(1, 3)
    infer(x)
    first = infer.getAnchoredTensor("given")

    x.fill_(2.0)
    infer(x)

    assert first.tolist() == [[1.0] * 3]
    assert infer.getAnchoredTensor("given").tolist() == [[2.0] * 3]


def test_the_modes_are_logged(caplog):
    caplog.set_level(logging.DEBUG, "poptorch::python")
    opts = options(deviceIterations=4)
    opts.anchorTensor("a", "input", OutputMode.EveryN, 4)
    opts.anchorTensor("b", "input", OutputMode.Sum)
    poptorch.inferenceModel(Regression(), opts).compile(torch.ones(4, 3))

    assert "input EVERYN/4" in caplog.text and "input Sum/1" in caplog.text
