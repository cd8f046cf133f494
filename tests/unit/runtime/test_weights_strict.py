"""Strict mode: the device has its own weights, copied when PopTorch would copy them."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from tests.unit.runtime.toy_models import (
    Counter,
    Regression,
    data,
    eager_step,
    options,
    same_state,
    sgd,
    strict,
    twin,
)
from torch import nn

import poptorch


class Case:
    """A strict training executor beside the eager loop, with its copies counted."""

    def __init__(self, model=None):
        self.model = model or Regression()
        self.eager = twin(self.model)
        self.optimizer = sgd(self.eager)
        self.step = poptorch.trainingModel(self.model, strict(), sgd(self.model))
        self.batch = data(4)
        self.copies = 0
        copy_weights = self.step.copyWeightsToHost

        def counted():
            self.copies += 1
            copy_weights()

        self.step.copyWeightsToHost = counted

    def train(self, steps=1):
        for _ in range(steps):
            self.step(*self.batch)
            eager_step(self.eager, self.optimizer, [self.batch])

    def equal(self):
        return same_state(self.model, self.eager)


def test_training_copies_nothing_and_the_first_access_copies_once():
    case = Case()
    case.train(3)
    assert case.copies == 0

    weight = case.model.fc.weight.clone()
    case.model.state_dict()
    list(case.model.parameters())

    assert case.copies == 1
    assert torch.equal(weight, case.eager.fc.weight)


@pytest.mark.parametrize(
    "access",
    [
        lambda m: m.fc.weight,
        lambda m: list(m.parameters()),
        lambda m: list(m.named_buffers()),
        lambda m: m.state_dict(),
        lambda m: m(torch.ones(1, 3)),
        lambda m: copy.deepcopy(m),
        lambda m: torch.save(m, io.BytesIO()),
        lambda m: m.fc._parameters,
    ],
    ids=["attribute", "parameters", "buffers", "state_dict", "call", "deepcopy", "save", "table"],
)
def test_each_kind_of_access_copies_exactly_once(access):
    case = Case()
    case.train()

    access(case.model)
    access(case.model)

    assert case.copies == 1
    assert case.equal()


def test_a_parameter_held_by_the_user_copies_when_it_is_used():
    case = Case()
    weight = case.model.fc.weight
    case.train()

    assert torch.equal(weight, case.eager.fc.weight)
    assert case.copies == 1


def test_inference_made_after_wrapping_is_refreshed_once_per_training():
    case = Case()
    infer = poptorch.inferenceModel(case.step, strict())
    x = case.batch[0]

    for copies in (1, 2):
        case.train(2)
        assert torch.equal(infer(x), case.eager(x))
        infer(x)
        assert case.copies == copies

    case.model.state_dict()
    assert case.copies == 2


def test_inference_made_before_wrapping_has_the_weights_of_its_first_call():
    model = Regression()
    infer = poptorch.inferenceModel(model, strict())
    x, target = data(4)
    step = poptorch.trainingModel(model, strict(), sgd(model))
    step(x, target)
    first = infer(x)
    assert torch.equal(first, twin(model)(x))

    step(x, target)

    assert torch.equal(infer(x), first)


def test_a_default_inference_executor_sees_what_a_strict_one_trains():
    case = Case()
    infer = poptorch.inferenceModel(case.model, options())

    for _ in range(2):
        case.train()
        assert torch.equal(infer(case.batch[0]), case.eager(case.batch[0]))


def test_edits_on_the_host_are_invisible_until_they_are_copied():
    model = Regression()
    infer = poptorch.inferenceModel(model, strict())
    x = torch.randn(4, 3)
    before = infer(x)

    nn.init.ones_(model.fc.weight)
    assert torch.equal(infer(x), before)
    infer.copyWeightsToDevice()

    assert torch.equal(infer(x), model(x))


def test_a_replaced_parameter_is_invisible_until_it_is_copied():
    model = Regression()
    infer = poptorch.inferenceModel(model, strict())
    x = torch.randn(4, 3)
    before = infer(x)

    model.fc.weight = nn.Parameter(torch.ones(2, 3))
    assert torch.equal(infer(x), before)
    infer.copyWeightsToDevice()

    assert torch.equal(infer(x), model(x))


def test_copying_to_the_device_discards_what_was_trained():
    case = Case()
    start = twin(case.eager)
    case.train()

    case.step.copyWeightsToDevice()

    assert same_state(case.model, start)
    assert case.copies == 0


def test_training_on_the_host_does_not_touch_the_device():
    case = Case()
    case.train()
    case.model(*case.batch)[1].backward()
    torch.optim.SGD(case.model.parameters(), lr=1.0).step()

    case.train()

    assert case.equal()


def test_load_state_dict_on_the_executor_reaches_the_device():
    case = Case()
    case.train()
    state = {k: torch.ones_like(v) for k, v in case.eager.state_dict().items()}

    result = case.step.load_state_dict(state)
    case.eager.load_state_dict(state)
    case.train()

    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert case.equal()


def test_buffers_of_an_inference_model_stay_on_the_device_until_copied():
    model = Counter()
    infer = poptorch.inferenceModel(model, strict())
    infer(torch.ones(1, 3))
    infer(torch.ones(1, 3))
    assert model.seen == 0

    infer.copyWeightsToHost()

    assert model.seen == 2


def test_named_buffers_are_copied_alone():
    model = Counter()
    infer = poptorch.inferenceModel(model, strict(updatableNamedBuffers=["seen"]))
    infer(torch.ones(1, 3))
    with torch.no_grad():
        model.seen.fill_(10)
        model.total.fill_(10)

    infer.copyNamedBuffersToDevice()
    infer.copyWeightsToHost()

    assert model.seen == 10
    assert model.total == model.fc.bias[0]


def test_named_buffers_must_be_configured_and_exist():
    infer = poptorch.inferenceModel(Counter(), strict())
    infer(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="no updatable buffers"):
        infer.copyNamedBuffersToDevice()

    wrong = poptorch.inferenceModel(Counter(), strict(updatableNamedBuffers=["sen"]))
    with pytest.raises(poptorch.Error, match="'sen'"):
        wrong(torch.ones(1, 3))


@pytest.mark.parametrize("leave", ["destroy", "detachFromDevice"])
def test_leaving_the_device_brings_the_weights_back(leave):
    case = Case()
    case.train()

    getattr(case.step, leave)()

    assert case.copies == 1
    assert case.equal()


def test_training_goes_on_after_detaching_and_destroying():
    case = Case()
    case.train()
    case.step.detachFromDevice()
    case.train()
    case.step.destroy()
    case.train()
    case.step.copyWeightsToHost()

    assert case.equal()


def test_model_destroy_gives_the_model_back():
    case = Case()
    case.train()

    case.model.destroy()

    assert type(case.model) is Regression
    assert type(case.model.fc.weight) is nn.Parameter
    assert case.equal()
    poptorch.trainingModel(case.model, strict())


def test_a_live_executor_refuses_a_second_one():
    case = Case()

    with pytest.raises(RuntimeError, match=r"already been wrapped[\s\S]*model\.destroy\(\)"):
        poptorch.trainingModel(case.model, strict())


def test_weights_trained_by_an_executor_that_is_forgotten_are_not_lost():
    model = Regression()
    eager = twin(model)
    batch = data(4)

    def train():
        poptorch.trainingModel(model, strict(), sgd(model))(*batch)

    train()
    gc.collect()
    eager_step(eager, sgd(eager), [batch])

    assert same_state(model, eager)
    poptorch.trainingModel(model, strict())


def test_the_version_counts_copies_to_the_host():
    case = Case()
    assert case.step._host_weights_version == 0

    case.train()
    case.model.state_dict()

    assert case.step._host_weights_version == 1


def test_wide_weights_are_narrowed_on_the_device_only():
    model = Regression().double()
    x = torch.randn(4, 3, dtype=torch.float64)
    infer = poptorch.inferenceModel(model, strict())

    out = infer(x)

    assert out.dtype is torch.float32
    assert torch.equal(out, twin(model).float()(x.float()))
    assert model.fc.weight.dtype is torch.float64


def test_inference_leaves_the_statistics_of_a_batch_norm_in_train_mode_alone():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x), self.norm.running_mean + 0, self.norm.running_var

    model, x = Norm(), 5 + torch.randn(8, 3)
    executor = poptorch.inferenceModel(model, strict())

    for _ in range(2):
        out, mean, variance = executor(x)

    torch.testing.assert_close(out, nn.BatchNorm1d(3)(x).detach())
    assert torch.equal(mean, torch.zeros(3))
    assert torch.equal(variance, torch.ones(3))


def test_training_writes_the_statistics_of_a_batch_norm():
    model = nn.Sequential(nn.BatchNorm1d(3), Regression())
    eager, x = nn.BatchNorm1d(3), 5 + torch.randn(8, 3)

    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return poptorch.identity_loss(self.model(x), reduction="mean")

    executor = poptorch.trainingModel(Trained(), strict(), sgd(model))
    executor(x)
    eager(x)
    executor.copyWeightsToHost()

    torch.testing.assert_close(model[0].running_mean, eager.running_mean)
